"""Alarms of drift: what one says, which are latched, in which words they are told.

An alarm is raised once, and stays until somebody acknowledges it, another epoch begins, or nothing
came of it for a stated time. When an alarm is raised is not decided here.

What becomes of an alarm afterwards is said in Alarms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated

import numpy as np
from annotated_types import Len

from monitor.drift.charts import (
    CHARTS,
    ONLY_OVER,
    Detector,
    Direction,
    Origin,
    Quantity,
    Scale,
    Severity,
    Stage,
)
from monitor.frames.marks import Count, MaybeNan, Nanoseconds, NotNegative
from monitor.frames.slices import TOTAL

# Characters of the name of a slice; longer ones are not kept.
LONGEST_NAME = 4096
SliceName = Annotated[str, Len(1, LONGEST_NAME)]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Evidence that has reached what the budget demands.

    slice        'total': no slice alone, but all of them together
    detector     that has most of the evidence
    stage, direction
                 of the covariances that are wrong
    dimension    that is wrong, or several: "x", "x, y"; '' all together
    quantity     of it that is wrong: the simplest cause that explains the evidence, see causes.py
    size         of the error, as Quantity says; of scale √(mean z²) of the dimension, or of all;
                 of correlation √(mean u²/mean z²), u of the dimension given those before it: 1 as
                 stated; NaN: unknown
    unit         of the size; '' where it has none
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

    slice: SliceName
    severity: Severity
    stage: Stage
    detector: Detector
    direction: Direction
    dimension: str
    quantity: Quantity
    size: MaybeNan
    unit: str
    evidence: NotNegative
    threshold: NotNegative
    event_ns: Nanoseconds
    since_ns: Nanoseconds
    detections: Count
    tracks: Count
    labelled: Count
    scale: Scale
    epoch: Count
    driven: NotNegative


class AlarmReason(StrEnum):
    """Reasons for which an alarm is told: it was raised, or why it is over."""

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

    why: AlarmReason
    alarm: Alarm
    concerned: tuple[str, ...] = ()
    actor: str = "drift"


class DriftState(IntEnum):
    """How a slice stands; the values of the metric."""

    OK = 0
    WARNING = 1  # a tenth of what an alarm needs
    ALARM = 2  # until it is acknowledged, a new epoch, or calm
    TOO_FEW = 3  # fewer than 100 labelled detections were watched, or more were left out


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
    """Units that count as one observation by now."""

    TRACK_SECOND = "track-second"
    DETECTION = "detection"
    TRACK = "track"  # a whole one: of class probabilities
    FRAME = "frame"  # no tracks are known: its detections are one


@dataclass(frozen=True, slots=True)
class StageStanding:
    """Facts that evidence rests on, of one slice at one stage.

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
    alarms: Count


