"""Measures from bins: examples worked out by hand from the papers, laws, and the noise floor."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from scipy.special import gammainc, gammaincc

from monitor.frames.space import plain_space
from monitor.statistics import measures
from monitor.statistics.evaluation import DimensionMeasures
from monitor.statistics.exact_engine import bins_equal_count, evaluate_rows
from monitor.statistics.measures import (
    BinSums,
    ReliabilityBins,
)

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
TWO = bins_of([4, 2], [4, 18], [16, 8], [16, 8 / 9], [[1, 2], [1, 2]])
# An empty bin among them changes nothing.
THREE = bins_of([4, 0, 2], [4, 0, 18], [16, 0, 8], [16, 0, 8 / 9], [[1, 2], [0, 0], [1, 2]])


@pytest.mark.parametrize("bins", [bins_of([], [], []), bins_of([0, 0], [0, 0], [0, 0])])
@pytest.mark.filterwarnings("error")
def test_without_truth_every_measure_is_nan_and_says_so_quietly(bins):
    for measure in (measures.ence, measures.uce, measures.ence_noise_floor_gaussian):
        assert math.isnan(measure(bins))
    assert np.isnan(measures.qce_by_tau(bins, TAU)).tolist() == [True, True]


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


# ---- quantiles, intervals and areas


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


# ---- the noise floor


@pytest.mark.parametrize("n", [1, 2, 5])
def test_kurtosis_of_small_gaussian_samples_is_three_in_the_mean(n):
    square = np.random.default_rng(0).normal(size=(n, 100_000)) ** 2
    found = measures.kurtosis(n, square.sum(axis=0), (square**2).sum(axis=0))
    assert found.mean() == pytest.approx(3.0, abs=0.02)
    assert np.isnan(measures.kurtosis(n, np.zeros(1), np.zeros(1))).all()


def test_the_estimated_floor_is_the_gaussian_one_where_kurtosis_is_three_and_counts_are_equal():
    equal = bins_of([5, 5, 0], [1, 1, 0], [1, 1, 0])
    gaussian = measures.ence_noise_floor_gaussian(equal)
    assert measures.ence_noise_floor(equal, 3.0, 1.0) == pytest.approx(gaussian)
    # Heavier tails and correlated rows: sqrt((κ − 1)/2 · D) times as much.
    assert measures.ence_noise_floor(equal, 9.0, 4.0) == pytest.approx(4 * gaussian)


X = plain_space(("x",))


@dataclass(frozen=True)
class Errors:
    """Calibrated errors of tracks: rho from row to row, tails of Student t if degrees are given.

    wander  how far log σ moves from row to row; it is one value a track otherwise
    """

    tracks: int
    rows: int = 1
    rho: float = 0.0
    degrees: float | None = None
    wander: float = 0.0

    def measured(self, seed: int) -> DimensionMeasures:
        random = np.random.default_rng(seed)
        shape = self.tracks, self.rows
        z = random.normal(size=shape)
        for i in range(1, self.rows):
            z[:, i] = self.rho * z[:, i - 1] + np.sqrt(1 - self.rho**2) * z[:, i]
        if self.degrees is not None:
            # Of variance 1.
            z *= np.sqrt((self.degrees - 2) / random.chisquare(self.degrees, shape))
        log_sigma = 0.5 * random.normal(size=(self.tracks, 1))
        sigma = np.exp(log_sigma + self.wander * random.normal(size=shape))
        error = (sigma * z).reshape(-1, 1)
        variance = (sigma**2).reshape(-1, 1, 1)
        track = np.repeat(np.arange(self.tracks), self.rows)
        return evaluate_rows(X, 0 * error, variance, error, cluster=track).dimensions["x"]


def mean_ratios(errors: Errors, sets: int = 20) -> tuple[float, float]:
    """Mean ENCE over the mean floor, and over the floor of independent Gaussian errors."""
    found = [errors.measured(seed) for seed in range(sets)]
    ence = sum(each.ence for each in found)
    return (
        ence / sum(each.ence_noise_floor for each in found),
        ence / sum(each.ence_noise_floor_gaussian for each in found),
    )


@pytest.mark.parametrize(
    ("errors", "over_floor", "over_gaussian"),
    [
        # Means over 100 sets: independent Gaussian errors read either floor,
        (Errors(500), 1.0, 1.0),
        (Errors(5_000), 0.99, 0.99),
        # correlated and heavy-tailed ones the estimated floor,
        (Errors(450, 40, rho=0.65), 1.02, 1.57),
        (Errors(5_000, degrees=5), 0.94, 1.77),
        (Errors(450, 40, rho=0.65, degrees=5), 0.96, 2.12),
        # and where deviations move along a track, it is too high, never too low.
        (Errors(450, 40, rho=0.65, wander=0.5), 0.69, 1.1),
    ],
)
def test_calibrated_errors_read_their_floor(errors, over_floor, over_gaussian):
    floor, gaussian = mean_ratios(errors)
    assert floor == pytest.approx(over_floor, rel=0.12)
    assert gaussian == pytest.approx(over_gaussian, rel=0.12)


def test_a_wrong_scale_does_not_move_the_floor():
    random = np.random.default_rng(0)
    error = random.standard_t(5, (5_000, 1))
    floors = [
        evaluate_rows(X, 0 * error, np.full((5_000, 1, 1), variance), error)
        .dimensions["x"]
        .ence_noise_floor
        for variance in (0.01, 1.0, 100.0)
    ]
    assert floors == pytest.approx([floors[0]] * 3)


def test_a_single_track_cannot_tell_how_alike_its_rows_are():
    found = Errors(1, 200, rho=0.65).measured(0)
    assert (found.n, found.n_eff) == (200, 200.0)
