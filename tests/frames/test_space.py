"""Spaces: differences the short way round, the joint block, the number that is equal everywhere;
and factors of many small covariances at once, against one at a time."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from monitor.frames.cholesky import factorise
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space

L, A, M = DimensionKind.LENGTH, DimensionKind.ANGLE, DimensionKind.ANGLE_MODULO_PI
PERIOD = {A: 2 * math.pi, M: math.pi}


def ends(kind):
    return -PERIOD[kind] / 2, PERIOD[kind] / 2


def space_of(*kinds, angles_in_joint=False):
    dimensions = tuple(Dimension(f"d{i}", "", kind) for i, kind in enumerate(kinds))
    return Space(dimensions, angles_in_joint)


@pytest.mark.parametrize(
    ("kind", "truth", "mean", "expected"),
    [
        *((L, 7.0, 0.5, 6.5), (A, 3.0, -3.0, 6.0 - 2 * math.pi), (A, 4 * math.pi + 0.5, 0, 0.5)),
        *((kind, end, 0.0, -PERIOD[kind] / 2) for kind in (A, M) for end in ends(kind)),
        *((M, math.pi, 0.0, 0.0), (M, 1.5, -1.5, 3.0 - math.pi)),
    ],
)
def test_a_difference_is_taken_the_short_way_round(kind, truth, mean, expected):
    space, sent, told = space_of(kind), np.array([[mean]]), np.array([[truth]])
    assert space.error(told, sent)[0, 0] == pytest.approx(expected, abs=1e-12)
    assert (told.tolist(), sent.tolist()) == ([[truth]], [[mean]])


@pytest.mark.parametrize(
    ("kinds", "in_joint", "joint", "order"),
    [
        ((L, L, L), False, (0, 1, 2), (0, 1, 2)),
        ((L, A, L), False, (0, 2), (0, 2, 1)),
        ((M, L), False, (1,), (1, 0)),
        ((L, A, L), True, (0, 1, 2), (0, 1, 2)),
        ((A, M), False, (0, 1), (0, 1)),
    ],
)
def test_angles_stay_out_of_the_joint_block_unless_there_is_nothing_else(
    kinds, in_joint, joint, order
):
    space = space_of(*kinds, angles_in_joint=in_joint)
    assert (space.joint, space.order) == (joint, order)


METRES = plain_space(("x", "y"), "m")
DIFFERENT = (
    *(METRES, plain_space(("y", "x"), "m"), plain_space(("x", "y"), "px")),
    *(plain_space(("xy",), "m"), plain_space(("x", "ym")), plain_space(("x", "y"))),
    Space(METRES.dimensions, angles_in_joint=True),
    Space((Dimension("x", "m", A), Dimension("y", "m"))),
    Space((Dimension("x", "m", M), Dimension("y", "m"))),
)


def test_spaces_have_one_number_in_every_process_only_if_names_units_kinds_and_joint_agree():
    assert len(set(DIFFERENT)) == len({space.number for space in DIFFERENT}) == len(DIFFERENT)
    code = "from monitor.frames.space import plain_space as s; print(s(('x', 'y'), 'm').number)"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    assert int(done.stdout) == METRES.number == plain_space(("x", "y"), "m").number
    assert 0 <= METRES.number < 2**64


# ---- factors of covariances


def covariances(seed, n, k):
    """Far from singular, so that the slow formulas are exact enough to compare with."""
    random = np.random.default_rng(seed)
    root = np.tril(random.uniform(-0.5, 0.5, (n, k, k)), -1)
    root[:, np.arange(k), np.arange(k)] = random.uniform(0.5, 2, (n, k))
    return 10.0 ** random.uniform(-6, 6, n)[:, None, None] * (root @ root.transpose(0, 2, 1))


@pytest.mark.parametrize(
    "bad",
    [
        *([[a, c], [c, b]] for a, b, c in ((1, 1, 2), (1, -1, 0), (-1, -1, 0), (0, 1, 0))),
        *([[a, c], [c, a]] for a, c in ((1, 1 - 1e-14), (1e-12, 1e-12), (1e10, 1e10))),
        *([[a, c], [c, 1.0]] for a, c in ((np.nan, 0), (1, np.nan), (np.inf, 0))),
    ],
)
def test_what_is_not_positive_definite_has_no_last_pivot_and_its_neighbours_do(bad):
    regular = np.array([[1.0, 0.999999], [0.999999, 1.0]])
    good = np.concatenate([covariances(1, 2, 2), [1e-12 * regular, 1e10 * regular]])
    with np.errstate(all="raise"):
        factor = factorise(np.concatenate([good[:2], [bad], good[2:]]))
    assert np.isnan(factor[-1, -1]).tolist() == [False, False, True, False, False]
    assert np.array_equal(factor[:, :, [0, 1, 3, 4]], factorise(good))
