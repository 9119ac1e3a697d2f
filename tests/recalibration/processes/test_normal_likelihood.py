"""The closed form against quadrature of the density, and its derivatives."""

import numpy as np
import pytest
from scipy.stats import norm

from tests.recalibration.gp_sets import normal_likelihood, sizes

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


def moments(seed, rows):
    random = np.random.default_rng(seed)
    shape = (rows.space.k, rows.n)
    return random.normal(size=shape), random.uniform(0.0, 1.5, shape)


@pytest.mark.parametrize("seed", range(3))
def test_the_expectation_is_that_of_quadrature(seed):
    rows = sizes(seed, n=200, k=3)
    mean, variance = moments(seed, rows)
    expected = 0.0
    for j in range(3):
        f = mean[j, :, None] + np.sqrt(variance[j])[:, None] * NODES
        scale = rows.deviation[:, j, None] * np.exp(0.5 * f)
        density = norm.logpdf(rows.error[:, j, None], scale=scale)
        expected = expected + density @ WEIGHTS / np.sqrt(2 * np.pi)
    found = normal_likelihood(rows).expected(mean, variance).value
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_derivatives_are_those_of_differences():
    rows = sizes(4, n=50, k=2)
    likelihood = normal_likelihood(rows)
    mean, variance = moments(4, rows)
    found = likelihood.expected(mean, variance)
    for j in range(2):
        step = np.zeros_like(mean)
        step[j] = 1e-6
        for slope, up, down in (
            (
                found.by_mean,
                likelihood.expected(mean + step, variance),
                likelihood.expected(mean - step, variance),
            ),
            (
                found.by_variance,
                likelihood.expected(mean, variance + step),
                likelihood.expected(mean, variance - step),
            ),
        ):
            difference = (up.value - down.value) / 2e-6
            assert slope[j] == pytest.approx(difference, rel=1e-6, abs=1e-7)


def test_it_begins_at_variance_scaling():
    rows = sizes(5, k=3)
    nees = np.mean((rows.error / rows.deviation) ** 2, axis=0)
    likelihood = normal_likelihood(rows)
    assert likelihood.start == pytest.approx(np.log(nees))
    mean = np.repeat(likelihood.start[:, None], rows.n, axis=1)
    slope = likelihood.expected(mean, np.zeros_like(mean)).by_mean.sum(axis=1)
    assert slope == pytest.approx(np.zeros(3), abs=1e-9)
