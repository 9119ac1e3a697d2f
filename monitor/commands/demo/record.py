"""The demo's own account of a drive, kept apart from the sidecar's so that the two can be compared.

It holds counts, phases, statistics, and the changes of recalibrators that the demo heard of; no
stream and no terminal here.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.commands.demo.plan import Phase, Plan
from monitor.commands.demo.scene import SPACE, SimulatedFrame
from monitor.commands.demo.tracks import TrackingRecord
from monitor.frames.space import FloatArray
from monitor.promotion.records import SWAPS, Evidence, Factor, Happened
from monitor.promotion.records import Record as Happening
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import Selection
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import ClusterMemory, cluster_id
from monitor.statistics.stage import SliceStatistics, StageStatistics, no_statistics, observe

# Evidence is written out up to here, and as a power of ten beyond.
_WRITTEN_OUT = 6

# Frames folded in one go: half a second of a sensor.
_FOLD_FRAMES = 5
_RECENT_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Heard:
    """One thing that happened, and the event time at which the demo heard of it, in s."""

    at_s: float
    record: Happening


@dataclass(slots=True)
class Story:
    """The story of one drive, in order."""

    heard: list[Heard] = field(default_factory=list)

    @property
    def sequence(self) -> int:
        """Number of the last record; 0 before any."""
        return self.heard[-1].record.sequence if self.heard else 0

    @property
    def version(self) -> str:
        """The active version; a sidecar without a recalibrator begins with the identity."""
        swaps = self.swaps_of()
        return swaps[-1].record.after if swaps else Selection((), Identity()).version

    def swaps_of(self, slice: str | None = None) -> list[Heard]:
        """Finds the records after which another recalibrator was active, in one slice or in all."""
        return [
            one
            for one in self.heard
            if one.record.what in SWAPS and slice in (None, one.record.slice)
        ]

    def swaps(self) -> Mapping[str, Mapping[Happened, int]]:
        """Counts swaps of each kind, by slice."""
        found: dict[str, Counter[Happened]] = {}
        for one in self.swaps_of():
            found.setdefault(one.record.slice, Counter())[one.record.what] += 1
        return found

    def of(self, what: Happened, slice: str, since_s: float) -> list[Heard]:
        """Finds the records of one kind on a slice at or after an event time."""
        return [
            one
            for one in self.heard
            if one.record.what is what and one.record.slice == slice and one.at_s >= since_s
        ]


def in_words(record: Happening) -> str:
    """Writes a record for people, in one line."""
    match record.what:
        case Happened.BEGAN:
            said = f"on trial, {_factors(record.factors)}"
        case Happened.PROVEN:
            said = f"proven, waits, {proof(record.evidence)}"
        case Happened.PROMOTED:
            said = f"promoted, {proof(record.evidence)}"
        case Happened.ROLLED_BACK:
            said = f"rolled back, {proof(record.evidence)}"
        case what:
            said = f"{what.replace('_', ' ')}, {record.reason}"
    return f"{record.slice or 'all sensors'}: {said}"


def proof(evidence: Evidence | None) -> str:
    """Writes the number of tracks, with their evidence against the threshold."""
    if evidence is None:
        return "asked for"
    better, enough = _wealth(evidence.log10_better), _wealth(evidence.log10_threshold)
    return f"{evidence.tracks} tracks, evidence {better} of {enough}"


def _wealth(log10: float) -> str:
    return f"{10**log10:,.0f}" if log10 < _WRITTEN_OUT else f"10^{log10:.1f}"


def _factors(factors: tuple[Factor, ...]) -> str:
    typical = [factor.typical for factor in factors]
    if not typical:
        return "as sent"
    low, high = (f"{value:.2g}" for value in (min(typical), max(typical)))
    return f"variances × {low}" + ("" if low == high else f" … {high}")


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredFrame:
    """A frame as it was sent, with what came back for it; (N, 7) and (N, 7, 7).

    version  of the recalibrator that answered it
    """

    frame: SimulatedFrame
    version: str
    mean: FloatArray
    covariance: FloatArray


@dataclass(frozen=True, slots=True)
class Recent:
    """NEES/K over the last matched truth; NaN without any."""

    n: int
    raw: float
    recalibrated: float


@dataclass(slots=True)
class SensorRecord:
    """Frames sent on one sensor's stream, with what was heard of them.

    labelled  true detections whose truth the sidecar has answered
    """

    name: str
    binning: Binning
    frames: int = 0
    detections: int = 0
    labelled: int = 0
    _statistics: dict[Phase, SliceStatistics] = field(default_factory=dict)
    _phase: Phase = Phase.HEALTHY
    _waiting: list[AnsweredFrame] = field(default_factory=list)
    _recent: deque[tuple[int, Recent]] = field(default_factory=deque)
    _raw_memory: ClusterMemory = field(default_factory=lambda: ClusterMemory(SPACE.k + 1))
    _made_memory: ClusterMemory = field(default_factory=lambda: ClusterMemory(SPACE.k + 1))

    def add_truth(self, answered: AnsweredFrame, phase: Phase) -> None:
        """Counts the true detections of a frame of this phase."""
        if phase is not self._phase:
            self._fold()
        self._phase = phase
        self._waiting.append(answered)
        self.labelled += int(np.count_nonzero(answered.frame.track >= 0))
        if len(self._waiting) >= _FOLD_FRAMES:
            self._fold()

    def of(self, phase: Phase) -> SliceStatistics:
        """Statistics of a phase, up to now."""
        self._fold()
        return self._statistics.get(phase) or no_statistics(SPACE, self.binning)

    def whole(self) -> SliceStatistics:
        """Statistics of the whole drive."""
        total = no_statistics(SPACE, self.binning)
        for phase in Phase:
            total = total.merge(self.of(phase))
        return total

    def recent(self) -> Recent:
        """Averages the last 5 s of event time whose ground truth is known."""
        parts = [part for _, part in self._recent]
        n = sum(part.n for part in parts)
        if n == 0:
            return Recent(0, math.nan, math.nan)
        return Recent(
            n,
            sum(part.n * part.raw for part in parts) / n,
            sum(part.n * part.recalibrated for part in parts) / n,
        )

    def _fold(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        part = self._statistics_of(waiting)
        phase, stamp_ns = self._phase, waiting[-1].frame.stamp_ns
        known = self._statistics.get(phase)
        self._statistics[phase] = part if known is None else known.merge(part)
        recent = Recent(part.raw.n, _nees_over_k(part.raw), _nees_over_k(part.recalibrated))
        self._recent.append((stamp_ns, recent))
        while self._recent[0][0] <= stamp_ns - _RECENT_NS:
            self._recent.popleft()

    def _statistics_of(self, answered: list[AnsweredFrame]) -> SliceStatistics:
        """Computes both stages of all true detections of these frames; objects are clusters."""

        def true_rows(array_of: Callable[[AnsweredFrame], FloatArray]) -> FloatArray:
            return np.concatenate([array_of(a)[a.frame.track >= 0] for a in answered])

        truth = true_rows(lambda a: a.frame.truth)
        sent, made = true_rows(lambda a: a.frame.mean), true_rows(lambda a: a.mean)
        sent_covariance = true_rows(lambda a: a.frame.covariance)
        made_covariance = true_rows(lambda a: a.covariance)
        objects = np.concatenate([a.frame.track[a.frame.track >= 0] for a in answered])
        cluster = cluster_id((objects,))
        error = SPACE.error(truth, sent)
        raw = observe(SPACE, self.binning, error, sent_covariance, cluster, self._raw_memory)
        if np.array_equal(made, sent) and np.array_equal(made_covariance, sent_covariance):
            return SliceStatistics(raw, raw)
        error = SPACE.error(truth, made)
        recalibrated = observe(
            SPACE, self.binning, error, made_covariance, cluster, self._made_memory
        )
        return SliceStatistics(raw, recalibrated)


def _nees_over_k(statistics: StageStatistics) -> float:
    if statistics.n == 0:
        return math.nan
    nees = statistics.axis(statistics.joint_axis).nees
    return float(nees.sum()) / (statistics.n * len(statistics.space.joint))


def _nobody(_: str) -> None:
    """Announces to nobody: whoever looks, looks at the record."""


@dataclass(slots=True)
class Record:
    """The demo's own account of the drive.

    announce       is told of every event, as a line
    elapsed_s      event time of the drive
    frames_wall_s  wall time in which the frames were sent and answered
    behind_s       the longest that a frame was sent after it was due, wall time
    latency_s      from sending a frame to holding its answer, wall time, one per frame
    events         event time and text
    fault_ended_s  event time
    story          what happened to recalibrators
    correcting     versions that change what the faulty sensor reports, as its answers show
    entered_s      event time of the first frame of the faulty sensor in each phase
    tracking       of the faulty sensor
    """

    plan: Plan
    announce: Callable[[str], None] = _nobody
    sensors: dict[str, SensorRecord] = field(init=False)
    elapsed_s: float = 0.0
    frames_wall_s: float = 0.0
    behind_s: float = 0.0
    latency_s: list[float] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    fault_ended_s: float = math.inf
    story: Story = field(default_factory=Story)
    correcting: set[str] = field(default_factory=set)
    entered_s: dict[Phase, float] = field(default_factory=dict)
    tracking: TrackingRecord = field(default_factory=TrackingRecord)

    def __post_init__(self) -> None:
        # The sidecar's own, so that sums can be compared.
        binning = Binning()
        self.sensors = {name: SensorRecord(name, binning) for name in self.plan.settings.sensors}

    @property
    def frames(self) -> int:
        """Frames answered."""
        return sum(sensor.frames for sensor in self.sensors.values())

    @property
    def detections(self) -> int:
        """Detections in them."""
        return sum(sensor.detections for sensor in self.sensors.values())

    @property
    def labelled(self) -> int:
        """True detections whose truth was reported."""
        return sum(sensor.labelled for sensor in self.sensors.values())

    @property
    def corrects(self) -> bool:
        """Tells if the active recalibrator changes what the faulty sensor reports."""
        return self.story.version in self.correcting

    def tell(self, text: str) -> None:
        """Records an event now."""
        self.events.append((self.elapsed_s, text))
        self.announce(f"{self.elapsed_s:6.1f} s  {text}")

    def hear(self, happening: Happening) -> None:
        """Records something that happened to a recalibrator now."""
        self.story.heard.append(Heard(self.elapsed_s, happening))
        self.tell(in_words(happening))

    def add_answer(self, answered: AnsweredFrame) -> None:
        """Counts a frame that was answered."""
        frame = answered.frame
        sensor = self.sensors[frame.sensor]
        sensor.frames += 1
        sensor.detections += frame.ids.size
        if frame.sensor != self.plan.faulty:
            return
        same = np.array_equal(answered.mean, frame.mean)
        if not same or not np.array_equal(answered.covariance, frame.covariance):
            self.correcting.add(answered.version)
        self.entered_s.setdefault(self.phase_of(answered), self.plan.event_s(frame.stamp_ns))

    def fault_may_end(self, at_s: float) -> bool:
        """Tells if the fault was there, and its correction seen, for long enough."""
        return self._seen(Phase.CORRECTED, at_s, self.plan.fault_end_s)

    def drive_may_end(self, at_s: float) -> bool:
        """Tells if the drive was long enough, and the rollback was seen."""
        return self._seen(Phase.HOME, at_s, max(self.plan.duration_s, self.fault_ended_s))

    def _seen(self, phase: Phase, at_s: float, planned_s: float) -> bool:
        seen = at_s - self.entered_s.get(phase, math.inf) >= self.plan.shown_s
        return at_s >= planned_s and (seen or at_s >= planned_s + self.plan.patience_s)

    def phase_of(self, answered: AnsweredFrame) -> Phase:
        """Phase of a frame; for other sensors only once the faulty one has been answered, too."""
        at_s = self.plan.event_s(answered.frame.stamp_ns)
        corrected = answered.version in self.correcting
        if at_s < self.plan.fault_s:
            return Phase.HEALTHY
        if at_s < self.fault_ended_s:
            return Phase.CORRECTED if corrected else Phase.FAULT
        return Phase.AFTER if corrected else Phase.HOME
