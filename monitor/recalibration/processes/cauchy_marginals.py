"""Cauchy distributions of each dimension, and the Gaussian that stands in for one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from monitor.calibration.space import FloatArray


@dataclass(frozen=True, slots=True)
class CauchyMarginals:
    """n × K Cauchy distributions; mean and variance of such are undefined.

    location, scale  (n, K); scale is γ, half of the mass lies within ±γ
    """

    location: FloatArray
    scale: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        """−log(π γ) − log(1 + t²), t = (value − location)/γ."""
        t = np.abs(value - self.location) / self.scale
        # 1 + t² as (hypot)², which does not overflow.
        density: FloatArray = -np.log(np.pi * self.scale) - 2 * np.log(np.hypot(1, t))
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        """1/2 + arctan(t)/π."""
        # arctan2(1, −t)/π is the same, without a cancellation in the lower tail.
        t = (value - self.location) / self.scale
        probability: FloatArray = np.arctan2(1.0, -t) / np.pi
        return probability

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """location + γ tan(π (τ − 1/2)); infinite at 0 and 1."""
        with np.errstate(divide="ignore"):
            # −cot(π τ) below one half: the tangent loses the small τ.
            unit = np.where(
                tau < 0.5, -1 / np.tan(np.pi * np.minimum(tau, 0.5)), np.tan(np.pi * (tau - 0.5))
            )
        unit = np.where(tau == 1, np.inf, unit)
        found: FloatArray = self.location + self.scale * unit[:, None, None]
        return found


def surrogate_ratio(level: float) -> float:
    """σ_s/γ of the Gaussian with the same central interval: it holds the share `level` of both.

    γ tan(π level/2) = σ_s Φ⁻¹((1 + level)/2).
    """
    return math.tan(math.pi * level / 2) / float(ndtri((1 + level) / 2))
