"""Tells the story of the demo, cycle by cycle: which phase it is in, what was heard and measured.

The cycle decides when the fault comes and goes, and keeps an account of its own, to be compared
with the sidecar's. Never here: a stream, a clock, a terminal; `summary` puts it all into words.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from monitor.commands.demo.scene import SPACE, DriveSettings, SimulatedFrame
from monitor.commands.demo.tracks import TrackingRecord
from monitor.drift.alarms import AlarmChange, AlarmReason, alarm_sentence, how_wrong
from monitor.drift.charts import Severity
from monitor.frames.slices import is_bare, marked
from monitor.frames.space import FloatArray
from monitor.promotion.records import SWAPS, Evidence, Factor, Happened, Record, TrialStanding
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import Selection

_LATEST_TRUTH_S = 3.0
_BARE = "lidar"
ASSUMED = 1.0  # m or rad: [tracker] missing_deviation
# Parts of a cycle for which the fault lasts, and for which its effect is to be seen, at least.
_FAULT_LASTS, _SHOWN, _SHORTEST_SHOWN_S = 0.35, 0.1, 5.0
# For which a fault waits until nothing of the one before is left: alarm, trial, correction.
_LONGEST_REST_S = 60.0
_WAITING_EVERY_S = 20.0  # between two lines that say what is waited for
_RECENT_NS = 5_000_000_000
_WRITTEN_OUT = 6  # evidence is a number up to this power of ten


class Phase(StrEnum):
    """Phases of a cycle, in their order.

    The phase of a frame follows from its stamp, and from what the version that answered it does to
    the faulty sensor.
    """

    HEALTHY = "healthy"  # before the fault
    FAULT = "fault"  # as it is sent
    CORRECTED = "corrected"  # the fault, recalibrated
    AFTER = "after"  # the fault is over, and is still corrected
    HOME = "home"  # the fault is over, and nothing is corrected: rolled back

    @property
    def words(self) -> str:
        """Names the phase for people."""
        return "rolled back" if self is Phase.HOME else str(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned cycle; times are event time, seconds since its first frame.

    How long the sidecar takes to find out is its own affair, and longer on a busy computer: the
    fault and the cycle last longer than planned, until what came of it was seen for a while.

    duration_s       of a cycle, at least
    speed            seconds of event time in a second
    variance_factor  on the covariance that the faulty sensor reports; its errors stay
    bare             the sensor that reports no covariance; no sensor of this name: none
    patience_s       by which the fault, and what comes after it, may each last longer than planned
    """

    seed: int = 4
    duration_s: float = 60.0
    speed: float = 1.0
    settings: DriveSettings = field(
        default_factory=lambda: DriveSettings(
            (*DriveSettings().sensors, _BARE), crowded=True, around=_BARE
        )
    )
    faulty: str = "camera_front"
    bare: str = _BARE
    variance_factor: float = 0.2
    patience_s: float = 600.0

    @property
    def truth_delay_s(self) -> float:
        """Delay of labels; on short drives less, so that the fault is seen in time."""
        return min(_LATEST_TRUTH_S, self.duration_s / 20)

    def slice_of(self, sensor: str) -> str:
        """Names the slice of a sensor."""
        return marked(sensor) if sensor == self.bare else sensor

    @property
    def fault_s(self) -> float:
        """Time when the fault begins, at the earliest."""
        return self.duration_s * 0.2


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredFrame:
    """A frame as it was sent, with what came back for it; (N, 7) and (N, 7, 7).

    The covariance that is assumed stands where none was sent, and where none came back.

    version  of the recalibrator that answered it
    """

    frame: SimulatedFrame
    version: str
    mean: FloatArray
    covariance: FloatArray

    @property
    def as_sent(self) -> bool:
        """Tells if nothing was changed."""
        return np.array_equal(self.mean, self.frame.mean) and np.array_equal(
            self.covariance, self.frame.covariance
        )


