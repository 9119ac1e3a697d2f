"""A chunk of what is watched, made into what the evidence of its slices takes in: frame by frame,
and by seconds of tracks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.clusters import ALONE, LARGEST
from monitor.calibration.drift.charts import CHARTS, Stage
from monitor.calibration.drift.evidence import Evidence, bounded_likelihood
from monitor.calibration.drift.increments import (
    BETS,
    Aim,
    Cells,
    log_likelihoods,
    row_log_likelihoods,
)
from monitor.calibration.drift.usual import UsualArrays
from monitor.calibration.drift.watched import Blocks, WatchedRows
from monitor.calibration.space import FloatArray, IntArray

# The charts of each stage, side by side.
CHARTS_OF = {
    stage: slice(
        min(i for i, chart in enumerate(CHARTS) if chart.stage is stage),
        max(i for i, chart in enumerate(CHARTS) if chart.stage is stage) + 1,
    )
    for stage in Stage
}


def likelihood_of_frames(
    k: int,
    rows: WatchedRows,
    place: IntArray,
    usual: UsualArrays,
    stage: Stage,
    aims: Sequence[Aim],
) -> FloatArray:
    """(F, P, 2, BETS) L of each frame, slice and chart of a stage; 1 where a slice is not in it.

    place  (n,) of each row among the P slices of `usual`
    """
    frames, slices = rows.stamp_ns.size, usual.tempering.size
    cell = rows.frame * slices + place
    cells = Cells(
        k,
        rows.nees[stage],
        _mapped(rows, place, usual, stage),
        cell,
        rows.track != ALONE,
        frames * slices,
        np.tile(usual.tempering, frames),
        np.tile(usual.frame_tempering, frames),
        [np.tile(usual.anchor(aim.direction), frames) for aim in aims],
    )
    likelihood = bounded_likelihood(log_likelihoods(cells, aims))
    return likelihood.reshape(frames, slices, len(aims), -1)


def _mapped(rows: WatchedRows, place: IntArray, usual: UsualArrays, stage: Stage) -> FloatArray:
    """(n,) e' of each row."""
    return usual.map.mapped(rows.nees[stage], usual.number[place])


def likelihood_of_rows(
    k: int,
    rows: WatchedRows,
    place: IntArray,
    usual: Mapping[Stage, UsualArrays],
    aims: Mapping[Stage, Sequence[Aim]],
) -> FloatArray:
    """(n, charts × BETS + 1) L of each detection by itself; 1 on charts that do not heed it. Last,
    whether a recalibrator has changed it.
    """
    found = np.ones((rows.n, len(CHARTS), BETS))
    for stage in Stage:
        heeded = np.ones(rows.n, bool) if stage is Stage.RECALIBRATED else rows.changed[rows.frame]
        if heeded.any():
            mapped = _mapped(rows, place, usual[stage], stage)[heeded]
            nees = rows.nees[stage, heeded]
            anchors = [usual[stage].anchor(aim.direction)[place[heeded]] for aim in aims[stage]]
            said = row_log_likelihoods(k, nees, mapped, aims[stage], anchors)
            found[heeded, CHARTS_OF[stage]] = bounded_likelihood(said)
    changed = rows.changed[rows.frame].astype(np.float64)
    return np.column_stack([found.reshape(rows.n, -1), changed])


def add_tracks(
    board: Evidence, hours: float, chosen: IntArray, log_mean: FloatArray, stage: Stage
) -> None:
    """Have the evidence of P slices take in whole tracks of one source, at one stage.

    hours     of driving that they stand for
    chosen    (m,) slice of each, of the P
    log_mean  (m, charts, BETS) ln of the mean of L over its detections
    """
    if chosen.size == 0:
        return
    charts = CHARTS_OF[stage]
    counts = np.bincount(chosen, minlength=board.slices)
    total = np.zeros((board.slices, charts.stop - charts.start, BETS))
    np.add.at(total, chosen, log_mean[:, charts])
    given = hours * counts / counts.sum()
    board.add_detections(charts, given, bounded_likelihood(total))


def said_of(k: int, rows: WatchedRows, place: IntArray, slices: int, stage: Stage) -> FloatArray:
    """(F, P, 3) detections, Σ x and Σ x² of each cell, a slice in a frame."""
    x = np.minimum(rows.nees[stage] / k, LARGEST)
    frames, cell = rows.stamp_ns.size, rows.frame * slices + place
    count = frames * slices
    sums = [np.bincount(cell, one, count) for one in (np.ones_like(x), x, x * x)]
    said = np.stack(sums, axis=1).reshape(frames, slices, 3)
    return said.astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class SecondsOver:
    """Seconds of tracks of one source that are over, to be taken in together.

    frame   of the chunk after which they are
    second  number of the second
    chosen  which of the blocks they are
    """

    frame: int
    source: int
    second: int
    chosen: IntArray


def seconds_over(blocks: Blocks) -> list[SecondsOver]:
    """Blocks by source and second, in the order of the frames by which they are over."""
    if blocks.m == 0:
        return []
    key = np.stack([blocks.source, blocks.frame, blocks.second])
    start = np.flatnonzero(np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0)))
    found = [
        SecondsOver(
            int(blocks.frame[begin]),
            int(blocks.source[begin]),
            int(blocks.second[begin]),
            np.arange(begin, end),
        )
        for begin, end in zip(start.tolist(), [*start[1:].tolist(), blocks.m], strict=True)
    ]
    found.sort(key=lambda one: one.frame)
    return found
