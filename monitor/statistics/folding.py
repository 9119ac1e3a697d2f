"""Folding of the rows of frames into sums by slice and pane.

A fold cuts frames into chunks and gives a slot to every slice and pane that any row falls in.
The sums of all slots then go into the panes at once: windows.py. Nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from monitor.frames.cholesky import add_up
from monitor.frames.classes import are_probabilities
from monitor.frames.frame import MatchedClasses, MatchedRows, PredictedRows, TrackIds
from monitor.frames.slices import ClassSliceTable, SliceTable
from monitor.frames.space import BoolArray, IntArray, Space
from monitor.statistics.bins import Binning, BinTotals, ExportEdges
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.clusters import (
    ALONE,
    ClusterArray,
    ClusterMemory,
    ClusterState,
    EarlierRows,
    cluster_id,
    clustered,
    no_clusters,
)
from monitor.statistics.exact_sums import SparseSums
from monitor.statistics.observations import (
    CHUNK,
    SlotSums,
    axis_degrees,
    measure,
    sum_by_slot,
)
from monitor.statistics.predicted import CHUNK as PREDICTED_CHUNK
from monitor.statistics.predicted import (
    CHUNK_PROBABILITIES,
    PredictedStatistics,
    PredictedSums,
    ranges_of,
)
from monitor.statistics.sample import SampleChanges, Sampler
from monitor.statistics.state import (
    ClassSliceState,
    ClassStages,
    PredictedSliceState,
    SliceState,
    SliceStatistics,
    Slicing,
    Stages,
    StatisticsState,
    by_slot,
    no_classes,
    together,
)
from monitor.statistics.windows import Frame, PaneAccumulator, PaneChanges, PaneKey, Windows

# In place of a pane's number, for rows without a stamp.
_UNSTAMPED = -(2**63)

# Class rows are looked at in steps of about a millisecond: so many probabilities, and so many rows
# where these are few.
CHUNK_VALUES = 8192
CHUNK_ROWS = 512


@dataclass(frozen=True, eq=False, slots=True)
class Slots:
    """Places of the rows of a fold.

    places    slice and pane of every slot
    kinds     (G,) ascending: slots of one pane and timeliness, ordered by slice
    live      (G,) true where the rows of a slot came in time
    slot      (N,) of each row
    cluster   (N,) the track of each row, within its source, slice and pane of the finest windows
    """

    places: list[tuple[int, PaneKey]]
    kinds: IntArray
    live: BoolArray
    slot: IntArray
    cluster: ClusterArray

    @classmethod
    def plan(cls, group: Sequence[MatchedRows], windows: Windows, clock_ns: int | None) -> Slots:
        """Gives slots to the rows of frames of one space."""
        kinds: dict[tuple[PaneKey, bool], int] = {}
        width = 1 + max(int(rows.slices.max()) for rows in group)
        codes, epochs = [], []
        for rows in group:
            key = windows.place(rows.stamp_ns, clock_ns)
            kind = kinds.setdefault((key, rows.live), len(kinds))
            codes.append(rows.slices + kind * width)
            stamp = rows.stamp_ns
            epochs.append(_UNSTAMPED if stamp is None else stamp // windows.pane_ns[0])
        used, slot = np.unique(np.concatenate(codes), return_inverse=True)
        names = list(kinds)
        kind_of, index = np.divmod(used, width)
        places = [(i, names[k][0]) for i, k in zip(index.tolist(), kind_of.tolist(), strict=True)]
        live = np.array([names[k][1] for k in kind_of.tolist()])
        return cls(places, kind_of, live, slot.astype(np.int64), _clusters(group, epochs))

    def came_in_time(
        self, space: Space, binning: Binning, cells: SparseSums, stage: int
    ) -> Iterator[SparseSums]:
        """Picks the micro-bins of what came in time, keyed by 2 · slice + stage, not by slot."""
        size = (space.k + 1) * binning.deviation.count
        for kind in np.unique(self.kinds[self.live]).tolist():
            first, end = np.searchsorted(self.kinds, (kind, kind + 1)).tolist()
            target = [2 * index + stage for index, _ in self.places[first:end]]
            yield cells.between(first * size, end * size).moved(size, np.array(target))


# At most CHUNK rows of one kind, of whole or cut frames, and their slots and clusters.
Chunk = tuple[list[MatchedRows], IntArray, ClusterArray]


def chunks(group: Sequence[MatchedRows], slots: Slots) -> Iterator[Chunk]:
    """Puts frames together in chunks, and cuts those that are larger than one."""
    end = 0
    for pieces in _pieces(group, CHUNK):
        start, end = end, end + sum(rows.n for rows in pieces)
        yield pieces, slots.slot[start:end], slots.cluster[start:end]


def _pieces(frames: Sequence[Frame], most: int) -> Iterator[list[Frame]]:
    """Gathers at most so many rows, of whole frames or pieces of these, in their order."""
    gathered: list[Frame] = []
    n = 0
    for frame in frames:
        for start in range(0, frame.n, most):
            piece = frame if frame.n <= most else frame.take(slice(start, start + most))
            if n + piece.n > most:
                yield gathered
                gathered, n = [], 0
            gathered.append(piece)
            n += piece.n
    if gathered:
        yield gathered


def _clusters(group: Sequence[MatchedRows], epochs: list[int]) -> ClusterArray:
    n = [rows.n for rows in group]
    cluster = np.full(sum(n), ALONE)
    known = np.repeat([rows.tracks is not None for rows in group], n)
    if known.any():
        tracks = TrackIds.joined([rows.tracks for rows in group if rows.tracks is not None])
        known[known] = tracks.known
        columns = (
            np.concatenate([rows.slices for rows in group]),
            np.repeat([rows.source for rows in group], n),
            np.repeat(epochs, n),
        )
        ids = tracks.id[tracks.known]
        cluster[known] = cluster_id((ids, *(column[known] for column in columns)))
    return cluster


class SliceAccumulator(PaneAccumulator[MatchedRows, SliceStatistics]):
    """Brings matched Gaussians into the regression statistics.

    live     running totals on the export bins, of what came in time; by space
    sampler  keeps some of the rows, if it is to
    """

    def __init__(
        self,
        binning: Binning,
        windows: Windows,
        edges: ExportEdges,
        fold_rows: int,
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(windows, fold_rows)
        self.binning = binning
        self.edges = edges
        self.live: dict[Space, BinTotals] = {}
        self._memory: dict[Space, ClusterMemory] = {}
        self.sampler = Sampler(0) if sampler is None else sampler

    def begin_anew(self) -> None:
        """Puts all that came so far behind every window, since time has jumped. Cheap."""
        super().begin_anew()
        # Tracks of a time that comes again are not those that were there the first time. A fold
        # that has begun goes on with those it knows.
        self._memory = {}

    def clusters(self) -> dict[Space, ClusterState]:
        """Returns the tracks that may go on, as of the rows that were folded; by space."""
        return {space: memory.state for space, memory in self._memory.items()}

    def restore_clusters(self, states: Mapping[Space, ClusterState]) -> None:
        """Goes on with the tracks of another accumulator, instead of our own.

        Raises ValueError where one has not the axes of its space.
        """
        for space, state in states.items():
            if state.axes != (axes := 2 * (space.k + 1)):
                raise ValueError(
                    f"clusters: {state.axes} axes, where {', '.join(space.names)} have {axes}: "
                    "restore them to the space they are of."
                )
        self._memory = {space: ClusterMemory(state) for space, state in states.items()}

    def _fold(self, waiting: list[MatchedRows]) -> Iterator[None]:
        """Folds at most CHUNK rows at one stage, or one slice, in a step."""
        changes = PaneChanges(self)
        sampled = SampleChanges()
        memory = self._memory
        live: list[tuple[Space, SparseSums]] = []
        for group in _groups(waiting):
            space, retracts = group[0].space, group[0].retracts
            slots = Slots.plan(group, self.windows, self.clock_ns)
            chunk_sums: list[list[SlotSums]] = []
            for chunk in chunks(group, slots):
                chunk_sums.append(
                    (yield from self._summed(space, chunk, len(slots.places), memory))
                )
            # One stage where the other is the very same, down to what came before.
            same = all(raw is made for raw, made in chunk_sums)
            sums: list[SlotSums] = []
            for parts in list(zip(*chunk_sums, strict=True))[: 2 - same]:
                sums.append(together(parts))
                yield
            for stage, part in enumerate((sums[0], sums[-1])):
                for cells in slots.came_in_time(space, self.binning, part.cells, stage):
                    live.append((space, cells))
                    yield
            found = zip(*(by_slot(space, self.binning, part) for part in sums), strict=True)
            for (index, key), statistics in zip(slots.places, found, strict=True):
                more = Stages(statistics[0], statistics[-1])
                changes.put(index, key, more.negated() if retracts else more)
                yield
            yield from self.sampler.changed(group, sampled)
        self.take(changes)
        self.sampler.take(sampled)
        for space, cells in live:
            yield
            self.totals(space).add(cells)

    def totals(self, space: Space) -> BinTotals:
        """Running totals of a space; zeros where nothing has come yet."""
        return self.live.setdefault(space, BinTotals(self.edges, space.k + 1))

    def _summed(
        self, space: Space, chunk: Chunk, slots: int, memory: dict[Space, ClusterMemory]
    ) -> Generator[None, None, list[SlotSums]]:
        """Sums of a chunk at both stages; the very same object where nothing was changed."""
        frames, slot, cluster = chunk
        unchanged, retracts = frames[0].unchanged, frames[0].retracts
        raw = made = measure(space, [(rows.error, rows.covariance) for rows in frames])
        yield
        if not unchanged:
            made = measure(
                space,
                [(rows.recalibrated_error, rows.recalibrated_covariance) for rows in frames],
            )
            yield
        sound = raw.regular if made is raw else raw.regular & made.regular
        if not sound.all():
            # Both stages are of the same detections.
            slot, cluster = slot[sound], cluster[sound]
            raw, made = raw.take(sound), raw.take(sound) if made is raw else made.take(sound)
        before = None
        if cluster.any():
            if space not in memory:
                memory[space] = ClusterMemory(no_clusters(2 * (space.k + 1)))
            # The axes of the raw stage first, then those of the recalibrated one.
            degrees = axis_degrees(space)
            x = np.concatenate([clustered(raw.nees, degrees), clustered(made.nees, degrees)])
            before = memory[space].before(cluster, x, back=retracts)
        # The stages differ if an earlier detection of a track was recalibrated.
        axes = space.k + 1
        alike = before is None or np.array_equal(before.sums[:axes], before.sums[axes:])
        found: list[SlotSums] = []
        for stage, rows in enumerate((raw, made)):
            if stage and unchanged and alike:
                found.append(found[0])
            else:
                earlier = before and EarlierRows(before.rows, np.split(before.sums, 2)[stage])
                sums = yield from sum_by_slot(space, self.binning, rows, slot, slots, earlier)
                found.append(sums)
            yield
        return found


def _groups(waiting: list[MatchedRows]) -> Iterator[list[MatchedRows]]:
    """Groups rows of one space, with one stage or two, all counted or all retracted.

    What is retracted comes after what was counted before it, and before what is counted later.
    """
    for _, run in groupby(waiting, lambda rows: rows.retracts):
        by_kind: dict[tuple[Space, bool], list[MatchedRows]] = {}
        for rows in run:
            by_kind.setdefault((rows.space, rows.unchanged), []).append(rows)
        yield from by_kind.values()


class ClassAccumulator(PaneAccumulator[MatchedClasses, ClassStages]):
    """Brings matched class probabilities into the class statistics."""

    def _fold(self, waiting: list[MatchedClasses]) -> Iterator[None]:
        """Folds a chunk at one stage in a step."""
        by_place: dict[tuple[int, PaneKey, int, bool, bool], list[MatchedClasses]] = {}
        for rows in waiting:
            key = self.windows.place(rows.stamp_ns, self.clock_ns)
            kind = (rows.index, key, rows.opinions.shape[1], rows.made is None, rows.retracts)
            by_place.setdefault(kind, []).append(rows)
        changes = PaneChanges(self)
        for (index, key, *_, retracts), group in by_place.items():
            _, opinions, classes = group[0].opinions.shape
            found = no_classes(classes)
            for pieces in _pieces(
                group, max(1, min(CHUNK_ROWS, CHUNK_VALUES // (opinions * classes)))
            ):
                found = found.merge((yield from _observed_classes(pieces)))
                yield
            changes.put(index, key, found.negated() if retracts else found)
            yield
        self.take(changes)


def _observed_classes(chunk: Sequence[MatchedClasses]) -> Generator[None, None, ClassStages]:
    """Adds up rows that were all recalibrated, or all not."""
    opinions = np.concatenate([rows.opinions for rows in chunk])
    label = np.concatenate([rows.label for rows in chunk])
    count = opinions.shape[1]
    mean, several = opinions[:, 0], None
    if count > 1:
        mean, several = add_up(opinions.transpose(1, 0, 2)) / count, opinions
    raw = observe_classes(mean, label, several)
    made = [rows.made for rows in chunk if rows.made is not None]
    if not made:
        return Stages(raw, raw)
    yield
    recalibrated = np.concatenate(made)
    # What no recalibrator made goes on as it was sent: both stages are of the same detections.
    recalibrated = np.where(are_probabilities(recalibrated.T)[:, None], recalibrated, mean)
    return Stages(raw, observe_classes(recalibrated, label))


# Frames that are looked at, and slices that change, in one step of a fold; and folds of matched
# rows that make one of these, which are a tenth of the size: most of their cost is by slice.
_FRAMES, _AT_A_TIME, _FOLDS = 256, 4, 4


class PredictedAccumulator(PaneAccumulator[PredictedRows, PredictedStatistics]):
    """Brings all detections, labelled or not, into the statistics of what is predicted."""

    def __init__(self, windows: Windows, fold_rows: int, dimensions: tuple[str, ...]) -> None:
        """Begins with nothing; dimensions: names of those that make up the position."""
        super().__init__(windows, _FOLDS * fold_rows)
        self.dimensions = dimensions

    def _fold(self, waiting: list[PredictedRows]) -> Iterator[None]:
        """Folds a chunk, or a few slices, in a step."""
        changes = PaneChanges(self)
        # Rows that lie side by side are of one space, with as many opinions and classes.
        by_kind: dict[tuple[PaneKey, int, int, tuple[int, ...]], list[PredictedRows]] = {}
        for number, rows in enumerate(waiting, start=1):
            if number % _FRAMES == 0:
                yield
            key = self.windows.place(rows.stamp_ns, self.clock_ns)
            shape = () if rows.opinions is None else rows.opinions.shape[1:]
            kind = key, rows.space.number, rows.roots.shape[1], shape
            by_kind.setdefault(kind, []).append(rows)
        for (key, *_, shape), frames in by_kind.items():
            most = max(1, min(PREDICTED_CHUNK, CHUNK_PROBABILITIES // math.prod(shape)))
            used = np.flatnonzero(np.bincount(np.concatenate([rows.slices for rows in frames])))
            slot_of = np.zeros(int(used[-1]) + 1, np.int64)
            slot_of[used] = np.arange(used.size)
            sums = PredictedSums.of_none(used.size)
            for pieces in _pieces(frames, most):
                slot = slot_of[np.concatenate([rows.slices for rows in pieces])]
                mean = np.concatenate([rows.mean for rows in pieces])
                sums.add(pieces, slot, ranges_of(frames[0].space, mean, self.dimensions))
                yield
            for i, (index, more) in enumerate(zip(used.tolist(), sums.by_slot(), strict=True)):
                changes.put(index, key, more)
                if i % _AT_A_TIME == _AT_A_TIME - 1:
                    yield
        self.take(changes)


# ---- what all have counted


def slicing_of(slices: SliceTable) -> Slicing:
    """Returns the settings that tell slices apart."""
    by, ranges = tuple(sorted(slices.by)), slices.ranges
    return Slicing(by) if ranges is None else Slicing(by, ranges.edges, ranges.dimensions)


def counted_state(
    tables: tuple[SliceTable, ClassSliceTable],
    accumulators: tuple[SliceAccumulator, ClassAccumulator, PredictedAccumulator],
) -> StatisticsState:
    """Returns what lies in the panes, which have moved on to one event time."""
    (slices, class_slices), (matched, classes, predicted) = tables, accumulators
    return StatisticsState(
        binning=matched.binning,
        windows=matched.windows,
        clock_ns=max(
            (one.clock_ns for one in accumulators if one.clock_ns is not None), default=None
        ),
        slices=tuple(
            SliceState(entry.key, entry.space, entry.overflow, matched.panes.get(index, {}))
            for index, entry in enumerate(slices.slices)
        ),
        class_slices=tuple(
            ClassSliceState(
                entry.name, entry.class_names, classes.panes.get(index, {}), entry.overflow
            )
            for index, entry in enumerate(class_slices.slices)
        ),
        slicing=slicing_of(slices),
        predicted=tuple(
            PredictedSliceState(entry.key, entry.space, entry.overflow, found)
            for index, entry in enumerate(slices.slices)
            if (found := predicted.panes.get(index))
        ),
    )
