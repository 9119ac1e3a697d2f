"""How likely an error is in one dimension, given what those of the earlier dimensions were.

Whitened errors are u_i = Σ_j<i φ_ij ε_j + exp(f_i/2) η_i with η_i ~ N(0, 1) and the innovations
ε_j of the earlier rows as they were fitted: see triangular_factors, where their covariance is
G Gᵀ (a moving average Cholesky factor, Zhang and Leng 2012). The joint density is a product over
i, and each factor a regression on innovations that are already known, so that it is fitted by
itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes.latent_likelihood import Expected

# Beyond it exp overflows; a search for the best step may look there.
_LARGEST_EXPONENT = 500.0
# Of the mean square of all errors: what is never explained. Weights that depend on the detection
# could explain a few rows that are repeated often to the last place, and be ever surer of it.
UNEXPLAINED = 1e-4
# Directions of the innovations that hardly vary are left out of a regression on them.
_ALIKE = 1e-2


@dataclass(frozen=True, slots=True)
class TriangularRow:
    """log N(u_i; Σ_j φ_ij ε_j, exp f_i); its 1 + i latent outputs are f_i, φ_i0 … φ_i,i−1.

    Their Fisher information is diagonal where the innovations are uncorrelated, which is what
    makes its fit a quick one.

    value     (n,) u_i, of mean square 1
    earlier   (i, n) ε_0 … ε_i−1
    log_unit  (n,) log of what an error of u_i = 1 is in the unit of the dimension
    """

    value: FloatArray
    earlier: FloatArray
    log_unit: FloatArray

    @property
    def start(self) -> FloatArray:
        """Least squares: φ_i regresses u_i on the innovations, exp f_i is the variance left."""
        n = self.value.size
        phi = np.linalg.lstsq(
            self.earlier @ self.earlier.T, self.earlier @ self.value, rcond=_ALIKE
        )[0]
        rest = self.value - phi @ self.earlier
        variance = UNEXPLAINED + (1 - UNEXPLAINED) * float(rest @ rest) / max(n, 1)
        return np.concatenate(([np.log(variance)], phi))

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """E_q[log N(u_i; Σ_j φ_ij ε_j, exp f_i)] − log_unit, in closed form.

        With f ~ N(m, v) and φ_j ~ N(φ̄_j, v_j) independent, and a share s that is never explained,
        −½ [log 2π + m + exp(−m + v/2) · (s + (1 − s) ((u_i − Σ_j φ̄_j ε_j)² + Σ_j v_j ε_j²))]:
        the mean of exp(−f) is that of a log-normal, and the mean of the square is
        the square of the mean and the variances of its terms.
        """
        earlier = self.earlier
        rest = self.value.copy()
        for phi, innovation in zip(mean[1:], earlier, strict=True):
            rest -= phi * innovation
        square = rest * rest
        squares = earlier * earlier
        for uncertain, part in zip(variance[1:], squares, strict=True):
            square += uncertain * part
        precision = np.exp(np.minimum(0.5 * variance[0] - mean[0], _LARGEST_EXPONENT))
        nees = precision * (UNEXPLAINED + (1 - UNEXPLAINED) * square)
        precision *= 1 - UNEXPLAINED
        by_mean = np.empty_like(mean)
        by_variance = np.empty_like(variance)
        by_mean[0] = 0.5 * (nees - 1.0)
        by_mean[1:] = precision * rest * earlier
        by_variance[0] = -0.25 * nees
        by_variance[1:] = -0.5 * precision * squares
        value = -0.5 * (np.log(2 * np.pi) + mean[0] + nees) - self.log_unit
        return Expected(value, by_mean, by_variance)
