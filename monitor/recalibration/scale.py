"""The factor on σ that makes normalised errors have their nominal size, by one of
three objectives. On heavy tails no Gaussian scale satisfies both NEES and
coverage, so the objective is the user's choice.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from scipy.special import gammainc

from monitor.calibration.binning import chi_square
from monitor.calibration.reading import quantile_of_histogram
from monitor.calibration.space import FloatArray
from monitor.calibration.statistics import StageStatistics
from monitor.recalibration.fit_checks import check_errors

# Winsorised: NEES is cut at this quantile of a calibrated χ²₁.
WINSOR_LEVEL = 0.99
# Quantile: the central interval whose coverage is matched.
QUANTILE_LEVEL = 0.6827


class Objective(StrEnum):
    """What the scale is to satisfy."""

    MEAN = "mean"  # mean NEES = 1: maximum likelihood
    WINSORISED_MEAN = "winsorised-mean"  # mean of NEES cut at its 99 % point, as if calibrated
    QUANTILE = "quantile"  # 68 % of errors within one σ


def fit_scale(statistics: StageStatistics, objective: Objective) -> FloatArray:
    """Factor on σ of each dimension, (K,).

    mean: s_d = sqrt(mean NEES_d), the maximum of the likelihood (Levi et al.
    2019, eq. 12; its print has three misprints: √(2π s σ) for √(2π) s σ, T/2 log s
    for T log s, and a minus for the plus before the last sum). The other two are
    read off the NEES histogram, whose bins are 4 % wide.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    nees = np.diagonal(statistics.normalised)
    check_errors(statistics.space, statistics.n, nees > 0)
    mean_nees = nees / statistics.n
    if objective is Objective.MEAN:
        return np.sqrt(mean_nees)
    histogram_scale = _winsorised if objective is Objective.WINSORISED_MEAN else _quantile
    return np.sqrt([histogram_scale(statistics, i) for i in range(statistics.space.k)])


def _quantile(statistics: StageStatistics, i: int) -> float:
    counts = statistics.histogram(i)
    quantile = quantile_of_histogram(statistics.binning.nees, counts, QUANTILE_LEVEL)
    return quantile / chi_square((QUANTILE_LEVEL,), 1).item()


def _winsorised(statistics: StageStatistics, i: int) -> float:
    """The v with mean min(NEES/v, c) = E min(χ²₁, c); found by bisection on log v."""
    counts = statistics.histogram(i).astype(np.float64)
    lower, upper = statistics.binning.nees.bounds
    centre = np.sqrt(np.maximum(lower, upper[0] / 2) * np.minimum(upper, lower[-1] * 2))
    cut = chi_square((WINSOR_LEVEL,), 1).item()
    # E[χ²₁; χ²₁ ≤ c] = F_3(c)
    expected = float(gammainc(1.5, cut / 2)) + cut * (1.0 - WINSOR_LEVEL)
    low, high = np.log(centre[0]) - 1.0, np.log(centre[-1]) + 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        mean = float((counts * np.minimum(centre / np.exp(middle), cut)).sum() / counts.sum())
        low, high = (middle, high) if mean > expected else (low, middle)
    return float(np.exp(0.5 * (low + high)))
