"""The watch over drift in a running sidecar: labelled detections become evidence, evidence alarms.

A detection counts if the recalibrator that made it became active no earlier than the present epoch
of its slice began. Covariances and class probabilities of a frame go separate ways, as if they were
of two sources: each has its part of the driving time.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from monitor.drift.alarms import Alarm, AlarmChange, DriftReading, key_of
from monitor.drift.charts import Severity, Stage
from monitor.drift.class_bets import ClassLabels, TrackVotes
from monitor.drift.clocks import ReorderBuffer
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family, family_reading
from monitor.drift.reference import Reference
from monitor.drift.usual import BLOCK_NS, WatchedRows, watched_errors
from monitor.frames.frame import MatchedRows, TrackIds, no_tracks
from monitor.frames.slices import TOTAL, ClassSliceTable, SliceTable, class_member
from monitor.frames.space import BoolArray, Dimension, FloatArray, IntArray, Space
from monitor.frames.status import Counters
from monitor.pipeline.housekeeping import contained
from monitor.statistics.clusters import ALONE, ClusterArray, cluster_id
from monitor.statistics.observations import finished, measure
from monitor.statistics.windows import EventClock

log = logging.getLogger(__name__)

# Says that a fault cost some frames their part in the evidence.
NOT_WATCHED = "labelled detections were not taken in for drift"

# Frames and rows of a portion at most: evidence takes in a portion without a yield.
_FRAMES, _ROWS = 64, 4096

# Rows that may wait: five seconds of 24,000 a second. Beyond half as many the watch is behind.
_WAITING = 1 << 17

# Versions remembered. Labels for a forgotten one count only where no epoch has begun since start.
_MOST_VERSIONS = 4096

# Why detections with truth are not watched.
_LEFT_OUT = ("late", "undated", "superseded", "overload", "failed")


# What class probabilities have in place of dimensions.
_OF_CLASSES = Dimension("class")


class NoSuchSlice(ValueError):
    """A slice that nothing is known of."""


@dataclass(frozen=True, eq=False, slots=True)
class WatchedClasses:
    """Labelled detections of a frame with the probability of their likeliest class.

    index              of the class slice
    confidence, right  (2, n) as `judged` has them
    tracks             as in MatchedRows, like all below that are not told of
    unchanged          whether no recalibrator has changed the probabilities
    sequence           of the frame: what an earlier recalibrator made has a lower one
    """

    index: int
    confidence: FloatArray
    right: BoolArray
    tracks: TrackIds | None
    stamp_ns: int | None
    live: bool
    source: int
    unchanged: bool
    sequence: int

    @property
    def n(self) -> int:
        """Counts the rows."""
        return int(self.right.shape[1])


@dataclass(frozen=True, eq=False, slots=True)
class _Frame:
    """Holds rows that are to be watched, and the recalibrator that made their recalibrated stage.

    second  of event time
    """

    rows: MatchedRows | WatchedClasses
    made_by: str | None
    second: int

    @property
    def space(self) -> Space | None:
        """Returns the space of the rows; None of class probabilities."""
        return self.rows.space if isinstance(self.rows, MatchedRows) else None

    @property
    def source(self) -> int:
        """Tells sources apart, and the class probabilities of a source from its covariances."""
        return self.rows.source if isinstance(self.rows, MatchedRows) else ~self.rows.source


@dataclass(slots=True)
class _Portion:
    """Collects frames of one space, and of one second of each source, for evidence to take at once.

    Sums are rounded once a portion, and what a portion teaches counts from the next portion on. So
    the order of frames alone must decide where a portion ends, never the load of the machine.

    seconds  by source, the second of its frames
    """

    frames: list[_Frame] = field(default_factory=list)
    rows: int = 0
    seconds: dict[int, int] = field(default_factory=dict)

    def ends_before(self, frame: _Frame) -> bool:
        """Says whether a frame is the first of the next portion."""
        if not self.frames:
            return False
        return (
            frame.space != self.frames[0].space
            or self.seconds.get(frame.source, frame.second) != frame.second
            or len(self.frames) == _FRAMES
            or self.rows + frame.rows.n > _ROWS
        )

    def add(self, frame: _Frame) -> None:
        """Adds a frame; only where `ends_before` is false."""
        self.frames.append(frame)
        self.rows += frame.rows.n
        self.seconds[frame.source] = frame.second


@dataclass(slots=True)
class DriftEpochs:
    """Versions in the order in which they became active, and where the epoch of a slice begins."""

    _number: dict[str, int] = field(default_factory=dict)
    _begins: dict[int, int] = field(default_factory=dict)
    _latest: int = 0

    def begin(self, version: str, slices: Collection[int]) -> None:
        """Makes a version the latest; it serves some slices otherwise than the one before."""
        self._latest += 1
        # Last in the order: the oldest is forgotten first.
        self._number.pop(version, None)
        self._number[version] = self._latest
        if len(self._number) > _MOST_VERSIONS:
            del self._number[next(iter(self._number))]
        self._begins |= dict.fromkeys(slices, self._latest)

    def state(self, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the number of each version, and by name of a slice where its epoch begins."""
        begins = {names[i]: n for i, n in self._begins.items() if i < len(names)}
        return dict(self._number), begins

    def restore(
        self, numbers: Mapping[str, int], begins: Mapping[str, int], names: Sequence[str]
    ) -> None:
        """Continues from saved epochs, unless another version was active when they were saved."""
        latest = max(numbers, key=numbers.__getitem__, default=None)
        ours = max(self._number, key=self._number.__getitem__, default=latest)
        if latest is None or ours != latest:
            return
        self._number, self._latest = dict(numbers), numbers[latest]
        place = {name: i for i, name in enumerate(names)}
        self._begins = {place[name]: n for name, n in begins.items() if name in place}

    def current(self, slices: IntArray, version: str | None) -> BoolArray:
        """Tells which detections, made by a version, are of the present epoch of their slices.

        slices   (n,) slice of each detection
        version  None: no recalibrator could be applied
        returns  (n,)
        """
        if version is None or not self._begins:
            return np.ones(slices.size, bool)
        number = self._number.get(version, 0)
        if number == self._latest:
            return np.ones(slices.size, bool)
        found, place = np.unique(slices, return_inverse=True)
        present = [number >= self._begins.get(slice, 0) for slice in found.tolist()]
        return np.array(present, bool)[place]