@dataclass(slots=True)
class SensorRecord:
    """NEES of one sensor's true detections in a cycle, computed from the formula.

    sums  by phase: number of true detections whose labels the sidecar has answered, sums of NEES/K
          of what was sent, and of what came back
    changed  the same, of frames that came back changed
    tracks   objects that have labels
    """

    frames: int = 0
    detections: int = 0
    sums: dict[Phase, FloatArray] = field(default_factory=dict)
    changed: FloatArray = field(default_factory=lambda: np.zeros(3))
    tracks: set[int] = field(default_factory=set)
    _recent: deque[tuple[int, FloatArray]] = field(default_factory=deque)

    def add_truth(self, answered: AnsweredFrame, phase: Phase) -> None:
        """Counts the true detections of a frame of this phase."""
        frame = answered.frame
        true = frame.track >= 0
        raw = made = nees_over_k(frame.truth[true], frame.mean[true], frame.covariance[true])
        if not answered.as_sent:
            made = nees_over_k(frame.truth[true], answered.mean[true], answered.covariance[true])
        row = np.array([raw.size, raw.sum(), made.sum()])
        self.tracks.update(frame.track[true].tolist())
        if not answered.as_sent:
            self.changed = self.changed + row
        self.sums[phase] = self.sums.get(phase, 0.0) + row
        self._recent.append((frame.stamp_ns, row))
        while self._recent[0][0] <= frame.stamp_ns - _RECENT_NS:
            self._recent.popleft()

    @property
    def labelled(self) -> int:
        """Number of true detections whose labels the sidecar has answered."""
        return int(sum(row[0] for row in self.sums.values()))

    def means(self, phase: Phase | None = None) -> tuple[float, float]:
        """Averages NEES/K of a phase, or of all: as sent, and recalibrated; NaN without truth."""
        rows = [row for each, row in self.sums.items() if phase in (None, each)]
        return _means(rows)

    def recent(self) -> tuple[float, float]:
        """Averages NEES/K over the last 5 s of event time whose truth is known."""
        return _means([row for _, row in self._recent])


def _means(rows: list[FloatArray]) -> tuple[float, float]:
    n, raw, made = np.sum(rows, axis=0) if rows else (0.0, 0.0, 0.0)
    return (float(raw / n), float(made / n)) if n else (math.nan, math.nan)


