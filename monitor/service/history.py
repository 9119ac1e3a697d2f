"""Remembers the last hour of every slice for the status page, in bounded memory.

A slice has a point each ten seconds, as a row of one small array that is replaced and never
changed, so that a thread may draw it while the next point is taken: 360 rows of 7 doubles are 20 kB
a slice, 10 MB for the 512 slices that there can be.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.drift.alarms import AlarmChange, AlarmReason, SliceStanding
from monitor.drift.charts import Severity
from monitor.figures.timeline import Mark
from monitor.frames.space import MOST_SLICES, FloatArray
from monitor.pipeline.housekeeping import Events
from monitor.pipeline.streams import Stream
from monitor.promotion.records import Happened, Record
from monitor.statistics.measures import Evaluation
from monitor.statistics.reading import SliceReading

EVERY_SECONDS = 10.0
HOUR = 3600.0
MOST_POINTS = int(HOUR / EVERY_SECONDS)
MOST_MARKS = 512

# Columns of a point: monotonic s; joint NEES/K and ENCE of the worst dimension by stage; hours of
# evidence by severity.
AT, NEES_RAW, NEES_RECALIBRATED, ENCE_RAW, ENCE_RECALIBRATED, PAGE, TICKET = range(7)

# Words and colours of the marks.
_PROMOTIONS = {Happened.PROMOTED: ("promoted", "well"), Happened.ROLLED_BACK: ("rolled back", "")}
SWAPPED = frozenset(word for word, _ in _PROMOTIONS.values())


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a slice ('' for all of them), at a monotonic time in s."""

    slice: str
    mark: Mark


def worst_ence(evaluation: Evaluation) -> float:
    """Returns the largest ENCE of all dimensions; NaN where none is known."""
    found = [one.ence for one in evaluation.dimensions.values() if np.isfinite(one.ence)]
    return max(found, default=np.nan)


@dataclass(slots=True)
class History:
    """Points and moments of the last hour.

    now      monotonic s
    points   (≤360, 7) by slice, oldest first; an array is replaced, never changed
    moments  alarms, promotions and rollbacks, oldest first
    rates    frames a second of each stream between the last two points
    started  when the sidecar was
    began    when the first frame was there; None: there was none
    """

    events: Events
    now: Callable[[], float] = time.monotonic
    points: dict[str, FloatArray] = field(default_factory=dict)
    moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=MOST_MARKS))
    rates: dict[str, float] = field(default_factory=dict)
    started: float = field(init=False)
    began: float | None = None
    _frames: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.now()
        self.events.listen(AlarmChange, self._alarm)
        self.events.listen(Record, self._record)

    def _alarm(self, change: AlarmChange) -> None:
        if change.why is AlarmReason.RAISED:
            word = str(change.alarm.severity)
            self.moments.append(Moment(change.alarm.slice, Mark(self.now(), word, word)))
        elif change.why is AlarmReason.ACKNOWLEDGED:
            self.moments.append(Moment(change.alarm.slice, Mark(self.now(), "acknowledged")))

    def _record(self, record: Record) -> None:
        if record.what in _PROMOTIONS:
            word, kind = _PROMOTIONS[record.what]
            self.moments.append(Moment(record.slice, Mark(self.now(), word, kind)))

    def add(
        self,
        readings: Mapping[str, SliceReading],
        standings: Iterable[SliceStanding],
        streams: Mapping[str, Stream],
    ) -> Generator[None, None, None]:
        """Takes a point of every slice, one a step; of those without a reading it is unknown."""
        now = self.now()
        self._take_rates(now, streams)
        evidence = {(one.slice, one.severity): one.evidence for one in standings}
        names = [*self.points, *(name for name in readings if name not in self.points)]
        for name in names[:MOST_SLICES]:
            point = np.full((1, TICKET + 1), np.nan)
            reading = readings.get(name)
            if reading is not None:
                raw, made = reading.raw, reading.recalibrated
                point[0, NEES_RAW] = raw.joint.nees_over_k
                point[0, NEES_RECALIBRATED] = made.joint.nees_over_k
                point[0, ENCE_RAW], point[0, ENCE_RECALIBRATED] = worst_ence(raw), worst_ence(made)
            point[0, AT] = now
            point[0, PAGE] = evidence.get((name, Severity.PAGE), np.nan)
            point[0, TICKET] = evidence.get((name, Severity.TICKET), np.nan)
            before = self.points.get(name, point[:0])
            self.points[name] = np.concatenate([before[-MOST_POINTS + 1 :], point])
            yield

    def _take_rates(self, now: float, streams: Mapping[str, Stream]) -> None:
        frames = {name: (now, stream.seen.frames) for name, stream in streams.items()}
        for name, (at, count) in frames.items():
            then, before = self._frames.get(name, (at, count))
            if at > then:
                self.rates[name] = (count - before) / (at - then)
        self._frames = frames
        self.rates = {name: rate for name, rate in self.rates.items() if name in frames}
