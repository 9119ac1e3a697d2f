"""Turns measures into figures: the same for the status page, the report and a notebook.

Every number that is drawn is one of the evaluation's own, or follows from its sums here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from monitor.figures.comparison import before_after, heat_map
from monitor.figures.reliability import (
    Points,
    class_reliability,
    coverage,
    rejection,
    reliability,
)
from monitor.figures.svg import Figure, number
from monitor.frames.space import FloatArray, Space
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.measures import (
    AxisMeasures,
    DimensionMeasures,
    Evaluation,
    JointMeasures,
    mean_square_band,
)

Stages = Mapping[str, Evaluation]
JOINT = "joint"

# Variances of two bins that differ by no more, as a share, are drawn as one.
_SAME = 1e-3


def evaluation_figures(name: str, stages: Stages, units: Mapping[str, str]) -> list[Figure]:
    """Draws reliability by dimension, joint reliability, coverage and rejection of one slice.

    stages  one or two evaluations of the same rows, by the name of the stage
    units   of each dimension
    """
    first = next(iter(stages.values()))
    found = [
        _reliability(
            f"{name}, {dimension}",
            {stage: evaluation.dimensions[dimension] for stage, evaluation in stages.items()},
            units.get(dimension, ""),
        )
        for dimension in first.dimensions
    ]
    joint = {stage: evaluation.joint for stage, evaluation in stages.items()}
    if len(first.dimensions) > 1:
        found.append(_reliability(f"{name}, {JOINT}", joint, ""))
    return [*found, coverage_figure(name, stages), _rejection(name, stages)]


def coverage_figure(name: str, stages: Stages) -> Figure:
    """Draws the joint coverage of one slice over τ."""
    joint = {stage: evaluation.joint for stage, evaluation in stages.items()}
    tau = next(iter(joint.values())).tau
    at = int(np.abs(tau - 0.9).argmin())
    says = "; ".join(
        f"{stage}: {one.coverage_by_tau[at]:.0%} of errors lie where {tau[at]:.0%} should"
        for stage, one in joint.items()
    )
    series = [(stage, one.coverage_by_tau) for stage, one in joint.items()]
    return coverage(f"Coverage: {name}", f"{says}.", tau, series)


def _rejection(name: str, stages: Stages) -> Figure:
    """Draws how σ_G ranks the joint errors; if units differ, σ that of the worst dimension."""
    first = next(iter(stages.values()))
    chosen = JOINT
    if not math.isfinite(first.joint.ause_relative):
        order = {one: part.ause_relative for one, part in first.dimensions.items()}
        known = [one for one, ause in order.items() if math.isfinite(ause)]
        chosen = max(known, key=lambda one: order[one], default=JOINT)
    parts: dict[str, AxisMeasures] = {
        stage: one.joint if chosen == JOINT else one.dimensions[chosen]
        for stage, one in stages.items()
    }
    left = [(stage, _over_all(one.rejection.mean_squared_error)) for stage, one in parts.items()]
    whole = next(iter(parts.values()))
    says = "; ".join(
        f"{stage}: AUSE {number(one.ause_relative)} of the mean squared error"
        for stage, one in parts.items()
    )
    return rejection(
        f"Rejection: {name}, {chosen}",
        f"{says}. Dashed: if σ knew the errors; a level line: σ says nothing about them.",
        whole.rejection.fraction,
        _over_all(whole.rejection.oracle),
        left,
    )


def _over_all(left: FloatArray) -> FloatArray:
    """Divides a rejection curve by its first value, that of all rows; NaN without errors."""
    return left / left[0] if left[0] > 0 else np.full_like(left, np.nan)


def _reliability(
    name: str, stages: Mapping[str, DimensionMeasures] | Mapping[str, JointMeasures], unit: str
) -> Figure:
    says = "; ".join(f"{stage}: {_said(one)}" for stage, one in stages.items())
    return reliability(
        f"Reliability: {name}",
        f"{says}. Above the diagonal σ is too small.",
        unit,
        [points(stage, one) for stage, one in stages.items()],
    )


def _said(one: DimensionMeasures | JointMeasures) -> str:
    if isinstance(one, JointMeasures):
        return f"NEES/K {number(one.nees_over_k)}, QCE {number(one.qce)} over {one.n:,} rows"
    return f"NEES {number(one.nees_mean)}, ENCE {number(one.ence)} over {one.n:,} rows"


def points(name: str, one: DimensionMeasures | JointMeasures) -> Points:
    """Reads a series of a reliability diagram off the bins: root means by bin.

    The joint block has no error of one unit: σ_G · sqrt(NEES/K) stands for it, which is σ_G where
    the covariances are right.
    """
    held = one.bins.take(one.bins.n > 0)
    variance = held.variance / held.n
    # Bins of the same σ are one point: equal counts cut rows of equal σ apart.
    start = np.flatnonzero(np.diff(variance, prepend=0.0) > _SAME * variance)
    n = np.add.reduceat(held.n, start) if start.size else held.n
    variance, squared_error, nees = (
        np.add.reduceat(column, start) if start.size else column
        for column in (held.variance, held.squared_error, held.nees)
    )
    stated = np.sqrt(variance / n)
    if isinstance(one, JointMeasures):
        observed, kurtosis = stated * np.sqrt(nees / (n * one.k)), 3.0
    else:
        observed, kurtosis = np.sqrt(squared_error / n), one.kurtosis
    share = one.n_eff / one.n if one.n else math.nan
    low, high = mean_square_band(n.astype(np.float64) * (share * one.k), kurtosis)
    return Points(name, stated, observed, n, stated * np.sqrt(low), stated * np.sqrt(high))


def class_figure(name: str, stages: Mapping[str, ClassEvaluation]) -> Figure:
    """Draws the share of right classes over the confidence.

    stages  by name, the first with limits
    """
    says = (
        f"{stage}: ECE {number(one.ece)} over {one.n:,} rows, right in {one.accuracy:.1%}"
        for stage, one in stages.items()
    )
    return class_reliability(
        f"Class probabilities: {name}",
        f"{'; '.join(says)}. Below the diagonal the confidence is too high.",
        [_confidence(stage, one) for stage, one in stages.items()],
    )


def _confidence(stage: str, evaluation: ClassEvaluation) -> Points:
    bins = evaluation.confidence_bins
    held = bins.n > 0
    n = bins.n[held]
    stated, right = bins.claimed[held] / n, bins.happened[held] / n
    # Normal limits around the confidence, inside 0 and 1.
    reach = 1.96 * np.sqrt(stated * (1.0 - stated) / n)
    low, high = np.clip(stated - reach, 0.0, 1.0), np.clip(stated + reach, 0.0, 1.0)
    return Points(stage, stated, right, n, low, high)


def factors(evaluation: Evaluation) -> dict[str, float]:
    """Reads by which factor errors are larger than σ says, by dimension and joint."""
    found = {name: float(np.sqrt(one.nees_mean)) for name, one in evaluation.dimensions.items()}
    return found | {JOINT: float(np.sqrt(evaluation.joint.nees_over_k))}


def slices_figure(slices: Sequence[tuple[str, Evaluation]]) -> Figure:
    """Draws the factors of all slices as a heat map; slices may differ in their dimensions."""
    found = [(name, factors(evaluation)) for name, evaluation in slices]
    columns = list(dict.fromkeys(column for _, one in found for column in one))
    if JOINT in columns:
        columns = [*(one for one in columns if one != JOINT), JOINT]
    factor = np.array([[one.get(column, np.nan) for column in columns] for _, one in found])
    factor = factor.reshape(len(found), len(columns))
    says = "No slice has ground truth yet."
    if np.isfinite(factor).any():
        i, j = np.unravel_index(np.nanargmax(np.abs(np.log(factor))), factor.shape)
        says = (
            f"Furthest off: {found[int(i)][0]}, {columns[int(j)]}: "
            f"errors are {number(float(factor[i, j]))} times what σ says."
        )
    names = [name for name, _ in found]
    return heat_map("Errors over stated σ, by slice", says, names, columns, factor)


def change_figure(
    title: str, names: Sequence[str], before: FloatArray, after: FloatArray
) -> Figure:
    """Draws NEES/K before and after a recalibrator by slice or dimension."""
    nearer = int((np.abs(np.log(after)) < np.abs(np.log(before))).sum())
    says = f"{nearer} of {len(names)} are nearer to 1 after the recalibrator."
    return before_after(title, says, names, before, after, "NEES/K, 1 is calibrated")


def farthest(evaluation: Evaluation) -> tuple[str, DimensionMeasures]:
    """Finds the dimension whose errors are the farthest from σ."""
    dimensions = evaluation.dimensions.items()
    return max(dimensions, key=lambda one: abs(math.log(one[1].nees_mean or math.inf)))


def with_unit(value: float, unit: str) -> str:
    """Writes a number with its unit."""
    return f"{number(value)} {unit}".rstrip()


def assumption(space: Space, raw: Evaluation) -> str:
    """Says what σ is assumed, and how large the errors of the farthest dimension are."""
    worst, one = farthest(raw)
    unit = next(each.unit for each in space.dimensions if each.name == worst)
    sizes = with_unit(one.rmv, unit), with_unit(one.rmse, unit)
    return f"σ of {worst} is assumed, {sizes[0]}; its errors are {sizes[1]}"
