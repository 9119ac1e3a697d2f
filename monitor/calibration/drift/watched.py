"""What is watched: detections with their truth, frame by frame, and seconds of tracks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.clusters import ClusterArray, cluster_id
from monitor.calibration.space import BoolArray, FloatArray, IntArray

# Event time of a block.
BLOCK_NS = 1_000_000_000


@dataclass(frozen=True, eq=False, slots=True)
class WatchedRows:
    """n detections with truth of F frames, in the order in which their truth came.

    slices    (n,) slice index
    nees      (2, n) of the joint block, by Stage; ≥ 0, finite
    track     (n,) the track in its slice, unique over all sources and slices; ALONE where unknown
    frame     (n,) ascending, 0 … F − 1
    stamp_ns  (F,) event time
    source    (F,) tells apart whose time it is
    changed   (F,) whether a recalibrator has changed them
    """

    slices: IntArray
    nees: FloatArray
    track: ClusterArray
    frame: IntArray
    stamp_ns: IntArray
    source: IntArray
    changed: BoolArray

    @property
    def n(self) -> int:
        """How many."""
        return int(self.slices.size)


@dataclass(frozen=True, eq=False, slots=True)
class Blocks:
    """m seconds of tracks that are over, those of one source and second side by side.

    frame   (m,) of those it was made of, by which it is over
    source  (m,)
    second  (m,) number of the second in event time: stamp_ns // BLOCK_NS
    slices  (m,)
    track   (m,) the track in its slice
    level   (2, m) y, mean ln NEES over its detections, by Stage
    count   (m,) its detections
    changed (m,) whether a recalibrator has changed any of them
    before  (m,) blocks of the same track in the same slice before it
    mean    (2, m) of their y; 0 where there are none
    first   (m,) second of the first of them; its own where there are none
    common_total
            (2, m) Σ of the common levels of their seconds, by Stage
    """

    frame: IntArray
    source: IntArray
    second: IntArray
    slices: IntArray
    track: ClusterArray
    level: FloatArray
    count: IntArray
    changed: BoolArray
    before: IntArray
    mean: FloatArray
    first: IntArray
    common_total: FloatArray

    @property
    def lives(self) -> IntArray:
        """Numbers the track of each block, (m,); a key after a pause is another track."""
        keys = cluster_id((self.track, self.first))
        numbers: IntArray = np.unique(keys, return_inverse=True)[1]
        return numbers

    @property
    def m(self) -> int:
        """How many."""
        return int(self.slices.size)
