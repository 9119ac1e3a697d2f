"""The features of an estimate that a Gaussian process looks at.

They are standardised, and never outside of the range that was seen in the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.marks import Count
from monitor.frames.space import Dimension, DimensionKind, FloatArray, IntArray
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Documented, InvalidRecalibrator

# A feature whose spread is this small against its size does not vary.
CONSTANT = 1e-9

# Standardised values beyond this are not told apart.
FARTHEST = 1e6


class FeatureKind(StrEnum):
    """Functions of one dimension of an estimate."""

    MEAN = "mean"
    LOG_MEAN = "log-mean"  # of sizes and the like: positive throughout the fit
    LOG_DEVIATION = "log-deviation"
    COSINE = "cosine"  # an angle by these two has no jump
    SINE = "sine"
    COSINE_OF_TWICE = "cosine-of-twice"  # a direction without a sign
    SINE_OF_TWICE = "sine-of-twice"


@dataclass(frozen=True, slots=True)
class Feature(Documented):
    """(g(v) − centre) / scale of a value v that is clipped to [low, high] first.

    dimension   position of it
    low, high   range in the fit, in the unit of the dimension
    centre      of g over the rows of the fit
    scale       standard deviation of g over them, positive
    """

    kind: FeatureKind
    dimension: Count
    low: float
    high: float
    centre: float
    scale: float

    def __post_init__(self) -> None:
        if not self.low <= self.high or not self.scale > 0:
            raise InvalidRecalibrator(
                f"'low' {self.low}, 'high' {self.high} and 'scale' {self.scale}: low may "
                "not be above high, and scale must be positive"
            )
        if self.kind in _LOGS and not self.low > 0:
            raise InvalidRecalibrator(
                f"'low' is {self.low}: it must be positive for kind '{self.kind}'"
            )
        ends = _curved(self.kind, np.array([self.low, self.high]))
        if not (np.abs(ends - self.centre) <= 2 * FARTHEST * self.scale).all():
            raise InvalidRecalibrator(
                f"'scale' is {self.scale}: too small for the range {self.low} to "
                f"{self.high} about {self.centre}"
            )


@dataclass(frozen=True)
class Inputs:
    """Features of estimates; without features a process is constant."""

    features: tuple[Feature, ...]

    def of(self, estimates: Estimates) -> FloatArray:
        """(n, D) standardised, within the range of the fit: finite, whatever the estimates."""
        values = np.empty((len(self.features), estimates.mean.shape[0]))
        for row, feature in zip(values, self.features, strict=True):
            row[:] = _raw(feature.kind, feature.dimension, estimates)
        low, high, centre, scale = self._columns
        np.clip(values, low, high, out=values)
        if self._logs.size:
            values[self._logs] = np.log(values[self._logs])
        values -= centre
        values /= scale
        return values.T

    @cached_property
    def _columns(self) -> FloatArray:
        """(4, D, 1)"""
        return np.array([[f.low, f.high, f.centre, f.scale] for f in self.features]).T.reshape(
            4, len(self.features), 1
        )

    @cached_property
    def _logs(self) -> IntArray:
        return np.flatnonzero([feature.kind in _LOGS for feature in self.features])


def candidate_inputs(rows: FitRows) -> Inputs:
    """Lists every mean (its log where all means of the dimension are positive, its cosine and sine
    where it is an angle) and every log σ; none that does not vary over the rows."""
    kinds = [
        (kind, i)
        for i, dimension in enumerate(rows.space.dimensions)
        for kind in _of_mean(dimension, rows.estimates.mean[:, i])
    ]
    kinds += [(FeatureKind.LOG_DEVIATION, i) for i in range(rows.space.k)]
    found = (_feature(kind, i, rows.estimates) for kind, i in kinds)
    return Inputs(tuple(feature for feature in found if feature is not None))


_LOGS = (FeatureKind.LOG_MEAN, FeatureKind.LOG_DEVIATION)


def _of_mean(dimension: Dimension, mean: FloatArray) -> tuple[FeatureKind, ...]:
    if dimension.kind is DimensionKind.ANGLE:
        return FeatureKind.COSINE, FeatureKind.SINE
    if dimension.kind is DimensionKind.ANGLE_MODULO_PI:
        return FeatureKind.COSINE_OF_TWICE, FeatureKind.SINE_OF_TWICE
    return (FeatureKind.LOG_MEAN if (mean > 0).all() else FeatureKind.MEAN,)


def _feature(kind: FeatureKind, dimension: int, estimates: Estimates) -> Feature | None:
    """Standardised over the estimates; None where it does not vary."""
    raw = _raw(kind, dimension, estimates)
    value = _curved(kind, raw)
    centre, scale = float(value.mean()), float(value.std())
    # All but the means have no unit, so that 1 is a size to them.
    size = max(float(np.abs(value).max()), 0.0 if kind is FeatureKind.MEAN else 1.0)
    if not scale > CONSTANT * size:
        return None
    return Feature(kind, dimension, float(raw.min()), float(raw.max()), centre, scale)


def _raw(kind: FeatureKind, dimension: int, estimates: Estimates) -> FloatArray:
    if kind is FeatureKind.LOG_DEVIATION:
        return np.sqrt(estimates.covariance[:, dimension, dimension])
    mean = estimates.mean[:, dimension]
    if kind in (FeatureKind.COSINE_OF_TWICE, FeatureKind.SINE_OF_TWICE):
        mean = 2.0 * mean
    if kind in (FeatureKind.COSINE, FeatureKind.COSINE_OF_TWICE):
        return np.cos(mean)
    return np.sin(mean) if kind in (FeatureKind.SINE, FeatureKind.SINE_OF_TWICE) else mean


def _curved(kind: FeatureKind, raw: FloatArray) -> FloatArray:
    return np.log(raw) if kind in _LOGS else raw
