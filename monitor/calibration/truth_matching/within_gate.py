"""The pairs of detections and objects that are near enough to belong together."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import BoolArray, FloatArray
from monitor.calibration.truth_matching.distances import Distance
from monitor.calibration.truth_matching.placed import Pairs, Placed

# Detections that an object is compared with exactly, at most: the nearest by rank. What one crowded
# spot costs is bounded by it. Up to so many objects of a class, no centre match depends on it: one
# of the nearest is always left for each.
NEAREST = 64
# Pairs that are looked at in one go: arrays of a few MB.
_BLOCK = 1 << 15


def pairs_within(distance: Distance, objects: Placed, detections: Placed, gate: float) -> Pairs:
    """All pairs no further apart than the gate; of each object at most NEAREST.

    objects, detections  m and n of them
    """
    nothing = np.zeros(0, np.int64)
    found = [Pairs(nothing, nothing, np.zeros(0))]
    step = max(1, _BLOCK // max(1, detections.n))
    for begin in range(0, objects.n if detections.n else 0, step):
        part = objects.take(slice(begin, begin + step))
        rank = distance.rank(part, detections, gate)
        crowded = np.flatnonzero(np.count_nonzero(np.isfinite(rank), axis=1) > NEAREST)
        if crowded.size:
            rank[crowded] = _nearest(rank[crowded])
        of, detection = np.nonzero(np.isfinite(rank))
        exact = distance.of_pairs(part.take(of), detections.take(detection))
        found.append(Pairs(detection, of + begin, exact).take(np.flatnonzero(exact <= gate)))
    return Pairs(
        np.concatenate([pairs.detection for pairs in found]),
        np.concatenate([pairs.object for pairs in found]),
        np.concatenate([pairs.distance for pairs in found]),
    )


def _nearest(rank: FloatArray) -> FloatArray:
    """(m, n) with all but the NEAREST of each row infinite; of equal ones the first stay."""
    limit = np.partition(rank, NEAREST - 1, axis=1)[:, NEAREST - 1 : NEAREST]
    tied = rank == limit
    room = NEAREST - np.count_nonzero(rank < limit, axis=1)[:, None]
    kept = (rank < limit) | (tied & (np.cumsum(tied, axis=1) <= room))
    return np.where(kept, rank, np.inf)


def any_within(distance: Distance, objects: Placed, detections: Placed, gate: float) -> BoolArray:
    """(n,) whether any of the objects is within the gate of each detection."""
    found = np.zeros(detections.n, bool)
    # The other way round: each detection asks for its own nearest, and none is crowded out.
    found[pairs_within(distance, detections, objects, gate).object] = True
    return found
