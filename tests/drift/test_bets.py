"""Bets against calibration, on detections and on seconds of tracks, are those of a slow account and
keep their promise: a mean of at most 1 for as long as nothing is wrong.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from monitor.drift.bets import (
    Aim,
    DetectionCells,
    Direction,
    coverage_bets,
    coverage_thresholds,
    exceeded,
    log_likelihoods,
    row_log_likelihoods,
    scale_bets,
    tail_log_likelihood,
)
from monitor.drift.evidence import (
    FACTORS,
    STATES,
    DriftSettings,
    Residuals,
    common_level,
    log_ratios,
    residuals,
)
from monitor.drift.reference import Levels, shipped, usual_arrays
from monitor.drift.track_seconds import TrackSeconds
from monitor.frames.space import FloatArray
from tests.drift.drives import cut, cuts, seeds, some_frames, watched
from tests.drift.family_oracle import SECOND, SlowSeconds, detection_ratios, moved

OVER, UNDER = Direction.OVER, Direction.UNDER
BOTH = (OVER, UNDER)
DIMENSIONS = range(1, 8)
TOLERANCES = (1.0, 1.1, 2**0.5, 2.0)
# What is usual is half of what is calibrated; and what is usual counts.
ANCHORS = (2.0, 1.0)
AIMS = (Aim(Direction.OVER, 1.3), Aim(Direction.UNDER, 1.0))
dimensions = st.sampled_from(DIMENSIONS)
tolerances = st.floats(1.0, 5.0)


def edge(direction: Direction, tolerance: float) -> float:
    return tolerance if direction is OVER else 1 / tolerance


def scale_log_likelihood(k, direction, tolerance, nees):
    constant, slope = scale_bets(k, direction, tolerance)
    return constant + nees[:, None] * slope


def mean_likelihood(bets, k: int, scale: float, kinks: list[float]) -> FloatArray:
    """E L of each bet where e = scale² χ²_K: Gauss-Legendre over ln χ², between kinks."""
    places = np.sort([*np.arange(-60.0, 26.0, 2.0), *np.log(kinks)])
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(places)[:, None] / 2
    y = (places[:-1, None] + half * (1 + nodes)).ravel()
    density = stats.chi2.logpdf(np.exp(y), k) + y
    said = bets(scale**2 * np.exp(y)) + density[:, None]
    mean: FloatArray = (half * weights).ravel() @ np.exp(said)
    return mean


@given(st.floats(0, 200), st.integers(1, 6), st.sampled_from([1.0, 1.2, 2**0.5]))
@example(0.0, 1, 1.0)
@example(5.0, 3, 2**0.5)
def test_bets_on_one_detection_are_the_ratios_of_the_oracle(e, k, tolerance):
    for direction in Direction:
        one, aims = np.array([e]), [Aim(direction, tolerance)]
        said = row_log_likelihoods(k, one, one, aims, [np.ones(1)])
        slow = list(detection_ratios(shipped(k), str(direction), tolerance, e).values())
        assert said[0, 0, : len(slow)] == pytest.approx(slow, rel=1e-8, abs=1e-8)
        # Nobody bets on tails of errors that are too small.
        assert not said[0, 0, len(slow) :].any()


def test_a_nees_on_a_threshold_does_not_exceed_it():
    thresholds = coverage_thresholds(3)
    above = np.nextafter(thresholds, np.inf)
    assert exceeded(3, np.array([0.0, *thresholds])).tolist() == [0, 0, 1, 2]
    assert exceeded(3, np.array([*above, 1e300])).tolist() == [1, 2, 3, 3]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("tolerance", (1.0, 2.0, 10.0, 50.0))
def test_no_bet_is_infinite_however_wide_the_band(direction, tolerance):
    for k in (1, 2, 3, 4, 5, 6, 7, 12):
        assert np.isfinite(coverage_bets(k, direction, tolerance)).all()
        assert np.isfinite(scale_bets(k, direction, tolerance)).all()
        assert np.isfinite(tail_log_likelihood(k, tolerance, np.array([0, 1e6]))).all()


def test_chances_too_small_for_a_double_keep_their_logarithm():
    x = coverage_thresholds(4)[2] * np.array([100.0, 900.0]) / 2
    # P(χ²_4 > 2z) = (1 + z) e^−z
    near, far = np.log1p(x) - x
    assert coverage_bets(4, UNDER, 10.0)[3, -1] == pytest.approx(far - near, rel=1e-6)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("k", DIMENSIONS)
def test_at_the_edge_of_the_band_every_bet_has_a_mean_of_one(k, direction):
    for tolerance in TOLERANCES:
        scale = edge(direction, tolerance)
        said = partial(scale_log_likelihood, k, direction, tolerance)
        chance = np.diff([0.0, *stats.chi2.cdf(coverage_thresholds(k) / scale**2, k), 1.0])
        assert chance @ np.exp(coverage_bets(k, direction, tolerance)) == pytest.approx(
            1, abs=1e-12
        )
        assert mean_likelihood(said, k, scale, []) == pytest.approx(1, abs=1e-9)
        if direction is OVER:
            tails, kinks = partial(tail_log_likelihood, k, tolerance), [k + 2.0] * (tolerance > 1)
            assert mean_likelihood(tails, k, scale, kinks) == pytest.approx(1, abs=1e-9)


@given(dimensions, st.sampled_from(BOTH), tolerances, st.integers(0, 2**32 - 1))
def test_coverage_bets_pay_nobody_under_any_law_that_covers_enough(k, direction, tolerance, seed):
    allowed = stats.chi2.cdf(coverage_thresholds(k) / edge(direction, tolerance) ** 2, k)
    random = np.random.default_rng(seed)
    covered = np.sort(
        random.uniform(allowed, 1) if direction is OVER else random.uniform(0, allowed)
    )
    chance = np.diff([0.0, *covered, 1.0])
    assert (chance @ np.exp(coverage_bets(k, direction, tolerance)) <= 1 + 1e-9).all()


@given(dimensions, st.sampled_from(Direction), tolerances, st.floats(0.05, 1.0))
def test_bets_on_scale_and_tails_pay_nobody_inside_any_band(k, direction, tolerance, share):
    scale = tolerance * share if direction is OVER else 1 / (tolerance * share)
    constant, slope = scale_bets(k, direction, tolerance)
    # E exp(b e) = (1 − 2 b scale²)^(−K/2) of e = scale² χ²_K
    mean = constant - k / 2 * np.log(1 - 2 * slope * scale**2)
    assert (mean <= 1e-9).all()
    if direction is OVER and tolerance > 1:
        tails = partial(tail_log_likelihood, k, tolerance)
        cut = (k + 2) / share**2
        assert (mean_likelihood(tails, k, scale, [cut]) <= 1 + 1e-9).all()


def cells_of(nees, cell, tracked, count, k=3, gamma=0.4, of_frames=0.7) -> DetectionCells:
    each = np.full(count, gamma), np.full(count, of_frames)
    e, anchors = np.array(nees, np.float64), [np.full(count, one) for one in ANCHORS]
    tracks = np.array(tracked, bool)
    return DetectionCells(k, e, e, np.array(cell, np.int64), tracks, count, *each, anchors)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30))
def test_a_cell_is_what_its_detections_say_tempered(seed, n):
    """Untracked detections of a cell count as one: their mean."""
    random = np.random.default_rng(seed)
    e, cell = random.chisquare(3, n) * 2, random.integers(0, 4, n)
    tracked = random.random(n) < random.choice([0.0, 0.5, 1.0])
    found = log_likelihoods(cells_of(e, cell, tracked, 4), AIMS)
    single = row_log_likelihoods(3, e, e, AIMS, [np.full(n, one) for one in ANCHORS])
    for number in range(4):
        ours = single[(cell == number) & tracked]
        alone = single[(cell == number) & ~tracked]
        expected = 0.4 * ours.sum(axis=0)
        if alone.size:
            expected = expected + 0.7 * np.log(np.exp(alone).mean(axis=0))
        np.testing.assert_allclose(found[number], expected, rtol=1e-9, atol=1e-12)


def listed(blocks):
    names = ("source", "second", "slice", "level", "count", "changed", "before", "mean", "first")
    columns = [np.atleast_2d(blocks[name].T) for name in names]
    return list(zip(*np.concatenate(columns).tolist(), strict=True))


def of_source(blocks, source):
    return [block for block in blocks if block[0] == source]


def taken(pieces, seconds=None):
    seconds = seconds or TrackSeconds(DriftSettings())
    return [block for piece in pieces for block in listed(seconds.take(piece))], seconds


def followed(seconds):
    return len({*seconds._open["key"].tolist(), *seconds._history["key"].tolist()})


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
    assert (seconds.late, seconds.left_out) == (slow.late, 0)


@pytest.mark.parametrize(("pause", "before"), [(0, 1), (1, 1), (2, 0), (9, 0)])
def test_a_track_id_that_comes_again_after_idle_is_a_new_track(pause, before):
    frames = [*second_of(1, 3), *second_of(1, 4 + pause), (0, 99 * SECOND, False, [])]
    blocks, _ = taken([watched(frames)])
    assert [block[7] for block in blocks] == [0, before]


def test_forgotten_slices_begin_anew_and_the_others_go_on():
    seconds = TrackSeconds(DriftSettings())
    frames = [one for second in (3, 4, 5) for one in second_of(1, second)]
    both = [(*of, [(1, 1, e, e), (2, 2, e, e)]) for *of, [(*_, e)] in frames]
    taken([watched(both[:12])], seconds)
    seconds.forget(np.array([2]))
    blocks, _ = taken([watched([*both[12:], (0, 6 * SECOND, False, [])])], seconds)
    assert [(block[2], block[1], block[7]) for block in blocks] == [(1, 4, 1), (1, 5, 2), (2, 5, 0)]
    seconds.forget(np.zeros(0, np.int64))
    assert followed(seconds) == 2


def test_the_longest_unseen_track_makes_room():
    seconds = TrackSeconds(DriftSettings(most_open=2))
    frames = [*second_of(1, 3), *second_of(2, 3), *second_of(3, 3)]
    # One after the other within the second.
    frames = [(0, 3 * SECOND + at, False, frame[3]) for at, frame in enumerate(frames)]
    blocks, _ = taken([watched([frame]) for frame in frames], seconds)
    assert (blocks, followed(seconds), seconds.left_out) == ([], 2, 6)


TAU, OMEGA, USUAL = 0.5, 0.6, 0.7
LOW, HIGH = np.array([-0.7]), np.array([0.5])
NOTHING = np.zeros((1, STATES))


def left(level, mean, before, common=0.0) -> Residuals:
    """What is left of one level of ten detections."""
    usual = usual_arrays([replace(shipped(3), levels=Levels(USUAL, TAU, OMEGA, 10.0, 100, 1000))])
    y, n, past, own, shared = (np.array([one]) for one in (level, 10, before, mean, common))
    return residuals(y, n, past, own, shared, usual, LOW, HIGH)


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
        chain = common_level(chain, residuals_of(r), alone(len(r)), LOW, HIGH)[0]
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
    *_, of_edges = common_level(np.repeat(before, runs, axis=0), found, at, low, high)
    edge, of_edge = (high, of_edges[1]) if sign > 0 else (low, of_edges[0])
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
