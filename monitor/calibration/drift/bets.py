"""Bets against calibration: the likelihood of one NEES if it has drifted, over that if it has not.

A bet L multiplies the evidence of those who hold it. Its mean is at most 1 for as long as nothing
is wrong: for every scale of the errors on the right side of the tolerance band, and 1 at its edge.
Bets on overconfidence never fall with the NEES, and those on underconfidence never rise, so that
this holds of every law of it that is stochastically no larger (no smaller) than that of the edge;
only bets on tails at a tolerance of 1 are less careful.
Source: Shin, Ramdas & Rinaldo, arXiv 2203.03532 (e-detectors of likelihood ratios).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import chdtr, chdtrc, fdtrc, gammaincinv, gammaln

from monitor.calibration.drift.charts import Direction
from monitor.calibration.space import FloatArray, IntArray

# Shares of χ²_K below the thresholds of coverage: those of QCE, so that panel and alarm agree.
COVERAGE_LEVELS = (0.5, 0.9, 0.99)
# Factors on σ that are bet on, beyond the band.
COVERAGE_FACTORS = (1.25, 1.5, 2.0, 3.0)
SCALE_FACTORS = (1.15, 1.25, 1.4, 1.6, 2.0, 3.0)
# Degrees of freedom of the tails that are bet on.
STUDENT_DEGREES = (3.0, 5.0)


@dataclass(frozen=True, eq=False, slots=True)
class CoverageBets:
    """On how often the NEES lies below three thresholds. Bounded: no outlier can trip them.

    thresholds      (3,) a_τ, quantiles of χ²_K at COVERAGE_LEVELS, ascending
    log_likelihood  (4, 12) ln L by how many thresholds a NEES exceeds; the bets of a threshold
                      side by side, by COVERAGE_FACTORS
    """

    thresholds: FloatArray
    log_likelihood: FloatArray

    def exceeded(self, nees: FloatArray) -> IntArray:
        """(n,) thresholds that each is above: the row of log_likelihood."""
        return np.searchsorted(self.thresholds, nees, side="left")


@dataclass(frozen=True, eq=False, slots=True)
class ScaleBets:
    """On the scale of errors that are otherwise as usual: ln L = constant + slope · e.

    constant  (6,) by SCALE_FACTORS; e is χ²_K where nothing has changed
    slope     (6,) of the sign of the direction
    """

    constant: FloatArray
    slope: FloatArray

    def log_likelihood(self, nees: FloatArray) -> FloatArray:
        """(n, 6) ln L."""
        said: FloatArray = self.constant + nees[:, None] * self.slope
        return said


@dataclass(frozen=True, eq=False, slots=True)
class StudentBets:
    """On heavy tails of the same variance, which a scale explains badly.

    With u = e/s0², s0 the tolerance, the ratio of the densities of Student-t and Gaussian is
    ln f(u) = c + u/2 − (ν + K)/2 · ln(1 + u/(ν − 2)). It falls up to u = K + 2 and rises from
    there, and f(0) > 1: a detector that is too cautious would seem to have tails. Hence beyond a
    tolerance of 1, L(e) = f(max(u, K + 2))/Z, Z = E f(max(χ²_K, K + 2)): L never falls. At the
    edge of the band u ~ χ²_K, thus E L = 1; at any smaller scale e is stochastically smaller, thus
    E L ≤ 1. Above the cut f·p is the density of Student-t itself:
    Z = f(K + 2) · P(χ²_K ≤ K + 2) + P(F_{K,ν} > (K + 2)ν / ((ν − 2)K)).

    A tolerance of 1 asks for any change to be found, and L = f: thrice as fast, since errors that
    are too small speak for tails as well, but E L = 1 holds of the reference alone.

    constant  (2,) c − ln Z, by STUDENT_DEGREES
    lowest    that u counts as: K + 2, or 0
    """

    k: int
    tolerance: float
    constant: FloatArray
    lowest: float

    def log_likelihood(self, nees: FloatArray) -> FloatArray:
        """(n, 2) ln L."""
        u = np.maximum(nees / self.tolerance**2, self.lowest)[:, None]
        return self.constant + _student_shape(self.k, u)


@cache
def coverage_bets(k: int, direction: Direction, tolerance: float) -> CoverageBets:
    """Of K dimensions; tolerance s0 ≥ 1 on σ.

    p0 = F(a/s²) at the edge of the band, s = s0 (over) or 1/s0 (under), and q the same at s · f,
    f from COVERAGE_FACTORS (over) or 1/f (under). L = q/p0 if e ≤ a, else (1 − q)/(1 − p0).
    """
    thresholds: FloatArray = 2 * gammaincinv(k / 2, COVERAGE_LEVELS)
    edge, factors = _beyond(direction, tolerance, COVERAGE_FACTORS)
    allowed = thresholds[:, None] / edge**2
    drifted = allowed / factors**2
    within = np.log(chdtr(k, drifted)) - np.log(chdtr(k, allowed))
    above = _log_survival(k, drifted) - _log_survival(k, allowed)
    exceeded = np.arange(4)[:, None, None] > np.arange(3)[:, None]
    log_likelihood = np.where(exceeded, above, within).reshape(4, -1)
    return CoverageBets(_frozen(thresholds), _frozen(log_likelihood))


@cache
def scale_bets(k: int, direction: Direction, tolerance: float) -> ScaleBets:
    """Of K dimensions; tolerance s0 ≥ 1 on σ.

    Gaussian of scale s · f against s, the edge of the band, with s and f as for coverage:
    ln L = −K ln f + e/2 · (1/s² − 1/(s f)²).
    """
    edge, factors = _beyond(direction, tolerance, SCALE_FACTORS)
    slope = (1 - factors**-2) / (2 * edge**2)
    return ScaleBets(_frozen(-k * np.log(factors)), _frozen(slope))


@cache
def student_bets(k: int, tolerance: float) -> StudentBets:
    """Of K dimensions, on overconfidence; tolerance s0 ≥ 1 on σ."""
    _check(tolerance)
    degrees = np.array(STUDENT_DEGREES)
    constant = gammaln((degrees + k) / 2) - gammaln(degrees / 2) - k / 2 * np.log(degrees / 2 - 1)
    if tolerance == 1:
        return StudentBets(k, tolerance, _frozen(constant), lowest=0.0)
    cut = float(k + 2)
    lowest = np.exp(constant + _student_shape(k, np.array([cut])))
    mean = lowest * chdtr(k, cut) + fdtrc(k, degrees, cut / k * degrees / (degrees - 2))
    return StudentBets(k, tolerance, _frozen(constant - np.log(mean)), cut)


def _student_shape(k: int, u: FloatArray) -> FloatArray:
    """u/2 − (ν + K)/2 · ln(1 + u/(ν − 2)), by ν in the last axis."""
    degrees = np.array(STUDENT_DEGREES)
    shape: FloatArray = u / 2 - (degrees + k) / 2 * np.log1p(u / (degrees - 2))
    return shape


def _beyond(
    direction: Direction, tolerance: float, factors: tuple[float, ...]
) -> tuple[float, FloatArray]:
    """Scale at the edge of the band, and factors on it that lead further out."""
    _check(tolerance)
    return tolerance**direction.sign, np.array(factors) ** float(direction.sign)


def _check(tolerance: float) -> None:
    if not (math.isfinite(tolerance) and tolerance >= 1):
        raise ValueError(f"tolerance is {tolerance}: give a finite factor on σ of at least 1.")


def _log_survival(k: int, x: FloatArray) -> FloatArray:
    """ln P(χ²_K > x), where P itself would be zero as well."""
    half = x / 2
    # Γ(a, z) = z^(a−1) e^(−z) (1 + (a − 1)/z + …): DLMF 8.11.2.
    far = np.maximum(half, 300.0)
    a = k / 2
    beyond = (a - 1) * np.log(far) - far + np.log1p((a - 1) / far) - gammaln(a)
    survival = chdtrc(k, np.minimum(x, 600.0))
    found: FloatArray = np.where(half > 300.0, beyond, np.log(survival))
    return found


def _frozen(array: FloatArray) -> FloatArray:
    """Read-only: it is shared by all who ask."""
    array.setflags(write=False)
    return array
