"""Sizes of errors by objective, and how many independent rows the rows of tracks are worth."""

from __future__ import annotations

import numpy as np
from scipy.special import gammainc

from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.fit_rows import effect_on_mean_square, numbered_objects
from monitor.recalibration.scaling import QUANTILE_LEVEL, WINSOR_LEVEL, Objective
from monitor.statistics.bins import chi_square

# z² of a calibrated Gaussian is cut here, and its mean is then so much: E[χ²₁; χ²₁ ≤ c] = F_3(c).
CUT = float(chi_square((WINSOR_LEVEL,), 1).item())
MEAN_OF_CUT = float(gammainc(1.5, CUT / 2)) + CUT * (1.0 - WINSOR_LEVEL)
_QUANTILE = float(chi_square((QUANTILE_LEVEL,), 1).item())

# Rounds of the search for a winsorised mean: it contracts by the share of rows that are not cut.
_ROUNDS = 60
_CLOSE = 1e-12


def counted(square: FloatArray, objective: Objective) -> FloatArray:
    """What each z² counts for in a mean that is 1 for calibrated Gaussians; cut if winsorised."""
    if objective is Objective.MEAN:
        return square
    found: FloatArray = np.minimum(square, CUT) / MEAN_OF_CUT
    return found


def log_size(square: FloatArray, objective: Objective) -> FloatArray:
    """The log of the v of each row of squares (A, n) for which square/v meets the objective, (A,).

    mean: mean z² = 1, the maximum of the Gaussian likelihood. Winsorised: mean min(z², c) as of a
    Gaussian, by repeated substitution. Quantile: 68.27 % of z² below 1.
    """
    if objective is Objective.QUANTILE:
        found: FloatArray = np.log(np.quantile(square, QUANTILE_LEVEL, axis=1) / _QUANTILE)
        return found
    log_v = np.log(square.mean(axis=1))
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

    n / (D k) with the design effect D of the tracks and k = (κ − 1)/2 ≥ 1 for tails: the variance
    of ln mean z² is then 2 over this number. Two at least.

    square  (A, n) z² of errors over their own deviations
    """
    n = square.shape[1]
    number, tracks = numbered_objects(track)
    effect = np.ones(len(square))
    if tracks < n:
        effect = effect_on_mean_square(np.ascontiguousarray(square.T), number)
    mean = square.mean(axis=1)
    tails = 0.5 * (np.square(square).mean(axis=1) / np.square(mean) - 1.0)
    found: FloatArray = n / (effect * np.maximum(tails, 1.0))
    return np.maximum(found, min(n, 2.0))
