"""Whether the sidecar has more to do than it can, told from how late its loop is and from what
waits for the statistics. Time is an argument; nothing here looks at a clock.

Monitoring is what gives way: frames are answered and forwarded all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

# Samples in a row above the limit before the loop counts as late: a single one is a long step of
# something else, such as a promotion, and over when it is seen.
LATE_SAMPLES = 2
# Of the limits; below them there is room again.
CALM_SHARE = 0.5


@dataclass(slots=True)
class Overload:
    """Sheds while there is too much to do, and until it has been calm for a while.

    lag_seconds   s; what the loop may be late, in LATE_SAMPLES samples in a row; 0: any time
    waiting_rows  detections that may wait for the statistics; 0: any number
    calm_seconds  s below CALM_SHARE of both limits, without a break, that end it
    shedding      whether monitoring work is left undone now
    episodes      how often that began
    """

    lag_seconds: float = 0.1
    waiting_rows: int = 1 << 18
    calm_seconds: float = 1.0
    shedding: bool = False
    episodes: int = 0
    _late: int = 0
    _calm_since: float | None = None

    def look(self, now: float, lag: float, waiting: int) -> bool:
        """Take in a sample; whether shedding began or ended with it.

        now      s of a clock that never moves back
        lag      s that the loop was late, or that frames waited, whichever is longer
        waiting  detections that wait for the statistics
        """
        late, full = _share(lag, self.lag_seconds), _share(waiting, self.waiting_rows)
        self._late = self._late + 1 if late > 1 else 0
        if not self.shedding:
            if self._late < LATE_SAMPLES and full <= 1:
                return False
            self.shedding = True
            self.episodes += 1
            self._calm_since = None
            return True
        if max(late, full) > CALM_SHARE:
            self._calm_since = None
            return False
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.calm_seconds:
            return False
        self.shedding = False
        self._late = 0
        return True


def _share(value: float, limit: float) -> float:
    """Of a limit; 0 where there is none."""
    return value / limit if limit else 0.0
