"""At most one object for each detection and one detection for each object."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from monitor.calibration.space import IntArray
from monitor.calibration.truth_matching.placed import Pairs

# Objects times detections that hang together, above which the nearest pairs are taken one after
# the other: the best assignment of so many takes 0.1 s, and of all a message can hold, minutes.
MOST_TOGETHER = 1 << 18
# So few are solved together sooner than they are told apart.
_ONE_PART = 1 << 12


def assigned(pairs: Pairs) -> IntArray:
    """Positions of the chosen pairs: as many as there can be, then the least sum of distances.

    So a pair that is left out, or was beyond the gate, never takes the place of one within.
    Ascending. What does not hang together, over whatever pairs, is assigned apart.
    """
    if pairs.distance.size == 0:
        return np.zeros(0, np.int64)
    objects, detections = pairs.object, pairs.detection
    # Whoever has no other choice need not be argued about.
    lone = (np.bincount(objects)[objects] == 1) & (np.bincount(detections)[detections] == 1)
    chosen = [np.flatnonzero(lone)]
    contested = np.flatnonzero(~lone)
    if contested.size:
        for one in _parts(pairs, contested):
            chosen.append(one[_of_one_part(pairs.take(one))])
    return np.sort(np.concatenate(chosen))


def _parts(pairs: Pairs, contested: IntArray) -> list[IntArray]:
    """Positions of these pairs, those that hang together by shared objects or detections."""
    some = pairs.take(contested)
    rows, row = np.unique(some.object, return_inverse=True)
    columns, column = np.unique(some.detection, return_inverse=True)
    if rows.size * columns.size <= _ONE_PART:
        return [contested]
    size = rows.size + columns.size
    ones = np.ones(row.size, np.int8)
    graph = coo_array((ones, (row, column + rows.size)), shape=(size, size))
    part = connected_components(graph, directed=False)[1][row]
    order = np.argsort(part, kind="stable")
    return np.split(contested[order], np.flatnonzero(np.diff(part[order])) + 1)


def _of_one_part(pairs: Pairs) -> IntArray:
    rows, row = np.unique(pairs.object, return_inverse=True)
    columns, column = np.unique(pairs.detection, return_inverse=True)
    shape = (rows.size, columns.size)
    if rows.size * columns.size > MOST_TOGETHER:
        return _nearest_first(pairs)
    # A forbidden pair costs more than all allowed ones together, so that none of these is left
    # out for a smaller sum.
    farthest = float(pairs.distance.max())
    forbidden = farthest * (min(shape) + 1) if farthest > 0 else 1.0
    matrix = np.full(shape, forbidden)
    matrix[row, column] = pairs.distance
    position = np.full(shape, -1)
    position[row, column] = np.arange(row.size)
    found: IntArray = position[linear_sum_assignment(matrix)]
    return found[found >= 0]


def _nearest_first(pairs: Pairs) -> IntArray:
    """Each pair in order of distance, where neither side is taken yet."""
    objects, detections = set[int](), set[int]()
    chosen = []
    for i in np.lexsort((pairs.detection, pairs.object, pairs.distance)).tolist():
        of, detection = int(pairs.object[i]), int(pairs.detection[i])
        if of not in objects and detection not in detections:
            objects.add(of)
            detections.add(detection)
            chosen.append(i)
    return np.array(chosen, np.int64)
