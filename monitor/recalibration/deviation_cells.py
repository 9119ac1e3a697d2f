"""Rows of similar predicted σ, put together until what they say of their errors can be relied on.

Histogram binning and isotonic regression on σ are fitted to these cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.noise_floor import kurtosis
from monitor.calibration.space import FloatArray, IntArray

# The deviation of 50 Gaussian errors is known to a tenth: 1 / sqrt(2 · 50).
FEWEST_ROWS = 50.0
# Within these the kurtosis of errors is taken.
COARSE_CELLS = 8


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


def cells_of(deviation: FloatArray, error: FloatArray, weight: float) -> DeviationCells:
    """Cells of equal count, as many as the cube root of what the rows are worth.

    Each cell costs 1/(2n) nats of likelihood for its noise, n rows in all, and C cells are too
    coarse by an amount that falls as 1/C². Rows of equal σ are never parted. Neighbours are
    joined until every cell is worth FEWEST_ROWS Gaussian errors and has an error other than
    0; where the rows are too few for that, there is one cell.

    deviation, error  (n,), in any order; at least one error other than 0
    weight            what a row is worth for its correlation with others, in (0, 1]
    """
    order = np.lexsort((np.abs(error), deviation))
    sigma, error = deviation[order], error[order]
    weight *= _gaussian_worth(sigma, error, weight)
    return _cut(sigma, error, weight, int(np.cbrt(sigma.size * weight)))


def _gaussian_worth(sigma: FloatArray, error: FloatArray, weight: float) -> float:
    """How many Gaussian errors tell as much of a variance as one of these, at most 1.

    A mean of n squares z² of kurtosis κ scatters by (κ − 1)/n, and for Gaussian z by 2/n: a
    row is worth 2/(κ − 1). z is taken within a few coarse cells, so that a σ that is wrong
    in another way for each size of σ does not pass for heavy tails.
    """
    coarse = _cut(sigma, error, weight, COARSE_CELLS)
    square = np.square(error / sigma) / np.repeat(coarse.nees, coarse.rows)
    found = kurtosis(square.size, square.sum(keepdims=True), np.square(square).sum(keepdims=True))
    return min(1.0, 2.0 / (float(found[0]) - 1.0))


def _cut(sigma: FloatArray, error: FloatArray, weight: float, cells: int) -> DeviationCells:
    """So many cells or fewer of rows that ascend in σ."""
    variance, squared_error = np.square(sigma), np.square(error)
    n, cells = sigma.size, max(1, cells)
    first = np.unique(np.searchsorted(sigma, sigma[np.arange(cells) * n // cells]))
    first = first[_kept(first, n, weight, np.add.reduceat(squared_error, first))]
    rows = np.diff(np.append(first, n))
    return DeviationCells(
        start=sigma[first],
        rows=rows,
        variance=np.add.reduceat(variance, first) / rows,
        squared_error=np.add.reduceat(squared_error, first) / rows,
        nees=np.add.reduceat(np.square(error / sigma), first) / rows,
    )


def _kept(first: IntArray, n: int, weight: float, squared_error: FloatArray) -> IntArray:
    """Which cells to begin at, so that each is thick enough; the last takes in what is left."""
    end = np.append(first[1:], n)
    begins: list[int] = []
    begin, gathered = 0, 0.0
    for i in range(first.size):
        gathered += squared_error[i]
        if (end[i] - first[begin]) * weight >= FEWEST_ROWS and gathered > 0:
            begins.append(begin)
            begin, gathered = i + 1, 0.0
    return np.array(begins or [0], np.int64)
