"""What a detector's client knows of its stream: what is unanswered, why there is none, how often
that was. No connection lives here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from monitor.edges.detector_frames import Unusable, Why


@dataclass(slots=True)
class ClientCounters:
    """Since the client was made.

    answered     frames with an answer in time
    raw          frames handed back as they were given, by why
    late         answers that came after their deadline, and were thrown away
    connections  streams that were opened
    """

    answered: int = 0
    raw: dict[Why, int] = field(default_factory=lambda: dict.fromkeys(Why, 0))
    late: int = 0
    connections: int = 0


@dataclass(eq=False, slots=True)
class DetectorStream:
    """One stream, from its header on; unanswered messages by index, with when they were sent.

    trouble  what ended it; None: nothing yet, or it was never begun
    """

    requests: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)
    call: Any = None
    opened: bool = False
    over: bool = False
    trouble: Trouble | None = None
    unanswered: dict[int, float] = field(default_factory=dict)
    _sent: int = 0

    def send(self, data: bytes, now: float) -> int:
        """Hand a message over; its index."""
        index, self._sent = self._sent, self._sent + 1
        self.unanswered[index] = now
        self.requests.put(data)
        return index

    def hangs_since(self) -> float:
        """When the oldest unanswered message was sent; infinity without any."""
        return next(iter(self.unanswered.values()), float("inf"))

    def end(self) -> None:
        """Nothing more goes out or comes in."""
        self.over = True
        self.requests.put(None)
        if self.call is not None:
            self.call.cancel()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no stream."""

    why: Why
    text: str

    def error(self) -> Unusable:
        """To be raised once."""
        return Unusable(self.why, self.text)
