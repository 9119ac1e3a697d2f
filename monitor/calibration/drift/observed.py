"""A chunk of what is watched, made into what the evidence of its slices takes in: frame by frame,
and by seconds of tracks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.clusters import ALONE
from monitor.calibration.drift.charts import CHARTS, Stage
from monitor.calibration.drift.evidence import LARGEST, Evidence, bounded_likelihood
from monitor.calibration.drift.increments import (
    BETS,
    Aim,
    Cells,
    log_likelihoods,
    row_log_likelihoods,
)
from monitor.calibration.drift.track_evidence import FACTORS, BlockLevels
from monitor.calibration.drift.track_evidence import log_likelihoods as block_log_likelihoods
from monitor.calibration.drift.usual import UsualArrays
from monitor.calibration.drift.watched import BLOCK_NS, Blocks, WatchedRows
from monitor.calibration.space import BoolArray, FloatArray, IntArray

# The charts of each stage, side by side.
CHARTS_OF = {
    stage: slice(
        min(i for i, chart in enumerate(CHARTS) if chart.stage is stage),
        max(i for i, chart in enumerate(CHARTS) if chart.stage is stage) + 1,
    )
    for stage in Stage
}


@dataclass(frozen=True, eq=False, slots=True)
class ObservedFrames:
    """F frames and P slices, at one stage.

    likelihood  (F, P, 2, BETS) L of the two charts; 1 where a slice is not in a frame
    said        (F, P, 3) detections, Σ x and Σ x², x = NEES/K
    """

    likelihood: FloatArray
    said: FloatArray


def observed_frames(
    k: int,
    rows: WatchedRows,
    place: IntArray,
    usual: UsualArrays,
    stage: Stage,
    aims: Sequence[Aim],
) -> ObservedFrames:
    """What the detections of each frame say.

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
    )
    likelihood = bounded_likelihood(log_likelihoods(cells, aims))
    return ObservedFrames(
        likelihood.reshape(frames, slices, len(aims), -1), said_of(k, rows, place, slices, stage)
    )


def _mapped(rows: WatchedRows, place: IntArray, usual: UsualArrays, stage: Stage) -> FloatArray:
    """(n,) e' of each row."""
    return usual.map.mapped(rows.nees[stage], usual.number[place])


def silent_frames(
    k: int, rows: WatchedRows, place: IntArray, slices: int, stage: Stage
) -> ObservedFrames:
    """Frames whose detections are counted, but say nothing yet: their tracks will."""
    said = said_of(k, rows, place, slices, stage)
    return ObservedFrames(np.broadcast_to(1.0, (*said.shape[:2], 2, BETS)), said)


def likelihood_of_rows(
    k: int,
    rows: WatchedRows,
    place: IntArray,
    usual: Mapping[Stage, UsualArrays],
    aims: Mapping[Stage, Sequence[Aim]],
) -> FloatArray:
    """(n, charts, BETS) L of each detection by itself; 1 on charts that do not heed it."""
    found = np.ones((rows.n, len(CHARTS), BETS))
    for stage in Stage:
        heeded = np.ones(rows.n, bool) if stage is Stage.RECALIBRATED else rows.changed[rows.frame]
        if heeded.any():
            mapped = _mapped(rows, place, usual[stage], stage)[heeded]
            nees = rows.nees[stage, heeded]
            said = row_log_likelihoods(k, nees, mapped, aims[stage])
            found[heeded, CHARTS_OF[stage]] = bounded_likelihood(said)
    return found


def add_tracks(board: Evidence, hours: float, chosen: IntArray, log_mean: FloatArray) -> None:
    """Have the evidence of P slices take in whole tracks of one source.

    hours     of driving that they stand for
    chosen    (m,) slice of each, of the P
    log_mean  (m, charts, BETS) ln of the mean of L over its detections
    """
    counts = np.bincount(chosen, minlength=board.slices)
    total = np.zeros((board.slices, *log_mean.shape[1:]))
    np.add.at(total, chosen, log_mean)
    given = hours * counts / counts.sum()
    for charts in CHARTS_OF.values():
        board.add_detections(charts, given, bounded_likelihood(total[:, charts]))


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


def seconds_over(blocks: Blocks, rows: WatchedRows) -> list[SecondsOver]:
    """Blocks by source and second, and the frame that showed each to be over; in that order."""
    if blocks.m == 0:
        return []
    key = np.stack([blocks.source, blocks.second])
    start = np.flatnonzero(np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0)))
    found = []
    for begin, end in zip(start.tolist(), [*start[1:].tolist(), blocks.m], strict=True):
        source, second = int(blocks.source[begin]), int(blocks.second[begin])
        later = (rows.source == source) & (rows.stamp_ns // BLOCK_NS > second)
        # Of a source that fell silent, there is none.
        frame = int(np.argmax(later)) if later.any() else rows.stamp_ns.size - 1
        found.append(SecondsOver(frame, source, second, np.arange(begin, end)))
    found.sort(key=lambda one: (one.frame, one.second))
    return found


def add_seconds(
    board: Evidence,
    hours: float,
    over: SecondsOver,
    blocks: Blocks,
    place: IntArray,
    usual: UsualArrays,
    stage: Stage,
    aims: Sequence[Aim],
    heeded: BoolArray,
    first: IntArray,
) -> None:
    """Have the evidence of P slices take in seconds that are over, at one stage.

    hours   of driving that they stand for
    place   (m,) of all blocks among the slices
    heeded  (m,) which of them say anything here
    first   (P, 4) tracks whose first second since the change it is; added to
    """
    charts, slices = CHARTS_OF[stage], board.slices
    chosen = over.chosen[heeded[over.chosen]]
    if chosen.size == 0:
        return
    at = place[chosen]
    counts = np.bincount(at, minlength=slices)
    said = np.empty((chosen.size, len(aims), len(FACTORS)))
    before = blocks.before[chosen]
    for chart, aim in enumerate(aims):
        clean = board.clean[at, charts.start + chart]
        since_change = np.clip(over.second - np.maximum(clean, blocks.first[chosen]), 0, before)
        levels = BlockLevels(
            level=blocks.level[stage, chosen],
            count=blocks.count[chosen],
            mean=blocks.mean[stage, chosen],
            before=before,
            since_change=since_change,
            usual=usual.mean[at],
            between=usual.between[at],
            within=usual.within[at],
            length=usual.length[at],
        )
        said[:, chart] = block_log_likelihoods(levels, aim.direction.sign, aim.tolerance)
        begun = at[since_change == 0]
        first[:, charts.start + chart] += np.bincount(begun, minlength=slices)
    bets = said[0].size
    cell = at[:, None] * bets + np.arange(bets)
    log_likelihood = np.bincount(cell.ravel(), said.ravel(), slices * bets)
    board.add_blocks(
        charts,
        hours * counts / counts.sum(),
        log_likelihood.reshape(slices, *said.shape[1:]),
        over.second,
    )
