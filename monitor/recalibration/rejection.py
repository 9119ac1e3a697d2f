"""Rejection of uncertain detections: a threshold on how uncertain they are, for a target error.

What is rejected is flagged for whoever receives it, never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
from annotated_types import Interval
from scipy.special import betaincinv, stdtrit

from monitor.frames.marks import CountFrom1, Share
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.recalibration.fit_rows import effect_on_mean_square
from monitor.recalibration.recalibrator import Documented, InvalidRecalibrator, UnfitData
from monitor.statistics.class_statistics import entropy_of_columns
from monitor.statistics.sparsification import rank_rows

# How sure the fit is that the error of what is kept stays within the target.
SURENESS = 0.95

# Fewer kept rows, in independent ones, say too little of the mean of an unbounded loss.
FEWEST = 30
_LARGEST = 1e12
_Score = Annotated[float, Interval(ge=0.0, le=_LARGEST)]


class RejectedBy(StrEnum):
    """Score that the threshold is on, and the error it bounds."""

    ENTROPY = "entropy"  # entropy over log C of the mean opinion; share of wrong top classes
    DEVIATION = "deviation"  # σ_G, the joint block's generalised deviation; RMSE in its unit


@dataclass(frozen=True, slots=True)
class Rejection(Documented):
    """Detections with a score above the threshold are too uncertain.

    by              what the score is
    threshold       in the unit of the score; a score equal to it is kept
    target_error    asked for: a share, or an RMSE in the unit of the dimensions
    error           of the rows that are kept, among those it was fitted on
    rejected_share  of these
    rows            it was fitted on
    source          Laves et al. 2019, section 4.2, which chooses no threshold
    """

    by: RejectedBy
    threshold: _Score
    target_error: _Score
    error: _Score
    rejected_share: Share
    rows: CountFrom1

    def __post_init__(self) -> None:
        largest = max(self.threshold, self.target_error, self.error)
        if self.by is RejectedBy.ENTROPY and not largest <= 1:
            raise InvalidRecalibrator(
                f"'threshold', 'target_error' and 'error' go up to {largest}: with 'by' "
                f"'{self.by}' they must be at most 1"
            )

    def rejects(self, score: FloatArray) -> BoolArray:
        """(n,) which are too uncertain; one without a score, NaN, is not."""
        return score > self.threshold


def normalised_entropy(probabilities: FloatArray) -> FloatArray:
    """(n,) entropy of (n, C) over log C, in [0, 1]; NaN stays."""
    return entropy_of_columns(np.ascontiguousarray(probabilities.T))


def fit_rejection(
    score: FloatArray,
    loss: FloatArray,
    target: float,
    by: RejectedBy,
    track: IntArray | None = None,
) -> Rejection:
    """Fits the largest threshold with which the error of what is kept stays within the target.

    Every score is tried as a threshold, rows of equal score together; the curve need not fall.
    A mean within the target by luck is outside it next time, in most fits: so it is the upper
    end of the mean's confidence interval, one-sided at SURENESS, that has to lie within. As the
    largest of many is taken, the true error is above the target in 5 to 8 fits of 100; by
    deviation in up to 24 where squared errors have no variance, as Student's t with ν = 3.

    score   (n,) the higher the more uncertain
    loss    (n,) by entropy 1 where the top class is wrong, else 0; by deviation the squared
            length of the error in the joint block
    target  largest error: of a share in (0, 1), or an RMSE above 0
    track   (n,) number of the object each row is of, −1 where it is of none; None where no row
            is of any. Rows count for what they are worth by the design effect of the loss
    source  upper end of a share: Clopper & Pearson 1934; of another mean: Student's t
    raises  UnfitData where no threshold does, saying what is reached; without rows, and where
            scores, losses or the target make no sense
    """
    _check(score, loss, target, by)
    share = by is RejectedBy.ENTROPY
    bound = target if share else target * target
    # Sums over ties must not depend on the order of the rows.
    of_object = np.full(score.size, -1) if track is None else track
    order = np.lexsort((of_object, loss, score))
    weight = 1.0 / float(effect_on_mean_square(loss[order, None], of_object[order])[0])
    errors = np.stack([loss[order], np.square(loss[order])], axis=1)
    ranked = rank_rows(score[order], errors, np.zeros(score.size, np.int64), 1)
    kept = np.cumsum(ranked.n)
    n = weight * kept.astype(np.float64)
    total, squares = np.cumsum(ranked.error, axis=0).T
    if share:
        upper = _share_at_most(weight * total, n)
    else:
        upper = _mean_at_most(total / kept, squares / kept, n)
    if not np.isfinite(upper).any():
        raise UnfitData(
            f"{score.size} rows are fewer than {FEWEST} independent rows: their mean error is not "
            "known well enough for a threshold. Give more."
        )
    within = np.flatnonzero(upper <= bound)
    if within.size == 0:
        best = int(np.argmin(upper))
        reached = upper[best] if share else np.sqrt(upper[best])
        raise UnfitData(
            f"no threshold on {by} keeps the error within {target:g}: the lowest that can be "
            f"relied on is {reached:.4g}, of the {kept[best]} most certain of {score.size} rows "
            f"(at {SURENESS:.0%}). Allow more, or give more rows."
        )
    last = int(within[-1])
    mean = float(total[last] / kept[last])
    return Rejection(
        by=by,
        threshold=float(score[order][kept[last] - 1]),
        target_error=float(target),
        error=mean if share else float(np.sqrt(mean)),
        rejected_share=float(1.0 - kept[last] / score.size),
        rows=int(score.size),
    )


def _share_at_most(hits: FloatArray, n: FloatArray) -> FloatArray:
    """Upper end of a share's one-sided interval: the SURENESS quantile of Beta(k + 1, n − k)."""
    upper = np.ones_like(n)
    some = hits < n
    upper[some] = betaincinv(hits[some] + 1.0, n[some] - hits[some], SURENESS)
    return upper


def _mean_at_most(mean: FloatArray, square: FloatArray, n: FloatArray) -> FloatArray:
    """Upper end of a mean's one-sided interval; infinite with fewer than FEWEST rows."""
    upper = np.full_like(mean, np.inf)
    some = n >= FEWEST
    variance = np.maximum(square[some] - np.square(mean[some]), 0.0)
    upper[some] = mean[some] + stdtrit(n[some] - 1.0, SURENESS) * np.sqrt(variance / n[some])
    return upper


def _check(score: FloatArray, loss: FloatArray, target: float, by: RejectedBy) -> None:
    if score.size == 0:
        raise UnfitData("no threshold can be fitted on 0 rows: widen the selection of rows.")
    if not (np.isfinite(score).all() and np.isfinite(loss).all()):
        raise UnfitData("scores and losses must be finite and scores at least 0: leave out rows.")
    largest, give = _LARGEST, "an RMSE above 0, and squared errors as losses"
    if by is RejectedBy.ENTROPY:
        largest, give = 1.0, "a share above 0 and below 1"
    if not 0 < target < largest:
        raise UnfitData(f"the target error is {target}: give {give}.")
