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

    @property
    def watermark_ns(self) -> int | None:
        """Of the stream's event time."""
        return self.time.watermark_ns
