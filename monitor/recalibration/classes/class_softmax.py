"""Softmax over classes, and the mean of opinions: the same bits for a detection alone or not.

Scores are laid out in columns, (C, N): the loops run over the classes, the arithmetic over all N
opinions, so that no sum depends on how many there are.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.cholesky import add_up
from monitor.calibration.space import FloatArray


def as_columns(log_probabilities: FloatArray) -> FloatArray:
    """(C, n · M), a copy of (n, M, C)."""
    n, opinions, classes = log_probabilities.shape
    rows = log_probabilities.reshape(n * opinions, classes)
    columns: FloatArray = np.array(rows.T, np.float64, order="C", copy=True)
    return columns


def as_opinions(columns: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """The inverse of as_columns: contiguous, of the shape (n, M, C)."""
    return np.ascontiguousarray(columns.T).reshape(shape)


def softmax(scores: FloatArray) -> None:
    """Turn scores (C, N) into probabilities over the first axis, in place; NaN spreads over all C.

    p_c = exp(s_c) / Σ exp(s_c')
    """
    scores -= scores.max(axis=0)
    np.exp(scores, out=scores)
    scores /= add_up(scores)


def averaged(probabilities: FloatArray) -> FloatArray:
    """(n, C) mean of opinions (n, M, C).

    source  Laves et al. 2019, eq. 25: after each was scaled by itself
    """
    opinions = probabilities.shape[1]
    if opinions == 1:
        return probabilities[:, 0]
    mean: FloatArray = add_up(probabilities.transpose(1, 0, 2)) / opinions
    return mean
