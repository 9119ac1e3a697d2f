"""Sums over matched detections by slot: a slice in a pane.

First every detection is measured by itself (z, NEES, σ_G), then all are summed by slot, axis
and micro-bin. Arrays are laid out one row a quantity, one column a detection, so that all
arithmetic runs over contiguous detections. Every addend is rounded once to its grid; all that is
added from there on are integers below 2^53, in float64, so that no order of rows or of batches
changes a bit.

Work in short steps is a generator that yields where its caller may do something else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from monitor.frames.cholesky import (
    add_up,
    factorise_lower,
    is_diagonal,
    log_determinant,
    put_lower,
    whiten_rows,
)
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space, read_only
from monitor.statistics.bins import (
    EXPONENT,
    SQUARED_ERRORS,
    Binning,
    Column,
    FloatBins,
    chi_square,
)
from monitor.statistics.clusters import EarlierRows, clustered
from monitor.statistics.exact_sums import (
    LIMB_BITS,
    SPILL_BITS,
    ExactSum,
    SparseSums,
    carry,
    from_cells,
    split,
)
from monitor.statistics.measures import normal_crps

# Rows summed in one go: with addends of at most 2^40 units each, any sum of them is exact.
CHUNK = 8192
_LARGEST = 2.0**LIMB_BITS

# What spills is in units of so many bits above the upper limb's.
_LIMBS_TO_SPILL = SPILL_BITS + 1 - LIMB_BITS
_SCALE = 2.0**-EXPONENT
_ROOT_SCALE = 2.0 ** (-EXPONENT // 2)

# NEES below which nothing of a micro-bin can reach _LARGEST.
_ORDINARY = 64.0

# Above so many possible cells, those that occur are sorted for instead of marked.
_MOST_MARKS = 2**24

# Up to so many, each has a counter: that takes 5 to 8 % off the sums of 8,192 rows.
_MOST_COUNTERS = 2**17
Result = TypeVar("Result")


def finished(steps: Generator[None, None, Result]) -> Result:
    """Does work without a break and returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Result, end.value)


# Errors (n, K) and covariances (n, K, K) as they came.
ErrorsAndCovariances = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class Measured:
    """n detections of a space of K dimensions.

    error            (K, n) truth − mean
    deviation        (K + 1, n) σ, and last σ_G = det(Σ)^(1/2K) of the joint block
    normalised       (K, n) z = r / σ
    whitened         (K, n) u = L⁻¹ r, in the order of Space.order
    nees             (K + 1, n) z², and last that of the joint block
    log_determinant  (n,) of the joint block
    joint            dimensions of the joint block, the first ones of whitened
    """

    error: FloatArray
    deviation: FloatArray
    normalised: FloatArray
    whitened: FloatArray
    nees: FloatArray
    log_determinant: FloatArray
    joint: int

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.error.shape[1])

    @cached_property
    def regular(self) -> BoolArray:
        """(n,) where all is finite: by a rounding, a covariance may not be positive definite."""
        total = self.log_determinant + self.nees[-1]
        for row in self.whitened[self.joint :]:
            total += row
        sound: BoolArray = np.isfinite(total)
        return sound

    def take(self, chosen: BoolArray) -> Measured:
        """Selects some of the detections."""
        names = (column.name for column in fields(self) if column.name != "joint")
        return replace(self, **{name: getattr(self, name)[..., chosen] for name in names})


def measure(space: Space, parts: Sequence[ErrorsAndCovariances]) -> Measured:
    """Measures all detections of some frames, in their order."""
    k, k_joint, order = space.k, len(space.joint), np.array(space.order)
    error = np.concatenate([error for error, _ in parts]).T.copy()
    n = error.shape[1]
    deviation, nees = np.empty((k + 1, n)), np.empty((k + 1, n))
    lower = np.empty((k, k, n))
    covariance = parts[0][1] if len(parts) == 1 else np.concatenate([c for _, c in parts])
    put_lower(covariance, space.order, lower)
    for position, i in enumerate(space.order):
        np.sqrt(lower[position, position], out=deviation[i])
    z = error / deviation[:k]
    if is_diagonal(covariance):
        u = z[order]
        log_det = 2.0 * add_up(np.log(deviation[order[:k_joint]]))
    else:
        factorise_lower(lower)
        u = error[order]
        whiten_rows(lower, u)
        log_det = log_determinant(lower, k_joint)
    # σ_G = det(Σ)^(1/2K), Küppers et al. 2022, above eq. 11
    np.exp(log_det / (2 * k_joint), out=deviation[k])
    np.square(z, out=nees[:k])
    nees[k] = add_up(np.square(u[:k_joint]))
    return Measured(error, deviation, z, u, nees, log_det, k_joint)


