"""Differences in a space: lengths plainly, angles wrapped."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space, triangle

PERIOD = {DimensionKind.ANGLE: 2 * math.pi, DimensionKind.ANGLE_MODULO_PI: math.pi}
angles = st.floats(-50, 50)


def space_of(*kinds, angles_in_joint=False):
    dimensions = tuple(Dimension(f"d{i}", "", kind) for i, kind in enumerate(kinds))
    return Space(dimensions, angles_in_joint)


def error(kind, truth, mean=0.0):
    return float(space_of(kind).error(np.array([[truth]]), np.array([[mean]]))[0, 0])


@pytest.mark.parametrize(
    ("kind", "truth", "mean", "expected"),
    [
        (DimensionKind.LENGTH, 7.0, 0.5, 6.5),
        (DimensionKind.ANGLE, 0.25, 0.0, 0.25),
        (DimensionKind.ANGLE, math.pi, 0.0, -math.pi),
        (DimensionKind.ANGLE, -math.pi, 0.0, -math.pi),
        (DimensionKind.ANGLE, math.pi, -math.pi, 0.0),
        (DimensionKind.ANGLE, 3.0, -3.0, 6.0 - 2 * math.pi),
        (DimensionKind.ANGLE, -3.0, 3.0, 2 * math.pi - 6.0),
        (DimensionKind.ANGLE, 4 * math.pi + 0.5, 0.0, 0.5),
        (DimensionKind.ANGLE_MODULO_PI, 0.25, 0.0, 0.25),
        (DimensionKind.ANGLE_MODULO_PI, math.pi / 2, 0.0, -math.pi / 2),
        (DimensionKind.ANGLE_MODULO_PI, -math.pi / 2, 0.0, -math.pi / 2),
        (DimensionKind.ANGLE_MODULO_PI, math.pi, 0.0, 0.0),
        (DimensionKind.ANGLE_MODULO_PI, math.pi - 0.1, 0.0, -0.1),
        (DimensionKind.ANGLE_MODULO_PI, 1.5, -1.5, 3.0 - math.pi),
    ],
)
def test_a_difference_is_taken_the_short_way_round(kind, truth, mean, expected):
    assert error(kind, truth, mean) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=300)
@given(st.sampled_from(list(PERIOD)), angles, angles)
def test_a_wrapped_difference_is_within_half_a_period_and_a_whole_number_of_them_off(
    kind, truth, mean
):
    found = error(kind, truth, mean)
    period = PERIOD[kind]
    assert abs(found) <= period / 2
    turns = (truth - mean - found) / period
    assert turns == pytest.approx(round(turns), abs=1e-9)


@settings(max_examples=300)
@given(st.sampled_from(list(PERIOD)), st.floats(-1.5, 1.5), st.integers(-5, 5))
def test_whole_turns_change_nothing(kind, angle, turns):
    assert error(kind, angle + turns * PERIOD[kind]) == pytest.approx(angle, abs=1e-12)


@pytest.mark.parametrize("nearly", [math.pi, -math.pi, 3 * math.pi, -3 * math.pi])
def test_half_a_turn_stays_half_a_turn_on_either_side_of_its_last_bit(nearly):
    for angle in (np.nextafter(nearly, -9), nearly, np.nextafter(nearly, 9)):
        assert abs(error(DimensionKind.ANGLE, angle)) == pytest.approx(math.pi, abs=1e-14)


def test_a_difference_writes_into_neither_argument():
    truth, mean = np.array([[4.0, 4.0]]), np.array([[0.0, 0.0]])
    found = space_of(DimensionKind.ANGLE, DimensionKind.LENGTH).error(truth, mean)
    assert (truth.tolist(), mean.tolist()) == ([[4.0, 4.0]], [[0.0, 0.0]])
    assert found[0].tolist() == pytest.approx([4.0 - 2 * math.pi, 4.0])


def test_no_rows_differ_in_no_rows():
    none = np.zeros((0, 2))
    assert space_of(DimensionKind.ANGLE, DimensionKind.LENGTH).error(none, none).shape == (0, 2)


L, A, M = DimensionKind.LENGTH, DimensionKind.ANGLE, DimensionKind.ANGLE_MODULO_PI


@pytest.mark.parametrize(
    ("kinds", "in_joint", "joint", "order"),
    [
        ((L, L, L), False, (0, 1, 2), (0, 1, 2)),
        ((L, A, L), False, (0, 2), (0, 2, 1)),
        ((M, L), False, (1,), (1, 0)),
        ((L, A, L), True, (0, 1, 2), (0, 1, 2)),
        ((A, M), False, (0, 1), (0, 1)),
        ((A,), False, (0,), (0,)),
    ],
)
def test_angles_stay_out_of_the_joint_block_unless_there_is_nothing_else(
    kinds, in_joint, joint, order
):
    space = space_of(*kinds, angles_in_joint=in_joint)
    assert space.joint == joint
    assert space.order == order


def test_spaces_are_equal_only_if_names_units_kinds_and_joint_agree():
    metres = plain_space(("x", "y"), "m")
    assert metres == plain_space(("x", "y"), "m")
    assert metres.names == ("x", "y")
    assert metres.k == 2
    assert metres != plain_space(("x", "y"), "px")
    assert metres != plain_space(("y", "x"), "m")
    assert metres != Space((Dimension("x", "m", A), Dimension("y", "m")))
    assert metres != Space(metres.dimensions, angles_in_joint=True)


def test_the_lower_triangle_goes_row_by_row():
    rows, columns = triangle(3)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (2, 2),
    ]
