"""States for the tests of merging, of the wire and of files: rows with stamps, counted by
sidecars that see some of them each; no tests here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from monitor.frames.frame import PredictedRows
from monitor.frames.slices import OVERFLOW
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, LogBins
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.holdings import NOTHING_HELD
from monitor.statistics.observations import finished
from monitor.statistics.predicted import (
    PredictedStatistics,
    PredictedSums,
    no_predicted,
    ranges_of,
)
from monitor.statistics.state import (
    ClassSliceState,
    ClassStages,
    PredictedSliceState,
    SliceState,
    SliceStatistics,
    Stages,
    StatisticsState,
    no_classes,
    no_statistics,
    observe,
)
from monitor.statistics.vehicles import NO_VEHICLES
from monitor.statistics.windows import PaneKey, S, Windows, put
from monitor.store.statistics_state import StoredState, serialised
from monitor.v1 import statistics_state_pb2 as pb

BINNING = Binning(LogBins(2.0**-4, 4, 8), LogBins(2.0**-6, 4, 12), (0.5, 0.9))
OTHER_BINNING = Binning(LogBins(2.0**-4, 8, 8), LogBins(2.0**-6, 4, 12), (0.5, 0.9))
# Panes of 2, 6 and 12 ns.
WINDOWS = Windows((6, 18, 36), 3)
CLASSES = ("car", "bus", "person")
IMAGE = plain_space(("u", "v"), "px")
BOX = Space((*plain_space(("x", "y"), "m").dimensions, Dimension("yaw", "", DimensionKind.ANGLE)))
# Name, space, and whether it is an overflow slice.
SLICES = (("car", IMAGE, False), ("bus", IMAGE, False), ("car", BOX, False), (OVERFLOW, BOX, True))


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled detection."""

    stamp: int | None
    slice: int  # index into SLICES
    error: np.ndarray
    variance: np.ndarray
    recalibrated: float  # variance made over variance sent; 1 where nothing was changed
    probabilities: np.ndarray
    label: int
    sign: int = 1  # −1 takes back what was counted


def random_rows(seed: int, n: int) -> list[Row]:
    """Some without a stamp, some with errors that no sum of 62 bits holds."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        chosen = int(random.integers(len(SLICES)))
        k = SLICES[chosen][1].k
        variance = 10.0 ** random.uniform(-2, 3, k)
        gross = 1e9 if random.random() < 0.1 else 1.0
        rows.append(
            Row(
                stamp=None if random.random() < 0.1 else int(random.integers(-20, 150)),
                slice=chosen,
                error=gross * random.normal(size=k) * np.sqrt(variance),
                variance=variance,
                recalibrated=float(random.choice([1.0, 1.0, 1.7])),
                probabilities=random.dirichlet(np.ones(len(CLASSES))),
                label=int(random.integers(len(CLASSES))),
            )
        )
    return rows


def clock_of(rows: Iterable[Row]) -> int | None:
    return max((row.stamp for row in rows if row.stamp is not None), default=None)


def counted(rows: Sequence[Row], clock: int | None = None, order: Sequence[int] = ()) -> Any:
    """The state of a sidecar that saw these rows, and the slices first in this order."""
    clock = clock_of(rows) if clock is None else clock
    order = order or range(len(SLICES))
    of_slices = ([row for row in rows if row.slice == index] for index in order)
    slices = tuple(map(_slice, order, of_slices, repeat(clock)))
    classes = (_class_slice(rows, clock),)
    of_slices = ([row for row in rows if row.slice == index] for index in order)
    predicted = tuple(map(_predicted_slice, order, of_slices, repeat(clock)))
    return StatisticsState(BINNING, WINDOWS, clock, slices, classes, predicted=predicted)


def _slice(index: int, rows: Sequence[Row], clock: int | None) -> SliceState:
    name, space, overflow = SLICES[index]
    panes: dict[PaneKey, SliceStatistics] = {}
    for key, sign, held in _by_pane(rows, clock):
        error = np.array([row.error for row in held])
        variance = np.array([row.variance for row in held])[:, :, None] * np.eye(space.k)
        factor = np.array([row.recalibrated for row in held])[:, None, None]
        raw = made = observe(space, BINNING, error, variance)
        if (factor != 1).any():
            made = observe(space, BINNING, error, factor * variance)
        more = Stages(raw, made)
        put(panes, key, more if sign > 0 else no_statistics(space, BINNING).merge(more.negated()))
    return SliceState(name, space, overflow, panes)


def _class_slice(rows: Sequence[Row], clock: int | None) -> ClassSliceState:
    panes: dict[PaneKey, ClassStages] = {}
    for key, sign, held in _by_pane(rows, clock):
        probabilities = np.array([row.probabilities for row in held])
        label = np.array([row.label for row in held])
        factor = np.array([row.recalibrated for row in held])[:, None]
        raw = made = observe_classes(probabilities, label)
        if (factor != 1).any():
            # The even distribution, mixed in where a row was recalibrated.
            made = observe_classes((probabilities + (factor - 1) / 3) / factor, label)
        more = Stages(raw, made)
        put(panes, key, more if sign > 0 else no_classes(len(CLASSES)).merge(more.negated()))
    return ClassSliceState("lidar", CLASSES, panes)


def observe_predicted(rows: PredictedRows) -> PredictedStatistics:
    """Adds up rows, at most CHUNK, whatever their slices are."""
    sums = PredictedSums.of_none(1)
    ranges = ranges_of(rows.space, rows.mean, ("x", "y", "z"))
    sums.add([rows], np.zeros(rows.n, np.int64), ranges)
    return next(sums.by_slot())


def _predicted_slice(index: int, rows: Sequence[Row], clock: int | None) -> PredictedSliceState:
    name, space, overflow = SLICES[index]
    panes: dict[PaneKey, PredictedStatistics] = {}
    for key, sign, held in _by_pane(rows, clock):
        variance = np.array([row.variance for row in held])
        roots = np.sqrt(variance)[:, space.joint]
        opinions = np.array([row.probabilities for row in held])[:, None]
        # Where a detection lies is not in a row: any place will do.
        slices, mean = np.zeros(len(held), np.int64), 9.0 * variance
        more = observe_predicted(PredictedRows(space, slices, mean, roots, opinions))
        put(panes, key, more if sign > 0 else no_predicted().merge(more.negated()))
    return PredictedSliceState(name, space, overflow, panes)


def _by_pane(rows: Iterable[Row], clock: int | None) -> Iterable[tuple[PaneKey, int, list[Row]]]:
    found = defaultdict(list)
    for row in rows:
        found[WINDOWS.place(row.stamp, clock), row.sign].append(row)
    return [(key, sign, held) for (key, sign), held in found.items()]


def bits(value: Any) -> Any:
    """Something comparable that differs if any bit of any array does."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [bits(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, dict):
        return [(key, bits(held)) for key, held in sorted(value.items())]
    if isinstance(value, tuple | list):
        return [bits(part) for part in value]
    return value


