"""The likelihood of a beta map on a line: against the printed density, finer rules and finite
differences."""

import numpy as np
import pytest
from scipy.stats import norm

from monitor.recalibration.processes.beta_map import (
    FAR,
    FURTHEST,
    BetaErrors,
    BetaLine,
    beta_likelihood,
)
from monitor.recalibration.processes.sparse_process import expected_under_normal, latent_nodes

LINE = BetaLine((0.2, -0.1, 0.3), (0.8, 0.55, 0.2))
STEP = 1e-6


def of(error, deviation):
    return BetaErrors(error / deviation, np.log(deviation))


def drawn(seed=0, n=60, line=LINE, factor=1.7):
    random = np.random.default_rng(seed)
    deviation = np.exp(0.5 * random.normal(size=n))
    error = 2 * factor * deviation * random.normal(size=n)
    return error, deviation, beta_likelihood(of(error, deviation), factor, line)


def test_the_log_likelihood_is_the_density_of_the_printed_map():
    error, deviation, likelihood = drawn()
    latent = np.array([[-1.5], [0.0], [0.7]]) + np.zeros(error.size)
    unit = 1.7 * deviation
    a, b, c = (
        np.exp(0.2 + 0.8 * latent),
        np.exp(-0.1 + 0.55 * latent),
        0.3 + 0.2 * latent,
    )
    f, rest = norm.cdf(error, scale=unit), norm.sf(error, scale=unit)
    g = 1 / (1 + rest**b / (np.exp(c) * f**a))
    expected = norm.pdf(error, scale=unit) * g * (1 - g) * (a / f + b / rest)
    value, slope = likelihood.log_likelihood(latent)
    assert value == pytest.approx(np.log(expected), abs=1e-8)
    above, _ = likelihood.log_likelihood(latent + STEP)
    below, _ = likelihood.log_likelihood(latent - STEP)
    assert slope == pytest.approx((above - below) / (2 * STEP), rel=1e-6, abs=1e-6)


def test_twenty_nodes_are_as_good_as_two_hundred_over_the_variances_of_a_fit():
    _, _, likelihood = drawn(1, n=300)
    mean = np.linspace(-2, 2, 300)[None]
    # Fitted variances lie between 0.003 and 0.1; at 1 the error is still far below a nat.
    for variance, tolerance in ((0.003, 1e-13), (0.1, 1e-12), (0.5, 1e-6), (1.0, 1e-4)):
        spread = np.full((1, 300), variance)
        found = likelihood.expected(mean, spread)
        fine = expected_under_normal(likelihood.log_likelihood, mean, spread, count=200)
        size = np.maximum(1, np.abs(fine.value))
        assert (np.abs(found.value - fine.value) / size).max() < tolerance


def test_the_derivatives_of_the_expectation_are_finite_differences_of_it():
    _, _, likelihood = drawn(2)
    mean, variance = np.linspace(-1, 1, 60)[None], np.geomspace(1e-3, 0.5, 60)[None]
    found = likelihood.expected(mean, variance)

    def value(m, v):
        return likelihood.expected(m, v).value

    by_mean = (value(mean + STEP, variance) - value(mean - STEP, variance)) / (2 * STEP)
    by_variance = (value(mean, variance + STEP) - value(mean, variance - STEP)) / (2 * STEP)
    assert found.by_mean[0] == pytest.approx(by_mean, rel=1e-5, abs=1e-5)
    assert found.by_variance[0] == pytest.approx(by_variance, rel=1e-4, abs=1e-4)


def test_the_derivatives_by_factor_and_line_are_finite_differences_of_the_same_expectation():
    error, deviation, likelihood = drawn(3)
    mean, variance = np.linspace(-1, 1, 60), np.full(60, 0.2)
    latent = latent_nodes(mean, variance)
    value, slopes = likelihood.expected_by_map(latent)
    whole = likelihood.expected(mean[None], variance[None]).value.sum()
    assert value == pytest.approx(whole, rel=1e-12)

    def moved(entry, step):
        numbers = [np.log(1.7), *LINE.base, *LINE.loading]
        numbers[entry] += step
        line = BetaLine(tuple(numbers[1:4]), tuple(numbers[4:]))
        there = beta_likelihood(of(error, deviation), np.exp(numbers[0]), line)
        return there.expected_by_map(latent)[0]

    for entry, found in enumerate(slopes):
        slope = (moved(entry, STEP) - moved(entry, -STEP)) / (2 * STEP)
        assert found == pytest.approx(slope, rel=1e-5, abs=1e-4)


def test_nothing_overflows_for_any_error_or_latent_value():
    error = np.array([0.0, 1e-300, -1e9, 1e300, -50.0])
    likelihood = beta_likelihood(of(error, np.array([1e-6, 1e5, 1e-6, 1.0, 1.0])), 1.0, LINE)
    assert np.isfinite(likelihood.by_log_factor(np.zeros((1, 5)))).all()
    value, slope = likelihood.log_likelihood(np.array([[-1e6], [0.0], [1e6]]) * np.ones(5))
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()


def test_an_error_beyond_the_furthest_counts_as_one_there():
    far = of(np.array([5 * FURTHEST, FURTHEST]), np.ones(2))
    likelihood = beta_likelihood(far, 1.0, LINE)
    value, _ = likelihood.log_likelihood(np.zeros((1, 2)))
    assert value[0, 0] == value[0, 1]
    assert likelihood.by_log_factor(np.zeros((1, 2))).tolist() == [[-1.0, -1.0]]


def test_parameters_far_beyond_what_is_served_are_bounded():
    _, _, likelihood = drawn(4, line=BetaLine((0.0, 0.0, 0.0), (1.0, 0.0, 0.0)))
    at, _ = likelihood.log_likelihood(np.full((1, 60), FAR))
    beyond, _ = likelihood.log_likelihood(np.full((1, 60), FAR + 3))
    assert np.array_equal(at, beyond)
