"""Measures from bins: examples worked out by hand from the papers."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import gammainc, gammaincc

from monitor.statistics import measures
from monitor.statistics.exact_engine import bins_equal_count
from monitor.statistics.measures import BinSums, ReliabilityBins


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
TWO = bins_of([4, 2], [4, 18], [16, 8], [16, 8 / 9], [[1, 2], [1, 2]])


def test_bins_with_few_rows_can_be_left_out():
    assert TWO.with_rows(2) is TWO
    kept = TWO.with_rows(3)
    assert (kept.n.tolist(), kept.within.tolist()) == ([4], [[1, 2]])
    assert TWO.with_rows(5).n.tolist() == []


def rows_on(axis: list[float]) -> BinSums:
    """Rows whose error is their place on the axis plus one; every other one is within τ."""
    at = np.array(axis)
    within = np.arange(at.size)[:, None] % 2 == 0
    return BinSums(at, at, np.ones(at.size, np.int64), at**2, at + 1, at, within)


def test_equal_count_bins_keep_the_order_of_equal_rows():
    bins = bins_equal_count(rows_on([2.0, 1.0, 1.0, 1.0, 3.0]), 2)
    assert bins.n.tolist() == [3, 2]
    assert bins.squared_error.tolist() == [6.0, 7.0]
    assert bins.within.tolist() == [[1], [2]]
    assert (bins.lower.tolist(), bins.upper.tolist()) == ([1.0, 2.0], [1.0, 3.0])


@pytest.mark.parametrize(("n", "k"), list(product([0.7, 100, 250_000, 1_000_000], [1, 4])))
def test_the_interval_of_the_mean_nees_leaves_a_fortieth_on_either_side(n, k):
    low, high = measures.nees_interval(n, k)
    shape = n * k / 2
    assert gammainc(shape, low * n / 2) == pytest.approx(0.025, rel=1e-8)
    assert gammaincc(shape, high * n / 2) == pytest.approx(0.025, rel=1e-8)
    for nothing in (0, math.nan):
        assert all(map(math.isnan, measures.nees_interval(nothing, k)))


def test_the_area_counts_both_sides_of_a_crossing():
    # From (0, 0) up to 0.1 above at 0.25, down to 0.1 below at 0.75: triangles.
    area = measures.calibration_area(np.array([0.35, 0.65]), np.array([0.25, 0.75]))
    assert area == pytest.approx(4 * 0.25 * 0.1 / 2)
    same_side = measures.calibration_area(np.array([0.35, 0.85]), np.array([0.25, 0.75]))
    assert same_side == pytest.approx(2 * 0.25 * 0.1 / 2 + 0.5 * 0.1)


def test_the_estimated_floor_is_the_gaussian_one_where_kurtosis_is_three_and_counts_are_equal():
    equal = bins_of([5, 5, 0], [1, 1, 0], [1, 1, 0])
    gaussian = measures.ence_noise_floor_gaussian(equal)
    assert measures.ence_noise_floor(equal, 3.0, 1.0) == pytest.approx(gaussian)
    # Heavier tails and correlated rows: sqrt((κ − 1)/2 · D) times as much.
    assert measures.ence_noise_floor(equal, 9.0, 4.0) == pytest.approx(4 * gaussian)
