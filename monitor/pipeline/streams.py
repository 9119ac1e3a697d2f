"""The live state of one stream: its header, its event time, its tracker.

The age of a frame is told without a clock that detector and sidecar share. Time is an argument;
nothing here looks at a clock.

Arrival minus capture stamp is the age and an unknown difference of two clocks. The smallest of the
last minute is taken for a frame that did not wait, so that the rest is what others waited longer.
A detector that is always late by the same time is not found late: nothing here could know.

Association and filtering never happen here, but in `tracking`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from monitor.config import Config
from monitor.frames.detections import Estimates, Examined, Reason
from monitor.frames.frame import (
    EgoMotion,
    Header,
    ReceivedFrame,
    ReportedTracks,
    TrackStatus,
)
from monitor.frames.reasons import Notice
from monitor.frames.slices import StreamSlices, is_bare, is_of_classes
from monitor.frames.space import Dimension, FloatArray, IntArray, Space
from monitor.frames.status import StreamStatus
from monitor.store.state_definitions import LABEL, NAME
from monitor.tracking.motion import InvalidEgoMotion, checked_motion, no_innovations
from monitor.tracking.tracker import Order, Sightings, Tracker, follow

log = logging.getLogger(__name__)

# Why a frame with a stamp was not tracked.
_WHY_NOT = {
    Order.TOO_LATE: "{}: too late to be tracked. Send frames in the order of their stamps.",
    Order.REPEATED: "{}: another frame has this stamp, and was tracked. Give each its own.",
    Order.UNMOVED: "{}: not tracked without ego_pose or ego_twist, which frames before it had. "
    "Send it with every frame.",
}
_NO_STAMP = Notice(
    Reason.MISSING_STAMP, "stamp_ns", "absent: the frame was not tracked. Send the capture time."
)


# The tracks of a frame at its stamp, None if it was not tracked; and why it was not, or why ego
# motion was not used.
Tracked = tuple[ReportedTracks | None, tuple[Notice, ...]]


@dataclass(slots=True)
class StreamTracker:
    """Live state of a stream's tracks.

    numbered  detections numbered so far; a track has the number of its first detection
    orders    frames by their order in time
    """

    tracker: Tracker
    numbered: int = 0
    orders: Counter[Order] = field(default_factory=Counter)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Dimensions of a track's state."""
        return self.tracker.model.motion.dimensions

    def reset(self) -> None:
        """Forgets all tracks; their numbers are not used again."""
        self.tracker = Tracker(self.tracker.model)

    def track(self, frame: ReceivedFrame, examined: Examined, forwarded: Estimates) -> Tracked:
        """Updates the tracks by a frame.

        forwarded  (n,) estimates of examined.batch, as forwarded
        """
        if frame.stamp_ns is None:
            self.orders[Order.UNSTAMPED] += 1
            return None, (_NO_STAMP,)
        ego, notices = None, tuple[Notice, ...]()
        try:
            ego = None if frame.ego is None else checked_motion(frame.ego)
        except InvalidEgoMotion as error:
            notices = (Notice(Reason.EGO_MOTION_INVALID, error.field, error.message),)
        seen = _sightings(frame, examined, forwarded, self.numbered, ego)
        self.numbered += frame.detections.n
        self.tracker, step, order = follow(self.tracker, seen)
        self.orders[order] += 1
        if step is not None:
            return step.reported(), notices
        message = _WHY_NOT[order].format(frame.stamp_ns)
        return None, (*notices, Notice(Reason.NOT_TRACKED, "stamp_ns", message))


def _sightings(
    frame: ReceivedFrame,
    examined: Examined,
    forwarded: Estimates,
    numbered: int,
    ego: EgoMotion | None,
) -> Sightings:
    """Collects the detections that can be tracked."""
    received, batch = frame.detections, examined.batch
    row = batch.rows
    upstream = received.upstream_track
    assert frame.stamp_ns is not None
    return Sightings(
        stamp_ns=frame.stamp_ns,
        mean=forwarded.mean,
        covariance=forwarded.covariance,
        class_index=batch.class_index,
        row=row,
        number=(row + (numbered + 1)).astype(np.uint64),
        score=None if received.score is None else received.score[row],
        upstream=None if upstream is None else (upstream[0][row], upstream[1][row]),
        ego=ego,
    )


