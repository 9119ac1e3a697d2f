"""Bets of a group of seconds are those of each second by itself, however they are added up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from monitor.drift.channels import SCALES, channels
from monitor.drift.charts import CHARTS, CHARTS_OF, Direction, Stage
from monitor.drift.evidence import CHANNEL_OF, COLUMNS, IS_OTHER_END
from monitor.drift.levels import STATES, Beyond, Unexplained, common_level
from monitor.drift.second_bets import Bands, SecondBets, group_bets, sides_of
from tests.drift.drives import seeds

K, SLICES, NOW = 3, 3, 100
THERE = channels(K)


def some_seconds(random: np.random.Generator, at: np.ndarray) -> SecondBets:
    """Seconds as if nothing were known of common levels; some are far outside."""
    m, shape = at.size, (at.size, THERE.size)
    before = random.integers(0, 5, m)
    sides = sides_of(K)
    return SecondBets(
        at=at,
        row=np.arange(m),
        found=Unexplained(
            random.normal(0, 1.5, shape),
            random.uniform(0.02, 1, shape),
            random.uniform(0, 0.2, shape),
            np.zeros(shape),
        ),
        rows=np.ones((m, 1), np.int64),
        common=np.zeros(shape),
        first=NOW - before,
        before=before,
        second=np.full(m, NOW),
        worth=random.uniform(0.5, 1, m),
        steepest=random.uniform(0.3, 3, m),
        far=random.uniform(size=(m, sides.column.size)) < 0.1,
        begins=np.zeros(m, bool),
        tails=random.normal(size=(m, 4)),
    )


def one_by_one(bets: SecondBets, bands: Bands, clean: np.ndarray, slice: int, chart: int, column):
    """ln of what each second of a slice wins by a bet, (m, 4); its place, and its end."""
    place = int(np.flatnonzero(CHANNEL_OF[column] == THERE)[0])
    over = CHARTS[CHARTS_OF[Stage.RAW]][chart].direction is Direction.OVER
    end = int(over != IS_OTHER_END[column])
    sign, edge = (1, bands.high) if end else (-1, bands.low)
    ours = bets.take(bets.at == slice)
    since = np.clip(NOW - np.maximum(clean[slice, chart, column], ours.first), 0, ours.before)
    r = np.clip(ours.found.r[:, place], bands.low[slice, place] - 4, bands.high[slice, place] + 4)
    dulled = 1 - since * ours.worth * ours.found.learning[:, place]
    each = Beyond(sign * (r - edge[slice, place]), ours.found.v[:, place], dulled)
    bounded = not end and place < SCALES
    return each.log_ratios(ours.steepest if bounded else np.full(r.size, np.inf)), place, end


@given(seeds)
def test_bets_of_a_group_are_the_sums_of_those_of_its_seconds(seed):
    random = np.random.default_rng(seed)
    # The middle slice has none.
    at = np.sort(random.choice([0, 2], random.integers(1, 30)))
    bets, sides = some_seconds(random, at), sides_of(K)
    bands = Bands(*(sign * random.uniform(0.2, 1, (SLICES, THERE.size)) for sign in (-1, 1)))
    clean = random.integers(NOW - 4, NOW + 2, (SLICES, 2, COLUMNS))
    chain = np.zeros((SLICES, THERE.size, STATES))
    chain[1] = 1 / STATES
    found = group_bets(K, bets, bands, chain, clean)
    assert found.counts.tolist() == np.bincount(at, minlength=SLICES).tolist()
    np.testing.assert_array_equal(found.chain[1], chain[1])
    assert not found.said[1].any() and not found.tails[1].any()
    speaks = bets.far.copy()
    for slice in np.unique(at).tolist():
        ours = np.flatnonzero(at == slice)
        for side, (chart, column) in enumerate(zip(sides.chart, sides.column, strict=True)):
            won, place, end = one_by_one(bets, bands, clean, slice, chart, column)
            low, high = bands.low[slice, place], bands.high[slice, place]
            r, v = np.clip(bets.found.r[ours, place], low - 4, high + 4), bets.found.v[ours, place]
            precision, weighted = (np.array([one.sum()]) for one in (1 / v, r / v))
            begun, ends = np.zeros((1, STATES)), (np.array([low]), np.array([high]))
            *_, edges = common_level(begun, precision, weighted, *ends)
            expected = won.sum(axis=0) + edges[end, 0]
            assert found.said[slice, chart, column] == pytest.approx(expected, rel=1e-9, abs=1e-9)
            speaks[ours, side] |= won.max(axis=1) > 1
    np.testing.assert_array_equal(found.speaks, speaks)
