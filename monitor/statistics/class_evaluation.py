"""Evaluates class probabilities against true classes.

The streaming engine reads micro-bins, the exact one (for recorded files) the rows themselves.
Both only gather sums; the measures live in class_measures.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.class_measures import (
    ClassEvaluation,
    ClassMeans,
    ClassSums,
    EventBins,
    Ranked,
    deviation_within,
    evaluation_of,
    rank_rows,
)
from monitor.statistics.class_statistics import (
    ALL_ROWS,
    BY_CLASS,
    CLAIMED,
    CONFIDENCE,
    ENTROPY,
    EXPONENT,
    OF_CLASS,
    ONE_VS_REST,
    RIGHT,
    SQUARES,
    VALUE,
    ClassRows,
    ClassStatistics,
    N,
    UncertaintyAxis,
    equal_width_bins,
    judge_rows,
    no_class_statistics,
)
from monitor.statistics.evaluation import EvaluationError
from monitor.statistics.exact_sums import SparseSums

BinsOfRows = Literal["equal-width", "equal-count"]


def read_classes(statistics: ClassStatistics, bins: int = 20) -> ClassEvaluation:
    """Reads every measure of the rows that were observed; NaN without any.

    Counts are those of the exact engine with bins of equal width, bin-based measures equal
    but for the grid of the sums, and AUSE lies within ause_bound of its own.

    bins     a divisor of 60
    raises   EvaluationError for another number of bins
    """
    if statistics.n <= 0:
        # Statistics that more was retracted from than came hold no rows.
        statistics = no_class_statistics(statistics.binning, statistics.classes)
    binning, classes = statistics.binning, statistics.classes
    tables = statistics.tables
    whole = [
        _cells(tables[ALL_ROWS], i, axis, binning.stride, 1) for i, axis in enumerate(binning.axes)
    ]
    parts = [
        _cells(tables[BY_CLASS], i, axis, binning.coarse_stride, classes)
        for i, axis in enumerate(binning.coarse_axes)
    ]
    confidence = _single(whole[CONFIDENCE].event_bins(bins, whole[CONFIDENCE].right))
    entropy = _single(whole[ENTROPY].event_bins(bins, whole[ENTROPY].wrong))
    counts = parts[ENTROPY]
    right = np.bincount(counts.segment, counts.right, classes).astype(np.int64)
    wrong = np.bincount(counts.segment, counts.wrong, classes).astype(np.int64)
    return evaluation_of(
        ClassSums(
            right=right,
            wrong=wrong,
            means=_means_of_sums(statistics, int(wrong.sum())),
            confidence=confidence,
            entropy=entropy,
            confidence_on_unit=confidence,
            entropy_on_unit=entropy,
            one_vs_rest=_one_vs_rest(statistics, bins),
            entropy_by_class=counts.event_bins(bins, counts.wrong),
            ranked=_ranked_cells(whole),
            ranked_by_class=_ranked_cells(parts),
        )
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Cells:
    """The occupied bins of an axis, (M,), by segment and from certain to uncertain."""

    axis: UncertaintyAxis
    segments: int
    segment: IntArray
    index: IntArray
    n: IntArray
    right: IntArray
    value: FloatArray
    brier: FloatArray

    @property
    def wrong(self) -> IntArray:
        return self.n - self.right

    def event_bins(self, bins: int, happened: IntArray) -> EventBins:
        """Adds up (S, bins) bins of equal width on [0, 1], the axis's own value as the claim."""
        cell = self.segment * bins + equal_width_bins(self.axis, bins)[self.index]
        return _bins_of_cells(cell, (self.segments, bins), self.n, happened, self.value)

    def ranked(self, lowest: FloatArray | float, highest: FloatArray | float) -> Ranked:
        """Ranks wrong predictions and Brier scores; the latter have these ends in each cell."""
        errors = self.wrong.astype(np.float64)
        deviations = (
            deviation_within(self.n, errors, 0.0, 1.0),
            deviation_within(self.n, self.brier, lowest, highest),
        )
        error, deviation = np.stack((errors, self.brier), axis=1), np.stack(deviations, axis=1)
        return Ranked(self.segments, self.segment, self.n, error, deviation)


