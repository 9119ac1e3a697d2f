"""The observations that two looks at a sidecar made, with the clock of who looked.

Metrics are values by labels; an increase is what was added between the looks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.drift.alarms import SliceStanding
from monitor.frames.status import Status, StreamStatus
from monitor.promotion.records import TrialStanding

_PREFIX = "calibration_"

# Labels of one series.
Labels = Mapping[str, str]
SECOND_NS = 10**9

# A stream, or all of them, that have sent nothing for so many seconds are silent.
SILENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one look; names go without calibration_, those of processes as they are.

    families  by full name: the series, each with its labels
    """

    families: Mapping[str, tuple[tuple[Labels, float], ...]] = field(default_factory=dict)

    def rows(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        """All series of a name with these labels; none where there is no such name."""
        full = name if name.startswith("process_") else _PREFIX + name
        found = self.families.get(full, ())
        return [row for row in found if labels.items() <= row[0].items()]

    def value(self, name: str, **labels: str) -> float:
        """Sum over the series with these labels; NaN where there is none."""
        found = [value for _, value in self.rows(name, **labels)]
        return sum(found) if found else math.nan

    def words(self, name: str, label: str, **labels: str) -> list[str]:
        """Values of a label over the series with these labels, sorted; '' where it is missing."""
        return sorted(has.get(label, "") for has, _ in self.rows(name, **labels))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by a label."""
        found: dict[str, float] = {}
        for has, value in self.rows(name):
            word = has.get(label, "")
            found[word] = found.get(word, 0.0) + value
        return found


class Answer(StrEnum):
    """How it went with one question."""

    GIVEN = "given"
    CLOSED = "closed"  # nothing listens there
    NOWHERE = "nowhere"  # there is no such host, or no way to it
    SILENT = "silent"  # no answer in time
    FOREIGN = "foreign"  # something listens that does not speak as a sidecar does
    OTHER_PORT = "other_port"  # HTTP where gRPC is asked for, or gRPC where HTTP is
    NO_TRUST = "no_trust"  # the certificates do not fit together
    NO_TOKEN = "no_token"  # none that is known there
    NO_RIGHT = "no_right"  # a token of another right
    UNKNOWN = "unknown"  # the sidecar is older than the question
    FAILED = "failed"  # anything else


@dataclass(frozen=True, slots=True)
class Asked:
    """How it went, and what was said to it; '' where it was answered."""

    answer: Answer
    words: str = ""

    @property
    def given(self) -> bool:
        """Tells if there was an answer."""
        return self.answer is Answer.GIVEN

    @property
    def no_right(self) -> bool:
        """Tells if a token of another right is needed."""
        return self.answer in (Answer.NO_TOKEN, Answer.NO_RIGHT)


GIVEN = Asked(Answer.GIVEN)


@dataclass(slots=True)
class Look:
    """At one moment; look.py fills it in.

    at_s          of a clock that never moves back
    clock_ns      our wall clock, halfway between the question for the status and its answer
    round_trip_s  between them
    text          a number that tells one text of /metrics from another; 0: there was none
    """

    at_s: float = 0.0
    samples: Samples | None = None
    status: Status | None = None
    clock_ns: int = 0
    round_trip_s: float = 0.0
    text: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in the configuration; the defaults where it could not be read."""

    pending_bytes: int = 256 * 2**20
    disk_bytes: int = 2 * 2**30
    on_disk: bool = True
    streams: int = 64


@dataclass(slots=True)
class Observation:
    """All of it; look.py fills it in.

    address, http_address    that were asked
    version                  of who looked
    http, metrics            how it went with HTTP at all, and with its /metrics
    ready                    what /readyz said; None: nothing
    grpc, status, drift, recalibrators
                             how it went with gRPC at all, and with three of its questions
    serving                  what its health said
    first, last              the looks
    standings                of drift
    trials, pinned           of recalibrators; None: not known
    truth_within_s           seconds within which truth is due
    """

    address: str
    http_address: str
    version: str
    http: Asked = GIVEN
    metrics: Asked = GIVEN
    ready: bool | None = True
    grpc: Asked = GIVEN
    serving: bool = True
    status: Asked = GIVEN
    drift: Asked = GIVEN
    recalibrators: Asked = GIVEN
    first: Look = field(default_factory=Look)
    last: Look = field(default_factory=Look)
    standings: tuple[SliceStanding, ...] = ()
    trials: tuple[TrialStanding, ...] = ()
    pinned: bool | None = None
    limits: Limits = Limits()
    truth_within_s: float = 1800.0

    @property
    def seconds(self) -> float:
        """Seconds between the looks; 0 after one."""
        return max(0.0, self.last.at_s - self.first.at_s) if self.first.at_s else 0.0

    @property
    def now(self) -> Samples:
        """Metrics of the last look; without any value where they were not seen."""
        return self.last.samples or Samples()

    @property
    def was(self) -> Samples:
        """Metrics of the first look; those of the last one where they were seen once."""
        return self.first.samples or self.now

    def increase(self, name: str, **labels: str) -> float:
        """Increase of a counter; one that fell was begun anew. NaN where it is not there."""
        before, after = self.was.value(name, **labels), self.now.value(name, **labels)
        return after if math.isnan(before) or after < before else after - before

    def increases(self, name: str, label: str) -> dict[str, float]:
        """Increases of a counter, by a label."""
        before = self.was.by(name, label)
        return {
            word: after if after < before.get(word, 0.0) else after - before.get(word, 0.0)
            for word, after in self.now.by(name, label).items()
        }

    def quantile(self, name: str, level: float) -> float:
        """Upper bound of the bucket of a histogram with this quantile of what was added; NaN
        where nothing was.
        """
        added = self.increases(f"{name}_bucket", "le")
        buckets = sorted((float(bound), number) for bound, number in added.items())
        most = buckets[-1][1] if buckets else 0.0
        if not most > 0:
            return math.nan
        return next(bound for bound, number in buckets if number >= level * most)

    @property
    def refreshed(self) -> bool:
        """Tells if the metrics may have changed between the looks.

        They are prepared now and then; two looks at one text tell nothing of the time between.
        """
        return not self.last.text or self.first.text != self.last.text

    @property
    def up_s(self) -> float:
        """Seconds since the sidecar started, by its own clock; NaN where that is not known."""
        status = self.last.status
        if status is None or not status.started_ns:
            return math.nan
        return max(0.0, (status.now_ns - status.started_ns) / SECOND_NS)

    @property
    def started_anew(self) -> bool:
        """Tells if it was another process at the first look."""
        first, last = self.first.status, self.last.status
        return first is not None and last is not None and first.started_ns != last.started_ns

    @property
    def streams(self) -> tuple[StreamStatus, ...]:
        """All streams; none where the status is not known."""
        return self.last.status.streams if self.last.status is not None else ()

    @property
    def fresh(self) -> tuple[StreamStatus, ...]:
        """Streams that send: from which a frame came within the last seconds."""
        return tuple(each for each in self.streams if self.silence_s(each) < SILENT_SECONDS)

    @property
    def before(self) -> Mapping[str, StreamStatus]:
        """Streams as of the first look at the same process."""
        first = self.first.status
        known = first is not None and not self.started_anew
        return {each.stream: each for each in first.streams} if first and known else {}

    def silence_s(self, stream: StreamStatus) -> float:
        """Since its last frame; infinite where none came."""
        status = self.last.status
        if status is None or stream.received_ns is None:
            return math.inf
        return max(0.0, (status.now_ns - stream.received_ns) / SECOND_NS)

    @property
    def frames_come(self) -> bool:
        """Tells if any stream sends, as far as is known."""
        if self.last.status is not None:
            return bool(self.fresh)
        return self.increase("frames_total") > 0
