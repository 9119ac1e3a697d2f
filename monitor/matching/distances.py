"""Distances between detections and labelled objects, both at the time of the frame.

A distance compares means, boxes or whitened errors. Each has a quick side, `rank`, which rules
out most pairs of a frame, and an exact one, `of_pairs`, for the rest. Which pairs belong together
is decided in gate.py.

An object is interpolated between the two samples of its track around the frame, and never
extrapolated. Samples of one object id are one label. A sample without a stamp says where the
object is at the time of the frame, and takes precedence over all stamped samples of its id.
Detections never appear here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from monitor.frames.cholesky import add_up, factorise, whiten
from monitor.frames.detections import IdArray
from monitor.frames.frame import ReceivedObjects
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray, Space
from monitor.frames.words import DistanceKind


@dataclass(frozen=True, eq=False, slots=True)
class ObjectsAtTime:
    """Lists the o objects, of the u labels of a message, that can be placed at the frame's time.

    told       u
    label      (o,) number of the object's label, ascending
    sample     (o,) the sample that is used; of two the nearer one
    other      (o,) the sample on the other side of the frame's time; `sample` again without one
    share      (o,) weight of `other`: at most ½, 0 where one sample is used as it is
    duplicate  labels that repeat the position of an object
    untimely   labels with usable samples, all of them too far from the frame's time
    first      the first sample of the untimely labels; −1 without any
    """

    told: int
    label: IntArray
    sample: IntArray
    other: IntArray
    share: FloatArray
    duplicate: int
    untimely: int
    first: int


def samples_told(samples: ReceivedObjects) -> tuple[int, IntArray]:
    """Counts the labels that the samples make up, and numbers the label of each sample.

    returns  u; and (m,) in 0 … u − 1, −1 for a stamped sample of an object that also has a
             sample without a stamp
    """
    m = samples.id.size
    # The position of the first sample with the same id; its own for a sample without an id.
    same = np.arange(m)
    named = np.flatnonzero(samples.has_id)
    _, first, inverse = np.unique(samples.id[named], return_index=True, return_inverse=True)
    same[named] = named[first[inverse]]
    at_frame = ~samples.has_stamp
    told_at_frame = np.zeros(m, bool)
    told_at_frame[same[at_frame]] = True
    own = np.where(at_frame, np.arange(m), same)
    passed = samples.has_stamp & told_at_frame[same]
    label = np.full(m, -1)
    kept = np.flatnonzero(~passed)
    numbers, label[kept] = np.unique(own[kept], return_inverse=True)
    return int(numbers.size), label


def objects_at_time(
    samples: ReceivedObjects,
    usable: BoolArray,
    stamp_ns: int | None,
    max_gap_ns: int,
    max_offset_ns: int,
) -> ObjectsAtTime:
    """Finds the samples that place each object at the time of the frame.

    usable         (m,) samples that can be placed at all
    stamp_ns       of the frame; without it, only samples without a stamp can be used
    max_gap_ns     most between two samples that are interpolated
    max_offset_ns  most to the nearest sample, for it to be used as it is where there are no two
                   around the frame
    """
    told, label = samples_told(samples)
    kept = usable & (label >= 0)
    # Of the samples of one id without a stamp, the first one counts.
    named = np.flatnonzero(usable & ~samples.has_stamp & samples.has_id)
    repeated = np.delete(named, np.unique(samples.id[named], return_index=True)[1])
    kept[repeated] = False
    stamped = np.flatnonzero(kept & samples.has_stamp)
    if stamp_ns is None:
        kept[stamped] = False
    # A sample without a stamp is one at the time of the frame.
    now = stamp_ns or 0
    stamp = np.where(samples.has_stamp, samples.stamp_ns, now)
    sample, other, share = _around(
        stamp, np.flatnonzero(kept), label, now, max_gap_ns, max_offset_ns
    )
    late = np.setdiff1d(label[stamped], label[sample])
    return ObjectsAtTime(
        told=told,
        label=label[sample],
        sample=sample,
        other=other,
        share=share,
        duplicate=int(repeated.size),
        untimely=int(late.size),
        first=int(stamped[np.isin(label[stamped], late)][0]) if late.size else -1,
    )


def _around(
    stamp: IntArray,
    kept: IntArray,
    label: IntArray,
    stamp_ns: int,
    max_gap_ns: int,
    max_offset_ns: int,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns sample, other and share of the labels of kept samples that can be placed."""
    order = kept[np.lexsort((kept, stamp[kept], label[kept]))]
    if order.size == 0:
        return order, order, np.zeros(0)
    stamp, of = stamp[order], label[order]
    begin = np.concatenate([[0], np.flatnonzero(np.diff(of)) + 1])
    # `before` is the last sample at or before the frame, `after` the first one at or after it.
    # Among samples with equal stamps, the first that came is used.
    until = np.add.reduceat((stamp < stamp_ns).astype(np.int64), begin)
    exact = np.logical_or.reduceat(stamp == stamp_ns, begin)
    size = np.diff(begin, append=order.size)
    after = begin + np.minimum(until, size - 1)
    before = np.where(exact, after, begin + np.maximum(until - 1, 0))
    before = np.searchsorted(_ranks(of, stamp), _ranks(of, stamp)[before])
    ahead, behind = _apart_ns(stamp[before], stamp_ns), _apart_ns(stamp[after], stamp_ns)
    both = exact | ((until > 0) & (until < size))
    # As floats: the sum of two intervals may be beyond 64 bits.
    gap = ahead.astype(np.float64) + behind.astype(np.float64)
    between = both & (gap <= max_gap_ns)
    nearer = np.where(ahead <= behind, before, after)
    distance = np.minimum(ahead, behind).astype(np.float64)
    usable = between | (distance <= max_offset_ns)
    other = np.where(between, before + after - nearer, nearer)
    share = np.divide(distance, gap, out=np.zeros(gap.size), where=between & (gap > 0))
    return order[nearer[usable]], order[other[usable]], share[usable]


