"""Factors on σ that depend on the predicted σ alone, fitted to cells of rows with similar σ.

A cell puts rows together until what they say of their errors can be relied on. Two methods are
fitted to cells (both named by Levi et al. 2019, section 3.1).

Histogram binning: in each bin of σ the errors say what σ should have been. Zadrozny and Elkan's
binning gives all of a bin one value. For deviations that "enforces minimal and maximal values"
(Levi et al.), takes from the tracker what σ tells within a bin, and costs 0.01 nats on calibrated
boxes. Here a bin gives a factor: one variance scaling for each. It jumps at the edges, so that of
two detections with nearly equal σ the better may come out as the worse.

Isotonic regression of the error's size on σ: of two detections the one with the larger σ never
comes out as the better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.fit_rows import Evidence, FitSums, check_errors, prepared
from monitor.recalibration.recalibrator import InvalidRecalibrator, PerDimension
from monitor.recalibration.scaling import WIDE, WideFactor
from monitor.statistics.measures import kurtosis
from monitor.statistics.reading import OccupiedCells

# Deviations in any unit lie between these; what is beyond would overflow when squared twice.
LEAST_DEVIATION, LARGEST_DEVIATION = 1e-12, 1e12
Deviations = tuple[Annotated[float, Interval(ge=LEAST_DEVIATION, le=LARGEST_DEVIATION)], ...]

# The deviation of 50 Gaussian errors is known to a tenth: 1 / sqrt(2 · 50).
FEWEST_ROWS = 50.0

# Within these the kurtosis of errors is taken.
COARSE_CELLS = 8

# Knots nearer than this in log σ are one: between them a slope would be noise of rounding.
_NEAREST = 1e-9


def _deviations(estimates: Estimates) -> FloatArray:
    """(K, n) predicted σ, each dimension in one piece."""
    return np.ascontiguousarray(estimates.deviation.T)


@dataclass(frozen=True, slots=True)
class DeviationCells:
    """C cells of one dimension, ascending in σ.

    start          (C,) least σ of each
    rows           (C,) how many
    variance       (C,) mean σ²
    squared_error  (C,) mean squared error, positive
    nees           (C,) mean squared error over σ², positive
    """

    start: FloatArray
    rows: IntArray
    variance: FloatArray
    squared_error: FloatArray
    nees: FloatArray


def _cells_by_dimension(found: Evidence) -> list[DeviationCells]:
    if isinstance(found, FitSums):
        return _cells_of_sums(found)
    rows = prepared(found)
    columns = zip(rows.deviation.T, rows.error.T, rows.size_weight.tolist(), strict=True)
    return [cells_of(*column) for column in columns]


def cells_of(deviation: FloatArray, error: FloatArray, weight: float) -> DeviationCells:
    """Cuts rows into cells of equal count, as many as the cube root of what the rows are worth.

    Each cell costs 1/(2n) nats of likelihood for its noise, n rows in all, and C cells are too
    coarse by an amount that falls as 1/C². Rows of equal σ are never parted. Neighbours are
    joined until every cell is worth FEWEST_ROWS Gaussian errors and has an error other than
    0; where the rows are too few for that, there is one cell.

    deviation, error  (n,), in any order; at least one error other than 0
    weight            what a row is worth for its correlation with others, in (0, 1]
    """
    order = np.lexsort((np.abs(error), deviation))
    sigma, error = deviation[order], error[order]
    nees = np.square(error / sigma)
    one = np.ones(sigma.size, np.int64)
    rows = DeviationCells(sigma, one, np.square(sigma), np.square(error), nees)
    coarse = _cut(rows, weight, COARSE_CELLS)
    square = nees / np.repeat(coarse.nees, coarse.rows)
    found = kurtosis(square.size, square.sum(keepdims=True), np.square(square).sum(keepdims=True))
    return _cut_as_worth(rows, weight, float(found[0]))


def _cells_of_sums(found: FitSums) -> list[DeviationCells]:
    """Cuts micro-bins as `cells_of` cuts rows: a cell begins where one does.

    The sums tell Σ z⁴ of all rows alone. Where z has one kurtosis, whatever σ is, it is
    κ Σ n v², v the mean z² of each coarse cell.
    """
    sums, cells = found.statistics, []
    check_errors(sums.space, found.n, found.size > 0)
    occupied = OccupiedCells.of(sums)
    for i, (weight, spread) in enumerate(zip(found.size_weight, found.kurtosis, strict=True)):
        held = occupied.axis(i)
        totals = (held.variance, held.squared_error, held.nees)
        bins = DeviationCells(held.lower, held.n, *(total / held.n for total in totals))
        coarse = _cut(bins, float(weight), COARSE_CELLS)
        mean = np.average(coarse.nees, weights=coarse.rows)
        unlike = np.average(np.square(coarse.nees), weights=coarse.rows) / np.square(mean)
        cells.append(_cut_as_worth(bins, float(weight), float(spread / unlike)))
    return cells


def _cut_as_worth(rows: DeviationCells, weight: float, kurtosis: float) -> DeviationCells:
    """Cuts rows into as many cells as they are worth.

    A mean of n squares z² of kurtosis κ scatters by (κ − 1)/n, and for Gaussian z by 2/n: a
    row is worth 2/(κ − 1), at most 1. z is taken within a few coarse cells, so that a σ that is
    wrong in another way for each size of σ does not pass for heavy tails.
    """
    weight *= 2.0 / max(2.0, kurtosis - 1.0)
    return _cut(rows, weight, int(np.cbrt(rows.rows.sum() * weight)))


def _cut(rows: DeviationCells, weight: float, cells: int) -> DeviationCells:
    """Puts rows, or cells of some, together in so many cells or fewer."""
    end, cells = np.cumsum(rows.rows), max(1, cells)
    n = int(end[-1])
    share = np.searchsorted(end, np.arange(cells) * n // cells, side="right")
    first = np.unique(np.searchsorted(rows.start, rows.start[share]))
    squared_error = rows.squared_error * rows.rows
    before = np.append(0, end)[first]
    first = first[_kept(before, n, weight, np.add.reduceat(squared_error, first))]
    count = np.add.reduceat(rows.rows, first)
    return DeviationCells(
        start=rows.start[first],
        rows=count,
        variance=np.add.reduceat(rows.variance * rows.rows, first) / count,
        squared_error=np.add.reduceat(squared_error, first) / count,
        nees=np.add.reduceat(rows.nees * rows.rows, first) / count,
    )


def _kept(before: IntArray, n: int, weight: float, squared_error: FloatArray) -> IntArray:
    """Chooses the cells to begin at, so that each is thick enough; the last takes in the rest.

    before  rows before each cell, of n in all
    """
    end = np.append(before[1:], n)
    begins: list[int] = []
    begin, gathered = 0, 0.0
    for i in range(before.size):
        gathered += squared_error[i]
        if (end[i] - before[begin]) * weight >= FEWEST_ROWS and gathered > 0:
            begins.append(begin)
            begin, gathered = i + 1, 0.0
    return np.array(begins or [0], np.int64)


@dataclass(frozen=True)
class HistogramBinning(PerDimension):
    """Σ' = S Σ S with S = diag(s_b), b the bin that σ lies in, s_b² its mean NEES.

    edges    K lists of B_d − 1 σ, ascending: bins are closed on the left, the outer ones open
    factors  K lists of B_d factors on σ
    """

    edges: tuple[Deviations, ...]
    factors: Annotated[tuple[tuple[WideFactor, ...], ...], Len(1)]
    method: ClassVar[str] = "histogram-binning"
    by_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_ascending("edges")
        self.check_lengths(
            "factors", self.factors, [len(curve) + 1 for curve in self.edges], "edges"
        )

    @cached_property
    def _bins(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        return tuple(zip(map(np.array, self.edges), map(np.array, self.factors), strict=True))

    def apply(self, estimates: Estimates) -> Estimates:
        """Scales every dimension by its own bin; correlations stay."""
        factor = _deviations(estimates)
        for row, (edges, factors) in zip(factor, self._bins, strict=True):
            row[:] = factors[edges.searchsorted(row, side="right")]
        return estimates.rescaled(factor.T)


def fit_histogram_binning(rows: Evidence) -> HistogramBinning:
    """Fits bins of equal count, each in closed form; few rows make one bin: variance scaling.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    cells = _cells_by_dimension(rows)
    return HistogramBinning(
        tuple(tuple(one.start[1:].tolist()) for one in cells),
        tuple(tuple(WIDE.of(np.sqrt(one.nees)).tolist()) for one in cells),
    )


