"""Overlap of boxes, against a slow clipping of another kind and against thrown points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.matching.distances import rotated_overlap, upright_overlap
from tests.calibration.truth_matching.polygons import overlap, thrown

places = st.floats(-4, 4)
sizes = st.floats(0.1, 5)
headings = st.floats(-7, 7) | st.sampled_from(
    [0.0, math.pi / 2, -math.pi / 2, math.pi, 2 * math.pi]
)
boxes = st.tuples(places, places, sizes, sizes, headings)
# On a grid, where corners lie on sides and sides on each other.
aligned = st.tuples(
    *[st.integers(-3, 3).map(float)] * 2,
    *[st.integers(1, 4).map(float)] * 2,
    st.sampled_from([0.0, math.pi / 2, math.pi, -math.pi / 2, math.pi / 4]),
)


def of(a, b) -> float:
    return float(rotated_overlap(np.array([a]), np.array([b]))[0])


@settings(max_examples=300)
@given(boxes, boxes)
def test_rotated_boxes_overlap_as_clipping_by_hand_says(a, b):
    assert of(a, b) == pytest.approx(overlap(a, b), abs=1e-6)


@settings(max_examples=300)
@given(aligned, aligned)
def test_boxes_whose_sides_lie_on_each_other_overlap_as_clipping_by_hand_says(a, b):
    assert of(a, b) == pytest.approx(overlap(a, b), abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_rotated_boxes_overlap_as_thrown_points_say(seed):
    random = np.random.default_rng(seed)
    a, b = (tuple(row) for row in random.uniform([-1, -1, 1, 1, -4], [1, 1, 4, 4, 4], (2, 5)))
    assert of(a, b) == pytest.approx(thrown(a, b, seed), abs=0.02)


@given(boxes, boxes)
def test_overlap_is_the_same_from_either_side_and_within_its_bounds(a, b):
    assert of(a, b) == pytest.approx(of(b, a), abs=1e-9)
    assert 0 <= of(a, b) <= 1


@given(boxes)
def test_a_box_covers_itself_also_when_it_is_turned_around(a):
    assert of(a, a) == pytest.approx(1, abs=1e-9)
    assert of(a, (*a[:4], a[4] + math.pi)) == pytest.approx(1, abs=1e-9)


@given(st.lists(st.tuples(boxes, boxes), min_size=1, max_size=6))
def test_a_pair_among_others_overlaps_as_it_does_alone(pairs):
    together = rotated_overlap(*(np.array(side) for side in zip(*pairs, strict=True)))
    assert together.tolist() == pytest.approx([of(a, b) for a, b in pairs], abs=1e-12)


@given(boxes, st.sampled_from([(0.0, 2.0), (2.0, -1.0), (-1.0, -1.0)]))
def test_a_box_without_extent_overlaps_nothing(a, size):
    empty = (a[0], a[1], *size, a[4])
    assert of(a, empty) == of(empty, a) == of(empty, empty) == 0


def test_no_pairs_have_no_overlaps():
    assert rotated_overlap(np.zeros((0, 5)), np.zeros((0, 5))).shape == (0,)
    assert upright_overlap(np.zeros((0, 4)), np.zeros((0, 4))).shape == (0,)


@given(boxes, boxes)
def test_upright_boxes_overlap_as_rotated_ones_of_no_heading(a, b):
    def sides(box):
        x, y, length, width = box[:4]
        return [[x - length / 2, y - width / 2, x + length / 2, y + width / 2]]

    found = upright_overlap(np.array(sides(a)), np.array(sides(b)))
    assert found[0] == pytest.approx(overlap((*a[:4], 0.0), (*b[:4], 0.0)), abs=1e-6)


def test_upright_boxes_with_their_sides_swapped_overlap_nothing():
    good, swapped = np.array([[0.0, 0, 2, 2]]), np.array([[2.0, 0, 0, 2]])
    assert upright_overlap(good, swapped)[0] == upright_overlap(swapped, swapped)[0] == 0
