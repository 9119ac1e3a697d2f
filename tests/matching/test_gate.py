"""Which pairs of a frame belong together, against every possible choice, and what is neither right
nor wrong."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.matching import gate as gate_module
from monitor.matching.distances import CentreDistance, Pairs, Placed
from monitor.matching.gate import (
    Gate,
    IgnoreRegion,
    assigned,
    class_table,
    ignored_detections,
    matches,
)

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, m: int, n: int, share: float, scale: float = 3.0, ties: bool = False) -> Pairs:
    """Pairs of a random graph, in random order."""
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


sizes = st.integers(0, 4)
scales = st.sampled_from([1e-9, 3.0, 1e9])


@given(seeds, sizes, sizes, st.floats(0, 1), scales, st.booleans())
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


SPACE = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
GATE = Gate(CentreDistance(SPACE, (0,)), np.array([2.0, 1.0]), 0.8)


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
    return ignored_detections(*told, detections, np.array(of), GATE, SPACE).tolist()


def test_objects_ignore_any_number_of_detections_of_their_classes_within_the_gate_of_these():
    objects = at(0, 100)
    detections, of = at(1.9, 1.9, 0.9, 100), [0, 1, 1, 0]
    assert ignored(objects, [[1, 1], [0, 1]], detections, of) == [True, False, True, False]
    assert ignored(at(0), [[1, 0]], at(*[0.1] * 200), [0] * 200) == [True] * 200


def region(columns, lower, upper, classes=(True, True)) -> IgnoreRegion:
    bounds = np.array(lower, float), np.array(upper, float)
    return IgnoreRegion(columns, *bounds, np.array(classes))


@pytest.mark.parametrize(
    ("where", "inside"),
    [
        (region((0,), [1], [2]), [False, True, True, False]),
        (region((0,), [1], [2], (True, False)), [False, True, False, False]),
        (region((0,), [-np.inf], [1]), [True, True, False, False]),
        (region((), [], []), [True, True, True, True]),
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
        assert where.contains(mean, SPACE).tolist() == [ahead < width]


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
