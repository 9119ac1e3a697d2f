"""GP-Beta and GP-Cauchy: maps and likelihoods against plain integration, the printed equations,
SciPy and an optimiser without derivatives, and how near fits come."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import cauchy, norm

from monitor.recalibration.processes import cauchy as cauchy_module
from monitor.recalibration.processes.beta import (
    BOUNDS,
    LARGEST,
    LARGEST_SHIFT,
    BetaLine,
    BetaMarginals,
    log_odds,
    logit,
    moment_table,
    moments,
    quantile_table,
    standard_quantile,
)
from monitor.recalibration.processes.beta_fit import (
    FURTHEST,
    PRIOR,
    BetaErrors,
    beta_likelihood,
    factor_on_deviation,
    fit_gp_beta,
    refined,
)
from monitor.recalibration.processes.cauchy import CauchyMarginals, cauchy_likelihood
from monitor.recalibration.processes.sparse_process import latent_nodes
from monitor.recalibration.recalibrator import UnfitData
from tests.recalibration.rows import (
    forwarded_loss,
    nll,
    own_loss,
    reference_rows,
    rows_from,
    rows_of,
    scaled_loss,
)

# a, b, c: unchanged, wide with two peaks, narrow, skewed, shifted, at the bounds.
MAPS = [
    (1.0, 1.0, 0.0),
    (0.2, 0.2, 0.0),
    (5.0, 5.0, 0.3),
    (0.3, 4.0, 1.0),
    (1.5, 0.7, -4.0),
    (np.exp(LARGEST), np.exp(-LARGEST), -LARGEST_SHIFT),
]


logs = st.floats(-LARGEST, LARGEST)
shifts = st.floats(-LARGEST_SHIFT, LARGEST_SHIFT)


def marginals(a, b, c, mean=0.0, unit=1.0):
    """With quantiles by a search, where served ones are read off a table."""
    mean, unit, a, b, c = (np.full((1, 1), x) for x in (mean, unit, a, b, c))
    return BetaMarginals(
        *(mean, unit, a, b, c), lambda tau: standard_quantile(log_odds(tau)[:, None, None], a, b, c)
    )


def printed(t, a, b, c):
    """G and the log of its slope times the Gaussian density, as the paper prints them."""
    f, rest = norm.cdf(t), norm.sf(t)
    g = 1 / (1 + rest**b / (np.exp(c) * f**a))
    return g, norm.logpdf(t) + np.log(g * (1 - g) * (a / f + b / rest))


def density(found, value):
    return float(np.exp(found.log_density(np.array([[value]]))).item())


def probability(found, value):
    return float(found.cumulative(np.array([[value]])).item())


def pieces(found):
    """Where to cut an integral: the density may be narrow, or have two peaks."""
    tau = [1e-15, 1e-9, 1e-5, 1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 1 - 1e-3, 1 - 1e-5, 1 - 1e-10]
    return found.quantiles(np.array(tau)).ravel()


def integral(function, edges):
    return sum(
        quad(function, low, high, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for low, high in pairwise(edges)
    )


@pytest.mark.parametrize(("a", "b", "c"), MAPS)
def test_density_and_probability_are_those_of_the_printed_map(a, b, c):
    found = marginals(a, b, c, 3.0, 0.4)
    for t in (-3.0, -0.7, 0.0, 1.1, 2.9):
        g, log_density = printed(t, a, b, c)
        assert probability(found, 3.0 + 0.4 * t) == pytest.approx(g, rel=1e-9)
        assert density(found, 3.0 + 0.4 * t) == pytest.approx(np.exp(log_density) / 0.4, rel=1e-9)


@given(logs, logs, shifts, st.floats(-1e14, 1e14))
def test_quantiles_ascend_and_the_probability_undoes_them(log_a, log_b, c, far):
    found = marginals(np.exp(log_a), np.exp(log_b), c)
    tau = np.concatenate([[1e-12, 1e-6], np.linspace(0.01, 0.99, 50), [1 - 1e-6]])
    quantile = found.quantiles(tau)[:, 0, 0]
    assert (np.diff(quantile) > 0).all()
    back = [probability(found, value) for value in quantile]
    assert back == pytest.approx(tau, abs=1e-9)
    assert found.quantiles(np.array([0.0, 1.0])).ravel().tolist() == [-np.inf, np.inf]
    # Nothing overflows however far out a value lies.
    assert np.isfinite(found.log_density(np.array([[far]]))).all()
    assert 0 <= probability(found, far) <= 1


@pytest.mark.parametrize(("a", "b", "c"), MAPS)
@pytest.mark.parametrize("y", [-4.0, 0.3, 2.0])
def test_the_crps_is_the_integral_of_the_probability(a, b, c, y):
    found = marginals(a, b, c, 3.0, 0.4)
    value = 3.0 + 0.4 * y
    edges = np.sort(np.append(pieces(found), value))
    expected = integral(lambda x: (probability(found, x) - (x >= value)) ** 2, edges)
    assert found.crps(np.array([[value]])).item() == pytest.approx(expected, rel=1e-7)


# ---- moments and tables


@pytest.mark.parametrize(("a", "b", "c"), MAPS)
def test_moments_are_those_of_the_density(a, b, c):
    line = BetaLine((np.log(a), np.log(b), c), (0.0, 0.0, 0.0))
    found_mean, log_deviation = moments(line, np.zeros(1))[0]
    whole = marginals(a, b, c)
    edges = pieces(whole)
    mean = integral(lambda t: t * density(whole, t), edges)
    variance = integral(lambda t: (t - mean) ** 2 * density(whole, t), edges)
    assert found_mean.item() == pytest.approx(mean, abs=1e-7 * np.sqrt(variance))
    assert np.exp(2 * log_deviation.item()) == pytest.approx(variance, rel=1e-6)


LINES = [
    (BetaLine((0.1, 0.2, 0.0), (0.8, 0.6, 0.1)), (-2.0, 1.5)),
    (BetaLine((0.0, 0.3, 0.5), (0.7, -0.7, 0.4)), (-2.5, 2.5)),
    (BetaLine((0.4, 0.0, 0.0), (0.0, 0.0, 1.0)), (-5.0, 3.0)),
]


@pytest.mark.parametrize("ranges", [tuple(bounds for _, bounds in LINES), ((0.7, 0.7),) * 3])
def test_tables_give_moments_and_quantiles_of_every_line_within_its_range(ranges):
    lines, levels = tuple(line for line, _ in LINES), (1e-12, 0.05, 0.5, 0.95, 1 - 1e-9)
    latent = np.stack([np.linspace(low, high, 301) for low, high in ranges])
    mean, log_deviation = moment_table(lines, ranges).at(latent)
    found = quantile_table(lines, ranges, levels).at(latent)
    assert found.shape == (5, 3, 301)
    for row, line in enumerate(lines):
        exact = moments(line, latent[row])[0]
        assert mean[row] == pytest.approx(exact[0], abs=1e-6)
        assert log_deviation[row] == pytest.approx(exact[1], abs=1e-6)
        # Not the probability: that would forgive the tails.
        odds = logit(found[:, row], *line.at(latent[row]))
        assert pytest.approx(np.tile(log_odds(np.array(levels)), (301, 1)), abs=1e-8) == odds.T


# ---- the line


@given(
    st.tuples(logs, logs, shifts),
    st.tuples(*[st.floats(-3, 3)] * 3),
    st.floats(-100, 100),
    st.floats(0, 100),
)
def test_a_range_is_moved_to_where_all_three_parameters_are_within_their_bounds(
    base, loading, low, width
):
    line, high = BetaLine(base, loading), low + width
    moved = line.within(low, high)
    assert moved[0] <= moved[1]
    assert line.bounded(*moved)
    # By more than rounding and the margin that is kept.
    ends = np.abs(np.array(base) + np.outer([low, high], line.loading))
    if (ends <= (1 - 1e-6) * np.array(BOUNDS)).all():
        assert moved == (low, high)


# ---- the likelihood

LINE = BetaLine((0.2, -0.1, 0.3), (0.8, 0.55, 0.2))
STEP = 1e-6


def errors_of(normalised, deviation=1.0):
    return BetaErrors(normalised, np.log(deviation) * np.ones(normalised.size))


def errors_along(seed):
    random = np.random.default_rng(seed)
    deviation = np.exp(0.5 * random.normal(size=60))
    error = 2 * 1.7 * deviation * random.normal(size=60)
    return error, deviation, beta_likelihood(errors_of(error / deviation, deviation), 1.7, LINE)


def test_the_log_likelihood_is_the_density_of_the_printed_map():
    error, deviation, likelihood = errors_along(0)
    latent = np.array([[-1.5], [0.0], [0.7]]) + np.zeros(error.size)
    a, b, c = np.exp(0.2 + 0.8 * latent), np.exp(-0.1 + 0.55 * latent), 0.3 + 0.2 * latent
    _, expected = printed(error / (1.7 * deviation), a, b, c)
    value, _ = likelihood.log_likelihood(latent)
    assert value == pytest.approx(expected - np.log(1.7 * deviation), abs=1e-8)


def test_the_derivatives_by_factor_and_line_are_finite_differences_of_the_same_expectation():
    error, deviation, likelihood = errors_along(3)
    mean, variance = np.linspace(-1, 1, 60), np.full(60, 0.2)
    latent = latent_nodes(mean, variance)
    value, slopes = likelihood.expected_by_map(latent)
    assert value == pytest.approx(likelihood.expected(mean[None], variance[None]).value.sum())

    def moved(entry, step):
        numbers = [np.log(1.7), *LINE.base, *LINE.loading]
        numbers[entry] += step
        line = BetaLine(tuple(numbers[1:4]), tuple(numbers[4:]))
        errors = errors_of(error / deviation, deviation)
        return beta_likelihood(errors, np.exp(numbers[0]), line).expected_by_map(latent)[0]

    for entry, found in enumerate(slopes):
        slope = (moved(entry, STEP) - moved(entry, -STEP)) / (2 * STEP)
        assert found == pytest.approx(slope, rel=1e-5, abs=1e-4)


def test_an_error_beyond_the_furthest_counts_as_one_there():
    likelihood = beta_likelihood(errors_of(np.array([5 * FURTHEST, FURTHEST])), 1.0, LINE)
    value, _ = likelihood.log_likelihood(np.zeros((1, 2)))
    assert value[0, 0] == value[0, 1]
    assert likelihood.by_log_factor(np.zeros((1, 2))).tolist() == [[-1.0, -1.0]]


# ---- fits of factor, line and direction


def test_a_constant_map_is_that_of_the_largest_penalised_likelihood():
    z = np.random.default_rng(0).gamma(2.0, size=400) - 2.0

    def loss(packed):
        factor, a, b = np.exp(packed[:3])
        prior = 0.5 * np.square(packed[1:] / PRIOR).sum()
        t = z / factor
        return prior - (printed(t, a, b, packed[3])[1] - packed[0]).sum()

    factor, line = refined(errors_of(z), factor_on_deviation(z), BetaLine(), 1.0)
    found = np.array([np.log(factor), *line.base])
    best = minimize(loss, found + 0.2, method="Nelder-Mead", options={"maxiter": 5000})
    assert loss(found) == pytest.approx(best.fun, abs=0.02)
    assert line.loading == (0.0, 0.0, 0.0)


def test_the_factor_is_that_of_the_central_interval_and_of_those_with_errors_where_few_have():
    z = np.random.default_rng(4).normal(size=50_000)
    assert factor_on_deviation(2.5 * z) == pytest.approx(2.5, rel=0.02)
    sparse = np.zeros(100)
    sparse[3] = 5.0
    assert factor_on_deviation(sparse) == pytest.approx(0.5)


# ---- the method


def shifted(seed, n=2000):
    """Errors of one dimension, off by what bends with the mean."""
    random = np.random.default_rng(seed)
    x, sigma = random.uniform(-3, 3, n), np.exp(0.3 * random.normal(size=n))
    error = sigma * (0.8 * np.sin(x) + random.normal(size=n))
    return rows_from(x[:, None], np.square(sigma)[:, None], error[:, None])


def quantile_error(model, rows):
    """Mean over τ of |share within the central τ interval − τ|."""
    truth = rows.estimates.mean + rows.error
    level, tau = model.marginals(rows.estimates).cumulative(truth), np.arange(1, 20) * 0.05
    inside = np.abs(2 * level.ravel() - 1) <= tau[:, None]
    return float(np.abs(inside.mean(axis=1) - tau).mean())


def test_a_shift_that_depends_on_the_mean_is_found_and_forwarded():
    rows, others = shifted(0), shifted(1)
    model = fit_gp_beta(rows)
    left = others.error - others.deviation * 0.8 * np.sin(others.estimates.mean)
    truth = nll(others.deviation, left)
    assert own_loss(model, others) < truth + 0.015
    assert forwarded_loss(model, others) < truth + 0.015
    assert scaled_loss(rows, others) > truth + 0.1


def test_loss_and_quantile_error_on_the_cosine_set_are_below_those_of_the_papers_code():
    model = fit_gp_beta(reference_rows("cosine_mean", slice(0, 2000)))
    held_out = reference_rows("cosine_mean", slice(2000, 2200))
    assert own_loss(model, held_out) < 1.1568
    assert quantile_error(model, held_out) < 0.0505


# ---- GP-Cauchy


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

    def loss(f):
        return -cauchy.logpdf(error, scale=np.exp(f) * deviation).sum()

    best = minimize_scalar(loss, bounds=(-12, 12), options={"xatol": 1e-10})
    assert likelihood.start == pytest.approx([best.x], abs=1e-5)


@pytest.mark.parametrize("error", [[0.0], [0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 2.0, 0.0, 1.0]])
def test_half_of_the_rows_without_an_error_is_refused_with_the_name(error):
    with pytest.raises(UnfitData, match="dimension 'depth' has no error"):
        cauchy_likelihood("depth", np.array(error), np.ones(len(error)))


def test_density_probability_and_quantiles_are_those_of_a_cauchy():
    random = np.random.default_rng(5)
    location, scale = random.normal(size=(6, 3)), np.exp(random.normal(size=(6, 3)))
    found, value = CauchyMarginals(location, scale), 3 * random.standard_cauchy((6, 3))
    tau = np.array([1e-12, 0.05, 0.3, 0.5, 0.8, 0.999])
    assert found.log_density(value) == pytest.approx(cauchy.logpdf(value, location, scale))
    assert found.cumulative(value) == pytest.approx(cauchy.cdf(value, location, scale))
    expected = cauchy.ppf(tau[:, None, None], location, scale)
    assert found.quantiles(tau) == pytest.approx(expected, rel=1e-9)
    for y in (-40.0, -0.5, 0.0, 3.0):
        below, above = (
            quad(lambda x: cauchy.cdf(x) ** 2, -np.inf, y)[0],
            quad(lambda x: cauchy.sf(x) ** 2, y, np.inf)[0],
        )
        unit = CauchyMarginals(np.zeros((1, 1)), np.ones((1, 1)))
        assert unit.crps(np.array([[y]])).item() == pytest.approx(below + above, rel=1e-7)
    units = CauchyMarginals(np.zeros((6, 3)), np.ones((6, 3)))
    assert found.crps(value) == pytest.approx(scale * units.crps((value - location) / scale))


@cache
def cauchy_fit():
    """With a scale that depends on σ, and the rows."""
    random = np.random.default_rng(0)
    sigma = np.exp(random.normal(size=(1500, 1)))
    rows = rows_of(sigma, np.sqrt(sigma) * random.standard_cauchy(sigma.shape))
    return cauchy_module.fit_gp_cauchy(rows), rows.estimates


@pytest.mark.parametrize("level", [0.3, 0.6827, 0.95])
def test_what_is_forwarded_holds_the_stated_share_in_the_same_interval_as_the_cauchy(level):
    model, sent = cauchy_fit()
    model = replace(model, surrogate_level=level)
    made = model.apply(sent)
    upper = model.marginals(sent).quantiles(np.array([(1 + level) / 2]))[0] - made.mean
    assert norm.cdf(upper / made.deviation) == pytest.approx(np.full(upper.shape, (1 + level) / 2))
    assert made.mean is sent.mean


def test_the_loss_on_the_cauchy_set_is_below_that_of_the_papers_code():
    model = cauchy_module.fit_gp_cauchy(reference_rows("cauchy_1d", slice(0, 2000)))
    held_out = reference_rows("cauchy_1d", slice(2000, 4000))
    assert own_loss(model, held_out) <= 1.8990
