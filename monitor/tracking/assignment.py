"""At most one detection for each track and one track for each detection, at the least cost."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from monitor.calibration.space import FloatArray, IntArray


def assign(track: IntArray, detection: IntArray, cost: FloatArray, kind: IntArray) -> IntArray:
    """Positions of the chosen pairs among M: as many as there can be, then the cheapest.

    track, detection  (M,) of each pair, each pair once
    cost              (M,)
    kind              (M,) class of each pair; the classes share no track and no detection
    """
    if track.size == 0:
        return np.zeros(0, np.int64)
    # Whoever has no other choice need not be argued about.
    lone = (np.bincount(track)[track] == 1) & (np.bincount(detection)[detection] == 1)
    contested = np.flatnonzero(~lone)
    chosen = [np.flatnonzero(lone)]
    for one in np.unique(kind[contested]).tolist():
        pairs = contested[kind[contested] == one]
        chosen.append(pairs[_solve(track[pairs], detection[pairs], cost[pairs])])
    return np.concatenate(chosen)


def _solve(track: IntArray, detection: IntArray, cost: FloatArray) -> IntArray:
    rows, row = np.unique(track, return_inverse=True)
    columns, column = np.unique(detection, return_inverse=True)
    shape = (rows.size, columns.size)
    # A forbidden pair costs more than all allowed ones together, so that none of these is left
    # out for a cheaper sum.
    cheapest, dearest = cost.min(), cost.max()
    forbidden = (dearest - cheapest + 1.0) * (min(shape) + 1)
    matrix = np.full(shape, forbidden)
    matrix[row, column] = cost - cheapest
    position = np.full(shape, -1)
    position[row, column] = np.arange(track.size)
    found: IntArray = position[linear_sum_assignment(matrix)]
    return found[found >= 0]
