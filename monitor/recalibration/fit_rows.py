"""Detections with ground truth, as the methods that need rows are fitted on.

Rows of one object are alike, so that a row is worth less than one; the weights say how much. And
sums over rows must round alike however the rows came: they are brought into one order first. How a
fit goes down to the least loss is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import Estimates
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray, Space
from monitor.recalibration.recalibrator import UnfitData
from monitor.statistics.clusters import LARGEST, design_effect_of_rows
from monitor.statistics.verdicts import ratio_interval

# The median of a chi-square of one degree of freedom: of z² where z is a standard Gaussian.
_CHI_SQUARE_MEDIAN = 0.4549364231195724

# In σ: no error is larger for what it says of others, so that its square is finite.
_LARGEST = 1e100


@dataclass(frozen=True)
class FitRows(Columns):
    """Usable detections with ground truth, n of them.

    error  (n, K) truth − mean, angles wrapped
    track  (n,) number of the object each is of, −1 where it is of none; errors of one object
           are correlated, so that its rows are worth less than as many objects
    time_s, delay_s
           (n,) event time of each, from any moment on, and how much later its truth came; None
           where that is not known
    """

    space: Space
    estimates: Estimates
    error: FloatArray
    track: IntArray
    time_s: FloatArray | None = None
    delay_s: FloatArray | None = None

    @classmethod
    def of(
        cls, space: Space, mean: FloatArray, covariance: FloatArray, diagonal: IntArray, *rest: Any
    ) -> FitRows:
        """Inverts `arrays`; no array is copied but `diagonal`."""
        return cls(space, Estimates(mean, covariance, diagonal.astype(np.bool_)), *rest)

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Returns all arrays, None where there is none."""
        sent, rest = self.estimates, (self.error, self.track, self.time_s, self.delay_s)
        return sent.mean, sent.covariance, sent.diagonal, *rest

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.error.shape[0])

    @cached_property
    def deviation(self) -> FloatArray:
        """(n, K) predicted σ."""
        return self.estimates.deviation

    @cached_property
    def tracks(self) -> int:
        """Number of objects; a row without a track is one of its own."""
        return numbered_objects(self.track)[1]

    @cached_property
    def size_weight(self) -> FloatArray:
        """Weight of a row where sizes of errors are fitted, (K,) in (0, 1].

        1 over the design effect of z², z = error/σ of the dimension, in any unit of σ.
        """
        if self.n == 0 or self.tracks == self.n:
            return np.ones(self.space.k)
        return 1 / effect_on_mean_square(self.square, self.track)

    @cached_property
    def location_weight(self) -> FloatArray:
        """Weight of a row where the location of errors is fitted too, (K,) in (0, 1].

        1 over the larger of the design effects of z and z²: with a correlation ρ of z within a
        track, that of z² is ρ² for Gaussians.
        """
        if self.n == 0 or self.tracks == self.n:
            return np.ones(self.space.k)
        return np.minimum(self.size_weight, 1 / effect_on_mean(self._normalised, self.track))

    @property
    def weight(self) -> float:
        """Weight of a row for the sizes of errors in every dimension: the least, in (0, 1]."""
        return float(self.size_weight.min())

    @property
    def square(self) -> FloatArray:
        """(n, K) z², finite."""
        return np.square(self._normalised)

    @property
    def _normalised(self) -> FloatArray:
        return np.clip(self.error / self.deviation, -_LARGEST, _LARGEST)


def prepared(rows: FitRows) -> FitRows:
    """Checks rows as every fit does, and sorts them by their values alone; equal ones may change
    places.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    check_errors(rows.space, rows.n, (rows.error != 0).any(axis=0))
    sent = rows.estimates
    columns = (sent.mean.T, *sent.covariance.transpose(1, 2, 0), rows.error.T, rows.track[None])
    return rows.take(np.lexsort(np.concatenate(columns)))


def check_errors(space: Space, n: int, any_error: BoolArray) -> None:
    """Raises UnfitData without rows, or where a dimension has no error at all.

    n          rows
    any_error  (K,) whether any of them has an error other than 0
    """
    if n == 0:
        raise UnfitData(
            "cannot fit on 0 detections with ground truth: widen the selection of rows."
        )
    for name, some in zip(space.names, any_error, strict=True):
        if not some:
            raise UnfitData(
                f"dimension '{name}' has no error in {n} rows: nothing can be fitted to it. "
                "Leave the dimension out or check the ground truth."
            )


def numbered_objects(track: IntArray) -> tuple[IntArray, int]:
    """Numbers the objects that rows are of; a row without a track is one of its own.

    track    (n,) object of each row, −1 where it is of none
    returns  (n,) 0 … U − 1, and U
    """
    tracked = track >= 0
    distinct, number = np.unique(track[tracked], return_inverse=True)
    found = np.empty(track.size, np.int64)
    found[tracked] = number
    alone = track.size - number.size
    found[~tracked] = distinct.size + np.arange(alone)
    return found, distinct.size + alone


def unlike(rows: FitRows, wider: FitRows) -> float:
    """Measures how much more two groups differ in the size of errors than chance explains.

    The mean over dimensions of d²/v. d is the difference in ln mean z², v the variance of that of
    the rows, by tracks: half of a 95 % interval is taken for 1.96 deviations, so that few tracks
    have a large v. About 1 where they do not differ; 0 where the rows have no interval.
    """
    number, _ = numbered_objects(rows.track)
    found = []
    for own, others in zip(rows.square.T, wider.square.T, strict=True):
        lower, upper = ratio_interval(own, number)
        if not 0 < lower < upper:
            return 0.0
        deviation = np.log(upper / lower) / (2 * 1.96)
        found.append(np.square(np.log(own.mean() / others.mean()) / deviation))
    return float(np.mean(found))


def effect_on_mean_square(square: FloatArray, track: IntArray) -> FloatArray:
    """Computes the design effect D ≥ 1 of the mean of non-negative squares of each column, (A,).

    The squares are taken in units of their own size before gross outliers are cut, so that D is
    the same in any unit. The size is by the median: by the mean, an outlier would be it.

    square  (n, A)
    track   (n,) object of each row, −1 where it is of none
    """
    return design_effect_of_rows(square / _size(square), np.ones(square.shape[1]), track)


def effect_on_mean(value: FloatArray, track: IntArray) -> FloatArray:
    """Computes the design effect D ≥ 1 of the mean of values of any sign of each column, (A,).

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


def descend(
    loss: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    bounds: FloatArray,
    options: Mapping[str, float],
    accepted: Callable[[FloatArray], None] | None = None,
) -> FloatArray:
    """Finds where a loss, given with its slope, is least by L-BFGS-B.

    bounds    (P, 2) lowest and highest value of each parameter
    options   of scipy: rounds at most, and what gain and slope are too small to go on
    accepted  called with the place after each round
    """
    # Half a second to import, and only a fit needs it.
    from scipy.optimize import minimize

    given = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "callback": accepted}
    return np.asarray(minimize(loss, start, options=options, **given).x, np.float64)
