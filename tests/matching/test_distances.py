"""Overlap of boxes, distances, and the pairs within a gate: against each pair by itself."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.matching import gate as gate_module
from monitor.matching.distances import (
    BoxOverlap,
    CentreDistance,
    Distance,
    MahalanobisDistance,
    Placed,
    rotated_overlap,
    upright_overlap,
)
from monitor.matching.gate import any_within, pairs_within
from tests import laws

# ---- overlaps the slow way, one pair at a time

Point = tuple[float, float]


def corners(x: float, y: float, length: float, width: float, heading: float) -> list[Point]:
    """Counter-clockwise."""
    c, s = math.cos(heading), math.sin(heading)
    half = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    at = [(length / 2 * u, width / 2 * v) for u, v in half]
    return [(x + c * u - s * v, y + s * u + c * v) for u, v in at]


def turn(a: Point, b: Point, c: Point) -> float:
    """Twice the signed area of a triangle."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def sides(polygon: list[Point]) -> list[tuple[Point, Point]]:
    return list(zip(polygon, polygon[1:] + polygon[:1], strict=True))


def inside(point: Point, polygon: list[Point]) -> bool:
    return all(turn(a, b, point) >= -1e-9 for a, b in sides(polygon))


def crossing(a: Point, b: Point, c: Point, d: Point) -> list[Point]:
    """Finds where two sides cross; nothing where they are parallel or do not meet."""
    along = (b[0] - a[0]) * (d[1] - c[1]) - (b[1] - a[1]) * (d[0] - c[0])
    if abs(along) < 1e-12:
        return []
    t = ((c[0] - a[0]) * (d[1] - c[1]) - (c[1] - a[1]) * (d[0] - c[0])) / along
    s = ((c[0] - a[0]) * (b[1] - a[1]) - (c[1] - a[1]) * (b[0] - a[0])) / along
    if not (-1e-12 <= t <= 1 + 1e-12 and -1e-12 <= s <= 1 + 1e-12):
        return []
    return [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]))]


