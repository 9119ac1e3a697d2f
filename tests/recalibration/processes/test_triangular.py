"""Covariances from triangular factors: against the LDLᵀ of the paper by matrix algebra, the moments
under uncertain weights by simulation and quadrature, the likelihood of one dimension given the
earlier ones by products of Gauss-Hermite rules, and at the edge of being singular."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from monitor.frames.cholesky import factorise, positive_definite
from monitor.recalibration.processes.multivariate import (
    UNEXPLAINED,
    TriangularRow,
    factor_of_weights,
    keep_definite,
    lower_factor,
    lower_product,
    row_of_weights,
    squared,
)

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


@pytest.mark.parametrize(("seed", "k"), [(0, 1), (1, 2), (2, 3)])
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
    weight = weights(random, 10, k)
    lower = lower_factor(root @ root.transpose(0, 2, 1))
    g = lower_product(lower, factor_of_weights(weight, np.zeros_like(weight)))
    made = squared(g)
    before = made.copy()
    keep_definite(made, g)
    np.linalg.cholesky(made)
    assert made == pytest.approx(before, rel=1.1e-9)
    assert np.array_equal(made.diagonal(0, 1, 2), before.diagonal(0, 1, 2))
    assert positive_definite(factorise(made)).all()


def test_a_covariance_that_is_singular_by_a_rounding_has_a_factor():
    covariance = np.array([[[1.0, 1.0], [1.0, 1.0]], [[4.0, 1.0], [1.0, 9.0]]])
    lower = lower_factor(covariance)
    assert lower[..., 0] @ lower[..., 0].T == pytest.approx(covariance[0], rel=1.1e-9)
    assert np.array_equal(lower[..., 1], np.linalg.cholesky(covariance[1]))


# ---- the likelihood of one dimension


def some_row(seed, j, n=5):
    """Dimension j of n detections, and a Gaussian for each of its 1 + j outputs."""
    random = np.random.default_rng(seed)
    row = TriangularRow(
        random.normal(size=n), random.normal(size=(j, n)), 3.0 * random.normal(size=n)
    )
    mean = random.normal(size=(1 + j, n))
    variance = random.uniform(0.0, 0.8, size=(1 + j, n))
    return row, mean, variance


def by_quadrature(row, mean, variance):
    """E_q[log N(u; Σ φ_j ε_j, exp f) − log_unit] by a product rule: in each φ it is a parabola.

    Of a share of the square, the rest of it is the same for all."""
    rules = [np.polynomial.hermite_e.hermegauss(60 if i == 0 else 4) for i in range(len(mean))]
    found = np.zeros(row.value.size)
    for picked in product(*(zip(*rule, strict=True) for rule in rules)):
        at, weights = np.array(picked).T
        f, *phi = mean + np.sqrt(variance) * at[:, None]
        centre = sum((p * u for p, u in zip(phi, row.earlier, strict=True)), np.zeros_like(f))
        gap = np.sqrt(UNEXPLAINED + (1 - UNEXPLAINED) * (row.value - centre) ** 2)
        density = norm.logpdf(gap, 0.0, np.exp(0.5 * f))
        found += np.prod(weights / np.sqrt(2 * np.pi)) * density
    return found - row.log_unit


@pytest.mark.parametrize(("seed", "j"), enumerate(range(4)))
def test_the_expectation_is_that_of_a_gauss_hermite_product_rule(seed, j):
    row, mean, variance = some_row(seed, j)
    found = row.expected(mean, variance).value
    assert found == pytest.approx(by_quadrature(row, mean, variance), rel=1e-12, abs=1e-12)


@given(seeds, st.integers(1, 6))
def test_without_uncertainty_the_dimensions_add_up_to_the_joint_density_of_the_error(seed, k):
    random = np.random.default_rng(seed)
    deviation = np.exp(random.normal(size=k))
    error = random.normal(size=k)
    f = random.normal(size=k)
    g = np.tril(random.normal(size=(k, k)), -1) + np.diag(np.exp(0.5 * f))
    innovation = np.linalg.solve(g, error / deviation)
    found = 0.0
    for i in range(k):
        row = TriangularRow(
            error[i : i + 1] / deviation[i], innovation[:i, None], np.log(deviation[i : i + 1])
        )
        mean = np.append(f[i], g[i, :i])[:, None]
        found += row.expected(mean, np.zeros_like(mean)).value[0]
    half = np.diag(deviation) @ g
    # scipy's own would take a factor of a large condition for singular.
    whole = np.log(np.abs(np.linalg.det(half))) + 0.5 * innovation @ innovation
    # A share of the squares is that of any error.
    share = 0.5 * UNEXPLAINED * (np.exp(-f).sum() - innovation @ innovation)
    assert found == pytest.approx(-0.5 * k * np.log(2 * np.pi) - whole - share, rel=1e-9)


@given(seeds, st.integers(0, 4))
def test_the_start_is_the_best_of_all_constants(seed, j):
    row, _, _ = some_row(seed, j, n=40)

    def total(weights):
        constant = np.repeat(weights[:, None], 40, axis=1)
        return row.expected(constant, np.zeros_like(constant))

    best = total(row.start)
    assert best.by_mean.sum(axis=1) == pytest.approx(np.zeros(1 + j), abs=1e-8)
    random = np.random.default_rng(seed)
    for _ in range(5):
        other = row.start + 0.1 * random.normal(size=1 + j)
        assert total(other).value.sum() < best.value.sum()


@pytest.mark.parametrize("repeated", [1, 2])
def test_errors_that_the_earlier_ones_explain_have_a_finite_start(repeated):
    u = np.random.default_rng(1).normal(size=30)
    row = TriangularRow(0.9 * u, np.stack([u] * repeated), np.zeros(30))
    start = row.start
    assert np.isfinite(start).all()
    assert start[1:].sum() == pytest.approx(0.9)
    assert start[0] == pytest.approx(np.log(UNEXPLAINED))