@dataclass(frozen=True, slots=True)
class DriftReading:
    """All that is told of drift, as of one moment.

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


# With the stage: that a recalibrator has much to compensate must not hide that it fails.
Key = tuple[str, Severity, Stage]
Raised = tuple[Stage, Detector, Direction]


def key_of(alarm: Alarm) -> Key:
    """Returns the key under which an alarm stays."""
    return alarm.slice, alarm.severity, alarm.stage


@dataclass(frozen=True, slots=True)
class Latched:
    """An alarm that stays.

    since_s  s of driving, with truth of its slice, when it was last raised
    """

    alarm: Alarm
    since_s: NotNegative


@dataclass(slots=True)
class Alarms:
    """Latched alarms: at most one of each slice, severity and stage.

    counts  how often one was raised, of any slice, by what
    """

    latched: dict[Key, Latched] = field(default_factory=dict)
    counts: dict[Raised, int] = field(default_factory=dict)

    def raised(self, alarm: Alarm, driven_s: float, concerned: Sequence[str]) -> list[AlarmChange]:
        """Latches an alarm; one that is latched already only stays longer, and is not told."""
        key = key_of(alarm)
        known = self.latched.get(key)
        self.latched[key] = Latched(alarm if known is None else known.alarm, driven_s)
        if known is not None:
            return []
        what = alarm.stage, alarm.detector, alarm.direction
        self.counts[what] = self.counts.get(what, 0) + 1
        return [AlarmChange(AlarmReason.RAISED, alarm, tuple(concerned))]

    def over(
        self, keys: Iterable[Key], why: AlarmReason, actor: str = "drift"
    ) -> list[AlarmChange]:
        """Ends the alarms that are latched under these keys."""
        found = [self.latched.pop(key, None) for key in keys]
        return [AlarmChange(why, one.alarm, actor=actor) for one in found if one is not None]

    def of_slices(self, slices: Collection[str]) -> list[Key]:
        """Lists the keys of some slices; of all where none is named."""
        return [key for key in self.latched if not slices or key[0] in slices]

    def slices(self, stage: Stage | None = None) -> frozenset[str]:
        """Returns the slices with an alarm, of a stage or of any."""
        return frozenset(key[0] for key in self.latched if stage is None or key[2] is stage)

    def of(self, slice: str, severity: Severity) -> Alarm | None:
        """Returns the latched alarm of a slice, rather that of what is forwarded, or None."""
        keys = [(slice, severity, stage) for stage in (Stage.RECALIBRATED, Stage.RAW)]
        return next((self.latched[key].alarm for key in keys if key in self.latched), None)

    def told(self) -> tuple[AlarmCount, ...]:
        """Tells how often alarms were raised, of every kind; zeros too."""
        return tuple(AlarmCount(*what, self.counts.get(what, 0)) for what in raised_ever())


def raised_ever() -> Iterator[Raised]:
    """Lists the kinds of alarms that there may be: no tail or bias makes errors too small."""
    for chart in CHARTS:
        for detector in Detector:
            if chart.direction is Direction.OVER or detector not in ONLY_OVER:
                yield chart.stage, detector, chart.direction


# Why no bet uses a labelled detection at all: what happened, and what to do. Those that are
# superseded are no loss: another recalibrator is active.
_LEFT_OUT = {
    "late": "behind newer labels of their stream: send the labels of a stream in the order of its "
    "frames, or raise [pending] max_disorder_seconds above how far they come behind",
    "undated": "of frames without a believable capture time: send stamp_ns",
    "overload": "more than can wait: send labels as they come, not in bursts",
    "failed": "taken in at a fault: see the log of the sidecar",
}


def left_out_sentence(left_out: Mapping[str, int]) -> str:
    """Says how many labelled detections no bet has used, why, and what to do; empty if none.

    left_out  by reason; reasons that are no loss are not told
    """
    found = {why: n for why in _LEFT_OUT if (n := left_out.get(why, 0)) > 0}
    if not found:
        return ""
    reasons = "; ".join(f"{n:,} {why} ({_LEFT_OUT[why]})" for why, n in found.items())
    return f"drift has left out {_count(sum(found.values()), 'labelled detection')}: {reasons}"


# Hours beyond these are told by their power of ten alone.
FEWEST_HOURS, MOST_HOURS = 1e-3, 1e6

# A clock that shows less is counted from the start of something: a drive, or a machine. ns.
WALL_CLOCK = 10**17
_WRONG = {Direction.OVER: "overconfident", Direction.UNDER: "underconfident"}


def change_sentence(change: AlarmChange) -> str:
    """Says in a sentence what became of an alarm, by whom, and the alarm itself."""
    what = alarm_sentence(change.alarm)
    match change.why:
        case AlarmReason.RAISED:
            concerned = f"; slices that may be meant as well: {', '.join(change.concerned)}"
            return f"raised: {what}{concerned if change.concerned else ''}"
        case AlarmReason.ACKNOWLEDGED:
            return f"over, acknowledged by {change.actor}: {what}"
        case AlarmReason.NEW_EPOCH:
            return f"over, another recalibrator serves the slice: {what}"
        case AlarmReason.CALM:
            return f"over, nothing came of it: {what}"


def alarm_sentence(alarm: Alarm) -> str:
    """Says in a sentence what is wrong, since when, and how sure that is.

    page: Car, overconfident as forwarded: standard deviations 2.2 times too small (1.9 to 2.6)
    since 12.3 s, 7 tracks, 214 detections; raised on evidence that healthy driving gives once in
    1,030 h at most (threshold 1,000 h, drift detector track)
    """
    slice = "all slices together" if alarm.slice == TOTAL else alarm.slice
    seen = [_count(alarm.tracks, "track")] if alarm.tracks else []
    seen.append(_count(alarm.detections, "detection"))
    return (
        f"{alarm.severity}: {slice}, {how_wrong(alarm)} {alarm.stage.words}: {error_of(alarm)} "
        f"since {moment(alarm.since_ns)}, {', '.join(seen)}; raised on evidence that healthy "
        f"driving gives once in {hours(alarm.evidence)} at most (threshold "
        f"{hours(alarm.threshold)}, drift detector {alarm.detector})"
    )


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}{'' if number == 1 else 's'}"


def how_wrong(alarm: Alarm) -> str:
    """Says in a word how estimates are wrong."""
    return "biased" if alarm.quantity is Quantity.BIAS else _WRONG[alarm.direction]


def error_of(
    alarm: Alarm,
    text: str = "standard deviations {factor} times {way}",
    to: str = " to ",
    unknown: str = "standard deviations off by an unknown factor",
    *,
    interval: bool = True,
) -> str:
    """Says what is wrong and by how much: y: standard deviations 3.1 times too small.

    text, to, unknown  of standard deviations, as size_of_error has them
    interval           is told where it is known: of all dimensions together
    """
    size, dimension = alarm.size, alarm.dimension
    known = math.isfinite(size)
    match alarm.quantity:
        case Quantity.SCALE if dimension:
            return f"{dimension}: {size_of_error(_bare(size), text, to, unknown)}"
        case Quantity.SCALE:
            scale = alarm.scale if interval else _bare(alarm.scale.estimate)
            return size_of_error(scale, text, to, unknown)
        case Quantity.BIAS:
            amount = f"{'−' if size < 0 else '+'}{_figures(abs(size))} {alarm.unit}".rstrip()
            by = f"{amount} (true − reported)" if known else "an unknown amount"
            return f"{dimension or 'means'} off by {by}"
        case Quantity.CORRELATION:
            of = f"{dimension or 'dimensions'} given the dimensions before it"
            by = size_of_error(_bare(size), "σ {factor} times {way}", unknown="σ is wrong")
            too_large = alarm.direction is Direction.OVER
            why = "is not there" if too_large else "is less than the true one"
            return f"{of}: {by}, the stated correlation {why}"
        case Quantity.TAIL:
            share = f"{_figures(100 * size)} %" if known else "an unknown share"
            of = f" of {dimension}" if dimension else ""
            return f"{share} of detections outside what the covariance{of} allows"
        case Quantity.CONFIDENCE:
            by = f"{_figures(100 * abs(size))} points" if known else "an unknown number of points"
            return f"accuracy {by} {'above' if size > 0 else 'below'} the stated confidence"


def _bare(estimate: float) -> Scale:
    return Scale(estimate, math.nan, math.nan)


def size_of_error(
    scale: Scale,
    text: str = "{factor} times {way}",
    to: str = " to ",
    unknown: str = "off by an unknown factor",
) -> str:
    """Says how standard deviations are wrong: 2.2 times too small (1.9 to 2.6).

    text     of the factor by which they are, at least 1, and of the way: too small or too large
    to       stands between the ends of its interval
    unknown  where the factor is unknown
    """
    if not _known(scale.estimate):
        return unknown
    small = scale.estimate >= 1
    way = "too small" if small else "too large"
    said = text.format(factor=_factor(scale.estimate, small), way=way)
    if not (_known(scale.lower) and _known(scale.upper)):
        return said
    ends = [_factor(end, small) for end in (scale.lower, scale.upper)]
    return f"{said} ({to.join(ends if small else reversed(ends))})"


def _known(value: float) -> bool:
    return 0 < value < math.inf


def _factor(scale: float, small: bool) -> str:
    return _figures(scale if small else 1 / scale)


def _figures(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def hours(value: float) -> str:
    """Writes hours: 1,030 h; 10^12.3 h where the number would be a row of digits."""
    if value == 0:
        return "0 h"
    if not FEWEST_HOURS <= value < MOST_HOURS:
        return f"10^{power_of_ten(value)} h"
    return f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def power_of_ten(value: float) -> str:
    """Writes log10 with one decimal; -∞ of 0."""
    return f"{math.log10(value):.1f}" if value else "-∞"


def moment(time_ns: int) -> str:
    """Writes an event time: date and time of a wall clock (UTC), else the seconds that it shows."""
    if abs(time_ns) < WALL_CLOCK:
        return f"{time_ns / 1e9:,.1f} s"
    return str(np.datetime64(time_ns // 10**8 * 100, "ms")).replace("T", " ")[:-2]
