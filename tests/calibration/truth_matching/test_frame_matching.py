"""Objects of a frame and its detections: pairs by class, and what is neither right nor wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.matching.distances import CentreDistance, Placed
from monitor.matching.gate import Gate, IgnoreRegion, class_table, ignored_detections, matches

SPACE = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
GATE = Gate(CentreDistance(SPACE, (0,)), np.array([2.0, 1.0]), 0.8)


def at(*x: float) -> Placed:
    return Placed(np.array([[value, 0.0] for value in x]).reshape(-1, 2))


def test_classes_are_matched_apart_and_each_within_its_own_gate():
    detections, of = at(0, 0.1, 10, 20), np.array([1, 0, 0, 1])
    found = matches(at(1.5, 0.9, 10, 21.5), np.array([0, 1, 1, 1]), detections, of, GATE)
    assert found.detection.tolist() == [0, 1]
    assert found.object.tolist() == [1, 0]
    assert GATE.nears(found.distance, of[found.detection]).tolist() == [True, False]


def test_an_object_of_no_class_of_the_detector_matches_nothing():
    assert matches(at(0), np.array([-1]), at(0), np.array([0]), GATE).detection.size == 0


@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.integers(0, 12))
def test_matches_are_the_same_in_any_order_of_objects(seed, m, n):
    random = np.random.default_rng(seed)
    # On a line, two crossing pairs may be as near as two that do not cross.
    objects, detections = (Placed(random.uniform(0, [8, 2], (size, 2))) for size in (m, n))
    gate = Gate(CentreDistance(SPACE, (0, 1)), GATE.of_class, GATE.near)
    kind, of = random.integers(-1, 2, m), random.integers(0, 2, n)
    found = matches(objects, kind, detections, of, gate)
    order = random.permutation(m)
    other = matches(objects.take(order), kind[order], detections, of, gate)
    assert other.detection.tolist() == found.detection.tolist()
    assert order[other.object].tolist() == found.object.tolist()
    assert (np.diff(found.detection) > 0).all()
    assert (found.distance <= gate.of_class[of[found.detection]]).all()


def ignored(objects: Placed, ignores, detections: Placed, of, regions=()):
    table = np.array(ignores, bool).reshape(objects.n, 2)
    return ignored_detections(
        objects, table, regions, detections, np.array(of), GATE, SPACE
    ).tolist()


def test_objects_ignore_detections_of_their_classes_within_the_gate_of_these():
    objects = at(0, 100)
    detections, of = at(1.9, 1.9, 0.9, 100), [0, 1, 1, 0]
    assert ignored(objects, [[1, 1], [0, 1]], detections, of) == [True, False, True, False]


def test_one_object_ignores_as_many_detections_as_lie_near_it():
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


# ---- names of classes


def test_classes_are_found_by_name_or_by_the_map_and_neighbours_stand_beside():
    table = class_table(
        ["Car", "vehicle.van", "human", "tree"],
        ["Car", "Pedestrian"],
        {"human": "Pedestrian"},
        {"Car": ["vehicle.van", "Car"], "Tram": ["tree"]},
    )
    assert table.own.tolist() == [0, -1, 1, -1]
    assert table.beside.tolist() == [[False] * 2, [True, False], [False] * 2, [False] * 2]


def test_a_class_may_be_a_detectors_own_and_look_like_another():
    table = class_table(["van"], ["car", "van"], {}, {"car": ["van"]})
    assert table.own.tolist() == [1]
    assert table.beside.tolist() == [[True, False]]


def test_a_map_to_a_class_that_the_detector_has_not_is_no_class():
    table = class_table(["car"], ["car"], {"car": "bus"}, {})
    assert table.own.tolist() == [-1]
