"""How fast one stream may go: a rate, with bursts of a second of it, or of one message where that
is more. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_SECONDS = 1.0


@dataclass(slots=True)
class Pace:
    """Of one stream. Nothing is refused: who is too fast is read later."""

    # Seconds at which a stream that had kept the pace would send its next message.
    _due: float = float("-inf")

    def delay(self, now: float, per_second: float) -> float:
        """Seconds to wait before the next message is read.

        now         monotonic seconds
        per_second  messages; 0: as fast as it likes
        """
        if not per_second:
            return 0.0
        each = 1 / per_second
        # What was not used is saved for a burst, but never more than that.
        self._due = max(self._due, now - max(BURST_SECONDS, each)) + each
        return max(0.0, self._due - now)
