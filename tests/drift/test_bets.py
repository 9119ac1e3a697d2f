"""Bets against calibration on detections are those of a slow account and keep their promise: a mean
of at most 1 for as long as nothing is wrong.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from monitor.drift.bets import (
    Aim,
    DetectionCells,
    coverage_bets,
    coverage_thresholds,
    exceeded,
    log_likelihoods,
    row_log_likelihoods,
    scale_bets,
    tail_log_likelihood,
)
from monitor.drift.charts import Direction
from monitor.drift.reference import shipped
from monitor.frames.space import FloatArray
from tests.drift.family_oracle import detection_ratios

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


@given(st.integers(0, 2**32 - 1), st.integers(0, 30))
def test_a_cell_is_what_its_detections_say_each_tempered_by_its_own(seed, n):
    """Untracked detections of a cell count as one: their mean."""
    random = np.random.default_rng(seed)
    e, cell = random.chisquare(3, n) * 2, random.integers(0, 4, n)
    tracked = random.random(n) < random.choice([0.0, 0.5, 1.0])
    gamma, of_frames = random.uniform(0.02, 1, n), random.uniform(0.02, 1, 4)
    anchors = [np.full(4, one) for one in ANCHORS]
    cells = DetectionCells(3, e, e, cell, tracked, 4, gamma[tracked], of_frames, anchors)
    found = log_likelihoods(cells, AIMS)
    single = row_log_likelihoods(3, e, e, AIMS, [np.full(n, one) for one in ANCHORS])
    for number in range(4):
        ours = (cell == number) & tracked
        alone = single[(cell == number) & ~tracked]
        expected = np.einsum("n,nab->ab", gamma[ours], single[ours])
        if alone.size:
            expected = expected + of_frames[number] * np.log(np.exp(alone).mean(axis=0))
        np.testing.assert_allclose(found[number], expected, rtol=1e-9, atol=1e-12)
