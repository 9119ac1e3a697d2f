"""The pairs of detections and objects that are near enough to belong together."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import BoolArray, FloatArray, IntArray
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
        if rank.shape[1] > NEAREST:
            limit = np.partition(rank, NEAREST - 1, axis=1)[:, NEAREST - 1 : NEAREST]
            rank[(rank > limit) | (_up_to_each(rank, limit) > NEAREST)] = np.inf
        of, detection = np.nonzero(np.isfinite(rank))
        exact = distance.of_pairs(part.take(of), detections.take(detection))
        found.append(Pairs(detection, of + begin, exact).take(np.flatnonzero(exact <= gate)))
    return Pairs(
        np.concatenate([pairs.detection for pairs in found]),
        np.concatenate([pairs.object for pairs in found]),
        np.concatenate([pairs.distance for pairs in found]),
    )


def _up_to_each(rank: FloatArray, limit: FloatArray) -> IntArray:
    """(m, n) where the rank is at the limit of its row: how many of that are nearer, or as near
    and no later; else 0. A heap of boxes may be of one rank.
    """
    nearer = np.count_nonzero(rank < limit, axis=1)[:, None]
    tied = rank == limit
    count: IntArray = np.where(tied, nearer + np.cumsum(tied, axis=1), 0)
    return count


def any_within(distance: Distance, objects: Placed, detections: Placed, gate: float) -> BoolArray:
    """(n,) whether any of the objects is within the gate of each detection."""
    found = np.zeros(detections.n, bool)
    # The other way round: each detection asks for its own nearest, and none is crowded out.
    found[pairs_within(distance, detections, objects, gate).object] = True
    return found
