"""Distributions of each dimension that are a Gaussian under a beta map (Song et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes import beta_link


@dataclass(frozen=True, slots=True)
class BetaMarginals:
    """n × K distributions G = beta map of Φ(t), t = (value − mean)/unit.

    mean     (n, K) of the Gaussian that is mapped
    unit     (n, K) its deviation, positive
    a, b, c  (n, K) parameters of the map
    """

    mean: FloatArray
    unit: FloatArray
    a: FloatArray
    b: FloatArray
    c: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        """log g = log N(value; mean, unit²) + log dG/dF."""
        t = (value - self.mean) / self.unit
        density: FloatArray = beta_link.log_density(t, self.a, self.b, self.c) - np.log(self.unit)
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        """G."""
        t = (value - self.mean) / self.unit
        probability: FloatArray = expit(beta_link.logit(t, self.a, self.b, self.c))
        return probability

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """By inversion of G, to 1e-9 in τ; infinite at 0 and 1."""
        inside = (tau > 0) & (tau < 1)
        t = self.standard_quantiles(np.where(inside, tau, 0.5))
        if not inside.all():
            t = np.where(inside[:, None, None], t, np.copysign(np.inf, tau - 0.5)[:, None, None])
        found: FloatArray = self.mean + self.unit * t
        return found

    def standard_quantiles(self, tau: FloatArray) -> FloatArray:
        """(T, n, K) in units, at levels within (0, 1)."""
        odds = log_odds(tau)[:, None, None]
        return beta_link.standard_quantile(odds, self.a, self.b, self.c)


def log_odds(tau: FloatArray) -> FloatArray:
    """log τ/(1 − τ) of levels within (0, 1); log1p keeps the digits near 1."""
    found: FloatArray = np.log(tau) - np.log1p(-tau)
    return found