@cache
def companion_layout(k: int, levels: int) -> tuple[dict[str, slice], int]:
    """Numbers the sums that need no micro-bins; returns the places by name, and their count.

    sigma, error         (K, T + 1) Σ σ and Σ r by how many of the Φ⁻¹(τ) lie below r/σ
    log_sigma            (K,) Σ log σ
    log_determinant      Σ log det Σ of the joint block
    normalised, whitened (K (K + 1) / 2,) lower triangles of Σ z zᵀ and Σ u uᵀ
    pairs, cross, beside of clusters, see clusters.design_effect; the last two (K + 1,)
    crps                 (K,) Σ CRPS; 0 of rows that came from older states
    """
    products = k * (k + 1) // 2
    sizes = {
        "sigma": k * (levels + 1),
        "error": k * (levels + 1),
        "log_sigma": k,
        "log_determinant": 1,
        "normalised": products,
        "whitened": products,
        "pairs": 1,
        "cross": k + 1,
        "beside": k + 1,
        "crps": k,
    }
    ends = zip(sizes.items(), accumulate(sizes.values()), strict=True)
    return {name: slice(end - size, end) for (name, size), end in ends}, sum(sizes.values())


@dataclass(frozen=True, eq=False, slots=True)
class SlotSums:
    """Sums over detections, by slot; StageStatistics tells what they mean.

    n           (G,) detections
    cells       keyed (slot · axes + axis) · bins + micro-bin, columns of bins.Column
    nees        keyed (slot · axes + axis) · bins + bin of the NEES histogram, one column
    squares     likewise of SQUARED_ERRORS, on the joint axis over all its dimensions
    companions  (G, P) of companion_layout
    """

    n: IntArray
    cells: SparseSums
    nees: SparseSums
    squares: SparseSums
    companions: ExactSum


def axis_degrees(space: Space) -> FloatArray:
    """(K + 1,) degrees of freedom of the NEES of each axis."""
    return np.append(np.ones(space.k), float(len(space.joint)))


def joint_unit(space: Space) -> str | None:
    """Returns the unit of all joint dimensions; None where they have several."""
    units = {space.dimensions[i].unit for i in space.joint}
    return units.pop() if len(units) == 1 else None


def sum_by_slot(
    space: Space,
    binning: Binning,
    rows: Measured,
    slot: IntArray,
    slots: int,
    before: EarlierRows | None,
) -> Generator[None, None, SlotSums]:
    """Adds up at most CHUNK regular rows in a few steps.

    slot    (n,) in 0 … slots − 1
    before  of the rows in their clusters; None where none is in any
    """
    assert rows.n <= CHUNK
    # The joint axis has the sum over its dimensions.
    squared = np.empty(rows.nees.shape)
    np.square(rows.error, out=squared[:-1])
    squared[-1] = add_up(squared[list(space.joint)])
    cells = _cells(binning, len(space.joint), rows, squared, slot, slots)
    yield
    nees = _counts(binning.nees.index(rows.nees), binning.nees.count, slot, slots)
    squares = _counts(SQUARED_ERRORS.index(squared), SQUARED_ERRORS.count, slot, slots)
    yield
    return SlotSums(
        n=np.bincount(slot, minlength=slots).astype(np.int64),
        cells=cells,
        nees=nees,
        squares=squares,
        companions=_companions(binning, rows, slot, slots, before, axis_degrees(space)),
    )


def _sum(
    units: FloatArray, cell: IntArray, cells: int, *, ordinary: bool = False
) -> tuple[IntArray, IntArray, IntArray]:
    """Adds up integral floats by cell, modulo 2^62 or so.

    ordinary  whether it is known that none is beyond 2^40
    returns   the sums, the cells of those that spill, and what spills there in units of 2^62
    """
    if ordinary or (units.max(initial=0.0) <= _LARGEST and units.min(initial=0.0) >= -_LARGEST):
        return np.bincount(cell, units, cells).astype(np.int64), cell[:0], cell[:0]
    low, high = (np.bincount(cell, limb, cells).astype(np.int64) for limb in split(units))
    spilled = high >> _LIMBS_TO_SPILL
    value = low + ((high - (spilled << _LIMBS_TO_SPILL)) << LIMB_BITS)
    there = np.flatnonzero(spilled)
    return value, there, spilled[there]


def _counts(position: IntArray, bins: int, slot: IntArray, slots: int) -> SparseSums:
    """Counts detections by cell; position (A, n) is the bin of each on each axis."""
    cells = slots * position.shape[0] * bins
    if cells > _MOST_COUNTERS:
        keys, number = _occupied(position, bins, slot, slots)
        counts = np.bincount(number, minlength=keys.size)
    else:
        counts = np.bincount(_keys(position, bins, slot, slots), minlength=cells)
        # Twice as fast as of the counts themselves.
        keys = np.flatnonzero(counts != 0)
        counts = counts[keys]
    return SparseSums(keys, counts.astype(np.int64)[:, None], keys[:0], keys[:0])


