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

from monitor.frames.space import FloatArray
from monitor.statistics.class_measures import AUSE, ClassEvaluation
from monitor.statistics.measures import ReliabilityBins, calibration_area, nees_interval

# 0.05, 0.10, … 0.95; read-only, since it is a default.
TAU: FloatArray = np.arange(1, 20) / 20


TAU.setflags(write=False)


class EvaluationError(ValueError):
    """The rows, or the bins asked for, cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class DimensionMeasures:
    """Measures of one dimension; squares and losses in its unit, the rest dimensionless.

    n_eff                     independent rows that the n are worth
    kurtosis                  of the normalised error about 0; 3 is Gaussian
    ence_noise_floor          what ENCE reads on calibrated errors of this kurtosis and n_eff
    ence_noise_floor_gaussian the same of independent Gaussian errors
    uce                       over σ² with equal widths, else over the bins of ENCE; unit²
    nll                       mean negative log-likelihood, in nats
    c_v                       coefficient of variation of σ; NaN for a single row
    nees_median_ratio         median of the normalised squared error over the χ²_1 median
    mean_sigma, mean_variance, mean_squared_error  means of σ, σ² and error²
    bias                      mean error, in the unit
    tau                       (T,) confidence levels
    qce_by_tau                (T,) conditional on the bin
    pinball_by_tau            (T,) one-sided loss at the Gaussian τ quantile, in the unit
    picp_by_tau               (T,) coverage of the central τ interval
    coverage_one_sided_by_tau (T,) share of z ≤ Φ⁻¹(τ); None where rows are not kept
    bins                      the bins of ENCE and QCE, over σ
    uce_bins                  the bins of UCE
    interval_width_by_tau     (T,) mean width of the central τ interval, in the unit; None where
                              it is that of Gaussians
    """

    n: int
    n_eff: float
    kurtosis: float
    ence: float
    ence_noise_floor: float
    ence_noise_floor_gaussian: float
    uce: float
    nll: float
    c_v: float
    nees_mean: float
    nees_median_ratio: float
    mean_sigma: float
    mean_variance: float
    mean_squared_error: float
    bias: float
    tau: FloatArray
    qce_by_tau: FloatArray
    pinball_by_tau: FloatArray
    picp_by_tau: FloatArray
    coverage_one_sided_by_tau: FloatArray | None
    bins: ReliabilityBins
    uce_bins: ReliabilityBins
    interval_width_by_tau: FloatArray | None = None

    @property
    def qce(self) -> float:
        """Mean of qce_by_tau."""
        return float(self.qce_by_tau.mean())

    @property
    def qce_marginal_by_tau(self) -> FloatArray:
        """(T,) |coverage − τ| of all rows together."""
        return np.abs(self.picp_by_tau - self.tau)

    @property
    def qce_marginal(self) -> float:
        """Mean of qce_marginal_by_tau."""
        return float(self.qce_marginal_by_tau.mean())

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
    def calibration_area(self) -> float:
        """Area between the curve of central coverage and the diagonal."""
        return calibration_area(self.picp_by_tau, self.tau)

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
        """How small the predicted uncertainty is: the root mean variance, in the unit."""
        return self.rmv

    @property
    def nees_interval(self) -> tuple[float, float]:
        """Where nees_mean lies in 95 of 100 calibrated sets of n independent rows."""
        return nees_interval(self.n, 1)

    @property
    def nees_interval_n_eff(self) -> tuple[float, float]:
        """Where nees_mean lies in 95 of 100 calibrated sets of n_eff independent rows."""
        return nees_interval(self.n_eff, 1)


@dataclass(frozen=True, slots=True)
class JointMeasures:
    """Measures of the joint block (Space.joint) of k dimensions.

    n_eff                independent rows that the n are worth
    nees_median_ratio    median NEES over the χ²_k median; 1 is calibrated
    tau                  (T,) confidence levels
    qce_by_tau           (T,) conditional on the bin of σ_G = det(Σ)^(1/2k)
    coverage_by_tau      (T,) share of rows within the χ²_k(τ) region
    deviation            lowest, highest and mean σ_G
    bins                 the bins over σ_G; squared errors are zero
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
    deviation: tuple[float, float, float]
    bins: ReliabilityBins

    @property
    def nees_over_k(self) -> float:
        """Mean NEES per dimension; 1 is calibrated."""
        return self.nees_mean / self.k

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
    without_truth: int
    refused: int
    tau: FloatArray
    dimensions: dict[str, DimensionMeasures]
    joint: JointMeasures
    tracks: int | None = None


# Fields of ClassEvaluation that are printed under their own name.
_CLASS_NUMBERS = (
    "accuracy",
    *("ece", "ece2", "mce", "ace", "cece", "uce_entropy", "cuce", "nll", "brier"),
    *("sharpness", "overconfidence", "underconfidence", "entropy"),
    *AUSE,
    *("ccqs", "ucqs", "aleatoric", "epistemic"),
)


