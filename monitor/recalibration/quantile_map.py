"""A strictly rising, piecewise straight map of normal quantiles to quantiles of the error, and the
distributions that it makes of Gaussians.

With ζ ~ N(0, 1), Q(ζ) is the error in units of σ. Everything about it is closed form: density,
cumulative probability, quantiles, mean and variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from monitor.calibration.space import FloatArray

# No part of a distribution is squeezed or stretched more.
LEAST_SLOPE, LARGEST_SLOPE = 1e-3, 1e6

_HALF_LOG_TAU = 0.5 * math.log(math.tau)
_ROOT_TAU = math.sqrt(math.tau)


@dataclass(frozen=True)
class QuantileMap:
    """Q, straight between J ≥ 1 knots and beyond the outer ones: Gaussian tails.

    normal  (J,) ζ of the knots, rising strictly
    error   (J,) Q(ζ) there, in units of σ, rising strictly
    below   Q' before the first knot, positive
    above   Q' after the last knot, positive
    """

    normal: tuple[float, ...]
    error: tuple[float, ...]
    below: float
    above: float

    @cached_property
    def slopes(self) -> FloatArray:
        """(J + 1,) Q' of each piece."""
        between = np.diff(self.normal_knots)
        inner = np.diff(self.error_knots) / between
        return np.concatenate(([self.below], inner, [self.above]))

    @cached_property
    def normal_knots(self) -> FloatArray:
        """(J,) as an array."""
        return np.array(self.normal)

    @cached_property
    def error_knots(self) -> FloatArray:
        """(J,) as an array."""
        return np.array(self.error)

    @cached_property
    def _log_slopes(self) -> FloatArray:
        return np.log(self.slopes)

    def errors(self, normal: FloatArray) -> FloatArray:
        """Q(ζ), of any shape; never falls."""
        return _along(normal, self.normal_knots, self.error_knots, self.slopes)

    def normals(self, error: FloatArray) -> FloatArray:
        """Q⁻¹(z), of any shape; never falls."""
        return _along(error, self.error_knots, self.normal_knots, 1.0 / self.slopes)

    def log_density(self, error: FloatArray) -> FloatArray:
        """log φ(ζ) − log Q'(ζ) at ζ = Q⁻¹(z); of any shape, in nats per σ.

        Where two pieces meet, that of the right one.
        """
        zeta = self.normals(error)
        piece = self.error_knots.searchsorted(error, side="right")
        density: FloatArray = -0.5 * zeta * zeta - _HALF_LOG_TAU - self._log_slopes[piece]
        return density

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean of Q(ζ), and variance about that mean, in σ and σ².

        Over each piece from l to u, of slope b and through the knot (k, q), the integrals of 1, ζ
        and ζ² are P = Φ(u) − Φ(l), E = φ(l) − φ(u) and P + l φ(l) − u φ(u). About the mean, and
        about the knot: never as a difference of large numbers.
        """
        ends = np.concatenate(([-np.inf], self.normal_knots, [np.inf]))
        # −∞ and ∞ times a density of 0 is 0.
        finite = np.concatenate(([0.0], self.normal_knots, [0.0]))
        density = np.exp(-0.5 * np.square(ends)) / _ROOT_TAU
        # From the nearer tail: a difference of two numbers near 1 loses its digits.
        lower, upper = ends[:-1], ends[1:]
        mass = np.where(lower > 0, ndtr(-lower) - ndtr(-upper), ndtr(upper) - ndtr(lower))
        first = density[:-1] - density[1:]
        second = mass + finite[:-1] * density[:-1] - finite[1:] * density[1:]
        knot, slope = _anchors(self.normal_knots), self.slopes
        about_knot = first - knot * mass
        square_about_knot = second - 2 * knot * first + knot * knot * mass
        value = _anchors(self.error_knots)
        mean = float(np.sum(value * mass + slope * about_knot))
        off = value - mean
        variance = off * off * mass + 2 * off * slope * about_knot
        variance += slope * slope * square_about_knot
        return mean, float(variance.sum())


@dataclass(frozen=True, slots=True)
class QuantileMarginals:
    """The distribution of mean + σ Q(ζ) of each dimension.

    mean, deviation  (n, K); deviation positive
    maps             K of them
    """

    mean: FloatArray
    deviation: FloatArray
    maps: tuple[QuantileMap, ...]

    def log_density(self, value: FloatArray) -> FloatArray:
        """(n, K) in nats per unit of the dimension; value (n, K)."""
        error = (value - self.mean) / self.deviation
        found = np.empty_like(error)
        for i, one in enumerate(self.maps):
            found[:, i] = one.log_density(error[:, i])
        return found - np.log(self.deviation)

    def cumulative(self, value: FloatArray) -> FloatArray:
        """(n, K) R(F(y)) = Φ(Q⁻¹(z)), F the sent Gaussian (Kuleshov et al. 2018); value (n, K)."""
        error = (value - self.mean) / self.deviation
        found = np.empty_like(error)
        for i, one in enumerate(self.maps):
            found[:, i] = one.normals(error[:, i])
        probability: FloatArray = ndtr(found)
        return probability

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """(T, n, K) mean + σ Q(Φ⁻¹(τ))."""
        error = np.stack([one.errors(ndtri(tau)) for one in self.maps], axis=1)
        found: FloatArray = self.mean + self.deviation * error[:, None, :]
        return found


def _anchors(knots: FloatArray) -> FloatArray:
    """The knot that each piece passes through: its left one, but for the first piece."""
    return np.concatenate((knots[:1], knots))


def _along(x: FloatArray, knots: FloatArray, values: FloatArray, slopes: FloatArray) -> FloatArray:
    piece = knots.searchsorted(x, side="right")
    found = _anchors(values)[piece] + slopes[piece] * (x - _anchors(knots)[piece])
    # Rounding must not carry a piece past the knot that the next one begins at.
    within: FloatArray = np.clip(
        found, np.append(-np.inf, values)[piece], np.append(values, np.inf)[piece]
    )
    return within
