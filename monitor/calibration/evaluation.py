"""What an evaluation of recorded detections finds, and the object that `evaluate --json` prints.

Values only: the engines that compute them live elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monitor.calibration.measures import ReliabilityBins
from monitor.calibration.space import FloatArray

# 0.05, 0.10, … 0.95; read-only, since it is a default.
TAU: FloatArray = np.arange(1, 20) / 20
TAU.setflags(write=False)


class EvaluationError(ValueError):
    """The rows, or the bins asked for, cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class DimensionMeasures:
    """Measures of one dimension; squares and losses in its unit, the rest dimensionless.

    uce              over σ² with equal-width bins, over the bins of ENCE with equal counts; unit²
    nll              mean negative log-likelihood, in nats
    c_v              coefficient of variation of σ; NaN for a single row
    qce_by_tau       (T,) conditional on the bin
    pinball_by_tau   (T,) one-sided loss at the Gaussian τ quantile, in the unit
    picp_by_tau      (T,) coverage of the central τ interval
    std_scaling      factor on every σ that minimises the NLL: sqrt(mean NEES)
    bias             mean error, in the unit
    bins             the bins of ENCE and QCE, over σ
    """

    ence: float
    ence_noise_floor: float
    uce: float
    nll: float
    c_v: float
    nees_mean: float
    qce_by_tau: FloatArray
    pinball_by_tau: FloatArray
    picp_by_tau: FloatArray
    std_scaling: float
    bias: float
    bins: ReliabilityBins

    @property
    def qce(self) -> float:
        """Mean of qce_by_tau."""
        return float(self.qce_by_tau.mean())

    @property
    def pinball(self) -> float:
        """Mean of pinball_by_tau."""
        return float(self.pinball_by_tau.mean())


@dataclass(frozen=True, slots=True)
class JointMeasures:
    """Measures of the joint block (Space.joint) of k dimensions.

    nees_median_ratio    median NEES over the χ²_k median; 1 is calibrated
    qce_by_tau           (T,) conditional on the bin of σ_G = det(Σ)^(1/2k)
    coverage_by_tau      (T,) share of rows within the χ²_k(τ) region
    bins                 the bins over σ_G; squared errors are zero
    """

    k: int
    nll: float
    nees_mean: float
    nees_median_ratio: float
    qce_by_tau: FloatArray
    coverage_by_tau: FloatArray
    tau: FloatArray
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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All measures of one set of rows; NaN without any.

    rows           rows that were measured
    without_truth  rows left out because they have no truth
    refused        rows left out because their mean is not finite or their covariance is
                   not positive definite
    tau            (T,) confidence levels
    """

    rows: int
    without_truth: int
    refused: int
    tau: FloatArray
    dimensions: dict[str, DimensionMeasures]
    joint: JointMeasures


def as_json(evaluation: Evaluation) -> dict[str, object]:
    """The object that `evaluate --json` prints: plain Python values, None in place of NaN."""
    dimensions = {
        name: {
            "ence": _number(found.ence),
            "ence_noise_floor": _number(found.ence_noise_floor),
            "uce": _number(found.uce),
            "nll": _number(found.nll),
            "c_v": _number(found.c_v),
            "nees_mean": _number(found.nees_mean),
            "qce": _number(found.qce),
            "qce_by_tau": _numbers(found.qce_by_tau),
            "pinball": _number(found.pinball),
            "pinball_by_tau": _numbers(found.pinball_by_tau),
            "picp_by_tau": _numbers(found.picp_by_tau),
            "std_scaling": _number(found.std_scaling),
            "bias": _number(found.bias),
        }
        for name, found in evaluation.dimensions.items()
    }
    joint = evaluation.joint
    return {
        "rows": evaluation.rows,
        "rows_without_truth": evaluation.without_truth,
        "rows_refused": evaluation.refused,
        "tau": _numbers(evaluation.tau),
        "dimensions": dimensions,
        "joint": {
            "k": joint.k,
            "nll": _number(joint.nll),
            "nees_mean": _number(joint.nees_mean),
            "nees_over_k": _number(joint.nees_over_k),
            "nees_median_ratio": _number(joint.nees_median_ratio),
            "qce": _number(joint.qce),
            "qce_by_tau": _numbers(joint.qce_by_tau),
            "qce_marginal": _number(joint.qce_marginal),
        },
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(values: FloatArray) -> list[float | None]:
    return [_number(value) for value in values]
