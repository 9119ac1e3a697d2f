"""Exact sums of doubles, so that order and merging change nothing.

Every addend is rounded once to a fixed grid; from there on all arithmetic is on integers.
Merging is then associative and commutative bit for bit, and subtraction undoes addition.
`ExactSum` is dense: a sum is two limbs, low + high · 2^40, in the unit of the grid.
`SparseSums` keeps the occupied cells alone: of the many that could be, few ever are.
`ExactStatistics` has both.

All values are immutable. The meaning of a cell or a column, and its unit, belongs to the users.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import numpy as np

from monitor.frames.space import FloatArray, IntArray

LIMB_BITS = 40
_MASK = (1 << LIMB_BITS) - 1

# Addends are clipped here, in units of the grid: 2^80 leaves 2^23 of them before a limb is full.
# Gross outliers: 2^80 is 2.8e14 times what a bin is about.
UTMOST = 2.0**80

# A column of SparseSums is one int64 as long as it stays below this; what does not fit spills.
SPILL_BITS = 61
_HALF = np.int64(1) << SPILL_BITS


def split(units: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Splits integral floats, clipped to ±2^80, into low and high limb; both are exact."""
    units = np.clip(units, -UTMOST, UTMOST)
    high = np.floor(units * 2.0**-LIMB_BITS)
    return units - high * 2.0**LIMB_BITS, high


def carry(low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
    """Brings limbs into canonical form: 0 ≤ low < 2^40."""
    return low & _MASK, high + (low >> LIMB_BITS)


@dataclass(frozen=True, eq=False, slots=True)
class ExactSum:
    """An array of sums on one grid.

    low, high  canonical limbs, any shape
    exponent   the unit is 2^exponent
    """

    low: IntArray
    high: IntArray
    exponent: int

    @classmethod
    def zero(cls, shape: tuple[int, ...], exponent: int) -> ExactSum:
        """Sums over nothing."""
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64), exponent)

    @classmethod
    def over_columns(cls, values: FloatArray, exponent: int) -> ExactSum:
        """Adds up the last axis, at most 2^12 long; values (M, N) finite."""
        low, high = split(np.rint(values * 2.0**-exponent))
        # 2^12 limbs of 2^40: a float64 holds every integer up to 2^53.
        low_sum, high_sum = low.sum(axis=1).astype(np.int64), high.sum(axis=1).astype(np.int64)
        return cls(*carry(low_sum, high_sum), exponent)

    def __add__(self, other: ExactSum) -> ExactSum:
        assert self.exponent == other.exponent
        return ExactSum(*carry(self.low + other.low, self.high + other.high), self.exponent)

    def __neg__(self) -> ExactSum:
        return ExactSum(*carry(-self.low, -self.high), self.exponent)

    @property
    def value(self) -> FloatArray:
        """The sums as floats, each rounded once more."""
        high = np.ldexp(self.high.astype(np.float64), self.exponent + LIMB_BITS)
        value: FloatArray = high + np.ldexp(self.low.astype(np.float64), self.exponent)
        return value


