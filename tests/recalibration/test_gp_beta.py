"""GP-Beta: one distribution whatever is asked of it, and how near it comes to the truth."""

from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from monitor.frames.detections import Estimates
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes import beta
from monitor.recalibration.processes.beta import KEPT
from monitor.recalibration.recalibrator import Output
from tests.recalibration.rows import nll, reference_rows
from tests.recalibration.simulated_rows import rows_of, splits

TAU = np.arange(1, 20) * 0.05


def drawn(fault, seed=0, n=2000) -> FitRows:
    """Errors of one dimension: σ times what `fault` makes of the mean x and of N(0, 1)."""
    random = np.random.default_rng(seed)
    x, sigma = random.uniform(-3, 3, n), np.exp(0.3 * random.normal(size=n))
    rows = rows_of(sigma, sigma * fault(x, random.normal(size=n)))
    sent = rows.estimates
    return FitRows(
        rows.space, Estimates(x[:, None], sent.covariance, sent.diagonal), rows.error, rows.track
    )


def sized(x, noise):
    return np.exp(np.sin(x)) * noise


def shifted(x, noise):
    return 0.8 * np.sin(x) + noise


def own_loss(model, rows):
    truth = rows.estimates.mean + rows.error
    return float(-model.marginals(rows.estimates).log_density(truth).mean())


def forwarded_loss(model, rows):
    made = model.apply(rows.estimates)
    return nll(made.deviation, rows.error + rows.estimates.mean - made.mean)


def scaled_loss(fitted, rows):
    scale = np.sqrt(np.mean((fitted.error / fitted.deviation) ** 2, axis=0))
    return nll(rows.deviation * scale, rows.error)


def quantile_error(model, rows):
    """Mean over τ of |share within the central τ interval − τ|."""
    truth = rows.estimates.mean + rows.error
    level = model.marginals(rows.estimates).cumulative(truth)
    inside = np.abs(2 * level.ravel() - 1) <= TAU[:, None]
    return float(np.abs(inside.mean(axis=1) - TAU).mean())


# ---- one distribution


@pytest.mark.parametrize("fault", [sized, shifted])
def test_density_probability_quantiles_and_moments_are_of_one_distribution(fault):
    rows = drawn(fault)
    model = beta.fit_gp_beta(rows)
    picked = np.arange(0, 2000, 400)
    sent = rows.take(picked).estimates
    marginals, made = model.marginals(sent), model.apply(sent)
    tau = np.array([1e-15, 1e-6, 0.01, 0.2, 0.5, 0.8, 0.99, 1 - 1e-6, 1 - 1e-12])
    quantile = marginals.quantiles(tau)
    for level, value in zip(tau, quantile, strict=True):
        assert marginals.cumulative(value) == pytest.approx(np.full((5, 1), level), abs=1e-9)
    for row in range(5):

        def density(y, row=row):
            at = np.full((5, 1), y)
            return float(np.exp(marginals.log_density(at)[row, 0]))

        def integral(function, row=row):
            edges = quantile[:, row, 0]
            return sum(quad(function, low, high, epsabs=1e-13)[0] for low, high in pairwise(edges))

        assert integral(density) == pytest.approx(1.0, abs=1e-9)
        mean = integral(lambda y: y * density(y))
        assert made.mean[row, 0] == pytest.approx(mean, abs=1e-6)
        variance = integral(lambda y, mean=mean: (y - mean) ** 2 * density(y))
        assert made.covariance[row, 0, 0] == pytest.approx(variance, rel=1e-5)


def test_quantiles_are_tabled_once_for_each_set_of_levels_and_not_for_ever():
    rows = drawn(sized, n=200)
    model = beta.fit_gp_beta(rows)
    marginals = model.marginals(rows.estimates)
    for count in range(2 * KEPT):
        for _ in range(2):
            marginals.quantiles(np.linspace(0.1, 0.9, 2 + count))
    kept = cast(Any, model._quantiles).cache_info()
    assert (kept.hits, kept.misses, kept.currsize) == (2 * KEPT, 2 * KEPT, KEPT)
    ends = marginals.quantiles(np.array([0.0, 0.5, 1.0]))
    assert np.array_equal(np.isinf(ends).all(axis=(1, 2)), [True, False, True])


def test_moments_are_about_the_predicted_mean_so_that_large_coordinates_lose_no_digits():
    rows = drawn(lambda x, noise: 2.0 * noise)
    model = beta.fit_gp_beta(rows)
    sent = rows.estimates
    assert not model.latent.processes[0].inputs
    far = Estimates(sent.mean + 2.0**26, sent.covariance, sent.diagonal)
    near, there = model.apply(sent), model.apply(far)
    assert np.array_equal(near.covariance, there.covariance)
    assert there.mean - far.mean == pytest.approx(near.mean - sent.mean, abs=1e-7)


