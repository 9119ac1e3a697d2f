"""Overlap of boxes, pairs within a gate, and which of them are chosen: against slow searches."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.matching import gate as gate_module
from monitor.matching.distances import (
    BoxOverlap,
    CentreDistance,
    Distance,
    MahalanobisDistance,
    Pairs,
    Placed,
    rotated_overlap,
    upright_overlap,
)
from monitor.matching.gate import (
    Gate,
    IgnoreRegion,
    any_within,
    assigned,
    class_table,
    ignored_detections,
    matches,
    pairs_within,
)

# ---- overlaps the slow way, one pair at a time

Point = tuple[float, float]


def corners(x: float, y: float, length: float, width: float, heading: float) -> list[Point]:
    """Counter-clockwise."""
    c, s = math.cos(heading), math.sin(heading)
    half = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    at = [(length / 2 * u, width / 2 * v) for u, v in half]
    return [(x + c * u - s * v, y + s * u + c * v) for u, v in at]


def turn(a: Point, b: Point, c: Point) -> float:
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


# ---- which pairs belong together, against every possible choice, and what is ignored


def drawn(seed: int, m: int, n: int, share: float, scale: float = 3.0, ties: bool = False) -> Pairs:
    random = np.random.default_rng(seed)
    objects, detections = np.nonzero(random.random((m, n)) < share)
    order = random.permutation(objects.size)
    distance = random.uniform(0, scale, order.size)
    if ties:
        distance = np.round(distance / scale * 3) * scale / 3
    return Pairs(detections[order], objects[order], distance)


def best(pairs: Pairs, m: int, n: int) -> tuple[int, float]:
    """The most pairs there can be, and the least sum of distances of so many."""
    ends = zip(pairs.object.tolist(), pairs.detection.tolist(), strict=True)
    price = dict(zip(ends, pairs.distance.tolist(), strict=True))
    found = (0, 0.0)
    for seats in permutations(range(m + n), n):
        taken = [price[seat, b] for b, seat in enumerate(seats) if (seat, b) in price]
        if (-len(taken), sum(taken)) < (-found[0], found[1]):
            found = len(taken), sum(taken)
    return found


def is_one_to_one(pairs: Pairs) -> bool:
    return np.unique(pairs.object).size == np.unique(pairs.detection).size == pairs.distance.size


few, scales = st.integers(0, 4), st.sampled_from([1e-9, 3.0, 1e9])


@given(seeds, few, few, st.floats(0, 1), scales, st.booleans())
@example(1, 4, 4, 0.5, 3.0, False)
@example(2, 4, 4, 0.7, 3.0, True)
def test_as_many_as_there_can_be_are_chosen_and_then_the_nearest(seed, m, n, share, scale, ties):
    pairs = drawn(seed, m, n, share, scale, ties)
    chosen = pairs.take(assigned(pairs))
    assert is_one_to_one(chosen)
    count, total = best(pairs, m, n)
    assert chosen.distance.size == count
    assert chosen.distance.sum() == pytest.approx(total, rel=1e-9, abs=1e-12 * scale)


@given(seeds, st.integers(1, 30), st.integers(1, 30), st.floats(0, 0.5))
def test_the_choice_depends_on_no_order_and_on_no_way_of_parting_and_is_nearest_first_in_crowds(
    seed, m, n, share
):
    pairs = drawn(seed, m, n, share)
    random = np.random.default_rng(seed + 1)
    new_object, new_detection = random.permutation(m), random.permutation(n)
    order = random.permutation(pairs.distance.size)
    other = Pairs(new_detection[pairs.detection], new_object[pairs.object], pairs.distance)
    chosen, shuffled = assigned(pairs), assigned(other.take(order))
    assert set(chosen.tolist()) == set(order[shuffled].tolist())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gate_module, "_ONE_PART", 0)
        assert assigned(pairs).tolist() == chosen.tolist()
        patched.setattr(gate_module, "MOST_TOGETHER", 0)
        greedy = pairs.take(assigned(pairs))
    assert is_one_to_one(greedy)
    # Whatever was left out would have met a nearer choice on one side.
    for i in range(pairs.distance.size):
        same = (greedy.object == pairs.object[i]) | (greedy.detection == pairs.detection[i])
        assert (greedy.distance[same] <= pairs.distance[i]).any()


@pytest.mark.parametrize(("most", "expected"), [(4, [1, 2]), (3, [0])])
def test_a_cheap_pair_never_costs_another_its_match_unless_too_many_hang_together(
    monkeypatch, most, expected
):
    # Object 0 is nearest to detection 0, which alone is within reach of object 1.
    pairs = Pairs(np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([0.0, 2.9, 3.0]))
    monkeypatch.setattr(gate_module, "MOST_TOGETHER", most)
    assert assigned(pairs).tolist() == expected


# ---- the objects and the detections of a frame


LINE = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
GATE = Gate(CentreDistance(LINE, (0,)), np.array([2.0, 1.0]), 0.8)


def at(*x: float) -> Placed:
    return Placed(np.array([[value, 0.0] for value in x]).reshape(-1, 2))


def test_classes_are_matched_apart_and_each_within_its_own_gate():
    detections, of = at(0, 0.1, 10, 20, 30), np.array([1, 0, 0, 1, 0])
    kind = np.array([0, 1, 1, 1, -1, 0])
    found = matches(at(1.5, 0.9, 10, 21.5, 0, 31.5), kind, detections, of, GATE)
    assert found.detection.tolist() == [0, 1, 4]
    assert found.object.tolist() == [1, 0, 5]
    assert GATE.nears(found.distance, of[found.detection]).tolist() == [True, False, False]
    assert GATE.nears(np.array([1.6, 1.6 + 1e-9]), np.zeros(2, np.int64)).tolist() == [False, True]


def ignored(objects: Placed, ignores, detections: Placed, of, regions=()):
    table = np.array(ignores, bool).reshape(objects.n, 2)
    told = objects, table, regions
    return ignored_detections(*told, detections, np.array(of), GATE, LINE).tolist()


def region(columns, lower, upper, classes=(True, True)) -> IgnoreRegion:
    bounds = np.array(lower, float), np.array(upper, float)
    return IgnoreRegion(columns, *bounds, np.array(classes))


@pytest.mark.parametrize(
    ("where", "inside"),
    [
        (region((0,), [1], [2]), [False, True, True, False]),
        (region((0,), [1], [2], (True, False)), [False, True, False, False]),
        (region((0,), [-np.inf], [1]), [True, True, False, False]),
        (region((0, 1), [1, -1], [3, 1]), [False, True, True, True]),
        (region((0, 1), [1, 0.5], [3, 1]), [False, False, False, False]),
    ],
)
def test_a_region_ignores_the_detections_inside_its_bounds(where, inside):
    assert ignored(at(), [], at(0.5, 1, 2, 2.1), [0, 0, 1, 1], [where]) == inside


@given(st.floats(-20, 20), st.floats(-4, 4), st.floats(0, 6.2))
def test_an_angle_is_inside_whichever_turn_it_is_told_in(yaw, low, width):
    where = region((1,), [low], [low + width])
    ahead = (yaw - low) % (2 * np.pi)
    if min(abs(ahead - width), ahead, 2 * np.pi - ahead) < 1e-6:
        return
    for turns in (-1, 0, 1):
        mean = np.array([[0.0, yaw + 2 * np.pi * turns]])
        assert where.contains(mean, LINE).tolist() == [ahead < width]


def test_classes_are_found_by_name_or_by_the_map_and_neighbours_stand_beside():
    table = class_table(
        ["Car", "vehicle.van", "human", "tree"],
        ["Car", "Pedestrian"],
        {"human": "Pedestrian"},
        {"Car": ["vehicle.van", "Car"], "Tram": ["tree"]},
    )
    assert table.own.tolist() == [0, -1, 1, -1]
    assert table.beside.tolist() == [[False] * 2, [True, False], [False] * 2, [False] * 2]
    # A class may be the detector's own and look like another, and map to none.
    table = class_table(["van", "car"], ["car", "van"], {"car": "bus"}, {"car": ["van"]})
    assert table.own.tolist() == [1, -1]
    assert table.beside.tolist() == [[True, False], [False, False]]
