"""Isotonic regression on quantiles (Kuleshov et al. 2018; the reference in Küppers et al. 2022).

Kuleshov's R maps the probability that the detector gives the truth, u = F(y), to the share of
truths that got as little: R ∘ F is the recalibrated distribution. What R is fitted to, the ranks of
u, rises by itself, so that isotonic regression gives back the empirical distribution, step by step
(Levi et al. 2019, section 2). In z-space, where F is Φ, the same map is R(Φ(z)) = Φ(Q⁻¹(z)): the
quantile of u at p is the quantile of the normalised errors z at p. Straight pieces of Q in place of
steps have a density, and Gaussian tails beyond the outer knots one that is nowhere 0. Density,
cumulative probability, quantiles, mean and variance are all in closed form.

With many pieces the map is Kuleshov's isotonic regression itself, and its density follows every
whim of the rows; with one it is a shift and a scale. An information criterion says how many pay.

The map is the same for every detection, in units of its σ. Hence no move of the origin changes it,
and mean and variance are two constants a dimension; moments taken over a grid of y, as others do,
grow with the distance from the origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval, Len
from scipy.special import ndtr, ndtri

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.recalibrator import InvalidRecalibrator, Output, PerDimension

# No part of a distribution is squeezed or stretched more.
LEAST_SLOPE, LARGEST_SLOPE = 1e-3, 1e6
_HALF_LOG_TAU = 0.5 * math.log(math.tau)
_ROOT_TAU = math.sqrt(math.tau)

# Knots are even in ζ, and each ladder step halves their distance.
KNOTS = (3, 5, 9, 17, 33, 65, 129)

# Effective rows beyond each outer knot, which the slope of its tail is fitted to.
TAIL_ROWS = 20.0

# An error of a million σ is a mismatch; more of it would only spoil the arithmetic.
LARGEST_ERROR = 1e6

# Knots of a fit are not nearer.
_NEAREST_NORMAL = 1e-3

# Of the normal distribution there is nothing beyond.
_Normals = Annotated[tuple[Annotated[float, Interval(ge=-10.0, le=10.0)], ...], Len(1)]

# The guard against ties raises knots a little above the largest error.
_Error = Annotated[float, Interval(ge=-2 * LARGEST_ERROR, le=2 * LARGEST_ERROR)]
_Slope = Annotated[float, Interval(ge=LEAST_SLOPE, le=LARGEST_SLOPE)]


@dataclass(frozen=True, eq=False)
class QuantileMap:
    """Q, straight between J ≥ 1 knots and beyond the outer ones: Gaussian tails.

    normal  (J,) ζ of the knots, rising strictly
    error   (J,) Q(ζ) there, in units of σ, rising strictly
    below   Q' before the first knot, positive
    above   Q' after the last knot, positive
    """

    normal: FloatArray
    error: FloatArray
    below: float
    above: float

    @cached_property
    def slopes(self) -> FloatArray:
        """(J + 1,) Q' of each piece."""
        inner = np.diff(self.error) / np.diff(self.normal)
        return np.concatenate(([self.below], inner, [self.above]))

    @cached_property
    def _log_slopes(self) -> FloatArray:
        return np.log(self.slopes)

    def errors(self, normal: FloatArray) -> FloatArray:
        """Q(ζ), of any shape; never falls."""
        return _along(normal, self.normal, self.error, self.slopes)

    def normals(self, error: FloatArray) -> FloatArray:
        """Q⁻¹(z), of any shape; never falls."""
        return _along(error, self.error, self.normal, 1.0 / self.slopes)

    def log_density(self, error: FloatArray) -> FloatArray:
        """log φ(ζ) − log Q'(ζ) at ζ = Q⁻¹(z); of any shape, in nats per σ.

        Where two pieces meet, that of the right one.
        """
        zeta = self.normals(error)
        piece = self.error.searchsorted(error, side="right")
        return -0.5 * zeta * zeta - _HALF_LOG_TAU - self._log_slopes[piece]

    def crps(self, error: FloatArray) -> FloatArray:
        """∫ (Φ(ζ) − [ζ ≥ ζ_z])² Q'(ζ) dζ at ζ_z = Q⁻¹(z); of any shape, in σ.

        With the integral I of Φ² from −∞ on, that of (1 − Φ)² up to ∞ is I(−ζ): each piece adds
        its slope times both, and the pieces to its left and right a constant each.
        """
        zeta, slopes = self.normals(error), self.slopes
        piece = self.error.searchsorted(error, side="right")
        left = np.diff(slopes) * _integral_of_square(self.normal)
        right = np.diff(slopes) * _integral_of_square(-self.normal)
        others = np.append(0.0, -np.cumsum(left)) + np.append(np.cumsum(right[::-1])[::-1], 0.0)
        both = _integral_of_square(zeta) + _integral_of_square(-zeta)
        score: FloatArray = slopes[piece] * both + others[piece]
        return score

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of Q(ζ) in σ and σ².

        Over each piece from l to u, of slope b and through the knot (k, q), the integrals of 1, ζ
        and ζ² are P = Φ(u) − Φ(l), E = φ(l) − φ(u) and P + l φ(l) − u φ(u). About the mean, and
        about the knot: never as a difference of large numbers.
        """
        ends = np.concatenate(([-np.inf], self.normal, [np.inf]))
        # −∞ and ∞ times a density of 0 is 0.
        finite = np.concatenate(([0.0], self.normal, [0.0]))
        density = np.exp(-0.5 * np.square(ends)) / _ROOT_TAU
        # From the nearer tail: a difference of two numbers near 1 loses its digits.
        lower, upper = ends[:-1], ends[1:]
        mass = np.where(lower > 0, ndtr(-lower) - ndtr(-upper), ndtr(upper) - ndtr(lower))
        first = density[:-1] - density[1:]
        second = mass + finite[:-1] * density[:-1] - finite[1:] * density[1:]
        knot, slope = _anchors(self.normal), self.slopes
        about_knot = first - knot * mass
        square_about_knot = second - 2 * knot * first + knot * knot * mass
        value = _anchors(self.error)
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
        return self._each(QuantileMap.log_density, value) - np.log(self.deviation)

    def cumulative(self, value: FloatArray) -> FloatArray:
        """(n, K) R(F(y)) = Φ(Q⁻¹(z)), F the sent Gaussian (Kuleshov et al. 2018); value (n, K)."""
        probability: FloatArray = ndtr(self._each(QuantileMap.normals, value))
        return probability

    def _each(
        self, function: Callable[[QuantileMap, FloatArray], FloatArray], value: FloatArray
    ) -> FloatArray:
        """(n, K) a function of each map at the normalised errors of a value (n, K)."""
        error = (value - self.mean) / self.deviation
        return np.stack([function(*one) for one in zip(self.maps, error.T, strict=True)], axis=1)

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """(T, n, K) mean + σ Q(Φ⁻¹(τ))."""
        error = np.stack([one.errors(ndtri(tau)) for one in self.maps], axis=1)
        return self.mean + self.deviation * error[:, None, :]

    def crps(self, value: FloatArray) -> FloatArray:
        """σ times the CRPS of Q(ζ) at the normalised error."""
        return self._each(QuantileMap.crps, value) * self.deviation


def _integral_of_square(zeta: FloatArray) -> FloatArray:
    """∫ Φ² from −∞ to ζ = ζ Φ² + 2 Φ φ − Φ(√2 ζ)/√π."""
    below = ndtr(zeta)
    density = np.exp(-0.5 * np.square(zeta)) / _ROOT_TAU
    found: FloatArray = below * (zeta * below + 2 * density)
    found -= ndtr(math.sqrt(2) * zeta) / math.sqrt(math.pi)
    return found


def _anchors(knots: FloatArray) -> FloatArray:
    """The knot that each piece passes through: its left one, but for the first piece."""
    return np.concatenate((knots[:1], knots))


def _along(x: FloatArray, knots: FloatArray, values: FloatArray, slopes: FloatArray) -> FloatArray:
    piece = knots.searchsorted(x, side="right")
    found = _anchors(values)[piece] + slopes[piece] * (x - _anchors(knots)[piece])
    # Rounding must not carry a piece past the knot that the next one begins at.
    return np.clip(found, np.append(-np.inf, values)[piece], np.append(values, np.inf)[piece])


def fit_map(error: FloatArray, worth: float) -> QuantileMap:
    """Chooses the map of the least p log log n − n · mean log density, of p fitted numbers.

    Akaike's 1 in place of log log n would now and then fit a shift to Gaussian errors that have
    none, and ½ log n would miss what a few hundred rows show of a tail.

    error  (m,) normalised errors, not all 0
    worth  how many independent rows n they are worth
    source Hannan and Quinn 1979
    """
    ordered = np.sort(error)
    share = TAIL_ROWS / worth
    # With the outer knots at the quartiles there is little left for knots to show.
    if share > 0.25:
        return _straight(0.0, ordered)
    price = math.log(math.log(worth))

    def criterion(candidate: tuple[int, QuantileMap]) -> float:
        numbers, made = candidate
        return numbers * price - worth * float(np.mean(made.log_density(ordered)))

    return min(_candidates(ordered, float(ndtri(share))), key=criterion)[1]


def _candidates(error: FloatArray, outer: float) -> Iterator[tuple[int, QuantileMap]]:
    """Maps, each with how many of its numbers are fitted."""
    yield 1, _straight(0.0, error)
    yield 2, _straight(float(np.mean(error)), error)
    for knots in KNOTS:
        yield knots + 2, _bent(error, np.linspace(outer, -outer, knots))


def _straight(shift: float, error: FloatArray) -> QuantileMap:
    """Shift and scale: Gaussian errors of this mean are likeliest under it."""
    slope = _bounded(float(np.sqrt(np.mean(np.square(error - shift)))))
    return QuantileMap(np.zeros(1), np.array([shift]), slope, slope)


def _bent(error: FloatArray, normal: FloatArray) -> QuantileMap:
    """Through the quantiles of the errors at Φ(ζ) of each knot."""
    quantile = np.quantile(error, ndtr(normal), method="hazen")
    # Where errors repeat, the quantile stands still: it is made to rise, or the density had no end.
    least = LEAST_SLOPE * normal
    quantile = np.maximum.accumulate(quantile - least) + least
    inner = np.diff(quantile) / np.diff(normal)
    below = _tail(quantile[0] - error[error < quantile[0]], -normal[0], inner[0])
    above = _tail(error[error > quantile[-1]] - quantile[-1], normal[-1], inner[-1])
    return QuantileMap(normal, quantile, below, above)


def _tail(beyond: FloatArray, knot: float, inner: float) -> float:
    """The slope s under which the errors beyond an outer knot are likeliest.

    Their log density is −½ (ζ_J + e/s)² − log s but for a constant, e by how much they are beyond:
    its derivative is 0 where s² − ζ_J E[e] s − E[e²] = 0.

    beyond  (m,) positive; without any, the slope of the next piece is taken
    knot    ζ_J, positive
    """
    if beyond.size == 0:
        return _bounded(inner)
    first, second = float(np.mean(beyond)), float(np.mean(np.square(beyond)))
    half = 0.5 * knot * first
    return _bounded(half + float(np.sqrt(half * half + second)))


def _bounded(slope: float) -> float:
    return float(min(max(slope, LEAST_SLOPE), LARGEST_SLOPE))


@dataclass(frozen=True)
class IsotonicQuantiles(PerDimension):
    """The truth lies at mean + σ Q(ζ), ζ ~ N(0, 1), with its own Q for each dimension.

    Forwarded are mean + σ E[Q] and S Σ S with S = sqrt(Var[Q]): moments, about the mean. On
    errors without a variance they rest on the largest of the fit, and a quantile is better to
    rely on. Correlations are those that were sent.

    normal        K lists of ζ of the knots
    error         K lists of Q(ζ) there, in units of σ
    below, above  (K,) Q' before the first knot and after the last one
    """

    normal: Annotated[tuple[_Normals, ...], Len(1)]
    error: tuple[tuple[_Error, ...], ...]
    below: tuple[_Slope, ...]
    above: tuple[_Slope, ...]
    method: ClassVar[str] = "isotonic-quantiles"
    output = Output.MOMENTS

    def __post_init__(self) -> None:
        self.check_ascending("normal")
        self.check_lengths("error", self.error, [len(knots) for knots in self.normal], "normal")
        self.check_ascending("error")
        self.check_entries(("below", "above"), self.k, "normal")
        for before, after in (pair for knots in self.normal for pair in pairwise(knots)):
            if after - before < _NEAREST_NORMAL:
                raise InvalidRecalibrator(
                    f"'normal' holds {before!r} and {after!r}: knots must be {_NEAREST_NORMAL} "
                    "apart; leave one of them out"
                )
        # Knots are rounded, so that a fit may be short of the least by as much.
        least = min(one.slopes.min() for one in self.maps)
        if least < LEAST_SLOPE / 2:
            raise InvalidRecalibrator(
                f"'error' rises by {least:g} per unit of 'normal' between two knots: it must rise "
                f"by {LEAST_SLOPE} at the least, or the density has no bounds"
            )

    @cached_property
    def maps(self) -> tuple[QuantileMap, ...]:
        """Q of each dimension."""
        knots = map(np.array, self.normal), map(np.array, self.error)
        return tuple(map(QuantileMap, *knots, self.below, self.above))

    @cached_property
    def moments(self) -> FloatArray:
        """(2, K) E[Q]: how far the mean is moved, in σ; and Var[Q], the factor on σ²."""
        return np.array([one.moments for one in self.maps]).T

    def apply(self, estimates: Estimates) -> Estimates:
        """Returns mean and covariance of the recalibrated distributions."""
        shift, variance = self.moments
        mean = estimates.mean + estimates.deviation * shift
        made = estimates.rescaled(np.sqrt(variance))
        return made.moved(mean)

    def marginals(self, estimates: Estimates) -> QuantileMarginals:
        """The recalibrated distributions themselves."""
        return QuantileMarginals(estimates.mean, estimates.deviation, self.maps)


def fit_isotonic_quantiles(rows: FitRows) -> IsotonicQuantiles:
    """Fits one map for each dimension, of as many pieces as its errors bear out.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    rows = prepared(rows)
    error = np.clip(rows.error / rows.deviation, -LARGEST_ERROR, LARGEST_ERROR)
    worth = (rows.n * rows.location_weight).tolist()
    maps = [fit_map(*one) for one in zip(error.T, worth, strict=True)]
    knots = ((tuple(one.normal.tolist()), tuple(one.error.tolist())) for one in maps)
    tails = zip(*((one.below, one.above) for one in maps), strict=True)
    return IsotonicQuantiles(*zip(*knots, strict=True), *tails)
