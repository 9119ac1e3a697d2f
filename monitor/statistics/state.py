"""Statistics as values that add up: of a batch, of a slice at both stages, of a whole sidecar.

observe() makes one from a batch of matched detections; merge() adds two, exactly, in any order;
merging what negated() returns takes out what was added. A slice has two stages: what the detector
sent, and what the recalibrator made of it. No row is kept, and nothing is measured here.

A state knows its bins and windows, how far event time has come, and what lies in every pane
of every slice: it is exported, stored and loaded, and states of any number of sidecars add up in
any order, bit for bit. A sidecar bounds what streams can make it keep. A state that another
sidecar sends must not get round that: checks say what an import may add at most.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from monitor.frames.slices import OVERFLOW, TOTAL, ClassSliceTable, Slice, label
from monitor.frames.space import FloatArray, IntArray, Space, read_only, square_from_triangle
from monitor.statistics.bins import (
    EXPONENT,
    SQUARED_ERRORS,
    Binning,
    Column,
    IncompatibleStatistics,
)
from monitor.statistics.class_statistics import ClassStatistics, no_class_statistics
from monitor.statistics.clusters import ClusterArray, ClusterMemory, clustered, no_clusters
from monitor.statistics.exact_sums import ExactStatistics, ExactSum, SparseSums, total
from monitor.statistics.holdings import NOTHING_HELD, Holdings
from monitor.statistics.measures import BinSums
from monitor.statistics.observations import (
    CHUNK,
    SlotSums,
    axis_degrees,
    companion_layout,
    finished,
    measure,
    sum_by_slot,
)
from monitor.statistics.predicted import PredictedStatistics
from monitor.statistics.sample import SampledSlice, gained, united
from monitor.statistics.vehicles import NO_VEHICLES, VehicleRows
from monitor.statistics.windows import PaneKey, S, Windows, advance, put, same_parts


@dataclass(frozen=True, eq=False, slots=True)
class AxisCells(BinSums):
    """The occupied micro-bins of one axis, as floats, ascending.

    On the joint axis squared_error is of all its dimensions.

    error  (B,) sum of errors, in the unit of the axis; of no meaning on the joint axis
    """

    error: FloatArray


def axis_cells(held: SparseSums, position: IntArray, binning: Binning) -> AxisCells:
    """Decodes cells as floats; position (M,) is the micro-bin of each."""
    lower, upper = binning.deviation.bounds
    unit = binning.variance_exponent[position]
    return AxisCells(
        lower=lower[position],
        upper=upper[position],
        n=held.values[:, Column.N],
        variance=held.as_float(Column.VARIANCE, unit + EXPONENT),
        squared_error=held.as_float(Column.SQUARED_ERROR, unit + EXPONENT),
        error=held.as_float(Column.ERROR, unit // 2 + EXPONENT),
        nees=held.as_float(Column.NEES, EXPONENT),
        within=held.values[:, Column.WITHIN],
    )


@dataclass(frozen=True, eq=False)
class StageStatistics(ExactStatistics):
    """Everything that is known of n matched detections.

    tables      cells, nees and squares
    companions  `companion` has them by name; what is made of some is a property
    """

    space: Space
    binning: Binning

    @property
    def cells(self) -> SparseSums:
        """Micro-bins, keyed axis · bins + bin; axes 0 … K − 1 the dimensions, K the joint one."""
        return self.tables[0]

    @property
    def nees(self) -> SparseSums:
        """The histogram of NEES, keyed axis · bins + bin of Binning.nees."""
        return self.tables[1]

    @property
    def squares(self) -> SparseSums:
        """How many have their error² in each bin of SQUARED_ERRORS, keyed axis · bins + bin.

        The joint axis has the sum over its dimensions. Older states lack it, and Σ CRPS.
        """
        return self.tables[2]

    def check_same(self, other: StageStatistics) -> None:
        """Raises IncompatibleStatistics unless spaces and binning are the same."""
        if self.space != other.space:
            raise IncompatibleStatistics(
                f"cannot merge statistics over {self.space.names} with {other.space.names}: "
                "the dimensions differ. Merge only slices of streams with equal headers."
            )
        self.binning.check_same(other.binning)

    def axis(self, index: int) -> AxisCells:
        """Decodes the micro-bins of dimension `index`, or of the joint axis for index = K."""
        bins = self.binning.deviation.count
        cells = self.cells.between(index * bins, (index + 1) * bins)
        return axis_cells(cells, cells.keys, self.binning)

    def histogram(self, index: int) -> IntArray:
        """(H,) how many have their NEES in each bin of Binning.nees; index as for axis()."""
        bins = self.binning.nees.count
        found = self.nees.between(index * bins, (index + 1) * bins)
        counts = np.zeros(bins, np.int64)
        counts[found.keys] = found.values[:, 0]
        return counts

    @cached_property
    def companion(self) -> dict[str, FloatArray]:
        """The sums of companion_layout that are read as they are, by name."""
        layout, _ = companion_layout(self.space.k, len(self.binning.tau))
        value = read_only(self.companions.value)
        return {name: value[part] for name, part in layout.items()}

    @cached_property
    def sigma(self) -> FloatArray:
        """(K,) Σ σ."""
        by_rank = self.companion["sigma"].reshape(self.space.k, -1)
        result: FloatArray = by_rank.sum(axis=1)
        return result

    @property
    def log_determinant(self) -> float:
        """Σ log det Σ of the joint block."""
        return float(self.companion["log_determinant"][0])

    @cached_property
    def shortfall(self) -> FloatArray:
        """(K, T) Σ min(r − σ Φ⁻¹(τ), 0): with Σ r and Σ σ it gives the pinball loss."""
        k = self.space.k
        below_error = np.cumsum(self.companion["error"].reshape(k, -1), axis=1)[:, :-1]
        below_sigma = np.cumsum(self.companion["sigma"].reshape(k, -1), axis=1)[:, :-1]
        return below_error - self.binning.normal * below_sigma

    @property
    def normalised(self) -> FloatArray:
        """(K, K) Σ z zᵀ, z = r/σ."""
        return self._square("normalised")

    @property
    def whitened(self) -> FloatArray:
        """(K, K) Σ u uᵀ, u = L⁻¹ r, in the order of Space.order."""
        return self._square("whitened")

    def _square(self, name: str) -> FloatArray:
        k = self.space.k
        return self.companion[name][square_from_triangle(k)].reshape(k, k)

    @property
    def pairs(self) -> int:
        """Pairs of detections of one cluster."""
        return round(float(self.companion["pairs"][0]))


def no_stage_statistics(space: Space, binning: Binning) -> StageStatistics:
    """The statistics of no detections: the zero of merge."""
    return StageStatistics(
        space=space,
        binning=binning,
        n=0,
        tables=(SparseSums.zero(binning.columns), SparseSums.zero(1), SparseSums.zero(1)),
        companions=ExactSum.zero((companion_layout(space.k, len(binning.tau))[1],), EXPONENT),
    )


def observe(
    space: Space,
    binning: Binning,
    error: FloatArray,
    covariance: FloatArray,
    cluster: ClusterArray | None = None,
    done: Callable[[float], object] = lambda rows: None,
) -> StageStatistics:
    """Adds up a batch of matched detections.

    error       (N, K) truth − mean, angles wrapped: Space.error
    covariance  (N, K, K) positive definite; a row that is not, by a rounding, is left out
    cluster     (N,) of each row, cluster_id() or ALONE; in the order of time within each
    done        is told, as the work goes on, of how many further rows are added
    """
    sums = []
    memory = ClusterMemory(no_clusters(space.k + 1))
    for start in range(0, error.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        rows = measure(space, [(error[part], covariance[part])])
        sound = rows.regular
        if not sound.all():
            rows = rows.take(sound)
        before = None
        if cluster is not None:
            x = clustered(rows.nees, axis_degrees(space))
            before = memory.before(cluster[part][sound], x)
        slot = np.zeros(rows.n, np.int64)
        sums.append(finished(sum_by_slot(space, binning, rows, slot, 1, before)))
        done(sound.size)
    if not sums:
        return no_stage_statistics(space, binning)
    return next(by_slot(space, binning, together(sums)))


def together(sums: Sequence[SlotSums]) -> SlotSums:
    """Adds up sums, at least one, over the same slots."""
    return SlotSums(
        n=np.sum([part.n for part in sums], axis=0),
        cells=total([part.cells for part in sums]),
        nees=total([part.nees for part in sums]),
        squares=total([part.squares for part in sums]),
        companions=reduce(operator.add, (part.companions for part in sums)),
    )


def by_slot(space: Space, binning: Binning, sums: SlotSums) -> Iterator[StageStatistics]:
    """Yields the statistics of every slot."""
    counts = binning.deviation.count, binning.nees.count, SQUARED_ERRORS.count
    sizes = [(space.k + 1) * count for count in counts]
    for slot, n in enumerate(sums.n.tolist()):
        low, high = sums.companions.low[slot].copy(), sums.companions.high[slot].copy()
        yield StageStatistics(
            space=space,
            binning=binning,
            n=n,
            tables=tuple(
                table.between(slot * size, (slot + 1) * size)
                for table, size in zip((sums.cells, sums.nees, sums.squares), sizes, strict=True)
            ),
            companions=ExactSum(low, high, EXPONENT),
        )


Held = TypeVar("Held", bound=ExactStatistics)


@dataclass(frozen=True, slots=True)
class Stages(Generic[Held]):
    """Both stages of one slice; the very same object where nothing was changed."""

    raw: Held
    recalibrated: Held

    @property
    def is_zero(self) -> bool:
        """Tells that nothing is held at either stage."""
        return self.raw.is_zero and self.recalibrated.is_zero

    def merge(self, other: Stages[Held]) -> Stages[Held]:
        """Merges both stages. Raises IncompatibleStatistics."""
        raw = self.raw.merge(other.raw)
        if self.recalibrated is self.raw and other.recalibrated is other.raw:
            return Stages(raw, raw)
        return Stages(raw, self.recalibrated.merge(other.recalibrated))

    def negated(self) -> Stages[Held]:
        """Turns the sign of all sums: merging the result retracts what was added."""
        raw = self.raw.negated()
        same = self.recalibrated is self.raw
        return Stages(raw, raw if same else self.recalibrated.negated())


# For annotations: an alias of a frozen class with slots cannot be called in Python 3.11.
SliceStatistics = Stages[StageStatistics]
ClassStages = Stages[ClassStatistics]


def no_statistics(space: Space, binning: Binning) -> SliceStatistics:
    """Statistics of no detections, at both stages."""
    zero = no_stage_statistics(space, binning)
    return Stages(zero, zero)


def no_classes(classes: int) -> ClassStages:
    """Statistics of no rows of probabilities, at both stages."""
    zero = no_class_statistics(classes)
    return Stages(zero, zero)


# Detections of one pane, and limbs of its sums: so many that what is added to them, by however
# many further imports, can still be stored and read.
MOST_DETECTIONS = 2**48
_MOST_LIMB = 2**56


@dataclass(frozen=True, slots=True)
class Slicing:
    """Rule that tells slices apart: one key must mean the same detections in two states.

    by                one or more of `class`, `range`, `stream`, sorted; () where unknown
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
    panes: dict[PaneKey, ClassStages]
    overflow: bool = False

    @property
    def key(self) -> tuple[tuple[str, ...], bool, str]:
        """Identity of the slice, which entries of two states share."""
        return self.class_names, self.overflow, OVERFLOW if self.overflow else self.name

    @property
    def n(self) -> int:
        """Detections with class probabilities and a true class."""
        return sum(held.raw.n for held in self.panes.values())