def nees_over_k(truth: FloatArray, mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Computes rᵀ Σ⁻¹ r / K of each detection over the K joint dimensions, (n,)."""
    joint = np.array(SPACE.joint)
    error = SPACE.error(truth, mean)[:, joint]
    block = covariance[:, joint[:, None], joint]
    whitened = np.linalg.solve(block, error[:, :, None])[:, :, 0]
    found: FloatArray = np.einsum("ni,ni->n", error, whitened) / joint.size
    return found


@dataclass(slots=True)
class Cycle:
    """One cycle: healthy, the fault, its end, and the demo's own account of it all.

    All times are seconds of event time since the cycle began.

    announce       is told of every event, as a line
    elapsed_s      time of the latest frame
    latency_s      from sending a frame to holding its answer, wall time, one per frame
    behind_s       the longest that a frame was sent after it was due, wall time
    wall_s         wall time from the first frame to the last answer
    left_out       frames that were not sent: no sidecar was there, or it was too slow
    events         time and text
    heard          what happened to recalibrators, and when it was heard of
    paged_s, promoted_s, rolled_back_s
                   when the fault was first paged and corrected, and when that was last taken back
    learned        the promotion of a covariance for the sensor that reports none, its time, and the
                   labelled objects until then; None if that was not in this cycle
    page           what the page said; evidence: of the promotion; tried: a candidate was on trial
    hopeful        the sidecar may correct the fault: it is worth waiting for
    waiting        what the fault or its end is waiting for, in words
    sequence       number of the last record heard
    version        the active one
    correcting     versions that change what the faulty sensor reports, as its answers show
    entered_s      time of the first frame of the faulty sensor in each phase
    samples        NEES/K of the faulty sensor about once a second: time, as sent, recalibrated
    """

    plan: Plan
    announce: Callable[[str], None]
    number: int = 1
    elapsed_s: float = 0.0
    latency_s: list[float] = field(default_factory=list)
    behind_s: float = 0.0
    wall_s: float = 0.0
    left_out: int = 0
    fault_began_s: float = math.inf
    fault_ended_s: float = math.inf
    over: bool = False
    events: list[tuple[float, str]] = field(default_factory=list)
    heard: list[tuple[float, Record]] = field(default_factory=list)
    paged_s: float = math.inf
    promoted_s: float = math.inf
    rolled_back_s: float = math.inf
    learned: tuple[Record, float, int] | None = None
    page: str = ""
    evidence: Evidence | None = None
    tried: bool = False
    hopeful: bool = True
    waiting: str = ""
    sequence: int = 0
    version: str = field(default_factory=lambda: Selection((), Identity()).version)
    correcting: set[str] = field(default_factory=set)
    entered_s: dict[Phase, float] = field(default_factory=dict)
    samples: list[tuple[float, float, float]] = field(default_factory=list)
    sensors: dict[str, SensorRecord] = field(init=False)
    tracking: TrackingRecord = field(default_factory=TrackingRecord)
    # Of the faulty sensor: alarms and a candidate that are not over yet.
    _alarmed: set[Severity] = field(default_factory=set)
    _on_trial: bool = False
    _told_s: float = -math.inf

    def __post_init__(self) -> None:
        self.sensors = {name: SensorRecord() for name in self.plan.settings.sensors}

    def next(self) -> Cycle:
        """Begins the cycle after this one, in the state that this one has left."""
        return Cycle(
            self.plan, self.announce, self.number + 1, sequence=self.sequence,
            hopeful=self.hopeful, version=self.version, correcting=self.correcting & {self.version},
            _alarmed=self._alarmed, _on_trial=self._on_trial,
        )  # fmt: skip

    def total(self, what: str) -> int:
        """Adds up `frames`, `detections` or `labelled` over all sensors."""
        return sum(getattr(sensor, what) for sensor in self.sensors.values())

    @property
    def phase(self) -> Phase:
        """Phase that the latest frame is in."""
        return self._phase(self.elapsed_s, self.version in self.correcting)

    # ---- the fault comes and goes

    def reach(self, at_s: float) -> bool:
        """Goes on to a frame that is about to be sent; tells if it is within the fault."""
        plan, self.elapsed_s = self.plan, max(self.elapsed_s, at_s)
        if math.isinf(self.fault_began_s):
            if at_s >= plan.fault_s and self._rested(at_s):
                self.fault_began_s = self._told_s = at_s
                self.tell(f"fault: {plan.faulty} reports its variances × {plan.variance_factor:g}")
        elif math.isinf(self.fault_ended_s):
            planned_s = self.fault_began_s + _FAULT_LASTS * plan.duration_s
            if self._seen(Phase.CORRECTED, at_s, planned_s):
                self.fault_ended_s = at_s
                if Phase.CORRECTED not in self.entered_s:
                    self.tell(f"not corrected within {at_s - self.fault_began_s:.0f} s")
                self.tell(f"the fault ends: {plan.faulty} reports its variances as before")
        elif self._seen(Phase.HOME, at_s, max(plan.duration_s, self.fault_ended_s)):
            self.over = True
        return self.fault_began_s <= at_s < self.fault_ended_s

    def _rested(self, at_s: float) -> bool:
        """Tells if nothing is left of the fault before, or was waited for long enough."""
        there = {
            "alarm": bool(self._alarmed),
            "trial": self._on_trial,
            "correction": self.version in self.correcting,
        }
        left = [name for name, is_there in there.items() if is_there]
        if not left or at_s >= self.plan.fault_s + _LONGEST_REST_S:
            return True
        self._wait(f"the next fault waits: {' and '.join(left)} of {self.plan.faulty} not over yet")
        return False

    def _seen(self, phase: Phase, at_s: float, planned_s: float) -> bool:
        shown_s = max(_SHORTEST_SHOWN_S, _SHOWN * self.plan.duration_s)
        seen = at_s - self.entered_s.get(phase, math.inf) >= shown_s
        patience_s = self.plan.patience_s if self.hopeful else 0.0
        return at_s >= planned_s and (seen or at_s >= planned_s + patience_s)

    def await_proof(self, trials: tuple[TrialStanding, ...]) -> None:
        """Says what is waited for, from how trials stand: a correction, or the way back from it."""
        faulty, phase = self.plan.faulty, self.phase
        if phase not in (Phase.FAULT, Phase.AFTER):
            return
        found = [
            trial.evidence
            for trial in trials
            if trial.slice == faulty and (trial.state == "guard") is (phase is Phase.AFTER)
        ]
        if found and found[0].tracks:
            self._wait(f"waiting for proof: {_progress(found[0])}")
        elif phase is Phase.FAULT:
            self._wait("waiting for a candidate: fits give way to frames")

    def _wait(self, text: str) -> None:
        self.waiting = text
        if self.elapsed_s - self._told_s >= _WAITING_EVERY_S:
            self._told_s = self.elapsed_s
            self.tell(text)

    # ---- what is heard and measured

    def tell(self, text: str) -> None:
        """Records an event now."""
        self.events.append((self.elapsed_s, text))
        self.announce(f"{self.elapsed_s:6.1f} s  {text}")

    def hear(self, record: Record) -> None:
        """Records something that happened to a recalibrator now."""
        now_s, what = self.elapsed_s, record.what
        self.heard.append((now_s, record))
        self.sequence, self.waiting, self._told_s = record.sequence, "", now_s
        if what in SWAPS:
            self.version = record.after
        bare = self.plan.slice_of(self.plan.bare)
        if record.slice == bare and what is Happened.PROMOTED and self.learned is None:
            self.learned = record, now_s, len(self.sensors[self.plan.bare].tracks)
        if record.slice == self.plan.faulty:
            self._on_trial = what in (Happened.BEGAN, Happened.PROVEN)
            self.tried |= what is Happened.BEGAN and now_s >= self.fault_began_s
            is_faulty = self.fault_began_s <= now_s < self.fault_ended_s
            if what is Happened.PROMOTED and is_faulty and math.isinf(self.promoted_s):
                self.promoted_s, self.evidence = now_s, record.evidence
            elif what is Happened.ROLLED_BACK and now_s >= self.fault_ended_s:
                self.rolled_back_s = now_s
        self.tell(in_words(record))

    def hear_alarm(self, change: AlarmChange) -> None:
        """Records an alarm that was raised, or is over."""
        alarm, raised = change.alarm, change.why is AlarmReason.RAISED
        if alarm.slice == self.plan.faulty:
            (self._alarmed.add if raised else self._alarmed.discard)(alarm.severity)
            paged = raised and alarm.severity is Severity.PAGE and math.isinf(self.paged_s)
            if paged and self.elapsed_s >= self.fault_began_s:
                self.paged_s = self.elapsed_s
                self.page = alarm_sentence(alarm).partition(" since ")[0]
        what = f"{alarm.slice} {how_wrong(alarm)} {alarm.stage.words}"
        self.tell(f"alarm {'raised' if raised else 'over'}: {alarm.severity}, {what}")

    def add_answer(self, at_s: float, answered: AnsweredFrame) -> Phase:
        """Counts a frame of this time that was answered; returns its phase."""
        frame, plan = answered.frame, self.plan
        sensor = self.sensors[frame.sensor]
        sensor.frames += 1
        sensor.detections += frame.ids.size
        if frame.sensor == plan.faulty and not answered.as_sent:
            self.correcting.add(answered.version)
        phase = self._phase(at_s, answered.version in self.correcting)
        if frame.sensor == plan.faulty:
            self.entered_s.setdefault(phase, at_s)
        return phase

    def add_truth(self, answered: AnsweredFrame, phase: Phase) -> None:
        """Counts the labels of a frame that were answered."""
        sensor, name = self.sensors[answered.frame.sensor], answered.frame.sensor
        sensor.add_truth(answered, phase)
        last_s = self.samples[-1][0] if self.samples else -1.0
        if name == self.plan.faulty and self.elapsed_s - last_s >= 1.0:
            raw, made = sensor.recent()
            if math.isfinite(raw):
                self.samples.append((self.elapsed_s, raw, made))

    def _phase(self, at_s: float, corrected: bool) -> Phase:
        if at_s < self.fault_began_s:
            return Phase.HEALTHY
        if at_s < self.fault_ended_s:
            return Phase.CORRECTED if corrected else Phase.FAULT
        return Phase.AFTER if corrected else Phase.HOME

    def lasted_s(self) -> dict[Phase, float]:
        """Measures how long each phase lasted, up to now."""
        begins = [(self.entered_s[phase], phase) for phase in Phase if phase in self.entered_s]
        ends = [*(at_s for at_s, _ in begins[1:]), self.elapsed_s]
        return {phase: end - at_s for (at_s, phase), end in zip(begins, ends, strict=False)}


# ---- words


def in_words(record: Record) -> str:
    """Writes a record for people, in one line."""
    match record.what:
        case Happened.BEGAN:
            of = " of those assumed" * (is_bare(record.slice) and bool(record.factors))
            said = f"on trial, {_factors(record.factors)}{of}"
        case Happened.PROVEN:
            said = f"proven, waits, {proof(record.evidence)}"
        case Happened.PROMOTED | Happened.ROLLED_BACK as what:
            said = f"{what.replace('_', ' ')}, {proof(record.evidence)}"
        case what:
            said = f"{what.replace('_', ' ')}, {record.reason}"
    return f"{record.slice or 'all sensors'}: {said}"


def proof(evidence: Evidence | None) -> str:
    """Writes the number of tracks, with the odds they give and those that were asked for."""
    if evidence is None:
        return "asked for"
    better, enough = _odds(evidence.log10_better), _odds(evidence.log10_threshold)
    return f"{evidence.tracks} tracks, odds {better} : 1 of {enough} : 1"


def _progress(evidence: Evidence) -> str:
    """Writes how many tracks have spoken, and how many it may take if they go on like this."""
    share = evidence.log10_better / evidence.log10_threshold
    more = f" of about {evidence.tracks / share:.0f}" if 0.1 < share < 1 else ""
    return f"{evidence.tracks}{more} tracks"


def _odds(log10: float) -> str:
    return f"{10**log10:,.0f}" if log10 < _WRITTEN_OUT else f"10^{log10:.1f}"


def _factors(factors: tuple[Factor, ...]) -> str:
    typical = [factor.typical for factor in factors]
    if not typical:
        return "as sent"
    low, high = (f"{value:.2g}" for value in (min(typical), max(typical)))
    return f"variances × {low}" + ("" if low == high else f" … {high}")
