"""Reduces recorded detections to what exact measures need: a column for each quantity.

Detections come in portions and are reduced at once to errors, variances, and two numbers of the
joint block, so that covariances are never held all together. Sorting along an axis lives here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from monitor.frames.cholesky import (
    factorise_lower,
    log_determinant,
    positive_definite,
    put_lower,
    whiten_rows,
)
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space

# Rows that are worked on together: a column of them is a quarter of a megabyte, and stays in the
# cache.
PORTION = 32_768


def portions(n: int) -> Iterator[slice]:
    """Divides n rows into portions."""
    for start in range(0, n, PORTION):
        yield slice(start, min(start + PORTION, n))


@dataclass(frozen=True, eq=False, slots=True)
class RowColumns:
    """Errors and uncertainties of n rows with ground truth, positive definite each.

    error, variance  (K, n) truth − mean, angles wrapped; and σ²
    nees, log_det    (n,) r Σ⁻¹ r and log det Σ of the joint block
    """

    space: Space
    error: FloatArray
    variance: FloatArray
    nees: FloatArray
    log_det: FloatArray

    @property
    def n(self) -> int:
        """Counts the rows."""
        return int(self.nees.size)

    def axis(self, i: int, rows: IntArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Gives σ² and error of dimension i, of all rows or of some, by number.

        Of the joint block, i = K, these are σ_G = det(Σ)^(1/2k) and NEES (Küppers et al. 2022,
        above eq. 11).
        """
        joint = i == self.space.k
        found = (self.log_det, self.nees) if joint else (self.variance[i], self.error[i])
        if rows is not None:
            found = found[0][rows], found[1][rows]
        return (np.exp(found[0] / (2 * len(self.space.joint))), found[1]) if joint else found


class RowReducer:
    """Collects the columns of up to n rows, portion by portion."""

    def __init__(self, space: Space, n: int) -> None:
        self.space = space
        self._table = np.empty((2 * space.k + 2, n))
        self._filled = 0

    def add(self, mean: FloatArray, covariance: FloatArray, truth: FloatArray) -> BoolArray:
        """Takes the rows that are sound, in their order; returns which these are, (m,).

        mean, truth  (m, K) truth finite
        covariance   (m, K, K)
        """
        space, k, m = self.space, self.space.k, mean.shape[0]
        factor = np.zeros((k, k, m))
        put_lower(covariance, space.order, factor)
        variance = np.empty((k, m))
        for place, i in enumerate(space.order):
            variance[i] = factor[place, place]
        factorise_lower(factor)
        error = space.error(truth, mean)
        # A bad covariance is NaN from its first bad pivot on.
        usable = positive_definite(factor) & np.isfinite(error).all(axis=1)
        whitened = np.array(error.T[list(space.order)], order="C")
        joint = len(space.joint)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # Of the leading block alone; what is not sound is left out below.
            whiten_rows(factor[:joint, :joint], whitened[:joint])
            nees = np.square(whitened[:joint]).sum(axis=0)
            log_det = log_determinant(factor, joint)
        columns = (error.T, variance, nees[None], log_det[None])
        kept: slice | BoolArray = slice(None) if usable.all() else usable
        end = self._filled + int(np.count_nonzero(usable))
        row = 0
        for block in columns:
            self._table[row : row + len(block), self._filled : end] = block[:, kept]
            row += len(block)
        self._filled = end
        return usable

    def columns(self) -> RowColumns:
        """Gives what was collected."""
        k, table = self.space.k, self._table[:, : self._filled]
        return RowColumns(self.space, table[:k], table[k : 2 * k], table[-2], table[-1])


def sorted_by(values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Sorts n finite values; equal ones keep their order. Returns the order, and them sorted.

    NumPy sorts stably at a fifth of the speed: the few ties are put in order afterwards.
    """
    order = np.argsort(values)
    found = values[order]
    tied = found[1:] == found[:-1]
    if tied.any():
        in_run = np.zeros(order.size, bool)
        in_run[1:] = tied
        in_run[:-1] |= tied
        at = np.flatnonzero(in_run)
        run = np.cumsum(np.append(False, ~tied))[at]
        key = np.sort(run * order.size + order[at])
        order[at] = key - run * order.size
    return order, found


class Levels:
    """Thresholds (T,) in any order, between which values are counted."""

    # Up to so many, comparing with each takes less time than to search.
    _FEW = 32

    def __init__(self, thresholds: FloatArray) -> None:
        self._place = np.argsort(np.argsort(thresholds, kind="stable"), kind="stable")
        self._sorted = np.sort(thresholds)

    def _of(self, values: FloatArray) -> IntArray:
        """Counts the thresholds below each value."""
        if self._sorted.size > self._FEW:
            return np.searchsorted(self._sorted, values)
        level = np.zeros(values.size, np.uint8)
        for threshold in self._sorted.tolist():
            level += (values > threshold).view(np.uint8)
        return level.astype(np.intp)

    def counts(self, values: FloatArray, starts: IntArray) -> IntArray:
        """Counts the values up to each threshold, in pieces that begin there, (P, T)."""
        cells, level = self._sorted.size + 1, self._of(values)
        if starts.size > 1:
            piece = np.arange(starts.size) * cells
            level += np.repeat(piece, np.diff(np.append(starts, values.size)))
        found = np.bincount(level, minlength=starts.size * cells).reshape(starts.size, cells)
        counts: IntArray = found.cumsum(axis=1)[:, self._place]
        return counts

    def sums(self, values: FloatArray, *columns: FloatArray) -> FloatArray:
        """Adds up ones and columns where values are up to a threshold, and beyond it.

        returns  (1 + columns, 2, T)
        """
        level, cells = self._of(values), self._sorted.size + 1
        found = np.array([np.bincount(level, one, cells) for one in (None, *columns)], np.float64)
        up_to = np.cumsum(found, axis=1)[:, :-1]
        beyond = np.cumsum(found[:, ::-1], axis=1)[:, -2::-1]
        sums: FloatArray = np.stack((up_to, beyond), axis=1)[:, :, self._place]
        return sums
