"""Bins of an input that hold about as many rows each, in which scores are looked at."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import FloatArray, IntArray

BINS = 8


def equal_count_bins(column: FloatArray) -> IntArray:
    """(n,) 0 … BINS − 1, the bin of each value; equal values are in one bin."""
    edges = np.quantile(column, np.arange(1, BINS) / BINS)
    return np.searchsorted(edges, column, side="right")
