"""Decides which detections and labelled objects of a frame belong together.

Pairs within the gate are assigned one to one, class by class. Detections that belong to no object
may be ignored, because of a lookalike or of a region that the labeller left out. How far a pair is
apart is measured in distances.py; labels and their accounts never appear here.
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
from monitor.frames.words import DistanceKind
from monitor.matching.distances import (
    NO_PAIRS,
    BoxOverlap,
    CentreDistance,
    Distance,
    MahalanobisDistance,
    MatchingSettings,
    Pairs,
    Placed,
)


@dataclass(frozen=True, eq=False, slots=True)
class ClassTable:
    """Relates the L classes of the labeller to the C classes of the detector.

    own     (L,) the detector's number of each class; −1 where the detector lacks it
    beside  (L, C) whether both classes differ, but look alike
    alike   (L + 1, C) whether they are the same or look alike; the last row, of any class, is true
    """

    own: IntArray
    beside: BoolArray
    alike: BoolArray


def class_table(
    labelled: Sequence[str],
    detected: Sequence[str],
    class_map: Mapping[str, str],
    neighbours: Mapping[str, Sequence[str]],
) -> ClassTable:
    """Relates two lists of class names.

    labelled    names of the labeller
    detected    names of the detector
    class_map   the labeller's name to the detector's, where they differ
    neighbours  the detector's name to the labeller's names of classes that look like it
    """
    place = {name: i for i, name in enumerate(detected)}
    own = np.array([place.get(class_map.get(name, name), -1) for name in labelled], np.int64)
    lookalikes = {name: frozenset(neighbours.get(name, ())) for name in detected}
    beside = np.array(
        [[name in lookalikes[other] for other in detected] for name in labelled], bool
    ).reshape(len(labelled), len(detected))
    same = np.flatnonzero(own >= 0)
    beside[same, own[same]] = False
    alike = np.concatenate([beside, np.ones((1, len(detected)), bool)])
    alike[same, own[same]] = True
    return ClassTable(own, beside, alike)


# Most detections that an object is compared with exactly: the nearest by rank. It bounds the cost
# of a crowded spot. With at most so many objects of a class, no match by centre depends on it: one
# of the nearest is always left for each object.
NEAREST = 64

# Most pairs that are ranked in one go: arrays of a few MB.
_BLOCK = 1 << 15


def pairs_within(distance: Distance, objects: Placed, detections: Placed, gate: float) -> Pairs:
    """Finds all pairs no further apart than the gate, at most NEAREST for each object.

    objects, detections  m and n of them, compared all with all
    """
    found = [NO_PAIRS]
    step = max(1, _BLOCK // max(1, detections.n))
    for begin in range(0, objects.n if detections.n else 0, step):
        part = objects.take(slice(begin, begin + step))
        rank = distance.rank(part, detections, gate)
        crowded = np.flatnonzero(np.count_nonzero(np.isfinite(rank), axis=1) > NEAREST)
        if crowded.size:
            rank[crowded] = _nearest(rank[crowded])
        of, detection = np.nonzero(np.isfinite(rank))
        exact = distance.of_pairs(part.take(of), detections.take(detection))
        found.append(Pairs(detection, of + begin, exact).take(exact <= gate))
    return Pairs.joined(found)


def _nearest(rank: FloatArray) -> FloatArray:
    """Makes all but the NEAREST of each row infinite, (m, n); of equal ranks the first stay."""
    limit = np.partition(rank, NEAREST - 1, axis=1)[:, NEAREST - 1 : NEAREST]
    tied = rank == limit
    room = NEAREST - np.count_nonzero(rank < limit, axis=1)[:, None]
    kept = (rank < limit) | (tied & (np.cumsum(tied, axis=1) <= room))
    return np.where(kept, rank, np.inf)


def any_within(distance: Distance, objects: Placed, detections: Placed, gate: float) -> BoolArray:
    """Tells which detections have any of the objects within the gate, (n,)."""
    found = np.zeros(detections.n, bool)
    # With the sides exchanged, each detection has NEAREST of its own: none is crowded out.
    found[pairs_within(distance, detections, objects, gate).object] = True
    return found


# Most objects times detections of one connected part that are assigned in the best way, which
# takes 0.1 s for so many, and minutes for all a message can hold. Beyond it, the nearest pairs are
# taken one after the other.
MOST_TOGETHER = 1 << 18

# Objects times detections up to which one assignment is quicker than a search for connected parts.
_ONE_PART = 1 << 12


def assigned(pairs: Pairs) -> IntArray:
    """Chooses as many pairs as there can be, and among these choices the least sum of distances.

    Parts that no pair connects are assigned one by one. Returns positions, ascending.
    """
    if pairs.distance.size == 0:
        return np.zeros(0, np.int64)
    objects, detections = pairs.object, pairs.detection
    # A pair without a rival on either side is chosen at once.
    lone = (np.bincount(objects)[objects] == 1) & (np.bincount(detections)[detections] == 1)
    chosen = [np.flatnonzero(lone)]
    contested = np.flatnonzero(~lone)
    if contested.size:
        for one in _parts(pairs, contested):
            chosen.append(one[_of_one_part(pairs.take(one))])
    return np.sort(np.concatenate(chosen))


def _parts(pairs: Pairs, contested: IntArray) -> list[IntArray]:
    """Splits positions of pairs into parts that share neither objects nor detections."""
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
    # A forbidden pair costs more than all allowed pairs together, so that no allowed pair is left
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
    """Takes pairs in order of distance, where neither side is taken yet; returns positions."""
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
    """Box in space, in which detections of some classes are neither right nor wrong.

    columns       positions of the d bounded dimensions
    lower, upper  (d,) bounds, which belong to the box; infinite ones for lengths only
    classes       (C,) whose detections are ignored
    """

    columns: tuple[int, ...]
    lower: FloatArray
    upper: FloatArray
    classes: BoolArray

    def contains(self, mean: FloatArray, space: Space) -> BoolArray:
        """Tells which means (n, K) are inside, (n,); angles go the shortest way from the middle."""
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
    """Distance beyond which an object and a detection of one stream do not match.

    of_class  (C,) gate for detections of each class, in the unit of the distance
    near      share of the gate beyond which a match lies near the gate
    """

    distance: Distance
    of_class: FloatArray
    near: float

    def nears(self, distance: FloatArray, of: IntArray) -> BoolArray:
        """Tells which matches of detections of classes `of`, (p,), lie near the gate, (p,)."""
        return distance > self.near * self.of_class[of]


def matches(
    objects: Placed, object_class: IntArray, detections: Placed, of: IntArray, gate: Gate
) -> Pairs:
    """Finds the pairs that belong together, class by class, as `assigned` chooses them.

    object_class, of  (m,) and (n,) the detector's class of each; objects of −1 match nothing
    returns           detections ascending
    """
    found = [NO_PAIRS]
    for one in np.intersect1d(object_class, of).tolist():
        mine, theirs = np.flatnonzero(object_class == one), np.flatnonzero(of == one)
        width = float(gate.of_class[one])
        near = pairs_within(gate.distance, objects.take(mine), detections.take(theirs), width)
        chosen = near.take(assigned(near))
        found.append(Pairs(theirs[chosen.detection], mine[chosen.object], chosen.distance))
    pairs = Pairs.joined(found)
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
    """Tells which detections are within the gate of an object, or in a region, that ignores their
    class, (n,).

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
    """Makes the gate of a stream from [matching]; a notice if the header lacks its dimensions."""
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
    distances: dict[DistanceKind, Distance] = {
        DistanceKind.CENTRE: CentreDistance(space, columns),
        DistanceKind.MAHALANOBIS: MahalanobisDistance(space, columns),
        DistanceKind.BEV_IOU: BoxOverlap(columns, upright=False),
        DistanceKind.IMAGE_IOU: BoxOverlap(columns, upright=True),
    }
    return Gate(distances[config.distance], widths, config.near_gate)