def _keys(position: IntArray, bins: int, slot: IntArray, slots: int) -> IntArray:
    """(A · n,) cell (slot · axes + axis) · bins + bin of positions (A, n)."""
    at_axis = position + (np.arange(position.shape[0]) * bins)[:, None]
    if slots > 1:
        at_axis += slot * (position.shape[0] * bins)
    return at_axis.ravel()


def _cells(
    binning: Binning,
    k_joint: int,
    rows: Measured,
    squared: FloatArray,
    slot: IntArray,
    slots: int,
) -> SparseSums:
    """Adds up the micro-bins; squared (A, n) is Σ error² of each axis."""
    axes, n = rows.deviation.shape
    k, bins, levels = axes - 1, binning.deviation.count, len(binning.tau)
    position = binning.deviation.index(rows.deviation)
    keys, flat = _occupied(position, bins, slot, slots)

    values = np.zeros((keys.size, binning.columns), np.int64)
    spills: list[tuple[IntArray, IntArray]] = []

    # Within the bins σ² is below twice its unit, so that with z² < 64 all is below 2^40 units.
    ordinary = bool(
        rows.nees.max(initial=0.0) < _ORDINARY
        and position.min(initial=1) > 0
        and position.max(initial=0) < bins - 1
    )

    def put(column: int, units: FloatArray, where: IntArray, *, ordinary: bool) -> None:
        np.rint(units, out=units)
        sums, there, amount = _sum(units.ravel(), where, keys.size, ordinary=ordinary)
        values[:, column] += sums
        spills.append((keys[there] * binning.columns + column % binning.columns, amount))

    # In place: at this size, memory is what takes time.
    of_square, of_deviation = binning.scales
    scale = of_square[position]
    units = np.square(rows.deviation)
    units *= scale
    put(Column.VARIANCE, units, flat, ordinary=ordinary)
    put(Column.NEES, np.multiply(rows.nees, _SCALE, out=units), flat, ordinary=ordinary)
    np.multiply(squared, scale, out=units)
    put(Column.SQUARED_ERROR, units[:k], flat[: k * n], ordinary=ordinary)
    # σ_G says little of Σ error² where one dimension is much wider than another.
    put(Column.SQUARED_ERROR, units[k], flat[k * n :], ordinary=False)
    units = units[:k]
    of_deviation.take(position[:k], out=units, mode="clip")
    units *= rows.error
    put(Column.ERROR, units, flat[: k * n], ordinary=ordinary)

    # Which of the T thresholds each NEES lies beyond: counts by (cell, rank), then cumulated.
    rank = np.empty((axes, n), np.uint8)
    rank[:k] = _rank(rows.nees[:k], chi_square(binning.tau, 1))
    rank[k:] = _rank(rows.nees[k:], chi_square(binning.tau, k_joint))
    flat *= levels + 1
    flat += rank.ravel()
    counts = np.bincount(flat, minlength=keys.size * (levels + 1)).reshape(-1, levels + 1)
    np.cumsum(counts, axis=1, out=counts)
    values[:, Column.N] = counts[:, -1]
    values[:, Column.WITHIN] = counts[:, :-1]
    spill_keys, spill = map(np.concatenate, zip(*spills, strict=True))
    return from_cells(keys, values, spill_keys, spill)


def _occupied(
    position: IntArray, bins: int, slot: IntArray, slots: int
) -> tuple[IntArray, IntArray]:
    """Finds the cells (slot · axes + axis) · bins + bin that occur.

    position  (A, n) bin of each detection on each axis
    returns   the cells, ascending, and (A · n,) which of them each is
    """
    cells = slots * position.shape[0] * bins
    key = _keys(position, bins, slot, slots)
    if cells > _MOST_MARKS:
        keys, number = np.unique(key, return_inverse=True)
        return keys, number.astype(np.int64)
    # A mark per possible cell replaces a sort.
    mark = np.zeros(cells, bool)
    mark[key] = True
    keys = np.flatnonzero(mark)
    number = np.empty(cells, np.int64)
    number[keys] = np.arange(keys.size)
    return keys, number.take(key, mode="clip")


def _rank(values: FloatArray, thresholds: FloatArray) -> npt.NDArray[np.uint8]:
    """Counts the ascending thresholds below each value."""
    rank = np.zeros(values.shape, np.uint8)
    for threshold in thresholds.tolist():
        rank += values > threshold
    return rank


