"""Ranks rows by their uncertainty and rejects the most uncertain: how much error remains?

Sparsification is the mean error of the rows that remain when the most uncertain are rejected.
Rows come as groups of equal uncertainty, ranked from the certain to the uncertain ones, for
several segments (classes) and several kinds of error at once. Rows of a group share their mean
error, so nothing depends on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import digamma

from monitor.frames.space import FloatArray, IntArray

# Four units in the last place.
_ROUNDING = 2.0**-50


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
    uncertainty: FloatArray,
    errors: FloatArray,
    segment: IntArray,
    segments: int,
    least: float = 0.0,
) -> Ranked:
    """Groups the rows themselves: rows of equal uncertainty are ties.

    Neighbours that differ by four units in the last place or less are equal, since the entropies of
    permuted opinions, or the determinants of rotated covariances, differ by rounding alone.

    uncertainty  (N,)
    errors       (N, E)
    segment      (N,)
    least        size below which the uncertainty is rounded as if it had this size
    """
    order = np.lexsort((uncertainty, segment))
    return _grouped(order, uncertainty, errors, segment, segments, least)


def _grouped(
    order: IntArray,
    uncertainty: FloatArray,
    errors: FloatArray,
    segment: IntArray,
    segments: int,
    least: float,
) -> Ranked:
    """Groups rows whose order is known, by segment and in it by uncertainty."""
    segment, uncertainty = segment[order], uncertainty[order]
    apart = np.diff(uncertainty) > _ROUNDING * np.maximum(np.abs(uncertainty[1:]), least)
    first = np.append(True, (np.diff(segment) != 0) | apart)[: order.size]
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
    harmonic = 1.0 / kept
    tied = np.flatnonzero(ranked.n > 1)
    harmonic[tied] = digamma(kept[tied] + 1) - digamma((kept - ranked.n)[tied] + 1)
    step = harmonic[:, None]
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
    return _mean_of_kept(ranked.n, ranked.error[:, 0], kept)


def _mean_of_kept(n: IntArray, error: FloatArray, kept: IntArray) -> FloatArray:
    rows, sums = (np.append(0, np.cumsum(one)) for one in (n, error))
    with np.errstate(invalid="ignore"):
        mean: FloatArray = np.interp(kept, rows, sums) / kept
    return mean


def rank_twice(uncertainty: FloatArray, error: FloatArray) -> Ranked:
    """Ranks N rows by their uncertainty, and again by the error itself, as the oracle does.

    uncertainty, error  (N,)
    """
    n = error.size
    # One sort each is a fifth of the time of one by two keys.
    order = np.concatenate((np.argsort(uncertainty), n + np.argsort(error)))
    both, by = np.append(uncertainty, error), np.repeat([0, 1], n)
    return _grouped(order, both, np.tile(error, 2)[:, None], by, 2, 0.0)


# Shares of rejected rows of the rejection curve, in twentieths.
REJECTED = np.arange(20)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Tells what is left when the rows of the highest deviation are rejected; NaN where unknown.

    fraction            (F,) share of rows rejected
    mean_squared_error  (F,) mean error of the others, in its unit: squared but for 1 − IoU
    oracle              (F,) likewise, where the rows of the largest errors are rejected
    """

    fraction: FloatArray
    mean_squared_error: FloatArray
    oracle: FloatArray


@dataclass(frozen=True, eq=False)
class ErrorRanking:
    """How σ ranks errors, worked out when it is asked for: squared errors, or 1 − IoU of boxes.

    AUSE = A(sorted by σ) − A(sorted by the error), A as in areas(): 0 where larger errors have
    larger σ. Where σ tells nothing apart, it is the mean error less A(sorted by the error).

    ranked  gives the rows in two segments, as rank_twice does; None where errors are not known, or
            have several units
    source  Wolf et al. 2024, section 2.2.4, with error² or 1 − IoU as the merit
    """

    ranked: Callable[[], Ranked] | None

    @cached_property
    def _found(self) -> tuple[float, Rejection]:
        if self.ranked is None:
            return np.nan, Rejection(REJECTED / 20, *np.full((2, REJECTED.size), np.nan))
        ranked = self.ranked()
        (by_deviation, by_error), _ = areas(ranked)[:, 0].tolist()
        half = int(np.searchsorted(ranked.segment, 1))
        n = int(ranked.n[:half].sum())
        kept = n - n * REJECTED // 20
        left, oracle = (
            _mean_of_kept(ranked.n[part], ranked.error[part, 0], kept)
            for part in (slice(half), slice(half, None))
        )
        # Nothing is better than the oracle, but for a rounding; NaN without rows.
        ause = float(np.maximum(by_deviation - by_error, 0.0))
        return ause, Rejection(REJECTED / 20, left, oracle)

    @property
    def ause(self) -> float:
        """Area between the curves, in the unit of the error; NaN where unknown."""
        return self._found[0]

    @property
    def ause_relative(self) -> float:
        """Area over the mean error; NaN without errors, which σ could rank."""
        ause, rejection = self._found
        whole = float(rejection.mean_squared_error[0])
        return ause / whole if whole > 0 else np.nan

    @property
    def rejection(self) -> Rejection:
        """The rejection curve and its oracle."""
        return self._found[1]
