"""Seconds of tracks against a slow account of every frame and track in dictionaries, and what they
say against the model that it comes from.
"""

from __future__ import annotations

import math

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
from monitor.drift.track_seconds import TrackSeconds
from tests.drift.drives import Frame, cut, cuts, seeds, some_frames, watched
from tests.drift.family_oracle import SECOND, SlowSeconds, moved


def listed(blocks):
    columns = (blocks.source, blocks.second, blocks.slices, *blocks.level, blocks.count)
    columns += (blocks.changed, blocks.before, *blocks.mean, blocks.first)
    return list(zip(*columns, strict=True))


def of_source(blocks, source):
    return [block for block in blocks if block[0] == source]


def taken(pieces, seconds=None):
    seconds = seconds or TrackSeconds(DriftSettings())
    return [block for piece in pieces for block in listed(seconds.take(piece))], seconds


def second_of(track, second, rows=6):
    """Frames of one track in one second, with a NEES of 1."""
    stamps = (second * SECOND + at * (SECOND // rows) for at in range(rows))
    return [(0, stamp, False, [(track, 0, 1.0, 1.0)]) for stamp in stamps]


@given(seeds, cuts, st.booleans())
def test_blocks_are_those_of_the_slow_account(seed, cuts, wild):
    frames, slow, told = some_frames(seed, wild=wild), SlowSeconds(), []
    blocks, seconds = taken(cut(frames, cuts))
    for frame in frames:
        second, over = slow.frame(frame)
        for one in over:
            n, mean = len(one["earlier"]), np.mean(one["earlier"] or [[0, 0]], axis=0)
            row = (frame[0], second, one["slice"], *one["level"], len(one["logs"]))
            told.append((*row, one["changed"], n, *mean, one["track"]["first"] if n else second))
    for source in range(3):
        fast, expected = (
            np.array(of_source(all, source), float).reshape(-1, 11) for all in (blocks, told)
        )
        assert_allclose(fast, expected, rtol=1e-9, atol=1e-6)
    assert (seconds.late, seconds.short, seconds.left_out) == (slow.late, slow.short, 0)


@given(seeds, cuts, st.booleans())
def test_how_rows_are_cut_into_calls_changes_not_a_bit(seed, cuts, wild):
    frames = some_frames(seed, wild=wild)
    whole, one = taken([watched(frames)])
    pieces, many = taken(cut(frames, cuts))
    for source in range(3):
        assert of_source(whole, source) == of_source(pieces, source)
    assert (one.late, one.short, one.tracks) == (many.late, many.short, many.tracks)


@pytest.mark.parametrize(("pause", "before"), [(0, 1), (1, 1), (2, 0), (9, 0)])
def test_a_track_id_that_comes_again_after_idle_is_a_new_track(pause, before):
    frames = [*second_of(1, 3), *second_of(1, 4 + pause), (0, 99 * SECOND, False, [])]
    blocks, _ = taken([watched(frames)])
    assert [block[7] for block in blocks] == [0, before]


def test_an_error_of_nothing_does_not_outweigh_its_second():
    frames = [*second_of(1, 3, rows=10), (0, 3 * SECOND + 1, False, [(1, 0, 0.0, 0.0)])]
    blocks, _ = taken([watched([*frames, (0, 4 * SECOND, False, [])])])
    np.testing.assert_allclose(blocks[0][3], math.log(1e-6) / 11, rtol=1e-6)


def test_what_a_silent_source_left_open_is_told_once_the_others_have_moved_on():
    seconds = TrackSeconds(DriftSettings())
    taken([watched(second_of(1, 3))], seconds)
    others: list[Frame] = [(1, second * SECOND, False, []) for second in range(2000)]
    blocks, _ = taken([watched(others)], seconds)
    assert [block[:2] for block in blocks] == [(0, 3)]
    assert seconds.tracks == 0


def test_forgotten_slices_begin_anew_and_the_others_go_on():
    seconds = TrackSeconds(DriftSettings())
    frames = [one for second in (3, 4, 5) for one in second_of(1, second)]
    both = [(*of, [(1, 1, e, e), (2, 2, e, e)]) for *of, [(*_, e)] in frames]
    taken([watched(both[:12])], seconds)
    seconds.forget(np.array([2]))
    blocks, _ = taken([watched([*both[12:], (0, 6 * SECOND, False, [])])], seconds)
    assert [(block[2], block[1], block[7]) for block in blocks] == [(1, 4, 1), (1, 5, 2), (2, 5, 0)]
    seconds.forget(np.zeros(0, np.int64))
    assert seconds.tracks == 2


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


def left(level, mean, before, common=0.0) -> Residuals:
    """What is left of one level of ten detections."""
    row = (np.array([one]) for one in (level, 10, before, mean, common))
    names = ("usual", "between", "within", "length", "low", "high")
    law = (USUAL, TAU**2, OMEGA**2, 10.0, LOW[0], HIGH[0])
    return residuals(*row, **{name: np.array([one]) for name, one in zip(names, law, strict=True)})


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


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-0.5, 0.5), st.integers(0, 20))
def test_residuals_have_the_law_of_a_second_given_the_earlier_ones(level, mean, common, before):
    size = before + 1
    spread = OMEGA**2 * np.eye(size) + TAU**2
    cross, known = spread[-1, :-1], spread[:-1, :-1]
    solved = np.linalg.solve(known, cross) if before else np.zeros(0)
    expected = USUAL + solved.sum() * (mean - USUAL - common)
    found = left(level, mean, before, common)
    assert found.v[0] == pytest.approx(spread[-1, -1] - cross @ solved)
    assert found.r[0] == pytest.approx(min(max(level - expected, LOW[0] - 4), HIGH[0] + 4))
    # What each second at another level adds to what is expected.
    assert found.learning[0] * before == pytest.approx(solved.sum())


def test_one_second_is_cut_where_it_says_too_much():
    far, further = (left(y, 0.0, 0).r[0] for y in (10.0, 1000.0))
    assert far == further
    said = log_ratios(residuals_of([far]), 1, HIGH, alone(1))
    assert said.max() == 4.0


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
