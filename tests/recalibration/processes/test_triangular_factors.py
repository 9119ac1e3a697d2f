"""Covariances from triangular factors: against the LDLᵀ of the paper by matrix algebra, against
the moments under uncertain weights by simulation and quadrature, and at the edge of being
singular."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import ldl

from monitor.frames.cholesky import factorise, positive_definite
from monitor.recalibration.processes.multivariate import (
    factor_of_weights,
    keep_definite,
    lower_factor,
    lower_product,
    row_of_weights,
    squared,
)

quick = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
dimensions = st.integers(1, 8)


def covariances(random, n, k):
    root = 0.5 * random.normal(size=(n, k, k)) + np.eye(k)
    size = np.exp(random.normal(size=(n, k)))
    return (root @ root.transpose(0, 2, 1)) * (size[:, :, None] * size[:, None, :])


def weights(random, n, k, spread=0.5):
    return spread * random.normal(size=(k * (k + 1) // 2, n))


def factor(weight, k):
    """G of one detection's weights."""
    g = np.zeros((k, k))
    for i in range(k):
        f, *phi = weight[row_of_weights(i)]
        g[i, :i] = phi
        g[i, i] = np.exp(0.5 * f)
    return g


def assembled(covariance, mean, variance):
    g = lower_product(lower_factor(covariance), factor_of_weights(mean, variance))
    return squared(g)


