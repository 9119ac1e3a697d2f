"""Matched Gaussians of all slices by pane: how a fold brings rows into the statistics."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import groupby

import numpy as np

from monitor.calibration.binning import Binning
from monitor.calibration.clusters import (
    Before,
    ClusterArray,
    ClusterMemory,
    ClusterState,
    clustered,
)
from monitor.calibration.export_bins import BinTotals, ExportEdges
from monitor.calibration.fold_plan import Chunk, Slots, chunks
from monitor.calibration.matched import MatchedRows
from monitor.calibration.measured import Measured, measure
from monitor.calibration.pane_accumulator import PaneAccumulator, PaneChanges
from monitor.calibration.slice_statistics import SliceStatistics, no_statistics
from monitor.calibration.space import Space
from monitor.calibration.sparse_sums import SparseSums
from monitor.calibration.statistics import by_slot, together
from monitor.calibration.summing import SlotSums, axis_degrees, sum_by_slot
from monitor.calibration.windows import Windows


class SliceAccumulator(PaneAccumulator[MatchedRows, SliceStatistics]):
    """Of the regression statistics.

    live  running totals on the export bins, of what came in time; by space
    """

    def __init__(
        self, binning: Binning, windows: Windows, edges: ExportEdges, fold_rows: int
    ) -> None:
        super().__init__(windows, fold_rows)
        self.binning = binning
        self.edges = edges
        self.live: dict[Space, BinTotals] = {}
        self._memory: dict[Space, ClusterMemory] = {}

    def begin_anew(self) -> None:
        """Time has jumped: all that came so far is older than every window. Cheap."""
        super().begin_anew()
        # Tracks of a time that comes again are not those that were there the first time. A fold
        # that has begun goes on with those it knows.
        self._memory = {}

    def clusters(self) -> dict[Space, ClusterState]:
        """Tracks that may go on, as of the rows that were folded; by space."""
        return {space: memory.state() for space, memory in self._memory.items()}

    def restore_clusters(self, states: Mapping[Space, ClusterState]) -> None:
        """Go on with the tracks of another accumulator, instead of our own.

        Raises ValueError where one has not the axes of its space.
        """
        for space, state in states.items():
            if state.axes != (axes := _memory_axes(space)):
                raise ValueError(
                    f"clusters: {state.axes} axes, where {', '.join(space.names)} have {axes}: "
                    "restore them to the space they are of."
                )
        self._memory = {space: ClusterMemory.restored(state) for space, state in states.items()}

    def _fold(self, waiting: list[MatchedRows]) -> Iterator[None]:
        """At most CHUNK rows at one stage, or one slice, in a step."""
        changes = PaneChanges(self)
        memory = self._memory
        live: list[tuple[Space, SparseSums]] = []
        for space, unchanged, retracts, group in _groups(waiting):
            slots = Slots.plan(group, self.windows, self.clock_ns)
            stages: list[list[SlotSums]] = [[], []]
            for chunk in chunks(group, slots):
                yield from self._chunk(
                    space, chunk, unchanged, retracts, slots.count, stages, memory
                )
            # One stage where the other is the very same, down to what came before.
            same = all(raw is made for raw, made in zip(*stages, strict=True))
            sums: list[SlotSums] = []
            for parts in stages[: 2 - same]:
                sums.append(together(parts))
                yield
            for stage, part in enumerate((sums[0], sums[-1])):
                for cells in slots.came_in_time(space, self.binning, part.cells, stage):
                    live.append((space, cells))
                    yield
            found = zip(*(by_slot(space, self.binning, part) for part in sums), strict=True)
            for (index, key), statistics in zip(slots.places, found, strict=True):
                more = SliceStatistics(statistics[0], statistics[-1])
                if retracts:
                    more = no_statistics(space, self.binning).retract(more)
                changes.put(index, key, more)
                yield
        self.take(changes)
        for space, cells in live:
            yield
            self.totals(space).add(cells)

    def totals(self, space: Space) -> BinTotals:
        """Of a space; zeros where nothing has come yet."""
        return self.live.setdefault(space, BinTotals(self.edges, space.k + 1))

    def _chunk(
        self,
        space: Space,
        chunk: Chunk,
        unchanged: bool,
        retracts: bool,
        slots: int,
        stages: list[list[SlotSums]],
        memory: dict[Space, ClusterMemory],
    ) -> Generator[None, None, None]:
        raw = made = measure(space, [(rows.error, rows.covariance) for rows in chunk.rows])
        yield
        if not unchanged:
            made = measure(
                space,
                [(rows.recalibrated_error, rows.recalibrated_covariance) for rows in chunk.rows],
            )
            yield
        slot, cluster = chunk.slot, chunk.cluster
        sound = raw.regular if made is raw else raw.regular & made.regular
        if not sound.all():
            # Both stages are of the same detections.
            slot, cluster = slot[sound], cluster[sound]
            raw, made = raw.take(sound), raw.take(sound) if made is raw else made.take(sound)
        before = _before(space, raw, made, cluster, memory, back=retracts)
        for stage, rows in enumerate((raw, made)):
            if stage and unchanged and _same(*before):
                found = stages[0][-1]
            else:
                found = yield from sum_by_slot(
                    space, self.binning, rows, slot, slots, before[stage]
                )
            stages[stage].append(found)
            yield


def _groups(
    waiting: list[MatchedRows],
) -> Iterator[tuple[Space, bool, bool, list[MatchedRows]]]:
    """Rows of one space, with one stage or two. What is taken back comes after what was counted
    before it, and before what is counted after it.
    """
    for retracts, run in groupby(waiting, lambda rows: rows.retracts):
        by_kind: dict[tuple[Space, bool], list[MatchedRows]] = {}
        for rows in run:
            by_kind.setdefault((rows.space, rows.unchanged), []).append(rows)
        for (space, unchanged), group in by_kind.items():
            yield space, unchanged, retracts, group


def _before(
    space: Space,
    raw: Measured,
    made: Measured,
    cluster: ClusterArray,
    memory: dict[Space, ClusterMemory],
    *,
    back: bool,
) -> tuple[Before | None, Before | None]:
    """What came before each row in its cluster, at both stages.

    back  they came before, and are taken back
    """
    if not cluster.any():
        return None, None
    if space not in memory:
        memory[space] = ClusterMemory(_memory_axes(space))
    degrees = axis_degrees(space)
    x = np.concatenate([clustered(raw.nees, degrees), clustered(made.nees, degrees)])
    before = memory[space].before(cluster, x, back=back)
    if before is None:
        return None, None
    axes = space.k + 1
    return Before(before.rows, before.sums[:axes]), Before(before.rows, before.sums[axes:])


def _memory_axes(space: Space) -> int:
    """Those of both stages, joint ones included."""
    return 2 * (space.k + 1)


def _same(raw: Before | None, made: Before | None) -> bool:
    """Whether the same came before at both stages: not where a track was changed earlier."""
    if raw is None or made is None:
        return raw is made
    return np.array_equal(raw.sums, made.sums)
