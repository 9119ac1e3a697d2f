"""The distribution of each dimension by itself, of whatever shape a recalibrator gives it.

What a measure needs of a distribution and no more: density, cumulative probability, quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from monitor.calibration.space import FloatArray


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
