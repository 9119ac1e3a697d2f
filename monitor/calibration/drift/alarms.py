"""Alarms that stay: raised once, until somebody acknowledges them, another epoch begins, or nothing
came of them for a stated time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from monitor.calibration.drift.alarm import Alarm, AlarmChange, AlarmCount, Why
from monitor.calibration.drift.charts import CHARTS, Detector, Direction, Severity, Stage

# Of its stage as well: that a recalibrator has much to compensate must not hide that it fails.
Key = tuple[str, Severity, Stage]
Raised = tuple[Stage, Detector, Direction]


def key_of(alarm: Alarm) -> Key:
    """Under which it stays."""
    return alarm.slice, alarm.severity, alarm.stage


@dataclass(frozen=True, slots=True)
class Latched:
    """An alarm that stays.

    since_s  s of driving, with truth of its slice, when it was last raised
    """

    alarm: Alarm
    since_s: float


@dataclass(slots=True)
class Alarms:
    """Of all slices, at most one of each severity, slice and stage.

    counts  how often one was raised, of any slice, by what
    """

    latched: dict[Key, Latched] = field(default_factory=dict)
    counts: dict[Raised, int] = field(default_factory=dict)

    def raised(self, alarm: Alarm, driven_s: float, concerned: Sequence[str]) -> list[AlarmChange]:
        """Take in an alarm; nothing is told of one that is there already: it only stays longer."""
        key = key_of(alarm)
        known = self.latched.get(key)
        if known is not None:
            self.latched[key] = Latched(known.alarm, driven_s)
            return []
        self.latched[key] = Latched(alarm, driven_s)
        what = alarm.stage, alarm.detector, alarm.direction
        self.counts[what] = self.counts.get(what, 0) + 1
        return [AlarmChange(Why.RAISED, alarm, tuple(concerned))]

    def over(self, keys: Iterable[Key], why: Why, actor: str = "drift") -> list[AlarmChange]:
        """End those of these that are there."""
        found = [self.latched.pop(key, None) for key in keys]
        return [AlarmChange(why, one.alarm, actor=actor) for one in found if one is not None]

    def of_slices(self, slices: Collection[str]) -> list[Key]:
        """Those of some slices; of all where none is named."""
        return [key for key in self.latched if not slices or key[0] in slices]

    def slices(self, stage: Stage | None = None) -> frozenset[str]:
        """Those with an alarm, of a stage or of any."""
        return frozenset(key[0] for key in self.latched if stage is None or key[2] is stage)

    def of(self, slice: str, severity: Severity) -> Alarm | None:
        """The one of a slice that stays: rather of what is forwarded."""
        for stage in (Stage.RECALIBRATED, Stage.RAW):
            found = self.latched.get((slice, severity, stage))
            if found is not None:
                return found.alarm
        return None

    def told(self) -> tuple[AlarmCount, ...]:
        """How often alarms were raised, by all that there is; zeros too."""
        return tuple(
            AlarmCount(*what, self.counts.get(what, 0))
            for chart in CHARTS
            for what in ((chart.stage, detector, chart.direction) for detector in Detector)
        )
