"""The beta map of a standard Gaussian's cumulative probability: density, probability, quantiles.

With F = Φ(t) the predicted probability, the calibrated one is (Song et al. 2019; Kull et al. 2017)

    G = sigmoid(U),  U = a log F − b log(1 − F) + c,  a, b > 0.

All is written in U and in logarithms, so that no tail is rounded to 0 or 1. a = b = 1 and c = 0
change nothing. Arrays of any shapes that broadcast.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr

from monitor.calibration.space import FloatArray

_STEPS = 100  # of the search for a quantile; bisection alone would need as many


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
    found: FloatArray = a * hazard(-t) + b * hazard(t)
    return found


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
