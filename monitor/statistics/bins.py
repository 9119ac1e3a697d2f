"""Bins on fixed edges, the same in every replica.

Micro-bins are log-spaced, and nothing about them depends on the data, so statistics of any two
replicas with equal binning can be added. Every choice that changes a sum is part of the hash.

Export bins are the few that leave the sidecar as counters: on edges that all vehicles share,
so that increases of any of them can be added. They count live first labels alone: nothing in
them is ever retracted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from monitor.frames.space import FloatArray, IntArray, read_only
from monitor.statistics.exact_sums import SparseSums
from monitor.statistics.measures import chi_square_quantiles

# Unit of every sum: 2^-32 (2.3e-10) of what is added; in a micro-bin, of its own σ² or σ.
EXPONENT = -32

# Micro-bins reach over all deviations that validation lets pass by default, 1e-6 to 1e5, in
# whatever unit; bins that stay empty cost nothing.
LOWEST, OCTAVES = 2.0**-20, 40

# A table of more steps than this leaves out those beyond the edges.
_MOST_STEPS = 2**18


class Column:
    """Columns of a micro-bin, for T levels of confidence.

    N              detections
    WITHIN         how many of these have their NEES within χ²(τ), for each τ
    VARIANCE       Σ σ², in units relative to the micro-bin's own σ²
    SQUARED_ERROR  Σ error², in the same units; on the joint axis over all its dimensions
    ERROR          Σ error, in units relative to the micro-bin's own σ
    NEES           Σ NEES
    """

    N, WITHIN = 0, slice(1, -4)
    VARIANCE, SQUARED_ERROR, ERROR, NEES = range(-4, 0)


def digest(arrays: Iterable[FloatArray], units: str) -> str:
    """Hashes edges and the exponents of sums, in hexadecimal."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.asarray(array, dtype="<f8").tobytes() + b"|")
    found.update(units.encode())
    return found.hexdigest()[:16]


@cache
def chi_square(tau: tuple[float, ...], k: int) -> FloatArray:
    """χ²_k quantiles of the levels, (T,); they cost a tenth of a millisecond, so they are kept."""
    return read_only(chi_square_quantiles(np.array(tau), k))


