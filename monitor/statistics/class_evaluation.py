"""Evaluates class probabilities against true classes: the measures, from sums over rows.

The streaming engine reads micro-bins, the exact one (for recorded files) the rows themselves.
Both only gather sums; where these come from does not matter to a measure.
docs/class_measures.md defines every measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import digamma

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.class_statistics import (
    AXES,
    COARSE_AXES,
    COARSE_STRIDE,
    COMPANION_EXPONENT,
    CONFIDENCE,
    ENTROPY,
    EXPONENT,
    RIGHT,
    SIXTIETHS,
    SQUARES,
    STRIDE,
    VALUE,
    ClassRows,
    ClassStatistics,
    N,
    UncertaintyAxis,
    equal_width_bins,
    judge_rows,
    no_class_statistics,
)
from monitor.statistics.exact_sums import SparseSums
from monitor.statistics.measures import LARGEST_AREA, EvaluationError, plain, printed
from monitor.statistics.sparsification import (
    REJECTED,
    Ranked,
    areas,
    deviation_within,
    rank_rows,
    wrong_of_kept,
)

BinsOfRows = Literal["equal-width", "equal-count"]

# The rows of ause_by_class and ause_bound: error rate as merit, sorted by variation ratio, by
# entropy and by cross-entropy; then the same with the Brier score as merit.
AUSE = tuple(
    f"ause{merit}{sort}" for merit in ("", "_brier") for sort in ("", "_entropy", "_cross_entropy")
)

# Values of a smaller variance are all alike: sums with a grid of 2^-60 tell no skewness of theirs.
_LEAST_VARIANCE = 2.0**-36

# An area of less is none.
_ROUNDING = 1e-15

# Printed under their own names, in this order.
_CLASSES = (
    "accuracy",
    *("ece", "ece2", "mce", "ace", "cece", "uce_entropy", "cuce", "nll", "brier"),
    *("sharpness", "overconfidence", "underconfidence", "entropy"),
    *("confidence_skewness", "entropy_skewness"),
    *AUSE,
    *("ccqs", "ucqs", "aleatoric", "epistemic"),
)


@dataclass(frozen=True, slots=True)
class ClassEvaluation:
    """All measures of n rows of probabilities over C classes; NaN where there are no rows for one.

    without_truth           rows left out because they have no true class
    refused                 rows left out because of their probabilities or an unknown class
    nll                     in nats
    brier                   in [0, 2]
    sharpness               variance of the confidence
    overconfidence          mean confidence where wrong
    underconfidence         mean of 1 − confidence where right
    entropy                 mean over log C
    confidence_skewness, entropy_skewness
                            third standardised moments; NaN if all are alike, or of older states
    opinions                rows that came with several opinions: those of aleatoric, epistemic
    aleatoric, epistemic    parts of the opinions' mean entropy over log C
    ece, ece2, mce, ace     gap of accuracy and confidence: ECE_1, ECE_2, largest, unweighted mean
    cece                    mean over C classes of ece_by_class
    uce_entropy             gap of error rate and entropy over log C
    cuce                    mean of uce_by_class over the classes that were predicted
    ause, …                 see AUSE
    ccqs, ucqs              1 − A/0.25 of the reliability diagrams of confidence and of entropy
    rejection_fraction      (F,) share of rows rejected, the highest entropy first
    rejection_error_rate    (F,) error rate of the others
    confidence_bins         (B,) rows, right ones and confidence in the bins of ece
    counts_entropy          (B,) rows in the bins of uce_entropy
    n_by_class              (C,) rows predicted as the class: those of uce_ and ause_by_class
    ece_by_class            (C,) of all n rows, the class against the others
    uce_by_class            (C,)
    ause_by_class           (6, C) in the order of AUSE
    ause_bound              (6,) how far each AUSE can be from exact sorting; 0 if rows were sorted
    ause_bound_by_class     (6, C) likewise
    """

    nll: float
    brier: float
    sharpness: float
    overconfidence: float
    underconfidence: float
    entropy: float
    confidence_skewness: float
    entropy_skewness: float
    opinions: int
    aleatoric: float
    epistemic: float
    n: int
    classes: int
    accuracy: float
    ece: float
    ece2: float
    mce: float
    ace: float
    cece: float
    uce_entropy: float
    cuce: float
    ause: float
    ause_entropy: float
    ause_cross_entropy: float
    ause_brier: float
    ause_brier_entropy: float
    ause_brier_cross_entropy: float
    ccqs: float
    ucqs: float
    rejection_fraction: FloatArray
    rejection_error_rate: FloatArray
    confidence_bins: EventBins
    counts_entropy: IntArray
    n_by_class: IntArray
    ece_by_class: FloatArray
    uce_by_class: FloatArray
    ause_by_class: FloatArray
    ause_bound: FloatArray
    ause_bound_by_class: FloatArray
    without_truth: int = 0
    refused: int = 0

    @property
    def counts_confidence(self) -> IntArray:
        """(B,) rows in the bins of ece."""
        return self.confidence_bins.n


class EventBins(NamedTuple):
    """Reliability bins of an event and its claimed probability, over the last axis.

    n         (…, B) rows
    happened  (…, B) rows in which the event came true
    claimed   (…, B) Σ of its claimed probability
    """

    n: IntArray
    happened: FloatArray
    claimed: FloatArray

    @property
    def gap(self) -> FloatArray:
        """(…, B) |mean outcome − mean claim|; 0 in empty bins."""
        return np.abs(self.happened - self.claimed) / np.maximum(self.n, 1)


def expected_gap(bins: EventBins, q: float = 1.0) -> FloatArray:
    """ECE_q = (Σ_b n_b/N · gap_b^q)^(1/q), (…,); NaN without rows.

    The event is a right prediction and the claim its confidence for ECE, a wrong one and its
    entropy over log C for UCE, a class and its probability for classwise ECE.

    source   Naeini et al. 2015; Laves et al. 2019, eqs. 13, 15; Kull et al. 2019
    """
    with np.errstate(invalid="ignore"):
        mean = (bins.n * bins.gap**q).sum(axis=-1) / bins.n.sum(axis=-1)
    result: FloatArray = mean ** (1.0 / q)
    return result


def largest_gap(bins: EventBins) -> float:
    """MCE: the largest gap of an occupied bin; NaN without rows."""
    return float(bins.gap.max()) if bins.n.any() else float("nan")


def mean_gap(bins: EventBins) -> float:
    """ACE: the mean gap of the occupied bins, unweighted; NaN without rows."""
    occupied = np.count_nonzero(bins.n)
    return float(bins.gap.sum() / occupied) if occupied else float("nan")


def quality_score(bins: EventBins) -> float:
    """CCQS or UCQS = 1 − A/A_max, A_max = 0.25; NaN without rows.

    A = Σ over occupied bins of width · gap: the area between the steps of the reliability
    diagram and the diagonal. It can exceed A_max, since the curve of a classifier need not
    run from (0, 0) to (1, 1): the score lies in [−3, 1].

    bins     of equal width on [0, 1]
    source   Wolf et al. 2024, eq. 7
    """
    if not bins.n.any():
        return float("nan")
    return float(1.0 - bins.gap.mean() / LARGEST_AREA)


def evaluation_of(
    *,
    right: IntArray,
    wrong: IntArray,
    confidence: EventBins,
    entropy: EventBins,
    one_vs_rest: EventBins,
    entropy_by_class: EventBins,
    ranked: tuple[Ranked, ...],
    ranked_by_class: tuple[Ranked, ...],
    others: dict[str, Any],
) -> ClassEvaluation:
    """Computes all measures of sums over C classes that either engine gathers.

    right, wrong              (C,) rows by predicted class
    confidence, entropy       (B,) right predictions over confidence, wrong ones over entropy
    one_vs_rest               (C, B) rows of the class over its probability
    entropy_by_class          (C, B) as entropy, by predicted class
    ranked                    by confidence, entropy, cross-entropy and Brier score, from certain
                              to uncertain, with wrong predictions and Brier score as errors
    ranked_by_class           likewise, by predicted class
    others                    measures that the engine knows by itself
    """
    by_class = right + wrong
    n, all_right = int(by_class.sum()), right.sum(keepdims=True)
    ece_by_class = expected_gap(one_vs_rest)
    uce_by_class = expected_gap(entropy_by_class)
    ause, bound = _ause(ranked, all_right, n - all_right)
    ause_by_class, bound_by_class = _ause(ranked_by_class, right, wrong)
    return ClassEvaluation(
        n=n,
        classes=by_class.size,
        accuracy=int(all_right[0]) / n if n else float("nan"),
        ece=float(expected_gap(confidence)),
        ece2=float(expected_gap(confidence, 2.0)),
        mce=largest_gap(confidence),
        ace=mean_gap(confidence),
        cece=float(ece_by_class.mean()),
        uce_entropy=float(expected_gap(entropy)),
        cuce=float(uce_by_class[by_class > 0].mean()) if n else float("nan"),
        **dict(zip(AUSE, ause[:, 0].tolist(), strict=True)),
        rejection_fraction=REJECTED / 20,
        rejection_error_rate=wrong_of_kept(ranked[1], n - n * REJECTED // 20),
        confidence_bins=confidence,
        counts_entropy=entropy.n,
        n_by_class=by_class,
        ece_by_class=ece_by_class,
        uce_by_class=uce_by_class,
        ause_by_class=ause_by_class,
        ause_bound=bound[:, 0],
        ause_bound_by_class=bound_by_class,
        **others,
    )


def _ause(ranked: tuple[Ranked, ...], right: IntArray, wrong: IntArray) -> FloatArray:
    """Areas between the sparsification curves and their oracles, and their bounds, (2, 6, S).

    source   Wolf et al. 2024, section 2.2.4
    """
    *sorts, (oracle, slack) = map(areas, ranked)
    # The oracle sorts by the error itself: by the Brier score, and right rows before wrong ones,
    # in closed form.
    n = right + wrong
    with np.errstate(invalid="ignore"):
        oracle[0] = (wrong - right * (digamma(n + 1) - digamma(right + 1))) / n
    slack[0] = 0.0
    found: FloatArray = np.stack(sorts) + np.stack((-oracle, slack))
    # The same order as the oracle's leaves a rounding of the areas.
    found[np.abs(found) < _ROUNDING] = 0.0
    # (sort, area or bound, merit, segment) to (area or bound, merit · sort, segment)
    return found.transpose(1, 2, 0, 3).reshape(2, len(AUSE), -1)


# ---- from micro-bins


def read_classes(statistics: ClassStatistics, bins: int = 20) -> ClassEvaluation:
    """Reads every measure of the rows that were observed; NaN without any.

    Counts are those of the exact engine with bins of equal width, bin-based measures equal
    but for the grid of the sums, and AUSE lies within ause_bound of its own.

    bins     a divisor of 60
    """
    if statistics.n <= 0:
        # Statistics that more was retracted from than came hold no rows.
        statistics = no_class_statistics(statistics.classes)
    classes = statistics.classes
    all_rows, by_class, one_vs_rest = statistics.tables
    whole = [_cells(all_rows, i, axis, STRIDE, 1) for i, axis in enumerate(AXES)]
    parts = [
        _cells(by_class, i, axis, COARSE_STRIDE, classes) for i, axis in enumerate(COARSE_AXES)
    ]
    confidence = whole[CONFIDENCE].event_bins(bins, whole[CONFIDENCE].right)
    entropy = whole[ENTROPY].event_bins(bins, whole[ENTROPY].wrong)
    counts, claims = parts[ENTROPY], _cells(one_vs_rest, 0, SIXTIETHS, SIXTIETHS.count, classes)
    wrong = np.bincount(counts.segment, counts.wrong, classes).astype(np.int64)
    return evaluation_of(
        right=np.bincount(counts.segment, counts.right, classes).astype(np.int64),
        wrong=wrong,
        confidence=confidence,
        entropy=entropy,
        one_vs_rest=claims.event_bins(bins, claims.right),
        entropy_by_class=counts.event_bins(bins, counts.wrong),
        ranked=_ranked_cells(whole),
        ranked_by_class=_ranked_cells(parts),
        others={
            **_means_of_sums(statistics, int(wrong.sum())),
            "ccqs": quality_score(confidence),
            "ucqs": quality_score(entropy),
        },
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Cells:
    """The occupied bins of an axis, (M,), by segment and from certain to uncertain.

    brier  zeros in the table that has none
    """

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
        """Adds up bins of equal width on [0, 1], the axis's own value as the claim.

        returns  (S, bins), or (bins,) of a single segment
        """
        cell = self.segment * bins + equal_width_bins(self.axis, bins)[self.index]
        shape = (self.segments, bins) if self.segments > 1 else (bins,)
        return _bins_of_cells(cell, shape, self.n, happened, self.value)

    def ranked(self, lowest: FloatArray | float, highest: FloatArray | float) -> Ranked:
        """Ranks wrong predictions and Brier scores; the latter have these ends in each cell."""
        error = np.stack((self.wrong.astype(np.float64), self.brier), axis=1)
        off = deviation_within(self.n, error[:, 0], 0.0, 1.0)
        deviation = np.stack((off, deviation_within(self.n, self.brier, lowest, highest)), axis=1)
        return Ranked(self.segments, self.segment, self.n, error, deviation)


def _cells(
    table: SparseSums, number: int, axis: UncertaintyAxis, stride: int, segments: int
) -> _Cells:
    part = table.between(number * segments * stride, (number + 1) * segments * stride)
    # Of some more may have been retracted than came.
    held = part.values[:, N] > 0
    segment, index = np.divmod(part.keys[held], stride)
    n = part.values[held, N]
    right, value = np.clip(part.values[held, RIGHT], 0, n), part.as_float(VALUE, EXPONENT)[held]
    scored = part.width > SQUARES
    brier = part.as_float(SQUARES, EXPONENT)[held] if scored else np.zeros(n.size)
    return _Cells(axis, segments, segment, index, n, right, value, brier)


def _ranked_cells(cells: Sequence[_Cells]) -> tuple[Ranked, ...]:
    *others, brier = cells
    # The axis is half the score.
    ends = 2.0 * brier.axis.lower[brier.index], 2.0 * brier.axis.upper[brier.index]
    return (*(axis.ranked(0.0, 2.0) for axis in others), brier.ranked(*ends))


def _bins_of_cells(
    cell: IntArray,
    shape: tuple[int, ...],
    n: IntArray,
    happened: IntArray | BoolArray,
    claimed: FloatArray,
) -> EventBins:
    sums = [np.bincount(cell, one, math.prod(shape)) for one in (n, happened, claimed)]
    counts, came_true, claims = np.array(sums, np.float64).reshape(3, *shape)
    return EventBins(counts.astype(np.int64), came_true, claims)


def _means_of_sums(statistics: ClassStatistics, wrong: int) -> dict[str, float]:
    n, sums = statistics.n, statistics.sums
    opinions = round(sums["opinions"])
    doubt = _ratio(sums["doubt"], n)
    return {
        "nll": _ratio(sums["cross_entropy"], n),
        "brier": _ratio(sums["brier"], n),
        "sharpness": max(_ratio(sums["doubt_squared"], n) - doubt * doubt, 0.0) if n else doubt,
        "overconfidence": 1.0 - _ratio(sums["doubt"] - sums["doubt_where_right"], wrong),
        "underconfidence": _ratio(sums["doubt_where_right"], n - wrong),
        "entropy": _ratio(sums["entropy"], n),
        **_skewness_of_sums(statistics),
        "opinions": opinions,
        "aleatoric": _ratio(sums["aleatoric"], opinions),
        "epistemic": _ratio(sums["epistemic"], opinions),
    }


def _skewness_of_sums(statistics: ClassStatistics) -> dict[str, float]:
    """Computes skewness from exact sums, since differences of their moments lose digits."""
    n, units = statistics.n, statistics.units
    names = ("confidence_skewness", "entropy_skewness")
    if n == 0 or units["moments"] != n << -COMPANION_EXPONENT:
        return dict.fromkeys(names, math.nan)
    found = []
    for name in ("doubt", "entropy"):
        one, two, three = units[name], units[f"{name}_squared"], units[f"{name}_cubed"]
        # n² m_2 = n Σx² − (Σx)² and n³ m_3 = n² Σx³ − 3 n Σx² Σx + 2 (Σx)³, in units and powers
        # of them.
        two, three = two << -COMPANION_EXPONENT, three << -2 * COMPANION_EXPONENT
        second = (n * two - one * one) / (n**2 << -2 * COMPANION_EXPONENT)
        third = n * n * three - 3 * n * two * one + 2 * one**3
        found.append(_skewness(second, third / (n**3 << -3 * COMPANION_EXPONENT)))
    # Doubt is 1 − confidence.
    return dict(zip(names, (-found[0], found[1]), strict=True))


def _skewness(second: float, third: float) -> float:
    """Skewness m_3 / m_2^(3/2) of central moments, over N; NaN where all values are alike.

    source   Wolf et al. 2024, section 4.1
    """
    return third / second**1.5 if second > _LEAST_VARIANCE else math.nan


def _ratio(total: float, n: int) -> float:
    return total / n if n else float("nan")


# ---- from rows


def evaluate_class_rows(
    probabilities: FloatArray,
    label: IntArray,
    *,
    opinions: FloatArray | None = None,
    bins: int = 20,
    binning: BinsOfRows = "equal-width",
) -> ClassEvaluation:
    """Evaluates the rows that have truth and a usable opinion.

    probabilities  (N, C); C is the number of classes, however few of them are seen
    label          (N,) true class, −1 where there is none
    opinions       (N, M, C) whose mean the probabilities are
    binning        equal-width on [0, 1], or equal-count: cut at the quantiles of the rows, with
                   rows of equal value in one bin; ccqs and ucqs keep equal widths
    raises         EvaluationError when no row is left
    """
    rows = judge_rows(probabilities, label, opinions)
    if rows.n == 0:
        raise nothing_to_evaluate(label.size, rows.without_truth, rows.classes)

    def by(value: FloatArray, happened: BoolArray, kind: BinsOfRows = binning) -> EventBins:
        return _bins_of_rows(value, happened, bins, kind)

    of_class = [rows.predicted == c for c in range(rows.classes)]
    return evaluation_of(
        right=np.bincount(rows.predicted[rows.right], minlength=rows.classes),
        wrong=np.bincount(rows.predicted[~rows.right], minlength=rows.classes),
        confidence=by(rows.confidence, rows.right),
        entropy=by(rows.entropy, ~rows.right),
        one_vs_rest=_stacked([by(p, rows.label == c) for c, p in enumerate(rows.probabilities)]),
        entropy_by_class=_stacked([by(rows.entropy[c], ~rows.right[c]) for c in of_class]),
        ranked=_ranked_rows(rows, np.zeros(rows.n, np.int64), 1),
        ranked_by_class=_ranked_rows(rows, rows.predicted, rows.classes),
        others={
            **_means_of_rows(rows),
            "ccqs": quality_score(by(rows.confidence, rows.right, "equal-width")),
            "ucqs": quality_score(by(rows.entropy, ~rows.right, "equal-width")),
            "without_truth": rows.without_truth,
            "refused": rows.refused,
        },
    )


def nothing_to_evaluate(rows: int, without_truth: int, classes: int) -> EvaluationError:
    """Returns the error for rows none of which has a true class and usable probabilities."""
    return EvaluationError(
        f"nothing to evaluate: of {rows} rows, {without_truth} have no true class and "
        f"{rows - without_truth} are no probabilities over {classes} classes or have another "
        "label. Select rows with a label."
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
    return EventBins(*map(np.stack, zip(*each, strict=True)))


def _ranked_rows(rows: ClassRows, segment: IntArray, segments: int) -> tuple[Ranked, ...]:
    errors = np.stack([~rows.right, rows.brier], axis=1)
    # The variation ratio 1 − confidence, without its rounding; Wolf et al. 2024, eq. 8
    uncertainties = (-rows.confidence, rows.entropy, rows.cross_entropy, rows.brier)
    # All of them are rounded as numbers about 1 are.
    return tuple(rank_rows(each, errors, segment, segments, 1.0) for each in uncertainties)


def _means_of_rows(rows: ClassRows) -> dict[str, float]:
    wrong = ~rows.right
    return {
        "nll": float(rows.cross_entropy.mean()),
        "brier": float(rows.brier.mean()),
        "sharpness": float(np.var(rows.confidence)),
        "overconfidence": _mean(rows.confidence[wrong]),
        "underconfidence": _mean(1.0 - rows.confidence[rows.right]),
        "entropy": float(rows.entropy.mean()),
        "confidence_skewness": _skewness_of_rows(rows.confidence),
        "entropy_skewness": _skewness_of_rows(rows.entropy),
        "opinions": 0 if rows.aleatoric is None else rows.n,
        "aleatoric": _mean(rows.aleatoric),
        "epistemic": _mean(rows.epistemic),
    }


def _skewness_of_rows(values: FloatArray) -> float:
    off = values - values.mean()
    return _skewness(float((off**2).mean()), float((off**3).mean()))


def _mean(values: FloatArray | None) -> float:
    return float("nan") if values is None or values.size == 0 else float(values.mean())


# ---- as JSON


def class_as_json(evaluation: ClassEvaluation) -> dict[str, object]:
    """The object `classification`, of the rows with class probabilities."""
    by_class = zip(AUSE, evaluation.ause_by_class, strict=True)
    return {
        "n": evaluation.n,
        "classes": evaluation.classes,
        "rows_without_truth": evaluation.without_truth,
        "rows_refused": evaluation.refused,
        "n_opinions": evaluation.opinions,
        **printed(evaluation, _CLASSES),
        "ause_bound": plain(dict(zip(AUSE, evaluation.ause_bound, strict=True))),
        **printed(evaluation, ("n_by_class", "ece_by_class", "uce_by_class")),
        **{f"{name}_by_class": plain(values) for name, values in by_class},
        "rejection": {
            "fraction": plain(evaluation.rejection_fraction),
            "error_rate": plain(evaluation.rejection_error_rate),
        },
        **printed(evaluation, ("counts_confidence", "counts_entropy")),
    }
