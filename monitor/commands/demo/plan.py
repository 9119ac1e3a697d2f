"""Plans the demo: the beginning of the fault, its end, the phases of the story."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from monitor.commands.demo.scene import DriveSettings

_LATEST_TRUTH_S = 3.0
_SHORTEST_SHOWN_S = 5.0


class Phase(StrEnum):
    """Phases of the story, in their order.

    The phase of a frame follows from its stamp, and from what the version that answered it does to
    the faulty sensor.
    """

    HEALTHY = "healthy"  # before the fault
    FAULT = "fault"  # as it is sent
    CORRECTED = "corrected"  # the fault, recalibrated
    AFTER = "after"  # the fault is over, and is still corrected
    HOME = "home"  # the fault is over, and nothing is corrected


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the drive, as a place in its cycle.

    cycle  that it is in, from 1
    at_s   seconds since that cycle began, event time
    fault  whether the faulty sensor has its fault
    """

    cycle: int
    at_s: float
    fault: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned drive; times are event time, seconds since the first frame.

    How long the sidecar takes to find out is its own affair, and longer on a busy computer: the
    fault and the drive last longer than planned, until what came of it was seen for a while.

    duration_s       of the drive, at least
    speed            seconds of event time in a second
    variance_factor  on the covariance that the faulty sensor reports; its errors stay
    patience_s       for each of the two; after that it is over all the same
    """

    seed: int = 4
    duration_s: float = 60.0
    speed: float = 1.0
    settings: DriveSettings = field(default_factory=DriveSettings)
    faulty: str = "camera_front"
    variance_factor: float = 0.2
    patience_s: float = 60.0

    @property
    def truth_delay_s(self) -> float:
        """Delay of labels; on short drives less, so that the fault is seen in time."""
        return min(_LATEST_TRUTH_S, self.duration_s / 20)

    @property
    def fault_s(self) -> float:
        """Time when the fault begins."""
        return self.duration_s * 0.2

    @property
    def fault_end_s(self) -> float:
        """Time when the fault ends, at the earliest."""
        return self.duration_s * 0.55

    @property
    def shown_s(self) -> float:
        """Time for which the effect is to be seen."""
        return max(_SHORTEST_SHOWN_S, self.duration_s * 0.1)

    def event_s(self, stamp_ns: int) -> float:
        """A stamp as event time."""
        return (stamp_ns - self.settings.start_ns) / 1e9

    def moment(self, event_s: float) -> Moment:
        """Places event time in a drive in cycles, each as long as planned and not a second longer.

        Nobody waits for the sidecar there: if it is too slow to find out, that is what is to be
        seen. The fault begins and ends when the plan says so. The first cycle holds all times
        before.
        """
        whole = int(max(event_s, 0.0) // self.duration_s)
        at_s = event_s - whole * self.duration_s
        return Moment(whole + 1, at_s, self.fault_s <= at_s < self.fault_end_s)
