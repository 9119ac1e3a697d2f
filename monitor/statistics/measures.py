"""Measures of calibration, computed from the bins of a reliability diagram, and their JSON form.

Sums or moments in, numbers out: where they come from (rows, micro-bins, a merge of many
replicas) does not matter here. What follows from other measures alone is a property of the
result, so that a reader pays for what he asks. A distribution that is no Gaussian is known by its
density, cumulative probability and quantiles, one dimension at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from scipy.special import gammaincinv, ndtr, ndtri

from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray, read_only
from monitor.statistics.sparsification import ErrorRanking, Rejection

# A_max of UCS, CCQS and UCQS; Wolf et al. 2024, below eq. 7
LARGEST_AREA = 0.25


@dataclass(frozen=True, slots=True)
class BinSums(Columns):
    """Sums over the detections of each of B bins along one axis; a row may be a bin by itself.

    lower, upper   (B,) edges on the axis, in its unit; equal for a row
    n              (B,) detections
    variance       (B,) sum of predicted variances, unit²
    squared_error  (B,) sum of squared errors, unit²; zeros in joint reliability bins
    nees           (B,) sum of normalised squared errors, dimensionless
    within         (B, T) how many have nees within the χ²(τ) quantile; of rows bool
    """

    lower: FloatArray
    upper: FloatArray
    n: IntArray
    variance: FloatArray
    squared_error: FloatArray
    nees: FloatArray
    within: IntArray | BoolArray


@dataclass(frozen=True, slots=True)
class ReliabilityBins(BinSums):
    """The bins of a reliability diagram.

    below, above  detections that lie beyond the first and the last edge, in no bin
    """

    below: int = 0
    above: int = 0

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields each bin as plain values, by the names that every interface has for them."""
        names = [field.name for field in fields(BinSums)]
        for values in zip(*(getattr(self, name).tolist() for name in names), strict=True):
            yield dict(zip(names, values, strict=True))

    def with_rows(self, fewest: int) -> ReliabilityBins:
        """Selects the bins that hold at least so many."""
        kept = self.n >= fewest
        return self if kept.all() else self.take(kept)


def bins_between(rows: BinSums, axis: FloatArray, edges: FloatArray) -> ReliabilityBins:
    """Adds up rows, or micro-bins, between ascending edges (B + 1,); empty bins are included.

    Bins are closed on the left, the last one on both sides. What lies beyond the outer edges
    is in no bin, and counted.

    axis  (M,) where each row, or the centre of each micro-bin, lies on the axis of the edges
    """
    bins = edges.size - 1
    index = np.searchsorted(edges, axis, side="right") - 1
    index[axis == edges[-1]] = bins - 1
    inside = (index >= 0) & (index < bins)
    cell = index[inside]

    def total(values: FloatArray | IntArray) -> FloatArray:
        return np.bincount(cell, values[inside], bins).astype(np.float64, copy=False)

    # Counts are exact in float64, far below 2^53.
    return ReliabilityBins(
        lower=edges[:-1],
        upper=edges[1:],
        n=total(rows.n).astype(np.int64),
        variance=total(rows.variance),
        squared_error=total(rows.squared_error),
        nees=total(rows.nees),
        within=np.array([total(column) for column in rows.within.T], np.int64).T,
        below=int(rows.n[axis < edges[0]].sum()),
        above=int(rows.n[axis > edges[-1]].sum()),
    )


def ence(bins: ReliabilityBins) -> float:
    """Expected normalised calibration error.

    ENCE = mean over occupied bins of |RMV − RMSE| / RMV. Dimensionless: 0 is
    calibrated, 0.1 is off by a tenth of the predicted deviation.

    returns  NaN where no truth has arrived
    source   Levi et al. 2019, eq. 8
    """
    occupied = bins.n > 0
    if not occupied.any():
        return float("nan")
    # n cancels: sqrt(V/n) and sqrt(Q/n).
    rmv = np.sqrt(bins.variance[occupied])
    rmse = np.sqrt(bins.squared_error[occupied])
    return float(np.mean(np.abs(rmv - rmse) / rmv))


