"""Residual covariance: the covariance of the errors in cells of range × score.

What is done by hand for detectors without covariances (Chiu et al. 2020, section III: R from the
errors of the training set, by class), with cells, and without a cliff between them: each cell has a
node, and log variances and correlations go from node to node in straight lines.

Each estimate is drawn towards a wider one by the number of independent rows that it rests on: a
cell towards all scores of its range, these towards the slice as a whole, and that towards the fit
of the wider slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Self

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.frames.words import Axes, Objective
from monitor.recalibration.estimated.covariates import (
    LARGEST_LOG,
    Correlations,
    CovariateKind,
    EstimatedCovariance,
    Layout,
    LogVariance,
    by_track,
    check_correlation,
    drawn_to_none,
    values_of,
)
from monitor.recalibration.estimated.sizes import (
    LEVEL_SHARE,
    correlation_of,
    drawn,
    independent_rows,
    log_size,
    strength_of,
    uncut,
)
from monitor.recalibration.fit_rows import FitRows, numbered_objects, prepared
from monitor.recalibration.recalibrator import (
    InvalidRecalibrator,
    as_matrix,
)
from monitor.recalibration.scaling import Prior

# Cells at most, and tracks that a further one is worth.
MOST_RANGES, MOST_SCORES = 4, 3
TRACKS_OF_A_CELL = 2

# Independent rows that the wider estimate counts for in that of a cell.
CELL_STRENGTH = 5.0

_Number = Annotated[float, Interval(ge=-1e12, le=1e12)]
Nodes = Annotated[tuple[_Number, ...], Len(1, 64)]


@dataclass(frozen=True)
class ResidualCovariance(EstimatedCovariance):
    """Σ̂ = Q S R S Qᵀ by range and score, whatever covariance was sent.

    dimensions    K
    layout        where the position stands, and the axes
    ranges        (A,) nodes on the log range, rising; one where there is no position
    scores        (B,) nodes on the score, rising
    log_variance  (A (B + 1), K) by range, and there by score; the last is of all scores, for
                  detections without one
    correlation   as many matrices (K, K)
    objective     what the sizes satisfy
    """

    ranges: Nodes
    scores: Nodes
    log_variance: tuple[tuple[LogVariance, ...], ...]
    correlation: tuple[Correlations, ...]
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "residual-covariance"

    def __post_init__(self) -> None:
        k, cells = self.dimensions, len(self.ranges) * (len(self.scores) + 1)
        self.layout.check_within(k)
        for name in ("ranges", "scores"):
            nodes = getattr(self, name)
            if not (np.diff(nodes) > 0).all():
                raise InvalidRecalibrator(f"'{name}' are {list(nodes)}: they must rise strictly")
        self.check_lengths("log_variance", self.log_variance, [k] * cells, "ranges")
        self.check_entries(("correlation",), cells, "ranges")
        for matrix in self.correlation:
            check_correlation("correlation", matrix, k)

    def apply(self, estimates: Estimates) -> Estimates:
        """Gives each detection a full covariance by its range and score alone."""
        mean, k = estimates.mean, self.k
        values = self._values(estimates)
        made = self.layout.covariances(
            mean, np.ascontiguousarray(values[:k]), self._unpacked(values[k:])
        )
        return Estimates(mean, made, np.full(len(mean), False) if k > 1 else estimates.diagonal)

    def widened(self, factor: float) -> Self:
        """Returns the one whose variances are larger by a factor."""
        by = float(np.log(factor))
        found = tuple(tuple(one + by for one in of_cell) for of_cell in self.log_variance)
        return replace(self, log_variance=found)

    def described(self, estimates: Estimates) -> tuple[FloatArray, FloatArray]:
        """Log variances (K, n) and correlations (n, K, K) in the axes."""
        values = self._values(estimates)
        return values[: self.k].copy(), self._unpacked(values[self.k :])

    def _values(self, estimates: Estimates) -> FloatArray:
        """(K + K (K − 1)/2, n) log variances and packed correlations, between the nodes."""
        n = estimates.mean.shape[0]
        told = _range_and_score(self.layout, estimates)
        nothing = np.zeros(n)
        near, far, on_range = _between(self.ranges, told.get(CovariateKind.LOG_RANGE, nothing))
        score = told.get(CovariateKind.SCORE, np.full(n, np.nan))
        low, high, on_score = _between(self.scores, score)
        unscored, width = np.isnan(score), len(self.scores) + 1
        low[unscored] = high[unscored] = len(self.scores)
        on_score[unscored] = 0.0
        table, found = self._table, np.zeros((self._table.shape[1], n))
        for row, of_range in ((near, 1.0 - on_range), (far, on_range)):
            for column, of_score in ((low, 1.0 - on_score), (high, on_score)):
                found += table[row * width + column].T * (of_range * of_score)
        return found

    def _unpacked(self, packed: FloatArray) -> FloatArray:
        """(n, K, K)"""
        k, n = self.k, packed.shape[1]
        rows, columns = _below(k)
        made = np.ones((n, k, k))
        made[:, rows, columns] = made[:, columns, rows] = packed.T
        return made

    @cached_property
    def _table(self) -> FloatArray:
        """(cells, K + K (K − 1)/2)"""
        rows, columns = _below(self.k)
        correlation = drawn_to_none(np.array(self.correlation))
        return np.hstack([np.array(self.log_variance), correlation[:, rows, columns]])


def _range_and_score(layout: Layout, estimates: Estimates) -> dict[CovariateKind, FloatArray]:
    """Computes what cells are cut by, (n,) each; not what sizes and headings tell."""
    return values_of(Layout(layout.position), estimates)


def _below(k: int) -> tuple[IntArray, IntArray]:
    rows, columns = np.tril_indices(k, -1)
    return rows, columns


def _between(nodes: Sequence[float], value: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Finds the node before and after each value, and the share of the way; all (n,).

    Beyond the outermost nodes nothing changes.
    """
    places = np.array(nodes)
    after = np.clip(np.searchsorted(places, value), 1, max(places.size - 1, 1))
    if places.size == 1:
        return np.zeros(value.size, np.int64), np.zeros(value.size, np.int64), np.zeros(value.size)
    before = after - 1
    share = (value - places[before]) / (places[after] - places[before])
    return before, after, np.clip(share, 0.0, 1.0)