@dataclass(frozen=True)
class IsotonicStd(PerDimension):
    """Σ' = S Σ S with S = diag(σ'/σ), σ' a nondecreasing function of σ.

    log σ' is a straight line in log σ between knots. Beyond the outer knots the factor of the
    knot stays, so that σ' has neither a least nor a largest value: Levi et al.'s objection (b).

    deviation  K lists of J_d knots σ, ascending
    factor     K lists of J_d factors σ'/σ there
    """

    deviation: tuple[Deviations, ...]
    factor: Annotated[tuple[Annotated[tuple[WideFactor, ...], Len(1)], ...], Len(1)]
    method: ClassVar[str] = "isotonic-std"

    def __post_init__(self) -> None:
        self.check_ascending("deviation")
        lengths = [len(knots) for knots in self.deviation]
        self.check_lengths("factor", self.factor, lengths, "deviation")
        for knots, factors in zip(self.deviation, self.factor, strict=True):
            for before, after in pairwise(knots):
                if after < before * (1 + _NEAREST / 2):
                    raise InvalidRecalibrator(
                        f"'deviation' holds {before!r} and {after!r}: knots so near to each other "
                        "make no slope; leave one of them out"
                    )
            made = [sigma * f for sigma, f in zip(knots, factors, strict=True)]
            for before, after in pairwise(made):
                # Both were rounded when they were written.
                if after < before * (1 - _NEAREST):
                    raise InvalidRecalibrator(
                        f"'factor' makes σ {after!r} after {before!r} at the knots of 'deviation': "
                        "a recalibrated deviation must not fall where the predicted one rises"
                    )

    @cached_property
    def _lines(self) -> tuple[tuple[FloatArray, FloatArray, FloatArray, FloatArray], ...]:
        return tuple(map(_line, self.deviation, self.factor))

    def apply(self, estimates: Estimates) -> Estimates:
        """Scales every dimension by its own curve; correlations stay."""
        factor = np.log(_deviations(estimates))
        for row, (knot, origin, value, slope) in zip(factor, self._lines, strict=True):
            piece = knot.searchsorted(row, side="right")
            row[:] = value[piece] + slope[piece] * (row - origin[piece])
        return estimates.rescaled(np.exp(factor, out=factor).T)