def uce(bins: ReliabilityBins, n: int | None = None) -> float:
    """Uncertainty calibration error: Σ_b n_b/N · |MSE_b − MV_b|, in unit².

    n        the N to divide by; by default the rows in the bins
    returns  NaN where no bin holds a row
    source   Küppers et al. 2022, eq. 9
    """
    inside = int(bins.n.sum())
    total = inside if n is None else n
    if inside == 0 or total == 0:
        return float("nan")
    return float(np.sum(np.abs(bins.squared_error - bins.variance)) / total)


def qce_by_tau(bins: ReliabilityBins, tau: FloatArray) -> FloatArray:
    """Quantile calibration error, conditional on the bin, for each τ.

    QCE(τ) = Σ_b n_b/N · |fraction of bin b with NEES ≤ χ²_K(τ) − τ|. (T,);
    NaN where no truth has arrived.

    source   Küppers et al. 2022, eq. 12
    """
    total = bins.n.sum()
    if total == 0:
        return np.full(tau.shape, np.nan)
    gap = np.abs(bins.within - bins.n[:, None] * tau)
    result: FloatArray = gap.sum(axis=0) / total
    return result


def chi_square_quantiles(tau: FloatArray, k: float) -> FloatArray:
    """χ²_k quantiles of τ: the squared radius of the central region that holds τ; (T,)."""
    # The inverse of F(x) = P(k/2, x/2); scipy.stats would double the time to start.
    result: FloatArray = 2.0 * gammaincinv(k / 2, np.asarray(tau, dtype=np.float64))
    return result


def nees_interval(n: float, k: int, level: float = 0.95) -> tuple[float, float]:
    """Where the mean NEES of n calibrated, independent, Gaussian errors lies: χ²_{nK} / n.

    n        rows, or the number of independent rows they are worth
    returns  the quantiles that leave (1 − level)/2 on either side; NaN without rows
    source   Bar-Shalom, Li, Kirubarajan 2001, section 5.4.2
    """
    if not n > 0:
        return float("nan"), float("nan")
    outside = (1.0 - level) / 2
    low, high = chi_square_quantiles(np.array([outside, 1.0 - outside]), n * k) / n
    return float(low), float(high)


