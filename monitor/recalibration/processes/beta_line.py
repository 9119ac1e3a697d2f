"""The beta map of a standard Gaussian's cumulative probability, as one latent value moves it.

With F = Φ(t) the predicted probability, the calibrated one is (Song et al. 2019; Kull et al. 2017)

    G = sigmoid(U),  U = a log F − b log(1 − F) + c,  a, b > 0.

All is written in U and in logarithms, so that no tail is rounded to 0 or 1. a = b = 1 and c = 0
change nothing. Arrays of any shapes that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Len
from scipy.special import erfcx, log_ndtr

from monitor.frames.space import FloatArray
from monitor.recalibration.documents import Documented

_STEPS = 100  # of the search for a quantile; bisection alone would need as many

# |log a| and |log b| at most: a tail up to 7 times as wide or narrow as the factor on σ says.
LARGEST = 4.0

# |c| at most, in nats of the odds.
LARGEST_SHIFT = 30.0
BOUNDS = (LARGEST, LARGEST, LARGEST_SHIFT)


def hazard(t: FloatArray) -> FloatArray:
    """φ(t)/(1 − Φ(t)), without a rounding to 0/0 in the tail."""
    found: FloatArray = np.sqrt(2 / np.pi) / erfcx(t / np.sqrt(2))
    return found


def logit(t: FloatArray, a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """U at t: log G/(1 − G)."""
    found: FloatArray = a * log_ndtr(t) - b * log_ndtr(-t) + c
    return found


def slope(t: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """dU/dt = a φ/Φ + b φ/(1 − Φ), positive."""
    return a * hazard(-t) + b * hazard(t)


def log_density(t: FloatArray, a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """log dG/dt = log G + log(1 − G) + log dU/dt, per unit of t."""
    u = np.abs(logit(t, a, b, c))
    # log G(1 − G) is even in U.
    density: FloatArray = -u - 2 * np.log1p(np.exp(-u)) + np.log(slope(t, a, b))
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
        step = -gap / slope(t, a, b)
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
        """a, b and c, each of the shape of latent."""
        pairs = zip(self.base, self.loading, strict=True)
        log_a, log_b, c = (base + loading * latent for base, loading in pairs)
        return np.exp(log_a), np.exp(log_b), c

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
