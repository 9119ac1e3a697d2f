"""GP-Beta: predicted cumulative probabilities under a beta map that depends on the estimate.

With F = Φ(t) the predicted probability, the calibrated one is (Song et al. 2019; Kull et al. 2017)

    G = sigmoid(U),  U = a log F − b log(1 − F) + c,  a, b > 0.

All is written in U and in logarithms, so that no tail is rounded to 0 or 1. a = b = 1 and c = 0
change nothing.

(log a, log b, c) = base + loading · f, f the one latent value of a detection, of a Gaussian process
of the estimate in each dimension (Küppers et al. 2022, section 3): the three share it, so that an
expectation is a one-dimensional rule (coregionalisation of rank 1, Song et al. 2019), and a table
over f of quantiles or moments serves all detections.

Moments are taken about the mean of the Gaussian that is mapped, in its deviations: nothing depends
on where a detection lies, so that large coordinates lose no digits. Forwarded are mean and variance
of the calibrated distribution, about the predicted mean. Fitting lives in beta_fit.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Len
from scipy.special import erfcx, expit, log_ndtr

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray
from monitor.recalibration.processes.sparse_process import LatentStack
from monitor.recalibration.recalibrator import (
    Documented,
    Factors,
    InvalidRecalibrator,
    Output,
    PerDimension,
)
from monitor.statistics.measures import integrated_crps

_STEPS = 100  # of the search for a quantile; bisection alone would need as many

# |log a| and |log b| at most: a tail up to 7 times as wide or narrow as the factor on σ says.
LARGEST = 4.0

# |c| at most, in nats of the odds.
LARGEST_SHIFT = 30.0

BOUNDS = (LARGEST, LARGEST, LARGEST_SHIFT)

# The range of the latent value of each dimension.
Ranges = tuple[tuple[float, float], ...]

# Intervals of a table of quantiles, cubic within each: as many as it takes for the log-odds of a
# quantile to be its level's to this in their middle, where they are furthest off.
_INTERVAL_COUNTS = (64, 128, 256, 512, 1024)

_CLOSE = 2e-9

# Between quantiles of these log-odds, Gauss–Legendre rules of ORDER nodes: each piece of the
# density is smooth, however narrow or skewed it is. Outside lie 1e-17 of the mass.
_PIECES, _ORDER, _FURTHEST_ODDS = 16, 10, 40.0

# Intervals of a table of moments; cubic within each, so that the error is that of the rule.
_INTERVALS = 64

# |log a| and |log b| at most: far beyond what is served, so that the rule sees no kink there.
FAR = 20.0

# Tables of quantiles, one for each set of levels that is asked for.
KEPT = 8


def hazard(t: FloatArray) -> FloatArray:
    """φ(t)/(1 − Φ(t)), without a rounding to 0/0 in the tail."""
    found: FloatArray = np.sqrt(2 / np.pi) / erfcx(t / np.sqrt(2))
    return found


def logit(t: FloatArray, a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """U at t: log G/(1 − G)."""
    found: FloatArray = a * log_ndtr(t) - b * log_ndtr(-t) + c
    return found


def slope_of_logit(t: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """dU/dt = a φ/Φ + b φ/(1 − Φ), positive."""
    return a * hazard(-t) + b * hazard(t)


def log_density(t: FloatArray, a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """log dG/dt = log G + log(1 − G) + log dU/dt, per unit of t."""
    u = np.abs(logit(t, a, b, c))
    # log G(1 − G) is even in U.
    density: FloatArray = -u - 2 * np.log1p(np.exp(-u)) + np.log(slope_of_logit(t, a, b))
    return density


def standard_quantile(u: FloatArray, a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """The t with U(t) = u, for finite u; each by itself.

    Newton's method within a bracket, a bisection where a step leaves it or does not halve the
    one before. The bracket is from Φ(−T) ≤ exp(−T²/2)/2 and Φ(T) ≥ 1/2 for T ≥ 0.
    """
    u, a, b, c = np.broadcast_arrays(u, a, b, c)
    low = -np.sqrt(2 * np.maximum(c + b * np.log(2) - u, 0) / a)
    high = np.sqrt(2 * np.maximum(u - c + a * np.log(2), 0) / b)
    right, left = np.sqrt(2 * np.maximum(u - c, 0) / b), np.sqrt(2 * np.maximum(c - u, 0) / a)
    t = np.clip(right - left, low, high)
    tolerance = 1e-12 * (1 + np.abs(u) + np.abs(c))
    before = high - low
    for _ in range(_STEPS):
        gap = logit(t, a, b, c) - u
        open_ = np.abs(gap) > tolerance
        if not open_.any():
            break
        low = np.where(gap < 0, t, low)
        high = np.where(gap > 0, t, high)
        step = -gap / slope_of_logit(t, a, b)
        newton = (np.abs(step) < 0.5 * before) & (t + step >= low) & (t + step <= high)
        step = np.where(newton, step, 0.5 * (low + high) - t)
        t = np.where(open_, t + step, t)
        before = np.abs(step)
    found: FloatArray = t
    return found


@dataclass(frozen=True, slots=True)
class BetaLine(Documented):
    """(log a, log b, c) = base + loading · f; by default a = b = 1 and c = 0 for any f.

    base, loading  (3,)
    """

    base: Annotated[tuple[float, ...], Len(3, 3)] = (0.0, 0.0, 0.0)
    loading: Annotated[tuple[float, ...], Len(3, 3)] = (0.0, 0.0, 0.0)

    def at(self, latent: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """a, b and c, each of the shape of latent.

        log a and log b are cut off far beyond what is served; their slopes are not, where they
        are: such latent values are those of a wild step of a fit alone.
        """
        pairs = zip(self.base, self.loading, strict=True)
        log_a, log_b, c = (base + loading * latent for base, loading in pairs)
        a, b = (np.exp(np.minimum(np.maximum(log, -FAR), FAR)) for log in (log_a, log_b))
        return a, b, c

    def within(self, low: float, high: float) -> tuple[float, float]:
        """[low, high] with each end moved to where all three are within BOUNDS; the base must
        be."""
        for base, loading, bound in zip(self.base, self.loading, BOUNDS, strict=True):
            if loading != 0:
                # A tenth of a millionth inside, so that rounding does not put an end outside.
                ends = sorted((side * bound - base) / loading * (1 - 1e-7) for side in (-1, 1))
                low, high = (min(max(end, ends[0]), ends[1]) for end in (low, high))
        return low, high

    def bounded(self, low: float, high: float) -> bool:
        """Tells whether all three are within BOUNDS over [low, high]; not if one is not finite."""
        return all(
            abs(base + loading * end) <= bound
            for base, loading, bound in zip(self.base, self.loading, BOUNDS, strict=True)
            for end in (low, high)
        )


@dataclass(frozen=True, slots=True)
class BetaMarginals:
    """n × K distributions G = beta map of Φ(t), t = (value − mean)/unit.

    mean                (n, K) of the Gaussian that is mapped
    unit                (n, K) its deviation, positive
    a, b, c             (n, K) parameters of the map
    standard_quantiles  (T, n, K) in units, of levels (T,) within (0, 1)
    """

    mean: FloatArray
    unit: FloatArray
    a: FloatArray
    b: FloatArray
    c: FloatArray
    standard_quantiles: Callable[[FloatArray], FloatArray]

    def log_density(self, value: FloatArray) -> FloatArray:
        """log g = log N(value; mean, unit²) + log dG/dF."""
        t = (value - self.mean) / self.unit
        return log_density(t, self.a, self.b, self.c) - np.log(self.unit)

    def cumulative(self, value: FloatArray) -> FloatArray:
        """G."""
        t = (value - self.mean) / self.unit
        probability: FloatArray = expit(logit(t, self.a, self.b, self.c))
        return probability

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """Inverts G, to 1e-9 in τ; infinite at 0 and 1."""
        inside = (tau > 0) & (tau < 1)
        t = self.standard_quantiles(np.where(inside, tau, 0.5))
        if not inside.all():
            t = np.where(inside[:, None, None], t, np.copysign(np.inf, tau - 0.5)[:, None, None])
        return self.mean + self.unit * t

    def crps(self, value: FloatArray) -> FloatArray:
        """Integrates G."""
        return integrated_crps(self, value)


def log_odds(tau: FloatArray) -> FloatArray:
    """log τ/(1 − τ) of levels within (0, 1); log1p keeps the digits near 1."""
    return np.log(tau) - np.log1p(-tau)


@dataclass(frozen=True, slots=True)
class CubicTable:
    """T functions of K dimensions' latent values, piecewise cubic over the range of each.

    low, step  (K, 1) of the range and of an interval
    cubic      (4, T, K · intervals) in the share of an interval, the highest power first
    """

    low: FloatArray
    step: FloatArray
    cubic: FloatArray

    @classmethod
    def of(cls, ranges: Ranges, cubics: list[FloatArray]) -> CubicTable:
        """Puts the cubics (4, T, intervals) of each dimension side by side."""
        low, high = np.array(ranges).T[:, :, None]
        width = (high - low) / cubics[0].shape[2]
        # Of a range without width all is in the first interval, at its beginning.
        return cls(low, np.where(width > 0, width, 1.0), np.concatenate(cubics, axis=2))

    def at(self, latent: FloatArray) -> FloatArray:
        """Evaluates the functions at latent values (K, n) within the range; (T, K, n)."""
        intervals = self.cubic.shape[2] // len(latent)
        position = (latent - self.low) / self.step
        interval = np.clip(position.astype(np.int64), 0, intervals - 1)
        share = position - interval
        interval += intervals * np.arange(len(latent))[:, None]
        found: FloatArray = self.cubic[0].take(interval, axis=1)
        for power in (1, 2, 3):
            found *= share
            found += self.cubic[power].take(interval, axis=1)
        return found


def _hermite(value: FloatArray, slope: FloatArray) -> FloatArray:
    """(4, T, m − 1) cubics between m values (T, m) with these slopes an interval."""
    left, right, rise = slope[:, :-1], slope[:, 1:], np.diff(value)
    return np.stack([left + right - 2 * rise, 3 * rise - 2 * left - right, left, value[:, :-1]])


def quantile_table(
    lines: tuple[BetaLine, ...], ranges: Ranges, tau: tuple[float, ...]
) -> CubicTable:
    """Tabulates quantiles for one line a dimension and the range of its latent value.

    tau      T levels within (0, 1)
    returns  T functions: quantiles in deviations of the Gaussian that is mapped
    """
    odds = log_odds(np.array(tau))[:, None]
    dimensions = list(zip(lines, ranges, strict=True))
    for intervals in _INTERVAL_COUNTS:
        cubics = [_cubic(line, *ends, odds, intervals) for line, ends in dimensions]
        tabulated = zip(dimensions, cubics, strict=True)
        if all(_gap(line, *ends, odds, cubic) <= _CLOSE for (line, ends), cubic in tabulated):
            break
    return CubicTable.of(ranges, cubics)


def _cubic(line: BetaLine, low: float, high: float, odds: FloatArray, intervals: int) -> FloatArray:
    """(4, T, intervals) cubics through the quantiles t at the ends, with their slopes.

    U(t, f) is the same along a quantile: dt/df = −(∂U/∂f)/(∂U/∂t).
    """
    width = (high - low) / intervals
    a, b, c = line.at(low + width * np.arange(intervals + 1.0))
    t = standard_quantile(odds, a, b, c)
    by_latent = line.loading[0] * a * log_ndtr(t) - line.loading[1] * b * log_ndtr(-t)
    slope = -width * (by_latent + line.loading[2]) / slope_of_logit(t, a, b)
    return _hermite(t, slope)


def _gap(line: BetaLine, low: float, high: float, odds: FloatArray, cubic: FloatArray) -> float:
    """The most by which log-odds in the middle of an interval are not those of the level."""
    intervals = cubic.shape[2]
    middle = low + (high - low) / intervals * (np.arange(intervals) + 0.5)
    t = ((cubic[0] / 2 + cubic[1]) / 2 + cubic[2]) / 2 + cubic[3]
    return float(np.abs(logit(t, *line.at(middle)) - odds).max())


def moments(line: BetaLine, latent: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Computes mean and log deviation, (2, m), at m points of a line, and their slopes along it.

    Both are in deviations of the Gaussian that is mapped. mean = ∫ t dG and
    variance = ∫ (t − mean)² dG, the mass on the nodes brought to 1; dmean/df = −∫ G' dt and
    dvariance/df = −2 ∫ (t − mean) G' dt, with G' = G (1 − G) dU/df.
    """
    a, b, c = (parameter[:, None] for parameter in line.at(latent))
    odds, node, weight = _rule()
    edge = standard_quantile(odds, a, b, c)
    half = 0.5 * np.diff(edge)[..., None]
    t = (0.5 * (edge[:, 1:] + edge[:, :-1])[..., None] + half * node).reshape(latent.size, -1)
    weight = (half * weight).reshape(latent.size, -1)
    # The two parts of U, once: they are most of the work.
    part_a, part_b = a * log_ndtr(t), -b * log_ndtr(-t)
    density = expit(part_a + part_b + c)
    density *= 1.0 - density
    mass = weight * density * slope_of_logit(t, a, b)
    mass /= mass.sum(axis=1, keepdims=True)
    mean = (mass * t).sum(axis=1)
    centred = t - mean[:, None]
    variance = (mass * centred**2).sum(axis=1)
    moved = line.loading[0] * part_a + line.loading[1] * part_b + line.loading[2]
    change = weight * density * moved
    by_latent = -(centred * change).sum(axis=1) / variance
    value = np.stack([mean, 0.5 * np.log(variance)])
    return value, np.stack([-change.sum(axis=1), by_latent])


