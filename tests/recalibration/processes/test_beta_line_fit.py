"""The factor and the line of a beta map: against an optimiser without derivatives, and on errors
whose fault is known."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from monitor.recalibration.processes.beta import PRIOR, direction, factor_on_deviation, refined
from monitor.recalibration.processes.beta_map import BOUNDS, BetaErrors, BetaLine, beta_likelihood


def errors_of(normalised, deviation=1.0):
    return BetaErrors(normalised, np.log(deviation) * np.ones(normalised.size))


def printed_log_density(t, a, b, c):
    f, rest = norm.cdf(t), norm.sf(t)
    g = 1 / (1 + rest**b / (np.exp(c) * f**a))
    return norm.logpdf(t) + np.log(g * (1 - g) * (a / f + b / rest))


def test_a_constant_map_is_that_of_the_largest_penalised_likelihood():
    z = np.random.default_rng(0).gamma(2.0, size=400) - 2.0

    def loss(packed):
        factor, a, b = np.exp(packed[:3])
        prior = 0.5 * np.square(packed[1:] / PRIOR).sum()
        t = z / factor
        return prior - (printed_log_density(t, a, b, packed[3]) - packed[0]).sum()

    factor, line = refined(errors_of(z), factor_on_deviation(z), BetaLine(), 1.0)
    found = np.array([np.log(factor), *line.base])
    best = minimize(
        loss, found + 0.2, method="Nelder-Mead", options={"xatol": 1e-6, "maxiter": 5000}
    )
    assert loss(found) == pytest.approx(best.fun, abs=0.02)
    assert line.loading == (0.0, 0.0, 0.0)


def test_gaussian_errors_leave_a_gaussian_of_their_size():
    z = 3.0 * np.random.default_rng(1).normal(size=20_000)
    factor, line = refined(errors_of(z), factor_on_deviation(z), BetaLine(), 1.0)
    likelihood = beta_likelihood(errors_of(z), factor, line)
    value, _ = likelihood.log_likelihood(np.zeros((1, z.size)))
    assert value.mean() == pytest.approx(norm.logpdf(z, scale=3.0).mean(), abs=5e-4)


def test_a_factor_that_does_not_move_is_kept():
    z = np.random.default_rng(2).normal(size=300)
    factor, _ = refined(errors_of(z), 2.5, BetaLine(), 1.0, factor_moves=False)
    assert factor == pytest.approx(2.5, rel=1e-12)


def test_a_line_is_found_back_at_known_latent_values():
    """Base and loading that errors were drawn with; the loading comes with length 1."""
    random = np.random.default_rng(3)
    latent = random.normal(size=10_000)
    a = np.exp(0.2 + 0.5 * latent)
    # a = b and c = 0: by symmetry |t| has the same law on either side.
    g = random.uniform(size=latent.size)
    odds = np.log(g / (1 - g)) / a
    z = norm.ppf(1 / (1 + np.exp(-odds)))
    known = (latent[None], np.zeros((1, latent.size)))
    start = BetaLine((0.0, 0.0, 0.0), (0.3, 0.3, 0.0))
    _, line = refined(errors_of(z), 1.0, start, 1.0, known, factor_moves=False)
    assert line.base == pytest.approx((0.2, 0.2, 0.0), abs=0.1)
    assert line.loading == pytest.approx((np.sqrt(0.5), np.sqrt(0.5), 0.0), abs=0.1)


@pytest.mark.parametrize("z", [[3.0], [0.0, 0.0, 1e-9], [1e9, -1e-9, 0.0], [2.0, 2.0, 2.0, 2.0]])
def test_a_few_rows_give_a_map_within_its_bounds(z):
    z = np.array(z)
    factor, line = refined(errors_of(z), factor_on_deviation(z), BetaLine(), 1.0)
    assert np.isfinite(factor)
    assert factor > 0
    assert all(abs(x) <= bound for x, bound in zip(line.base, BOUNDS, strict=True))


def test_the_factor_is_that_of_the_central_interval_and_of_those_with_errors_where_few_have():
    z = np.random.default_rng(4).normal(size=50_000)
    assert factor_on_deviation(2.5 * z) == pytest.approx(2.5, rel=0.02)
    sparse = np.zeros(100)
    sparse[3] = 5.0
    assert factor_on_deviation(sparse) == pytest.approx(0.5)


def test_the_direction_is_the_scale_where_sizes_vary_and_the_shift_where_signs_do():
    random = np.random.default_rng(5)
    x, noise = random.uniform(-1, 1, (4000, 1)), random.normal(size=4000)
    useless = random.normal(size=(4000, 1))
    inputs = np.concatenate([useless, x], axis=1)

    def found(z):
        factor = factor_on_deviation(z)
        _, line = refined(errors_of(z), factor, BetaLine(), 1.0, factor_moves=False)
        return direction(beta_likelihood(errors_of(z), factor, line), inputs)

    scale = found(np.exp(x[:, 0]) * noise)
    assert scale[0] > 0.5
    assert scale[1] > 0.5
    assert np.linalg.norm(scale) == pytest.approx(1.0)
    shift = found(x[:, 0] + noise)
    assert shift[0] * shift[1] < 0 or abs(shift[2]) > 0.7


def test_without_inputs_the_direction_is_the_scale():
    z = np.random.default_rng(6).normal(size=100)
    likelihood = beta_likelihood(errors_of(z), 1.0, BetaLine())
    assert direction(likelihood, np.zeros((100, 0))) == pytest.approx(
        (np.sqrt(0.5), np.sqrt(0.5), 0.0)
    )
