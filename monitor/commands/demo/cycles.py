"""The schedule of a drive without an end: the same fault, over and over."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.commands.demo.plan import Plan


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a moment of the drive lies.

    cycle  that it is in, from 1
    at_s   seconds since that cycle began, event time
    fault  whether the faulty sensor has its fault
    """

    cycle: int
    at_s: float
    fault: bool


@dataclass(frozen=True, slots=True)
class Cycles:
    """One plan after the other, each as long as planned and not a second longer.

    Nobody waits for the sidecar here: if it is too slow to find out, that is what is to be seen.
    """

    plan: Plan

    def at(self, event_s: float) -> Moment:
        """At so many seconds of event time since the first frame; the first cycle holds all before.

        The fault begins and ends when the plan says so.
        """
        whole = int(max(event_s, 0.0) // self.plan.duration_s)
        at_s = event_s - whole * self.plan.duration_s
        return Moment(whole + 1, at_s, self.plan.fault_s <= at_s < self.plan.fault_end_s)
