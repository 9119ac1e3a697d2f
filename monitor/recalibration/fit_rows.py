"""Detections with ground truth, as the methods are fitted on: rows, or their sums alone.

Rows of one object are alike, so that a row is worth less than one; the weights say how much. And
sums over rows must round alike however the rows came: they are brought into one order first. How a
fit goes down to the least loss is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from monitor.frames.detections import Estimates
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray, Space
from monitor.recalibration.recalibrator import UnfitData
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import ALONE, LARGEST, cluster_id, design_effect_of_rows
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import read
from monitor.statistics.state import StageStatistics, no_stage_statistics, observe
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
        cls,
        space: Space,
        mean: FloatArray,
        covariance: FloatArray,
        diagonal: IntArray,
        score: FloatArray | None,
        *rest: Any,
    ) -> FitRows:
        """Inverts `arrays`; no array is copied but `diagonal`."""
        return cls(space, Estimates(mean, covariance, diagonal.astype(np.bool_), score), *rest)

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Returns all arrays, None where there is none."""
        sent, rest = self.estimates, (self.error, self.track, self.time_s, self.delay_s)
        return sent.mean, sent.covariance, sent.diagonal, sent.score, *rest

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

    @cached_property
    def statistics(self) -> StageStatistics:
        """Adds the rows up, with how much alike those of a track are."""
        cluster = cluster_id((self.track,))
        cluster[self.track < 0] = ALONE
        return observe(self.space, Binning(), self.error, self.estimates.covariance, cluster)

    @cached_property
    def size(self) -> FloatArray:
        """(K,) mean z²."""
        return np.array([column.mean() for column in self.square.T])

    @cached_property
    def size_deviation(self) -> FloatArray:
        """(K,) standard deviation of ln mean z², by tracks; NaN where they do not tell.

        Half of a 95 % interval over 1.96, so that few tracks have a large one.
        """
        number, _ = numbered_objects(self.track)
        found = []
        for column in self.square.T:
            lower, upper = ratio_interval(column, number)
            whole = 0 < lower < upper
            found.append(np.log(upper / lower) / (2 * 1.96) if whole else np.nan)
        return np.array(found)

    @property
    def square(self) -> FloatArray:
        """(n, K) z², finite."""
        return np.square(self._normalised)

    @property
    def _normalised(self) -> FloatArray:
        return np.clip(self.error / self.deviation, -_LARGEST, _LARGEST)


@dataclass(frozen=True)
class FitSums:
    """Sums over usable detections with ground truth, in place of the rows.

    What they say of tracks is by the pairs of rows in one track, as the sidecar that counted them
    has told tracks apart: see statistics/clusters.py.
    """

    statistics: StageStatistics

    @classmethod
    def of(cls, space: Space, binning: Binning, parts: Iterable[StageStatistics]) -> FitSums:
        """Adds up sums; where more was retracted than came there are none."""
        none = no_stage_statistics(space, binning)
        found = reduce(StageStatistics.merge, parts, none)
        return cls(found if found.n > 0 else none)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.statistics.n

    @cached_property
    def tracks(self) -> int:
        """Number of tracks of equal length that would share as many pairs; never too high.

        (Σ n_t)² / Σ n_t², n_t rows a track, with Σ n_t² = n + 2 pairs.
        """
        return round(self.n**2 / (self.n + 2 * max(self.statistics.pairs, 0))) if self.n else 0

    @cached_property
    def size_weight(self) -> FloatArray:
        """Weight of a row where sizes of errors are fitted, (K,) in (0, 1]: n_eff / n."""
        return self._measured("n_eff") / self.n if self.n else np.ones(self.statistics.space.k)

    @property
    def weight(self) -> float:
        """Weight of a row for the sizes of errors in every dimension: the least, in (0, 1]."""
        return float(self.size_weight.min())

    @cached_property
    def kurtosis(self) -> FloatArray:
        """(K,) of the errors, by the histogram of z²."""
        return self._measured("kurtosis")

    @cached_property
    def size(self) -> FloatArray:
        """(K,) mean z²; 0 without rows."""
        return np.diagonal(self.statistics.normalised) / max(self.n, 1)

    @cached_property
    def size_deviation(self) -> FloatArray:
        """(K,) standard deviation of ln mean z²; NaN where tracks do not tell.

        The variance of a mean of squares is (κ − 1)/n_eff of its square. As with rows, few tracks
        make it larger.
        """
        if self.tracks < 2:
            return np.full(self.statistics.space.k, np.nan)
        few = stdtrit(max((self.tracks - 1) / 2, 1.0), 0.975) / 1.96
        rows = self.n * self.size_weight
        deviation: FloatArray = few * np.sqrt(np.maximum(self.kurtosis - 1.0, 0.0) / rows)
        return deviation

    def _measured(self, name: str) -> FloatArray:
        found = read(self.statistics, BinCut(1)).dimensions
        return np.array([getattr(found[one], name) for one in self.statistics.space.names])


# What a fit of sizes alone needs: either tells what the other does.
Evidence: TypeAlias = FitRows | FitSums


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


def unlike(own: Evidence, wider: Evidence) -> float:
    """Measures how much more two groups differ in the size of errors than chance explains.

    The mean over dimensions of d²/v. d is the difference in ln mean z², v the variance of that of
    the group itself. About 1 where they do not differ; 0 where v is not known.
    """
    deviation = own.size_deviation
    if not (deviation > 0).all():
        return 0.0
    return float(np.mean(np.square(np.log(own.size / wider.size) / deviation)))


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
