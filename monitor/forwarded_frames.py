"""Frames on their way to a tracker elsewhere: those that wait, those that are out, and what became
of each. No clock, no task: who holds the line says when a frame is overdue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.frames import FrameAnswer
from monitor.streams import Stream
from monitor.tracking.reported import ReportedTracks


class Outcome(StrEnum):
    """How it ended with a frame; every frame ends once."""

    ANSWERED = "answered"  # in time
    LATE = "late"  # its turn had come, and it was not answered in time
    DROPPED = "dropped"  # newer ones took its place in the queue
    EXPIRED = "expired"  # too old before it could be sent
    FAILED = "failed"  # the tracker was away or went away, or its answer could not be used


@dataclass(eq=False, slots=True)
class ForwardedFrame:
    """A frame as it went back to the detector.

    began      when it was forwarded, seconds
    call_ends  when the detector's call does; None: never
    wanted     whether its tracks are
    settle     told once how it ended, with the tracks where it was answered
    """

    stream: Stream
    answer: FrameAnswer
    began: float
    call_ends: float | None = None
    wanted: bool = False
    settle: Callable[[Outcome, ReportedTracks | None], None] | None = None
    sequence: int | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class FrameLine:
    """The queue, oldest first, and the frames of the present call that have no answer yet.

    sent   frames that were written, whatever became of them then
    ended  frames by how it ended
    """

    capacity: int
    sent: int = 0
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    _waiting: OrderedDict[ForwardedFrame, None] = field(default_factory=OrderedDict)
    _out: dict[int, ForwardedFrame] = field(default_factory=dict)
    _sequence: int = 0

    def add(self, frame: ForwardedFrame) -> None:
        """At the end of the queue; the oldest ones make room."""
        while len(self._waiting) >= self.capacity:
            self.end(next(iter(self._waiting)), Outcome.DROPPED)
        self._waiting[frame] = None

    def take(self) -> ForwardedFrame | None:
        """The oldest that waits; it is out from now on, and has a sequence."""
        if not self._waiting:
            return None
        frame, _ = self._waiting.popitem(last=False)
        # From 1: an empty message says 0, and answers nothing.
        self._sequence += 1
        frame.sequence = self._sequence
        self._out[self._sequence] = frame
        return frame

    def answered(self, sequence: int) -> ForwardedFrame | None:
        """The frame with this sequence; None if it has ended. Raises KeyError: never sent."""
        if not 1 <= sequence <= self._sequence:
            raise KeyError(sequence)
        return self._out.get(sequence)

    def overdue(self, frame: ForwardedFrame) -> None:
        """Its time is over."""
        self.end(frame, Outcome.EXPIRED if frame in self._waiting else Outcome.LATE)

    def end(
        self, frame: ForwardedFrame, outcome: Outcome, tracks: ReportedTracks | None = None
    ) -> None:
        """Nothing more happens to the frame; what has ended before stays as it was."""
        if frame.outcome is not None:
            return
        frame.outcome = outcome
        self.ended[outcome] += 1
        self._waiting.pop(frame, None)
        if frame.sequence is not None:
            self._out.pop(frame.sequence, None)
        if frame.settle is not None:
            frame.settle(outcome, tracks)

    def lose(self) -> None:
        """Nobody is there any more."""
        for frame in [*self._out.values(), *self._waiting]:
            self.end(frame, Outcome.FAILED)

    def begin_call(self) -> None:
        """A call begins, and with it the sequence; of the one before nothing is out any more."""
        for frame in list(self._out.values()):
            self.end(frame, Outcome.FAILED)
        self._sequence = 0