def hull(points: list[Point]) -> list[Point]:
    """Andrew's monotone chain."""
    ordered = sorted(set(points))
    if len(ordered) < 3:
        return ordered
    chains = []
    for direction in (ordered, ordered[::-1]):
        chain: list[Point] = []
        for point in direction:
            while len(chain) > 1 and turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains += chain[:-1]
    return chains


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Intersection over union of two rectangles: x, y, length, width, heading.

    A corner of the intersection of two convex polygons is a corner of one inside the other, or
    where two sides cross: the hull of all of these is the intersection.
    """
    p, q = corners(*a), corners(*b)
    found = [point for point in p if inside(point, q)] + [point for point in q if inside(point, p)]
    for one in sides(p):
        for other in sides(q):
            found += crossing(*one, *other)
    shared = abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in sides(hull(found)))) / 2
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


# ---- overlaps

places = st.floats(-4, 4)
sizes = st.floats(0.1, 5)
headings = st.floats(-7, 7) | st.integers(-1, 4).map(lambda quarters: quarters * math.pi / 2)
boxes = st.tuples(places, places, sizes, sizes, headings)
# On a grid, where corners lie on sides and sides on each other.
aligned = st.tuples(
    *[st.integers(-3, 3).map(float)] * 2,
    *[st.integers(1, 4).map(float)] * 2,
    st.sampled_from([0.0, math.pi / 2, math.pi, -math.pi / 2, math.pi / 4]),
)


def of(a, b) -> float:
    return float(rotated_overlap(np.array([a]), np.array([b]))[0])


@given(boxes, boxes, aligned, aligned)
def test_boxes_overlap_as_clipping_by_hand_says_alone_and_among_others(a, b, c, d):
    pairs = [(a, b), (b, a), (c, d), (d, c), (a, c), (a, a), (a, (*a[:4], a[4] + math.pi))]
    found = rotated_overlap(*(np.array(side) for side in zip(*pairs, strict=True)))
    assert found.tolist() == pytest.approx([overlap(*pair) for pair in pairs], abs=1e-6)
    assert found.tolist() == pytest.approx([of(*pair) for pair in pairs], abs=1e-12)
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    assert found[-2:] == pytest.approx([1, 1], abs=1e-9)
    assert ((found >= 0) & (found <= 1)).all()
    upright = [
        [(x - length / 2, y - w / 2, x + length / 2, y + w / 2)] for x, y, length, w, _ in (a, b)
    ]
    expected = overlap((*a[:4], 0.0), (*b[:4], 0.0))
    assert upright_overlap(*map(np.array, upright))[0] == pytest.approx(expected, abs=1e-6)


@given(boxes, st.sampled_from([(0.0, 2.0), (2.0, 0.0), (2.0, -1.0), (-1.0, -1.0)]))
def test_a_box_without_extent_overlaps_nothing(a, size):
    empty = (a[0], a[1], *size, a[4])
    assert of(a, empty) == of(empty, a) == of(empty, empty) == 0
    good = np.array([[0.0, 0, 2, 2]])
    for swapped in (np.array([[2.0, 0, 0, 2]]), np.array([[0.0, 2, 2, 0]])):
        assert upright_overlap(good, swapped)[0] == upright_overlap(swapped, swapped)[0] == 0
    assert rotated_overlap(np.zeros((0, 5)), np.zeros((0, 5))).shape == (0,)
    assert upright_overlap(np.zeros((0, 4)), np.zeros((0, 4))).shape == (0,)


# ---- pairs within a gate


YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
SPACE = Space((*plain_space(("x", "y", "l", "w")).dimensions, YAW))
DISTANCES: dict[str, Distance] = {
    "centre": CentreDistance(SPACE, (0, 1)),
    "centre with heading": CentreDistance(SPACE, (0, 4)),
    "mahalanobis": MahalanobisDistance(SPACE, (0, 1, 4)),
    "rotated": BoxOverlap((0, 1, 2, 3, 4), upright=False),
    "upright": BoxOverlap((0, 1, 2, 3), upright=True),
}
seeds = st.integers(0, 2**32 - 1)


def placed(seed: int, n: int, *, exact: bool = False) -> Placed:
    random = np.random.default_rng(seed)
    mean = random.uniform([-5, -5, 0.5, 0.5, -4], [5, 5, 6, 4, 4], (n, 5))
    root = random.normal(size=(n, 5, 5))
    covariance = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(5)
    return Placed(mean, None if exact else covariance)


def by_hand(name: str, objects: Placed, detections: Placed, i: int, j: int) -> float:
    a, b = objects.mean[i], detections.mean[j]
    error = a - b
    error[4] = math.remainder(error[4], 2 * math.pi)
    if name == "centre":
        return math.hypot(error[0], error[1])
    if name == "centre with heading":
        return math.hypot(error[0], error[4])
    if name == "mahalanobis":
        block = np.ix_([0, 1, 4], [0, 1, 4])
        assert detections.covariance is not None
        total = detections.covariance[j][block]
        if objects.covariance is not None:
            total = total + objects.covariance[i][block]
        e = error[[0, 1, 4]]
        return math.sqrt(e @ np.linalg.inv(total) @ e)
    if name == "rotated":
        return 1 - overlap(tuple(a), tuple(b))
    # The numbers of an upright box are its sides.
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:4], b[2:4])
    shared = np.prod(np.maximum(high - low, 0))
    sizes = [np.prod(np.maximum(box[2:4] - box[:2], 0)) for box in (a, b)]
    return 1 - shared / (sum(sizes) - shared) if shared > 0 else 1.0


@pytest.mark.parametrize("name", sorted(DISTANCES))
@given(
    seed=seeds,
    m=st.integers(0, 8),
    n=st.integers(0, 8),
    share=st.floats(0.05, 0.95),
    exact=st.booleans(),
)
def test_the_pairs_within_the_gate_are_those_of_each_pair_by_itself(name, seed, m, n, share, exact):
    objects, detections = placed(seed, m, exact=exact), placed(seed + 1, n)
    gate = share if name in ("rotated", "upright") else 4 * share
    found = pairs_within(DISTANCES[name], objects, detections, gate)
    pairs = zip(found.object.tolist(), found.detection.tolist(), strict=True)
    sent = dict(zip(pairs, found.distance.tolist(), strict=True))
    for pair in product(range(m), range(n)):
        distance = by_hand(name, objects, detections, *pair)
        if abs(distance - gate) > 1e-6:
            assert (pair in sent) == (distance < gate)
        if pair in sent:
            assert sent[pair] == pytest.approx(distance, abs=1e-6)
    near = any_within(DISTANCES[name], objects, detections, gate)
    assert near.tolist() == [any(j == pair[1] for pair in sent) for j in range(n)]


def test_a_pair_at_the_gate_itself_is_within_it_and_boxes_that_touch_are_no_pair():
    a, b = (Placed(np.array([[x, 0.0, 2, 2, 0]])) for x in (0.0, 2.0))
    for name, gate in (("centre", 2.0), ("centre with heading", 2.0)):
        assert pairs_within(DISTANCES[name], a, b, gate).distance.tolist() == [2.0]
        assert pairs_within(DISTANCES[name], a, b, np.nextafter(gate, 0)).distance.size == 0
    assert pairs_within(DISTANCES["rotated"], a, b, 5.0).distance.size == 0
    half = Placed(np.array([[0.0, 0, 1, 2, 0]]))
    assert pairs_within(DISTANCES["rotated"], a, half, 0.5).distance.tolist() == [0.5]


@pytest.mark.parametrize("block", [1, 7])
def test_what_is_looked_at_in_one_go_changes_nothing(monkeypatch, block):
    objects, detections = placed(1, 20), placed(2, 30)
    whole = pairs_within(DISTANCES["rotated"], objects, detections, 0.9)
    monkeypatch.setattr(gate_module, "_BLOCK", block)
    parts = pairs_within(DISTANCES["rotated"], objects, detections, 0.9)
    assert whole.distance.size > 10
    laws.assert_same(parts, whole)


@pytest.mark.parametrize("name", sorted(set(DISTANCES) - {"upright"}))
def test_in_a_crowd_an_object_is_offered_its_nearest_detections(monkeypatch, name):
    monkeypatch.setattr(gate_module, "NEAREST", 3)
    objects, detections = placed(1, 4), placed(2, 40)
    found = pairs_within(DISTANCES[name], objects, detections, 0.99 if name == "rotated" else 20.0)
    assert np.bincount(found.object, minlength=4).max() == 3
    if name == "centre":
        distance = np.hypot(*(objects.mean[0, :2] - detections.mean[:, :2]).T)
        assert sorted(found.distance[found.object == 0]) == pytest.approx(np.sort(distance)[:3])
    # Of a heap on one spot the first are offered, and none of it is crowded out of being ignored.
    heap = objects.take(np.zeros(50, np.int64))
    offered = pairs_within(DISTANCES["centre"], heap.take(slice(1)), heap, 1.0)
    assert offered.detection.tolist() == [0, 1, 2]
    assert any_within(DISTANCES["centre"], heap, heap, 1.0).all()
