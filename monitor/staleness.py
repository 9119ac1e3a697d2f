"""How long frames of one stream were on their way, without a clock that detector and sidecar
share. Time is an argument; nothing here looks at a clock.

Arrival minus capture stamp is the age and an unknown difference of two clocks. The smallest of the
last minute is taken for a frame that did not wait, so that the rest is what others waited longer.
A detector that is always late by the same time is not found late: nothing here could know.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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
        """Whether a frame waited too long. One without a stamp is not known to have.

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
        """Whether stamps are of another time than those before.

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