def mean_square_band(n: FloatArray | float, kurtosis: float) -> tuple[FloatArray, FloatArray]:
    """Where the mean of n calibrated squares lies in 95 of 100 sets, over its expectation.

    It is taken as χ²_f / f. The freedom f = 2 n / (κ − 1) gives it the variance (κ − 1) / n of a
    mean of squares of this kurtosis; Gaussian squares, κ = 3, have f = n. Less than 3 counts as 3.

    n        independent squares
    returns  lower and upper end, of the shape of n; NaN where n or κ is unknown
    """
    freedom = 2.0 * np.asarray(n, np.float64) / (np.maximum(kurtosis, 3.0) - 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = (2.0 * gammaincinv(freedom / 2, q) / freedom for q in (0.025, 0.975))
    return low, high


def calibration_area(coverage: FloatArray, tau: FloatArray) -> float:
    """Area between the reliability curve and the diagonal; 0 is calibrated, 1/2 the most.

    The curve runs straight through (0, 0), (τ, coverage) and (1, 1). Where it crosses the
    diagonal both triangles count.

    coverage, tau  (T,)
    source         A in Wolf et al. 2024, eq. 7 (Wursthorn et al. 2024)
    """
    order = np.argsort(tau)
    at = np.concatenate(([0.0], tau[order], [1.0]))
    gap = np.concatenate(([0.0], (coverage - tau)[order], [0.0]))
    left, right = gap[:-1], gap[1:]
    height = np.abs(left) + np.abs(right)
    # |left| + |right| of a trapezoid; (left² + right²) / (|left| + |right|) of two triangles.
    crossing = left * right < 0
    height[crossing] = (left[crossing] ** 2 + right[crossing] ** 2) / height[crossing]
    return float(np.sum(np.diff(at) * height) / 2)


def kurtosis(n: IntArray | int, square: FloatArray, fourth: FloatArray) -> FloatArray:
    """κ of the normalised error z about 0, unbiased for Gaussian errors, which have 3.

    κ = (n + 2) Σ z⁴ / (Σ z²)². The factor n, as for the population, would be too low by
    2/(n + 2). A wrong scale of σ cancels.

    n               (A,), or one for all
    square, fourth  (A,) Σ z² and Σ z⁴ of each axis
    returns         (A,); NaN without errors that differ from 0
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        found: FloatArray = (n + 2) * fourth / (square * square)
    found[~np.isfinite(found)] = np.nan
    return found


def ence_noise_floor(bins: ReliabilityBins, kurtosis: float, design_effect: float) -> float:
    """ENCE to be expected of calibrated errors of this kurtosis and correlation.

    It is never 0, and more where errors have heavy tails or persist along a track.

    mean over occupied bins of sqrt((κ − 1) / (2π n_eff,b)), n_eff,b = n_b / D: the expected
    |MSE/MV − 1| / 2 of a bin whose mean of z² scatters normally with variance (κ − 1)/n_eff,b.

    returns  NaN where no truth has arrived
    """
    n = bins.n[bins.n > 0]
    if n.size == 0:
        return float("nan")
    per_row = (kurtosis - 1.0) * design_effect / (2 * np.pi)
    return float(np.mean(np.sqrt(per_row / n)))


def ence_noise_floor_gaussian(bins: ReliabilityBins) -> float:
    """ENCE to be expected of calibrated, independent, Gaussian errors: sqrt(B / (π n)).

    Exact for B occupied bins of equal count. NaN where no truth has arrived.
    """
    n = int(bins.n.sum())
    if n == 0:
        return float("nan")
    return float(np.sqrt(np.count_nonzero(bins.n) / (np.pi * n)))


def binned_measures(
    cut: tuple[ReliabilityBins, ReliabilityBins],
    fewest_rows: int,
    tau: FloatArray,
    n: int,
    kurtosis: float,
    design_effect: float,
) -> dict[str, Any]:
    """Measures a dimension by its bins; returns fields of DimensionMeasures.

    cut          the bins of ENCE and QCE, over σ, and those of UCE
    fewest_rows  bins with less are left out of ENCE and QCE, and weigh nothing in UCE
    n            all rows, in bins or not
    """
    bins, uce_bins = cut
    counted = bins.with_rows(fewest_rows)
    return {
        "k": 1,
        "n": n,
        "n_eff": n / design_effect if n else float("nan"),
        "kurtosis": kurtosis,
        "ence": ence(counted),
        "ence_noise_floor": ence_noise_floor(counted, kurtosis, design_effect),
        "ence_noise_floor_gaussian": ence_noise_floor_gaussian(counted),
        "uce": uce(uce_bins.with_rows(fewest_rows), n),
        "tau": tau,
        "qce_by_tau": qce_by_tau(counted, tau),
        "bins": bins,
        "uce_bins": uce_bins,
    }


def normal_crps(z: FloatArray) -> FloatArray:
    """CRPS of N(0, 1) at z: z (2Φ(z) − 1) + 2φ(z) − 1/√π. Of a deviation σ it is σ times as much.

    source   Gneiting and Raftery 2007, section 4.2
    """
    density = np.exp(-0.5 * z * z) * math.sqrt(2 / math.pi)
    score: FloatArray = z * (2.0 * ndtr(z) - 1.0) + density - 1.0 / math.sqrt(math.pi)
    return score


class Marginals(Protocol):
    """n × K distributions of one dimension each.

    Values are truths brought next to the mean: mean + error, angles unwrapped.
    """

    def log_density(self, value: FloatArray) -> FloatArray:
        """(n, K) in nats, per unit of the dimension; value (n, K)."""
        ...

    def cumulative(self, value: FloatArray) -> FloatArray:
        """(n, K) probability of not more than the value, in [0, 1]; value (n, K)."""
        ...

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """(T, n, K) the values below which the share tau (T,) lies; ascending with tau."""
        ...

    def crps(self, value: FloatArray) -> FloatArray:
        """(n, K) ∫ (F(x) − [x ≥ value])² dx, in the unit of the dimension; NaN without a mean.

        source   Gneiting and Raftery 2007, section 4.2
        """
        ...


@dataclass(frozen=True, slots=True)
class NormalMarginals:
    """Gaussians.

    mean, deviation  (n, K); deviation positive
    """

    mean: FloatArray
    deviation: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        """log N(value; mean, deviation²)."""
        z = (value - self.mean) / self.deviation
        density: FloatArray = -0.5 * (z * z + np.log(2 * np.pi)) - np.log(self.deviation)
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        """Φ(z)."""
        probability: FloatArray = ndtr((value - self.mean) / self.deviation)
        return probability

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """mean + deviation Φ⁻¹(τ)."""
        found: FloatArray = self.mean + self.deviation * ndtri(tau)[:, None, None]
        return found

    def crps(self, value: FloatArray) -> FloatArray:
        """σ times the CRPS of N(0, 1) at z."""
        score: FloatArray = self.deviation * normal_crps((value - self.mean) / self.deviation)
        return score


# Levels between which F is integrated, 6e-16 … 1 − 6e-16, and Gauss's rule between two of them.
_CUTS = read_only(ndtr(np.arange(-8.0, 9.0, 2.0)))
_NODES, _WEIGHTS = map(read_only, np.polynomial.legendre.leggauss(10))


def integrated_crps(marginals: Marginals, value: FloatArray) -> FloatArray:
    """Integrates the CRPS of distributions that know no closed form, (n, K).

    ∫ F² below the value and ∫ (1 − F)² above it, between quantiles; what lies beyond the outermost
    of these is 0, or 1 up to the value. Right to 1e-9 of σ for Gaussians.

    value  (n, K)
    """
    cuts = np.sort(np.concatenate((marginals.quantiles(_CUTS), value[None])), axis=0)
    score = np.zeros_like(value)
    for low, high in pairwise(cuts):
        half, below = (high - low) / 2, high <= value
        for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
            share = marginals.cumulative(low + half * (1 + node))
            score += weight * half * np.square(np.where(below, share, 1 - share))
    return score


# 0.05, 0.10, … 0.95; read-only, since it is a default.
TAU: FloatArray = read_only(np.arange(1, 20) / 20)


class EvaluationError(ValueError):
    """The rows, or the bins asked for, cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class AxisMeasures:
    """Measures that a dimension and the joint block of k dimensions share.

    n_eff              independent rows that the n are worth
    nll                mean negative log-likelihood, in nats
    nees_mean          mean of the normalised squared error
    nees_median_ratio  its median over the χ²_k median; 1 is calibrated
    tau                (T,) confidence levels
    qce_by_tau         (T,) conditional on the bin
    coverage_by_tau    (T,) share of rows within the central τ interval, or the χ²_k(τ) region
    bins               the bins of QCE, over σ, or σ_G = det(Σ)^(1/2k) for the joint block, whose
                       squared errors are zero
    ranking            how σ (σ_G) ranks error²; jointly Σ error² over the dimensions, which is
                       unknown if they have several units
    """

    k: int
    n: int
    n_eff: float
    nll: float
    nees_mean: float
    nees_median_ratio: float
    tau: FloatArray
    qce_by_tau: FloatArray
    coverage_by_tau: FloatArray
    bins: ReliabilityBins
    ranking: ErrorRanking

    @property
    def qce(self) -> float:
        """Mean of qce_by_tau."""
        return float(self.qce_by_tau.mean())

    @property
    def qce_marginal_by_tau(self) -> FloatArray:
        """(T,) |coverage − τ| of all rows together."""
        return np.abs(self.coverage_by_tau - self.tau)

    @property
    def qce_marginal(self) -> float:
        """Mean of qce_marginal_by_tau."""
        return float(self.qce_marginal_by_tau.mean())

    @property
    def calibration_area(self) -> float:
        """Area between the curve of coverage and the diagonal."""
        return calibration_area(self.coverage_by_tau, self.tau)

    @property
    def ucs(self) -> float:
        """UCS = 1 − A/A_max, A the calibration area: 1 is calibrated.

        A_max = 1/4 lies between half and all of what A can be, so the score can be negative: where
        no error lies in any interval, or each in all, A nears 1/2 and the score −1 (−0.9 on 19 τ).

        source   Wolf et al. 2024, eq. 7 (Wursthorn et al. 2024)
        """
        return 1.0 - self.calibration_area / LARGEST_AREA

    @property
    def ause(self) -> float:
        """Area between the sparsification curves by σ and by the errors themselves, unit²."""
        return self.ranking.ause

    @property
    def ause_relative(self) -> float:
        """AUSE over the mean squared error, dimensionless: 0 is the best order."""
        return self.ranking.ause_relative

    @property
    def rejection(self) -> Rejection:
        """Mean squared error of what is left when the rows of the highest σ are rejected."""
        return self.ranking.rejection

    @property
    def nees_interval(self) -> tuple[float, float]:
        """Where nees_mean lies in 95 of 100 calibrated sets of n independent rows."""
        return nees_interval(self.n, self.k)

    @property
    def nees_interval_n_eff(self) -> tuple[float, float]:
        """Where nees_mean lies in 95 of 100 calibrated sets of n_eff independent rows."""
        return nees_interval(self.n_eff, self.k)


@dataclass(frozen=True, slots=True)
class DimensionMeasures(AxisMeasures):
    """Measures of one dimension, k = 1; squares and losses in its unit, the rest dimensionless.

    kurtosis                  of the normalised error about 0; 3 is Gaussian
    ence_noise_floor          what ENCE reads on calibrated errors of this kurtosis and n_eff
    ence_noise_floor_gaussian what ENCE reads on independent Gaussian errors
    uce                       over σ² with equal widths, else over the bins of ENCE; unit²
    c_v                       coefficient of variation of σ; NaN for a single row
    mean_sigma, mean_variance, mean_squared_error  means of σ, σ² and error²
    bias, bias_interval       mean error, in the unit, and its 95 % interval by tracks; NaN where
                              fewer than two are known
    crps                      mean continuous ranked probability score, in the unit; NaN if the
                              distributions have no mean, as Cauchy's
    pinball_by_tau            (T,) one-sided loss at the Gaussian τ quantile, in the unit
    coverage_one_sided_by_tau (T,) share of z ≤ Φ⁻¹(τ); None where rows are not kept
    uce_bins                  the bins of UCE; those of ENCE and QCE are `bins`
    interval_width_by_tau     (T,) mean width of the central τ interval, in the unit; None where
                              it is that of Gaussians
    """

    kurtosis: float
    ence: float
    ence_noise_floor: float
    ence_noise_floor_gaussian: float
    uce: float
    c_v: float
    mean_sigma: float
    mean_variance: float
    mean_squared_error: float
    bias: float
    bias_interval: tuple[float, float]
    crps: float
    pinball_by_tau: FloatArray
    coverage_one_sided_by_tau: FloatArray | None
    uce_bins: ReliabilityBins
    interval_width_by_tau: FloatArray | None = None

    @property
    def picp_by_tau(self) -> FloatArray:
        """(T,) coverage of the central τ interval, by its name in the literature."""
        return self.coverage_by_tau

    @property
    def pinball(self) -> float:
        """Mean of pinball_by_tau."""
        return float(self.pinball_by_tau.mean())

    @property
    def mpiw_by_tau(self) -> FloatArray:
        """(T,) mean width of the central τ interval, in the unit: 2 Φ⁻¹((1 + τ)/2) mean σ."""
        if self.interval_width_by_tau is not None:
            return self.interval_width_by_tau
        width: FloatArray = 2 * ndtri((1 + self.tau) / 2) * self.mean_sigma
        return width

    @property
    def mpiw(self) -> float:
        """Mean of mpiw_by_tau."""
        return float(self.mpiw_by_tau.mean())

    @property
    def bias_margin(self) -> float:
        """Half of bias_interval, in the unit."""
        lower, upper = self.bias_interval
        return (upper - lower) / 2

    @property
    def std_scaling(self) -> float:
        """Factor on every σ that minimises the NLL: sqrt(mean NEES)."""
        return float(np.sqrt(self.nees_mean))

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, in the unit."""
        return float(np.sqrt(self.mean_squared_error))

    @property
    def rmv(self) -> float:
        """Root of the mean variance, in the unit: what rmse should be."""
        return float(np.sqrt(self.mean_variance))

    # How small the predicted uncertainty is.
    sharpness = rmv


@dataclass(frozen=True, slots=True)
class JointMeasures(AxisMeasures):
    """Measures of the joint block (Space.joint) of k dimensions.

    deviation  lowest, highest and mean σ_G
    mean_iou   mean intersection over union of boxes and their true ones; NaN where rows are no
               boxes, or are not kept
    ause_iou   AUSE of 1 − IoU, the rows sorted by σ_G; likewise
    """

    deviation: tuple[float, float, float]
    mean_iou: float = math.nan
    ause_iou: float = math.nan

    @property
    def nees_over_k(self) -> float:
        """Mean NEES per dimension; 1 is calibrated."""
        return self.nees_mean / self.k


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All measures of one set of rows; NaN without any.

    rows           rows that were measured
    without_truth  rows left out because they have no truth
    refused        rows left out because their mean is not finite or their covariance is
                   not positive definite
    tau            (T,) confidence levels
    tracks         tracks that the measured rows belong to; None where that is not counted
    """

    rows: int
    tau: FloatArray
    dimensions: dict[str, DimensionMeasures]
    joint: JointMeasures
    without_truth: int = 0
    refused: int = 0
    tracks: int | None = None


# What is printed under its own name, in this order.
_DIMENSION = (
    *("n", "n_eff", "ence", "ence_noise_floor", "ence_noise_floor_gaussian", "kurtosis"),
    *("uce", "nll", "rmse", "rmv", "sharpness", "c_v", "bias", "bias_interval"),
    "std_scaling",
    *("nees_mean", "nees_interval", "nees_interval_n_eff", "nees_median_ratio"),
    *("qce", "qce_by_tau", "qce_marginal", "qce_marginal_by_tau", "pinball", "pinball_by_tau"),
    *("picp_by_tau", "mpiw", "mpiw_by_tau", "coverage_one_sided_by_tau", "calibration_area"),
    *("ucs", "crps", "ause", "ause_relative"),
)
_JOINT = (
    *("k", "n", "n_eff", "nll", "nees_mean", "nees_over_k", "nees_interval"),
    *("nees_interval_n_eff", "nees_median_ratio", "qce", "qce_by_tau", "qce_marginal"),
    *("qce_marginal_by_tau", "coverage_by_tau", "calibration_area", "ucs"),
    *("ause", "ause_relative", "mean_iou", "ause_iou"),
)
_BEYOND = ("below", "above")
_REJECTION = ("fraction", "mean_squared_error", "oracle")


def as_json(evaluation: Evaluation) -> dict[str, object]:
    """All measures of the rows, by the keys of the contract."""
    return {
        "rows": evaluation.rows,
        "rows_without_truth": evaluation.without_truth,
        "rows_refused": evaluation.refused,
        "tracks": evaluation.tracks,
        "tau": plain(evaluation.tau),
        "dimensions": {name: _dimension(found) for name, found in evaluation.dimensions.items()},
        "joint": _joint(evaluation.joint),
    }


def _dimension(found: DimensionMeasures) -> dict[str, object]:
    return {
        **printed(found, _DIMENSION),
        "rejection": printed(found.rejection, _REJECTION),
        "bins": plain(found.bins),
        "uce_bins": plain(found.uce_bins),
        "out_of_range": {
            "std": printed(found.bins, _BEYOND),
            "variance": printed(found.uce_bins, _BEYOND),
        },
    }


def _joint(found: JointMeasures) -> dict[str, object]:
    lowest, highest, mean = found.deviation
    return {
        **printed(found, _JOINT),
        "rejection": printed(found.rejection, _REJECTION),
        "sgv_std_min": plain(lowest),
        "sgv_std_max": plain(highest),
        "sgv_std_mean": plain(mean),
        "bins": plain(found.bins),
        "out_of_range": printed(found.bins, _BEYOND),
    }


def printed(found: object, names: Iterable[str]) -> dict[str, object]:
    """Prints attributes under their own names."""
    return {name: plain(getattr(found, name)) for name in names}


def plain(value: object) -> object:
    """Makes JSON of numbers, arrays and bins: None in place of what is not finite."""
    if isinstance(value, ReliabilityBins):
        value = list(value.rows())
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value