def fit_residual_covariance(
    rows: FitRows,
    objective: Objective = Objective.MEAN,
    axes: Axes | None = None,
    prior: Prior[ResidualCovariance] | None = None,
) -> ResidualCovariance:
    """Fits cells of range × score, as many as the tracks allow.

    axes    None: those of the object where there are position and heading, else of the sensor:
            cells do not know the heading
    prior   the fit of a wider slice, that the slice as a whole is drawn towards with its strength
            in independent rows; its axes and its nodes are taken over
    raises  UnfitData without rows, where a dimension has no error, and where the axes need what
            is not there
    """
    rows = prepared(rows)
    before = None if prior is None else prior.previous
    layout = before.layout if before else Layout.of(rows.space, axes, best=Axes.OBJECT)
    told, nothing = _range_and_score(layout, rows.estimates), np.full(rows.n, np.nan)
    distance = told.get(CovariateKind.LOG_RANGE, nothing)
    score = told.get(CovariateKind.SCORE, nothing)
    k, strength = rows.space.k, 0.0 if prior is None else prior.strength
    error = layout.turned(rows.estimates.mean, rows.error)
    if before is None:
        weight, cells = by_track(rows), max(rows.tracks // TRACKS_OF_A_CELL, 1)
        ranges, of_range = _cut(distance, weight, min(MOST_RANGES, cells))
        scores, of_score = _cut(score, weight, min(MOST_SCORES, max(cells // len(ranges), 1)))
        known = np.zeros((k, rows.n))
        count = len(ranges) * (len(scores) + 1)
        at_nodes, of_nodes = np.zeros((count, k)), np.repeat(np.eye(k)[None], count, axis=0)
    else:
        ranges, scores = before.ranges, before.scores
        of_range, of_score = _nearest(ranges, distance), _nearest(scores, score)
        known, _ = before.described(rows.estimates)
        at_nodes, of_nodes = np.array(before.log_variance), np.array(before.correlation)
    fit = _CellFit(error, rows.track, objective, strength)
    everywhere = np.ones(rows.n, bool)
    whole = fit.level(known, everywhere, LEVEL_SHARE, 0.0)
    of_whole = fit.correlation(known + whole[:, None], everywhere)
    log_variance: list[FloatArray] = []
    matrices: list[FloatArray] = []
    for a in range(len(ranges)):
        in_range = of_range == a
        by_range, of_row = fit.within(known, in_range, everywhere, whole)
        for b in range(len(scores) + 1):
            # The last is of all scores.
            here = in_range & (of_score == b) if b < len(scores) else in_range
            level, of_cell = fit.within(known, here, in_range, by_range)
            log_variance.append(at_nodes[len(matrices)] + level)
            matrix = of_whole.drawn_to(of_nodes[len(matrices)], strength)
            matrices.append(of_cell.drawn_to(of_row.drawn_to(matrix)))
    return ResidualCovariance(
        k,
        layout,
        ranges,
        scores,
        as_matrix(np.clip(log_variance, -LARGEST_LOG, LARGEST_LOG)),
        tuple(map(as_matrix, matrices)),
        objective,
    )


@dataclass(frozen=True, slots=True)
class _Correlation:
    """Correlations (K, K) of some rows, and how many independent ones they are of."""

    matrix: FloatArray
    worth: float

    def drawn_to(self, towards: FloatArray, strength: float = 0.0) -> FloatArray:
        """Draws them to those of wider rows, (K, K)."""
        return drawn(self.matrix, towards, self.worth, strength) if self.worth else towards


@dataclass(frozen=True, slots=True)
class _CellFit:
    """Errors (K, n) in the axes and their tracks, the objective, and the strength of the prior."""

    error: FloatArray
    track: IntArray
    objective: Objective
    strength: float

    def within(
        self, known: FloatArray, here: BoolArray, there: BoolArray, level: FloatArray
    ) -> tuple[FloatArray, _Correlation]:
        """Finds level (K,) and correlations of some rows among others whose level is known.

        known  (K, n) log variances that levels are beyond
        here   (n,) some of the rows `there`: where they are all of them, they say nothing new
        """
        if np.array_equal(here, there):
            return level, _Correlation(np.eye(len(level)), 0.0)
        own = level + self.level(known + level[:, None], here, 1.0, CELL_STRENGTH)
        return own, self.correlation(known + own[:, None], here)

    def level(self, known: FloatArray, here: BoolArray, share: float, least: float) -> FloatArray:
        """Finds the log of the factor on variances that some rows ask for, drawn to none; (K,).

        known  (K, n)
        here   (n,)
        share  of the strength of the prior, with which a factor of 1 counts
        least  independent rows that it counts for at least
        """
        square = np.square(self.error[:, here]) * np.exp(-known[:, here])
        found = np.zeros(len(square))
        some = square.any(axis=1)
        if some.any():
            track = self.track[here]
            worth = independent_rows(square[some], track)
            strength = strength_of(self.strength, worth, numbered_objects(track)[1])
            own = worth / (worth + max(share * strength, least))
            found[some] = own * log_size(square[some], self.objective)
        return found

    def correlation(self, known: FloatArray, here: BoolArray) -> _Correlation:
        """Finds the correlations of some errors; of none where a dimension has no error in them."""
        z = uncut(self.error[:, here] * np.exp(-0.5 * known[:, here]), self.objective)
        if not z.any(axis=1).all():
            return _Correlation(np.eye(len(z)), 0.0)
        worth = float(independent_rows(np.square(z), self.track[here]).min())
        return _Correlation(correlation_of(z), worth)


def _cut(value: FloatArray, weight: FloatArray, most: int) -> tuple[tuple[float, ...], IntArray]:
    """Cuts values at quantiles by weight into `most` parts, fewer where values repeat.

    returns  a node for each part, the median of it; and the part of each value (n,), where values
             that are not known are behind the last
    """
    there = np.isfinite(value)
    if not there.any():
        # One part of all rows: there is nothing to tell apart.
        return (0.0,), np.zeros(value.size, np.int64)
    order = np.argsort(value[there], kind="stable")
    ordered, below = value[there][order], np.cumsum(weight[there][order])
    edges = ordered[np.searchsorted(below, below[-1] * np.arange(1, most) / most)]
    edges = np.unique(edges[edges > ordered[0]])
    found = np.searchsorted(edges, ordered, side="right")
    nodes = tuple(float(np.median(ordered[found == i])) for i in range(edges.size + 1))
    part = np.full(value.size, len(nodes))
    part[there] = np.searchsorted(edges, value[there], side="right")
    return nodes, part


def _nearest(nodes: Sequence[float], value: FloatArray) -> IntArray:
    """Finds the node that is nearest to each value, (n,); behind the last if not known."""
    if len(nodes) == 1:
        return np.zeros(value.size, np.int64)
    places = np.array(nodes)
    found = np.searchsorted(0.5 * (places[1:] + places[:-1]), value, side="right")
    return np.where(np.isfinite(value), found, len(nodes))
