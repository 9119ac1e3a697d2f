"""The likelihood of one dimension given the earlier ones: its closed form against products of
Gauss–Hermite rules, its derivatives against differences, and the joint density it adds up to."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from monitor.recalibration.processes.multivariate import UNEXPLAINED, TriangularRow

quick = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)


def simulated(seed, j, n=5):
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("j", range(4))
def test_the_expectation_is_that_of_a_gauss_hermite_product_rule(seed, j):
    row, mean, variance = simulated(seed, j)
    found = row.expected(mean, variance).value
    assert found == pytest.approx(by_quadrature(row, mean, variance), rel=1e-12, abs=1e-12)


def differences(function, at, output, step=1e-6):
    up, down = at.copy(), at.copy()
    up[output] += step
    down[output] -= step
    return (function(up).value - function(down).value) / (2 * step)


@quick
@given(seeds, st.integers(0, 7))
def test_the_derivatives_are_those_of_the_value(seed, j):
    row, mean, variance = simulated(seed, j)
    variance += 0.1
    found = row.expected(mean, variance)
    for output in range(1 + j):
        by_mean = differences(lambda m: row.expected(m, variance), mean, output)
        by_variance = differences(lambda v: row.expected(mean, v), variance, output)
        assert found.by_mean[output] == pytest.approx(by_mean, rel=1e-6, abs=1e-6)
        assert found.by_variance[output] == pytest.approx(by_variance, rel=1e-6, abs=1e-6)


@quick
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
    if np.linalg.cond(half) < 1e3:
        expected = multivariate_normal.logpdf(error, cov=half @ half.T)
        assert found == pytest.approx(expected - share, rel=1e-8, abs=1e-8)


@quick
@given(seeds)
def test_the_first_row_is_the_likelihood_of_gp_normal(seed):
    row, mean, variance = simulated(seed, 0)
    m, v = mean[0], variance[0]
    sigma = np.exp(row.log_unit)
    r = row.value * sigma
    # −½ [log 2πσ² + m + z² exp(−m + v/2)], but for the share that is never explained.
    square = UNEXPLAINED + (1 - UNEXPLAINED) * r**2 / sigma**2
    expected = -0.5 * (np.log(2 * np.pi * sigma**2) + m + square * np.exp(-m + v / 2))
    assert row.expected(mean, variance).value == pytest.approx(expected, rel=1e-12)


@quick
@given(seeds, st.integers(0, 4))
def test_the_start_is_the_best_of_all_constants(seed, j):
    row, _, _ = simulated(seed, j, n=40)

    def total(weights):
        constant = np.repeat(weights[:, None], 40, axis=1)
        return row.expected(constant, np.zeros_like(constant))

    best = total(row.start)
    assert best.by_mean.sum(axis=1) == pytest.approx(np.zeros(1 + j), abs=1e-8)
    random = np.random.default_rng(seed)
    for _ in range(5):
        other = row.start + 0.1 * random.normal(size=1 + j)
        assert total(other).value.sum() < best.value.sum()


@quick
@given(seeds, st.integers(0, 3))
def test_some_of_the_detections_have_the_values_they_had_among_all(seed, j):
    row, mean, variance = simulated(seed, j, n=9)
    chosen = np.array([7, 2, 3])
    some = TriangularRow(row.value[chosen], row.earlier[:, chosen], row.log_unit[chosen])
    part = some.expected(mean[:, chosen], variance[:, chosen])
    whole = row.expected(mean, variance)
    assert np.array_equal(part.value, whole.value[chosen])
    assert np.array_equal(part.by_mean, whole.by_mean[:, chosen])
    assert np.array_equal(part.by_variance, whole.by_variance[:, chosen])


@pytest.mark.parametrize("repeated", [1, 2])
def test_errors_that_the_earlier_ones_explain_have_a_finite_start(repeated):
    u = np.random.default_rng(1).normal(size=30)
    row = TriangularRow(0.9 * u, np.stack([u] * repeated), np.zeros(30))
    start = row.start
    assert np.isfinite(start).all()
    assert start[1:].sum() == pytest.approx(0.9)
    assert start[0] == pytest.approx(np.log(UNEXPLAINED))


def test_far_off_steps_of_a_search_give_finite_values():
    row, mean, variance = simulated(1, 2)
    mean[0] = -1e5
    found = row.expected(mean, variance)
    for part in (found.value, found.by_mean, found.by_variance):
        assert np.isfinite(part).all()
