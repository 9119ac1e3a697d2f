"""GP-Normal: a factor on the variance of each dimension that depends on the estimate.

The log of the factor is a Gaussian process of the estimate (Küppers et al. 2022, section 3).
Errors are Gaussian, and their likelihood is in closed form: variance off by w = e^f, one latent
value f a dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.frames.cholesky import add_up
from monitor.frames.detections import Estimates
from monitor.frames.marks import CountFrom1
from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.processes.process_fit import INDUCING, choose_inputs
from monitor.recalibration.processes.sparse_process import MARGIN, Expected, LatentStack, stack_of
from monitor.recalibration.recalibrator import FittedMethod, InvalidRecalibrator


@dataclass(frozen=True, slots=True)
class NormalLikelihood:
    """p(r | f) = Π_j N(r_j; 0, e^{f_j} σ_j²).

    square         (J, n) z² = r²/σ²
    log_deviation  (J, n) log σ
    """

    square: FloatArray
    log_deviation: FloatArray

    @property
    def start(self) -> FloatArray:
        """log mean z²: variance scaling."""
        start: FloatArray = np.log(self.square.mean(axis=1))
        return start

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """E_q[log N] = −½ [log 2πσ² + m + z² exp(−m + v/2)] (Küppers et al. 2022, eq. 5)."""
        e = self.square * np.exp(0.5 * variance - mean)
        value = -0.5 * (np.log(2.0 * np.pi) + mean + e) - self.log_deviation
        return Expected(add_up(value), 0.5 * (e - 1.0), -0.25 * e)


@dataclass(frozen=True)
class GpNormal(FittedMethod, LatentStack):
    """Σ' = S Σ S with S = diag(√w), log w_d ~ GP (eq. 5); correlations stay.

    Served is w = E_q[e^f] = exp(m + v/2): an error whose factor is uncertain varies by the
    mean of the variances it may have, so that NEES stays right where little was seen. exp(m)
    and exp(m − v/2) fare a little worse: on boxes of the reference sets 3.1115 and 3.1134
    nats against 3.1099.

    dimensions  K: how many outputs the processes of log w have
    """

    dimensions: CountFrom1
    method: ClassVar[str] = "gp-normal"

    def __post_init__(self) -> None:
        LatentStack.__post_init__(self)
        if self.outputs != self.dimensions:
            raise InvalidRecalibrator(
                f"'processes' have {self.outputs} outputs, 'dimensions' is {self.dimensions}: "
                "there must be one for each"
            )
        self.check_dimensions(self.k)

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.dimensions

    def apply(self, estimates: Estimates) -> Estimates:
        """Scales each estimate by its own factors, which lie within a range for any estimate."""
        logs = self.log_expectations(estimates)
        logs *= 0.5
        return estimates.rescaled(np.exp(logs, out=logs).T)


def fit_gp_normal(rows: FitRows, inducing: int = INDUCING) -> GpNormal:
    """Fits the factors that rows with ground truth ask for, in whatever order they come.

    Every dimension finds inputs of its own. Raises UnfitData without rows, or where a dimension
    has no error.
    """
    rows = prepared(rows)
    deviation = rows.deviation.T
    square, logs = np.square(rows.error.T / deviation), np.log(deviation)
    chosen = []
    for i, weight in enumerate(rows.size_weight.tolist()):
        likelihood = NormalLikelihood(square[i : i + 1], logs[i : i + 1])
        chosen.append(choose_inputs(likelihood, rows, weight, inducing))
    found = stack_of(chosen, rows.estimates, MARGIN, expectations=True)
    return GpNormal(found.processes, found.low, found.high, rows.space.k)
