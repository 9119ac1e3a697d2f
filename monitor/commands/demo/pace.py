"""The stamps of a long drive, which keep up with the time of day without ever going back.

The clocks are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Stamps of frames, and when each is due.

    A computer that slept, or was too busy, leaves a gap in the drive: what should have been sent
    meanwhile is not sent in a hurry, all later stamps are moved on.

    start_ns   stamp of the first frame: the wall clock when it is due
    start_s    monotonic clock then
    speed      seconds of event time in a second
    shift_ns   by which stamps were moved on so far
    longest_s  that a frame may be behind the wall clock, event time
    """

    start_ns: int
    start_s: float
    speed: float = 1.0
    shift_ns: int = 0
    longest_s: float = 1.0

    def event_s(self, stamp_ns: int) -> float:
        """Seconds of event time since the first frame."""
        return (stamp_ns - self.start_ns) / _SECOND_NS

    def wait_s(self, stamp_ns: int, now_s: float) -> float:
        """Until this stamp is due, by the monotonic clock, s; negative after that."""
        unmoved_s = (stamp_ns - self.shift_ns - self.start_ns) / _SECOND_NS
        return self.start_s + unmoved_s / self.speed - now_s

    def kept_up(self, stamp_ns: int, now_ns: int, now_s: float) -> Pace:
        """This pace, or the one that goes on from now because the stamp lies too far behind.

        A stamp that is ahead, since the wall clock was put back, is left alone.
        """
        behind_s = (now_ns - self.start_ns) / _SECOND_NS * self.speed - self.event_s(stamp_ns)
        if behind_s <= self.longest_s:
            return self
        shift_ns = self.shift_ns + round(behind_s * _SECOND_NS)
        unmoved_s = (stamp_ns - self.shift_ns - self.start_ns) / _SECOND_NS
        return Pace(
            self.start_ns, now_s - unmoved_s / self.speed, self.speed, shift_ns, self.longest_s
        )
