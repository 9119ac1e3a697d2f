"""What is computed of each detection: against plain loops, and the same bits in any company."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.observations import Measured, measure
from tests import laws
from tests.calibration import oracle, statistics_oracle

YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
SPACES = [
    plain_space(("x",)),
    plain_space(("x", "y", "z")),
    # Angles in front and between: the order of whitening is not that of the dimensions.
    Space((YAW, *plain_space(("x", "y")).dimensions)),
    Space((plain_space(("x",)).dimensions[0], YAW, plain_space(("y",)).dimensions[0]), True),
    Space((YAW, Dimension("roll", "rad", DimensionKind.ANGLE))),
]
spaces = st.sampled_from(SPACES)
seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=50)
FIELDS = ["error", "deviation", "normalised", "whitened", "nees", "log_determinant"]


def rows_of(seed, n, k, diagonal=0.3):
    """Errors and covariances, a share of them diagonal."""
    random = np.random.default_rng(seed)
    root = np.tril(random.uniform(-0.5, 0.5, (n, k, k)), -1)
    root[:, np.arange(k), np.arange(k)] = random.uniform(0.5, 2, (n, k))
    covariance = root @ root.transpose(0, 2, 1)
    plain = random.random(n) < diagonal
    covariance[plain] *= np.eye(k)
    scale = 10.0 ** random.uniform(-2, 2, k)
    return random.normal(size=(n, k)) * scale, covariance * scale[:, None] * scale


@quick
@given(seeds, spaces, st.sampled_from([0.0, 0.3, 1.0]))
def test_everything_is_as_plain_loops_find_it(seed, space, diagonal):
    k = space.k
    error, covariance = rows_of(seed, 6, k, diagonal)
    found = measure(space, [(error, covariance)])
    assert found.n == 6
    assert found.regular.all()
    joint = [
        i
        for i, dimension in enumerate(space.dimensions)
        if space.angles_in_joint or dimension.kind is DimensionKind.LENGTH
    ] or list(range(k))
    order = [*joint, *(i for i in range(k) if i not in joint)]
    for row in range(6):
        matrix, r = covariance[row].tolist(), error[row].tolist()
        sigma = [matrix[i][i] ** 0.5 for i in range(k)]
        block = [[matrix[i][j] for j in joint] for i in joint]
        determinant = oracle.determinant(block)
        white = statistics_oracle.whiten(
            [[matrix[i][j] for j in order] for i in order], [r[i] for i in order]
        )
        assert found.error[:, row].tolist() == r
        generalised = determinant ** (1 / (2 * len(joint)))
        assert found.deviation[:, row] == pytest.approx([*sigma, generalised], rel=1e-9)
        z = [r[i] / sigma[i] for i in range(k)]
        assert found.normalised[:, row] == pytest.approx(z, rel=1e-9)
        assert found.whitened[:, row] == pytest.approx(white, rel=1e-7, abs=1e-12)
        nees = oracle.mahalanobis(block, [r[i] for i in joint])
        assert found.nees[:, row] == pytest.approx([*(v * v for v in z), nees], rel=1e-7)
        assert found.log_determinant[row] == pytest.approx(np.log(determinant), abs=1e-9)


def assert_same_columns(found: Measured, whole: Measured, chosen) -> None:
    for name in FIELDS:
        laws.assert_same(getattr(found, name), getattr(whole, name)[..., chosen])


@quick
@given(seeds, spaces, st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_detection_has_the_same_bits_alone_and_among_others(seed, space, n, diagonal):
    error, covariance = rows_of(seed, n, space.k, diagonal)
    whole = measure(space, [(error, covariance)])
    for row in range(n):
        one = slice(row, row + 1)
        assert_same_columns(measure(space, [(error[one], covariance[one])]), whole, one)


@quick
@given(seeds, spaces, st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_frames_are_measured_one_behind_the_other(seed, space, sizes):
    parts = [rows_of([seed, i], n, space.k) for i, n in enumerate(sizes)]
    found = measure(space, parts)
    whole = measure(
        space, [(np.concatenate([e for e, _ in parts]), np.concatenate([c for _, c in parts]))]
    )
    for name in FIELDS:
        laws.assert_same(getattr(found, name), getattr(whole, name))


def test_what_is_not_positive_definite_is_not_regular_and_spoils_no_neighbour():
    space = SPACES[1]
    error, covariance = rows_of(3, 5, 3)
    clean = measure(space, [(error, covariance)])
    spoiled = covariance.copy()
    spoiled[1] = 1.0
    spoiled[3, 0, 1] = spoiled[3, 1, 0] = 2 * np.sqrt(covariance[3, 0, 0] * covariance[3, 1, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = measure(space, [(error, spoiled)])
    assert found.regular.tolist() == [True, False, True, False, True]
    kept = found.take(found.regular)
    assert kept.n == 3
    assert kept.regular.all()
    assert_same_columns(kept, clean, np.array([0, 2, 4]))


def test_measuring_leaves_its_arguments_alone():
    error, covariance = rows_of(1, 8, 3)
    before = error.copy(), covariance.copy()
    measure(SPACES[1], [(error, covariance)])
    measure(SPACES[1], [(error, covariance * np.eye(3))])
    laws.assert_same((error, covariance), before)