def _ranks(of: IntArray, stamp: IntArray) -> IntArray:
    """Numbers sorted samples, (n,); samples of equal label and stamp share a number."""
    new = (np.diff(of, prepend=of[0]) != 0) | (np.diff(stamp, prepend=stamp[0]) != 0)
    return np.cumsum(new)


def _apart_ns(stamp: IntArray, stamp_ns: int) -> IdArray:
    """Computes |stamp − stamp_ns|, which may need 64 bits without a sign."""
    frame = np.int64(stamp_ns)
    with np.errstate(over="ignore"):
        later = (stamp - frame).view(np.uint64)
        earlier = (frame - stamp).view(np.uint64)
    return np.where(stamp >= frame, later, earlier)


def placed_at_time(placed: Placed, objects: ObjectsAtTime, space: Space) -> Placed:
    """Interpolates each object to the time of the frame; angles go the shortest way.

    Σ is that of a weighted sum of two independent samples: (1 − s)² Σ_sample + s² Σ_other.

    placed  all samples of the message
    """
    near, far = placed.take(objects.sample), placed.take(objects.other)
    share = objects.share
    mean = near.mean + share[:, None] * space.error(far.mean, near.mean)
    if near.covariance is None or far.covariance is None:
        return Placed(mean)
    weights = ((1 - share) ** 2)[:, None, None], (share**2)[:, None, None]
    return Placed(mean, weights[0] * near.covariance + weights[1] * far.covariance)


