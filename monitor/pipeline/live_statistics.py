"""Keeps the statistics of a running sidecar, working in short steps between which frames pass.

Measures are never computed here, but in `statistics`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from monitor.config import Config
from monitor.frames.frame import MatchedClasses, MatchedRows, PredictedRows
from monitor.frames.slices import ClassSliceTable, SliceTable
from monitor.frames.space import Space
from monitor.frames.words import SliceBy
from monitor.statistics.bins import ExportEdges, SliceBins
from monitor.statistics.folding import (
    ClassAccumulator,
    PredictedAccumulator,
    SliceAccumulator,
    counted_state,
    slicing_of,
)
from monitor.statistics.predicted import PredictedStatistics, no_predicted
from monitor.statistics.reading import RAW, RECALIBRATED, PredictedReading, read_predicted
from monitor.statistics.sample import SampledSlice, Sampler
from monitor.statistics.state import (
    ClassStages,
    SliceStatistics,
    SliceTotals,
    Slicing,
    StatisticsState,
    check_class_lists,
    check_sizes,
    check_spaces,
    no_classes,
    no_statistics,
)
from monitor.statistics.windows import (
    EventClock,
    PaneAccumulator,
    PaneChanges,
    WindowTotals,
)

E = TypeVar("E")
S = TypeVar("S", SliceStatistics, ClassStages, PredictedStatistics)

# Names of slices, totals last, with their statistics.
SlicesRead = tuple[tuple[str, SliceStatistics], ...]
# Labels of class slices with their class names and their statistics.
ClassesRead = tuple[tuple[str, tuple[str, ...], ClassStages], ...]


# Names of slices, totals last, with the statistics of all their detections.
PredictedRead = tuple[tuple[str, PredictedStatistics], ...]
# Rows that are counted: with truth, with a true class, or all, labelled or not.
Rows = MatchedRows | MatchedClasses | PredictedRows


class LiveStatistics:
    """The statistics of all slices and class slices.

    live_ns     a label that is later than this after its frame is in no counter
    spaces      the spaces of all streams and slices so far
    max_spaces  the most of them
    generation  how often event time has begun anew
    """

    def __init__(self, config: Config) -> None:
        """Begins with nothing counted."""
        settings, most = config.statistics, config.statistics.max_slices
        self.binning, self.windows = settings.binning(), settings.window_lengths()
        edges = ExportEdges(config.metrics.export_edges, self.binning)
        self.slices = SliceTable(frozenset(settings.slice_by), most, settings.ranges())
        self.sampler = Sampler(config.fleet.sample, config.fleet.vehicle)
        self.accumulator = SliceAccumulator(
            self.binning, self.windows, edges, settings.fold_rows, self.sampler
        )
        self.class_slices = ClassSliceTable(SliceBy.STREAM in settings.slice_by, most)
        self.classes = ClassAccumulator(self.windows, settings.fold_rows)
        position = settings.range_dimensions
        self.predicted = PredictedAccumulator(self.windows, settings.fold_rows, position)
        self.max_spaces, self.spaces = config.limits.max_spaces, set[Space]()
        self.live_ns = int(settings.live_seconds * 1e9)
        # A window spans a pane more than its length.
        longest_ns = self.windows.lengths_ns[-1] + self.windows.pane_ns[-1]
        self.clock = EventClock(longest_ns, self.windows.lengths_ns[0])
        self.generation = 0
        self._window_totals = WindowTotals[SliceStatistics]()
        self._class_totals = WindowTotals[ClassStages]()
        self._predicted_totals = WindowTotals[PredictedStatistics]()
        self._slice_totals: dict[int | None, SliceTotals[SliceStatistics]] = {}
        self._predicted_sums: dict[int | None, SliceTotals[PredictedStatistics]] = {}
        self._folded = 0
        # Rows that come inside `held`, in order; None: event time began anew.
        self._held: list[Rows | None] | None = None

    # ---- counting

    def see(self, stamp_ns: int | None) -> bool:
        """Moves event time forward to the stamp of a frame; True if it began anew."""
        anew = stamp_ns is not None and self.clock.see(stamp_ns)
        if anew:
            self.generation += 1
            self._take_in(None)
        return anew

    def come_to(self, generation: int, clock_ns: int | None) -> bool:
        """Sets event time to what an entry of the ledger says; True if it began anew."""
        anew = generation > self.generation
        if anew:
            self.generation, self.clock.now_ns = generation, clock_ns
            self.clock.jumps += 1
            self._take_in(None)
        elif clock_ns is not None:
            now_ns = self.clock.now_ns
            self.clock.now_ns = clock_ns if now_ns is None else max(clock_ns, now_ns)
        return anew

    def count(self, rows: Rows) -> None:
        """Counts matched rows, class probabilities with their true class, or all rows; cheap."""
        stamp_ns = self.believed(rows.stamp_ns)
        self._take_in(rows if stamp_ns == rows.stamp_ns else replace(rows, stamp_ns=stamp_ns))

    def believed(self, stamp_ns: int | None) -> int | None:
        """Returns the event time that rows are counted at; None: outside all windows."""
        return stamp_ns if stamp_ns is not None and self.clock.believes(stamp_ns) else None

    def _take_in(self, what: Rows | None) -> None:
        if self._held is not None:
            self._held.append(what)
        elif what is None:
            for one in self._accumulators:
                one.begin_anew()
        elif isinstance(what, MatchedRows):
            self.accumulator.add(what)
        elif isinstance(what, MatchedClasses):
            self.classes.add(what)
        else:
            self.predicted.add(what)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the statistics unchanged inside the block; rows wait until it ends.

        One block at a time.
        """
        assert self._held is None, "held twice"
        self._held = []
        try:
            yield
        finally:
            waiting, self._held = self._held, None
            for what in waiting:
                self._take_in(what)

    def fold_some(self) -> None:
        """Folds some rows into the statistics, one short step; all kinds take turns."""
        busy = [one for one in self._accumulators if one.busy]
        if busy:
            self._folded += 1
            busy[self._folded % len(busy)].step()

    @property
    def waiting(self) -> int:
        """Detections that are not folded yet."""
        held = self._held or ()
        return self.accumulator.waiting + sum(rows.n for rows in held if rows is not None)

    @property
    def behind(self) -> bool:
        """True if there is more to fold than can wait."""
        return any(one.busy for one in self._accumulators)

    @property
    def _accumulators(self) -> tuple[PaneAccumulator[Any, Any], ...]:
        return self.accumulator, self.classes, self.predicted

    # ---- reading

    def catch_up(self, *, everything: bool) -> Generator[None, None, None]:
        """Folds what waits, so that it does not pile up while nobody reads; in steps.

        everything  False: labelled detections alone; of all detections, many are cheaper at once
        """
        some = self._accumulators if everything else (self.accumulator, self.classes)
        yield from self._up_to_now(*some)

    def in_steps(self, level: int | None = None) -> Generator[None, None, SlicesRead]:
        """Reads every slice in a window (None: since epoch), then a total of each space.

        All slices are read as of one moment, with the rows that came before the first step.
        """
        slices, totals_of = self.slices.slices, self._window_totals
        found = yield from self._read(self.accumulator, slices, totals_of, level)
        totals = yield from self._slice_totals.setdefault(level, SliceTotals()).read(found)
        return (*((entry.name, statistics) for entry, statistics in found), *totals)

    def export_bins(self) -> Iterator[SliceBins]:
        """Yields the running totals of every slice; zeros until its first matched detection."""
        for index, entry in enumerate(self.slices.slices):
            totals = self.accumulator.totals(entry.space)
            yield SliceBins(
                entry.name,
                entry.space.names,
                ((RAW, totals.of(2 * index)), (RECALIBRATED, totals.of(2 * index + 1))),
            )

    def classes_in_steps(self, level: int | None = None) -> Generator[None, None, ClassesRead]:
        """Reads every class slice in a window (None: since epoch), all as of one moment."""
        slices, totals_of = self.class_slices.slices, self._class_totals
        found = yield from self._read(self.classes, slices, totals_of, level)
        return tuple((entry.label, entry.class_names, statistics) for entry, statistics in found)

    def predicted_in_steps(self, level: int | None = None) -> Generator[None, None, PredictedRead]:
        """Reads all detections, labelled or not, of every slice, then a total of each space."""
        slices, totals_of = self.slices.slices, self._predicted_totals
        found = yield from self._read(self.predicted, slices, totals_of, level)
        totals = yield from self._predicted_sums.setdefault(level, SliceTotals()).read(found)
        return (*((entry.name, statistics) for entry, statistics in found), *totals)

    def predicted_readings(
        self, level: int | None = None
    ) -> Generator[None, None, tuple[PredictedReading, ...]]:
        """Reads how certain the detector is in a window, beside the time before it.

        That is the rest of the longest window; of all since epoch, if there is one window alone.
        A total has no time before: its slices have other shares of it at other times. Neither have
        slices that come and go, in the shortest window: what is seen of them is single objects.
        """
        now = yield from self.predicted_in_steps(level)
        longest = self.windows.older - 1 if self.windows.older > 1 else None
        # Read later, so that it holds all that is in the window.
        slices, totals_of = self.slices.slices, self._predicted_totals
        found = yield from self._read(self.predicted, slices, totals_of, longest)
        whole = {entry.name: statistics for entry, statistics in found}
        if level == 0:
            steady = self._steady()
            whole = {name: held for name, held in whole.items() if name in steady}
        readings = []
        for name, statistics in now:
            before = no_predicted()
            if name in whole:
                before = whole[name].merge(statistics.negated())
            readings.append(read_predicted(name, statistics, before))
            yield
        return tuple(readings)

    def _steady(self) -> set[str]:
        """Names the slices with detections in four of five panes of the shortest window."""
        panes = self.predicted.panes
        came = {
            entry.name: sum(level == 0 for level, _ in panes.get(index, {}))
            for index, entry in enumerate(self.slices.slices)
        }
        return {name for name, many in came.items() if many >= 0.8 * self.windows.panes}

    def _read(
        self,
        accumulator: PaneAccumulator[Any, S],
        slices: Sequence[E],
        totals: WindowTotals[S],
        level: int | None,
    ) -> Generator[None, None, list[tuple[E, S]]]:
        """Reads the slices that have statistics in a window, as of the first step."""
        level = self.windows.older if level is None else level
        yield from self._up_to_now(accumulator)
        panes, found = dict(accumulator.panes), []
        for index, entry in enumerate(slices):
            if index in panes:
                statistics = totals.read(index, panes[index], self.windows, level)
                if statistics is not None:
                    found.append((entry, statistics))
                yield
        return found

    def _up_to_now(
        self, *accumulators: PaneAccumulator[Any, Any], holder: bool = False
    ) -> Iterator[None]:
        """Folds all waiting rows into panes, then moves the panes to the present event time.

        holder  True: the caller is inside `held`; False: wait for the end of that block first
        """
        while self._held is not None and not holder:
            yield
        while True:
            jumps = self.clock.jumps
            for one in accumulators:
                yield from one.steps()
            for one in accumulators:
                yield from one.move_on(self.clock.now_ns)
            # After a jump panes must be moved on again.
            if jumps == self.clock.jumps:
                return

    # ---- state

    def state_in_steps(self, *, holder: bool = False) -> Generator[None, None, StatisticsState]:
        """Returns the whole state as one value, with the rows that came before the first step.

        holder  True: the caller is inside `held`
        """
        yield from self._up_to_now(*self._accumulators, holder=holder)
        # Frames passed meanwhile: move all accumulators to one clock.
        clock = max(
            (one.clock_ns for one in self._accumulators if one.clock_ns is not None), default=None
        )
        for one in self._accumulators:
            for _ in one.move_on(clock):
                pass
        counted = counted_state(
            (self.slices, self.class_slices), (self.accumulator, self.classes, self.predicted)
        )
        sample = (
            SampledSlice(entry.key, entry.space, entry.overflow, rows)
            for index, entry in enumerate(self.slices.slices)
            if (rows := self.sampler.held.get(index)) is not None
        )
        return replace(counted, sample=tuple(sample))

    @property
    def slicing(self) -> Slicing:
        """The settings that tell slices apart."""
        return slicing_of(self.slices)

    def import_in_steps(self, state: StatisticsState) -> Generator[None, None, tuple[int, int]]:
        """Adds the sums of another sidecar, or of an earlier run, to ours.

        Everything is checked in the first step and added in the last one.

        returns  matched detections that were added, and slices that were new
        raises   IncompatibleStatistics; nothing is added then
        """
        clock = self._checked(state)
        # The other clock may be far from ours: that is no reason to forget our windows.
        timely = clock is None or self.clock.now_ns is None or self.clock.believes(clock)
        clock = clock if timely else self.clock.now_ns
        if self.clock.now_ns is None:
            self.clock.now_ns = clock
        self.spaces.update(entry.space.with_sent for entry in state.slices)
        self.spaces.update(entry.space.with_sent for entry in state.predicted)
        known = len(self.class_slices.slices)
        of_class = [
            self.class_slices.place(entry.class_names, entry.name, overflow=entry.overflow)
            for entry in state.class_slices
        ]
        new = len(self.class_slices.slices) - known
        # If event time jumps from here on, the imported panes belong to the time before.
        changes, of_classes = PaneChanges(self.accumulator), PaneChanges(self.classes)
        of_all = PaneChanges(self.predicted)
        for one in self._accumulators:
            yield from one.move_on(clock)
        for entry in state.slices:
            known = len(self.slices.slices)
            index = self.slices.place(entry.space, entry.name, overflow=entry.overflow)
            new += len(self.slices.slices) - known
            yield from changes.put_all(index, entry.panes, timely=timely)
        for every in state.predicted:
            index = self.slices.place(every.space, every.name, overflow=every.overflow)
            yield from of_all.put_all(index, every.panes, timely=timely)
        for index, classes in zip(of_class, state.class_slices, strict=True):
            yield from of_classes.put_all(index, classes.panes, timely=timely)
        self.accumulator.take(changes)
        self.classes.take(of_classes)
        self.predicted.take(of_all)
        for sampled in state.sample:
            index = self.slices.place(sampled.space, sampled.name, overflow=sampled.overflow)
            self.sampler.add(index, sampled.rows)
        return sum(entry.n for entry in state.slices), new

    def _checked(self, state: StatisticsState) -> int | None:
        """Returns the later of both clocks. Raises IncompatibleStatistics if a sum does not fit."""
        ours = StatisticsState(
            self.binning, self.windows, self.accumulator.clock_ns, slicing=self.slicing
        )
        clock = ours.merge(
            replace(state, slices=(), class_slices=(), predicted=(), sample=())
        ).clock_ns
        for entry in state.slices:
            nothing = no_statistics(entry.space, self.binning)
            for held in entry.panes.values():
                nothing.merge(held)
        for classes in state.class_slices:
            none = no_classes(len(classes.class_names))
            for found in classes.panes.values():
                none.merge(found)
        check_sizes(state)
        check_spaces(state, self.spaces, self.max_spaces)
        check_class_lists(state, self.class_slices)
        return clock