@dataclass(frozen=True, eq=False, slots=True)
class SparseSums:
    """Sums of the cells that hold anything, in canonical form: equal contents are equal bits.

    keys        (M,) ascending; no cell of them holds nothing
    values      (M, W) sums modulo 2^62, in [−2^61, 2^61)
    spill_keys  (H,) ascending key · W + column of the few sums beyond that
    spill       (H,) what is missing there, in units of 2^62; never 0
    """

    keys: IntArray
    values: IntArray
    spill_keys: IntArray
    spill: IntArray

    @classmethod
    def zero(cls, width: int) -> SparseSums:
        """Sums over nothing: no cell."""
        none = np.zeros(0, np.int64)
        return cls(none, none.reshape(0, width), none, none)

    @property
    def width(self) -> int:
        """Columns of a cell."""
        return int(self.values.shape[1])

    def between(self, first: int, end: int) -> SparseSums:
        """Selects the cells with first ≤ key < end; their keys are then counted from `first`."""
        a, b = np.searchsorted(self.keys, (first, end))
        c, d = np.searchsorted(self.spill_keys, (first * self.width, end * self.width))
        return SparseSums(
            self.keys[a:b] - first,
            self.values[a:b].copy(),
            self.spill_keys[c:d] - first * self.width,
            self.spill[c:d].copy(),
        )

    def moved(self, size: int, target: IntArray) -> SparseSums:
        """Moves block i of `size` keys to block target[i], ascending."""
        step = (target - np.arange(target.size)) * size
        spill_block = self.spill_keys // (size * self.width)
        return SparseSums(
            self.keys + step[self.keys // size],
            self.values,
            self.spill_keys + step[spill_block] * self.width,
            self.spill,
        )

    def as_float(self, column: int, exponent: IntArray | int) -> FloatArray:
        """(M,) sums of a column in units of 2^exponent (one, or one a cell).

        Rounded once; twice where a sum spilled: what did not, and both together.

        column  negative from the last one
        """
        power = np.asarray(exponent, np.int32)
        result: FloatArray = np.ldexp(self.values[:, column].astype(np.float64), power)
        if self.spill_keys.size:
            here = self.spill_keys % self.width == column % self.width
            rows = np.searchsorted(self.keys, self.spill_keys[here] // self.width)
            unit = np.broadcast_to(power, result.shape)[rows] + np.int32(SPILL_BITS + 1)
            result[rows] += np.ldexp(self.spill[here].astype(np.float64), unit)
        return result

    def __add__(self, other: SparseSums) -> SparseSums:
        return total((self, other))

    def __neg__(self) -> SparseSums:
        # Carried again: the range of a value is not symmetric.
        return from_cells(self.keys, -self.values, self.spill_keys, -self.spill)


def total(parts: Sequence[SparseSums]) -> SparseSums:
    """Adds up at least one part; exact, in whatever order."""
    # Small ones are added to large ones: only what they touch is looked at.
    large, *others = sorted(parts, key=lambda part: -part.keys.size)
    return reduce(_plus, (part for part in others if part.keys.size), large)


def _plus(large: SparseSums, small: SparseSums) -> SparseSums:
    keys, values = large.keys, large.values
    place = np.searchsorted(keys, small.keys)
    there = keys.take(place, mode="clip") == small.keys
    if there.all():
        values = values.copy()
    else:
        # The new cells, zero as yet, each before the first key above it.
        keys = np.insert(keys, place[~there], small.keys[~there])
        values = np.insert(values, place[~there], 0, axis=0)
        place = np.searchsorted(keys, small.keys)
    # take() is twice as fast as an index here.
    touched = values.take(place, axis=0)
    touched += small.values
    touched, over_keys, over = _carried(small.keys, touched)
    values[place] = touched
    emptied = place[_zero_rows(touched)]
    spill_keys = np.concatenate((large.spill_keys, small.spill_keys, over_keys))
    spill = np.concatenate((large.spill, small.spill, over))
    return _canonical(keys, values, spill_keys, spill, emptied)


def from_cells(
    keys: IntArray, values: IntArray, spill_keys: IntArray, spill: IntArray
) -> SparseSums:
    """Makes sums of ascending keys, values in [−2^63, 2^63 − 2^61), and spills in any order."""
    values, over_keys, over = _carried(keys, values)
    if over.size:
        spill_keys, spill = np.append(spill_keys, over_keys), np.append(spill, over)
    return _canonical(keys, values, spill_keys, spill, _zero_rows(values))


def _zero_rows(values: IntArray) -> IntArray:
    # Mostly the first column, of counts, says at once that there is none.
    if values[:, 0].all():
        return np.zeros(0, np.int64)
    return np.flatnonzero(~values.any(axis=1))


def _carried(keys: IntArray, values: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Brings values into their range; returns them, and the keys and amounts that spill."""
    if values.size == 0 or (values.max() < _HALF and values.min() >= -_HALF):
        return values, keys[:0], keys[:0]
    over = (values + _HALF) >> np.int64(SPILL_BITS + 1)
    row, column = np.nonzero(over)
    return (
        values - (over << np.int64(SPILL_BITS + 1)),
        keys[row] * values.shape[1] + column,
        over[row, column],
    )


def _canonical(
    keys: IntArray, values: IntArray, spill_keys: IntArray, spill: IntArray, emptied: IntArray
) -> SparseSums:
    """Brings sums into canonical form; `emptied` are the rows whose values are all zero."""
    if spill_keys.size:
        spill_keys, inverse = np.unique(spill_keys, return_inverse=True)
        total_spill = np.zeros(spill_keys.size, np.int64)
        np.add.at(total_spill, inverse, spill)
        spill_keys, spill = spill_keys[total_spill != 0], total_spill[total_spill != 0]
        spilling = np.searchsorted(keys, spill_keys // values.shape[1])
        emptied = np.setdiff1d(emptied, spilling)
    if emptied.size:
        keys, values = np.delete(keys, emptied), np.delete(values, emptied, axis=0)
    return SparseSums(keys, values, spill_keys, spill)


@dataclass(frozen=True, eq=False)
class ExactStatistics(ABC):
    """Statistics of n rows, which add up in any order.

    n           below 0 where more rows were retracted than came
    tables      sums by cell
    companions  (P,) sums without cells
    """

    n: int
    tables: tuple[SparseSums, ...]
    companions: ExactSum

    @property
    def is_zero(self) -> bool:
        """Tells that nothing is held; n = 0 of a difference of as many rows is not enough."""
        return self.n == 0 and not (
            any(table.keys.size for table in self.tables)
            or self.companions.low.any()
            or self.companions.high.any()
        )

    @abstractmethod
    def check_same(self, other: Self) -> None:
        """Raises IncompatibleStatistics unless the statistics can be added."""

    def merge(self, other: Self) -> Self:
        """Adds the statistics of other rows. Raises IncompatibleStatistics."""
        self.check_same(other)
        if other.is_zero:
            return self
        if self.is_zero:
            return other
        tables = tuple(a + b for a, b in zip(self.tables, other.tables, strict=True))
        companions = self.companions + other.companions
        return replace(self, n=self.n + other.n, tables=tables, companions=companions)

    def negated(self) -> Self:
        """Turns the sign of all sums: merging the result retracts what was added."""
        tables = tuple(-table for table in self.tables)
        return replace(self, n=-self.n, tables=tables, companions=-self.companions)