def as_json(evaluation: Evaluation) -> dict[str, object]:
    """All measures of the rows, by the keys of the contract."""
    return {
        "rows": evaluation.rows,
        "rows_without_truth": evaluation.without_truth,
        "rows_refused": evaluation.refused,
        "tracks": evaluation.tracks,
        "tau": _numbers(evaluation.tau),
        "dimensions": {name: _dimension(found) for name, found in evaluation.dimensions.items()},
        "joint": _joint(evaluation.joint),
    }


def class_as_json(evaluation: ClassEvaluation) -> dict[str, object]:
    """The object `classification`, of the rows with class probabilities."""
    by_class = zip(AUSE, evaluation.ause_by_class, strict=True)
    return {
        "n": evaluation.n,
        "classes": evaluation.classes,
        "rows_without_truth": evaluation.without_truth,
        "rows_refused": evaluation.refused,
        "n_opinions": evaluation.opinions,
        **{name: _number(getattr(evaluation, name)) for name in _CLASS_NUMBERS},
        "ause_bound": dict(zip(AUSE, _numbers(evaluation.ause_bound), strict=True)),
        "n_by_class": evaluation.n_by_class.tolist(),
        "ece_by_class": _numbers(evaluation.ece_by_class),
        "uce_by_class": _numbers(evaluation.uce_by_class),
        **{f"{name}_by_class": _numbers(values) for name, values in by_class},
        "rejection": {
            "fraction": _numbers(evaluation.rejection_fraction),
            "error_rate": _numbers(evaluation.rejection_error_rate),
        },
        "counts_confidence": evaluation.counts_confidence.tolist(),
        "counts_entropy": evaluation.counts_entropy.tolist(),
    }


def _dimension(found: DimensionMeasures) -> dict[str, object]:
    one_sided = found.coverage_one_sided_by_tau
    return {
        "n": found.n,
        "n_eff": _number(found.n_eff),
        "ence": _number(found.ence),
        "ence_noise_floor": _number(found.ence_noise_floor),
        "ence_noise_floor_gaussian": _number(found.ence_noise_floor_gaussian),
        "kurtosis": _number(found.kurtosis),
        "uce": _number(found.uce),
        "nll": _number(found.nll),
        "rmse": _number(found.rmse),
        "rmv": _number(found.rmv),
        "sharpness": _number(found.sharpness),
        "c_v": _number(found.c_v),
        "bias": _number(found.bias),
        "std_scaling": _number(found.std_scaling),
        "nees_mean": _number(found.nees_mean),
        "nees_interval": _numbers(found.nees_interval),
        "nees_interval_n_eff": _numbers(found.nees_interval_n_eff),
        "nees_median_ratio": _number(found.nees_median_ratio),
        "qce": _number(found.qce),
        "qce_by_tau": _numbers(found.qce_by_tau),
        "qce_marginal": _number(found.qce_marginal),
        "qce_marginal_by_tau": _numbers(found.qce_marginal_by_tau),
        "pinball": _number(found.pinball),
        "pinball_by_tau": _numbers(found.pinball_by_tau),
        "picp_by_tau": _numbers(found.picp_by_tau),
        "mpiw": _number(found.mpiw),
        "mpiw_by_tau": _numbers(found.mpiw_by_tau),
        "coverage_one_sided_by_tau": None if one_sided is None else _numbers(one_sided),
        "calibration_area": _number(found.calibration_area),
        "bins": _bins(found.bins),
        "uce_bins": _bins(found.uce_bins),
        "out_of_range": {
            "std": _out_of_range(found.bins),
            "variance": _out_of_range(found.uce_bins),
        },
    }


def _joint(found: JointMeasures) -> dict[str, object]:
    lowest, highest, mean = map(_number, found.deviation)
    return {
        "k": found.k,
        "n": found.n,
        "n_eff": _number(found.n_eff),
        "nll": _number(found.nll),
        "nees_mean": _number(found.nees_mean),
        "nees_over_k": _number(found.nees_over_k),
        "nees_interval": _numbers(found.nees_interval),
        "nees_interval_n_eff": _numbers(found.nees_interval_n_eff),
        "nees_median_ratio": _number(found.nees_median_ratio),
        "qce": _number(found.qce),
        "qce_by_tau": _numbers(found.qce_by_tau),
        "qce_marginal": _number(found.qce_marginal),
        "qce_marginal_by_tau": _numbers(found.qce_marginal_by_tau),
        "coverage_by_tau": _numbers(found.coverage_by_tau),
        "calibration_area": _number(found.calibration_area),
        "sgv_std_min": lowest,
        "sgv_std_max": highest,
        "sgv_std_mean": mean,
        "bins": _bins(found.bins),
        "out_of_range": _out_of_range(found.bins),
    }


def _bins(bins: ReliabilityBins) -> list[dict[str, object]]:
    return [{**row, "upper": _number(row["upper"])} for row in bins.rows()]


def _out_of_range(bins: ReliabilityBins) -> dict[str, object]:
    return {"below": bins.below, "above": bins.above}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_number(value) for value in values]
