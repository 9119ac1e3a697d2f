"""Ranks rows by their uncertainty and rejects the most uncertain: how much error remains?

Sparsification is the mean error of the rows that remain when the most uncertain are rejected.
Rows come as groups of equal uncertainty, ranked from the certain to the uncertain ones, for
several segments (classes) and several kinds of error at once. Rows of a group share their mean
error, so nothing depends on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from monitor.frames.space import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Ranked:
    """G groups of rows, by segment, and in it by ascending uncertainty.

    segments   S, of which any may be empty
    segment    (G,) ascending, in 0 … S − 1
    n          (G,) rows, at least one
    error      (G, E) sums of E kinds of error
    deviation  (G, E) how far the sum over the first rows of a group, in the unknown order of
               exact sorting, can be from their share; 0 for ties
    """

    segments: int
    segment: IntArray
    n: IntArray
    error: FloatArray
    deviation: FloatArray


def rank_rows(
    uncertainty: FloatArray, errors: FloatArray, segment: IntArray, segments: int
) -> Ranked:
    """Groups the rows themselves: rows of equal uncertainty are ties.

    uncertainty  (N,)
    errors       (N, E)
    segment      (N,)
    """
    order = np.lexsort((uncertainty, segment))
    segment, uncertainty = segment[order], uncertainty[order]
    first = np.append(True, (np.diff(segment) != 0) | (np.diff(uncertainty) != 0))[: order.size]
    start = np.flatnonzero(first)
    error = np.add.reduceat(errors[order], start) if start.size else errors
    return Ranked(
        segments=segments,
        segment=segment[start],
        n=np.diff(np.append(start, order.size)),
        error=error,
        deviation=np.zeros_like(error),
    )


def deviation_within(
    n: IntArray, error: FloatArray, lowest: FloatArray | float, highest: FloatArray | float
) -> FloatArray:
    """Ranked.deviation of groups whose rows have errors in [lowest, highest]; (G,).

    With mean b, the sum over some rows is furthest from their share of it when every error
    is at an end: n (b − lowest) (highest − b) / (highest − lowest).
    """
    mean = error / n
    spread: FloatArray = n * (mean - lowest) * (highest - mean) / (highest - lowest)
    return np.maximum(spread, 0.0)


def areas(ranked: Ranked) -> FloatArray:
    """Areas under the sparsification curves, in the unit of the error, and their bounds.

    A = 1/N Σ_{r=1..N} (mean error of the r most certain rows): the curve is a step of width
    1/N for each number of rejected rows, 0 … N − 1.

    returns  (2, E, S): the areas, and how far each can be from that of exact sorting, 0 without
             deviations; NaN where a segment is empty
    """
    # Rows and errors of each segment up to each group.
    start = np.searchsorted(ranked.segment, ranked.segment)
    rows, sums = np.cumsum(ranked.n), np.cumsum(ranked.error, axis=0)
    kept = rows - (rows - ranked.n)[start]
    within = sums - (sums - ranked.error)[start]
    step = (digamma(kept + 1) - digamma(kept - ranked.n + 1))[:, None]
    # Keeping r of a group's rows leaves R − (rows kept − r) e, so with H the harmonic numbers
    # Σ_r of its mean is n e + (R − kept · e) (H(kept) − H(kept − n)).
    mean = ranked.error / ranked.n[:, None]
    area = ranked.error + (within - kept[:, None] * mean) * step
    columns = np.concatenate((area, ranked.deviation * step), axis=1).T
    found = [np.bincount(ranked.segment, column, ranked.segments) for column in columns]
    with np.errstate(invalid="ignore"):
        means: FloatArray = np.stack(found) / np.bincount(ranked.segment, ranked.n, ranked.segments)
    return means.reshape(2, -1, ranked.segments)


def wrong_of_kept(ranked: Ranked, kept: IntArray) -> FloatArray:
    """(F,) mean first error of the `kept` (F,) most certain rows of one segment; NaN for 0."""
    rows, sums = (np.append(0, np.cumsum(one)) for one in (ranked.n, ranked.error[:, 0]))
    with np.errstate(invalid="ignore"):
        mean: FloatArray = np.interp(kept, rows, sums) / kept
    return mean


def sparsification_error(uncertainty: FloatArray, error: FloatArray) -> float:
    """AUSE: area between the sparsification curve and that of the oracle, in the unit of the error.

    The oracle sorts by the error itself; 0 is the best order.

    uncertainty, error  (N,)
    returns             NaN without rows
    source              Wolf et al. 2024, section 2.2.4
    """
    one_segment = np.zeros(error.size, np.int64)
    by_claim, by_error = (
        float(areas(rank_rows(axis, error[:, None], one_segment, 1))[0, 0, 0])
        for axis in (uncertainty, error)
    )
    # Nothing is better than the oracle, but for a rounding.
    return max(by_claim - by_error, 0.0)
