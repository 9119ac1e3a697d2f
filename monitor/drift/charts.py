"""Charts, the ways to be wrong that drift watches for, and the words in which drift is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np

from monitor.frames.marks import MaybeNan, Schema, between
from monitor.frames.space import BoolArray


class Severity(StrEnum):
    """How soon an alarm asks for somebody."""

    PAGE = "page"  # somebody, now
    TICKET = "ticket"  # somebody, some day


class Direction(StrEnum):
    """How covariances are wrong."""

    OVER = "over"  # overconfident: they are too small
    UNDER = "under"  # underconfident: they are too large

    @property
    def sign(self) -> int:
        """+1 where errors are too large for the covariance, −1 where they are too small."""
        return 1 if self is Direction.OVER else -1


class Stage(IntEnum):
    """Which estimate is looked at; the position in arrays of both."""

    RAW = 0
    RECALIBRATED = 1

    @property
    def label(self) -> str:
        """As in metrics."""
        return self.name.lower()

    @property
    def words(self) -> str:
        """As people read it. What is forwarded may be what was sent, or the identity's."""
        return "as sent" if self is Stage.RAW else "as forwarded"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Schema:
        """Writes a stage as its label."""
        labels: Schema = {"type": "literal", "expected": [stage.label for stage in cls]}
        return between(lambda label: cls[label.upper()], lambda stage: stage.label, labels)


class Detector(StrEnum):
    """Kinds of bets that an alarm can rest on; in the order of `Evidence.shares`."""

    ABSOLUTE = "absolute"  # is it calibrated at all: coverage
    RELATIVE = "relative"  # has it changed since the reference: scale and tails of NEES
    TAIL = "tail"  # are too many far outside, by seconds of tracks
    TRACK = "track"  # has the scale changed, by seconds of tracks
    SHIPPED = "shipped"  # is the scale right, by seconds of tracks and what is shipped of them
    DIMENSION = "dimension"  # has that of one dimension changed
    BIAS = "bias"  # has the mean of one dimension
    CORRELATION = "correlation"  # has how it hangs together with those before it
    CONFIDENCE = "confidence"  # of class probabilities: how often the likeliest class is right


# Detectors of errors that are too large alone.
ONLY_OVER = (Detector.TAIL, Detector.BIAS)


class Quantity(StrEnum):
    """Quantities that an alarm finds wrong, each with a size of its own."""

    SCALE = "scale"  # factor by which σ is too small
    BIAS = "bias"  # mean of truth − detection, in the unit of the dimension
    CORRELATION = "correlation"  # factor by which σ given other dimensions is too small
    TAIL = "tail"  # share of detections outside of what the covariance allows
    CONFIDENCE = "confidence"  # accuracy − stated confidence, of class probabilities


@dataclass(frozen=True, slots=True)
class Chart:
    """One way to be wrong, and its share of the budget of its severity."""

    stage: Stage
    direction: Direction
    severity: Severity
    share: float


CHARTS: tuple[Chart, ...] = (
    Chart(Stage.RECALIBRATED, Direction.OVER, Severity.PAGE, 1.0),
    Chart(Stage.RECALIBRATED, Direction.UNDER, Severity.TICKET, 0.6),
    Chart(Stage.RAW, Direction.OVER, Severity.TICKET, 0.2),
    Chart(Stage.RAW, Direction.UNDER, Severity.TICKET, 0.2),
)

# The charts of each stage, side by side.
CHARTS_OF = {Stage.RECALIBRATED: slice(0, 2), Stage.RAW: slice(2, 4)}
SEVERITIES = tuple(Severity)
DETECTORS = tuple(Detector)


def of_stage(stage: Stage) -> BoolArray:
    """Marks the charts of a stage, (4,)."""
    return np.array([chart.stage is stage for chart in CHARTS])


@dataclass(frozen=True, slots=True)
class Scale:
    """√(mean NEES/K): by how much σ is too small, with its 95 % interval; NaN where unknown."""

    estimate: MaybeNan
    lower: MaybeNan
    upper: MaybeNan


UNKNOWN = Scale(math.nan, math.nan, math.nan)


class Origin(StrEnum):
    """Where a reference comes from."""

    LEARNED = "learned"  # from this sidecar's own stream, in this epoch
    FILE = "file"  # from recorded drives
    SHIPPED = "shipped"  # from simulation: nothing better is known yet