@dataclass(frozen=True, eq=False, slots=True)
class TrackReading:
    """The tracks of all streams, by slice.

    names         of the S slices that have any
    counts        (3, S) tracks by status, in the order of TrackStatus, at the last frame of each
                  stream
    nis_ratio     (S,) mean NIS/J of confirmed tracks; NaN without any, as are the next two
    correlation   (S,) lag-1 correlation of the whitened innovation
    reject_ratio  (S,) share of confirmed tracks with a near detection outside the gate
    orders        frames by their order in time
    """

    names: tuple[str, ...]
    counts: IntArray
    nis_ratio: FloatArray
    correlation: FloatArray
    reject_ratio: FloatArray
    orders: Counter[Order]


def read_tracks(names: tuple[str, ...], streams: Iterable[Stream]) -> TrackReading:
    """Reads tracks by slice, summed over all streams of the slice.

    names  of the slices that the tracks lie in: SliceTable.whole
    """
    counts = np.zeros((len(TrackStatus), len(names)), np.int64)
    sums, orders, seen = no_innovations(len(names)), Counter[Order](), np.zeros(len(names), bool)
    for stream in streams:
        group, tracker = stream.slices.of_class, stream.tracker
        if tracker is None:
            continue
        seen[group[group >= 0]] = True
        if tracker.tracker.last is not None:
            tracks = tracker.tracker.last.reported()
            place = group[tracks.class_index]
            # One by one: tracks that share a slice must all be added.
            np.add.at(counts, (tracks.status[place >= 0] - 1, place[place >= 0]), 1)
        sums = sums + tracker.tracker.state.innovations.by_group(group, len(names))
        orders.update(tracker.orders)
    there = np.flatnonzero(seen)
    return TrackReading(
        names=tuple(names[i] for i in there.tolist()),
        counts=counts[:, there],
        nis_ratio=sums.nis_ratio[there],
        correlation=sums.correlation[there],
        reject_ratio=sums.reject_ratio[there],
        orders=orders,
    )


# Every level adds K values to every detection of an answer.
MOST_QUANTILES = 19

# Beyond it the quantiles of heavy tails overflow, and no fit says anything of them.
LEAST_LEVEL = 1e-6
SECOND = 10**9

# The minimum is over so many parts of the window: what is older leaves it part by part.
PARTS = 12
WINDOW = 60 * SECOND

# Stamps that run ahead of their arrival by more than this, or go back by more than DISORDER, are
# of another time.
JUMP = 10 * SECOND
DISORDER = SECOND

# Frames in a row behind the newest stamp: not a straggler, stamps went back.
STRAGGLERS = 3

# What a stamp can be, and a time between two of them; stamps come as they will.
EARLIEST, LONGEST = -(2**63), 2**63 - 1


