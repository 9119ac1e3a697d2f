"""Residual covariance: the covariance of the errors in cells of range × score.

What is done by hand for detectors without covariances (Chiu et al. 2020, section III: R from the
errors of the training set, by class), with cells, and without a cliff between them: each cell has a
node, and log variances and correlations go from node to node in straight lines.

Each estimate is drawn towards a wider one by the number of independent rows that it rests on: a cell
towards all scores of its range, these towards the slice as a whole, and that towards the fit of the
wider slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.marks import CountFrom1
from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.estimated.covariates import (
    Axes,
    Correlations,
    CovariateKind,
    Layout,
    LogVariance,
    by_track,
    check_correlation,
    drawn_to_none,
    values_of,
)
from monitor.recalibration.estimated.sizes import independent_rows, log_size
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.recalibrator import (
    InvalidRecalibrator,
    Output,
    Recalibrator,
    as_matrix,
)
from monitor.recalibration.scaling import Objective, Prior

# Cells at most, and tracks that a further one is worth.
MOST_RANGES, MOST_SCORES = 4, 3
TRACKS_OF_A_CELL = 8

# Independent rows that the wider estimate counts for in that of a cell, and that "no correlation"
# counts for beside the number of dimensions.
CELL_STRENGTH = 10.0
UNCORRELATED = 10.0

_Number = Annotated[float, Interval(ge=-1e12, le=1e12)]
Nodes = Annotated[tuple[_Number, ...], Len(1, 64)]


@dataclass(frozen=True)
class ResidualCovariance(Recalibrator):
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

    dimensions: CountFrom1
    layout: Layout
    ranges: Nodes
    scores: Nodes
    log_variance: tuple[tuple[LogVariance, ...], ...]
    correlation: tuple[Correlations, ...]
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "residual-covariance"
    output = Output.ESTIMATED

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

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.dimensions

    def apply(self, estimates: Estimates) -> Estimates:
        """Gives each detection a full covariance by its range and score alone."""
        mean, k = estimates.mean, self.k
        values = self._values(estimates)
        made = self.layout.covariances(
            mean, np.ascontiguousarray(values[:k]), self._unpacked(values[k:])
        )
        return Estimates(mean, made, np.full(len(mean), False) if k > 1 else estimates.diagonal)

    def widened(self, factor: float) -> ResidualCovariance:
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
        told = values_of(self.layout, estimates)
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

    prior   the fit of a wider slice, that the slice as a whole is drawn towards with its strength
            in rows; its axes are taken over
    raises  UnfitData without rows, where a dimension has no error, and where the axes need what
            is not there
    """
    rows = prepared(rows)
    before = None if prior is None else prior.previous
    layout = Layout.of(rows.space, axes) if before is None else before.layout
    error = layout.turned(rows.estimates.mean, rows.error)
    told = values_of(layout, rows.estimates)
    weight = by_track(rows)
    cells = max(rows.tracks // TRACKS_OF_A_CELL, 1)
    nothing = np.full(rows.n, np.nan)
    distance = told.get(CovariateKind.LOG_RANGE, nothing)
    score = told.get(CovariateKind.SCORE, nothing)
    ranges, of_range = _cut(distance, weight, min(MOST_RANGES, cells))
    scores, of_score = _cut(score, weight, min(MOST_SCORES, max(cells // len(ranges), 1)))
    fit = _CellFit(error, rows.track, objective)
    k, width = rows.space.k, len(scores) + 1
    if before is None or prior is None:
        known, correlation = np.zeros((k, rows.n)), np.eye(k)
        at_nodes = np.zeros((len(ranges) * width, k))
        whole = fit.level(known, None, 0.0)
        of_whole = fit.correlation(known + whole[:, None], None, correlation, UNCORRELATED + k)
    else:
        known, _ = before.described(rows.estimates)
        at = _at_nodes(layout, ranges, scores)
        nodes, of_nodes = before.described(at)
        at_nodes = nodes.T
        whole = fit.level(known, None, prior.strength)
        target = of_nodes.mean(axis=0)
        of_whole = fit.correlation(known + whole[:, None], None, target, prior.strength + k)
    log_variance, matrices = [], []
    for a in range(len(ranges)):
        in_range = of_range == a
        by_range = whole + fit.level(known + whole[:, None], in_range, CELL_STRENGTH)
        of_row = fit.correlation(known + by_range[:, None], in_range, of_whole, UNCORRELATED + k)
        for b in range(width):
            here, level, matrix = in_range & (of_score == b), by_range, of_row
            if b < len(scores):
                level = by_range + fit.level(known + by_range[:, None], here, CELL_STRENGTH)
                matrix = fit.correlation(known + level[:, None], here, of_row, UNCORRELATED + k)
            log_variance.append(at_nodes[a * width + b] + level)
            matrices.append(matrix)
    return ResidualCovariance(
        k,
        layout,
        ranges,
        scores,
        as_matrix(np.array(log_variance)),
        tuple(map(as_matrix, matrices)),
        objective,
    )


@dataclass(frozen=True, slots=True)
class _CellFit:
    """Errors (K, n) in the axes, their tracks, and what sizes satisfy."""

    error: FloatArray
    track: IntArray
    objective: Objective

    def level(self, known: FloatArray, here: FloatArray | None, strength: float) -> FloatArray:
        """Log of the factor on known variances (K, n) that rows ask for, drawn to none; (K,)."""
        error, known, track = self._of(known, here)
        if not track.size:
            return np.zeros(len(error))
        square = np.square(error) * np.exp(-known)
        some = square.any(axis=1)
        level = np.zeros(len(error))
        level[some] = log_size(square[some], self.objective)
        worth = independent_rows(np.where(square > 0, square, 1e-300), track)
        return np.where(some, level * worth / (worth + strength), 0.0)

    def correlation(
        self, known: FloatArray, here: FloatArray | None, target: FloatArray, strength: float
    ) -> FloatArray:
        """(K, K) of errors over their deviations, drawn to a target."""
        error, known, track = self._of(known, here)
        if not track.size:
            return target
        z = error * np.exp(-0.5 * known)
        if self.objective is not Objective.MEAN:
            z = np.clip(z, -3.0, 3.0)
        moment = z @ z.T / z.shape[1]
        size = np.sqrt(np.maximum(np.diagonal(moment), 1e-300))
        worth = float(independent_rows(np.square(z), track).min())
        share = worth / (worth + strength)
        found = share * moment / (size[:, None] * size) + (1.0 - share) * target
        found = np.clip(0.5 * (found + found.T), -1.0, 1.0)
        np.fill_diagonal(found, 1.0)
        return found

    def _of(
        self, known: FloatArray, here: FloatArray | None
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        if here is None:
            return self.error, known, self.track
        return self.error[:, here], known[:, here], self.track[here]


def _cut(value: FloatArray, weight: FloatArray, most: int) -> tuple[tuple[float, ...], IntArray]:
    """Cuts values at quantiles by weight; returns a node for each part, and the part of each value.

    Each node is the median of its part. Values that are not known are in the part behind the last.
    """
    there = np.isfinite(value)
    part = np.where(there, 0, 1)
    if not there.any():
        return (0.0,), np.zeros(value.size, np.int64) if most else part
    order = np.argsort(value[there], kind="stable")
    ordered, below = value[there][order], np.cumsum(weight[there][order])
    below /= below[-1]
    edges = ordered[np.searchsorted(below, np.arange(1, most) / most)]
    edges = np.unique(edges[(edges > ordered[0])])
    found = np.searchsorted(edges, ordered, side="right")
    nodes = [float(np.median(ordered[found == i])) for i in range(edges.size + 1)]
    keep = np.flatnonzero(np.diff(nodes, append=np.inf) > 0)
    assert keep.size == len(nodes), "medians of parts rise strictly"
    part = np.full(value.size, len(nodes))
    part[there] = np.searchsorted(edges, value[there], side="right")
    return tuple(nodes), part


def _at_nodes(layout: Layout, ranges: Sequence[float], scores: Sequence[float]) -> Estimates:
    """Estimates at every node, in the order of the table."""
    k = max((*layout.position, 0)) + 1
    n = len(ranges) * (len(scores) + 1)
    mean = np.zeros((n, max(k, *(i + 1 for i in layout.size), (layout.heading or 0) + 1, 1)))
    if layout.position:
        mean[:, layout.position[0]] = np.repeat(np.exp(ranges), len(scores) + 1)
    score = np.tile([*scores, np.nan], len(ranges))
    return Estimates(mean, np.zeros((n, 1, 1)), np.zeros(n, bool), score)