def canonical(state: StatisticsState) -> StatisticsState:
    """Sorts slices into an order that does not depend on who came first; bits sorts panes."""

    def rank(entry: SliceState | PredictedSliceState) -> tuple[Any, ...]:
        dimensions = tuple((d.name, d.unit, int(d.kind)) for d in entry.space.dimensions)
        return entry.name, entry.overflow, dimensions, entry.space.angles_in_joint

    return replace(
        state,
        slices=tuple(sorted(state.slices, key=rank)),
        class_slices=tuple(sorted(state.class_slices, key=lambda s: s.key)),
        predicted=tuple(sorted(state.predicted, key=rank)),
    )


def assert_same_state(left: StatisticsState, right: StatisticsState) -> None:
    """Equal to the last bit, whatever the order of slices."""
    assert bits(canonical(left)) == bits(canonical(right))


def assert_counted(found: StatisticsState, expected: StatisticsState) -> None:
    """Equal to the last bit, but for uploads and vehicles, and slices in which nothing is left."""
    clock_ns = max(found.clock_ns or 0, expected.clock_ns or 0)
    at = StatisticsState(expected.binning, expected.windows, clock_ns, slicing=expected.slicing)
    one, other = (
        at.merge(replace(each, holds=NOTHING_HELD, vehicles=NO_VEHICLES))
        for each in (found, expected)
    )
    assert_same_state(finished(one.since(at)), finished(other.since(at)))


def merged_in_any_order(
    parts: Sequence[Any], merge: Callable[[Any, Any], Any], random: np.random.Generator
) -> Any:
    """Two at a time, whichever come first."""
    waiting = list(parts)
    while len(waiting) > 1:
        one = waiting.pop(int(random.integers(len(waiting))))
        two = waiting.pop(int(random.integers(len(waiting))))
        waiting.append(merge(one, two))
    return waiting[0]


def joined(stored: StoredState) -> bytes:
    return b"".join(serialised(stored))


def in_parts(stored: StoredState) -> list[pb.StatisticsState]:
    return [pb.StatisticsState.FromString(part) for part in serialised(stored)]


def state_message(seed: int = 1, n: int = 40) -> pb.StatisticsState:
    """A sound one, to be spoilt."""
    return pb.StatisticsState.FromString(joined(StoredState(counted(random_rows(seed, n)))))


def within(panes: Mapping[PaneKey, S], level: int) -> list[S]:
    """The panes of a window, in a fixed order; with the last level, of all that was counted."""
    return [panes[key] for key in sorted(panes) if key[0] <= level]
