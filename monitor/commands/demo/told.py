"""Tells of an endless drive: a plain line an event, counts once a cycle.

Nothing is kept of cycles that are over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.commands.demo.cycles import Cycles, Moment


@dataclass(slots=True)
class Counts:
    """Since the cycle began.

    answered     frames
    left_out     frames that were not sent: no sidecar was there, or it was too slow
    labelled     labels that matched a detection
    """

    answered: int = 0
    left_out: int = 0
    labelled: int = 0


@dataclass(slots=True)
class Tale:
    """The lines of a drive in cycles.

    say   prints a line
    last  where the drive is
    """

    cycles: Cycles
    say: Callable[[str], None]
    last: Moment = field(init=False)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.last = self.cycles.at(0.0)

    def tell(self, text: str) -> None:
        """Prints an event now."""
        self.say(f"cycle {self.last.cycle}, {self.last.at_s:5.1f} s  {text}")

    def begin(self) -> None:
        """The first frame is about to be sent."""
        plan = self.cycles.plan
        self.tell(
            f"healthy: {len(plan.settings.sensors)} sensors, {plan.settings.rate_hz:g} Hz each, "
            f"truth {plan.truth_delay_s:.3g} s late; the fault comes after {plan.fault_s:.3g} of "
            f"{plan.duration_s:.3g} s and stays for {plan.fault_end_s - plan.fault_s:.3g}"
        )

    def reach(self, moment: Moment) -> None:
        """A frame of this moment is about to be sent."""
        before, self.last = self.last, moment
        plan = self.cycles.plan
        if moment.cycle != before.cycle:
            self._close(before.cycle)
        if moment.fault and not before.fault:
            self.tell(f"fault: {plan.faulty} reports its variances × {plan.variance_factor:g}")
        if before.fault and not moment.fault:
            self.tell(f"the fault ends: {plan.faulty} reports its variances as before")

    def end(self) -> None:
        """No frame will be sent any more."""
        self.tell(f"stopped: {self._counted()} in this cycle")

    def _close(self, cycle: int) -> None:
        self.tell(f"cycle {cycle} is over: {self._counted()}")
        self.counts = Counts()

    def _counted(self) -> str:
        counts = self.counts
        left_out = f", {counts.left_out:,} left out" if counts.left_out else ""
        return f"{counts.answered:,} frames{left_out}, {counts.labelled:,} labels matched"
