"""Results of an evaluation of recorded detections.

Values, their derived measures and their JSON form; the engines that compute them live elsewhere.
What follows from other values alone is a property, so that a reader pays for what he asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from monitor.frames.space import FloatArray, read_only
from monitor.statistics.measures import ReliabilityBins, calibration_area, nees_interval

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
    bias                      mean error, in the unit
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

    @property
    def sharpness(self) -> float:
        """Root of the mean variance, in the unit: how small the predicted uncertainty is."""
        return self.rmv


@dataclass(frozen=True, slots=True)
class JointMeasures(AxisMeasures):
    """Measures of the joint block (Space.joint) of k dimensions.

    deviation  lowest, highest and mean σ_G
    """

    deviation: tuple[float, float, float]

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
    *("uce", "nll", "rmse", "rmv", "sharpness", "c_v", "bias", "std_scaling"),
    *("nees_mean", "nees_interval", "nees_interval_n_eff", "nees_median_ratio"),
    *("qce", "qce_by_tau", "qce_marginal", "qce_marginal_by_tau", "pinball", "pinball_by_tau"),
    *("picp_by_tau", "mpiw", "mpiw_by_tau", "coverage_one_sided_by_tau", "calibration_area"),
)
_JOINT = (
    *("k", "n", "n_eff", "nll", "nees_mean", "nees_over_k", "nees_interval"),
    *("nees_interval_n_eff", "nees_median_ratio", "qce", "qce_by_tau", "qce_marginal"),
    *("qce_marginal_by_tau", "coverage_by_tau", "calibration_area"),
)
_BEYOND = ("below", "above")


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
