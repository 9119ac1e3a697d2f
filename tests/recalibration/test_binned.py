"""Histogram binning, isotonic regression on σ and on quantiles: against slow loops, the min-max
formula, numerical integration and the likelihood itself."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from monitor.recalibration.binned import (
    FEWEST_ROWS,
    IsotonicStd,
    cells_of,
    fit_histogram_binning,
    fit_isotonic_std,
)
from monitor.recalibration.fit_rows import FitSums
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
from tests.recalibration.rows import (
    as_read,
    nll,
    own_loss,
    reference_rows,
    rows_of,
    scaled_loss,
    wrong_by_size,
)

seeds = st.integers(0, 2**32 - 1)

# ---- the cells


@pytest.mark.parametrize("fit", [fit_histogram_binning, fit_isotonic_std])
def test_a_fit_of_sums_is_as_good_as_that_of_the_rows(fit):
    """Cells begin where micro-bins do, which are 2 % of σ wide."""
    rows, others = wrong_by_size(1, 5000, 2), wrong_by_size(2, 20_000, 2)
    found = [fit(one) for one in (rows, FitSums(rows.statistics))]
    of_rows, of_sums = (nll(one.apply(others.estimates).deviation, others.error) for one in found)
    assert of_sums == pytest.approx(of_rows, abs=0.003)
    assert of_sums < nll(others.deviation, others.error) - 0.1


@given(seeds, st.integers(1, 5000), st.integers(0, 3), st.floats(0.02, 1.0))
def test_cells_are_thick_enough_and_equal_deviations_stay_together(seed, n, digits, weight):
    random = np.random.default_rng(seed)
    sigma = np.round(np.exp(random.normal(size=n)), digits) + 0.1
    error = sigma * random.normal(size=n) * (random.random(n) < 0.3)
    error[0] = 1.0
    cells = cells_of(sigma, error, weight)
    index = np.searchsorted(cells.start, sigma, side="right") - 1
    assert index.min() == 0
    assert np.array_equal(np.bincount(index), cells.rows)
    assert cells.start.size <= np.cbrt(n * weight) + 1
    assert cells.start.size == 1 or (cells.rows * weight).min() >= FEWEST_ROWS
    for c in range(cells.start.size):
        inside = index == c
        assert cells.squared_error[c] == pytest.approx(np.mean(error[inside] ** 2))
        assert cells.nees[c] == pytest.approx(np.mean((error[inside] / sigma[inside]) ** 2))
        assert cells.variance[c] == pytest.approx(np.mean(sigma[inside] ** 2))
        assert cells.nees[c] > 0


def test_cells_of_gaussian_errors_are_as_many_as_the_cube_root_of_the_rows():
    rows = reference_rows("levi_overconfident", slice(0, 25_000))
    assert cells_of(rows.deviation[:, 0], rows.error[:, 0], 1.0).start.size == 29


def test_cells_without_an_error_are_joined_to_those_with_one():
    sigma = np.arange(1.0, 2001.0)
    error = np.where(sigma > 1000, np.random.default_rng(6).normal(size=2000), 0.0)
    cells = cells_of(sigma, error, 1.0)
    assert cells.rows[0] > 1000
    assert cells.squared_error.min() > 0
    assert cells_of(sigma, error[::-1], 1.0).rows[-1] > 1000


# ---- histogram binning


@given(seeds)
def test_a_bin_gives_what_its_own_rows_say(seed):
    rows = wrong_by_size(seed, 1500, 2)
    model = fit_histogram_binning(rows)
    made = model.apply(rows.estimates).deviation
    for i in range(2):
        edges = [0.0, *model.edges[i], np.inf]
        assert len(edges) > 8
        for low, high in pairwise(edges):
            inside = [j for j in range(rows.n) if low <= rows.deviation[j, i] < high]
            error, sigma = rows.error[inside, i], rows.deviation[inside, i]
            expected = sigma * np.sqrt(np.mean((error / sigma) ** 2))
            assert made[inside, i] == pytest.approx(expected, rel=1e-12)


# ---- isotonic regression


def bumpy(seed, n=1500):
    """Errors that fall, rise and fall with σ."""
    random = np.random.default_rng(seed)
    sigma = np.exp(random.normal(size=n))
    return rows_of(sigma, random.normal(size=n) * (1.5 + np.sin(3 * np.log(sigma))))


@given(seeds)
def test_knots_lie_on_the_isotonic_regression_of_squared_errors(seed):
    rows = bumpy(seed)
    cells = cells_of(rows.deviation[:, 0], rows.error[:, 0], 1.0)
    m, n = cells.squared_error, cells.rows
    model = fit_isotonic_std(rows)
    # max over what begins before, min over what ends after, of the mean (Barlow et al. 1972).
    for c in range(m.size):
        expected = max(
            min(np.average(m[a : b + 1], weights=n[a : b + 1]) for b in range(c, m.size))
            for a in range(c + 1)
        )
        assert model.deviation[0][c] == pytest.approx(np.sqrt(cells.variance[c]))
        assert model.factor[0][c] * model.deviation[0][c] == pytest.approx(np.sqrt(expected))


@given(seeds)
def test_of_two_detections_the_one_with_the_larger_sigma_never_comes_out_as_the_better(seed):
    model = fit_isotonic_std(bumpy(seed))
    sigma = np.geomspace(1e-6, 1e5, 3000)
    made = model.apply(rows_of(sigma, sigma).estimates).deviation[:, 0]
    assert (np.diff(made) >= -1e-12 * made[1:]).all()
    # Beyond the outer knots the factor stays.
    ratio, low, high = made / sigma, model.deviation[0][0], model.deviation[0][-1]
    assert ratio[sigma < low] == pytest.approx(model.factor[0][0])
    assert ratio[sigma > high] == pytest.approx(model.factor[0][-1])


def test_deviations_that_differ_by_rounding_make_one_knot():
    random = np.random.default_rng(5)
    sigma = 1.0 + np.arange(5000) * 2.0**-50
    model = fit_isotonic_std(rows_of(sigma, 2.0 * random.normal(size=5000)))
    assert len(model.factor[0]) == 1
    assert as_read(IsotonicStd, model.parameters()) == model


@pytest.mark.parametrize("fit", [fit_histogram_binning, fit_isotonic_std])
def test_an_error_that_is_not_in_proportion_to_sigma_is_found(fit):
    fitted, evaluated = wrong_by_size(3, 4000), wrong_by_size(4, 4000)
    made = fit(fitted).apply(evaluated.estimates).deviation
    best = nll(np.sqrt(evaluated.deviation), evaluated.error)
    assert nll(made, evaluated.error) < best + 0.01
    assert scaled_loss(fitted, evaluated) > best + 0.1


seeds = st.integers(0, 2**32 - 1)
TAU = np.linspace(0.05, 0.95, 19)


def random_map(seed):
    random = np.random.default_rng(seed)
    knots = int(random.integers(1, 9))
    normal = np.sort(random.uniform(-3, 3, knots)) + 0.01 * np.arange(knots)
    error = np.cumsum(random.exponential(size=knots)) + random.normal()
    below, above = np.exp(random.normal(size=2))
    return QuantileMap(normal, error, below, above)


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
def test_the_map_is_straight_between_its_knots_and_undone_and_never_falls(seed):
    one = random_map(seed)
    zeta = np.sort(np.append(np.random.default_rng(seed).normal(0, 3, 300), one.normal))
    error = one.errors(zeta)
    assert error == pytest.approx(np.array([slow_error(one, x) for x in zeta]))
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


@given(seeds, st.floats(-6, 6))
def test_the_crps_is_its_integral_between_the_knots(seed, y):
    one = random_map(seed)
    ends = np.sort([*(slow_error(one, x) for x in (-9.0, *one.normal, 9.0)), y])
    expected = sum(
        quad(lambda z, below: (norm.cdf(one.normals(np.array(z))) - (not below)) ** 2, *piece)[0]
        for piece in ((low, high, (high <= y,)) for low, high in pairwise(ends))
    )
    assert one.crps(np.array(y)) == pytest.approx(expected, rel=1e-7, abs=1e-8)


def test_marginals_are_the_map_moved_and_stretched():
    random = np.random.default_rng(4)
    maps = (random_map(1), random_map(2), random_map(5))
    mean, deviation = random.normal(size=(6, 3)), np.exp(random.normal(size=(6, 3)))
    marginals = QuantileMarginals(mean, deviation, maps)
    z = random.normal(0, 2, (6, 3))
    density = marginals.log_density(mean + deviation * z) + np.log(deviation)
    cumulative = marginals.cumulative(mean + deviation * z)
    quantiles = (marginals.quantiles(TAU) - mean) / deviation
    score = marginals.crps(mean + deviation * z) / deviation
    for i, one in enumerate(maps):
        assert score[:, i] == pytest.approx(one.crps(z[:, i]))
        assert density[:, i] == pytest.approx(one.log_density(z[:, i]))
        assert cumulative[:, i] == pytest.approx(norm.cdf(one.normals(z[:, i])))
        errors = [slow_error(one, zeta) for zeta in norm.ppf(TAU)]
        assert quantiles[:, :, i] == pytest.approx(np.tile(errors, (6, 1)).T)


# ---- its fit


def test_gaussian_errors_are_shifted_and_scaled_and_no_more():
    error = np.random.default_rng(1).normal(0.2, 1.5, 5000)
    one = fit_map(error, 5000.0)
    assert (one.normal.tolist(), one.error.tolist()) == ([0.0], [np.mean(np.sort(error))])
    assert one.below == one.above == pytest.approx(np.std(error))


def test_knots_hold_the_share_of_errors_that_their_level_says():
    error = np.random.default_rng(2).standard_t(3, 20_000)
    one = fit_map(error, 20_000.0)
    assert len(one.normal) >= 17
    below = [np.mean(error <= q) for q in one.error]
    assert below == pytest.approx(norm.cdf(one.normal), abs=1e-4)
    assert below[0] * 20_000 == pytest.approx(TAIL_ROWS, abs=1)


def test_tails_are_as_steep_as_the_errors_beyond_the_knot_are_likeliest():
    error = np.random.default_rng(1).standard_t(4, 5000)
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


@pytest.mark.parametrize(("digits", "share"), [(0, 0.9), (0, 0.0), (1, 0.3)])
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
    assert np.isfinite(found.moments).all()


# ---- figures on the reference sets


@pytest.mark.parametrize(
    ("name", "n", "gain"),
    [("levi_overconfident", 25_000, -0.0005), ("box4_heavy_tailed", 10_000, 0.14)],
)
def test_heavy_tails_gain_far_over_scaling_and_gaussian_errors_lose_nothing(name, n, gain):
    fitted, evaluated = (reference_rows(name, slice(at, at + n)) for at in (0, n))
    found = own_loss(fit_isotonic_quantiles(fitted), evaluated)
    assert found < scaled_loss(fitted, evaluated) - gain
