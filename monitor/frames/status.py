"""Status and counters of a sidecar as values; finding them out never lives here.

Plain numbers: the pipeline adds to them, the metrics read them. Names of metrics never live here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import PASSED_THROUGH, Examined, Reason
from monitor.frames.space import IntArray

# Upper bounds of the histograms, seconds.
FRAME_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
TRUTH_DELAY = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0)
_REASONS = max(Reason) + 1
_PASSED = [int(reason) for reason in PASSED_THROUGH]


@dataclass(slots=True)
class Histogram:
    """Counts of values by upper bound, with their sum."""

    bounds: tuple[float, ...] = FRAME_SECONDS
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class TruthAccount:
    """Labels by their outcome; every label is in exactly one of the counts."""

    matched: int = 0
    unusable: int = 0
    orphan: int = 0
    duplicate: int = 0
    too_late: int = 0
    ignored: int = 0
    refused: int = 0
    missed: int = 0
    unassigned: int = 0

    def add(self, other: TruthAccount) -> None:
        """Adds the counts of another account."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class ClassAccount:
    """Detections with usable class probabilities, by the outcome of their recalibration."""

    recalibrated: int = 0
    mismatch: int = 0
    failed: int = 0


# Why a call was refused: without a known token, or with one that lacks the right.
CALLS_REFUSED = ("unauthenticated", "permission_denied")


@dataclass(slots=True)
class Counters:
    """Counts of frames, detections, labels and calls since the start.

    by_reason            detections by the Reason of their answer
    uncertain            detections by UncertainBy: entropy, deviation, both
    frames_refused       whole messages that were refused, by Reason
    notices              findings that did not change the answer, such as unusable inline truth
    truth                labels by outcome, inline ones included
    unmatched            detections of completely labelled frames that no label claimed
    dropped              detections that left the pending store without ground truth
    overflow_detections  matched detections in overflow slices
    overflow_classified  matched class probabilities in overflow slices, or without any slice
    calls_refused        calls without the right, by one of CALLS_REFUSED
    shedding, overloads  whether monitoring work is left undone now; how often that began
    clock_epoch          epoch of the wall clock; clock_steps: how often the clock was set
    """

    frames: int = 0
    by_reason: IntArray = field(default_factory=lambda: np.zeros(_REASONS, np.int64))
    uncertain: IntArray = field(default_factory=lambda: np.zeros(3, np.int64))
    class_recalibrations: ClassAccount = field(default_factory=ClassAccount)
    frames_refused: Counter[Reason] = field(default_factory=Counter)
    notices: Counter[Reason] = field(default_factory=Counter)
    truth: TruthAccount = field(default_factory=TruthAccount)
    unmatched: int = 0
    dropped: int = 0
    fast_frames: int = 0
    slow_frames: int = 0
    internal_errors: int = 0
    late_frames: int = 0
    overflow_detections: int = 0
    overflow_classified: int = 0
    streams_dropped: int = 0
    calls_refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALLS_REFUSED, 0))
    frame_seconds: Histogram = field(default_factory=Histogram)
    truth_delay: Histogram = field(default_factory=lambda: Histogram(TRUTH_DELAY))
    loop_lag_seconds: float = 0.0
    shedding: bool = False
    overloads: int = 0
    clock_epoch: int = 0
    clock_steps: int = 0

    @property
    def detections(self) -> int:
        """Counts the detections that were answered."""
        return int(self.by_reason.sum())

    @property
    def recalibrated(self) -> int:
        """Counts the detections that came with a covariance and went out recalibrated."""
        return int(self.by_reason[Reason.NONE])

    @property
    def estimated(self) -> int:
        """Counts the detections that came without a covariance, and went out with one."""
        return int(self.by_reason[Reason.COVARIANCE_ESTIMATED])

    @property
    def passed_through(self) -> int:
        """Counts the valid detections that went out as they came."""
        return int(self.by_reason[_PASSED].sum())

    @property
    def refused(self) -> int:
        """Counts the detections that were no usable estimates."""
        return self.detections - self.recalibrated - self.estimated - self.passed_through

    def refuse_call(self, why: str) -> int:
        """Counts a call without the right, by one of CALLS_REFUSED; returns the sum so far."""
        self.calls_refused[why] += 1
        return sum(self.calls_refused.values())

    def count_frame(self, reason: npt.NDArray[np.uint8], *, fast: bool) -> None:
        """Counts a frame that was answered, with the Reason of each detection, (N,)."""
        self.frames += 1
        if fast:
            self.fast_frames += 1
        else:
            self.slow_frames += 1
        self.by_reason += np.bincount(reason, minlength=self.by_reason.size)

    def count_uncertain(self, by: npt.NDArray[np.uint8]) -> None:
        """Counts the uncertain detections of a frame, by the UncertainBy of each, (N,)."""
        if np.count_nonzero(by):
            self.uncertain += np.bincount(by, minlength=self.uncertain.size + 1)[1:]

    def note_invalid(self, examined: Examined) -> None:
        """Counts inline truth and class probabilities that cannot be used."""
        invalid = examined.probabilities_invalid | examined.true_class_invalid
        for reason, rows in (
            (Reason.GROUND_TRUTH_INVALID, examined.truth_invalid),
            (Reason.CLASS_PROBABILITIES_INVALID, invalid),
        ):
            self.notices[reason] += int(np.count_nonzero(rows))


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """Counts and times of one stream since the start; times in ns since 1970, sidecar's clock.

    frames, detections   of messages that were not refused whole
    stamp_ns             stamp of the last frame that had one; None if none had
    stamped_received_ns  when that frame came
    received_ns          when the last frame came, stamped or not; None if none did
    matched              labels that matched a detection, inline ones included
    matched_received_ns  when the last matching label came; None if none did
    """

    stream: str
    frames: int = 0
    detections: int = 0
    stamp_ns: int | None = None
    stamped_received_ns: int | None = None
    received_ns: int | None = None
    matched: int = 0
    matched_received_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TrackerStatus:
    """State of the external tracker.

    trouble  why it could not be reached, when last it could not; '': never
    """

    address: str
    up: bool
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """Version, streams and configuration of a running sidecar.

    started_ns, now_ns     ns since 1970, its wall clock
    streams                in the order of registration
    tracker                None without an external tracker
    configuration          path of the file, as it was given; '': none
    waiting_keys           such as 'statistics.bins': keys whose value in the file was changed at
                           the last reload, and becomes active with a restart
    configuration_refused  why the last reload refused the file; '': it did not
    """

    version: str
    started_ns: int
    now_ns: int
    streams: tuple[StreamStatus, ...] = ()
    tracker: TrackerStatus | None = None
    configuration: str = ""
    waiting_keys: tuple[str, ...] = ()
    configuration_refused: str = ""
