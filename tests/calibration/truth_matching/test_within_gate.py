"""Distances and the pairs within a gate, against each pair by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.matching import gate as gate_module
from monitor.matching.distances import (
    BoxOverlap,
    CentreDistance,
    Distance,
    MahalanobisDistance,
    Placed,
)
from monitor.matching.gate import any_within, pairs_within
from tests.calibration.truth_matching.polygons import overlap

SPACE = Space(
    (
        Dimension("x"),
        Dimension("y"),
        Dimension("l"),
        Dimension("w"),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)
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


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(DISTANCES)),
    seeds,
    st.integers(0, 8),
    st.integers(0, 8),
    st.floats(0.05, 0.95),
    st.booleans(),
)
def test_the_pairs_within_the_gate_are_those_of_each_pair_by_itself(name, seed, m, n, gate, exact):
    objects, detections = placed(seed, m, exact=exact), placed(seed + 1, n)
    gate = gate if name in ("rotated", "upright") else 4 * gate
    found = pairs_within(DISTANCES[name], objects, detections, gate)
    distances = {
        (i, j): by_hand(name, objects, detections, i, j) for i in range(m) for j in range(n)
    }
    sent = dict(
        zip(
            zip(found.object.tolist(), found.detection.tolist(), strict=True),
            found.distance.tolist(),
            strict=True,
        )
    )
    for pair, distance in distances.items():
        if abs(distance - gate) > 1e-6:
            assert (pair in sent) == (distance < gate)
        if pair in sent:
            assert sent[pair] == pytest.approx(distance, abs=1e-6)
    near = any_within(DISTANCES[name], objects, detections, gate)
    assert near.tolist() == [any(j == pair[1] for pair in sent) for j in range(n)]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_what_is_looked_at_in_one_go_changes_nothing(monkeypatch, block):
    objects, detections = placed(1, 20), placed(2, 30)
    whole = pairs_within(DISTANCES["rotated"], objects, detections, 0.9)
    monkeypatch.setattr(gate_module, "_BLOCK", block)
    parts = pairs_within(DISTANCES["rotated"], objects, detections, 0.9)
    assert whole.distance.size > 10
    assert np.array_equal(parts.object, whole.object)
    assert np.array_equal(parts.detection, whole.detection)
    assert np.array_equal(parts.distance, whole.distance)


@pytest.mark.parametrize("name", sorted(set(DISTANCES) - {"upright"}))
def test_in_a_crowd_an_object_is_offered_its_nearest_detections(monkeypatch, name):
    monkeypatch.setattr(gate_module, "NEAREST", 3)
    objects, detections = placed(1, 4), placed(2, 40)
    gate = 0.99 if name == "rotated" else 20.0
    found = pairs_within(DISTANCES[name], objects, detections, gate)
    assert np.bincount(found.object, minlength=4).max() == 3
    if name == "centre":
        distance = np.hypot(*(objects.mean[0, :2] - detections.mean[:, :2]).T)
        own = found.distance[found.object == 0]
        assert sorted(own) == pytest.approx(np.sort(distance)[:3])


def test_a_heap_of_detections_on_one_spot_offers_no_more_than_the_nearest(monkeypatch):
    monkeypatch.setattr(gate_module, "NEAREST", 3)
    one = placed(1, 1)
    heap = one.take(np.zeros(50, np.int64))
    assert pairs_within(DISTANCES["centre"], one, heap, 1.0).detection.tolist() == [0, 1, 2]
    assert any_within(DISTANCES["centre"], heap, heap, 1.0).all()


def test_boxes_that_only_touch_are_no_pair_whatever_the_gate():
    a = Placed(np.array([[0.0, 0, 2, 2, 0]]))
    b = Placed(np.array([[2.0, 0, 2, 2, 0]]))
    assert pairs_within(DISTANCES["rotated"], a, b, 5.0).distance.size == 0