def _cells(
    table: SparseSums, number: int, axis: UncertaintyAxis, stride: int, segments: int
) -> _Cells:
    part = table.between(number * segments * stride, (number + 1) * segments * stride)
    # Of some more may have been retracted than came.
    held = part.values[:, N] > 0
    segment, index = np.divmod(part.keys[held], stride)
    n, right = part.values[held, N], part.values[held, RIGHT]
    value, brier = part.as_float(VALUE, EXPONENT)[held], part.as_float(SQUARES, EXPONENT)[held]
    return _Cells(axis, segments, segment, index, n, np.clip(right, 0, n), value, brier)


def _ranked_cells(cells: Sequence[_Cells]) -> tuple[Ranked, ...]:
    *others, brier = cells
    # The axis is half the score.
    ends = 2.0 * brier.axis.lower[brier.index], 2.0 * brier.axis.upper[brier.index]
    return (*(axis.ranked(0.0, 2.0) for axis in others), brier.ranked(*ends))


def _one_vs_rest(statistics: ClassStatistics, bins: int) -> EventBins:
    table, axis = statistics.tables[ONE_VS_REST], statistics.binning.sixtieths
    segment, index = np.divmod(table.keys, axis.count)
    n = table.values[:, N]
    held = n > 0
    return _bins_of_cells(
        (segment * bins + equal_width_bins(axis, bins)[index])[held],
        (statistics.classes, bins),
        n[held],
        np.clip(table.values[:, OF_CLASS], 0, n)[held],
        table.as_float(CLAIMED, EXPONENT)[held],
    )


def _bins_of_cells(
    cell: IntArray,
    shape: tuple[int, ...],
    n: IntArray,
    happened: IntArray | BoolArray,
    claimed: FloatArray,
) -> EventBins:
    def total(values: IntArray | BoolArray | FloatArray) -> FloatArray:
        sums = np.bincount(cell, values, math.prod(shape))
        return sums.astype(np.float64, copy=False).reshape(shape)

    return EventBins(n=total(n).astype(np.int64), happened=total(happened), claimed=total(claimed))


def _single(bins: EventBins) -> EventBins:
    return EventBins(bins.n[0], bins.happened[0], bins.claimed[0])


def _means_of_sums(statistics: ClassStatistics, wrong: int) -> ClassMeans:
    n, sums = statistics.n, statistics.sums
    opinions = round(sums["opinions"])
    doubt = _ratio(sums["doubt"], n)
    return ClassMeans(
        nll=_ratio(sums["cross_entropy"], n),
        brier=_ratio(sums["brier"], n),
        sharpness=max(_ratio(sums["doubt_squared"], n) - doubt * doubt, 0.0) if n else doubt,
        overconfidence=1.0 - _ratio(sums["doubt"] - sums["doubt_where_right"], wrong),
        underconfidence=_ratio(sums["doubt_where_right"], n - wrong),
        entropy=_ratio(sums["entropy"], n),
        opinions=opinions,
        aleatoric=_ratio(sums["aleatoric"], opinions),
        epistemic=_ratio(sums["epistemic"], opinions),
    )


def _ratio(total: float, n: int) -> float:
    return total / n if n else float("nan")


def evaluate_class_rows(
    probabilities: FloatArray,
    label: IntArray,
    *,
    opinions: FloatArray | None = None,
    bins: int = 20,
    binning: BinsOfRows = "equal-width",
) -> ClassEvaluation:
    """Evaluates the rows that have truth and a usable probability vector.

    probabilities  (N, C); C is the number of classes, however few of them are seen
    label          (N,) true class, −1 where there is none
    opinions       (N, M, C) whose mean the probabilities are
    binning        equal-width on [0, 1], or equal-count: cut at the quantiles of the rows, with
                   rows of equal value in one bin; ccqs and ucqs keep equal widths
    raises         EvaluationError when no row is left, or the bins or shapes make no sense
    """
    if binning not in ("equal-count", "equal-width"):
        raise EvaluationError(f"binning {binning!r} is unknown. Use equal-count or equal-width.")
    if bins < 1:
        raise EvaluationError(f"bins is {bins}. Use at least one.")
    rows = judge_rows(probabilities, label, opinions)
    if rows.n == 0:
        raise nothing_to_evaluate(label.size, rows.without_truth, rows.classes)
    evaluation = evaluation_of(_sums(rows, bins, binning))
    return replace(evaluation, without_truth=rows.without_truth, refused=rows.refused)


