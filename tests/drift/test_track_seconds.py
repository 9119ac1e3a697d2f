"""Seconds of tracks against a slow account of every frame and track in dictionaries, and what they
say against the model that it comes from.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from monitor.drift.evidence import DriftSettings
from monitor.drift.track_evidence import (
    FACTORS,
    STATES,
    Residuals,
    common_level,
    log_ratios,
    residuals,
)
from monitor.drift.track_seconds import FEWEST, TrackSeconds
from tests.drift.drives import Frame, cut, some_frames, watched
from tests.drift.family_oracle import PLACES, moved
from tests.laws import costly

seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)
SECOND = 10**9


class Slow:
    """One row at a time."""

    def __init__(self, idle=2.0):
        self.idle = idle * SECOND
        self.time: dict[int, int] = {}
        self.open: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.tracks: dict[int, dict[str, Any]] = {}
        self.out: list[tuple[Any, ...]] = []
        self.late = self.short = 0

    def frame(self, source, stamp, changed, rows):
        if source in self.time and stamp < self.time[source] - 10 * SECOND:
            self.close(source)
            for key in [key for key, track in self.tracks.items() if track["source"] == source]:
                del self.tracks[key]
            del self.time[source]
        now = max(stamp, self.time.get(source, stamp))
        if source in self.time and now // SECOND > self.time[source] // SECOND:
            self.close(source)
        self.time[source] = now
        for key, of_slice, *nees in rows:
            if key == 0:
                continue
            if stamp // SECOND < now // SECOND:
                self.late += 1
                continue
            block = self.open[source].setdefault(
                key, {"slice": of_slice, "opened": now, "changed": False, "logs": []}
            )
            block["last"] = now
            block["changed"] |= changed
            block["logs"].append([math.log(max(e, 1e-6)) for e in nees])

    def close(self, source):
        for key, block in sorted(self.open.pop(source, {}).items()):
            track = self.tracks.get(key)
            if track is None or block["opened"] - track["last"] > self.idle:
                track = self.tracks[key] = {"source": source, "seconds": [], "levels": []}
            track["last"] = block["last"]
            if len(block["logs"]) < FEWEST:
                self.short += len(block["logs"])
                continue
            level = np.mean(block["logs"], axis=0)
            second = block["opened"] // SECOND
            before = len(track["levels"])
            mean = np.mean(track["levels"], axis=0) if before else np.zeros(2)
            first = track["seconds"][0] if before else second
            self.out.append(
                (
                    *(source, second, block["slice"], *level, len(block["logs"])),
                    *(block["changed"], before, *mean, first),
                )
            )
            track["seconds"].append(second)
            track["levels"].append(level)


def listed(blocks):
    return list(
        zip(
            *(blocks.source, blocks.second, blocks.slices, *blocks.level, blocks.count),
            *(blocks.changed, blocks.before, *blocks.mean, blocks.first),
            strict=True,
        )
    )


def of_source(blocks, source):
    return [block for block in blocks if block[0] == source]


def taken(pieces, seconds=None):
    seconds = seconds or TrackSeconds(DriftSettings())
    return [block for piece in pieces for block in listed(seconds.take(piece))], seconds


def second_of(track, second, *, level=0.0, rows=6, source=0, of_slice=0, changed=False):
    """Frames of one track in one second, with ln NEES of `level`."""
    e = math.exp(level)
    step = SECOND // rows
    return [
        (source, second * SECOND + at * step, changed, [(track, of_slice, e, e)])
        for at in range(rows)
    ]


@given(seeds, cuts, st.booleans())
def test_blocks_are_those_of_the_slow_account(seed, cuts, wild):
    frames = some_frames(seed, wild=wild)
    blocks, seconds = taken(cut(frames, cuts))
    slow = Slow()
    for frame in frames:
        slow.frame(*frame)
    for source in range(3):
        fast, expected = of_source(blocks, source), of_source(slow.out, source)
        assert len(fast) == len(expected)
        np.testing.assert_allclose(
            np.array(fast, float).reshape(-1, 11),
            np.array(expected, float).reshape(-1, 11),
            rtol=1e-9,
            atol=1e-6,
        )
    assert (seconds.late, seconds.short, seconds.left_out) == (slow.late, slow.short, 0)


@given(seeds, cuts, st.booleans())
def test_how_rows_are_cut_into_calls_changes_not_a_bit(seed, cuts, wild):
    frames = some_frames(seed, wild=wild)
    whole, one = taken([watched(frames)])
    pieces, many = taken(cut(frames, cuts))
    for source in range(3):
        assert of_source(whole, source) == of_source(pieces, source)
    assert (one.late, one.short, one.tracks) == (many.late, many.short, many.tracks)


def test_a_block_of_few_detections_is_dropped_and_its_track_goes_on():
    frames = [
        *second_of(1, 3),
        *second_of(1, 4, rows=FEWEST - 1),
        *second_of(1, 5, rows=FEWEST - 1),
        *second_of(1, 6),
    ]
    blocks, seconds = taken([watched([*frames, (0, 7 * SECOND, False, [])])])
    assert [(block[1], block[7]) for block in blocks] == [(3, 0), (6, 1)]
    assert seconds.short == 2 * (FEWEST - 1)


@pytest.mark.parametrize(("pause", "before"), [(0, 1), (1, 1), (2, 0), (9, 0)])
def test_a_track_id_that_comes_again_after_idle_is_a_new_track(pause, before):
    frames = [*second_of(1, 3), *second_of(1, 4 + pause), (0, 99 * SECOND, False, [])]
    blocks, _ = taken([watched(frames)])
    assert [block[7] for block in blocks] == [0, before]


def test_an_error_of_nothing_does_not_outweigh_its_second():
    frames = [*second_of(1, 3, level=0.0, rows=10), (0, 3 * SECOND + 1, False, [(1, 0, 0.0, 0.0)])]
    blocks, _ = taken([watched([*frames, (0, 4 * SECOND, False, [])])])
    np.testing.assert_allclose(blocks[0][3], math.log(1e-6) / 11, rtol=1e-6)


def test_one_wild_stamp_does_not_end_a_source_for_good():
    frames = [*second_of(1, 3), (0, 10**18, False, []), *second_of(1, 4), *second_of(1, 5)]
    blocks, seconds = taken([watched([*frames, (0, 6 * SECOND, False, [])])])
    assert [(block[1], block[7]) for block in blocks] == [(3, 0), (4, 0), (5, 1)]
    assert seconds.late == 0


def test_what_a_silent_source_left_open_is_told_once_the_others_have_moved_on():
    seconds = TrackSeconds(DriftSettings())
    taken([watched(second_of(1, 3))], seconds)
    others: list[Frame] = [(1, second * SECOND, False, []) for second in range(2000)]
    blocks, _ = taken([watched(others)], seconds)
    assert [block[:2] for block in blocks] == [(0, 3)]
    assert seconds.tracks == 0


def test_forgotten_slices_begin_anew_and_the_others_go_on():
    seconds = TrackSeconds(DriftSettings())
    both = [
        [frame for track in (1, 2) for frame in second_of(track, second, of_slice=track)]
        for second in (3, 4, 5)
    ]
    taken([watched(sorted(frames, key=lambda frame: frame[1])) for frames in both[:2]], seconds)
    seconds.forget(np.array([2]))
    rest = sorted(both[2], key=lambda frame: frame[1])
    blocks, _ = taken([watched([*rest, (0, 6 * SECOND, False, [])])], seconds)
    assert [(block[2], block[1], block[7]) for block in blocks] == [(1, 4, 1), (1, 5, 2), (2, 5, 0)]
    seconds.forget(np.zeros(0, np.int64))
    assert seconds.tracks == 2


@costly
@given(seeds, st.integers(1, 8))
def test_no_more_tracks_are_followed_than_may_be_and_the_longest_unseen_leave_first(seed, most):
    seconds = TrackSeconds(DriftSettings(most_open=most))
    frames = some_frames(seed, 60)
    counted = 0
    for frame in [*frames, *((source, 10**15, False, []) for source in range(3))]:
        counted += sum(block[5] for block in taken([watched([frame])], seconds)[0])
        assert seconds.tracks <= most
    rows = sum(row[0] != 0 for *_, rows in frames for row in rows)
    assert counted + seconds.late + seconds.short + seconds.left_out == rows


def test_the_longest_unseen_track_makes_room():
    seconds = TrackSeconds(DriftSettings(most_open=2))
    frames = [*second_of(1, 3), *second_of(2, 3), *second_of(3, 3)]
    # One after the other within the second.
    frames = [(0, 3 * SECOND + at, False, frame[3]) for at, frame in enumerate(frames)]
    blocks, _ = taken([watched([frame]) for frame in frames], seconds)
    assert (blocks, seconds.tracks, seconds.left_out) == ([], 2, 6)


# ---- what is left of a level when the past of its track is known
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


def residuals_of(r, v=0.09) -> Residuals:
    """Tracks of which nothing was known before."""
    r = np.array(r, np.float64)
    return Residuals(r, np.full(r.size, v), np.zeros(r.size))


def alone(m: int):
    return np.zeros(m, np.int64)


def after(*seconds) -> np.ndarray:
    """The chain after seconds, each of some residuals."""
    chain = NOTHING
    for r in seconds:
        chain = common_level(chain, residuals_of(r), alone(len(r)), LOW, HIGH).chain
    return chain


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
    said = log_ratios(residuals_of([far]), 1, HIGH, alone(1))
    assert said.max() == 4.0


# ---- the common level


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
    found = common_level(after(*earlier), residuals_of(last), alone(len(last)), LOW, HIGH)
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


def test_slices_have_chains_of_their_own_and_keep_them_without_tracks():
    low, high = np.repeat(LOW, 3), np.repeat(HIGH, 3)
    before = np.repeat(after([0.2] * 3), 3, axis=0)
    at = np.array([0, 2, 2])
    together = common_level(before, residuals_of([0.4, -0.5, -0.6]), at, low, high)
    for slice, r in ((0, [0.4]), (2, [-0.5, -0.6])):
        own = common_level(before[:1], residuals_of(r), alone(len(r)), LOW, HIGH)
        assert_allclose(together.chain[slice], own.chain[0], rtol=1e-12)
        assert together.high_edge[slice] == pytest.approx(own.high_edge[0])
    assert (together.chain[1] == before[1]).all()


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
