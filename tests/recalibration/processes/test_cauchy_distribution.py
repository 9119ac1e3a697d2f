"""The Cauchy likelihood and marginals: against SciPy's, and against rules of many more nodes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import cauchy, norm

from monitor.recalibration.processes.cauchy import (
    LARGEST_LOG,
    CauchyMarginals,
    cauchy_likelihood,
    surrogate_ratio,
)
from monitor.recalibration.processes.sparse_process import expected_under_normal
from monitor.recalibration.recalibrator import UnfitData

quick = settings(max_examples=50)


def drawn(seed, n=40):
    random = np.random.default_rng(seed)
    deviation = np.exp(random.normal(size=n))
    return 0.7 * deviation * random.standard_cauchy(n), deviation


# ---- likelihood


def test_the_log_likelihood_is_that_of_a_cauchy_of_scale_w_sigma():
    error, deviation = drawn(0)
    latent = np.linspace(-3, 3, 7)[:, None] + np.zeros(error.size)
    value, slope = cauchy_likelihood("x", error, deviation).log_likelihood(latent)
    expected = cauchy.logpdf(error, scale=np.exp(latent) * deviation)
    assert value == pytest.approx(expected, abs=1e-12)
    step = 1e-6
    above = cauchy.logpdf(error, scale=np.exp(latent + step) * deviation)
    below = cauchy.logpdf(error, scale=np.exp(latent - step) * deviation)
    assert slope == pytest.approx((above - below) / (2 * step), abs=1e-8)


@pytest.mark.parametrize(("variance", "tolerance"), [(0.1, 1e-13), (0.5, 1e-7), (1.0, 1e-5)])
def test_twenty_nodes_are_as_good_as_two_hundred_where_the_variance_is_at_most_one(
    variance, tolerance
):
    random = np.random.default_rng(3)
    z, mean = random.standard_cauchy(300), random.normal(size=(1, 300))
    likelihood = cauchy_likelihood("x", z, np.ones(300))
    spread = np.full((1, 300), variance)
    found = likelihood.expected(mean, spread).value
    fine = expected_under_normal(likelihood.log_likelihood, mean, spread, count=200).value
    assert np.abs(found - fine).max() < tolerance


def test_the_derivatives_of_the_expectation_are_finite_differences_of_it():
    error, deviation = drawn(1)
    likelihood = cauchy_likelihood("x", error, deviation)
    mean = np.linspace(-2, 2, error.size)[None]
    variance = np.geomspace(1e-3, 2, error.size)[None]
    found = likelihood.expected(mean, variance)
    step = 1e-6

    def value(m, v):
        return likelihood.expected(m, v).value

    by_mean = (value(mean + step, variance) - value(mean - step, variance)) / (2 * step)
    by_variance = (value(mean, variance + step) - value(mean, variance - step)) / (2 * step)
    assert found.by_mean[0] == pytest.approx(by_mean, abs=1e-7)
    assert found.by_variance[0] == pytest.approx(by_variance, abs=1e-6)


@quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_the_start_is_the_scale_of_greatest_likelihood(seed, n):
    error, deviation = drawn(seed, n)
    likelihood = cauchy_likelihood("x", error, deviation)
    best = minimize_scalar(
        lambda f: -cauchy.logpdf(error, scale=np.exp(f) * deviation).sum(),
        bounds=(-12, 12),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert likelihood.start == pytest.approx([best.x], abs=1e-5)


def test_rows_without_an_error_are_likely_under_small_scales_only():
    likelihood = cauchy_likelihood("x", np.array([0.0, 1.0, 2.0]), np.ones(3))
    value, slope = likelihood.log_likelihood(np.zeros((1, 3)))
    assert value[0, 0] == pytest.approx(-math.log(math.pi))
    assert slope[0, 0] == -1
    assert np.isfinite(likelihood.start).all()


@pytest.mark.parametrize("error", [[0.0], [0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 2.0, 0.0, 1.0]])
def test_half_of_the_rows_without_an_error_is_refused_with_the_name(error):
    with pytest.raises(UnfitData, match="dimension 'depth' has no error"):
        cauchy_likelihood("depth", np.array(error), np.ones(len(error)))


def test_ratios_beyond_any_unit_are_bounded():
    likelihood = cauchy_likelihood("x", np.array([1e300, 1e-300]), np.array([1e-6, 1e5]))
    assert np.array_equal(likelihood.log_ratio, [LARGEST_LOG, -LARGEST_LOG])
    value, slope = likelihood.log_likelihood(np.array([[-LARGEST_LOG], [LARGEST_LOG]]))
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()


# ---- marginals


def marginals():
    random = np.random.default_rng(5)
    location = random.normal(size=(6, 3))
    scale = np.exp(random.normal(size=(6, 3)))
    return location, scale, CauchyMarginals(location, scale)


def test_density_probability_and_quantiles_are_those_of_a_cauchy():
    location, scale, found = marginals()
    value = location + scale * np.random.default_rng(6).standard_cauchy((6, 3))
    tau = np.array([1e-12, 0.05, 0.3, 0.5, 0.8, 0.999])
    assert found.log_density(value) == pytest.approx(cauchy.logpdf(value, location, scale))
    assert found.cumulative(value) == pytest.approx(cauchy.cdf(value, location, scale))
    expected = cauchy.ppf(tau[:, None, None], location, scale)
    assert found.quantiles(tau) == pytest.approx(expected, rel=1e-9)


def test_probabilities_are_kept_far_out_in_either_tail():
    far = CauchyMarginals(np.zeros((1, 2)), np.ones((1, 2)))
    value = np.array([[-1e200, 1e200]])
    assert far.cumulative(value)[0] == pytest.approx([1e-200 / math.pi, 1.0])
    assert far.log_density(value)[0] == pytest.approx(-math.log(math.pi) - 400 * math.log(10))


def test_quantiles_ascend_and_are_undone_by_the_probability():
    _, _, found = marginals()
    tau = np.linspace(0, 1, 41)
    quantile = found.quantiles(tau)
    assert (np.diff(quantile, axis=0) > 0).all()
    assert np.isneginf(quantile[0]).all()
    assert np.isposinf(quantile[-1]).all()
    for level, value in zip(tau[1:-1], quantile[1:-1], strict=True):
        assert found.cumulative(value) == pytest.approx(np.full((6, 3), level), abs=1e-12)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.6827, 0.95])
def test_the_surrogate_has_the_same_central_interval(level):
    ratio = surrogate_ratio(level)
    half_width = cauchy.ppf((1 + level) / 2)
    assert norm.cdf(half_width, scale=ratio) - norm.cdf(-half_width, scale=ratio) == pytest.approx(
        level, abs=1e-12
    )
