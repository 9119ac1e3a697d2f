"""Spaces: differences the short way round, the joint block, the number that is equal everywhere;
and factors of many small covariances at once, against one at a time."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.cholesky import factorise, is_diagonal, log_determinant, whiten
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space, triangle
from tests.calibration import oracle, statistics_oracle

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


@given(st.sampled_from(list(PERIOD)), angles, angles, st.integers(-5, 5))
def test_a_wrapped_difference_is_within_half_a_period_and_whole_turns_change_nothing(
    kind, truth, mean, turns
):
    found = error(kind, truth, mean)
    period = PERIOD[kind]
    assert abs(found) <= period / 2
    assert (truth - mean - found) / period == pytest.approx(
        round((truth - mean - found) / period), abs=1e-9
    )
    turned = error(kind, truth + turns * period, mean) - found
    assert min(abs(turned), period - abs(turned)) < 1e-9


def test_a_difference_writes_into_neither_argument():
    truth, mean = np.array([[4.0, 4.0]]), np.array([[0.0, 0.0]])
    found = space_of(DimensionKind.ANGLE, DimensionKind.LENGTH).error(truth, mean)
    assert (truth.tolist(), mean.tolist()) == ([[4.0, 4.0]], [[0.0, 0.0]])
    assert found[0].tolist() == pytest.approx([4.0 - 2 * math.pi, 4.0])


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


YAW = Dimension("yaw", "rad", A)
METRES = plain_space(("x", "y"), "m")
DIFFERENT = (
    METRES,
    plain_space(("y", "x"), "m"),
    plain_space(("xy",), "m"),
    plain_space(("x", "ym")),
    plain_space(("x", "y"), "px"),
    plain_space(("x", "y")),
    Space(METRES.dimensions, angles_in_joint=True),
    Space((Dimension("x", "m", A), Dimension("y", "m"))),
    Space((YAW,)),
    Space((YAW,), angles_in_joint=True),
    Space((Dimension("yaw", "rad", M),)),
)


def test_spaces_are_equal_and_have_one_number_only_if_names_units_kinds_and_joint_agree():
    assert len(set(DIFFERENT)) == len({space.number for space in DIFFERENT}) == len(DIFFERENT)
    again = plain_space(("x", "y"), "m")
    assert (again, again.number) == (METRES, METRES.number)
    assert (again.names, again.k) == (("x", "y"), 2)
    assert 0 <= METRES.number < 2**64


def test_the_number_of_a_space_is_the_same_in_every_process():
    told = "from monitor.frames.space import plain_space;print(plain_space(('x', 'y'), 'm').number)"
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) == METRES.number


def test_the_lower_triangle_goes_row_by_row():
    rows, columns = triangle(3)
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2])


# ---- factors of covariances

seeds = st.integers(0, 2**32 - 1)


INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]


SINGULAR = [[1.0, 1.0], [1.0, 1.0]]


def covariances(seed, n, k):
    """Far from singular, so that the slow formulas are exact enough to compare with."""
    random = np.random.default_rng(seed)
    root = np.tril(random.uniform(-0.5, 0.5, (n, k, k)), -1)
    root[:, np.arange(k), np.arange(k)] = random.uniform(0.5, 2, (n, k))
    return 10.0 ** random.uniform(-6, 6, n)[:, None, None] * (root @ root.transpose(0, 2, 1))


def lower(factor):
    """(N, K, K) factors, zero above the diagonal."""
    return np.tril(np.moveaxis(factor, -1, 0))


@given(seeds, st.integers(1, 4))
def test_factor_determinant_whitening_and_distance_are_those_of_plain_loops(seed, k):
    covariance = covariances(seed, 5, k)
    before = covariance.copy()
    error = np.random.default_rng(seed).normal(size=(5, k))
    factor = factorise(covariance)
    white = whiten(factor, error)
    for row, matrix in enumerate(covariance.tolist()):
        slow = statistics_oracle.cholesky(matrix)
        assert lower(factor)[row] == pytest.approx(np.array(slow), rel=1e-9, abs=1e-12)
        r = error[row].tolist()
        assert white[:, row] == pytest.approx(statistics_oracle.whiten(matrix, r), rel=1e-9)
        distance = np.square(white[:, row]).sum()
        assert distance == pytest.approx(oracle.mahalanobis(matrix, r), rel=1e-9)
        for size in range(1, k + 1):
            block = [line[:size] for line in matrix[:size]]
            expected = np.log(oracle.determinant(block))
            assert log_determinant(factor, size)[row] == pytest.approx(expected, abs=1e-8)
    assert np.array_equal(covariance, before)


@pytest.mark.parametrize(
    "bad",
    [
        INDEFINITE,
        SINGULAR,
        [[0.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, -1.0]],
        [[-1.0, 0.0], [0.0, -1.0]],
        [[np.nan, 0.0], [0.0, 1.0]],
        [[1.0, np.nan], [np.nan, 1.0]],
        [[np.inf, 0.0], [0.0, 1.0]],
        [[1.0, 1.0 - 1e-14], [1.0 - 1e-14, 1.0]],
    ],
)
def test_what_is_not_positive_definite_has_no_last_pivot_and_its_neighbours_do(bad):
    good = covariances(1, 4, 2)
    mixed = np.concatenate([good[:2], [bad], good[2:]])
    with np.errstate(all="raise"):
        factor = factorise(mixed)
    assert np.isnan(factor[-1, -1]).tolist() == [False, False, True, False, False]
    kept = [0, 1, 3, 4]
    assert np.array_equal(factor[:, :, kept], factorise(good))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e10])
def test_being_singular_does_not_depend_on_the_unit(scale):
    regular = scale * np.array([[[1.0, 0.999999], [0.999999, 1.0]]])
    assert np.isfinite(factorise(regular)[-1, -1]).all()
    assert np.isnan(factorise(scale * np.array([SINGULAR]))[-1, -1]).all()


def test_no_covariances_have_no_factors():
    assert factorise(np.zeros((0, 3, 3))).shape == (3, 3, 0)
    assert log_determinant(factorise(np.zeros((0, 3, 3))), 3).shape == (0,)
    assert whiten(factorise(np.zeros((0, 3, 3))), np.zeros((0, 3))).shape == (3, 0)


def test_a_batch_is_diagonal_only_if_all_of_it_is():
    plain = np.eye(3)[None] * np.array([1.0, 2.0])[:, None, None]
    assert is_diagonal(plain)
    assert not is_diagonal(np.concatenate([plain, covariances(1, 1, 3)]))
    assert is_diagonal(np.ones((5, 1, 1)))