@dataclass(slots=True)
class Staleness:
    """The ages of one stream's frames.

    restarts  how often stamps jumped, and the estimate began anew
    """

    restarts: int = 0
    # Of each part of the window: when it began, and the smallest difference in it.
    _parts: deque[tuple[int, int]] = field(default_factory=deque)
    _arrival_ns: int = 0
    _newest_ns: int | None = None
    _behind: int = 0

    def is_stale(self, arrival_ns: int, stamp_ns: int | None, limit_seconds: float) -> bool:
        """Says whether a frame waited too long; one without a stamp is not known to have.

        arrival_ns     of a clock that never moves back, when the frame was read
        stamp_ns       of its capture, of any clock
        limit_seconds  s; frames that waited longer are stale; 0: none ever is
        """
        if limit_seconds <= 0 or stamp_ns is None:
            return False
        return self.age(arrival_ns, stamp_ns) > limit_seconds

    def age(self, arrival_ns: int, stamp_ns: int) -> float:
        """s that a frame waited longer than the quickest of the last minute; 0 or more."""
        if self._jumped(arrival_ns, stamp_ns):
            self.restarts += 1
            self._parts.clear()
            self._newest_ns = stamp_ns
            self._behind = 0
        self._arrival_ns = arrival_ns
        self._newest_ns = stamp_ns if self._newest_ns is None else max(self._newest_ns, stamp_ns)
        difference = arrival_ns - stamp_ns
        self._see(arrival_ns, difference)
        return (difference - min(least for _, least in self._parts)) / SECOND

    def _jumped(self, arrival_ns: int, stamp_ns: int) -> bool:
        """Says whether stamps are of another time than those before.

        Stamps that go on while arrivals paused are no jump: these frames waited.
        """
        if self._newest_ns is None:
            return False
        ahead = stamp_ns - self._newest_ns
        self._behind = self._behind + 1 if ahead < 0 else 0
        return (
            ahead < -DISORDER
            or self._behind >= STRAGGLERS
            or ahead - (arrival_ns - self._arrival_ns) > JUMP
        )

    def _see(self, arrival_ns: int, difference: int) -> None:
        parts = self._parts
        if not parts or arrival_ns - parts[-1][0] >= WINDOW // PARTS:
            parts.append((arrival_ns, difference))
        elif difference < parts[-1][1]:
            parts[-1] = (parts[-1][0], difference)
        while parts[0][0] <= arrival_ns - WINDOW:
            parts.popleft()


@dataclass(slots=True)
class EventTime:
    """How far a stream's event time has come.

    watermark_ns  event time that is over but for stragglers; never moves back
    latest_ns     of the last frame; moves back where a recording is played again
    """

    watermark_ns: int | None = None
    latest_ns: int | None = None

    def advance(self, stamp_ns: int, disorder_ns: int) -> bool:
        """Notes a frame, and moves the watermark behind it; tells whether the frame came late."""
        known, self.latest_ns = self.watermark_ns, stamp_ns
        if known is None or stamp_ns - disorder_ns > known:
            self.watermark_ns = max(stamp_ns - disorder_ns, EARLIEST)
        return known is not None and stamp_ns < known

    def since(self, stamp_ns: int | None) -> int:
        """Nanoseconds from a stamp to the last frame; 0 where either is not known."""
        if stamp_ns is None or self.latest_ns is None:
            return 0
        return min(max(0, self.latest_ns - stamp_ns), LONGEST)


@dataclass(slots=True)
class Seen:
    """Counts what came of one stream since the start; times of a clock that never moves back.

    stamp_ns             capture stamp of the last frame that had one
    stamped_ns           when that frame came
    received_ns          when the last frame came, with a stamp or without
    matched, matched_ns  labels that matched a detection, and when the last of them came
    """

    frames: int = 0
    detections: int = 0
    stamp_ns: int | None = None
    stamped_ns: int = 0
    received_ns: int | None = None
    matched: int = 0
    matched_ns: int | None = None

    def frame(self, detections: int, stamp_ns: int | None, now_ns: int) -> None:
        """Notes a frame that was taken, whatever became of its detections."""
        self.frames += 1
        self.detections += detections
        self.received_ns = now_ns
        if stamp_ns is not None:
            self.stamp_ns, self.stamped_ns = stamp_ns, now_ns

    def labels(self, matched: int, now_ns: int) -> None:
        """Notes labels, of which so many matched."""
        if matched:
            self.matched += matched
            self.matched_ns = now_ns


