"""All statistics of a sidecar as one value: exported, stored, loaded, added.

A state knows its bins and windows, how far event time has come, and what lies in every pane
of every slice. States of any number of sidecars add up in any order, bit for bit.

A sidecar bounds what streams can make it keep. A state that another sidecar sends must not get
round that: checks say what an import may add at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from monitor.frames.slices import OVERFLOW, ClassSliceTable
from monitor.frames.space import Space
from monitor.statistics.bins import Binning, IncompatibleStatistics
from monitor.statistics.class_statistics import ClassStatistics
from monitor.statistics.exact_sums import ExactStatistics
from monitor.statistics.stage import SliceStatistics
from monitor.statistics.windows import PaneKey, Windows, advance, put

# Detections of one pane, and limbs of its sums: so many that what is added to them, by however
# many further imports, can still be stored and read.
MOST_DETECTIONS = 2**48
_MOST_LIMB = 2**56


@dataclass(frozen=True, slots=True)
class Slicing:
    """Rule that tells slices apart: one key must mean the same detections in two states.

    by                one or more of `class`, `range`, `stream`, sorted; () where nobody knows
    range_edges       inner edges of the range buckets, unit of the stream; () without range
    range_dimensions  names that make up the position; () without range
    """

    by: tuple[str, ...] = ()
    range_edges: tuple[float, ...] = ()
    range_dimensions: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describes the slices for an error."""
        text = f"slices by {', '.join(self.by) or 'nothing known'}"
        if not self.range_edges:
            return text
        edges = ", ".join(f"{edge:.15g}" for edge in self.range_edges)
        return f"{text} with range edges {edges} of {', '.join(self.range_dimensions)}"


@dataclass(frozen=True, slots=True)
class SliceState:
    """One slice of the regression statistics.

    name      the key of SliceTable, not its label: that one depends on who was seen first
    overflow  of what found no room in its space; the name is then `overflow`
    panes     read only; what lies in them may be negative, where a retraction came alone
    """

    name: str
    space: Space
    overflow: bool
    panes: dict[PaneKey, SliceStatistics]

    @property
    def key(self) -> tuple[Space, bool, str]:
        """Identity of the slice, which entries of two states share."""
        return self.space, self.overflow, OVERFLOW if self.overflow else self.name

    @property
    def n(self) -> int:
        """Matched detections."""
        return sum(held.raw.n for held in self.panes.values())


@dataclass(frozen=True, slots=True)
class ClassSliceState:
    """One slice of the statistics of class probabilities.

    class_names  (C,) what the columns of the probabilities are
    panes        read only
    overflow     of what found no room among its classes; the name is then `overflow`
    """

    name: str
    class_names: tuple[str, ...]
    panes: dict[PaneKey, ClassStatistics]
    overflow: bool = False

    @property
    def key(self) -> tuple[tuple[str, ...], bool, str]:
        """Identity of the slice, which entries of two states share."""
        return self.class_names, self.overflow, OVERFLOW if self.overflow else self.name

    @property
    def n(self) -> int:
        """Detections with class probabilities and a true class."""
        return sum(held.n for held in self.panes.values())


@dataclass(frozen=True, slots=True)
class StatisticsState:
    """The statistics of one sidecar, or of many.

    clock_ns      event time up to which the panes have moved on, ns; None before any
    slices        in the order of their first appearance, those without panes too: the
                  order is that of the sidecar's list, which a restart must not change
    class_slices  likewise
    slicing       what tells the slices apart
    """

    binning: Binning
    windows: Windows
    clock_ns: int | None = None
    slices: tuple[SliceState, ...] = ()
    class_slices: tuple[ClassSliceState, ...] = ()
    slicing: Slicing = Slicing()

    def merge(self, other: StatisticsState) -> StatisticsState:
        """Adds up what both have counted, as of the later clock.

        Ours keep their order, new ones come behind them: so a sidecar's list is stable. Up to
        that order, merging is commutative.

        raises  IncompatibleStatistics where bins, windows or slicing differ
        """
        self.binning.check_same(other.binning)
        if self.windows != other.windows:
            raise IncompatibleStatistics(
                f"cannot merge statistics over {windows_described(self.windows)} with those over "
                f"{windows_described(other.windows)}: the windows differ. "
                "Start every replica with the same [statistics] windows."
            )
        if self.slicing != other.slicing:
            raise IncompatibleStatistics(
                f"cannot merge statistics of {self.slicing.describe()} with those of "
                f"{other.slicing.describe()}: equal names would mean other detections. "
                "Start every replica with the same [statistics] slice_by and range_* keys."
            )
        clock_ns = max((c for c in (self.clock_ns, other.clock_ns) if c is not None), default=None)
        return replace(
            self,
            clock_ns=clock_ns,
            slices=_united(chain(self.slices, other.slices), self.windows, clock_ns),
            class_slices=_united(
                chain(self.class_slices, other.class_slices), self.windows, clock_ns
            ),
        )


