"""Measures from bins: small examples worked out by hand from the equations of the papers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammainc, gammaincc

from monitor.statistics import measures
from monitor.statistics import measures as measures_module
from monitor.statistics.measures import ReliabilityBins, chi_square_quantiles
from tests.calibration.oracle import area_to_diagonal, chi_square

TAU = np.array([0.5, 0.9])


def bins_of(n, variance, squared_error, nees=None, within=None) -> ReliabilityBins:
    """Bins from sums; edges do not matter to any measure."""
    size = len(n)
    return ReliabilityBins(
        lower=np.arange(size, dtype=float),
        upper=np.arange(size, dtype=float) + 1,
        n=np.array(n, np.int64),
        variance=np.array(variance, float),
        squared_error=np.array(squared_error, float),
        nees=np.zeros(size) if nees is None else np.array(nees, float),
        within=np.array(within or [[0, 0]] * size, np.int64).reshape(size, 2),
    )


# Two bins: 4 rows with σ² = 1 and errors² of 4 (RMV 1, RMSE 2); 2 rows of 9 and 4 (3 and 2).
TWO = bins_of([4, 2], [4.0, 18.0], [16.0, 8.0], [16.0, 8.0 / 9], [[1, 2], [1, 2]])
NONE = bins_of([], [], [])
EMPTY = bins_of([0, 0], [0.0, 0.0], [0.0, 0.0])


def test_ence_is_equation_8_of_levi():
    # |1 − 2|/1 and |3 − 2|/3, equally weighted whatever the count.
    assert measures.ence(TWO) == pytest.approx((1 + 1 / 3) / 2)


def test_uce_is_equation_10_of_kueppers():
    # 4/6 · |4 − 1| + 2/6 · |4 − 9|
    assert measures.uce(TWO) == pytest.approx(4 / 6 * 3 + 2 / 6 * 5)
    # Rows that fell outside the bins count in N.
    assert measures.uce(TWO, n=12) == pytest.approx(measures.uce(TWO) / 2)


def test_qce_is_equation_12_of_kueppers_for_each_bin():
    # τ = 0.5: 4/6 · |1/4 − 0.5| + 2/6 · |1/2 − 0.5|; τ = 0.9: 4/6 · |2/4 − 0.9| + 2/6 · |1 − 0.9|
    expected = [4 / 6 * 0.25, 4 / 6 * 0.4 + 2 / 6 * 0.1]
    assert measures.qce_by_tau(TWO, TAU) == pytest.approx(expected)


def test_the_noise_floor_counts_occupied_bins_only():
    expected = math.sqrt(2 / (math.pi * 6))
    assert measures_module.ence_noise_floor_gaussian(TWO) == pytest.approx(expected)
    with_empty = bins_of([4, 0, 2], [4, 0, 18], [16, 0, 8], None, [[1, 2], [0, 0], [1, 2]])
    assert measures_module.ence_noise_floor_gaussian(with_empty) == pytest.approx(expected)


def test_an_empty_bin_changes_nothing():
    with_empty = bins_of(
        [4, 0, 2], [4, 0, 18], [16, 0, 8], [16, 0, 8 / 9], [[1, 2], [0, 0], [1, 2]]
    )
    assert measures.ence(with_empty) == measures.ence(TWO)
    assert measures.uce(with_empty) == measures.uce(TWO)
    assert np.array_equal(measures.qce_by_tau(with_empty, TAU), measures.qce_by_tau(TWO, TAU))


@pytest.mark.parametrize("bins", [NONE, EMPTY])
@pytest.mark.filterwarnings("error")
def test_without_truth_every_measure_is_nan_and_says_so_quietly(bins):
    assert math.isnan(measures.ence(bins))
    assert math.isnan(measures_module.ence_noise_floor_gaussian(bins))
    assert math.isnan(measures.uce(bins))
    assert measures.qce_by_tau(bins, TAU).shape == (2,)
    assert np.isnan(measures.qce_by_tau(bins, TAU)).all()


calibrated = st.lists(st.tuples(st.integers(1, 50), st.floats(1e-6, 1e6)), min_size=1, max_size=20)


@settings(max_examples=50)
@given(calibrated, st.floats(0.1, 10))
def test_errors_off_by_one_factor_in_every_bin_read_as_that_factor(rows, factor):
    n = [count for count, _ in rows]
    variance = np.array([count * sigma**2 for count, sigma in rows])
    assert measures.ence(bins_of(n, variance, variance)) == 0.0
    assert measures.uce(bins_of(n, variance, variance)) == 0.0
    off = bins_of(n, variance, factor**2 * variance)
    assert measures.ence(off) == pytest.approx(abs(factor - 1), abs=1e-12)


@settings(max_examples=50)
@given(calibrated, st.floats(1e-3, 1e3))
def test_ence_does_not_depend_on_the_unit_and_uce_goes_with_its_square(rows, unit):
    n = [count for count, _ in rows]
    variance = np.array([count * sigma**2 for count, sigma in rows])
    squared = variance * np.linspace(0.5, 2, len(rows))
    one, other = (bins_of(n, variance * u, squared * u) for u in (1.0, unit**2))
    assert measures.ence(other) == pytest.approx(measures.ence(one))
    assert measures.uce(other) == pytest.approx(unit**2 * measures.uce(one))


def test_the_estimated_floor_is_the_gaussian_one_where_kurtosis_is_three_and_counts_are_equal():
    equal = bins_of([5, 5, 0], [1, 1, 0], [1, 1, 0])
    gaussian = measures_module.ence_noise_floor_gaussian(equal)
    assert measures_module.ence_noise_floor(equal, 3.0, 1.0) == pytest.approx(gaussian)
    # Heavier tails and correlated rows: sqrt((κ − 1)/2 · D) times as much.
    assert measures_module.ence_noise_floor(equal, 9.0, 4.0) == pytest.approx(4 * gaussian)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_kurtosis_of_small_gaussian_samples_is_three_in_the_mean(n):
    square = np.random.default_rng(0).normal(size=(n, 100_000)) ** 2
    found = measures_module.kurtosis(n, square.sum(axis=0), (square**2).sum(axis=0))
    assert found.mean() == pytest.approx(3.0, abs=0.02)


def test_kurtosis_without_errors_cannot_be_said():
    assert np.isnan(measures_module.kurtosis(3, np.zeros(1), np.zeros(1))).all()


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("n", [0.7, 100, 250_000, 1_000_000])
def test_the_interval_of_the_mean_nees_leaves_a_fortieth_on_either_side(n, k):
    low, high = measures.nees_interval(n, k)
    shape = n * k / 2
    assert gammainc(shape, low * n / 2) == pytest.approx(0.025, rel=1e-8)
    assert gammaincc(shape, high * n / 2) == pytest.approx(0.025, rel=1e-8)


def test_the_interval_of_no_rows_cannot_be_said():
    assert all(map(math.isnan, measures.nees_interval(0, 1)))
    assert all(map(math.isnan, measures.nees_interval(math.nan, 1)))


def test_the_area_counts_both_sides_of_a_crossing():
    # From (0, 0) up to 0.1 above at 0.25, down to 0.1 below at 0.75: triangles.
    area = measures.calibration_area(np.array([0.35, 0.65]), np.array([0.25, 0.75]))
    assert area == pytest.approx(4 * 0.25 * 0.1 / 2)
    same_side = measures.calibration_area(np.array([0.35, 0.85]), np.array([0.25, 0.75]))
    assert same_side == pytest.approx(2 * 0.25 * 0.1 / 2 + 0.5 * 0.1)


levels = st.lists(st.floats(0.001, 0.999), min_size=1, max_size=30, unique=True)


@settings(max_examples=50)
@given(levels, st.integers(0, 2**32 - 1))
def test_the_area_is_that_of_a_fine_integration_in_whatever_order(tau, seed):
    # Regions are nested, so that coverage rises with τ.
    rank = np.argsort(np.argsort(tau))
    coverage = np.sort(np.random.default_rng(seed).uniform(size=len(tau)))[rank]
    area = measures.calibration_area(coverage, np.array(tau))
    points = list(zip(tau, coverage.tolist(), strict=True))
    assert area == pytest.approx(area_to_diagonal(points), abs=2e-3)
    assert 0 <= area <= 0.5
    assert measures.calibration_area(np.array(tau), np.array(tau)) == 0.0


def test_bins_with_few_rows_can_be_left_out():
    assert TWO.with_rows(2) is TWO
    assert TWO.with_rows(3).n.tolist() == [4]
    assert TWO.with_rows(3).within.tolist() == [[1, 2]]
    assert TWO.with_rows(5).n.tolist() == []


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_quantiles_of_chi_square_are_those_of_a_gamma_distribution(k):
    tau = np.array([0.05, 0.5, 0.6827, 0.95, 0.999])
    assert chi_square_quantiles(tau, k) == pytest.approx([chi_square(t, k) for t in tau])
