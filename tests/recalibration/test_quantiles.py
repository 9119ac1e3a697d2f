"""Isotonic regression on quantiles: the piecewise straight map against numerical integration and
slow loops, its fit against the likelihood, and its figures on the reference sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from monitor.recalibration.quantiles import (
    LARGEST_ERROR,
    LARGEST_SLOPE,
    LEAST_SLOPE,
    TAIL_ROWS,
    QuantileMap,
    QuantileMarginals,
    fit_isotonic_quantiles,
    fit_map,
)
from monitor.statistics.measures import NormalMarginals
from tests.recalibration.rows import one_scale, rows_of, splits

seeds = st.integers(0, 2**32 - 1)
TAU = np.linspace(0.05, 0.95, 19)


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


@given(seeds)
def test_mean_and_variance_are_those_of_the_integral(seed):
    one = random_map(seed)
    mean, variance = one.moments
    assert mean == pytest.approx(integral(one, 1), rel=1e-7, abs=1e-7)
    assert variance == pytest.approx(integral(one, 2, mean), rel=1e-7)


@given(seeds)
def test_the_map_is_straight_between_its_knots(seed):
    one = random_map(seed)
    zeta = np.append(np.random.default_rng(seed).normal(0, 3, 200), one.normal)
    assert one.errors(zeta) == pytest.approx(np.array([slow_error(one, x) for x in zeta]))


@given(seeds)
def test_normals_undo_errors_and_neither_falls(seed):
    one = random_map(seed)
    zeta = np.sort(np.append(np.random.default_rng(seed).normal(0, 3, 2000), one.normal))
    error = one.errors(zeta)
    assert one.normals(error) == pytest.approx(zeta, abs=1e-9)
    assert (np.diff(error) >= 0).all()
    near = np.sort(np.concatenate([np.nextafter(q, [-np.inf, np.inf]) for q in one.error]))
    assert (np.diff(one.normals(near)) >= 0).all()


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
    z = random.normal(0, 2, (6, 3))
    density = marginals.log_density(mean + deviation * z) + np.log(deviation)
    cumulative = marginals.cumulative(mean + deviation * z)
    quantiles = (marginals.quantiles(TAU) - mean) / deviation
    for i, one in enumerate(maps):
        assert density[:, i] == pytest.approx(one.log_density(z[:, i]))
        assert cumulative[:, i] == pytest.approx(norm.cdf(one.normals(z[:, i])))
        errors = [slow_error(one, zeta) for zeta in norm.ppf(TAU)]
        assert quantiles[:, :, i] == pytest.approx(np.tile(errors, (6, 1)).T)


# ---- its fit


@pytest.mark.parametrize("seed", range(5))
def test_gaussian_errors_are_shifted_and_scaled_and_no_more(seed):
    error = np.random.default_rng(seed).normal(0.2, 1.5, 5000)
    one = fit_map(error, 5000.0)
    assert one == QuantileMap((0.0,), (float(np.mean(np.sort(error))),), one.below, one.above)
    assert one.below == one.above == pytest.approx(np.std(error))


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


# ---- what is forwarded


def test_without_errors_beyond_a_knot_its_tail_is_as_steep_as_the_next_piece():
    one = fit_map(np.tile([-2.0, -1.0, 1.0, 2.0], 500), 2000.0)
    assert len(one.normal) > 1
    assert (one.below, one.above) == pytest.approx((one.slopes[1], one.slopes[-2]))


def test_an_error_of_billions_of_sigmas_is_taken_as_a_million():
    error = np.append(np.random.default_rng(1).normal(size=2000), 1e200)
    found = fit_isotonic_quantiles(rows_of(np.ones(2001), error))
    assert found == fit_isotonic_quantiles(rows_of(np.ones(2001), np.minimum(error, LARGEST_ERROR)))
    assert np.isfinite(found.scale).all()


# ---- figures on the reference sets


def scores(marginals, rows):
    """NLL, gap of one-sided coverage and pinball loss, means over rows and dimensions."""
    value = rows.estimates.mean + rows.error
    coverage = (marginals.cumulative(value)[..., None] <= TAU).mean(axis=0)
    off = value - marginals.quantiles(TAU)
    level = TAU[:, None, None]
    return np.array(
        [
            -marginals.log_density(value).mean(),
            np.abs(coverage - TAU).mean(),
            np.maximum(level * off, (level - 1) * off).mean(),
        ]
    )


def gains(name, fitted_rows):
    """What the method is better than variance scaling by; (splits, 3)."""
    found = []
    for fitted, evaluated in splits(name, fitted_rows):
        scaled = evaluated.estimates.rescaled(one_scale(fitted))
        before = scores(NormalMarginals(scaled.mean, scaled.deviation), evaluated)
        after = scores(fit_isotonic_quantiles(fitted).marginals(evaluated.estimates), evaluated)
        found.append(before - after)
    return np.array(found)


def test_gaussian_errors_are_recalibrated_as_well_as_by_scaling():
    found = gains("levi_overconfident", 25_000)
    # A straight map through 0 is variance scaling.
    assert np.abs(found[0]).max() < 1e-9
    assert found[:, 0].min() > -0.0005
    assert np.abs(found[1:].mean(axis=0)).max() < 0.001


def test_heavy_tails_are_recalibrated_far_better_than_by_scaling():
    found = gains("box4_heavy_tailed", 10_000)
    assert (found > 0).all()
    nll, coverage, pinball = found.mean(axis=0)
    assert nll > 0.14
    assert coverage > 0.04
    assert pinball > 0.05
