"""What is watched, and under which budget: charts, detectors and the bets of each.

A chart is one way to be wrong: a stage and a direction. Overconfidence of what is forwarded breaks
the gates of a tracker, so that it has the page and its budget for itself; the rest are tickets, of
which one budget is shared. Raw estimates are watched only where a recalibrator has changed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(StrEnum):
    """What an alarm asks for."""

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


class Detector(StrEnum):
    """What an alarm rests on; in the order of the shares below."""

    ABSOLUTE = "absolute"  # is it calibrated at all: coverage
    RELATIVE = "relative"  # has it changed since the reference: scale and tails of NEES
    TRACK = "track"  # the same, by seconds of tracks


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
SEVERITIES = tuple(Severity)
DETECTORS = tuple(Detector)
