"""All slices together, under the budgets of both severities: what is watched goes in, alarms come
out.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.drift.alarm import Alarm, AlarmChange, Why
from monitor.calibration.drift.alarms import Alarms
from monitor.calibration.drift.charts import CHARTS, DETECTORS, SEVERITIES, Severity, Stage
from monitor.calibration.drift.chunk import HOUR, Chunk
from monitor.calibration.drift.driving import DrivingClock
from monitor.calibration.drift.evidence import (
    NO_REFERENCE,
    ONLY_COVERAGE,
    WITH_TRACKS,
    WITHOUT_TRACKS,
    Evidence,
    Shares,
    Stretch,
    by_severity,
)
from monitor.calibration.drift.increments import BETS, Aim
from monitor.calibration.drift.observed import CHARTS_OF, likelihood_of_rows
from monitor.calibration.drift.reference import Origin, Reference
from monitor.calibration.drift.scale import scale_of
from monitor.calibration.drift.settings import DriftSettings, Unit
from monitor.calibration.drift.track_means import Finished, TrackMeans
from monitor.calibration.drift.track_seconds import TrackSeconds
from monitor.calibration.drift.usual import Usual
from monitor.calibration.drift.watched import Blocks, WatchedRows
from monitor.calibration.slices import TOTAL
from monitor.calibration.space import FloatArray, IntArray

# A chart that heeds every detection.
_FORWARDED = next(i for i, chart in enumerate(CHARTS) if chart.stage is Stage.RECALIBRATED)
_SEVERITY_OF = np.array([SEVERITIES.index(chart.severity) for chart in CHARTS])


@dataclass(frozen=True, eq=False, slots=True)
class Taken:
    """What came of some frames.

    first_frame  number of the first of them, of all
    """

    changes: list[AlarmChange]
    rows: WatchedRows
    blocks: Blocks
    first_frame: int


@dataclass(frozen=True, eq=False, slots=True)
class _Judged:
    """Slices on the board.

    chosen  (P,) which they are
    others  (2,) M of all other slices together, by severity
    """

    chosen: IntArray
    board: Evidence
    others: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class _Last:
    """A frame after which there may be an alarm.

    stamp_ns  its event time
    driven    s of driving up to it
    evidence  (P, 2) M of each slice by severity
    """

    stamp_ns: int
    driven: float
    evidence: FloatArray


@dataclass(slots=True)
class Family:
    """Of one sidecar.

    names     of its slices, by index
    epochs    of each slice
    labelled  detections with truth of each slice, in its epoch
    fed       s of driving in which there was truth of each slice
    peak      (2,) largest M of all slices together, by severity
    """

    settings: DriftSettings
    given: Mapping[str, Mapping[Stage, Reference]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    degrees: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    labelled: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    fed: FloatArray = field(default_factory=lambda: np.zeros(0))
    peak: FloatArray = field(default_factory=lambda: np.zeros(len(SEVERITIES)))
    evidence: Evidence = field(default_factory=Evidence)
    alarms: Alarms = field(default_factory=Alarms)
    clock: DrivingClock = field(default_factory=DrivingClock)
    usual: Usual = field(init=False)
    seconds: TrackSeconds = field(init=False)
    whole: TrackMeans | None = field(init=False)
    thresholds: FloatArray = field(init=False)
    _aims: dict[Stage, tuple[Aim, ...]] = field(init=False)
    # Hours driven since seconds of tracks of a source were last taken in.
    _waiting: dict[int, float] = field(default_factory=dict)
    _frames: int = 0

    def __post_init__(self) -> None:
        self.usual = Usual(self.settings, self.given)
        self.seconds = TrackSeconds(self.settings)
        strict = self.settings.unit is Unit.TRACK
        self.whole = TrackMeans(self.settings, len(CHARTS) * BETS + 1) if strict else None
        self.thresholds = np.array([self.settings.hours(severity) for severity in SEVERITIES])
        self._aims = {
            stage: tuple(
                Aim(chart.direction, self.settings.tolerance(chart.severity))
                for chart in CHARTS[CHARTS_OF[stage]]
            )
            for stage in Stage
        }

    # ---- slices and epochs

    def grow(self, name: str, k: int) -> None:
        """The next slice: its index is the number of those before it.

        k  degrees of freedom of its NEES
        """
        self.names.append(name)
        self.degrees.append(k)
        self.epochs.append(0)
        self.labelled, self.fed = np.append(self.labelled, 0), np.append(self.fed, 0.0)
        self.evidence.grow(len(self.names))
        self.usual.grow(name, k)
        for stage in Stage:
            self._set_shares(len(self.names) - 1, stage)

    def new_epoch(self, slices: Collection[int]) -> list[AlarmChange]:
        """Another recalibrator serves some slices: what it forwards is watched from the beginning.

        What the detector sends is not: if a recalibrator compensates a fault, that stays visible.
        """
        if not slices:
            return []
        changes: list[AlarmChange] = []
        forwarded = np.array([chart.stage is Stage.RECALIBRATED for chart in CHARTS])
        for slice in slices:
            self.epochs[slice] += 1
            self.labelled[slice] = 0
            self.evidence.begin_anew(slice, forwarded)
            self.evidence.peak[slice] = 0.0
            self.usual.begin_anew(slice, Stage.RECALIBRATED)
            self._set_shares(slice, Stage.RECALIBRATED)
            keys = [
                key
                for key in self.alarms.of_slices([self.names[slice]])
                if self.alarms.latched[key].alarm.stage is Stage.RECALIBRATED
            ]
            changes += self.alarms.over(keys, Why.NEW_EPOCH)
        self._forget_tracks(np.array(sorted(slices)))
        return changes

    def _forget_tracks(self, slices: IntArray) -> None:
        self.seconds.forget(slices)
        if self.whole is not None:
            self.whole.forget(slices)

    def _set_shares(self, slice: int, stage: Stage) -> None:
        reference = self.usual.references[slice][stage]
        self.evidence.set_shares(slice, CHARTS_OF[stage], _shares(reference, self.settings.unit))

    def acknowledge(self, slices: Collection[str], actor: str) -> list[AlarmChange]:
        """End the alarms of some slices; of all, where none is named."""
        keys = self.alarms.of_slices(slices)
        for slice, severity in keys:
            self._reset_peak(slice, severity)
        return self.alarms.over(keys, Why.ACKNOWLEDGED, actor)

    def _reset_peak(self, slice: str, severity: Severity) -> None:
        number = SEVERITIES.index(severity)
        if slice == TOTAL:
            self.peak[number] = 0.0
        elif slice in self.names:
            self.evidence.peak[self.names.index(slice), number] = 0.0

    # ---- evidence

    def take(self, k: int, rows: WatchedRows) -> Taken:
        """Take in some frames; what came of them, and what is to be learned from.

        k  degrees of freedom of all of them
        """
        blocks, finished = self.seconds.take(rows), self._finished(k, rows)
        of_tracks = rows.slices[:0] if finished is None else finished.slices
        chosen, lookup = _of_slices(len(self.names), rows.slices, blocks.slices, of_tracks)
        everything = self.evidence.by_chart(self.evidence.weights)
        everything[chosen] = 0.0
        chunk = Chunk(
            k,
            rows,
            lookup[rows.slices],
            blocks,
            lookup[blocks.slices],
            finished,
            lookup[of_tracks],
            {stage: self.usual.arrays(stage).take(chosen) for stage in Stage},
            self._aims,
            self.evidence.take(chosen),
            self.clock,
            self._waiting,
        )
        judged = _Judged(chosen, chunk.board, by_severity(everything).sum(axis=0))
        changes: list[AlarmChange] = []
        driven = self.clock.driven
        for stretch in chunk.stretches(lambda: float((self.thresholds - judged.others).min())):
            counts = stretch.said[:, :, _FORWARDED, 0]
            self.labelled[chosen] += counts.sum(axis=0).astype(np.int64)
            self.fed[chosen] += stretch.seconds @ (counts > 0)
            driven += float(stretch.seconds.sum())
            changes += self._judge(judged, stretch, driven)
        self.evidence.put(chosen, chunk.board)
        self._frames += rows.stamp_ns.size
        return Taken(changes + self._calmed(), rows, blocks, self._frames - rows.stamp_ns.size)

    def _finished(self, k: int, rows: WatchedRows) -> Finished | None:
        """Whole tracks, where only these say anything."""
        if self.whole is None:
            return None
        usual = {stage: self.usual.arrays(stage) for stage in Stage}
        likelihood = likelihood_of_rows(k, rows, rows.slices, usual, self._aims)
        return self.whole.take(rows, likelihood)

    def learn(self, taken: Taken) -> Generator[None, None, None]:
        """Learn what is usual from what was taken in, one slice a step; to be run to its end.

        Nothing is learned from a slice with an alarm: that is not usual.
        """
        if not self.usual.learning:
            return
        alarmed = self.alarms.slices()
        for slice in np.unique(taken.rows.slices).tolist():
            if self.names[slice] in alarmed:
                continue
            for stage in self.usual.learn(slice, taken.rows, taken.blocks, taken.first_frame):
                self._set_shares(slice, stage)
            yield

    def _judge(self, judged: _Judged, stretch: Stretch, driven: float) -> list[AlarmChange]:
        """Alarms after the last frame of a stretch; there can be none before."""
        everything = by_severity(stretch.evidence)
        totals = judged.others + everything.sum(axis=1)
        np.maximum(self.peak, totals.max(axis=0), out=self.peak)
        total, taken = totals[-1], _Last(int(stretch.stamp_ns[-1]), driven, everything[-1])
        changes: list[AlarmChange] = []
        for severity in np.flatnonzero(total >= self.thresholds).tolist():
            threshold = self.thresholds[severity]
            alone = np.flatnonzero(taken.evidence[:, severity] >= threshold).tolist()
            everything = self._by_slice(judged, taken, severity)
            concerned = self._concerned(everything, severity)
            for place in alone:
                changes += self._raised(judged, taken, place, severity, concerned)
            if not alone:
                most = int(everything.argmax())
                changes += self._raised_by_all(
                    judged, taken, most, severity, float(total[severity]), concerned
                )
        return changes

    def _by_slice(self, judged: _Judged, taken: _Last, severity: int) -> FloatArray:
        """(G,) M of every slice."""
        found: FloatArray = by_severity(self.evidence.by_chart(self.evidence.weights))[:, severity]
        found[judged.chosen] = taken.evidence[:, severity]
        return found

    def _concerned(self, evidence: FloatArray, severity: int) -> list[str]:
        """Slices of which the k-th largest M is at least T/k, for the largest such k."""
        order = np.argsort(-evidence, kind="stable")
        enough = evidence[order] * np.arange(1, order.size + 1) >= self.thresholds[severity]
        last = int(np.flatnonzero(enough).max(initial=-1))
        return [self.names[slice] for slice in order[: last + 1].tolist()]

    def _raised(
        self,
        judged: _Judged,
        taken: _Last,
        place: int,
        severity: int,
        concerned: Sequence[str],
    ) -> list[AlarmChange]:
        """An alarm of one slice, whose evidence begins anew."""
        slice = int(judged.chosen[place])
        name, evidence = self.names[slice], float(taken.evidence[place, severity])
        alarm = self._alarm(judged.board, taken, name, slice, place, severity, evidence)
        # It may be learning from the fault.
        self.usual.forget(slice)
        judged.board.begin_anew(place, np.equal(_SEVERITY_OF, severity))
        others = [one for one in concerned if one != name]
        return self.alarms.raised(alarm, self.driven_with(name), others)

    def _raised_by_all(
        self,
        judged: _Judged,
        taken: _Last,
        most: int,
        severity: int,
        evidence: float,
        concerned: Sequence[str],
    ) -> list[AlarmChange]:
        """An alarm of all slices together, told by the one with most of it; all begin anew."""
        at = np.flatnonzero(judged.chosen == most)
        board, place = (judged.board, int(at[0])) if at.size else (self.evidence, most)
        alarm = self._alarm(board, taken, TOTAL, most, place, severity, evidence)
        charts = np.equal(_SEVERITY_OF, severity)
        for board in (judged.board, self.evidence):
            for slice in range(board.slices):
                board.begin_anew(slice, charts)
        judged.others[severity] = 0.0
        return self.alarms.raised(alarm, taken.driven, concerned)

    def _alarm(
        self,
        board: Evidence,
        taken: _Last,
        name: str,
        slice: int,
        place: int,
        severity: int,
        evidence: float,
    ) -> Alarm:
        """What is wrong is what has most of the evidence of a slice, at its place on a board."""
        parts = board.by_detector()[place] * np.equal(_SEVERITY_OF, severity)[:, None]
        number, detector = (int(i) for i in np.unravel_index(int(parts.argmax()), parts.shape))
        chart, since = CHARTS[number], int(board.since[place, number])
        tempering = self.usual.references[slice][chart.stage].tempering
        lately = self.seconds.tracks_between(slice, since, taken.stamp_ns)
        return Alarm(
            slice=name,
            severity=SEVERITIES[severity],
            stage=chart.stage,
            detector=DETECTORS[detector],
            direction=chart.direction,
            evidence=evidence,
            threshold=float(self.thresholds[severity]),
            event_ns=taken.stamp_ns,
            since_ns=since,
            detections=int(board.run[place, number, 0]),
            tracks=max(int(board.tracks[place, number]), lately),
            labelled=int(self.labelled[slice]),
            scale=scale_of(board.run[place, number], tempering),
            epoch=self.epochs[slice],
            driven=taken.driven / HOUR,
        )

    def _calmed(self) -> list[AlarmChange]:
        calm = self.settings.calm_hours * HOUR
        if not calm:
            return []
        keys = [
            key
            for key, one in self.alarms.latched.items()
            if self.driven_with(key[0]) - one.since_s >= calm
        ]
        for slice, severity in keys:
            self._reset_peak(slice, severity)
        return self.alarms.over(keys, Why.CALM)

    def driven_with(self, slice: str) -> float:
        """s of driving with truth of a slice."""
        if slice == TOTAL:
            return self.clock.driven
        return float(self.fed[self.names.index(slice)]) if slice in self.names else 0.0


def _shares(reference: Reference, unit: Unit) -> Shares:
    """Of a chart, by what is known."""
    of_tracks = unit is Unit.TRACK_SECOND and reference.levels is not None
    if reference.origin is Origin.SHIPPED:
        return NO_REFERENCE if of_tracks else ONLY_COVERAGE
    return WITH_TRACKS if of_tracks else WITHOUT_TRACKS


def _of_slices(slices: int, *chosen: IntArray) -> tuple[IntArray, IntArray]:
    """(P,) slices that are in any of these, and (G,) the place of each among them."""
    there = np.zeros(slices, bool)
    for some in chosen:
        there[some] = True
    return np.flatnonzero(there), np.cumsum(there) - 1