AnyState = TypeVar("AnyState", SliceState, ClassSliceState)


def _united(
    entries: Iterable[AnyState], windows: Windows, clock_ns: int | None
) -> tuple[AnyState, ...]:
    found: dict[Any, AnyState] = {}
    for entry in entries:
        unite(found, entry, windows, clock_ns)
    return tuple(found.values())


def unite(
    found: dict[Any, AnyState], entry: AnyState, windows: Windows, clock_ns: int | None
) -> AnyState:
    """Adds a slice, its panes advanced to the clock, to the one of its key; returns the sum.

    found  by key; changed
    """
    panes: dict[PaneKey, Any] = dict(entry.panes)
    advance(panes, windows, clock_ns)
    known = found.setdefault(entry.key, replace(entry, panes={}))
    # Those that came with an earlier clock.
    advance(known.panes, windows, clock_ns)
    for pane, held in panes.items():
        put(known.panes, pane, held)
    return known


def windows_described(windows: Windows) -> str:
    """Describes windows for an error."""
    lengths = ", ".join(f"{length / 1e9:g}" for length in windows.lengths_ns)
    return f"windows of {lengths} s in {windows.panes} panes each"


def check_sizes(state: StatisticsState) -> None:
    """Refuses sums that no sidecar can have counted.

    raises  IncompatibleStatistics
    """
    stages: Iterable[tuple[str, ExactStatistics]] = (
        (f"slices[{i}]", stage)
        for i, entry in enumerate(state.slices)
        for both in entry.panes.values()
        for stage in (both.raw, both.recalibrated)
    )
    classes = (
        (f"class_slices[{i}]", held)
        for i, entry in enumerate(state.class_slices)
        for held in entry.panes.values()
    )
    for place, held in chain(stages, classes):
        largest = np.abs(held.companions.high).max(initial=0)
        if abs(held.n) > MOST_DETECTIONS or largest > _MOST_LIMB:
            raise IncompatibleStatistics(
                f"{place}.panes: {held.n} detections or their sums are more than can have been "
                "counted. Export the statistics again."
            )


def check_spaces(state: StatisticsState, known: Collection[Space], most: int) -> None:
    """Refuses a state that would bring more sets of dimensions than there may be.

    Every space has an overflow slice, however many slices there are.

    raises  IncompatibleStatistics
    """
    spaces = set(known)
    for i, entry in enumerate(state.slices):
        spaces.add(entry.space)
        if len(spaces) > most:
            raise IncompatibleStatistics(
                f"slices[{i}].space: {', '.join(entry.space.names)} would be set {len(spaces)} of "
                f"dimensions: at most {most} ([limits] max_spaces). Raise it, or import the "
                "statistics of streams with the same names, units and kinds."
            )


def check_class_lists(state: StatisticsState, table: ClassSliceTable) -> None:
    """Refuses a state with a list of classes that finds no slice.

    It would get an overflow slice all the same, and lists can be sent without end.

    raises  IncompatibleStatistics
    """
    named = {(entry.class_names, entry.name) for entry in table.slices if not entry.overflow}
    lists = {entry.class_names for entry in table.slices}
    for entry in state.class_slices:
        slot = entry.class_names, entry.name
        if not entry.overflow and (slot in named or len(named) < table.limit):
            named.add(slot)
            lists.add(entry.class_names)
    for i, entry in enumerate(state.class_slices):
        if entry.class_names not in lists:
            names = ", ".join(entry.class_names[:8]) + (" …" if len(entry.class_names) > 8 else "")
            raise IncompatibleStatistics(
                f"class_slices[{i}].class_names: {names} ({len(entry.class_names)} classes) find "
                f"no slice: there are {len(named)} of at most {table.limit} ([statistics] "
                "max_slices). Raise it, or import the statistics of fewer lists of classes."
            )
