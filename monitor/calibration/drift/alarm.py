"""Alarms, and how the evidence of a slice stands, as they are told to people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from monitor.calibration.drift.charts import Detector, Direction, Severity, Stage
from monitor.calibration.drift.reference import Origin


@dataclass(frozen=True, slots=True)
class Scale:
    """√(mean NEES/K): by how much σ is too small, with its 95 % interval; NaN where unknown."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """Evidence that has reached what the budget demands.

    slice        'total': no slice alone, but all of them together
    detector     that has most of the evidence
    stage, direction
                 what is wrong
    evidence     M, in hours; threshold is T
    event_ns     event time of the truth that tipped it
    since_ns     estimate of when it began, in event time: of the last frame before it
    detections   with truth after that frame, up to the one that tipped it
    tracks       that had truth in that time, 1,024 at most; 0: none are known
    labelled     detections with truth in the slice, in all of the epoch
    scale        since then
    epoch        of the slice, counted from 0
    driven       hours of driving when it was raised, of all there have been
    """

    slice: str
    severity: Severity
    stage: Stage
    detector: Detector
    direction: Direction
    evidence: float
    threshold: float
    event_ns: int
    since_ns: int
    detections: int
    tracks: int
    labelled: int
    scale: Scale
    epoch: int
    driven: float


class Why(StrEnum):
    """What became of an alarm."""

    RAISED = "raised"
    ACKNOWLEDGED = "acknowledged"  # by somebody
    NEW_EPOCH = "new_epoch"  # another recalibrator serves the slice
    CALM = "calm"  # nothing came of it for a stated time


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm that was raised, or is over.

    concerned  slices that may be meant as well: the k-th largest M is at least T / k
    actor      who or what did it
    """

    why: Why
    alarm: Alarm
    concerned: tuple[str, ...] = ()
    actor: str = "drift"


class DriftState(IntEnum):
    """How a slice stands; the values of the metric."""

    OK = 0
    WARNING = 1  # a tenth of what an alarm needs
    ALARM = 2  # until it is acknowledged, a new epoch, or calm
    TOO_FEW = 3  # fewer than 100 labelled detections


@dataclass(frozen=True, slots=True)
class SliceStanding:
    """How one slice stands under one severity, or all of them together as 'total'.

    evidence      M, in hours, as of now
    peak          its maximum since the last acknowledgement, epoch or calm; of 'total': since that
                  of any slice
    alarm         that stays; None where there is none
    """

    slice: str
    severity: Severity
    state: DriftState
    evidence: float
    peak: float
    threshold: float
    alarm: Alarm | None


class Counted(StrEnum):
    """What counts as one observation by now."""

    TRACK_SECOND = "track-second"
    DETECTION = "detection"
    TRACK = "track"
    FRAME = "frame"  # no tracks are known: its detections are one


@dataclass(frozen=True, slots=True)
class StageStanding:
    """What is known of one slice at one stage.

    scale              since the evidence against it began to rise
    effective_ratio    independent detections that one of it is worth
    reference          where what is usual comes from
    reference_tracks   it is known from, and detections
    reference_detections
    """

    slice: str
    stage: Stage
    scale: Scale
    effective_ratio: float
    reference: Origin
    reference_tracks: int
    reference_detections: int
    unit: Counted


@dataclass(frozen=True, slots=True)
class AlarmCount:
    """How often alarms were raised, of any slice."""

    stage: Stage
    detector: Detector
    direction: Direction
    alarms: int


@dataclass(frozen=True, slots=True)
class DriftReading:
    """All of it, as of one moment.

    driven     hours of driving that were watched
    left_out   detections with truth that were not watched, by why
    epochs     by slice
    """

    standings: tuple[SliceStanding, ...] = ()
    stages: tuple[StageStanding, ...] = ()
    counts: tuple[AlarmCount, ...] = ()
    epochs: tuple[tuple[str, int], ...] = ()
    driven: float = 0.0
    left_out: tuple[tuple[str, int], ...] = ()
    store_failures: int = 0
