"""How far event time has come, over all streams. A wild stamp is not believed, nor are those
of a minority: one sensor with a wrong clock must not empty the windows of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

# Votes of frames that agree before time is taken to have jumped ahead, as after a pause, or
# back, as when a recording is played again: then windows begin anew. A frame that is
# believed, or that agrees with neither, takes a vote back.
AHEAD, BACK = 10, 100


@dataclass(slots=True)
class EventClock:
    """The latest believable capture time.

    reach_ns  stamps farther back than this are not believed alone
    ahead_ns  nor are those farther ahead: what is believed moves the clock, for good
    now_ns    never moves back but by a jump
    jumps     how often time jumped, ahead or back
    votes     of the frames that agree on another time, near other_ns
    """

    reach_ns: int
    ahead_ns: int
    now_ns: int | None = None
    jumps: int = 0
    votes: int = 0
    other_ns: int = 0

    def see(self, stamp_ns: int) -> bool:
        """Take in the stamp of a frame; whether time has jumped back, and begins anew."""
        if self.now_ns is None:
            self.now_ns = stamp_ns
            return False
        if self.believes(stamp_ns):
            self.votes = max(0, self.votes - 1)
            self.now_ns = max(self.now_ns, stamp_ns)
            return False
        if self.votes and abs(stamp_ns - self.other_ns) <= self.reach_ns:
            self.votes += 1
            self.other_ns = stamp_ns
        elif self.votes > 1:
            self.votes -= 1
        else:
            self.votes, self.other_ns = 1, stamp_ns
        back = stamp_ns < self.now_ns
        if self.votes < (BACK if back else AHEAD):
            return False
        self.votes = 0
        self.jumps += 1
        self.now_ns = stamp_ns
        return back

    def believes(self, stamp_ns: int) -> bool:
        """Whether a stamp is near enough to be part of the same time."""
        if self.now_ns is None:
            return False
        return -self.reach_ns <= stamp_ns - self.now_ns <= self.ahead_ns