@dataclass(slots=True)
class Stream:
    """One sensor's live state, as one connection sees it.

    header   whether tracks are returned is each connection's own; the rest they share
    number   tells its tracks from those of others
    assumed  (K,) variances of detections that come without a covariance
    tracker  None without a tracker
    """

    header: Header
    slices: StreamSlices
    number: int
    assumed: FloatArray
    tracker: StreamTracker | None = None
    time: EventTime = field(default_factory=EventTime)
    staleness: Staleness = field(default_factory=Staleness)
    seen: Seen = field(default_factory=Seen)

    def status(self, offset_ns: int) -> StreamStatus:
        """Tells counts and times of the stream, by a wall clock that is so far ahead of ours."""
        seen = self.seen

        def wall(monotonic_ns: int | None) -> int | None:
            return None if monotonic_ns is None else monotonic_ns + offset_ns

        return StreamStatus(
            stream=self.header.stream,
            frames=seen.frames,
            detections=seen.detections,
            stamp_ns=seen.stamp_ns,
            stamped_received_ns=None if seen.stamp_ns is None else wall(seen.stamped_ns),
            received_ns=wall(seen.received_ns),
            matched=seen.matched,
            matched_received_ns=wall(seen.matched_ns),
        )


def mistakes(
    header: Header, config: Config, streams: Collection[str], spaces: Collection[Space]
) -> Iterator[tuple[str, str]]:
    """Yields the fields that make a header unusable, with what is wrong, in order.

    Names become labels of metrics: they are bounded.

    streams  names of the streams that are known already
    spaces   spaces that statistics are kept in already
    """
    limits, most_streams = config.limits, config.server.max_streams
    names, classes, levels = header.space.names, header.classes, header.quantile_levels
    if not NAME.fullmatch(header.stream):
        yield "stream", f"'{header.stream[:80]}': 1 to 64 characters of A-Z a-z 0-9 _ . -"
    if not 1 <= len(names) <= limits.max_dimensions:
        most = f"{limits.max_dimensions} ([limits] max_dimensions)."
        yield "dimensions", f"{len(names)} of them: 1 to {most}"
    for name in names:
        if not NAME.fullmatch(name) or names.count(name) > 1:
            which = "unique, 1 to 64 characters of A-Z a-z 0-9 _ . -"
            yield "dimensions.name", f"'{name[:80]}': {which}"
    units = [("dimensions.unit", dimension.unit) for dimension in header.space.dimensions]
    for where, text in (*units, ("coordinate_frame", header.coordinate_frame)):
        if text and not LABEL.fullmatch(text):
            yield where, f"'{text[:80]}': at most 64 printable characters."
    if not 1 <= len(classes) <= limits.max_classes:
        most = f"{limits.max_classes} ([limits] max_classes)."
        yield "class_names", f"{len(classes)} of them: 1 to {most}"
    for name in classes:
        if not LABEL.fullmatch(name) or classes.count(name) > 1:
            yield "class_names", f"'{name[:80]}': unique, 1 to 64 printable characters."
        if is_bare(name):
            yield "class_names", f"'{name[:80]}': detections without a covariance are called so."
        if is_of_classes(name):
            yield "class_names", f"'{name[:80]}': the drift of class probabilities is called so."
    if len(levels) > MOST_QUANTILES:
        yield "quantile_levels", f"{len(levels)} of them: at most {MOST_QUANTILES}."
    for before, level in pairwise((0.0, *levels)):
        # NaN fails too.
        if not (before < level and LEAST_LEVEL <= level <= 1 - LEAST_LEVEL):
            within = f"each from {LEAST_LEVEL:g} to 1 − {LEAST_LEVEL:g}."
            yield "quantile_levels", f"{level:g} after {before:g}: they must ascend, {within}"
    if header.stream not in streams and len(streams) >= most_streams:
        most = f"{most_streams} ([server] max_streams)."
        which = f"'{header.stream}' would be stream {len(streams) + 1}"
        yield "stream", f"{which}: at most {most}"
    if header.space not in spaces and len(spaces) >= limits.max_spaces:
        which = f"{', '.join(names)} would be set {len(spaces) + 1} of dimensions"
        most = f"{limits.max_spaces} ([limits] max_spaces)"
        yield "dimensions", f"{which}: at most {most}. Use the same names, units and kinds."
