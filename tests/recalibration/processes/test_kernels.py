"""The kernel against the equation with whole matrices, entry by entry, and slopes against
differences."""

import numpy as np
import pytest

from monitor.recalibration.processes.sparse_process import Kernel


def points_of(seed, n, k):
    return np.random.default_rng(seed).normal(size=(n, k))


def scale_of(k):
    return np.array([0.7, 1.3, 2.0, 0.4])[:k]


def entry(x, y, scale):
    """From the equation, with matrices."""
    return np.exp(-0.5 * (x - y) @ np.linalg.inv(np.diag(scale**2)) @ (x - y))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_every_entry_of_the_matrix_is_the_kernel_of_two_points(k):
    left, right, scale = points_of(1, 7, k), points_of(2, 5, k), scale_of(k)
    expected = [[entry(x, y, scale) for y in right] for x in left]
    assert Kernel(scale).matrix(left, right) == pytest.approx(np.array(expected), rel=1e-12)


def test_a_matrix_of_blocks_is_that_of_all_points():
    left, right, kernel = points_of(1, 12, 2), points_of(2, 5, 2), Kernel(scale_of(2))
    blocks = left.reshape(3, 4, -1)
    assert kernel.matrix(blocks, right).reshape(12, 5) == pytest.approx(kernel.matrix(left, right))


@pytest.mark.parametrize("k", [1, 3])
def test_points_never_have_a_covariance_that_is_not_one(k):
    points = points_of(3, 40, k)
    matrix = Kernel(scale_of(k)).matrix(points, points)
    assert np.linalg.eigvalsh(0.5 * (matrix + matrix.T))[0] > -1e-12
    assert matrix.max() <= 1.0


@pytest.mark.parametrize("k", [1, 3])
def test_slopes_are_those_of_differences(k):
    left, right = points_of(1, 8, k), points_of(2, 5, k)
    log_scale = np.log(scale_of(k))
    weight = np.random.default_rng(0).normal(size=(8, 5))

    def total(log_scale):
        return (weight * Kernel(np.exp(log_scale)).matrix(left, right)).sum()

    kernel = Kernel(np.exp(log_scale))
    slope = kernel.slope(left, right, kernel.matrix(left, right), weight)
    for i, step in enumerate(1e-6 * np.eye(log_scale.size)):
        difference = (total(log_scale + step) - total(log_scale - step)) / 2e-6
        assert slope[i] == pytest.approx(difference, rel=1e-6, abs=1e-8)
