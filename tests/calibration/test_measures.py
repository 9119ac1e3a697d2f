"""Measures from bins: small examples worked out by hand from the equations of the papers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.calibration import measures
from monitor.calibration.measures import ReliabilityBins, chi_square_quantiles
from tests.calibration.oracle import chi_square

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
    assert measures.ence_noise_floor(TWO) == pytest.approx(expected)
    with_empty = bins_of([4, 0, 2], [4, 0, 18], [16, 0, 8], None, [[1, 2], [0, 0], [1, 2]])
    assert measures.ence_noise_floor(with_empty) == pytest.approx(expected)


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
    assert math.isnan(measures.ence_noise_floor(bins))
    assert math.isnan(measures.uce(bins))
    assert measures.qce_by_tau(bins, TAU).shape == (2,)
    assert np.isnan(measures.qce_by_tau(bins, TAU)).all()


calibrated = st.lists(st.tuples(st.integers(1, 50), st.floats(1e-6, 1e6)), min_size=1, max_size=20)


@settings(deadline=None, max_examples=50)
@given(calibrated, st.floats(0.1, 10))
def test_errors_off_by_one_factor_in_every_bin_read_as_that_factor(rows, factor):
    n = [count for count, _ in rows]
    variance = np.array([count * sigma**2 for count, sigma in rows])
    assert measures.ence(bins_of(n, variance, variance)) == 0.0
    assert measures.uce(bins_of(n, variance, variance)) == 0.0
    off = bins_of(n, variance, factor**2 * variance)
    assert measures.ence(off) == pytest.approx(abs(factor - 1), abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(calibrated, st.floats(1e-3, 1e3))
def test_ence_does_not_depend_on_the_unit_and_uce_goes_with_its_square(rows, unit):
    n = [count for count, _ in rows]
    variance = np.array([count * sigma**2 for count, sigma in rows])
    squared = variance * np.linspace(0.5, 2, len(rows))
    one, other = (bins_of(n, variance * u, squared * u) for u in (1.0, unit**2))
    assert measures.ence(other) == pytest.approx(measures.ence(one))
    assert measures.uce(other) == pytest.approx(unit**2 * measures.uce(one))


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_quantiles_of_chi_square_are_those_of_a_gamma_distribution(k):
    tau = np.array([0.05, 0.5, 0.6827, 0.95, 0.999])
    assert chi_square_quantiles(tau, k) == pytest.approx([chi_square(t, k) for t in tau])