class MatchingSettings(Protocol):
    """Reads the [matching] section; docs/labels.md says what each key means."""

    distance: DistanceKind
    dimensions: tuple[str, ...]
    box: tuple[str, ...]
    near_gate: float
    class_map: dict[str, str]
    neighbours: dict[str, tuple[str, ...]]
    max_gap_seconds: float
    max_offset_seconds: float

    def gate_of(self, name: str) -> float:
        """Returns the gate of one class, in the unit of the distance."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Placed(Columns):
    """Means of n detections or objects in one space, with their covariances.

    mean        (n, K)
    covariance  (n, K, K); None where the means are exact
    """

    mean: FloatArray
    covariance: FloatArray | None = None

    @property
    def n(self) -> int:
        """Counts the means."""
        return int(self.mean.shape[0])


@dataclass(frozen=True, eq=False, slots=True)
class Pairs(Columns):
    """Lists p pairs of a detection and an object, each pair once.

    detection, object  (p,) positions
    distance           (p,)
    """

    detection: IntArray
    object: IntArray
    distance: FloatArray


NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def upright_overlap(a: FloatArray, b: FloatArray) -> FloatArray:
    """Computes intersection over union of p pairs of upright boxes, (p,) in [0, 1].

    a, b  (p, 4) left, top, right, bottom; a box with right < left or bottom < top is empty, and
          its overlap is 0
    """
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, 2:], b[:, 2:])
    shared = np.maximum(high - low, 0).prod(axis=1)
    size_a = np.maximum(a[:, 2:] - a[:, :2], 0).prod(axis=1)
    size_b = np.maximum(b[:, 2:] - b[:, :2], 0).prod(axis=1)
    return _over_union(shared, size_a, size_b)


def rotated_overlap(a: FloatArray, b: FloatArray) -> FloatArray:
    """Computes intersection over union of p pairs of rotated rectangles, (p,) in [0, 1].

    In the axes of b, a is a quadrilateral, which is cut by the four sides of b one after the
    other (Sutherland and Hodgman 1974), for all pairs at once.

    a, b  (p, 5) centre x, y, length along the heading, width, heading in radians; a rectangle
          without a positive length and width is empty, and its overlap is 0
    """
    size_a, size_b = (np.maximum(box[:, 2:4], 0).prod(axis=1) for box in (a, b))
    cos, sin = np.cos(b[:, 4]), np.sin(b[:, 4])
    x, y = (a[:, :2] - b[:, :2]).T
    centre = np.stack([cos * x + sin * y, cos * y - sin * x], axis=1)
    polygon = _corners(centre, np.maximum(a[:, 2:4], 0), a[:, 4] - b[:, 4])
    half = np.maximum(b[:, 2:4], 0) / 2
    for axis in (0, 1):
        for side in (1.0, -1.0):
            polygon = _cut(polygon, axis, side, half[:, axis])
    return _over_union(_area(polygon), size_a, size_b)


def _over_union(shared: FloatArray, size_a: FloatArray, size_b: FloatArray) -> FloatArray:
    # Rounding must not make the shared part larger than either.
    shared = np.minimum(shared, np.minimum(size_a, size_b))
    union = size_a + size_b - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def _corners(centre: FloatArray, size: FloatArray, heading: FloatArray) -> FloatArray:
    """Returns the corners of rectangles, (p, 4, 2), counter-clockwise."""
    along, across = np.array([1.0, -1, -1, 1]) / 2, np.array([1.0, 1, -1, -1]) / 2
    u, v = size[:, :1] * along, size[:, 1:] * across
    cos, sin = np.cos(heading)[:, None], np.sin(heading)[:, None]
    return centre[:, None] + np.stack([cos * u - sin * v, sin * u + cos * v], axis=2)


def _cut(polygon: FloatArray, axis: int, side: float, limit: FloatArray) -> FloatArray:
    """Cuts polygons (p, V, 2) down to the half-plane where side · coordinate ≤ limit (p,).

    returns  (p, V', 2); a polygon with fewer corners repeats its first one at the end, and an
             empty polygon is all zeros: neither adds to an area
    """
    here = side * polygon[:, :, axis] - limit[:, None]  # > 0: outside
    following, there = np.roll(polygon, -1, axis=1), np.roll(here, -1, axis=1)
    inside = here <= 0
    crosses = inside != (there <= 0)
    share = np.divide(here, here - there, out=np.zeros_like(here), where=crosses)
    crossing = polygon + share[:, :, None] * (following - polygon)
    p, v = here.shape
    kept: BoolArray = np.stack([inside, crosses], axis=2).reshape(p, 2 * v)
    corners = np.stack([polygon, crossing], axis=2).reshape(p, 2 * v, 2)
    count = np.count_nonzero(kept, axis=1)
    # The corners that are kept move to the front, in their order.
    front = np.argsort(~kept, axis=1, kind="stable")[:, : int(count.max(initial=1))]
    cut = np.take_along_axis(corners, front[:, :, None], axis=1)
    beyond = np.arange(front.shape[1]) >= count[:, None]
    cut = np.where(beyond[:, :, None], cut[:, :1], cut)
    cut[count == 0] = 0
    return cut


def _area(polygon: FloatArray) -> FloatArray:
    """Computes the area of polygons (p, V, 2), (p,), by the shoelace formula."""
    x, y = polygon[:, :, 0], polygon[:, :, 1]
    parts = x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)
    # Summed one after the other: the other pairs of a batch must not change the rounding.
    twice = add_up(parts.T)
    return np.abs(twice) / 2


# Room for rounding in a bound that is compared with an exact distance.
_SLACK = 1 + 1e-9


class Distance(Protocol):
    """Measures how far objects are from detections, in one space.

    weighs  whether the distance depends on covariances
    """

    weighs: ClassVar[bool] = False

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """Ranks all pairs of m objects and n detections by nearness, quickly, (m, n).

        Smaller is nearer; infinite is beyond the gate. Pairs beyond the gate may pass, pairs
        within it always do.
        """
        ...

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Computes the distances of p pairs, (p,), from the p objects and p detections in them."""
        ...


@dataclass(frozen=True, slots=True)
class CentreDistance(Distance):
    """Measures the Euclidean distance of the means over some dimensions; angles the shortest way.

    space    of all dimensions
    columns  positions of those that count
    """

    space: Space
    columns: tuple[int, ...]

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """Returns the distances themselves, (m, n)."""
        distance = np.sqrt((self._apart(objects, detections) ** 2).sum(axis=2))
        return np.where(distance <= gate * _SLACK, distance, np.inf)

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Computes the distances of p pairs, (p,), in the unit of the dimensions."""
        error = self.space.error(objects.mean, detections.mean)[:, list(self.columns)]
        distance: FloatArray = np.sqrt((error**2).sum(axis=1))
        return distance

    def _apart(self, objects: Placed, detections: Placed) -> FloatArray:
        """Computes the errors of all pairs in the chosen dimensions, (m, n, d)."""
        columns = list(self.columns)
        chosen = Space(tuple(self.space.dimensions[i] for i in columns))
        apart = objects.mean[:, None, columns] - detections.mean[None, :, columns]
        flat = apart.reshape(-1, len(columns))
        chosen.wrap(flat)
        return flat.reshape(apart.shape)


@dataclass(frozen=True, slots=True)
class MahalanobisDistance(CentreDistance):
    """Measures the error e in deviations, √(eᵀ (Σ + Σ_truth)⁻¹ e), over the same dimensions."""

    weighs: ClassVar[bool] = True

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """Ranks by the worst single dimension, which is never more than the whole distance."""
        variance = self._variances(detections)[None] + self._variances(objects)[:, None]
        worst = np.sqrt((self._apart(objects, detections) ** 2 / variance).max(axis=2))
        return np.where(worst <= gate * _SLACK, worst, np.inf)

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Computes the distances of p pairs, (p,); infinite where Σ + Σ_truth is singular."""
        columns = np.array(self.columns)
        error = self.space.error(objects.mean, detections.mean)[:, columns]
        block = np.ix_(np.arange(objects.n), columns, columns)
        total = np.zeros((objects.n, columns.size, columns.size))
        for placed in (objects, detections):
            if placed.covariance is not None:
                total += placed.covariance[block]
        squared = (whiten(factorise(total), error) ** 2).sum(axis=0)
        return np.where(np.isfinite(squared), np.sqrt(squared), np.inf)

    def _variances(self, placed: Placed) -> FloatArray:
        """Returns the variances in the chosen dimensions, (n, d); 0 where the means are exact."""
        if placed.covariance is None:
            return np.zeros((placed.n, len(self.columns)))
        columns = np.array(self.columns)
        return placed.covariance[:, columns, columns]


@dataclass(frozen=True, slots=True)
class BoxOverlap(Distance):
    """Measures 1 − intersection over union of boxes, upright in an image or seen from above.

    columns  positions of left, top, right and bottom of upright boxes; else of centre, length,
             width and heading, five of them
    """

    columns: tuple[int, ...]
    upright: bool

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """Ranks by the distance of the centres over the sum of the radii around both boxes."""
        a, b = (placed.mean[:, list(self.columns[:4])] for placed in (objects, detections))
        if self.upright:
            a, b = (_centre_and_size(box) for box in (a, b))
        return _rank_of_circles(a, b)

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Computes the distances of p pairs, (p,) in [0, 1]; infinite without any overlap."""
        a, b = (placed.mean[:, list(self.columns)] for placed in (objects, detections))
        overlap = upright_overlap(a, b) if self.upright else rotated_overlap(a, b)
        return np.where(overlap > 0, 1 - overlap, np.inf)


def _centre_and_size(box: FloatArray) -> FloatArray:
    """Turns left, top, right and bottom of boxes into centre and size, (n, 4)."""
    low, high = box[:, :2], box[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _rank_of_circles(a: FloatArray, b: FloatArray) -> FloatArray:
    """Computes centre distances over sums of radii, (m, n); infinite where circles are apart.

    a, b  (m, 4) and (n, 4) centre and size of the boxes that the circles are around
    """
    distance = np.sqrt(((a[:, None, :2] - b[None, :, :2]) ** 2).sum(axis=2))
    radius = [np.sqrt((np.maximum(box[:, 2:], 0) ** 2).sum(axis=1)) / 2 for box in (a, b)]
    reach = radius[0][:, None] + radius[1][None]
    rank = np.divide(distance, reach, out=np.full_like(distance, np.inf), where=reach > 0)
    return np.where(rank <= _SLACK, rank, np.inf)