def moment_table(lines: tuple[BetaLine, ...], ranges: Ranges) -> CubicTable:
    """Tabulates mean and log deviation for one line a dimension and the range of its latent value.

    Both are in deviations of the Gaussian that is mapped.
    """
    cubics = []
    for line, (low, high) in zip(lines, ranges, strict=True):
        width = (high - low) / _INTERVALS
        value, slope = moments(line, low + width * np.arange(_INTERVALS + 1.0))
        cubics.append(_hermite(value, width * slope))
    return CubicTable.of(ranges, cubics)


@cache
def _rule() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log-odds of the pieces' ends, nodes and weights in a piece; denser in the middle."""
    spread = np.sinh(3 * np.linspace(-1, 1, _PIECES + 1)) / np.sinh(3.0)
    node, weight = np.polynomial.legendre.leggauss(_ORDER)
    return _FURTHEST_ODDS * spread, node, weight


@dataclass(frozen=True)
class GpBeta(PerDimension):
    """G = sigmoid(a log F − b log(1 − F) + c) with F = Φ((y − mean)/(factor σ)).

    The factor is one number a dimension: a beta map of a Gaussian far too narrow has a dip in
    the middle, so that the overall size is set first. (log a, log b, c) lie on a line at the
    posterior mean of the latent value. With the mean, and no average over the posterior, all
    that is said of a detection is of one distribution in closed form; the posterior is narrow
    (variance 0.004 on 2000 rows, where the average changes the likelihood by 1e-4 nats).

    factor  (K,) on σ
    lines   (K,) of the three parameters
    latent  of each dimension
    """

    factor: Factors
    lines: tuple[BetaLine, ...]
    latent: LatentStack
    method: ClassVar[str] = "gp-beta"
    output = Output.MOMENTS

    def __post_init__(self) -> None:
        self.check_entries(("lines",), self.k, "factor")
        self.latent.check_dimensions(self.k, [1] * self.k)
        for i, line in enumerate(self.lines):
            low, high = self.latent.low[i], self.latent.high[i]
            if not line.bounded(low, high):
                raise InvalidRecalibrator(
                    f"'lines[{i}]' leaves the bounds of log a, log b or c for latent values from "
                    f"{low} to {high}: narrow 'low' and 'high'"
                )
        # Made now: the first frame must not wait for the table.
        _ = self._moments

    def apply(self, estimates: Estimates) -> Estimates:
        """The mean moved, and S Σ S: correlations stay."""
        shift, log_spread = self._moments.at(self.latent.means(estimates))
        factor = np.array(self.factor)
        made = estimates.rescaled(np.exp(log_spread).T * factor)
        mean = estimates.mean + estimates.deviation * (shift.T * factor)
        return made.moved(mean)

    def marginals(self, estimates: Estimates) -> BetaMarginals:
        """The calibrated distribution of each dimension; its moments are those of apply."""
        latent = self.latent.means(estimates)
        along = [line.at(row) for line, row in zip(self.lines, latent, strict=True)]
        a, b, c = (np.stack(parameter, axis=1) for parameter in zip(*along, strict=True))
        unit = estimates.deviation * np.array(self.factor)

        def quantiles(tau: FloatArray) -> FloatArray:
            return self._quantiles(tuple(tau.tolist())).at(latent).transpose(0, 2, 1)

        return BetaMarginals(estimates.mean, unit, a, b, c, quantiles)

    @cached_property
    def _moments(self) -> CubicTable:
        return moment_table(self.lines, self._ranges)

    @cached_property
    def _quantiles(self) -> Callable[[tuple[float, ...]], CubicTable]:
        return lru_cache(KEPT)(partial(quantile_table, self.lines, self._ranges))

    @property
    def _ranges(self) -> Ranges:
        return tuple(zip(self.latent.low, self.latent.high, strict=True))