@quick
@given(seeds, dimensions)
def test_neutral_weights_give_the_covariance_back(seed, k):
    random = np.random.default_rng(seed)
    covariance = covariances(random, 5, k)
    nothing = np.zeros((k * (k + 1) // 2, 5))
    made = assembled(covariance, nothing, nothing)
    assert made == pytest.approx(covariance, rel=1e-12, abs=1e-12)


@quick
@given(seeds, dimensions)
def test_weights_are_those_of_the_ldl_factors(seed, k):
    random = np.random.default_rng(seed)
    covariance = covariances(random, 5, k)
    weight = weights(random, 5, k)
    made = assembled(covariance, weight, np.zeros_like(weight))
    for sent, w, found in zip(covariance, weight.T, made, strict=True):
        l0 = np.linalg.cholesky(sent)
        root = np.diag(np.diag(l0))
        unit, pivots = l0 @ np.linalg.inv(root), root @ root
        g = factor(w, k)
        # An elementwise weight on D, a unit lower triangular one on L.
        on_d = np.diag(np.diag(g) ** 2)
        on_l = root @ g @ np.linalg.inv(np.diag(np.diag(g))) @ np.linalg.inv(root)
        assert np.diag(on_l) == pytest.approx(np.ones(k))
        expected = (unit @ on_l) @ (pivots * on_d) @ (unit @ on_l).T
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * np.abs(expected).max())


def test_the_unit_factor_is_that_of_scipy():
    covariance = covariances(np.random.default_rng(1), 1, 4)
    # scipy pivots only where it must; it need not for a dominant diagonal.
    covariance += 50 * np.eye(4)
    unit, pivots, order = ldl(covariance[0], lower=True)
    assert np.array_equal(order, np.arange(4))
    lower = lower_factor(covariance)[..., 0]
    assert lower / np.diag(lower) == pytest.approx(unit, rel=1e-12)
    assert np.diag(lower) ** 2 == pytest.approx(np.diag(pivots), rel=1e-12)


def simulated(mean, variance, k, random, n):
    """(k, n) errors u_i = Σ_j φ_ij ε_j + exp(f_i/2) η_i, ε_j what u_j tells beyond the earlier
    ones by the means of the weights, over its own root mean square: nothing of our formulas."""
    u, innovation = np.empty((k, n)), np.empty((k, n))
    for i in range(k):
        row = row_of_weights(i)
        spread = np.sqrt(variance[row])
        f, *phi = mean[row] + spread * random.normal(size=(n, i + 1, 1)).transpose(1, 0, 2)[..., 0]
        u[i] = np.exp(0.5 * f) * random.normal(size=n)
        rest = u[i].copy()
        for j in range(i):
            u[i] += phi[j] * innovation[j]
            rest += (phi[j] - mean[row][1 + j]) * innovation[j]
        innovation[i] = rest / np.sqrt(np.mean(rest**2))
    return u


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_second_moment_of_simulated_errors_under_uncertain_weights(seed):
    random = np.random.default_rng(seed)
    mean, variance = weights(random, 1, 3), random.uniform(0, 0.8, (6, 1))
    g = factor_of_weights(mean, variance)[..., 0]
    u = simulated(mean, variance, 3, random, 400_000)
    for i in range(3):
        for j in range(i + 1):
            product_ = u[i] * u[j]
            sure = 5 * product_.std() / np.sqrt(product_.size)
            assert (g @ g.T)[i, j] == pytest.approx(product_.mean(), abs=sure + 0.002)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_row_has_the_mean_weights_and_the_expected_square_of_its_error(seed, k):
    random = np.random.default_rng(seed)
    p = k * (k + 1) // 2
    mean, variance = weights(random, 1, k), random.uniform(0, 0.8, (p, 1))
    g = factor_of_weights(mean, variance)[..., 0]
    at_f = {row_of_weights(i).start for i in range(k)}
    rules = [np.polynomial.hermite_e.hermegauss(8 if i in at_f else 2) for i in range(p)]
    for i in range(k):
        row = row_of_weights(i)
        found = np.zeros(i + 1)
        for picked in product(*(zip(*rule, strict=True) for rule in rules[row])):
            node, weight = np.array(picked).T
            f, *phi = mean[row, 0] + np.sqrt(variance[row, 0]) * node
            share = np.prod(weight / np.sqrt(2 * np.pi))
            found += share * np.array([*phi, np.exp(f) + np.square(phi).sum()])
        assert g[i, :i] == pytest.approx(found[:i], rel=1e-8)
        assert g[i] @ g[i] == pytest.approx(found[i], rel=1e-8)


@quick
@given(seeds, dimensions)
def test_made_covariances_are_symmetric_to_the_last_bit(seed, k):
    random = np.random.default_rng(seed)
    weight = weights(random, 7, k)
    made = assembled(covariances(random, 7, k), weight, weight * weight)
    assert np.array_equal(made, made.transpose(0, 2, 1))
    assert made.flags.c_contiguous


def made_of(sent, weight):
    g = lower_product(lower_factor(sent), factor_of_weights(weight, np.zeros_like(weight)))
    made = squared(g)
    before = made.copy()
    keep_definite(made, g)
    return made, before


def test_a_covariance_that_rounding_might_spoil_is_drawn_away_from_singular():
    random = np.random.default_rng(2)
    weight = weights(random, 4, 3)
    weight[row_of_weights(2).start, 1] = -60.0  # nothing is left for the third dimension
    made, before = made_of(covariances(random, 4, 3), weight)
    others = np.array([0, 2, 3])
    assert np.array_equal(made[others], before[others])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(before[1])
    np.linalg.cholesky(made[1])
    assert np.array_equal(np.diag(made[1]), np.diag(before[1]))
    assert made[1] == pytest.approx(before[1], rel=1.1e-9)
    assert np.array_equal(made, made.transpose(0, 2, 1))


@quick
@given(seeds, st.integers(2, 8))
def test_whatever_the_weights_the_covariance_is_positive_definite(seed, k):
    random = np.random.default_rng(seed)
    weight = weights(random, 10, k, spread=10.0 ** random.uniform(-1, 1.5))
    made, _ = made_of(covariances(random, 10, k), weight)
    assert np.isfinite(made).all()
    np.linalg.cholesky(made)
    assert positive_definite(factorise(made)).all()


@quick
@given(seeds, st.integers(2, 8))
def test_however_near_to_singular_the_covariance_it_stays_positive_definite(seed, k):
    random = np.random.default_rng(seed)
    unit = np.tril(random.normal(size=(10, k, k)), -1)
    unit /= np.maximum(np.linalg.norm(unit, axis=2, keepdims=True), 1e-9)
    # Shares of the variances that the earlier dimensions leave: down to where they vanish.
    left = np.where(random.random((10, k)) < 0.5, 1.0, 10.0 ** random.uniform(-16, 0, (10, k)))
    left[:, 0] = 1.0
    root = unit * np.sqrt(1.0 - left)[:, :, None] + np.sqrt(left)[:, :, None] * np.eye(k)
    root *= 10.0 ** random.uniform(-6, 5, (10, k))[:, :, None]
    made, _ = made_of(root @ root.transpose(0, 2, 1), weights(random, 10, k))
    np.linalg.cholesky(made)
    assert positive_definite(factorise(made)).all()


def test_a_covariance_that_is_singular_by_a_rounding_has_a_factor():
    covariance = np.array([[[1.0, 1.0], [1.0, 1.0]], [[4.0, 1.0], [1.0, 9.0]]])
    lower = lower_factor(covariance)
    assert lower[..., 0] @ lower[..., 0].T == pytest.approx(covariance[0], rel=1.1e-9)
    assert np.array_equal(lower[..., 1], np.linalg.cholesky(covariance[1]))