def nothing_to_evaluate(rows: int, without_truth: int, classes: int) -> EvaluationError:
    """Returns the error for rows none of which has a true class and usable probabilities."""
    return EvaluationError(
        f"nothing to evaluate: of {rows} rows, {without_truth} have no true class and "
        f"{rows - without_truth} are no probabilities over {classes} classes or have another "
        "label. Select rows with a label."
    )


def _sums(rows: ClassRows, bins: int, binning: BinsOfRows) -> ClassSums:
    def by(value: FloatArray, happened: BoolArray, kind: BinsOfRows = binning) -> EventBins:
        return _bins_of_rows(value, happened, bins, kind)

    of_class = [rows.predicted == c for c in range(rows.classes)]
    return ClassSums(
        right=np.bincount(rows.predicted[rows.right], minlength=rows.classes),
        wrong=np.bincount(rows.predicted[~rows.right], minlength=rows.classes),
        means=_means_of_rows(rows),
        confidence=by(rows.confidence, rows.right),
        entropy=by(rows.entropy, ~rows.right),
        confidence_on_unit=by(rows.confidence, rows.right, "equal-width"),
        entropy_on_unit=by(rows.entropy, ~rows.right, "equal-width"),
        one_vs_rest=_stacked([by(p, rows.label == c) for c, p in enumerate(rows.probabilities)]),
        entropy_by_class=_stacked([by(rows.entropy[c], ~rows.right[c]) for c in of_class]),
        ranked=_ranked_rows(rows, np.zeros(rows.n, np.int64), 1),
        ranked_by_class=_ranked_rows(rows, rows.predicted, rows.classes),
    )


def _bins_of_rows(
    value: FloatArray, happened: BoolArray, bins: int, binning: BinsOfRows
) -> EventBins:
    """Cuts bins closed on the left, the last on both sides; nothing lies beyond them."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    if binning == "equal-count" and value.size:
        edges = np.quantile(value, edges)
    index = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, bins - 1)
    return _bins_of_cells(index, (bins,), np.ones_like(index), happened, value)


def _stacked(each: list[EventBins]) -> EventBins:
    return EventBins(
        n=np.stack([bins.n for bins in each]),
        happened=np.stack([bins.happened for bins in each]),
        claimed=np.stack([bins.claimed for bins in each]),
    )


def _ranked_rows(rows: ClassRows, segment: IntArray, segments: int) -> tuple[Ranked, ...]:
    errors = np.stack([~rows.right, rows.brier], axis=1)
    # The variation ratio 1 − confidence, without its rounding; Wolf et al. 2024, eq. 8
    uncertainties = (-rows.confidence, rows.entropy, rows.cross_entropy, rows.brier)
    return tuple(rank_rows(each, errors, segment, segments) for each in uncertainties)


def _means_of_rows(rows: ClassRows) -> ClassMeans:
    wrong = ~rows.right
    return ClassMeans(
        nll=float(rows.cross_entropy.mean()),
        brier=float(rows.brier.mean()),
        sharpness=float(np.var(rows.confidence)),
        overconfidence=_mean(rows.confidence[wrong]),
        underconfidence=_mean(1.0 - rows.confidence[rows.right]),
        entropy=float(rows.entropy.mean()),
        opinions=0 if rows.aleatoric is None else rows.n,
        aleatoric=_mean(rows.aleatoric),
        epistemic=_mean(rows.epistemic),
    )


def _mean(values: FloatArray | None) -> float:
    return float("nan") if values is None or values.size == 0 else float(values.mean())
