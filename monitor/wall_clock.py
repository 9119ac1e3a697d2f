"""Steps of the wall clock, seen against the monotonic one. Both are arguments; nothing here looks
at a clock.

Vehicles boot before they know the time. Stamps taken before and after a step cannot be compared,
so a step begins a new epoch of the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 10**9
# A clock that is being corrected runs at most so much faster or slower: twice what NTP does.
SLEW = 1e-3


@dataclass(slots=True)
class WallClock:
    """What the wall clock has done.

    step_seconds  s; a clock that is off by more has been set
    epoch         goes up by one with each step; the one to begin with may be of an earlier run
    steps         how many there were
    """

    step_seconds: float = 0.5
    epoch: int = 0
    steps: int = 0
    # Wall minus monotonic time where nothing was set, and when it was last looked at.
    _usual_ns: int | None = None
    _looked_ns: int = 0

    def look(self, wall_ns: int, monotonic_ns: int) -> float | None:
        """s that the clock was set by since the last look, forward positive; None: it was not.

        What comes in several small steps is one as soon as they add up, unless they are so slow
        that they may be a correction. Of a machine that slept the monotonic clock stood still: its
        wall clock is found ahead, and begins a new epoch too.
        """
        difference = wall_ns - monotonic_ns
        elapsed, self._looked_ns = monotonic_ns - self._looked_ns, monotonic_ns
        if self._usual_ns is None:
            self._usual_ns = difference
            return None
        off = difference - self._usual_ns
        if abs(off) > self.step_seconds * SECOND:
            self._usual_ns = difference
            self.epoch += 1
            self.steps += 1
            return off / SECOND
        most = int(SLEW * elapsed)
        self._usual_ns += max(-most, min(most, off))
        return None