@dataclass(frozen=True)
class LogBins:
    """Bins of equal ratio from `lowest` up, with one more below and one above.

    Bin 0 holds what lies below `lowest`, bin i the half-open interval
    [edges[i-1], edges[i]), the last one all from the highest edge up.
    """

    lowest: float
    per_octave: int
    octaves: int

    @cached_property
    def edges(self) -> FloatArray:
        """The inner edges, (per_octave · octaves + 1,), ascending."""
        steps = np.arange(self.per_octave * self.octaves + 1)
        within = np.array([2.0 ** (i / self.per_octave) for i in range(self.per_octave)])
        # Whole octaves are exact; only per_octave constants are rounded at all.
        edges: FloatArray = np.ldexp(
            self.lowest * within[steps % self.per_octave],
            (steps // self.per_octave).astype(np.int32),
        )
        return read_only(edges)

    @cached_property
    def count(self) -> int:
        """Number of bins, the outer two included."""
        return self.per_octave * self.octaves + 2

    @cached_property
    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Lower and upper edge of every bin; 0 and infinity at the ends."""
        lower, upper = np.append(0.0, self.edges), np.append(self.edges, np.inf)
        return read_only(lower), read_only(upper)

    @cached_property
    def _steps(self) -> tuple[int, int, npt.NDArray[np.int32], FloatArray]:
        """How to find a bin from the leading bits of a float: exponent and some of the fraction.

        They number steps, none of which has more than one edge inside.

        returns  bits to drop, number of the first step, bin of the lower end of every step,
                 and the upper edge of every bin, NaN for the last: nothing lies beyond it
        """
        # A step is at most 2^-kept of a value, a bin at least ln 2 / per_octave.
        kept = int(np.ceil(np.log2(1.5 * self.per_octave)))
        dropped = 52 - kept
        first = 0
        steps = np.arange((2047 << kept) + 1)  # of all numbers, and of infinity
        if steps.size > _MOST_STEPS:
            first = int(self.edges[:1].view(np.int64)[0] >> dropped) - 1
            steps = np.arange(first, int(self.edges[-1:].view(np.int64)[0] >> dropped) + 2)
        starts = (steps << dropped).view(np.float64)
        below = np.searchsorted(self.edges, starts, side="right").astype(np.int32)
        return dropped, first, read_only(below), read_only(np.append(self.edges, np.nan))

    def index(self, value: FloatArray) -> IntArray:
        """Bin of every value; the values are positive or zero, any shape."""
        dropped, first, bin_of_step, upper = self._steps
        step = value.view(np.int64) >> dropped
        if first:
            step -= first
        # take() is twice as fast as an index here; steps below the first are no bin's but the
        # lowest's, those above the last the highest's.
        found: IntArray = bin_of_step.take(step, mode="clip").astype(np.int64)
        found += value >= upper.take(found, mode="clip")
        return found


@dataclass(frozen=True)
class FloatBins:
    """Bins that end where the leading bits of a float change: equal steps in each octave.

    Bin 0 holds what lies below 2^lowest, the last one all from 2^(lowest + octaves) up.

    bits  of the fraction: each octave has 2^bits bins
    """

    bits: int
    lowest: int
    octaves: int

    @cached_property
    def count(self) -> int:
        """Number of bins, the outer two included."""
        return (self.octaves << self.bits) + 2

    @cached_property
    def centre(self) -> FloatArray:
        """(count,) middle of each bin; of the outer two their finite edge."""
        octave, step = np.divmod(np.arange(self.count - 1), 1 << self.bits)
        edges = np.ldexp(1 + step / (1 << self.bits), (octave + self.lowest).astype(np.int32))
        inner = (edges[1:] + edges[:-1]) / 2
        return read_only(np.concatenate((edges[:1], inner, edges[-1:])))

    def index(self, value: FloatArray) -> IntArray:
        """Bin of every value; the values are positive or zero, any shape."""
        found: IntArray = value.view(np.int64) >> (52 - self.bits)
        found -= ((self.lowest + 1023) << self.bits) - 1
        return np.clip(found, 0, self.count - 1, out=found)


# Bins of squared errors in whatever unit, the same for every binning: those of errors from 2e-10
# to 4e9, 4 to 9 % wide.
SQUARED_ERRORS = FloatBins(3, -64, 128)


class IncompatibleStatistics(ValueError):
    """Statistics kept on different bins or in different spaces cannot be added."""


@dataclass(frozen=True)
class Binning:
    """All that two statistics must share before they may be added.

    deviation  micro-bins over σ of a dimension and over σ_G = det(Σ)^(1/2K)
    nees       bins of the histogram of the normalised squared error
    tau        confidence levels whose coverage is counted
    """

    deviation: LogBins = field(default_factory=lambda: LogBins(LOWEST, 32, OCTAVES))
    nees: LogBins = field(default_factory=lambda: LogBins(2.0**-16, 16, 32))
    tau: tuple[float, ...] = (0.5, 0.68, 0.9, 0.95, 0.99)

    @cached_property
    def tau_array(self) -> FloatArray:
        """tau as (T,)."""
        return read_only(np.array(self.tau))

    @cached_property
    def normal(self) -> FloatArray:
        """Φ⁻¹(τ), (T,)."""
        return read_only(ndtri(self.tau_array))

    @cached_property
    def variance_exponent(self) -> IntArray:
        """Power of two just below σ² of every micro-bin: the unit its sums are kept in."""
        lower, upper = self.deviation.bounds
        reference = lower.copy()
        reference[0] = upper[0]
        return read_only(np.frexp(reference * reference)[1].astype(np.int64) - 1)

    @cached_property
    def scales(self) -> tuple[FloatArray, FloatArray]:
        """1/unit of the sums of σ², error² and of error, for every micro-bin; powers of two."""
        exponent = self.variance_exponent
        of_square: FloatArray = np.ldexp(1.0, (-EXPONENT - exponent).astype(np.int32))
        of_deviation: FloatArray = np.ldexp(1.0, (-EXPONENT - exponent // 2).astype(np.int32))
        return read_only(of_square), read_only(of_deviation)

    @cached_property
    def columns(self) -> int:
        """Columns of a micro-bin."""
        return 5 + len(self.tau)

    @cached_property
    def hash(self) -> str:
        """Hexadecimal digest of every edge and level."""
        return digest((self.deviation.edges, self.nees.edges, self.tau_array), str(EXPONENT))

    def describe(self) -> str:
        """Describes the bins for error messages."""
        low, high = self.deviation.edges[0], self.deviation.edges[-1]
        return (
            f"{self.deviation.per_octave} bins an octave over [{low:.6g}, {high:.6g}), "
            f"tau {self.tau} (hash {self.hash})"
        )

    def check_same(self, other: Binning) -> None:
        """Raises IncompatibleStatistics unless sums on both bins can be added."""
        if self != other:
            raise IncompatibleStatistics(
                f"cannot merge statistics on {self.describe()} with {other.describe()}: "
                "the bins differ. Start every replica with the same [statistics] section."
            )


class InvalidExportEdges(ValueError):
    """The edges cannot be told apart on these micro-bins."""


@dataclass(frozen=True)
class ExportEdges:
    """Which export bin every micro-bin belongs to: bins 0 … E, the first and last open.

    wanted   (E,) inner edges, at least one, positive, finite and ascending, in the unit of the
             stream; over σ, jointly over σ_G
    binning  whose micro-bins are put together
    raises   InvalidExportEdges where two edges are not ascending, or fall together
    """

    wanted: tuple[float, ...]
    binning: Binning

    def __post_init__(self) -> None:
        for (low, i), (high, j) in pairwise(zip(self.wanted, self._position, strict=True)):
            if i >= j:
                edges = self.binning.deviation.edges
                raise InvalidExportEdges(
                    f"export edges {low:g} and {high:g} are not ascending or lie at one edge of "
                    f"the micro-bins: give ascending edges within [{edges[0]:g}, {edges[-1]:g}], "
                    f"at least 1/{self.binning.deviation.per_octave} of an octave apart."
                )

    @cached_property
    def _position(self) -> IntArray:
        """(E,) the edge of the micro-bins that is nearest by ratio."""
        edges = self.binning.deviation.edges
        wanted = np.array(self.wanted)
        above = np.clip(np.searchsorted(edges, wanted), 1, edges.size - 1)
        nearer_below = wanted / edges[above - 1] < edges[above] / wanted
        position: IntArray = above - nearer_below
        return position

    @cached_property
    def edges(self) -> FloatArray:
        """(E,) the inner edges, moved to those of micro-bins."""
        return self.binning.deviation.edges[self._position]

    @property
    def count(self) -> int:
        """Number of export bins, the open ones included."""
        return len(self.wanted) + 1

    @cached_property
    def of_micro_bin(self) -> IntArray:
        """(bins,) the export bin of every micro-bin."""
        # Micro-bin i lies above the edges before i.
        return np.searchsorted(self._position, np.arange(self.binning.deviation.count))


@dataclass(frozen=True, slots=True)
class StageBins:
    """Running totals of one slice at one stage, by export bin; they never fall.

    n              (K + 1, B) detections; the last row is the joint axis
    variance       (K, B) Σσ² in the unit of the dimension squared
    squared_error  (K, B) Σ error² in the same unit
    nees           (B,) Σ NEES of the joint block, by σ_G
    within         (B, T) detections whose joint NEES is within χ²(τ)
    """

    n: IntArray
    variance: FloatArray
    squared_error: FloatArray
    nees: FloatArray
    within: IntArray


@dataclass(frozen=True, slots=True)
class SliceBins:
    """The bins of one slice: K dimension names, and its stages by name."""

    name: str
    dimensions: tuple[str, ...]
    stages: tuple[tuple[str, StageBins], ...]


@dataclass(slots=True)
class BinTotals:
    """Running totals of all slices of one space; a slot is 2 · slice + stage (0 raw).

    axes    K + 1: the dimensions, then the joint axis
    _sums   (slots, K + 1, B, columns) float64, the columns of micro-bins but for Σ error, which
            could fall. Counts are exact below 2^53; what is added is not negative
    """

    edges: ExportEdges
    axes: int
    _sums: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._sums = np.zeros((0, self.axes, self.edges.count, self.edges.binning.columns))

    def add(self, cells: SparseSums) -> None:
        """Adds what one fold brought; slots appear as cells name them.

        cells  keyed slot · (K + 1) · bins + axis · bins + micro-bin. Of first labels alone, so
               that n ≥ 1
        """
        if not cells.keys.size:
            return
        binning = self.edges.binning
        assert cells.width == binning.columns, "cells of another binning"
        assert cells.values[:, Column.N].min() >= 0, "retracted: a counter never falls"
        axis, micro = np.divmod(cells.keys, binning.deviation.count)
        unit = EXPONENT + binning.variance_exponent[micro]
        added = cells.values.astype(np.float64)
        added[:, Column.ERROR] = 0.0
        for column in (Column.VARIANCE, Column.SQUARED_ERROR):
            added[:, column] = cells.as_float(column, unit)
        added[:, Column.NEES] = cells.as_float(Column.NEES, EXPONENT)
        # Keys ascend and so do export bins of micro-bins: what belongs together is together.
        place = axis * self.edges.count + self.edges.of_micro_bin[micro]
        first = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        self._grow(int(axis[-1]) // self.axes + 1)
        totals = self._sums.reshape(-1, self._sums.shape[-1])
        totals[place[first]] += np.add.reduceat(added, first, axis=0)

    def of(self, slot: int) -> StageBins:
        """Copies the totals as they are now; zeros for a slot that has seen nothing."""
        self._grow(slot + 1)
        sums = self._sums[slot]
        return StageBins(
            n=sums[..., Column.N].astype(np.int64),
            variance=sums[:-1, :, Column.VARIANCE].copy(),
            squared_error=sums[:-1, :, Column.SQUARED_ERROR].copy(),
            nees=sums[-1, :, Column.NEES].copy(),
            within=sums[-1, :, Column.WITHIN].astype(np.int64),
        )

    def _grow(self, slots: int) -> None:
        missing = slots - self._sums.shape[0]
        if missing > 0:
            self._sums = np.pad(self._sums, ((0, missing), (0, 0), (0, 0), (0, 0)))