def test_what_is_forwarded_are_moments():
    assert beta.fit_gp_beta(drawn(sized, n=60)).output is Output.MOMENTS


def test_the_map_at_the_mean_of_the_latent_value_stands_for_the_average_over_its_posterior():
    rows, others = drawn(sized), drawn(sized, seed=1)
    model = beta.fit_gp_beta(rows)
    mean, variance = model.latent.at(others.estimates)
    assert variance.max() < 0.1
    node, weight = np.polynomial.hermite_e.hermegauss(20)
    weight = weight / weight.sum()
    t = (others.error / (model.factor[0] * others.deviation))[:, 0]
    f, rest = norm.cdf(t), norm.sf(t)
    average = np.zeros(others.n)
    for x, w in zip(node, weight, strict=True):
        a, b, c = model.lines[0].at(mean[0] + np.sqrt(variance[0]) * x)
        g = 1 / (1 + rest**b / (np.exp(c) * f**a))
        average += w * norm.pdf(t) * g * (1 - g) * (a / f + b / rest)
    unit = model.factor[0] * others.deviation[:, 0]
    assert -np.log(average / unit).mean() == pytest.approx(own_loss(model, others), abs=1e-3)


def test_far_from_the_fit_the_map_stays_within_what_was_seen_there():
    rows = drawn(sized)
    model = beta.fit_gp_beta(rows)
    near = model.marginals(rows.estimates)
    sent = Estimates(np.full((2, 1), 1e8), np.array([[[1e-12]], [[1e10]]]), np.ones(2, bool))
    far = model.marginals(sent)
    for name in ("a", "b", "c"):
        seen, found = getattr(near, name), getattr(far, name)
        assert found.min() >= seen.min() - 1e-12
        assert found.max() <= seen.max() + 1e-12


# ---- fits


def test_sizes_that_depend_on_the_mean_are_found():
    model = beta.fit_gp_beta(drawn(sized))
    others = drawn(sized, seed=1)
    truth = nll(others.deviation * np.exp(np.sin(others.estimates.mean)), others.error)
    # The map of a wider or narrower Gaussian is not quite a Gaussian.
    assert own_loss(model, others) < truth + 0.015
    assert forwarded_loss(model, others) < truth + 0.015


def test_a_shift_that_depends_on_the_mean_is_found_and_forwarded():
    rows, others = drawn(shifted), drawn(shifted, seed=1)
    model = beta.fit_gp_beta(rows)
    truth = nll(
        others.deviation, others.error - others.deviation * 0.8 * np.sin(others.estimates.mean)
    )
    assert own_loss(model, others) < truth + 0.015
    assert forwarded_loss(model, others) < truth + 0.015
    assert scaled_loss(rows, others) > truth + 0.1


def test_gaussian_errors_cost_no_more_than_variance_scaling():
    rows = reference_rows("box4_overconfident_diag", slice(0, 2000))
    others = reference_rows("box4_overconfident_diag", slice(10_000, 12_000))
    model = beta.fit_gp_beta(rows)
    assert own_loss(model, others) < scaled_loss(rows, others) + 0.003
    assert forwarded_loss(model, others) < scaled_loss(rows, others) + 0.003


def test_heavy_tails_gain_over_variance_scaling():
    rows = reference_rows("box4_heavy_tailed", slice(0, 2000))
    others = reference_rows("box4_heavy_tailed", slice(10_000, 12_000))
    assert own_loss(beta.fit_gp_beta(rows), others) < scaled_loss(rows, others) - 0.05


def test_loss_and_quantile_error_on_the_cosine_set_are_below_those_of_the_papers_code():
    model = beta.fit_gp_beta(reference_rows("cosine_mean", slice(0, 2000)))
    held_out = reference_rows("cosine_mean", slice(2000, 2200))
    assert own_loss(model, held_out) < 1.1568
    assert quantile_error(model, held_out) < 0.0505


def test_other_splits_of_the_cosine_set_are_as_good():
    loss, error = [], []
    for fitted, held_out in splits("cosine_mean", 2000, count=3)[1:]:
        model = beta.fit_gp_beta(fitted)
        loss.append(own_loss(model, held_out))
        error.append(quantile_error(model, held_out))
    assert np.mean(loss) < 1.085
    assert max(loss) < 1.11
    assert np.mean(error) < 0.02