@dataclass(frozen=True, slots=True)
class PredictedSliceState:
    """All detections of one slice, labelled or not; fields as in SliceState."""

    name: str
    space: Space
    overflow: bool
    panes: dict[PaneKey, PredictedStatistics]

    @property
    def key(self) -> tuple[Space, bool, str]:
        """Identity of the slice, which entries of two states share."""
        return self.space, self.overflow, OVERFLOW if self.overflow else self.name

    @property
    def n(self) -> int:
        """Detections with a covariance."""
        return sum(held.n for held in self.panes.values())


@dataclass(frozen=True, slots=True)
class StatisticsState:
    """The statistics of one sidecar, or of many.

    clock_ns      event time up to which the panes have moved on, ns; None before any
    slices        in the order of their first appearance, those without panes too: the
                  order is that of the sidecar's list, which a restart must not change
    class_slices  likewise
    slicing       what tells the slices apart
    predicted     slices of which detections have come, labelled or not
    holds         uploads of vehicles that are among these
    vehicles      a row of sums of each vehicle and slice, where uploads brought them
    sample        some of the rows since epoch, if they were asked for
    """

    binning: Binning
    windows: Windows
    clock_ns: int | None = None
    slices: tuple[SliceState, ...] = ()
    class_slices: tuple[ClassSliceState, ...] = ()
    slicing: Slicing = Slicing()
    predicted: tuple[PredictedSliceState, ...] = ()
    holds: Holdings = NOTHING_HELD
    vehicles: VehicleRows = NO_VEHICLES
    sample: tuple[SampledSlice, ...] = ()

    def merge(self, other: StatisticsState) -> StatisticsState:
        """Adds up what both have counted, as of the later clock.

        Ours keep their order, new ones come behind them: so a sidecar's list is stable. Up to
        that order, merging is commutative.

        raises  IncompatibleStatistics where bins, windows or slicing differ; AlreadyHeld
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
            predicted=_united(chain(self.predicted, other.predicted), self.windows, clock_ns),
            holds=self.holds.merge(other.holds),
            vehicles=self.vehicles.merge(other.vehicles),
            sample=united(chain(self.sample, other.sample)),
        )

    def since(self, earlier: StatisticsState) -> Generator[None, None, StatisticsState]:
        """Takes out what was known earlier, in short steps: merged with that it is this again.

        Sums of what is left are negative where labels were taken back. Panes that were not
        touched since, the very same objects, cost nothing.

        earlier  a state of the same statistics, with the same bins, windows and slicing
        """
        at = self.windows, self.clock_ns
        return replace(
            self,
            slices=(yield from _since(self.slices, earlier.slices, *at)),
            class_slices=(yield from _since(self.class_slices, earlier.class_slices, *at)),
            predicted=(yield from _since(self.predicted, earlier.predicted, *at)),
            vehicles=self.vehicles.merge(earlier.vehicles.negated()),
            sample=(yield from gained(self.sample, earlier.sample)),
        )

    def in_order(self) -> StatisticsState:
        """Sorts the slices, so that equal statistics are equal bytes whoever was seen first."""

        def space(entry: SliceState | PredictedSliceState | SampledSlice) -> tuple[Any, ...]:
            return entry.name, entry.overflow, entry.space.number

        def classes(entry: ClassSliceState) -> tuple[Any, ...]:
            return entry.name, entry.overflow, entry.class_names

        return replace(
            self,
            slices=tuple(sorted(self.slices, key=space)),
            class_slices=tuple(sorted(self.class_slices, key=classes)),
            predicted=tuple(sorted(self.predicted, key=space)),
            sample=tuple(sorted(self.sample, key=space)),
        )


AnyState = TypeVar("AnyState", SliceState, ClassSliceState, PredictedSliceState)


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


def _since(
    now: Iterable[AnyState], then: Iterable[AnyState], windows: Windows, clock_ns: int | None
) -> Generator[None, None, tuple[AnyState, ...]]:
    before: dict[Any, AnyState] = {}
    for entry in then:
        unite(before, entry, windows, clock_ns)
        yield
    left = []
    for entry in chain(now, [replace(gone, panes={}) for gone in before.values()]):
        panes: dict[PaneKey, Any] = dict(entry.panes)
        known = before.pop(entry.key, None)
        for key, held in ({} if known is None else known.panes).items():
            if panes.get(key) is held:
                del panes[key]
            else:
                put(panes, key, held.negated())
                yield
        if panes:
            left.append(replace(entry, panes=panes))
    return tuple(left)


def windows_described(windows: Windows) -> str:
    """Describes windows for an error."""
    lengths = ", ".join(f"{length / 1e9:g}" for length in windows.lengths_ns)
    return f"windows of {lengths} s in {windows.panes} panes each"


def check_sizes(state: StatisticsState) -> None:
    """Refuses sums that no sidecar can have counted.

    raises  IncompatibleStatistics
    """
    kinds: dict[str, tuple[SliceState | ClassSliceState | PredictedSliceState, ...]]
    kinds = {"slices": state.slices, "class_slices": state.class_slices}
    kinds["predicted"] = state.predicted
    for kind, entries in kinds.items():
        for i, entry in enumerate(entries):
            for pane in entry.panes.values():
                both: tuple[ExactStatistics, ...] = (
                    (pane,)
                    if isinstance(pane, PredictedStatistics)
                    else (pane.raw, pane.recalibrated)
                )
                for held in both:
                    largest = np.abs(held.companions.high).max(initial=0)
                    if abs(held.n) > MOST_DETECTIONS or largest > _MOST_LIMB:
                        raise IncompatibleStatistics(
                            f"{kind}[{i}].panes: {held.n} detections or their sums are more than "
                            "can have been counted. Export the statistics again."
                        )


def check_spaces(state: StatisticsState, known: Collection[Space], most: int) -> None:
    """Refuses a state that would bring more sets of dimensions than there may be.

    Every space has an overflow slice, however many slices there are.

    raises  IncompatibleStatistics
    """
    spaces = set(known)
    placed = [(f"slices[{i}]", entry.space) for i, entry in enumerate(state.slices)]
    placed += [(f"predicted[{i}]", entry.space) for i, entry in enumerate(state.predicted)]
    placed += [(f"sample[{i}]", entry.space) for i, entry in enumerate(state.sample)]
    for where, space in placed:
        spaces.add(space.with_sent)
        if len(spaces) > most:
            raise IncompatibleStatistics(
                f"{where}.space: {', '.join(space.names)} would be set {len(spaces)} of "
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


@dataclass(slots=True)
class SliceTotals(Generic[S]):
    """The last total of each space, with the (immutable) slices it was made from."""

    _last: dict[Space, tuple[tuple[S, ...], S]] = field(default_factory=dict)

    def read(
        self, slices: list[tuple[Slice, S]]
    ) -> Generator[None, None, tuple[tuple[str, S], ...]]:
        """Adds up the slices of each space, overflow included; one merge a step."""
        taken = {entry.name for entry, _ in slices}
        totals: list[tuple[str, S]] = []
        for space in dict.fromkeys(entry.space for entry, _ in slices):
            parts = tuple(statistics for entry, statistics in slices if entry.space == space)
            known = self._last.get(space)
            if known is None or not same_parts(known[0], parts):
                found = parts[0]
                for part in parts[1:]:
                    found = found.merge(part)
                    yield
                known = self._last[space] = parts, found
            name = label(TOTAL, space, taken)
            taken.add(name)
            totals.append((name, known[1]))
        return tuple(totals)
