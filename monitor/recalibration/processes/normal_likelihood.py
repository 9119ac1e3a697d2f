"""Gaussian errors whose variance is off by w = e^f, one latent a dimension: in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.cholesky import add_up
from monitor.calibration.space import FloatArray
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes.latent_likelihood import Expected


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

    def of(self, output: int) -> NormalLikelihood:
        """Of one of the outputs by itself."""
        one = slice(output, output + 1)
        return NormalLikelihood(self.square[one], self.log_deviation[one])


def normal_likelihood(rows: FitRows) -> NormalLikelihood:
    """Of all dimensions of some rows."""
    deviation = rows.deviation.T
    return NormalLikelihood(np.square(rows.error.T / deviation), np.log(deviation))