@dataclass(slots=True)
class DriftWatch:
    """Feeds labelled detections of one pipeline to evidence, and tells of alarms.

    The slices of the family are those of both tables, in the order in which they were first seen.

    announce  publishes what became of an alarm
    watching  False: nothing is taken in, and no alarm ever comes
    counters  of the pipeline
    disorder_ns
              how far behind others of its source a label's frame may be, and still be in order
    clock     how far event time has come, over all sources
    left_out  detections with truth that are not watched, by why
    missed    those of the present epoch among them, by slice of covariances: how many votes labels
              of classes would have been is not known
    at_work   whether somebody is taking in what waits, or holds all as it is
    """

    settings: DriftSettings
    slices: SliceTable
    announce: Callable[[AlarmChange], None]
    watching: bool = True
    counters: Counters = field(default_factory=Counters)
    disorder_ns: int = 0
    clock: EventClock = field(default_factory=lambda: EventClock(0, 0))
    class_slices: ClassSliceTable = field(default_factory=lambda: ClassSliceTable(False, 0))
    family: Family = field(init=False)
    epochs: DriftEpochs = field(default_factory=DriftEpochs)
    # Sequence of the last frame that was answered with an earlier recalibrator of classes.
    classes_since: int = 0
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LEFT_OUT, 0))
    missed: Counter[int] = field(default_factory=Counter)
    # Places in the family of the slices of each table.
    _places: list[int] = field(default_factory=list)
    _class_places: list[int] = field(default_factory=list)
    _votes: TrackVotes = field(init=False)
    # Portions that have ended, and those that go on: of covariances, and of class probabilities.
    _ended: deque[_Portion] = field(default_factory=deque)
    _open: dict[bool, _Portion] = field(
        default_factory=lambda: {of_classes: _Portion() for of_classes in (False, True)}
    )
    _waiting_rows: int = 0
    # Labels may come in another order than their frames.
    _order: ReorderBuffer[_Frame] = field(init=False)
    at_work: bool = False

    def __post_init__(self) -> None:
        settings = self.settings
        self._order = ReorderBuffer(self.disorder_ns)
        self.family = Family(settings)
        self._votes = TrackVotes(settings.class_tolerance, settings.idle_ns, settings.most_open)

    def give(self, references: Mapping[str, Mapping[Stage, Reference]]) -> None:
        """Takes references from recorded drives, by slice; before anything is taken in."""
        self.family = Family(self.settings, references)

    def go_on(self, family: Family) -> None:
        """Goes on with the evidence of the last run; labels behind it are late."""
        for one, dimensions in zip(self.family.slices, self.family.dimensions, strict=True):
            family.grow(one.name, dimensions)
        self.family = family
        self._order.go_on(family.seconds.times.latest_ns)

    # ---- on the way in

    def add(self, rows: MatchedRows | WatchedClasses, made_by: str | None = None) -> None:
        """Takes in detections of a frame with their ground truth; cheap.

        Labels count at the time of their frames, however much later they come. Those that are not
        live are left out if newer ones of their source were taken in before.

        made_by  version of the recalibrator that made the recalibrated stage of covariances; None:
                 none could
        """
        if not self.watching or rows.n == 0:
            return
        if rows.stamp_ns is None:
            self._leave_out("undated" if rows.live else "late", rows)
            return
        if self._waiting_rows + self._order.rows + rows.n > _WAITING:
            self._leave_out("overload", rows)
            return
        frame = _Frame(rows, made_by, rows.stamp_ns // BLOCK_NS)
        if self._order.put(
            rows.stamp_ns,
            frame.source,
            frame,
            rows=rows.n,
            now_ns=self.clock.now_ns,
            refuse_late=not rows.live,
        ):
            self._take_over()
        else:
            self._leave_out("late", rows)

    def _leave_out(self, why: str, rows: MatchedRows | WatchedClasses) -> None:
        self.left_out[why] += rows.n
        if isinstance(rows, MatchedRows):
            self.missed.update(rows.slices.tolist())

    def _take_over(self) -> None:
        """Moves frames that no older frame can overtake into the open portion of their kind."""
        for frame in self._order.ready(self.clock.now_ns):
            of_classes = frame.space is None
            if self._open[of_classes].ends_before(frame):
                self._end_portion(of_classes)
            self._open[of_classes].add(frame)
            self._waiting_rows += frame.rows.n

    def _end_portion(self, of_classes: bool) -> None:
        if self._open[of_classes].frames:
            self._ended.append(self._open[of_classes])
            self._open[of_classes] = _Portion()

    @property
    def behind(self) -> bool:
        """Says whether labels should wait until some portions are taken in."""
        return self._waiting_rows > _WAITING // 2

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it lasts, nothing else takes in: evidence and what is learned are of one moment."""
        assert not self.at_work, "held while it is at work"
        self.at_work = True
        try:
            yield
        finally:
            self.at_work = False

    def begin_anew(self) -> None:
        """Lets no frame wait for older ones any longer: event time began anew, or the run ends."""
        self._order.begin_anew()
        self._take_over()

    # ---- in steps

    def catch_up(self, *, everything: bool = False) -> Generator[None, None, None]:
        """Takes in the portions that have ended, in short steps; tells alarms as they are raised.

        A fault costs the frames of its portion, and nothing else.

        everything  end the open portion here. Only for a caller outside the stream of labels: the
                    moment of the call decides where the portion ends, and so the last digits.
        """
        # Another one may be at it.
        while self.at_work:
            yield
        with self.held():
            self._grow()
            if everything:
                self._take_over()
                for of_classes in self._open:
                    self._end_portion(of_classes)
            while self._ended:
                portion = self._ended.popleft()
                frames = portion.frames
                self._waiting_rows -= portion.rows
                failed = frames
                with contained(self.counters, log, NOT_WATCHED):
                    yield from self._take(frames)
                    failed = []
                for frame in failed:
                    self._leave_out("failed", frame.rows)
                yield

    def _take(self, frames: Sequence[_Frame]) -> Generator[None, None, None]:
        self._grow()
        space = frames[0].space
        rows = self._voted(frames) if space is None else self._watched(space, frames)
        if rows is None or rows.n == 0:
            return
        # No yield since the frames were taken out: a checkpoint in between would find them neither
        # waiting nor in the evidence.
        k = 1 if space is None else len(space.joint)
        changes, learning = self.family.take(k, rows)
        for change in changes:
            self.announce(change)
        try:
            yield
            for _ in learning:
                yield
        finally:
            # Whoever reads may go away at any yield: what was taken out is learned all the same.
            finished(learning)

    def _grow(self) -> None:
        slices = self.family.slices
        for entry in self.slices.slices[len(self._places) :]:
            self._places.append(len(slices))
            space = entry.space
            self.family.grow(entry.name, [space.dimensions[i] for i in space.joint])
        for one in self.class_slices.slices[len(self._class_places) :]:
            self._class_places.append(len(slices))
            self.family.grow(class_member(one.label), [_OF_CLASSES])

    def _watched(self, space: Space, frames: Sequence[_Frame]) -> WatchedRows:
        """Measures the NEES of frames at both stages.

        Rows of another epoch are left out, then frames without rows.
        """
        rows = [frame.rows for frame in frames if isinstance(frame.rows, MatchedRows)]
        raw = made = measure(space, [(one.error, one.covariance) for one in rows])
        sound: BoolArray = raw.regular
        if not all(one.unchanged for one in rows):
            made = measure(
                space, [(one.recalibrated_error, one.recalibrated_covariance) for one in rows]
            )
            sound = sound & made.regular
        slices = np.concatenate([one.slices for one in rows])
        counts = [one.n for one in rows]
        made_by = [frame.made_by for frame in frames]
        current = np.concatenate(
            [self.epochs.current(one.slices, by) for one, by in zip(rows, made_by, strict=True)]
        )
        self.left_out["superseded"] += int(np.count_nonzero(~current))
        kept = np.flatnonzero(sound & current)
        nees, z, u, error = watched_errors(space, (raw, made), kept)
        frame = np.repeat(np.arange(len(frames)), counts)[kept]
        there, frame = np.unique(frame, return_inverse=True)
        return WatchedRows(
            slices=np.array(self._places)[slices[kept]],
            nees=nees,
            z=z,
            u=u,
            error=error,
            track=np.concatenate([_tracks(one) for one in rows])[kept],
            frame=frame,
            stamp_ns=np.array([one.stamp_ns for one in rows], np.int64)[there],
            source=np.array([one.source for one in rows], np.int64)[there],
            changed=np.array([not one.unchanged for one in rows])[there],
        )

    def _voted(self, frames: Sequence[_Frame]) -> WatchedRows | None:
        """Takes in class probabilities of frames; returns the votes of tracks that are complete."""
        rows = [frame.rows for frame in frames if isinstance(frame.rows, WatchedClasses)]
        counts = [one.n for one in rows]

        def each(values: Sequence[int]) -> IntArray:
            """Returns a value of each frame for each of its rows."""
            return np.repeat(np.array(values, np.int64), counts)

        slices = np.array(self._class_places)[each([one.index for one in rows])]
        source = each([frame.source for frame in frames])
        tracks = TrackIds.joined([one.tracks or no_tracks(one.n) for one in rows])
        track = np.where(tracks.known, cluster_id((slices, tracks.id, source, 1)), ALONE)
        confidence = np.concatenate([one.confidence for one in rows], axis=1)
        current = each([one.sequence for one in rows]) > self.classes_since
        self.left_out["superseded"] += int(np.count_nonzero(~current))
        kept = np.flatnonzero(current & np.isfinite(confidence).all(axis=0))
        return self._votes.take(
            ClassLabels(
                slices=slices[kept],
                confidence=confidence[:, kept],
                right=np.concatenate([one.right for one in rows], axis=1)[:, kept],
                track=track[kept],
                source=source[kept],
                stamp_ns=each([one.stamp_ns or 0 for one in rows])[kept],
                changed=each([not one.unchanged for one in rows])[kept] > 0,
            )
        )

    # ---- what others do

    def changed(self, version: str, slices: Collection[int], *, follows: bool = False) -> None:
        """Notes that another recalibrator is active, before any frame is made by it.

        slices   those that another one serves than before: their epoch begins anew, and so does
                 that of slices of the last run that have not come yet
        follows  it is the one before, adapted: no epoch begins
        """
        self.epochs.begin(version, slices)
        for slice in slices:
            del self.missed[slice]
        self._grow()
        places = [self._places[slice] for slice in slices]
        for change in self.family.new_epoch(places, left=not follows):
            self.announce(change)

    def classes_changed(self, sequence: int) -> None:
        """Notes that another recalibrator of class probabilities is active.

        sequence  of the last frame that the one before was active for
        """
        self.classes_since = sequence
        self._votes.forget()
        self._grow()
        for change in self.family.new_epoch(self._class_places):
            self.announce(change)

    def acknowledge(self, slices: Collection[str], actor: str) -> tuple[Alarm, ...]:
        """Ends the alarms of these slices, of all where none is named; returns those that it ended.

        raises  NoSuchSlice
        """
        known = {TOTAL, *self.slices.names, *self.family.names, *self.family.alarms.slices()}
        for name in slices:
            if name not in known:
                raise NoSuchSlice(
                    f"slices: nothing is watched of '{name[:80]}'; there are "
                    f"{', '.join(sorted(known))}."
                )
        changes = self.family.acknowledge(slices, actor)
        for change in changes:
            self.announce(change)
        return tuple(change.alarm for change in changes)

    def stays(self, alarm: Alarm) -> bool:
        """Says whether an alarm is not over yet."""
        known = self.family.alarms.latched.get(key_of(alarm))
        return known is not None and known.alarm == alarm

    @property
    def is_paged(self) -> bool:
        """Tells if an alarm of severity page is not over yet."""
        return any(key[1] is Severity.PAGE for key in self.family.alarms.latched)

    def reading(self, *, everything: bool = False) -> Generator[None, None, DriftReading]:
        """Reads evidence and alarms, in short steps.

        everything  as in catch_up: the reading covers all labels that came
        """
        if not self.watching:
            return DriftReading()
        yield from self.catch_up(everything=everything)
        self._grow()
        # Detections that could not join the bet of their track; each is bet on by itself.
        seconds = self.family.seconds
        left_out = self.left_out | {"late_seconds": seconds.late, "tracks": seconds.left_out}
        missed = {self._places[slice]: count for slice, count in self.missed.items()}
        return family_reading(self.family, tuple(left_out.items()), missed)


def _tracks(rows: MatchedRows) -> ClusterArray:
    """The track of each detection in its slice."""
    if rows.tracks is None:
        return np.full(rows.n, ALONE)
    track = cluster_id((rows.space.number, rows.slices, rows.tracks.id, rows.source))
    return np.where(rows.tracks.known, track, ALONE)