def _companions(
    binning: Binning,
    rows: Measured,
    slot: IntArray,
    slots: int,
    before: EarlierRows | None,
    degrees: FloatArray,
) -> ExactSum:
    k, levels = rows.error.shape[0], len(binning.tau)
    layout, size = companion_layout(k, levels)
    low, high = np.zeros((slots, size), np.int64), np.zeros((slots, size), np.int64)

    def put(name: str, units: FloatArray, cell: IntArray | None = None) -> None:
        """Adds (R, n) up by slot in R columns; in C columns by cell (R · n,), slot · C + column."""
        part = layout[name]
        columns = part.stop - part.start
        np.rint(units, out=units)
        if cell is None:
            ordered = units if order is None else units.take(order, axis=1)
            low[present, part], high[present, part] = carry(*_limbs(ordered, starts))
            return
        sums, there, spilled = _sum(units.ravel(), cell, slots * columns)
        lows, highs = carry(sums, np.zeros_like(sums))
        highs[there] += spilled << _LIMBS_TO_SPILL
        low[:, part], high[:, part] = lows.reshape(slots, -1), highs.reshape(slots, -1)

    order, starts, present = _by_slot(slot, slots)
    sigma = rows.deviation[:k]
    # By rank of r/σ among the Φ⁻¹(τ), so that the pinball loss of each τ can be told.
    rank = _rank(rows.normalised, binning.normal).astype(np.int64)
    rank += (np.arange(k) * (levels + 1))[:, None]
    if slots > 1:
        rank += slot * (k * (levels + 1))
    cell = rank.ravel()
    put("sigma", sigma * _SCALE, cell)
    put("error", rows.error * _SCALE, cell)
    put("log_sigma", np.log(sigma) * _SCALE)
    # σ (|z| + what is tabulated)
    units = _crps_beyond_error().take(_CRPS_BINS.index(rows.nees[:k]))
    units *= sigma
    units += np.abs(rows.error)
    units *= _SCALE
    put("crps", units)
    put("log_determinant", rows.log_determinant[None] * _SCALE)
    for name, values in (("normalised", rows.normalised), ("whitened", rows.whitened)):
        part = layout[name]
        low[present, part], high[present, part] = carry(*_products(values, order, starts))
    if before is not None:
        x = clustered(rows.nees, degrees)
        put("pairs", before.rows[None] * _SCALE)
        put("cross", x * before.sums * _SCALE)
        put("beside", (before.sums + x * before.rows) * _SCALE)
    return ExactSum(low, high, EXPONENT)


# Bins of z² fine enough to look CRPS up in: off by 1e-4 σ at most, and by nothing in the mean.
_CRPS_BINS = FloatBins(10, -32, 44)


@cache
def _crps_beyond_error() -> FloatArray:
    """Tabulates normal_crps(z) − |z| in the middle of each bin; far out it is constant."""
    z = np.sqrt(_CRPS_BINS.centre)
    return read_only(normal_crps(z) - z)


def _by_slot(slot: IntArray, slots: int) -> tuple[IntArray | None, IntArray, IntArray]:
    """Orders detections by slot: the order, where each slot begins, which slots have any."""
    if slots == 1:
        return None, np.zeros(min(slot.size, 1), np.int64), np.zeros(min(slot.size, 1), np.int64)
    order = np.argsort(slot, kind="stable")
    ordered = slot[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: slot.size])
    return order, starts, ordered[starts]


def _products(
    values: FloatArray, order: IntArray | None, starts: IntArray
) -> tuple[IntArray, IntArray]:
    """Adds up v vᵀ by slot: limbs of the lower triangle, row by row; (G', K (K + 1) / 2) each.

    values  (K, n)
    order   of the detections by slot; None where it is theirs
    starts  (G',) where each slot that has any begins
    """
    k = values.shape[0]
    # Half the scale to each factor: the products are then in units of the grid.
    v = values * _ROOT_SCALE if order is None else values.take(order, axis=1) * _ROOT_SCALE
    # Where no factor is beyond 2^20, no product is beyond 2^40.
    ordinary = bool(np.abs(v).max(initial=0.0) <= _LARGEST**0.5)
    size = k * (k + 1) // 2
    low, high = np.empty((2, starts.size, size), np.int64)
    end = 0
    for i in range(k):
        start, end = end, end + i + 1
        units = v[: i + 1] * v[i]
        np.rint(units, out=units)
        low[:, start:end], high[:, start:end] = _limbs(units, starts, ordinary=ordinary)
    return low, high


def _limbs(
    units: FloatArray, starts: IntArray, *, ordinary: bool = False
) -> tuple[IntArray, IntArray]:
    """Adds up integral floats (R, n), ordered by slot; limbs (G', R), not yet carried.

    ordinary  whether it is known that none is beyond 2^40
    """
    upper = None
    if not ordinary and np.abs(units).max(initial=0.0) > _LARGEST:
        units, upper = split(units)
    low = np.add.reduceat(units, starts, axis=1).T.astype(np.int64)
    if upper is None:
        return low, np.zeros_like(low)
    return low, np.add.reduceat(upper, starts, axis=1).T.astype(np.int64)