def _line(
    deviation: tuple[float, ...], factor: tuple[float, ...]
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Log factor over log σ, straight in each of J + 1 pieces that J knots part.

    returns  knots (J,); origin and value of a point of each piece, and its slope, all (J + 1,)
    """
    knot, value = np.log(deviation), np.log(factor)
    slope = np.zeros(knot.size + 1)
    slope[1:-1] = np.diff(value) / np.diff(knot)
    # The first piece is level, through the first knot; each other begins at its knot.
    return knot, np.append(knot[0], knot), np.append(value[0], value), slope


def fit_isotonic_std(rows: Evidence) -> IsotonicStd:
    """Fits the most likely nondecreasing σ'(σ), over cells of rows with similar σ.

    Errors that are Gaussian with variance v_c, v_1 ≤ v_2 ≤ …, are likeliest where
    Σ_c n_c (log v_c + m_c / v_c) is least, m_c the mean squared error of cell c. But for a constant
    that is Σ n_c Δ(m_c, v_c) with Δ the Bregman distance of the convex −log, and every such sum is
    least at the isotonic regression of m with weights n (Robertson, Wright, Dykstra 1988, theorem
    1.5.1), which pooling adjacent violators finds. No cell is thin, so that no run of lucky rows at
    an end makes σ' ≈ 0. One cell makes variance scaling.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    deviation, factor = zip(*map(_curve, _cells_by_dimension(rows)), strict=True)
    return IsotonicStd(deviation, factor)


def _curve(cells: DeviationCells) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # Half a second to import, and nothing that serves needs it.
    from scipy.optimize import isotonic_regression

    # A cell whose errors are in proportion to σ gets the right factor at the root of its mean σ².
    centre = np.sqrt(cells.variance)
    if centre.size == 1:
        # The factor is then the same for every σ, and this the likeliest: variance scaling.
        return tuple(centre.tolist()), tuple(WIDE.of(np.sqrt(cells.nees)).tolist())
    variance = isotonic_regression(cells.squared_error, weights=cells.rows).x
    apart = np.append(True, np.diff(np.log(centre)) > _NEAREST)
    factor = WIDE.of(np.sqrt(variance) / centre)
    return tuple(centre[apart].tolist()), tuple(factor[apart].tolist())
