"""Sizes and correlations of errors by objective, and how many independent rows those of tracks are
worth: what both methods that estimate covariances rest on."""

from __future__ import annotations

import numpy as np
from scipy.special import gammainc

from monitor.frames.space import FloatArray, IntArray
from monitor.frames.words import Objective
from monitor.recalibration.fit_rows import effect_on_mean_square, numbered_objects
from monitor.recalibration.scaling import QUANTILE_LEVEL, WINSOR_LEVEL
from monitor.statistics.bins import chi_square

# z² of a calibrated Gaussian is cut here, and its mean is then so much: E[χ²₁; χ²₁ ≤ c] = F_3(c).
CUT = float(chi_square((WINSOR_LEVEL,), 1).item())
MEAN_OF_CUT = float(gammainc(1.5, CUT / 2)) + CUT * (1.0 - WINSOR_LEVEL)
_MEDIAN = float(chi_square((0.5,), 1).item())
_QUANTILE = float(chi_square((QUANTILE_LEVEL,), 1).item())

# Independent rows that a track counts for at most: few tracks do not tell how alike their rows are.
MOST_OF_A_TRACK = 2.0

# Rows that "no correlation" counts for, beside the number of dimensions.
UNCORRELATED = 10.0

# What a prior counts for in the level of the variances, of what it counts for in all else: classes
# differ in how large their errors are by far more than in what these depend on.
LEVEL_SHARE = 1 / 6

# σ at which errors are cut where they correlate, unless the objective is the mean.
_FURTHEST = 3.0

# Rounds of the search for a winsorised mean: it contracts by the share of rows that are not cut.
_ROUNDS = 60

# A square of a quantile, at least: most errors may be 0 to the last bit.
_LEAST = 1e-24

_CLOSE = 1e-12


def counted(square: FloatArray, objective: Objective) -> FloatArray:
    """Returns what each z² counts for in a mean that is 1 for Gaussians."""
    if objective is Objective.MEAN:
        return square
    found: FloatArray = np.minimum(square, CUT) / MEAN_OF_CUT
    return found


def log_size(square: FloatArray, objective: Objective) -> FloatArray:
    """Finds log v of each row of squares (A, n) so that square/v meets the objective, (A,).

    mean: mean z² = 1, the maximum of the Gaussian likelihood. Winsorised: mean min(z², c) as of a
    Gaussian, by repeated substitution. Quantile: 68.27 % of z² below 1.
    """
    if objective is Objective.QUANTILE:
        size = np.maximum(np.quantile(square, QUANTILE_LEVEL, axis=1), _LEAST)
        return np.asarray(np.log(size / _QUANTILE), np.float64)
    log_v: FloatArray = np.log(square.mean(axis=1))
    if objective is Objective.MEAN:
        return log_v
    for _ in range(_ROUNDS):
        step = np.log(counted(square / np.exp(log_v)[:, None], objective).mean(axis=1))
        log_v += step
        if np.abs(step).max(initial=0.0) < _CLOSE:
            break
    return log_v


def independent_rows(square: FloatArray, track: IntArray) -> FloatArray:
    """Counts for how many independent Gaussian errors the sizes of n rows count, (A,).

    n / (D k) with the design effect D of the tracks and k = (κ − 1)/2 ≥ 1 for tails, both of
    winsorised squares: the variance of the log of their mean is then 2 over this number. Two at
    least, and two for each track at most.

    square  (A, n) z² of errors over their own deviations, in any unit
    """
    n = square.shape[1]
    number, tracks = numbered_objects(track)
    near = np.minimum(square / _typical(square)[:, None], CUT)
    effect = np.ones(len(square))
    if tracks < n:
        effect = effect_on_mean_square(near.T, number)
    tails = 0.5 * (np.square(near).mean(axis=1) / np.square(near.mean(axis=1)) - 1.0)
    found: FloatArray = n / (effect * np.maximum(tails, 1.0))
    return np.clip(found, min(n, 2.0), MOST_OF_A_TRACK * tracks)


def _typical(square: FloatArray) -> FloatArray:
    """Estimates the mean of squares without outliers, (A,); positive."""
    size: FloatArray = np.median(square, axis=1) / _MEDIAN
    size = np.where(size > 0, size, square.mean(axis=1))
    return np.where(size > 0, size, 1.0)


def strength_of(strength: float, worth: FloatArray, tracks: int) -> float:
    """Raises the strength of a prior, in independent rows, so that it outweighs few tracks.

    Errors of few tracks say little of how much alike the rows of each are: for a prior they count
    for no more than their number.

    worth  (K,) from independent_rows
    """
    own = float(worth.min())
    return strength * own / min(own, float(tracks))


def uncut(z: FloatArray, objective: Objective) -> FloatArray:
    """Returns errors over their deviations as they correlate; cut at 3 σ, but for the mean."""
    return z if objective is Objective.MEAN else np.clip(z, -_FURTHEST, _FURTHEST)


def correlation_of(z: FloatArray) -> FloatArray:
    """Computes correlations about zero of errors over their deviations z (K, n); (K, K)."""
    moment = z @ z.T / z.shape[1]
    size = np.sqrt(np.maximum(np.diagonal(moment), 1e-300))
    found: FloatArray = moment / (size[:, None] * size)
    return found


def drawn(
    correlation: FloatArray, towards: FloatArray, worth: float, strength: float
) -> FloatArray:
    """Draws correlations (K, K) towards others: R ← (n R + n₀ R₀) / (n + n₀).

    Positive definite where R₀ is.

    worth     n, independent rows
    strength  n₀, if it is more than 10 + K
    """
    share = worth / (worth + max(strength, UNCORRELATED + len(correlation)))
    mixed = share * correlation + (1.0 - share) * towards
    found: FloatArray = np.clip(0.5 * (mixed + mixed.T), -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return found
