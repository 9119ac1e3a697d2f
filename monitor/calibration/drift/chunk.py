"""Some frames on their way through the evidence of the slices they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.calibration.drift.charts import CHARTS, Stage
from monitor.calibration.drift.driving import DrivingClock
from monitor.calibration.drift.evidence import Evidence, Stretch
from monitor.calibration.drift.increments import BETS, Aim
from monitor.calibration.drift.observed import (
    CHARTS_OF,
    SecondsOver,
    add_seconds,
    add_tracks,
    likelihood_of_frames,
    said_of,
    seconds_over,
)
from monitor.calibration.drift.supporters import Supporters
from monitor.calibration.drift.track_means import Finished
from monitor.calibration.drift.usual import UsualArrays
from monitor.calibration.drift.watched import Blocks, WatchedRows
from monitor.calibration.space import FloatArray, IntArray

HOUR = 3600.0
# s of driving in a stretch: evidence settles with e to the seconds / 30, which overflows at 21,000.
_LONGEST = 300.0
# No track has more of them.
_MOST_DETECTIONS = 1e9


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """F frames of one space, and the evidence of the P slices that anything is said of.

    place, block_place, finished_place
              of rows, blocks and whole tracks among the slices
    finished  whole tracks, where these alone say anything; None: detections and seconds do
    usual     what is usual of the slices, by stage
    board     changed by stretches(), and so is the clock
    """

    k: int
    rows: WatchedRows
    place: IntArray
    blocks: Blocks
    block_place: IntArray
    finished: Finished | None
    finished_place: IntArray
    usual: Mapping[Stage, UsualArrays]
    aims: Mapping[Stage, tuple[Aim, ...]]
    board: Evidence
    clock: DrivingClock
    supporters: Supporters

    def stretches(self, most: Callable[[], float]) -> Iterator[Stretch]:
        """Take in frame after frame, up to one after which there may be an alarm, or to the last.

        The board may be changed after each stretch.

        most  M over all slices of the board, that is no alarm for sure
        """
        rows, board, weights = self.rows, self.board, self.board.weights
        frames, slices, charts = rows.stamp_ns.size, board.slices, len(CHARTS)
        stages = [Stage.RECALIBRATED, *([Stage.RAW] if rows.changed.any() else [])]
        # Where only whole tracks say anything, detections are counted.
        silent = self.finished is not None
        observed = {} if silent else {stage: self._observed(stage) for stage in stages}
        said = np.zeros((frames, slices, charts, 3))
        for stage in stages:
            found = said_of(self.k, rows, self.place, slices, stage)
            heeded = rows.changed[:, None, None] if stage is Stage.RAW else True
            said[:, :, CHARTS_OF[stage]] = (found * heeded)[:, :, None]
        seconds = self._seconds_driven()
        counts = said[:, :, CHARTS_OF[Stage.RECALIBRATED].start, 0]
        # Every detection of a frame has an equal part in its time.
        hours = counts / counts.sum(axis=1, keepdims=True) * (seconds / HOUR)[:, None]
        evidence = np.empty((frames, slices, charts))
        first = np.zeros((frames, slices, charts), np.int64)
        over = seconds_over(self.blocks)[::-1]
        begin, enough, driven = 0, most(), 0.0
        for frame, (source, changed) in enumerate(
            zip(rows.source.tolist(), rows.changed.tolist(), strict=True)
        ):
            self.clock.wait(source, float(seconds[frame]))
            for stage in () if silent else stages[: 1 + changed]:
                board.add_detections(CHARTS_OF[stage], hours[frame], observed[stage][frame])
            while over and over[-1].frame == frame:
                self._seconds(over.pop(), first[frame])
            last = frame == frames - 1
            if last:
                self._whole_tracks()
            evidence[frame] = board.by_chart(weights)
            driven += seconds[frame]
            if last or driven > _LONGEST or evidence[frame].sum() >= enough:
                part = slice(begin, frame + 1)
                stretch = Stretch(
                    rows.stamp_ns[part],
                    seconds[part],
                    hours[part],
                    evidence[part],
                    said[part],
                    first[part],
                )
                board.settle(stretch)
                yield stretch
                begin, enough, driven = frame + 1, most(), 0.0

    def _seconds_driven(self) -> FloatArray:
        """(F,) that each frame adds."""
        stamps = zip(self.rows.source.tolist(), self.rows.stamp_ns.tolist(), strict=True)
        return np.array([self.clock.drive(source, stamp) for source, stamp in stamps])

    def _observed(self, stage: Stage) -> FloatArray:
        usual, aims = self.usual[stage], self.aims[stage]
        return likelihood_of_frames(self.k, self.rows, self.place, usual, stage, aims)

    def _whole_tracks(self) -> None:
        """So do whole tracks."""
        if self.finished is None:
            return
        for source in np.unique(self.finished.source).tolist():
            ours = self.finished.source == source
            log_mean, place = self.finished.log_mean[ours], self.finished_place[ours]
            by_chart = log_mean[:, :-1].reshape(-1, len(CHARTS), BETS)
            # The mean of what is 1 for a detection that a recalibrator has changed, else 0.
            changed = log_mean[:, -1] > np.log(1 / (2 * _MOST_DETECTIONS))
            hours = self.clock.waited(source) / HOUR
            add_tracks(self.board, hours, place, by_chart, Stage.RECALIBRATED)
            add_tracks(self.board, hours, place[changed], by_chart[changed], Stage.RAW)

    def _seconds(self, over: SecondsOver, first: IntArray) -> None:
        """Seconds of tracks stand for what was driven since the last ones of their source."""
        if self.finished is not None:
            return
        hours = self.clock.waited(over.source) / HOUR
        for stage in Stage:
            usual = self.usual[stage]
            heeded = usual.levels[self.block_place]
            if stage is Stage.RAW:
                heeded = heeded & self.blocks.changed
            add_seconds(
                self.board,
                hours,
                over,
                self.blocks,
                self.block_place,
                usual,
                stage,
                self.aims[stage],
                heeded,
                first,
                self.supporters,
            )
