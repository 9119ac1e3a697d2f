"""The family of all slices, which share the false-alarm budgets: detections go in, alarms come out.

A family never reads a clock: time is what the stamps of frames with ground truth say.

Its state is one value, from which another family goes on after a restart. What is known is kept:
evidence, references and what is being learned, alarms, hours. What merely goes on begins anew:
tracks and seconds of tracks, clocks, who spoke for an alarm. How the value is written to disk is
not said here.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Interval, Len

from monitor.drift.alarms import (
    LONGEST_NAME,
    AlarmChange,
    AlarmCount,
    AlarmReason,
    Alarms,
    Counted,
    DriftReading,
    DriftState,
    Key,
    Latched,
    SliceStanding,
    StageStanding,
    key_of,
)
from monitor.drift.bets import Aim
from monitor.drift.channels import CHANNELS, SHIPPED, channels
from monitor.drift.charts import CHARTS, CHARTS_OF, SEVERITIES, UNKNOWN, Severity, Stage, of_stage
from monitor.drift.chunk import MOST_SEEN, Chunk, RecentTracks, Supporters
from monitor.drift.clocks import DrivingClock
from monitor.drift.correlation import Records, Seconds
from monitor.drift.evidence import (
    HOUR,
    LARGEST_SUM,
    DriftSettings,
    Evidence,
    Unit,
    by_severity,
    scale_of,
    shares_of,
)
from monitor.drift.reference import Reference
from monitor.drift.track_seconds import SECOND, TrackSeconds
from monitor.drift.usual import SliceState, Usual, WatchedRows
from monitor.frames.marks import ArrayForm, Count, Nanoseconds
from monitor.frames.slices import TOTAL, is_of_classes
from monitor.frames.space import MOST_SLICES, Dimension, FloatArray

# Share of the threshold of an alarm from which a slice reads WARNING.
_WARNING = 0.1

# Below so many labelled detections a slice reads TOO_FEW in place of OK.
_FEWEST = 100

# A chart that counts every detection: raw charts skip those that no recalibrator changed.
_FORWARDED = next(i for i, chart in enumerate(CHARTS) if chart.stage is Stage.RECALIBRATED)


@dataclass(slots=True)
class Family:
    """All slices of one sidecar.

    slices    by index
    dimensions
              of the joint block of each
    evidence  of all of them
    peak      (2,) largest M of all slices together, by severity
    left      slices of the last run that have not come yet, by name and K
    supporters
              tracks that say that something is wrong, by second
    seen      tracks that any alarm may be of, by frame
    frames    that ever came
    given     references from recorded drives, as in Usual
    """

    settings: DriftSettings
    given: InitVar[Mapping[str, Mapping[Stage, Reference]] | None] = None
    slices: list[SliceState] = field(default_factory=list)
    dimensions: list[tuple[Dimension, ...]] = field(default_factory=list)
    peak: FloatArray = field(default_factory=lambda: np.zeros(len(SEVERITIES)))
    evidence: Evidence = field(default_factory=Evidence)
    alarms: Alarms = field(default_factory=Alarms)
    clock: DrivingClock = field(default_factory=DrivingClock)
    left: dict[tuple[str, int], SliceState] = field(default_factory=dict)
    supporters: Supporters = field(init=False)
    seen: RecentTracks = field(default_factory=lambda: RecentTracks(MOST_SEEN))
    frames: int = 0
    usual: Usual = field(init=False)
    seconds: TrackSeconds = field(init=False)
    thresholds: FloatArray = field(init=False)
    aims: dict[Stage, tuple[Aim, ...]] = field(init=False)

    def __post_init__(self, given: Mapping[str, Mapping[Stage, Reference]] | None) -> None:
        self.usual = Usual(self.settings, given or {}, self.slices)
        self.seconds = TrackSeconds(self.settings)
        self.supporters = Supporters(self.settings.fewest_tracks)
        self.thresholds = np.array([self.settings.hours(severity) for severity in SEVERITIES])
        self.aims = {
            stage: tuple(
                Aim(chart.direction, self.settings.tolerance(chart.severity))
                for chart in CHARTS[CHARTS_OF[stage]]
            )
            for stage in Stage
        }

    @property
    def names(self) -> list[str]:
        """Lists the names of the slices."""
        return [one.name for one in self.slices]

    @property
    def places(self) -> Iterator[tuple[SliceState, Evidence, int]]:
        """Tells where the evidence of each slice is, and in which row; those that are left last."""
        yield from ((one, self.evidence, row) for row, one in enumerate(self.slices))
        yield from ((one, one.evidence, 0) for one in self.left.values())

    # ---- slices and epochs

    def grow(self, name: str, dimensions: Sequence[Dimension]) -> None:
        """Adds the next slice: its index is the number of those before it.

        A slice that the last run has left goes on from there.

        dimensions  of the joint block, as many as its NEES has degrees of freedom
        """
        k = len(dimensions)
        self.dimensions.append(tuple(dimensions))
        slice, one = len(self.slices), self.left.pop((name, k), None) or SliceState.begun(name, k)
        self.evidence.grow(slice + 1)
        self.evidence.put(np.array([slice]), one.evidence)
        one.evidence = Evidence()
        self.evidence.degrees[slice] = k
        for stage in self.usual.grow(one):
            # It was gathered against another reference.
            self.evidence.begin_anew(slice, of_stage(stage))
        for stage in Stage:
            self._set_shares(slice, stage)

    def new_epoch(self, slices: Collection[int], *, left: bool = False) -> list[AlarmChange]:
        """Begins an epoch of some slices, which another recalibrator serves from now on.

        What it forwards is watched from the beginning. What the detector sends is not: if a
        recalibrator compensates a fault, that stays visible.

        left  all slices that have not come yet as well
        """
        stage, known = Stage.RECALIBRATED, self.names
        names = {known[slice] for slice in slices}
        for number, (one, evidence, row) in enumerate(self.places):
            if not (number in slices or (left and number >= len(known))):
                continue
            one.epoch, one.labelled = one.epoch + 1, 0
            evidence.begin_anew(row, of_stage(stage))
            evidence.chain[row, stage] = 0.0
            self.usual.begin_anew(one, stage)
            if number < len(known):
                self._set_shares(number, stage)
            elif one.name not in known:
                names.add(one.name)
        self.seconds.forget(np.array(sorted(slices), np.int64))
        self._begin_peaks([(name, severity, stage) for name in names for severity in SEVERITIES])
        forwarded = [key for key in self.alarms.latched if key[0] in names and key[2] is stage]
        return self.alarms.over(forwarded, AlarmReason.NEW_EPOCH)

    def _set_shares(self, slice: int, stage: Stage) -> None:
        one = self.slices[slice]
        reference, of_change = one.reference(stage), stage is Stage.RAW and one.known
        for chart in range(CHARTS_OF[stage].start, CHARTS_OF[stage].stop):
            direction = CHARTS[chart].direction
            shares = shares_of(reference, self.settings.unit, direction, of_change=of_change)
            self.evidence.set_shares(slice, chart, shares)

    def acknowledge(self, slices: Collection[str], actor: str) -> list[AlarmChange]:
        """Ends the alarms of some slices; of all, where none is named."""
        keys = self.alarms.of_slices(slices)
        for slice, one in enumerate(self.slices):
            if any(key[0] == one.name and key[2] is Stage.RAW for key in keys):
                # What a recalibrator compensates is known now: what is news is a change of it.
                one.known = True
                self.evidence.begin_anew(slice, of_stage(Stage.RAW))
                self._set_shares(slice, Stage.RAW)
        self._begin_peaks(keys)
        return self.alarms.over(keys, AlarmReason.ACKNOWLEDGED, actor)

    def _begin_peaks(self, keys: Collection[Key]) -> None:
        """Resets the peaks of evidence that are reported with these alarms.

        The peak of a slice counts from its own last acknowledgement, epoch or calm; that of all
        slices together from the last of any slice.
        """
        for number, severity in enumerate(SEVERITIES):
            slices = {key[0] for key in keys if key[1] is severity}
            if slices:
                self.peak[number] = 0.0
            for one, evidence, row in self.places:
                if one.name in slices:
                    evidence.peak[row, number] = 0.0

    # ---- evidence

    def take(
        self, k: int, rows: WatchedRows
    ) -> tuple[list[AlarmChange], Generator[None, None, None]]:
        """Takes in some frames; returns the alarms, and the learning from them.

        It learns one slice a step, and is to be run to its end.

        k  degrees of freedom of all of them
        """
        if rows.votes is None:
            seconds, apart = self.seconds.take(k, rows)
        else:  # tracks vote on class probabilities as a whole
            seconds, apart = np.zeros(0, SECOND), np.full(rows.n, np.nan)
        self.usual.see(rows, apart)
        chunk = Chunk(self, k, rows, apart, seconds)
        chosen = chunk.chosen
        changes: list[AlarmChange] = []
        fed, epochs = [one.fed for one in self.slices], [one.epoch for one in self.slices]
        for stretch in chunk.stretches():
            counts = stretch.said[:, :, _FORWARDED, 0]
            labelled, driven = counts.sum(axis=0), stretch.seconds @ (counts > 0)
            for place, number in enumerate(chosen.tolist()):
                self.slices[number].labelled += int(labelled[place])
                self.slices[number].fed += float(driven[place])
            # Tracks are added stretch by stretch: one that appears after the frame of an alarm is
            # none of its tracks.
            begin = stretch.begin - self.frames
            ends = np.searchsorted(rows.frame, (begin, begin + stretch.seconds.size))
            part = slice(*ends.tolist())
            self.seen.add(rows.slices[part], rows.track[part], self.frames + rows.frame[part])
            np.maximum(self.peak, chunk.totals(stretch).max(axis=0), out=self.peak)
            for alarm, of, concerned in chunk.crossings(stretch):
                if of is not None:
                    # It may be learning from the fault.
                    self.usual.forget(of, alarm.stage)
                since_s = stretch.driven if of is None else self._fed(self.slices[of])
                changes += self.alarms.raised(alarm, since_s, concerned)
        self.evidence.put(chosen, chunk.board)
        self.seconds.explain(seconds)
        learning = self._learn(rows, seconds, self.frames, fed, epochs)
        self.frames += rows.stamp_ns.size
        changes += self._calmed()
        return changes, learning

    def _learn(
        self,
        rows: WatchedRows,
        seconds: Records,
        first_frame: int,
        fed_before: list[float],
        epochs: list[int],
    ) -> Generator[None, None, None]:
        """Learns references from what was taken in, as the slices were fed and of these epochs.

        Nothing is learned from a stage of a slice with an alarm: that is not usual; nor from what
        was forwarded before an epoch that has begun meanwhile.
        """
        if not self.usual.learning:
            return
        alarmed = {stage: self.alarms.slices(stage) for stage in Stage}
        for slice in np.unique(np.concatenate([rows.slices, seconds["slice"]])).tolist():
            one = self.slices[slice]
            stages = [stage for stage in Stage if one.name not in alarmed[stage]]
            if one.epoch != epochs[slice]:
                stages = [stage for stage in stages if stage is Stage.RAW]
            before, fed = [one.reference(stage) for stage in Stage], fed_before[slice]
            for stage in self.usual.learn(slice, stages, rows, seconds, first_frame, fed):
                self._set_shares(slice, stage)
                self._reckon_from(slice, stage, before[stage])
            yield

    def _reckon_from(self, slice: int, stage: Stage, before: Reference) -> None:
        """Measures the common level of a slice from its new reference in place of the old one."""
        self.evidence.chain[slice, stage] = 0.0
        one = self.slices[slice]
        old, new = before.levels, one.reference(stage).levels
        if old is not None and new is not None:
            shift = np.zeros(CHANNELS)
            shift[channels(one.k)] = old.mean - new.mean
            shift[SHIPPED] = 0.0
            self.seconds.reckon_from(slice, stage, shift)

    def _fed(self, one: SliceState) -> float:
        """Returns s of driving with truth of a slice; all driving where votes come now and then."""
        return self.clock.driven if is_of_classes(one.name) else one.fed

    def _calmed(self) -> list[AlarmChange]:
        calm = self.settings.calm_hours * HOUR
        if not calm:
            return []
        fed = {one.name: self._fed(one) for one in self.slices} | {TOTAL: self.clock.driven}
        latched = self.alarms.latched.items()
        keys = [key for key, one in latched if fed.get(key[0], 0.0) - one.since_s >= calm]
        self._begin_peaks(keys)
        return self.alarms.over(keys, AlarmReason.CALM)


# ---- how all slices stand


def family_reading(
    family: Family, left_out: tuple[tuple[str, int], ...], missed: Mapping[int, int]
) -> DriftReading:
    """Reads how all slices stand, as of now.

    left_out  detections with ground truth that were not watched, by why
    missed    those of the present epochs, by slice
    """
    charts, names = family.evidence.by_chart(family.evidence.weights), family.names
    evidence = by_severity(charts)
    few = {one.name: _few(one.labelled, missed.get(i, 0)) for i, one in enumerate(family.slices)}
    watched = sum(one.labelled for one, *_ in family.places)
    few[TOTAL] = _few(watched, sum(missed.values()))
    total = [float(of_severity.sum()) for of_severity in evidence.T]
    rows = [*zip(names, evidence, family.evidence.peak, strict=True), (TOTAL, total, family.peak)]
    standings = [
        _standing(family, name, severity, float(gathered[s]), float(peak[s]), few.get(name, False))
        for name, gathered, peak in rows
        for s, severity in enumerate(SEVERITIES)
    ]
    # Alarms of the last run, of slices of which nothing has come in this one.
    standings += [
        _standing(family, name, severity, 0.0, 0.0, False)
        for name, severity in dict.fromkeys(key[:2] for key in family.alarms.latched)
        if name not in (TOTAL, *names)
    ]
    return DriftReading(
        standings=tuple(standings),
        stages=tuple(
            _stage(family, i, stage, of_slice)
            for i, of_slice in enumerate(charts)
            for stage in Stage
        ),
        counts=family.alarms.told(),
        epochs=tuple((one.name, one.epoch) for one in family.slices),
        driven=family.clock.driven / HOUR,
        left_out=left_out,
    )


def _few(watched: int, missed: int) -> bool:
    """Says that what was watched does not show that all is well."""
    return watched < max(_FEWEST, missed)


def _standing(
    family: Family, name: str, severity: Severity, evidence: float, peak: float, few: bool
) -> SliceStanding:
    threshold = family.settings.hours(severity)
    alarm = family.alarms.of(name, severity)
    if alarm is not None:
        state = DriftState.ALARM
    elif evidence >= _WARNING * threshold:
        state = DriftState.WARNING
    elif few:
        state = DriftState.TOO_FEW
    else:
        state = DriftState.OK
    return SliceStanding(name, severity, state, evidence, peak, threshold, alarm)


def _stage(family: Family, slice: int, stage: Stage, charts: FloatArray) -> StageStanding:
    reference = family.slices[slice].reference(stage)
    number = CHARTS_OF[stage].start + int(np.argmax(charts[CHARTS_OF[stage]]))
    scale = scale_of(family.evidence.run[slice, number], family.usual.worth(slice, stage))
    of_classes = is_of_classes(family.slices[slice].name)
    unit = _counted(family, slice, reference)
    of_frames = unit is Counted.FRAME
    return StageStanding(
        slice=family.slices[slice].name,
        stage=stage,
        scale=UNKNOWN if of_classes else scale,
        effective_ratio=reference.frame_tempering
        if of_frames
        else family.usual.tempering(slice, stage),
        reference=reference.origin,
        reference_tracks=0 if reference.levels is None else reference.levels.tracks,
        reference_detections=reference.detections,
        unit=unit,
    )


def _counted(family: Family, slice: int, reference: Reference) -> Counted:
    if family.usual.frame_size[slice]:
        return Counted.FRAME
    if is_of_classes(family.slices[slice].name):
        return Counted.TRACK
    of_tracks = family.settings.unit is Unit.TRACK_SECOND and reference.is_of_tracks
    return Counted.TRACK_SECOND if of_tracks else Counted.DETECTION


# Slices that are kept, at most: those that are there, and as many that have not come back.
MOST_KEPT = 2 * (MOST_SLICES + 1)

# Alarms that stay, at most; names of slices that are long gone add up.
MOST_LATCHED = len(SEVERITIES) * MOST_KEPT

# On the mean, in σ.
BiasTolerance = Annotated[float, Interval(gt=0.0, le=1e9)]

# On σ.
Tolerance = Annotated[float, Interval(ge=1.0, le=1e9)]
_PEAK = ArrayForm(np.float64, (len(SEVERITIES),), 0.0, LARGEST_SUM)


@dataclass(frozen=True, slots=True)
class EvidenceTerms:
    """How evidence was gathered: it is of this alone.

    selection  version of the recalibrator that made what is forwarded
    """

    page_tolerance: Tolerance
    ticket_tolerance: Tolerance
    unit: Unit
    selection: str
    bias_tolerance: BiasTolerance
    class_tolerance: Tolerance

    @classmethod
    def under(cls, settings: DriftSettings, selection: str) -> EvidenceTerms:
        """Returns how evidence is gathered under these settings."""
        return cls(
            settings.page_tolerance,
            settings.ticket_tolerance,
            settings.unit,
            selection,
            settings.bias_tolerance,
            settings.class_tolerance,
        )


@dataclass(frozen=True, eq=False, slots=True)
class FamilyState:
    """All slices; fields as in Family and Alarms.

    driven     s
    peak       (2,)
    frames     that ever came: evidence and learners count them
    latest_ns  time of each source: tracks that it has by then may have been bet on
    numbers, begins
               versions in the order in which they became active, and with which of them the epoch
               of a slice began, by name
    """

    gathered: EvidenceTerms
    driven: Seconds
    peak: Annotated[FloatArray, _PEAK]
    latched: Annotated[tuple[Latched, ...], Len(0, MOST_LATCHED)]
    counts: tuple[AlarmCount, ...]
    frames: Count = 0
    latest_ns: Mapping[int, Nanoseconds] = field(default_factory=dict)
    numbers: Mapping[str, Count] = field(default_factory=dict)
    begins: Mapping[str, Count] = field(default_factory=dict)
    slices: Annotated[tuple[SliceState, ...], Len(0, MOST_KEPT)] = ()


def family_state(family: Family, selection: str) -> FamilyState:
    """Returns the state as of now, but for what is being learned, which goes on.

    `numbers` and `begins` are for others to say.

    selection  version of the active recalibrator
    """
    slices = []
    for one, evidence, row in family.places:
        copy = evidence.take(np.array([row]))
        # Bets without weight too: from when tracks may have changed is told by what they gather.
        copy.sums = np.minimum(copy.sums, LARGEST_SUM)
        copy.peak = np.minimum(copy.peak, LARGEST_SUM)
        slices.append(one.copied(copy))
    return FamilyState(
        gathered=EvidenceTerms.under(family.settings, selection),
        driven=family.clock.driven,
        peak=np.minimum(family.peak, LARGEST_SUM),
        latched=tuple([one for one in family.alarms.latched.values() if _kept(one.alarm.slice)])[
            -MOST_LATCHED:
        ],
        counts=tuple(AlarmCount(*what, count) for what, count in family.alarms.counts.items()),
        frames=family.frames,
        latest_ns=family.seconds.times.latest_ns,
        slices=tuple([one for one in slices if _kept(one.name)][:MOST_KEPT]),
    )


def _kept(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME


def restored_family(
    state: FamilyState,
    settings: DriftSettings,
    given: Mapping[str, Mapping[Stage, Reference]],
    selection: str,
) -> tuple[Family, list[AlarmChange]]:
    """Returns a family whose slices go on as they come, and what became of alarms.

    Under other tolerances or another unit evidence begins anew; under another recalibrator every
    slice has a new epoch. Otherwise alarms stay, and so do references.

    given      as in Family
    selection  version of the active recalibrator
    """
    family = Family(settings, given)
    family.clock.driven, family.frames = state.driven, state.frames
    family.seconds.go_on(state.latest_ns)
    family.alarms = Alarms(
        {key_of(one.alarm): one for one in state.latched},
        {(one.stage, one.detector, one.direction): one.alarms for one in state.counts},
    )
    for one in state.slices:
        family.left[one.name, one.k] = one.copied(one.evidence.take(np.arange(1)))
    if replace(state.gathered, selection=selection) == EvidenceTerms.under(settings, selection):
        family.peak = state.peak.copy()
    else:
        for one in family.left.values():
            one.evidence.begin_anew(0, np.ones(len(CHARTS), bool))
            one.evidence.peak[:] = 0.0
    if state.gathered.selection == selection:
        return family, []
    return family, family.new_epoch([], left=True)
