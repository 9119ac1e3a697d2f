"""Kernels against the equation with whole matrices, entry by entry, and slopes against
differences."""

import numpy as np
import pytest

from monitor.recalibration.processes.kernels import KernelForm, kernel_of, scale_count


def points_of(form, seed, n, k):
    """k features; for the paper's kernel k means and k variances."""
    random = np.random.default_rng(seed)
    points = random.normal(size=(n, k))
    if form is KernelForm.PAPER:
        points = np.hstack([points, np.exp(random.normal(size=(n, k)))])
    return points


def scale_of(form, k):
    count = scale_count(form, k)
    return np.array([0.7, 1.3, 2.0, 0.4])[:count]


def entry(form, x, y, scale):
    """From the equation, with matrices."""
    if form is KernelForm.NORMALISED:
        gap = (x - y) @ np.linalg.inv(np.diag(scale**2)) @ (x - y)
        return np.exp(-0.5 * gap)
    k = x.size // 2
    covariance = np.diag(x[k:]) + np.diag(y[k:]) + scale[0] ** 2 * np.eye(k)
    gap = (x[:k] - y[:k]) @ np.linalg.inv(covariance) @ (x[:k] - y[:k])
    return scale[0] ** k * np.linalg.det(covariance) ** -0.5 * np.exp(-0.5 * gap)


@pytest.mark.parametrize("form", KernelForm)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_every_entry_of_the_matrix_is_the_kernel_of_two_points(form, k):
    left, right, scale = points_of(form, 1, 7, k), points_of(form, 2, 5, k), scale_of(form, k)
    kernel = kernel_of(form, scale)
    expected = [[entry(form, x, y, scale) for y in right] for x in left]
    assert kernel.matrix(left, right) == pytest.approx(np.array(expected), rel=1e-12)
    itself = [entry(form, x, x, scale) for x in left]
    assert kernel.diagonal(left) == pytest.approx(np.array(itself), rel=1e-12)


@pytest.mark.parametrize("form", KernelForm)
def test_a_matrix_of_blocks_is_that_of_all_points(form):
    left, right, scale = points_of(form, 1, 12, 2), points_of(form, 2, 5, 2), scale_of(form, 2)
    kernel = kernel_of(form, scale)
    blocks = left.reshape(3, 4, -1)
    assert kernel.matrix(blocks, right).reshape(12, 5) == pytest.approx(kernel.matrix(left, right))
    assert kernel.diagonal(blocks).ravel() == pytest.approx(kernel.diagonal(left))


@pytest.mark.parametrize("form", KernelForm)
@pytest.mark.parametrize("k", [1, 3])
def test_points_never_have_a_covariance_that_is_not_one(form, k):
    points = points_of(form, 3, 40, k)
    matrix = kernel_of(form, scale_of(form, k)).matrix(points, points)
    assert np.linalg.eigvalsh(0.5 * (matrix + matrix.T))[0] > -1e-12
    assert matrix.max() <= 1.0


@pytest.mark.parametrize("form", KernelForm)
@pytest.mark.parametrize("k", [1, 3])
def test_slopes_are_those_of_differences(form, k):
    left, right = points_of(form, 1, 8, k), points_of(form, 2, 5, k)
    log_scale = np.log(scale_of(form, k))
    random = np.random.default_rng(0)
    weight, itself = random.normal(size=(8, 5)), random.normal(size=8)

    def sums(log_scale):
        kernel = kernel_of(form, np.exp(log_scale))
        return (weight * kernel.matrix(left, right)).sum(), itself @ kernel.diagonal(left)

    kernel = kernel_of(form, np.exp(log_scale))
    slope = kernel.slope(left, right, kernel.matrix(left, right), weight)
    diagonal_slope = kernel.diagonal_slope(left, itself)
    for i, step in enumerate(1e-6 * np.eye(log_scale.size)):
        up, down = sums(log_scale + step), sums(log_scale - step)
        assert slope[i] == pytest.approx((up[0] - down[0]) / 2e-6, rel=1e-6, abs=1e-8)
        assert diagonal_slope[i] == pytest.approx((up[1] - down[1]) / 2e-6, rel=1e-6, abs=1e-8)
