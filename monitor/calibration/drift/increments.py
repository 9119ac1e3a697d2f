"""What detections say of drift: the bets of one stage on every slice of every frame of a chunk.

Detections of one track are correlated, so that their likelihood ratios are tempered: L counts as
L^γ, which keeps a mean of at most 1 (Jensen), and with γ = (1 − r)/(1 + r) as much evidence as
independent ones would give. That a product of tempered, dependent ratios is no larger than it may
be was simulated, not proved. Where no track is known, a frame counts once: the mean of the ratios
of its detections is one too, whatever they have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.drift.bets import (
    COVERAGE_FACTORS,
    COVERAGE_LEVELS,
    SCALE_FACTORS,
    STUDENT_DEGREES,
    coverage_bets,
    scale_bets,
    student_bets,
)
from monitor.calibration.drift.charts import Direction
from monitor.calibration.space import BoolArray, FloatArray, IntArray

ABSOLUTE = len(COVERAGE_LEVELS) * len(COVERAGE_FACTORS)
SCALE = len(SCALE_FACTORS)
RELATIVE = SCALE + len(STUDENT_DEGREES)
# Bets of a chart on detections: coverage, then scale, then tails.
BETS = ABSOLUTE + RELATIVE


@dataclass(frozen=True, slots=True)
class Aim:
    """What a chart bets on: a direction, beyond a tolerance on σ."""

    direction: Direction
    tolerance: float


@dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """n detections at one stage, and which of C cells (a slice in a frame) each is in.

    nees       (n,) e
    mapped     (n,) e' through the reference of its slice
    cell       (n,)
    tracked    (n,) whether its track is known
    count      C
    tempering, frame_tempering
               (C,) γ of its detections, and of the cell as a whole
    anchors    (C,) by chart: factor on usual squared errors from which its direction counts
    """

    k: int
    nees: FloatArray
    mapped: FloatArray
    cell: IntArray
    tracked: BoolArray
    count: int
    tempering: FloatArray
    frame_tempering: FloatArray
    anchors: Sequence[FloatArray]


def log_likelihoods(cells: Cells, aims: Sequence[Aim]) -> FloatArray:
    """(C, charts, BETS) ln of what each bet is multiplied by; 0 in an empty cell."""
    found = np.zeros((cells.count, len(aims), BETS))
    if cells.tracked.all():
        _add_tracked(found, cells, aims, slice(None))
        return found
    if cells.tracked.any():
        _add_tracked(found, cells, aims, cells.tracked)
    _add_untracked(found, cells, aims, np.flatnonzero(~cells.tracked))
    return found


def row_log_likelihoods(
    k: int,
    nees: FloatArray,
    mapped: FloatArray,
    aims: Sequence[Aim],
    anchors: Sequence[FloatArray],
) -> FloatArray:
    """(n, charts, BETS) ln L of single detections, not tempered.

    anchors  (n,) by chart, as in Cells
    """
    found = np.zeros((nees.size, len(aims), BETS))
    for chart, (aim, anchor) in enumerate(zip(aims, anchors, strict=True)):
        coverage = coverage_bets(k, aim.direction, aim.tolerance)
        found[:, chart, :ABSOLUTE] = coverage.log_likelihood[coverage.exceeded(nees)]
        scale = scale_bets(k, aim.direction, aim.tolerance)
        found[:, chart, ABSOLUTE : ABSOLUTE + SCALE] = scale.log_likelihood(mapped / anchor)
        if aim.direction is Direction.OVER:
            tails = student_bets(k, aim.tolerance)
            found[:, chart, ABSOLUTE + SCALE :] = tails.log_likelihood(mapped / anchor)
    return found


def _add_tracked(
    found: FloatArray, cells: Cells, aims: Sequence[Aim], rows: BoolArray | slice
) -> None:
    """Sums over detections of a cell need no row of bets: counts and sums of e' are enough."""
    nees, mapped, cell = cells.nees[rows], cells.mapped[rows], cells.cell[rows]
    zone = coverage_bets(cells.k, Direction.OVER, 1.0).exceeded(nees)
    zones = np.bincount(cell * 4 + zone, minlength=4 * cells.count).reshape(-1, 4)
    n = zones.sum(axis=1)[:, None]
    total = np.bincount(cell, mapped, cells.count)[:, None]
    gamma = cells.tempering[:, None]
    for chart, (aim, anchor) in enumerate(zip(aims, cells.anchors, strict=True)):
        coverage = coverage_bets(cells.k, aim.direction, aim.tolerance)
        found[:, chart, :ABSOLUTE] = gamma * (zones @ coverage.log_likelihood)
        scale = scale_bets(cells.k, aim.direction, aim.tolerance)
        said = gamma * (n * scale.constant + total / anchor[:, None] * scale.slope)
        found[:, chart, ABSOLUTE : ABSOLUTE + SCALE] = said
        if aim.direction is Direction.OVER:
            tails = student_bets(cells.k, aim.tolerance).log_likelihood(mapped / anchor[cell])
            for bet, said in enumerate(tails.T, ABSOLUTE + SCALE):
                found[:, chart, bet] = cells.tempering * np.bincount(cell, said, cells.count)


def _add_untracked(found: FloatArray, cells: Cells, aims: Sequence[Aim], rows: IntArray) -> None:
    order = rows[np.argsort(cells.cell[rows], kind="stable")]
    cell = cells.cell[order]
    start = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    anchors = [anchor[cell] for anchor in cells.anchors]
    said = row_log_likelihoods(cells.k, cells.nees[order], cells.mapped[order], aims, anchors)
    # A mean of numbers as large as e^700: relative to the largest of the cell.
    largest = np.maximum.reduceat(said, start)
    counts = np.diff(np.append(start, cell.size))
    said -= np.repeat(largest, counts, axis=0)
    mean = np.log(np.add.reduceat(np.exp(said), start) / counts[:, None, None]) + largest
    there = cell[start]
    found[there] += cells.frame_tempering[there, None, None] * mean
