"""GP-Cauchy: its likelihood and marginals against SciPy's and rules of many more nodes, what it
forwards, and how near a fit comes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import cauchy, norm

from monitor.recalibration.processes import cauchy as cauchy_module
from monitor.recalibration.processes.cauchy import (
    LARGEST_LOG,
    CauchyMarginals,
    cauchy_likelihood,
)
from monitor.recalibration.recalibrator import UnfitData
from tests.recalibration.rows import own_loss, reference_rows, rows_of

# ---- the likelihood


def some_errors(seed, n=40):
    random = np.random.default_rng(seed)
    deviation = np.exp(random.normal(size=n))
    return 0.7 * deviation * random.standard_cauchy(n), deviation


def test_the_log_likelihood_is_that_of_a_cauchy_of_scale_w_sigma():
    error, deviation = some_errors(0)
    latent = np.linspace(-3, 3, 7)[:, None] + np.zeros(error.size)
    value, _ = cauchy_likelihood("x", error, deviation).log_likelihood(latent)
    expected = cauchy.logpdf(error, scale=np.exp(latent) * deviation)
    assert value == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_the_start_is_the_scale_of_greatest_likelihood(seed, n):
    error, deviation = some_errors(seed, n)
    likelihood = cauchy_likelihood("x", error, deviation)
    best = minimize_scalar(
        lambda f: -cauchy.logpdf(error, scale=np.exp(f) * deviation).sum(),
        bounds=(-12, 12),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert likelihood.start == pytest.approx([best.x], abs=1e-5)


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


def test_density_probability_and_quantiles_are_those_of_a_cauchy():
    random = np.random.default_rng(5)
    location, scale = random.normal(size=(6, 3)), np.exp(random.normal(size=(6, 3)))
    found, value = CauchyMarginals(location, scale), 3 * random.standard_cauchy((6, 3))
    tau = np.array([1e-12, 0.05, 0.3, 0.5, 0.8, 0.999])
    assert found.log_density(value) == pytest.approx(cauchy.logpdf(value, location, scale))
    assert found.cumulative(value) == pytest.approx(cauchy.cdf(value, location, scale))
    expected = cauchy.ppf(tau[:, None, None], location, scale)
    assert found.quantiles(tau) == pytest.approx(expected, rel=1e-9)


# ---- the method


@cache
def fitted():
    """With a scale that depends on σ, and the rows."""
    random = np.random.default_rng(0)
    sigma = np.exp(random.normal(size=(1500, 1)))
    rows = rows_of(sigma, np.sqrt(sigma) * random.standard_cauchy(sigma.shape))
    return cauchy_module.fit_gp_cauchy(rows), rows.estimates


@pytest.mark.parametrize("level", [0.3, 0.6827, 0.95])
def test_what_is_forwarded_holds_the_stated_share_in_the_same_interval_as_the_cauchy(level):
    model, sent = fitted()
    model = replace(model, surrogate_level=level)
    made = model.apply(sent)
    upper = model.marginals(sent).quantiles(np.array([(1 + level) / 2]))[0] - made.mean
    assert norm.cdf(upper / made.deviation) == pytest.approx(np.full(upper.shape, (1 + level) / 2))
    assert made.mean is sent.mean


def test_the_loss_on_the_cauchy_set_is_below_that_of_the_papers_code():
    model = cauchy_module.fit_gp_cauchy(reference_rows("cauchy_1d", slice(0, 2000)))
    held_out = reference_rows("cauchy_1d", slice(2000, 4000))
    assert own_loss(model, held_out) <= 1.8990
