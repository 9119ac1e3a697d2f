"""A chunk of frames on its way into the evidence of its slices.

Evidence takes in detections frame by frame, and seconds of tracks when they are over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.drift.alarms import RecentTracks
from monitor.drift.bets import (
    CHARTS,
    CHARTS_OF,
    Aim,
    DetectionCells,
    Direction,
    Stage,
    log_likelihoods,
)
from monitor.drift.clocks import DrivingClock
from monitor.drift.evidence import (
    FACTORS,
    HOUR,
    Evidence,
    FrameStretch,
    bounded_likelihood,
    common_level,
    log_ratios,
    residuals,
)
from monitor.drift.usual import Blocks, UsualArrays, WatchedRows
from monitor.frames.space import FloatArray, IntArray
from monitor.statistics.clusters import ALONE, LARGEST


def seconds_over(blocks: Blocks) -> list[IntArray]:
    """Groups blocks by source and second, in the order of the frames by which they are over.

    Seconds of one group are over by one frame, and are to be taken in together.
    """
    if blocks.m == 0:
        return []
    key = np.stack([blocks.source, blocks.frame, blocks.second])
    start = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)) + 1
    return sorted(np.split(np.arange(blocks.m), start), key=lambda group: blocks.frame[group[0]])


# s of driving in a stretch: evidence settles with e to the seconds / 30, which overflows at 21,000.
_LONGEST = 300.0

# A second of a track speaks for a chart if it says more than so many nats; or if its level lies so
# far beyond the band of a calibrated detector, which may be usual. By chance some say a little.
_SPEAKS, _FAR = 1.0, 0.5

# τ² of a track of which evidence of the last run may hold seconds: its own level of then is not
# known any more, so that only how it changes since the restart may be a bet (E[L] ≤ 1 whatever the
# level is).
_ANY_LEVEL = 1e9


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """F frames of one space, and the evidence of the P slices that anything is said of.

    first_frame
              number of the first of them, of all frames
    place     (G,) of each slice among the P
    common_level
              (2, m) common level in the second of each block, by Stage; stretches() fills it
    usual     what is usual of the slices, by stage
    board     changed by stretches(), and so is the clock
    """

    k: int
    first_frame: int
    rows: WatchedRows
    blocks: Blocks
    place: IntArray
    common_level: FloatArray
    usual: Mapping[Stage, UsualArrays]
    aims: Mapping[Stage, tuple[Aim, ...]]
    board: Evidence
    clock: DrivingClock
    supporters: Sequence[RecentTracks]

    def stretches(self, most: Callable[[], float]) -> Iterator[FrameStretch]:
        """Takes in frame after frame, up to one after which there may be an alarm, or to the last.

        The board may be changed after each stretch.

        most  M over all slices of the board, that is no alarm for sure
        """
        rows, board, weights = self.rows, self.board, self.board.weights
        frames, slices, charts = rows.stamp_ns.size, board.slices, len(CHARTS)
        stages = [Stage.RECALIBRATED, *([Stage.RAW] if rows.changed.any() else [])]
        likelihood = {stage: self._likelihood(stage) for stage in stages}
        said = np.zeros((frames, slices, charts, 3))
        for stage in stages:
            heeded = rows.changed[:, None, None] if stage is Stage.RAW else True
            said[:, :, CHARTS_OF[stage]] = (self._said(stage) * heeded)[:, :, None]
        total = self.clock.driven
        stamps = zip(rows.source.tolist(), rows.stamp_ns.tolist(), strict=True)
        seconds = np.array([self.clock.drive(source, stamp) for source, stamp in stamps])
        counts = said[:, :, CHARTS_OF[Stage.RECALIBRATED].start, 0]
        # Every detection of a frame has an equal part in its time.
        hours = counts / counts.sum(axis=1, keepdims=True) * (seconds / HOUR)[:, None]
        evidence = np.empty((frames, slices, charts))
        over = seconds_over(self.blocks)[::-1]
        begin, enough, driven = 0, most(), 0.0
        for frame, (source, changed) in enumerate(
            zip(rows.source.tolist(), rows.changed.tolist(), strict=True)
        ):
            self.clock.wait(source, float(seconds[frame]))
            for stage in stages[: 1 + changed]:
                board.add_detections(CHARTS_OF[stage], hours[frame], likelihood[stage][frame])
            while over and self.blocks.frame[over[-1][0]] == frame:
                self._seconds(over.pop())
            evidence[frame] = board.by_chart(weights)
            driven += seconds[frame]
            if frame == frames - 1 or driven > _LONGEST or evidence[frame].sum() >= enough:
                part = slice(begin, frame + 1)
                total += float(seconds[part].sum())
                stretch = FrameStretch(
                    self.first_frame + begin,
                    rows.stamp_ns[part],
                    seconds[part],
                    hours[part],
                    evidence[part],
                    said[part],
                    total,
                )
                board.settle(stretch)
                yield stretch
                begin, enough, driven = frame + 1, most(), 0.0

    def _likelihood(self, stage: Stage) -> FloatArray:
        """Returns L of each frame, slice and chart, (F, P, 2, BETS); 1 in empty cells."""
        rows, usual, aims = self.rows, self.usual[stage], self.aims[stage]
        frames, slices, place = rows.stamp_ns.size, self.board.slices, self.place[rows.slices]
        cells = DetectionCells(
            self.k,
            rows.nees[stage],
            usual.map.mapped(rows.nees[stage], usual.number[place]),
            rows.frame * slices + place,
            rows.track != ALONE,
            frames * slices,
            np.tile(usual.tempering, frames),
            np.tile(usual.frame_tempering, frames),
            [np.tile(usual.anchor(aim.direction), frames) for aim in aims],
        )
        likelihood = bounded_likelihood(log_likelihoods(cells, aims))
        return likelihood.reshape(frames, slices, len(aims), -1)

    def _said(self, stage: Stage) -> FloatArray:
        """Counts detections, Σ x and Σ x² of each cell, a slice in a frame: (F, P, 3)."""
        x = np.minimum(self.rows.nees[stage] / self.k, LARGEST)
        frames, slices = self.rows.stamp_ns.size, self.board.slices
        cell, count = self.rows.frame * slices + self.place[self.rows.slices], frames * slices
        sums = [np.bincount(cell, one, count) for one in (np.ones_like(x), x, x * x)]
        said = np.stack(sums, axis=1).reshape(frames, slices, 3)
        return said.astype(np.float64, copy=False)

    def _seconds(self, over: IntArray) -> None:
        """Gives a group of seconds_over() the hours driven since the last one of its source."""
        blocks = self.blocks
        hours = self.clock.waited(int(blocks.source[over[0]])) / HOUR
        for stage in Stage:
            heeded = self.usual[stage].levels[self.place[blocks.slices[over]]]
            if stage is Stage.RAW:
                heeded = heeded & blocks.changed[over]
            if heeded.any():
                self._seconds_of(stage, over[heeded], hours)

    def _seconds_of(self, stage: Stage, chosen: IntArray, hours: float) -> None:
        """Takes in the same second of m tracks of a source, which is over, at one stage.

        chosen  (m,) which of the blocks they are
        hours   of driving that they stand for
        """
        blocks, board, usual = self.blocks, self.board, self.usual[stage]
        second = int(blocks.second[chosen[0]])
        at, before = self.place[blocks.slices[chosen]], blocks.before[chosen]
        counts = np.bincount(at, minlength=board.slices)
        low, high = self._band(stage)
        found = residuals(
            blocks.level[stage, chosen],
            blocks.count[chosen],
            before,
            blocks.mean[stage, chosen],
            self._common_before(stage, chosen) / np.maximum(before, 1),
            usual=usual.mean[at],
            between=np.where(blocks.older[chosen], _ANY_LEVEL, usual.between[at]),
            within=usual.within[at],
            length=usual.length[at],
            low=low[at],
            high=high[at],
        )
        shared = common_level(board.chain[:, stage], found, at, low, high)
        board.chain[:, stage] = shared.chain
        self.common_level[stage, chosen] = shared.mean[at]
        said = np.zeros((board.slices, len(self.aims[stage]), len(FACTORS)))
        charts = CHARTS_OF[stage]
        for i, (chart, aim) in enumerate(
            zip(range(charts.start, charts.stop), self.aims[stage], strict=True)
        ):
            sign, above = aim.direction.sign, aim.direction is Direction.OVER
            edge, of_edge = (high, shared.high_edge) if above else (low, shared.low_edge)
            begins = np.maximum(board.clean[at, chart], blocks.first[chosen])
            since = np.clip(second - begins, 0, before)
            of_tracks = log_ratios(found, sign, edge[at], since)
            np.add.at(said[:, i], at, of_tracks)
            said[counts > 0, i] += of_edge[counts > 0, None]

            off = sign * (blocks.level[stage, chosen] - usual.calibrated[at])
            far = off > 2 * math.log(aim.tolerance) + _FAR
            here = chosen[far | (of_tracks.max(axis=1) > _SPEAKS)]
            seconds = np.full(here.size, second)
            self.supporters[chart].add(blocks.slices[here], blocks.track[here], seconds)
        board.add_blocks(charts, hours * counts / counts.sum(), said, second)

    def _band(self, stage: Stage) -> tuple[FloatArray, FloatArray]:
        """Finds both ends of the band, lower first, (P,) each: ln of the variance over usual."""
        ends = {
            aim.direction: aim.direction.sign * 2 * math.log(aim.tolerance)
            + np.log(self.usual[stage].anchor(aim.direction))
            for aim in self.aims[stage]
        }
        return ends[Direction.UNDER], ends[Direction.OVER]

    def _common_before(self, stage: Stage, chosen: IntArray) -> FloatArray:
        """Sums the common levels of earlier seconds by track, this chunk's included; (m,)."""
        found: FloatArray = self.blocks.common_total[stage, chosen]
        if chosen.size == self.blocks.m:
            # All blocks of the chunk end now, as in every portion of the watch: none came before.
            return found
        lives = self.blocks.lives
        return found + np.bincount(lives, self.common_level[stage])[lives[chosen]]
