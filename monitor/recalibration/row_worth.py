"""What correlated rows are worth for a mean over them, whatever the unit of what is averaged."""

from __future__ import annotations

import numpy as np

from monitor.calibration.clusters import LARGEST, design_effect_of_rows
from monitor.calibration.space import FloatArray, IntArray

# The median of a chi-square of one degree of freedom: of z² where z is a standard Gaussian.
_CHI_SQUARE_MEDIAN = 0.4549364231195724


def effect_on_mean_square(square: FloatArray, track: IntArray) -> FloatArray:
    """The design effect D ≥ 1 of the mean of non-negative squares of each column, (A,).

    The squares are taken in units of their own size before gross outliers are cut, so that D is
    the same in any unit. The size is by the median: by the mean, an outlier would be it.

    square  (n, A)
    track   (n,) object of each row, −1 where it is of none
    """
    return design_effect_of_rows(square / _size(square), np.ones(square.shape[1]), track)


def effect_on_mean(value: FloatArray, track: IntArray) -> FloatArray:
    """The design effect D ≥ 1 of the mean of values of any sign of each column, (A,).

    value, track  (n, A) and (n,), as in effect_on_mean_square
    """
    furthest = np.sqrt(LARGEST)
    near = np.clip(value / np.sqrt(_size(np.square(value))), -furthest, furthest)
    return design_effect_of_rows(near, np.ones(value.shape[1]), track)


def _size(square: FloatArray) -> FloatArray:
    """(A,) about the mean of squares without outliers; positive."""
    size: FloatArray = np.median(square, axis=0) / _CHI_SQUARE_MEDIAN
    # Half of the rows or more are 0 to the last bit.
    size = np.where(size > 0, size, square.mean(axis=0))
    return np.where(size > 0, size, 1.0)
