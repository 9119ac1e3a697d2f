"""What seconds of tracks say, against the model that it comes from."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from monitor.drift.track_evidence import (
    FACTORS,
    STATES,
    Residuals,
    common_level,
    log_ratios,
    residuals,
)
from tests.calibration.drift.family_oracle import PLACES, moved

TAU, OMEGA, USUAL = 0.5, 0.6, 0.7
LOW, HIGH = np.array([-0.7]), np.array([0.5])
NOTHING = np.zeros((1, STATES))


def left(level, mean, before, common=0.0, *, count=10, between=TAU**2) -> Residuals:
    """What is left of some levels."""
    level, mean, before, common, count = (
        np.array(one) for one in np.broadcast_arrays(level, mean, before, common, count)
    )
    usual, between, within, length, low, high = (
        np.full(level.size, one) for one in (USUAL, between, OMEGA**2, 10.0, LOW[0], HIGH[0])
    )
    return residuals(
        *(level, count, before, mean, common),
        usual=usual,
        between=between,
        within=within,
        length=length,
        low=low,
        high=high,
    )


def second_of(r, v=0.09) -> Residuals:
    """Tracks of which nothing was known before."""
    r = np.array(r, np.float64)
    return Residuals(r, np.full(r.size, v), np.zeros(r.size))


def alone(m: int):
    return np.zeros(m, np.int64)


def after(*seconds) -> np.ndarray:
    """The chain after seconds, each of some residuals."""
    chain = NOTHING
    for r in seconds:
        chain = common_level(chain, second_of(r), alone(len(r)), LOW, HIGH).chain
    return chain


# ---- what is left of a level when the past of its track is known


@settings(max_examples=50)
@given(
    level=st.floats(-2, 2),
    mean=st.floats(-2, 2),
    common=st.floats(-0.5, 0.5),
    before=st.integers(0, 20),
)
def test_residuals_have_the_law_of_a_second_given_the_earlier_ones(level, mean, common, before):
    size = before + 1
    spread = OMEGA**2 * np.eye(size) + TAU**2
    cross, known = spread[-1, :-1], spread[:-1, :-1]
    solved = np.linalg.solve(known, cross) if before else np.zeros(0)
    expected = USUAL + solved.sum() * (mean - USUAL - common)
    found = left([level], mean, before, common)
    assert found.v[0] == pytest.approx(spread[-1, -1] - cross @ solved)
    assert found.r[0] == pytest.approx(min(max(level - expected, LOW[0] - 4), HIGH[0] + 4))
    # What each second at another level adds to what is expected.
    assert found.learning[0] * before == pytest.approx(solved.sum())


@settings(max_examples=50)
@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-3, 3), st.integers(0, 20))
def test_where_any_level_of_its_own_is_as_likely_a_track_says_only_how_it_changes(
    level, mean, own, before
):
    """Of the first second nothing is said; r = y − ȳ + c̄ then, with ω²(1 + 1/n)."""
    one, other = (left([level + a], mean + a, before, 0.2, between=1e9) for a in (0.0, own))
    if before == 0:
        assert one.v[0] > 1e8
        return
    assert one.v[0] == pytest.approx(OMEGA**2 * (1 + 1 / before), rel=1e-6)
    assert one.r[0] == pytest.approx(other.r[0], abs=1e-6)
    assert one.r[0] == pytest.approx(np.clip(level - mean + 0.2, LOW[0] - 4, HIGH[0] + 4), abs=1e-6)


def test_a_second_of_few_detections_says_less():
    full, half, twice = (left([2.5], 0, 0, count=count).v[0] for count in (10, 5, 20))
    assert half > full == twice


def test_one_second_is_cut_where_it_says_too_much():
    far, further = (left([y], 0, 0).r[0] for y in (10.0, 1000.0))
    assert far == further
    said = log_ratios(second_of([far]), 1, HIGH, alone(1))
    assert said.max() == 4.0


# ---- the common level


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_chain_is_the_sum_over_all_paths(seconds):
    levels = [LOW[0] + (HIGH[0] - LOW[0]) * (place + 1) / 2 for place in PLACES]
    moves = [moved([float(i == j) for j in range(STATES)]) for i in range(STATES)]
    law = np.zeros(STATES)
    for path in itertools.product(range(STATES), repeat=len(seconds)):
        chance = moved([])[path[0]] * math.prod(moves[a][b] for a, b in itertools.pairwise(path))
        for state, r in zip(path, seconds, strict=True):
            chance *= math.exp(-sum((one - levels[state]) ** 2 for one in r) / (2 * 0.3**2))
        law[path[-1]] += chance
    assert_allclose(after(*seconds)[0], law / law.sum(), rtol=1e-9, atol=1e-12)
    *earlier, last = seconds
    found = common_level(after(*earlier), second_of(last), alone(len(last)), LOW, HIGH)
    assert found.mean[0] == pytest.approx(float(law @ levels) / law.sum(), abs=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("past", [(), ([0.1, 0.0],), ([-0.6] * 5, [-0.6] * 5)])
def test_bets_have_a_mean_of_at_most_one_over_the_paths_within_the_band(sign, past):
    # Of a chain that goes on as it is thought to, and tracks that know something of themselves.
    random, runs, tracks = np.random.default_rng(1), 100_000, 3
    before = after(*past)
    states = random.choice(STATES, runs, p=moved(before[0].tolist() if past else []))
    levels = np.linspace(LOW[0], HIGH[0], STATES)[states]
    r = levels[:, None] + random.normal(0, 0.5, (runs, tracks))
    found = Residuals(r.ravel(), np.full(r.size, 0.25), np.full(r.size, 0.05))
    at = np.repeat(np.arange(runs), tracks)
    low, high = np.full(runs, LOW[0]), np.full(runs, HIGH[0])
    level = common_level(np.repeat(before, runs, axis=0), found, at, low, high)
    edge, of_edge = (high, level.high_edge) if sign > 0 else (low, level.low_edge)
    said = log_ratios(found, sign, edge[at], np.full(r.size, 4))
    ratio = np.exp(said.reshape(runs, tracks, -1).sum(axis=1) + of_edge[:, None])
    error = ratio.std(axis=0) / math.sqrt(runs)
    assert (ratio.mean(axis=0) < 1 + 4 * error).all()
    if not past:
        # No bet wins more than e⁴ a track, which the largest ones would now and then.
        assert (ratio.mean(axis=0)[:2] > 1 - 4 * error[:2] - 0.02).all()


@settings(max_examples=30)
@given(
    path=st.lists(st.integers(0, STATES - 1), min_size=2, max_size=12),
    sign=st.sampled_from([1, -1]),
)
def test_no_path_within_the_band_wins_more_than_its_own_chance(path, sign):
    """Eight tracks at exactly the level of the path: the worst case for the bets, in the mean."""
    later = (
        moved([float(i == here) for i in range(STATES)])[there]
        for here, there in itertools.pairwise(path)
    )
    chance = math.prod(later) * moved([])[path[0]]
    chain, won = NOTHING, np.zeros(len(FACTORS))
    for state in path:
        level = float(np.linspace(LOW[0], HIGH[0], STATES)[state])
        found = second_of([level] * 8)
        now = common_level(chain, found, alone(8), LOW, HIGH)
        edge, of_edge = (HIGH, now.high_edge) if sign > 0 else (LOW, now.low_edge)
        won += log_ratios(found, sign, edge, alone(8)).sum(axis=0) + of_edge[0]
        chain = now.chain
    assert won.max() <= -math.log(chance) + 1e-9


def test_slices_have_chains_of_their_own_and_keep_them_without_tracks():
    low, high = np.repeat(LOW, 3), np.repeat(HIGH, 3)
    before = np.repeat(after([0.2] * 3), 3, axis=0)
    at = np.array([0, 2, 2])
    together = common_level(before, second_of([0.4, -0.5, -0.6]), at, low, high)
    for slice, r in ((0, [0.4]), (2, [-0.5, -0.6])):
        own = common_level(before[:1], second_of(r), alone(len(r)), LOW, HIGH)
        assert_allclose(together.chain[slice], own.chain[0], rtol=1e-12)
        assert together.high_edge[slice] == pytest.approx(own.high_edge[0])
    assert (together.chain[1] == before[1]).all()


# ---- bets


@pytest.mark.parametrize("sign", [1, -1])
def test_a_bet_is_a_ratio_of_normal_densities_beyond_the_edge(sign):
    edge = (HIGH if sign > 0 else LOW)[0]
    for r, since, learning in ((0.9, 0, 0.1), (-1.0, 3, 0.1), (0.2, 5, 0.15)):
        found = Residuals(np.array([r]), np.array([0.4]), np.array([learning]))
        said = log_ratios(found, sign, np.array([edge]), np.array([since]))[0]
        for factor, one in zip(FACTORS, said, strict=True):
            beyond = edge + sign * math.log(factor) * (1 - since * learning)
            here, there = (stats.norm(mean, math.sqrt(0.4)).logpdf(r) for mean in (edge, beyond))
            assert one == pytest.approx(min(there - here, 4.0))
