"""What is usual of a slice at one stage, as it is being learned: sums of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.clusters import LARGEST, ClusterArray
from monitor.calibration.drift.reference import Origin, Reference, shipped
from monitor.calibration.drift.reference_correlation import FrameSums, TrackSums
from monitor.calibration.drift.reference_histogram import NeesHistogram
from monitor.calibration.drift.reference_levels import LevelSums
from monitor.calibration.space import FloatArray, IntArray

# Rows that are taken in together: a call costs as much as some hundred of them.
AT_ONCE = 512


@dataclass(slots=True)
class ReferenceLearner:
    """Of one slice at one stage; K degrees of freedom.

    detections  so far
    total       Σ min(e/K, 64) over those that are taken in
    """

    k: int
    detections: int = 0
    total: float = 0.0
    histogram: NeesHistogram = field(default_factory=NeesHistogram)
    along_tracks: TrackSums = field(default_factory=TrackSums)
    along_frames: FrameSums = field(default_factory=FrameSums)
    seconds: LevelSums = field(default_factory=LevelSums)
    _waiting: list[tuple[FloatArray, ClusterArray, IntArray]] = field(default_factory=list)
    _rows_waiting: int = 0

    @property
    def tracks(self) -> int:
        """That have had a detection with truth."""
        self.take_in()
        return self.along_tracks.tracks

    @property
    def tracked(self) -> bool:
        """Whether the track of any detection was known."""
        return self.tracks > 0

    def waiting(self) -> tuple[FloatArray, ClusterArray, IntArray]:
        """What is not taken in yet: NEES, track and frame of rows, as `add` has them."""
        nothing = np.zeros(0), np.zeros(0, np.uint64), np.zeros(0, np.int64)
        nees, track, frame = (
            np.concatenate(part) for part in zip(nothing, *self._waiting, strict=True)
        )
        return nees, track, frame

    def wait(self, nees: FloatArray, track: ClusterArray, frame: IntArray) -> None:
        """Rows that were added before: fewer than AT_ONCE."""
        self._waiting.append((nees, track, frame))
        self._rows_waiting += int(nees.size)

    def add(self, nees: FloatArray, track: ClusterArray, frame: IntArray) -> None:
        """n detections, in the order in which their truth came. The arrays are kept for a while.

        nees   (n,) ≥ 0, finite
        track  (n,) ALONE where unknown
        frame  (n,) ascending, over all calls: whole frames, none of which has come before
        """
        self.detections += int(nees.size)
        self._waiting.append((nees, track, frame))
        self._rows_waiting += int(nees.size)
        if self._rows_waiting >= AT_ONCE:
            self.take_in()

    def take_in(self) -> None:
        """Add what waits to the sums."""
        if not self._waiting:
            return
        nees, track, frame = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._rows_waiting = 0
        x = np.minimum(nees / self.k, LARGEST)
        self.total += float(x.sum())
        self.histogram.add(nees)
        self.along_tracks.add(x, track)
        self.along_frames.add(x, frame)

    def add_blocks(
        self, level: FloatArray, count: IntArray, before: IntArray, mean: FloatArray
    ) -> None:
        """m seconds of tracks, each track from its first on; (m,) each, see Blocks."""
        self.seconds.add(level, count, before, mean)

    def learned(self, origin: Origin, shortest_reference: int) -> Reference:
        """What is usual, as far as it is known; what is not is as shipped.

        nees_ratio is cut as in clusters.py: one gross outlier is one error.

        shortest_reference  tracks, of which fewer teach nothing of how tracks differ: levels is
                            then None
        """
        self.take_in()
        assumed = shipped(self.k)
        tempering, frames = self.along_tracks.tempering(), self.along_frames.tempering()
        return Reference(
            k=self.k,
            origin=origin,
            quantiles=self.histogram.quantiles(self.k),
            detections=self.detections,
            nees_ratio=self.total / self.detections if self.detections else assumed.nees_ratio,
            tempering=assumed.tempering if tempering is None else tempering,
            frame_tempering=assumed.frame_tempering if frames is None else frames,
            levels=self.seconds.levels(shortest_reference),
        )
