"""One sensor's live state, and how far its event time has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.calibration.slices import StreamSlices
from monitor.frames import Header
from monitor.staleness import Staleness
from monitor.stream_tracker import StreamTracker

# What a stamp can be, and a time between two of them; stamps come as they will.
EARLIEST, LONGEST = -(2**63), 2**63 - 1


@dataclass(slots=True)
class EventTime:
    """How far a stream's event time has come.

    watermark_ns  event time that is over but for stragglers; never moves back
    latest_ns     of the last frame; moves back where a recording is played again
    """

    watermark_ns: int | None = None
    latest_ns: int | None = None

    def advance(self, stamp_ns: int, disorder_ns: int) -> bool:
        """See a frame, the watermark stays so far behind; whether it came behind that."""
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
    """What has come of one stream since the start; all times are of a clock that never moves back.

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
        """See a frame that was taken, whatever became of its detections."""
        self.frames += 1
        self.detections += detections
        self.received_ns = now_ns
        if stamp_ns is not None:
            self.stamp_ns, self.stamped_ns = stamp_ns, now_ns

    def labels(self, matched: int, now_ns: int) -> None:
        """See labels, of which so many matched."""
        if matched:
            self.matched += matched
            self.matched_ns = now_ns


@dataclass(slots=True)
class Stream:
    """One sensor's live state, as one connection sees it.

    header   whether tracks are returned is each connection's own; the rest they share
    number   tells its tracks from those of others
    tracker  None where nobody tracks
    """

    header: Header
    slices: StreamSlices
    number: int
    tracker: StreamTracker | None = None
    time: EventTime = field(default_factory=EventTime)
    staleness: Staleness = field(default_factory=Staleness)
    seen: Seen = field(default_factory=Seen)

    @property
    def watermark_ns(self) -> int | None:
        """Of the stream's event time."""
        return self.time.watermark_ns
