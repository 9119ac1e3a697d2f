"""Bets against calibration keep their promise: a mean of at most 1 for as long as nothing is wrong.

Means are integrals over the law of the NEES, with the densities of scipy.stats.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monitor.drift.bets import (
    COVERAGE_FACTORS,
    COVERAGE_LEVELS,
    SCALE_FACTORS,
    STUDENT_DEGREES,
    Direction,
    coverage_bets,
    scale_bets,
    student_bets,
)
from monitor.frames.space import FloatArray

OVER, UNDER = Direction.OVER, Direction.UNDER
BOTH = (OVER, UNDER)
DIMENSIONS = range(1, 8)
TOLERANCES = (1.0, 1.1, 1.2, 2**0.5, 2.0)
# Scale of the errors, as a share of the edge of the band.
INSIDE = (1.0, 0.98, 0.9, 0.7, 0.4, 0.1)
LogLikelihood = Callable[[FloatArray], FloatArray]
dimensions = st.sampled_from(DIMENSIONS)
tolerances = st.floats(1.0, 5.0)
shares = st.floats(0.05, 1.0)


def edge(direction: Direction, tolerance: float) -> float:
    return tolerance if direction is OVER else 1 / tolerance


def scale_inside(direction: Direction, tolerance: float, share: float) -> float:
    return tolerance * share if direction is OVER else 1 / (tolerance * share)


def mean_likelihood(bets: LogLikelihood, k: int, scale: float, kinks: list[float]) -> FloatArray:
    """E L of each bet where e = scale² χ²_K: Gauss-Legendre over ln χ², between kinks."""
    places = np.sort([*np.arange(-60.0, 26.0, 2.0), *np.log(kinks)])
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(places)[:, None] / 2
    y = (places[:-1, None] + half * (1 + nodes)).ravel()
    density = stats.chi2.logpdf(np.exp(y), k) + y
    said = bets(scale**2 * np.exp(y))
    mean: FloatArray = (half * weights).ravel() @ np.exp(said + density[:, None])
    return mean


def mean_coverage(k: int, direction: Direction, tolerance: float, scale: float) -> FloatArray:
    """(12,) E L, from the chance of lying between two thresholds."""
    bets = coverage_bets(k, direction, tolerance)
    below = stats.chi2.cdf(bets.thresholds / scale**2, k)
    chance = np.diff([0.0, *below, 1.0])
    return chance @ np.exp(bets.log_likelihood)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("k", DIMENSIONS)
def test_coverage_bets_have_mean_one_at_the_edge_of_the_band_and_no_more_inside(k, direction):
    for tolerance in TOLERANCES:
        assert mean_coverage(k, direction, tolerance, edge(direction, tolerance)) == pytest.approx(
            1, abs=1e-12
        )
        for share in INSIDE:
            scale = scale_inside(direction, tolerance, share)
            assert (mean_coverage(k, direction, tolerance, scale) <= 1 + 1e-12).all()


@given(dimensions, st.sampled_from(BOTH), tolerances, shares)
def test_coverage_bets_pay_nobody_inside_any_band(k, direction, tolerance, share):
    scale = scale_inside(direction, tolerance, share)
    assert (mean_coverage(k, direction, tolerance, scale) <= 1 + 1e-9).all()


@given(dimensions, st.sampled_from(BOTH), tolerances, st.integers(0, 2**32 - 1))
def test_coverage_bets_pay_nobody_under_any_law_that_covers_enough(k, direction, tolerance, seed):
    bets = coverage_bets(k, direction, tolerance)
    allowed = stats.chi2.cdf(bets.thresholds / edge(direction, tolerance) ** 2, k)
    random = np.random.default_rng(seed)
    covered = np.sort(
        random.uniform(allowed, 1) if direction is OVER else random.uniform(0, allowed)
    )
    chance = np.diff([0.0, *covered, 1.0])
    assert (chance @ np.exp(bets.log_likelihood) <= 1 + 1e-9).all()


@pytest.mark.parametrize("k", DIMENSIONS)
def test_coverage_bets_are_the_ratios_of_chances_that_they_claim_to_be(k):
    for direction in BOTH:
        bets = coverage_bets(k, direction, 1.2)
        assert bets.thresholds == pytest.approx(stats.chi2.ppf(COVERAGE_LEVELS, k))
        column = 0
        for j, threshold in enumerate(bets.thresholds):
            for factor in COVERAGE_FACTORS:
                near, far = (
                    (1.2, 1.2 * factor) if direction is OVER else (1 / 1.2, 1 / 1.2 / factor)
                )
                p = stats.chi2.cdf(threshold / near**2, k)
                q = stats.chi2.cdf(threshold / far**2, k)
                p_above = stats.chi2.sf(threshold / near**2, k)
                q_above = stats.chi2.sf(threshold / far**2, k)
                for exceeded in range(4):
                    ratio = q_above / p_above if exceeded > j else q / p
                    said = bets.log_likelihood[exceeded, column]
                    assert said == pytest.approx(np.log(ratio), rel=1e-9, abs=1e-12)
                column += 1


def test_a_nees_on_a_threshold_does_not_exceed_it():
    bets = coverage_bets(3, OVER, 1.0)
    above = np.nextafter(bets.thresholds, np.inf)
    assert bets.exceeded(np.array([0.0, *bets.thresholds])).tolist() == [0, 0, 1, 2]
    assert bets.exceeded(np.array([*above, 1e300])).tolist() == [1, 2, 3, 3]


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("k", (1, 2, 3, 4, 5, 6, 7, 12))
@pytest.mark.parametrize("tolerance", (1.0, 2.0, 10.0, 50.0))
def test_no_bet_is_infinite_however_wide_the_band(k, direction, tolerance):
    assert np.isfinite(coverage_bets(k, direction, tolerance).log_likelihood).all()
    assert np.isfinite(scale_bets(k, direction, tolerance).log_likelihood(np.array([0, 1e6]))).all()
    assert np.isfinite(student_bets(k, tolerance).log_likelihood(np.array([0, 1e6]))).all()


def test_chances_too_small_for_a_double_keep_their_logarithm():
    bets = coverage_bets(4, UNDER, 10.0)
    x = bets.thresholds[2] * np.array([100.0, 900.0]) / 2
    # P(χ²_4 > 2z) = (1 + z) e^−z
    near, far = np.log1p(x) - x
    assert bets.log_likelihood[3, -1] == pytest.approx(far - near, rel=1e-6)


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("k", DIMENSIONS)
def test_scale_bets_have_mean_one_at_the_edge_of_the_band_and_no_more_inside(k, direction):
    for tolerance in (1.0, 2**0.5):
        bets = scale_bets(k, direction, tolerance).log_likelihood
        at_edge = mean_likelihood(bets, k, edge(direction, tolerance), [])
        assert at_edge == pytest.approx(1, abs=1e-9)
        inside = mean_likelihood(bets, k, scale_inside(direction, tolerance, 0.8), [])
        assert (inside <= 1 + 1e-9).all()


@given(dimensions, st.sampled_from(BOTH), tolerances, shares)
def test_scale_bets_pay_nobody_inside_any_band(k, direction, tolerance, share):
    bets = scale_bets(k, direction, tolerance)
    scale = scale_inside(direction, tolerance, share)
    # E exp(b e) = (1 − 2 b scale²)^(−K/2) of e = scale² χ²_K
    mean = bets.constant - k / 2 * np.log(1 - 2 * bets.slope * scale**2)
    assert (mean <= 1e-9).all()


@pytest.mark.parametrize("k", DIMENSIONS)
def test_scale_bets_are_ratios_of_densities(k):
    nees = np.array([0.01, 0.7, 3.0, 11.0, 40.0])
    for direction in BOTH:
        near = edge(direction, 1.1)
        far = [near * f if direction is OVER else near / f for f in SCALE_FACTORS]
        ratios = [
            stats.chi2.logpdf(nees, k, scale=s**2) - stats.chi2.logpdf(nees, k, scale=near**2)
            for s in far
        ]
        said = scale_bets(k, direction, 1.1).log_likelihood(nees)
        assert said == pytest.approx(np.transpose(ratios))


@pytest.mark.parametrize("k", DIMENSIONS)
def test_student_bets_have_mean_one_at_the_edge_of_the_band_and_no_more_inside(k):
    for tolerance in (1.1, 2**0.5):
        bets = student_bets(k, tolerance).log_likelihood
        assert mean_likelihood(bets, k, tolerance, [k + 2]) == pytest.approx(1, abs=1e-9)
        for share in (0.9, 0.3):
            cut = (k + 2) / share**2
            assert (mean_likelihood(bets, k, tolerance * share, [cut]) <= 1 + 1e-9).all()


@pytest.mark.parametrize("k", DIMENSIONS)
def test_student_bets_without_a_band_have_mean_one_where_nothing_has_changed(k):
    assert mean_likelihood(student_bets(k, 1.0).log_likelihood, k, 1.0, []) == pytest.approx(
        1, abs=1e-9
    )


@pytest.mark.parametrize("k", DIMENSIONS)
def test_student_bets_are_ratios_of_densities_in_the_tail(k):
    # e(ν)/(K(ν − 2)) of a unit-variance Student-t of K dimensions follows F_{K,ν}.
    nees = np.array([k + 2.1, 3.0 * k + 3, 40.0])
    for j, degrees in enumerate(STUDENT_DEGREES):
        unit = k * (degrees - 2) / degrees
        ratio = stats.f.logpdf(nees, k, degrees, scale=unit) - stats.chi2.logpdf(nees, k)
        assert student_bets(k, 1.0).log_likelihood(nees)[:, j] == pytest.approx(ratio)
        banded = student_bets(k, 1.5).log_likelihood(nees * 1.5**2)[:, j]
        assert np.diff(banded) == pytest.approx(np.diff(ratio))
        # What was cut off below is spread over all.
        assert (banded > ratio).all()


@given(dimensions, tolerances, st.lists(st.floats(0, 1e4), min_size=2, max_size=30))
def test_more_error_never_speaks_less_for_overconfidence(k, tolerance, nees):
    ordered = np.sort(np.array(nees))
    coverage = coverage_bets(k, OVER, tolerance)
    assert (np.diff(coverage.log_likelihood[coverage.exceeded(ordered)], axis=0) >= 0).all()
    assert (np.diff(scale_bets(k, OVER, tolerance).log_likelihood(ordered), axis=0) >= 0).all()
    if tolerance > 1:
        said = student_bets(k, tolerance).log_likelihood(ordered)
        assert (np.diff(said, axis=0) >= -1e-9).all()


@given(dimensions, tolerances, st.lists(st.floats(0, 1e4), min_size=2, max_size=30))
def test_more_error_never_speaks_more_for_underconfidence(k, tolerance, nees):
    ordered = np.sort(np.array(nees))
    coverage = coverage_bets(k, UNDER, tolerance)
    assert (np.diff(coverage.log_likelihood[coverage.exceeded(ordered)], axis=0) <= 0).all()
    assert (np.diff(scale_bets(k, UNDER, tolerance).log_likelihood(ordered), axis=0) <= 0).all()


def test_bets_are_made_once_and_cannot_be_changed():
    assert coverage_bets(3, OVER, 1.2) is coverage_bets(3, OVER, 1.2)
    for array in (
        coverage_bets(3, OVER, 1.2).thresholds,
        coverage_bets(3, OVER, 1.2).log_likelihood,
        scale_bets(3, UNDER, 1.2).constant,
        scale_bets(3, UNDER, 1.2).slope,
        student_bets(3, 1.2).constant,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
