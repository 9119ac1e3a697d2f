"""The labeller's classes and the detector's: which of them are the same, and which look alike.

The pairs of detections and objects that are near enough to belong together.

At most one object for each detection and one detection for each object.

Parts of space where nobody looked: boxes along the dimensions, of one class or of all.

The objects of one frame and its detections: which belong together, and which detections that
belong to none are neither right nor wrong.

What is near enough on a stream: the [matching] section in the dimensions of its header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from monitor.frames.detections import Reason
from monitor.frames.frame import Header
from monitor.frames.reasons import Notice
from monitor.frames.space import BoolArray, DimensionKind, FloatArray, IntArray, Space
from monitor.matching.distances import (
    CentreDistance,
    Distance,
    DistanceKind,
    MahalanobisDistance,
    MatchingSettings,
    Pairs,
    Placed,
    RotatedOverlap,
    UprightOverlap,
)


@dataclass(frozen=True, eq=False, slots=True)
class ClassTable:
    """L classes of the labeller, C of the detector.

    own     (L,) the detector's class; −1 where it has none
    beside  (L, C) whether the labeller's class looks like the detector's, and is another
    """

    own: IntArray
    beside: BoolArray


def class_table(
    labelled: Sequence[str],
    detected: Sequence[str],
    class_map: Mapping[str, str],
    neighbours: Mapping[str, Sequence[str]],
) -> ClassTable:
    """Look up names.

    labelled    the labeller's
    detected    the detector's
    class_map   the labeller's name and the detector's, where they differ
    neighbours  the detector's name, and names of the labeller that look like it
    """
    place = {name: i for i, name in enumerate(detected)}
    own = np.array([place.get(class_map.get(name, name), -1) for name in labelled], np.int64)
    alike = {name: frozenset(neighbours.get(name, ())) for name in detected}
    beside = np.array(
        [[name in alike[other] for other in detected] for name in labelled], bool
    ).reshape(len(labelled), len(detected))
    same = np.flatnonzero(own >= 0)
    beside[same, own[same]] = False
    return ClassTable(own, beside)


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


@dataclass(frozen=True, eq=False, slots=True)
class IgnoreRegion:
    """A box: a mean is inside where each of its dimensions is between the bounds.

    columns       positions of the d dimensions
    lower, upper  (d,) either may be infinite, but of angles
    classes       (C,) whose detections it ignores
    """

    columns: tuple[int, ...]
    lower: FloatArray
    upper: FloatArray
    classes: BoolArray

    def contains(self, mean: FloatArray, space: Space) -> BoolArray:
        """(n,) of means (n, K); angles the shortest way from the middle of the bounds."""
        inside = np.ones(mean.shape[0], bool)
        for column, low, high in zip(self.columns, self.lower, self.upper, strict=True):
            value = mean[:, column]
            if space.dimensions[column].kind is DimensionKind.LENGTH:
                inside &= (low <= value) & (value <= high)
            else:
                chosen = Space((space.dimensions[column],))
                off = chosen.error(value[:, None], np.array([[(low + high) / 2]]))[:, 0]
                inside &= np.abs(off) <= (high - low) / 2
        return inside


@dataclass(frozen=True, slots=True)
class Gate:
    """What is near enough, and what of that is nearly too far.

    of_class  (C,) for detections of each class
    near      share of the gate; a match beyond it lies near the gate
    """

    distance: Distance
    of_class: FloatArray
    near: float

    def nears(self, distance: FloatArray, of: IntArray) -> BoolArray:
        """(p,) which matches of detections of these classes lie near the gate."""
        beyond: BoolArray = distance > self.near * self.of_class[of]
        return beyond


def matches(
    objects: Placed, object_class: IntArray, detections: Placed, of: IntArray, gate: Gate
) -> Pairs:
    """The pairs that belong together, detections ascending: class by class as many as there can
    be within the gate, then those of the least sum of distances.

    object_class, of  (m,) and (n,) the detector's class of each; objects of −1 match nothing
    """
    found = []
    for one in np.intersect1d(object_class, of).tolist():
        mine, theirs = np.flatnonzero(object_class == one), np.flatnonzero(of == one)
        width = float(gate.of_class[one])
        near = pairs_within(gate.distance, objects.take(mine), detections.take(theirs), width)
        chosen = near.take(assigned(near))
        found.append(Pairs(theirs[chosen.detection], mine[chosen.object], chosen.distance))
    if not found:
        nothing = np.zeros(0, np.int64)
        return Pairs(nothing, nothing, np.zeros(0))
    pairs = Pairs(
        np.concatenate([part.detection for part in found]),
        np.concatenate([part.object for part in found]),
        np.concatenate([part.distance for part in found]),
    )
    return pairs.take(np.argsort(pairs.detection, kind="stable"))


def ignored_detections(
    objects: Placed,
    ignores: BoolArray,
    regions: Sequence[IgnoreRegion],
    detections: Placed,
    of: IntArray,
    gate: Gate,
    space: Space,
) -> BoolArray:
    """(n,) within the gate of an object that ignores their class, or inside a region that does.

    ignores     (m, C) the detector's classes that each object makes neither right nor wrong
    detections  n that belong to no object; of (n,) their classes
    """
    found = np.zeros(detections.n, bool)
    for one in np.unique(of).tolist():
        rows, which = np.flatnonzero(of == one), np.flatnonzero(ignores[:, one])
        width = float(gate.of_class[one])
        found[rows] = any_within(gate.distance, objects.take(which), detections.take(rows), width)
    for region in regions:
        found |= region.classes[of] & region.contains(detections.mean, space)
    return found


def stream_gate(config: MatchingSettings, header: Header) -> Gate | Notice:
    """The gate, or why nothing of the stream can be measured so."""
    space, names = header.space, config.box
    if config.distance in (DistanceKind.CENTRE, DistanceKind.MAHALANOBIS):
        names = tuple(name for name in config.dimensions if name in space.names)
    lacking = [name for name in names if name not in space.names]
    if lacking or not names:
        key = "box" if lacking else "dimensions"
        message = (
            f"the stream has no dimension {', '.join(lacking or config.dimensions)}: name in "
            f"[matching] {key} some of {', '.join(space.names)}."
        )
        return Notice(Reason.GROUND_TRUTH_INVALID, "objects", message)
    columns = tuple(space.names.index(name) for name in names)
    widths = np.array([config.gate_of(name) for name in header.classes])
    match config.distance:
        case DistanceKind.CENTRE:
            return Gate(CentreDistance(space, columns), widths, config.near_gate)
        case DistanceKind.MAHALANOBIS:
            return Gate(MahalanobisDistance(space, columns), widths, config.near_gate)
        case DistanceKind.BEV_IOU:
            return Gate(RotatedOverlap(columns), widths, config.near_gate)
        case DistanceKind.IMAGE_IOU:
            return Gate(UprightOverlap(columns), widths, config.near_gate)
