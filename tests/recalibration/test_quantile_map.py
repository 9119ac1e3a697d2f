"""The piecewise straight map of quantiles against numerical integration and slow loops, and its
fit against the likelihood."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from monitor.recalibration.quantiles import (
    LARGEST_SLOPE,
    LEAST_SLOPE,
    TAIL_ROWS,
    QuantileMap,
    QuantileMarginals,
    fit_map,
)

quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def random_map(seed):
    random = np.random.default_rng(seed)
    knots = int(random.integers(1, 9))
    normal = np.sort(random.uniform(-3, 3, knots)) + 0.01 * np.arange(knots)
    error = np.cumsum(random.exponential(size=knots)) + random.normal()
    below, above = np.exp(random.normal(size=2))
    return QuantileMap(tuple(normal.tolist()), tuple(error.tolist()), below, above)


def slow_error(one, zeta):
    """Q(ζ) piece by piece."""
    if zeta < one.normal[0]:
        return one.error[0] + one.below * (zeta - one.normal[0])
    for (k, q), (after, up) in pairwise(zip(one.normal, one.error, strict=True)):
        if zeta < after:
            return q + (up - q) * (zeta - k) / (after - k)
    return one.error[-1] + one.above * (zeta - one.normal[-1])


def integral(one, power, centre=0.0):
    """E[(Q − centre)^power] by quadrature between the knots."""
    ends = [-9.0, *one.normal, 9.0]
    return sum(
        quad(lambda x: (slow_error(one, x) - centre) ** power * norm.pdf(x), low, high)[0]
        for low, high in pairwise(ends)
    )


# ---- the map


@quick
@given(seeds)
def test_mean_and_variance_are_those_of_the_integral(seed):
    one = random_map(seed)
    mean, variance = one.moments
    assert mean == pytest.approx(integral(one, 1), rel=1e-7, abs=1e-7)
    assert variance == pytest.approx(integral(one, 2, mean), rel=1e-7)


def test_far_from_the_origin_the_variance_keeps_its_digits():
    one = random_map(3)
    moved = QuantileMap(one.normal, tuple(q + 1e6 for q in one.error), one.below, one.above)
    assert moved.moments[0] == pytest.approx(one.moments[0] + 1e6, rel=1e-12)
    assert moved.moments[1] == pytest.approx(one.moments[1], rel=1e-8)


@quick
@given(seeds)
def test_the_map_is_straight_between_its_knots(seed):
    one = random_map(seed)
    zeta = np.append(np.random.default_rng(seed).normal(0, 3, 200), one.normal)
    assert one.errors(zeta) == pytest.approx(np.array([slow_error(one, x) for x in zeta]))


@quick
@given(seeds)
def test_normals_undo_errors_and_neither_falls(seed):
    one = random_map(seed)
    zeta = np.sort(np.append(np.random.default_rng(seed).normal(0, 3, 2000), one.normal))
    error = one.errors(zeta)
    assert one.normals(error) == pytest.approx(zeta, abs=1e-9)
    assert (np.diff(error) >= 0).all()
    near = np.sort(np.concatenate([np.nextafter(q, [-np.inf, np.inf]) for q in one.error]))
    assert (np.diff(one.normals(near)) >= 0).all()


@quick
@given(seeds)
def test_the_density_is_the_slope_of_the_cumulative_probability(seed):
    one = random_map(seed)
    ends = [slow_error(one, x) for x in (-9.0, *one.normal, 9.0)]
    for low, high in pairwise(ends):
        mass = quad(lambda z: np.exp(one.log_density(np.array(z))), low, high)[0]
        expected = np.diff(norm.cdf(one.normals(np.array([low, high]))))[0]
        assert mass == pytest.approx(expected, abs=1e-7)


def test_marginals_are_the_map_moved_and_stretched():
    random = np.random.default_rng(4)
    maps = (random_map(1), random_map(2), random_map(5))
    mean, deviation = random.normal(size=(6, 3)), np.exp(random.normal(size=(6, 3)))
    marginals = QuantileMarginals(mean, deviation, maps)
    value = mean + deviation * random.normal(0, 2, (6, 3))
    tau = np.linspace(0.05, 0.95, 19)
    density, cumulative = marginals.log_density(value), marginals.cumulative(value)
    quantiles = marginals.quantiles(tau)
    assert quantiles.shape == (19, 6, 3)
    for n in range(6):
        for i, one in enumerate(maps):
            z = (value[n, i] - mean[n, i]) / deviation[n, i]
            zeta = float(one.normals(np.array(z)))
            assert cumulative[n, i] == pytest.approx(norm.cdf(zeta))
            step = 1e-6
            slope = (slow_error(one, zeta + step) - slow_error(one, zeta - step)) / (2 * step)
            expected = norm.logpdf(zeta) - np.log(slope * deviation[n, i])
            assert density[n, i] == pytest.approx(expected, rel=1e-5, abs=1e-5)
            for t, level in enumerate(tau):
                expected = mean[n, i] + deviation[n, i] * slow_error(one, norm.ppf(level))
                assert quantiles[t, n, i] == pytest.approx(expected)
    # A quantile has its own probability.
    again = np.stack([marginals.cumulative(q) for q in quantiles])
    assert again == pytest.approx(np.broadcast_to(tau[:, None, None], again.shape))


@pytest.mark.parametrize("at", [-8.0, -3.0, 0.0, 0.5, 5.0, 9.0])
@pytest.mark.parametrize("rise", [1.0, 1e4])
def test_moments_are_exact_down_to_the_narrowest_piece_that_is_read(at, rise):
    one = QuantileMap((at, at + 1e-3), (0.0, rise), 1e-3, 1e-3)
    edges = np.array([-39.0, at - 1, at, at + 1e-3, at + 1, 39.0])

    def integral(function):
        pieces = [
            quad(function, low, high, epsabs=1e-12, epsrel=1e-11)[0]
            for low, high in pairwise(edges)
        ]
        return sum(pieces)

    mean = integral(lambda x: slow_error(one, x) * norm.pdf(x))
    variance = integral(lambda x: (slow_error(one, x) - mean) ** 2 * norm.pdf(x))
    assert one.moments == pytest.approx((mean, variance), rel=1e-7)


def test_what_a_fit_holds_are_numbers_of_python():
    one = fit_map(np.random.default_rng(6).standard_t(3, 2000), 2000.0)
    assert {type(value) for value in (*one.normal, *one.error, one.below, one.above)} == {float}


def test_a_straight_map_is_a_gaussian():
    one = QuantileMap((0.0,), (0.3,), 2.0, 2.0)
    z = np.linspace(-8, 8, 33)
    assert one.moments == pytest.approx((0.3, 4.0))
    assert one.log_density(z) == pytest.approx(norm.logpdf(z, 0.3, 2.0))


def test_levels_of_0_and_1_are_the_ends_of_the_line():
    one = random_map(1)
    assert one.errors(np.array([-np.inf, np.inf])).tolist() == [-np.inf, np.inf]


# ---- its fit


@pytest.mark.parametrize("seed", range(5))
def test_gaussian_errors_are_shifted_and_scaled_and_no_more(seed):
    error = np.random.default_rng(seed).normal(0.2, 1.5, 5000)
    one = fit_map(error, 5000.0)
    assert one == QuantileMap((0.0,), (float(np.mean(np.sort(error))),), one.below, one.above)
    assert one.below == one.above == pytest.approx(np.std(error))


def test_a_shift_that_does_not_pay_is_not_fitted():
    error = np.random.default_rng(1).normal(0, 1.5, 5000)
    one = fit_map(error - error.mean() + 1e-3, 5000.0)
    assert one.error == (0.0,)
    assert one.above == pytest.approx(np.sqrt(np.mean((error - error.mean() + 1e-3) ** 2)))


def test_knots_hold_the_share_of_errors_that_their_level_says():
    error = np.random.default_rng(2).standard_t(3, 20_000)
    one = fit_map(error, 20_000.0)
    assert len(one.normal) >= 17
    below = [np.mean(error <= q) for q in one.error]
    assert below == pytest.approx(norm.cdf(one.normal), abs=1e-4)
    assert below[0] * 20_000 == pytest.approx(TAIL_ROWS, abs=1)


@pytest.mark.parametrize("seed", range(3))
def test_tails_are_as_steep_as_the_errors_beyond_the_knot_are_likeliest(seed):
    error = np.random.default_rng(seed).standard_t(4, 5000)
    one = fit_map(error, 5000.0)
    for sign, knot, at, slope in (
        (1, one.normal[-1], one.error[-1], one.above),
        (-1, -one.normal[0], -one.error[0], one.below),
    ):
        beyond = sign * error[sign * error > at] - at

        def loss(log_slope, knot=knot, beyond=beyond):
            return -np.mean(norm.logpdf(knot + beyond / np.exp(log_slope)) - log_slope)

        best = minimize_scalar(loss, (-2.0, 2.0))
        assert slope == pytest.approx(np.exp(best.x), rel=1e-5)


def test_correlated_rows_bear_out_fewer_knots():
    error = np.random.default_rng(3).standard_t(5, 4000)
    found = [len(fit_map(error, worth).normal) for worth in (4000.0, 400.0, 40.0)]
    assert found[0] > found[1] > found[2] == 1


@pytest.mark.parametrize("digits", [0, 1])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_errors_that_repeat_leave_the_map_rising(digits, share):
    random = np.random.default_rng(4)
    error = np.round(random.normal(0, 2, 3000), digits) * (random.random(3000) >= share)
    one = fit_map(error, 3000.0)
    assert one.slopes.min() >= LEAST_SLOPE * (1 - 1e-9)
    assert one.slopes.max() <= LARGEST_SLOPE
    assert np.isfinite(one.moments).all()
    assert np.isfinite(one.log_density(np.linspace(-1e6, 1e6, 999))).all()


def test_errors_without_a_variance_have_finite_moments():
    error = np.random.default_rng(5).standard_cauchy(2000)
    one = fit_map(error, 2000.0)
    mean, variance = one.moments
    assert abs(mean) < np.sqrt(variance) < np.sqrt(np.mean(error**2))
    assert one.errors(norm.ppf([0.25, 0.75])) == pytest.approx([-1.0, 1.0], abs=0.15)
