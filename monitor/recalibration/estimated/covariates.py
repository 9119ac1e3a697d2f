"""Reads off the mean and the score of a detection what its errors depend on, and describes errors
in the axes of the sensor or of the object.

A detector without covariances still tells range, score, size and heading. Covariates are functions
of these; dimensions are known by their names when a fit is made, and by their places after it.
Nothing here reads a covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.marks import Count, CountFrom1
from monitor.frames.space import DimensionKind, FloatArray, Space
from monitor.frames.words import Axes
from monitor.recalibration.fit_rows import FitRows, numbered_objects
from monitor.recalibration.recalibrator import (
    Documented,
    InvalidRecalibrator,
    Output,
    Recalibrator,
    UnfitData,
)

# Names of dimensions, and units in which x and y are no position in space.
POSITION = ("x", "y")
SIZES = ("l", "w", "h", "length", "width", "height")
HEADINGS = ("yaw", "heading")
PIXELS = ("px", "pixel", "pixels")

# Nothing is nearer or smaller, for its logarithm.
_LEAST = 1e-9

# A score beyond is none: some detectors write a number of their own where they have no score.
_LARGEST_SCORE = 1e9

# Covariates are looked at within these quantiles of the rows, each track counted once, and within
# so many times the middle half from the median: sizes and scores have errors and outliers too, and
# a slope must not hang on them.
_INNER, _MIDDLES = (0.005, 0.995), 4.0

# A covariate that spreads by less does not vary.
_CONSTANT = 1e-6

# Log variances: of deviations from 1e-12 to 1e12.
LARGEST_LOG = 2 * 12 * float(np.log(10.0))
LogVariance = Annotated[float, Interval(ge=-LARGEST_LOG, le=LARGEST_LOG)]

# Log of how much larger one variance of the pair is than the other, at most: turned beyond it,
# rounding would hide the smaller one.
_MOST_UNEQUAL = 18.0

# By how much correlations are drawn to none when they are served: no rounding makes them singular.
_DRAWN = 1e-6

Correlation = Annotated[float, Interval(ge=-1.0, le=1.0)]
Correlations = Annotated[tuple[tuple[Correlation, ...], ...], Len(1)]


@dataclass(frozen=True, slots=True)
class Layout(Documented):
    """Places of what errors depend on, among the dimensions of a mean.

    position  of x and y, as seen from the sensor; or none
    size      of length, width, height, those that there are
    heading   of the angle, 0 along x and growing towards y; None without one
    axes      of the errors of x and y
    """

    position: Annotated[tuple[Count, ...], Len(0, 2)] = ()
    size: tuple[Count, ...] = ()
    heading: Count | None = None
    axes: Axes = Axes.PLAIN

    def __post_init__(self) -> None:
        if len(set(self.position)) == 1:
            raise InvalidRecalibrator(
                f"'position' is {list(self.position)}: it must hold two places or none"
            )
        missing = _missing(self)
        if missing:
            raise InvalidRecalibrator(f"'axes' is '{self.axes}': it needs '{missing}'")

    @classmethod
    def of(cls, space: Space, axes: Axes | None, *, best: Axes = Axes.SENSOR) -> Layout:
        """Finds the places by the names of the dimensions.

        axes    None: the best that can be made
        best    those of the object or of the sensor
        raises  UnfitData where the axes asked for need a dimension that is not there
        """
        names = space.names
        metric = not any(one.unit in PIXELS for one in space.dimensions if one.name in POSITION)
        position = tuple(names.index(name) for name in POSITION if name in names)
        if len(position) < 2 or not metric:
            position = ()
        angles = (
            i
            for i, one in enumerate(space.dimensions)
            if one.name in HEADINGS and one.kind is not DimensionKind.LENGTH
        )
        size = tuple(i for i, name in enumerate(names) if name in SIZES)
        heading = next(angles, None)
        found = cls(position, size, heading)
        if axes is None:
            possible = (one for one in (best, Axes.SENSOR) if not _missing(found, one))
            axes = next(possible, Axes.PLAIN)
        missing = _missing(found, axes)
        if missing:
            needs = {
                "position": "x and y in metres, as seen from the sensor",
                "heading": f"a heading, an angle that is called {' or '.join(HEADINGS)}",
            }
            raise UnfitData(
                f"axes '{axes}' need {needs[missing]}, and the dimensions are {', '.join(names)}: "
                f"fit with axes '{Axes.PLAIN}', or send the {missing} too."
            )
        return cls(position, size, heading, axes)

    def check_within(self, k: int) -> None:
        """Raises InvalidRecalibrator unless it is of k dimensions."""
        heading = () if self.heading is None else (self.heading,)
        farthest = max((*self.position, *self.size, *heading), default=0)
        if farthest >= k:
            raise InvalidRecalibrator(f"a place is {farthest}: it must be less than {k}")

    @property
    def turns(self) -> bool:
        """Tells whether errors of x and y are described in axes of their own."""
        return self.axes is not Axes.PLAIN

    def direction(self, mean: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Computes cosine and sine of the first axis of each detection against x, both (n,)."""
        if self.axes is Axes.OBJECT:
            assert self.heading is not None
            return np.cos(mean[:, self.heading]), np.sin(mean[:, self.heading])
        _, cosine, sine = self.bearing(mean)
        return cosine, sine

    def bearing(self, mean: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Computes the range of each detection, and cosine and sine of its bearing, all (n,).

        At range 0 these are 1 and 0.
        """
        x, y = (mean[:, i] for i in self.position)
        distance = np.sqrt(x * x + y * y)
        somewhere = distance > 0
        divisor = np.where(somewhere, distance, 1.0)
        return distance, np.where(somewhere, x / divisor, 1.0), y / divisor

    def turned(self, mean: FloatArray, error: FloatArray) -> FloatArray:
        """Describes errors (n, K) in the axes; (K, n)."""
        found = np.array(error.T, order="C")
        if self.turns:
            (cosine, sine), (i, j) = self.direction(mean), self.position
            x, y = error[:, i], error[:, j]
            found[i] = cosine * x + sine * y
            found[j] = cosine * y - sine * x
        return found

    def covariances(
        self, mean: FloatArray, log_variance: FloatArray, correlation: FloatArray
    ) -> FloatArray:
        """Makes covariances (n, K, K) of what is known of the errors in the axes.

        With R by the angle of the first axis, Q Σ Qᵀ, where Q is R for x and y and 1 elsewhere.
        All arithmetic is by element: a detection gives the same bits alone and among others.

        log_variance  (K, n); may be changed
        correlation   (n, K, K), or (K, K) for all, with a diagonal of 1 and symmetric
        """
        if self.turns:
            i, j = self.position
            np.maximum(log_variance[i], log_variance[j] - _MOST_UNEQUAL, out=log_variance[i])
            np.maximum(log_variance[j], log_variance[i] - _MOST_UNEQUAL, out=log_variance[j])
        deviation = np.exp(0.5 * log_variance).T
        made: FloatArray = deviation[:, :, None] * deviation[:, None, :]
        made *= correlation
        if self.turns:
            self._turn_back(made, *self.direction(mean))
        return made

    def _turn_back(self, made: FloatArray, cosine: FloatArray, sine: FloatArray) -> None:
        i, j = self.position
        along, across, both = made[:, i, i].copy(), made[:, j, j].copy(), made[:, i, j].copy()
        first, second = made[:, i].copy(), made[:, j].copy()
        c, s = cosine[:, None], sine[:, None]
        made[:, i] = made[:, :, i] = c * first - s * second
        made[:, j] = made[:, :, j] = s * first + c * second
        cc, ss, cs = cosine * cosine, sine * sine, cosine * sine
        made[:, i, i] = cc * along - 2 * cs * both + ss * across
        made[:, j, j] = ss * along + 2 * cs * both + cc * across
        made[:, i, j] = made[:, j, i] = cs * (along - across) + (cc - ss) * both


@dataclass(frozen=True)
class EstimatedCovariance(Recalibrator):
    """Gives covariances that owe nothing to those that were sent.

    dimensions  K
    layout      where position, sizes and heading stand, and the axes
    """

    dimensions: CountFrom1
    layout: Layout
    output = Output.ESTIMATED

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.dimensions

    def widened(self, factor: float) -> Self:
        """Returns the one whose variances are larger by a factor."""
        raise NotImplementedError


def _missing(layout: Layout, axes: Axes | None = None) -> str:
    """Names what the axes need and the layout has not; '' if it has all."""
    axes = axes or layout.axes
    if axes is not Axes.PLAIN and not layout.position:
        return "position"
    return "heading" if axes is Axes.OBJECT and layout.heading is None else ""


def drawn_to_none(correlation: FloatArray) -> FloatArray:
    """Returns correlations (…, K, K) a little smaller, so that no rounding makes them singular."""
    step = np.arange(correlation.shape[-1])
    drawn: FloatArray = correlation * (1.0 - _DRAWN)
    drawn[..., step, step] = 1.0
    return drawn


def check_correlation(name: str, matrix: Sequence[Sequence[float]], k: int) -> None:
    """Raises InvalidRecalibrator unless it is a k × k matrix of correlations."""
    Documented.check_lengths(name, matrix, [k] * k, "dimensions")
    array = np.array(matrix)
    if not (array == array.T).all() or not (np.diagonal(array) == 1.0).all():
        raise InvalidRecalibrator(f"'{name}' must be symmetric with a diagonal of 1: {matrix}")
    if not np.linalg.eigvalsh(drawn_to_none(array))[0] > 0.1 * _DRAWN:
        raise InvalidRecalibrator(f"'{name}' is not positive definite: {array.tolist()}")


class CovariateKind(StrEnum):
    """Functions of the mean and the score of a detection."""

    LOG_RANGE = "log-range"
    SCORE = "score"
    LOG_SIZE = "log-size"  # of the geometric mean of the sizes
    # Directions count twice: errors are alike ahead and astern. Aspect: heading − bearing.
    COSINE_OF_ASPECT = "cosine-of-twice-aspect"
    SINE_OF_ASPECT = "sine-of-twice-aspect"
    COSINE_OF_BEARING = "cosine-of-twice-bearing"
    SINE_OF_BEARING = "sine-of-twice-bearing"
    COSINE_OF_HEADING = "cosine-of-twice-heading"
    SINE_OF_HEADING = "sine-of-twice-heading"


# Even where left and right change places, or odd.
ODD = frozenset(
    {
        CovariateKind.SINE_OF_ASPECT,
        CovariateKind.SINE_OF_BEARING,
        CovariateKind.SINE_OF_HEADING,
    }
)

_Number = Annotated[float, Interval(ge=-1e12, le=1e12)]


@dataclass(frozen=True, slots=True)
class Covariate(Documented):
    """(g − centre) / scale of a value g that is clipped to the range of the fit first.

    A value that is not known is taken for the mean one.
    """

    kind: CovariateKind
    low: _Number
    high: _Number
    centre: _Number
    scale: Annotated[float, Interval(ge=1e-9, le=1e12)]

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise InvalidRecalibrator(f"'low' {self.low} and 'high' {self.high}: not in order")
        if max(abs(self.low - self.centre), abs(self.high - self.centre)) > 1e6 * self.scale:
            raise InvalidRecalibrator(f"'scale' is {self.scale}: too small for the range")

    def of(self, value: FloatArray) -> FloatArray:
        """Clips and standardises values of its kind, (n,)."""
        found = np.clip(value, self.low, self.high)
        found -= self.centre
        found /= self.scale
        found[np.isnan(found)] = 0.0
        return found


def values_of(layout: Layout, estimates: Estimates) -> dict[CovariateKind, FloatArray]:
    """Computes what the means and scores tell, (n,) each.

    NaN where there is no score, or none that is one, and where a size is not positive.
    """
    kind, mean = CovariateKind, estimates.mean
    found: dict[CovariateKind, FloatArray] = {}
    if estimates.score is not None:
        usable = np.abs(estimates.score) <= _LARGEST_SCORE
        found[kind.SCORE] = np.where(usable, estimates.score, np.nan)
    if layout.size:
        sizes = np.zeros(mean.shape[0])
        for place in layout.size:
            size = mean[:, place]
            sizes += np.log(np.where(size > 0, size, np.nan))
        found[kind.LOG_SIZE] = sizes / len(layout.size)
    if not layout.position:
        return found
    distance, c, s = layout.bearing(mean)
    found[kind.LOG_RANGE] = np.log(np.maximum(distance, _LEAST))
    cosine, sine = c * c - s * s, 2 * s * c
    if layout.axes is Axes.PLAIN:
        found[kind.COSINE_OF_BEARING], found[kind.SINE_OF_BEARING] = cosine, sine
    if layout.heading is not None:
        twice = 2.0 * mean[:, layout.heading]
        ahead, aside = np.cos(twice), np.sin(twice)
        if layout.axes is Axes.PLAIN:
            found[kind.COSINE_OF_HEADING], found[kind.SINE_OF_HEADING] = ahead, aside
        found[kind.COSINE_OF_ASPECT] = ahead * cosine + aside * sine
        found[kind.SINE_OF_ASPECT] = aside * cosine - ahead * sine
    return found


def covariates_of(layout: Layout, rows: FitRows) -> tuple[Covariate, ...]:
    """Lists the covariates that vary over the rows, each track counted once."""
    weight = by_track(rows)
    values = values_of(layout, rows.estimates)
    found = (_covariate(kind, value, weight) for kind, value in values.items())
    return tuple(one for one in found if one is not None)


def by_track(rows: FitRows) -> FloatArray:
    """Weighs rows, (n,), the same for every track; their sum is 1."""
    number, tracks = numbered_objects(rows.track)
    weight: FloatArray = 1.0 / (np.bincount(number)[number] * tracks)
    return weight


def _covariate(kind: CovariateKind, value: FloatArray, weight: FloatArray) -> Covariate | None:
    there = np.isfinite(value)
    if not there.any():
        return None
    value, weight = value[there], weight[there] / weight[there].sum()
    low, high = _usual_range(value, weight)
    value = np.clip(value, low, high)
    centre = float(weight @ value)
    scale = float(np.sqrt(weight @ np.square(value - centre)))
    if not scale > _CONSTANT * max(1.0, abs(centre)):
        return None
    if kind not in (CovariateKind.LOG_RANGE, CovariateKind.SCORE, CovariateKind.LOG_SIZE):
        low, high, centre, scale = -1.0, 1.0, 0.0, 1.0
    return Covariate(kind, low, high, centre, scale)


def _usual_range(value: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Finds the range of values (n,) without outliers; weights (n,) of them add up to 1."""
    order = np.argsort(value, kind="stable")
    below = np.cumsum(weight[order]) - 0.5 * weight[order]
    levels = (_INNER[0], 0.25, 0.5, 0.75, _INNER[1])
    least, first, median, third, most = np.interp(levels, below, value[order]).tolist()
    reach = _MIDDLES * (third - first) or np.inf
    return max(least, median - reach), min(most, median + reach)


def columns(
    covariates: Sequence[Covariate], layout: Layout, estimates: Estimates
) -> list[FloatArray]:
    """Computes covariates of estimates, (n,) each; 0 where the estimates do not tell."""
    values = values_of(layout, estimates)
    nothing = np.zeros(estimates.mean.shape[0])
    return [one.of(values[one.kind]) if one.kind in values else nothing for one in covariates]
