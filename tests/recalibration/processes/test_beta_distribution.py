"""The beta map: its density, probability, quantiles and moments, each against plain integration
and the equation as it is printed."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from monitor.recalibration.processes.beta_map import (
    BOUNDS,
    LARGEST,
    LARGEST_SHIFT,
    BetaLine,
    BetaMarginals,
    hazard,
    log_odds,
    logit,
    moment_table,
    moments,
    quantile_table,
    standard_quantile,
)

quick = settings(max_examples=40)
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
    one = np.ones((1, 1))
    return by_search(mean * one, unit * one, a * one, b * one, c * one)


def by_search(mean, unit, a, b, c):
    """With quantiles by a search, where served ones are read off a table."""
    return BetaMarginals(
        *(mean, unit, a, b, c), lambda tau: standard_quantile(log_odds(tau)[:, None, None], a, b, c)
    )


def density(found, value):
    return float(np.exp(found.log_density(np.array([[value]]))).item())


def probability(found, value):
    return float(found.cumulative(np.array([[value]])).item())


def pieces(found):
    """Where to cut an integral: the density may be narrow, or have two peaks."""
    tau = np.array([1e-15, 1e-9, 1e-5, 1e-3, 0.05, 0.25, 0.5, 0.75, 0.95, 1 - 1e-3, 1 - 1e-5])
    return np.append(found.quantiles(tau).ravel(), found.quantiles(np.array([1 - 1e-10])).ravel())


def integral(function, edges):
    return sum(
        quad(function, low, high, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for low, high in pairwise(edges)
    )


# ---- density, probability, quantiles


@pytest.mark.parametrize(("a", "b", "c"), MAPS)
def test_the_density_is_the_gaussian_times_the_slope_of_the_printed_map(a, b, c):
    mean, unit = 3.0, 0.4
    found = marginals(a, b, c, mean, unit)
    for t in (-3.0, -0.7, 0.0, 1.1, 2.9):
        value = mean + unit * t
        f = norm.cdf(value, mean, unit)
        g = 1 / (1 + 1 / (np.exp(c) * f**a / (1 - f) ** b))
        slope = g * (1 - g) * (a / f + b / (1 - f))
        assert probability(found, value) == pytest.approx(g, rel=1e-9)
        assert density(found, value) == pytest.approx(norm.pdf(value, mean, unit) * slope, rel=1e-9)


@pytest.mark.parametrize(("a", "b", "c"), MAPS)
def test_the_density_integrates_to_one_and_the_probability_is_its_integral(a, b, c):
    found = marginals(a, b, c)
    edges = pieces(found)
    reached = probability(found, edges[0])
    for low, high in pairwise(edges):
        reached += integral(lambda value: density(found, value), [low, high])
        assert reached == pytest.approx(probability(found, high), abs=1e-9)
    assert reached == pytest.approx(1.0, abs=1e-9)


def test_neutral_parameters_leave_a_gaussian():
    value = np.linspace(-40, 40, 81)[:, None]
    one = np.ones_like(value)
    found = by_search(0 * one, one, one, one, 0 * one)
    assert found.log_density(value) == pytest.approx(norm.logpdf(value), rel=1e-12)
    assert found.cumulative(value) == pytest.approx(norm.cdf(value), rel=1e-9)


@quick
@given(logs, logs, shifts, st.floats(-1e14, 1e14))
def test_nothing_overflows_however_far_out_a_value_lies(log_a, log_b, c, value):
    found = marginals(np.exp(log_a), np.exp(log_b), c)
    at = np.array([[value]])
    assert np.isfinite(found.log_density(at)).all()
    assert 0 <= found.cumulative(at).item() <= 1


@quick
@given(logs, logs, shifts)
def test_quantiles_ascend_and_the_probability_undoes_them(log_a, log_b, c):
    found = marginals(np.exp(log_a), np.exp(log_b), c)
    tau = np.concatenate([[1e-12, 1e-6], np.linspace(0.01, 0.99, 50), [1 - 1e-6]])
    quantile = found.quantiles(tau)[:, 0, 0]
    assert (np.diff(quantile) > 0).all()
    back = [probability(found, value) for value in quantile]
    assert back == pytest.approx(tau, abs=1e-9)


def test_the_quantiles_of_nought_and_one_are_infinite():
    assert marginals(2.0, 0.5, 1.0).quantiles(np.array([0.0, 1.0])).ravel().tolist() == [
        -np.inf,
        np.inf,
    ]


@quick
@given(logs, logs, shifts, st.floats(-700, 700))
def test_the_search_for_a_quantile_ends_at_it_for_any_odds(log_a, log_b, c, odds):
    a, b = np.exp(log_a), np.exp(log_b)
    t = standard_quantile(np.array([odds]), a, b, c)
    assert logit(t, a, b, c) == pytest.approx([odds], abs=1e-8)


def test_a_quantile_is_found_alike_alone_and_among_others():
    random = np.random.default_rng(0)
    a, b = np.exp(random.uniform(-LARGEST, LARGEST, (2, 50)))
    c, odds = random.normal(size=50), random.normal(0, 5, 50)
    whole = standard_quantile(odds, a, b, c)
    alone = [standard_quantile(odds[i : i + 1], a[i], b[i], c[i]).item() for i in range(50)]
    assert whole.tolist() == alone


def test_the_hazard_is_the_density_over_the_upper_tail():
    t = np.array([-50.0, -3.0, 0.0, 2.0, 8.0])
    assert hazard(t) == pytest.approx(np.exp(norm.logpdf(t) - norm.logsf(t)), rel=1e-10)
    assert hazard(np.array([1e8])) == pytest.approx([1e8], rel=1e-12)


# ---- moments


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


def test_the_neutral_map_has_the_moments_of_a_standard_gaussian():
    mean, log_deviation = moments(BetaLine((0.0, 0.0, 0.0), (1.0, 1.0, 0.0)), np.zeros(1))[0]
    assert mean == pytest.approx([0.0], abs=1e-14)
    assert log_deviation == pytest.approx([0.0], abs=1e-12)


LINES = [
    (BetaLine((0.1, 0.2, 0.0), (0.8, 0.6, 0.1)), (-2.0, 1.5)),
    (BetaLine((0.0, 0.3, 0.5), (0.7, -0.7, 0.4)), (-2.5, 2.5)),
    (BetaLine((0.4, 0.0, 0.0), (0.0, 0.0, 1.0)), (-5.0, 3.0)),
]


@pytest.mark.parametrize(("line", "bounds"), LINES)
def test_slopes_of_the_moments_are_finite_differences_of_them(line, bounds):
    latent = np.linspace(bounds[0], bounds[1], 11)
    step = 1e-5
    (above, _), (below, _) = moments(line, latent + step), moments(line, latent - step)
    assert moments(line, latent)[1] == pytest.approx((above - below) / (2 * step), abs=5e-8)


def test_a_table_gives_the_moments_of_every_line_within_its_range():
    table = moment_table(tuple(line for line, _ in LINES), tuple(bounds for _, bounds in LINES))
    latent = np.stack([np.linspace(low, high, 301) for _, (low, high) in LINES])
    mean, log_deviation = table.at(latent)
    deviation = np.exp(log_deviation)
    for row, (line, _) in enumerate(LINES):
        exact = moments(line, latent[row])[0]
        assert mean[row] == pytest.approx(exact[0], abs=1e-6)
        assert deviation[row] == pytest.approx(np.exp(exact[1]), rel=1e-6)


def test_a_table_of_a_single_latent_value_gives_its_moments():
    line = BetaLine((0.1, -0.4, 0.2), (0.8, 0.6, 0.1))
    mean, log_deviation = moment_table((line,), ((0.7, 0.7),)).at(np.full((1, 3), 0.7))
    deviation = np.exp(log_deviation)
    exact = moments(line, np.array([0.7]))[0][:, 0]
    assert mean == pytest.approx(np.full((1, 3), exact[0]), rel=1e-12)
    assert deviation == pytest.approx(np.full((1, 3), np.exp(exact[1])), rel=1e-12)


# ---- quantiles read off a table


@pytest.mark.parametrize("levels", [(0.5,), tuple(np.arange(1, 20) * 0.05), (1e-12, 0.3, 1 - 1e-9)])
def test_a_table_gives_the_quantiles_of_every_line_within_its_range(levels):
    table = quantile_table(
        tuple(line for line, _ in LINES), tuple(bounds for _, bounds in LINES), levels
    )
    latent = np.stack([np.linspace(low, high, 301) for _, (low, high) in LINES])
    found = table.at(latent)
    assert found.shape == (len(levels), 3, 301)
    assert (np.diff(found, axis=0) > 0).all()
    for row, (line, _) in enumerate(LINES):
        u = logit(found[:, row], *line.at(latent[row]))
        for level, odds in zip(levels, u, strict=True):
            # Not expit(odds) − τ: that would forgive the tails.
            assert odds == pytest.approx(np.full(301, np.log(level) - np.log1p(-level)), abs=1e-8)
            assert expit(odds) == pytest.approx(np.full(301, level), abs=1e-9)


def test_a_table_of_quantiles_of_a_single_latent_value_gives_them():
    line = BetaLine((0.1, -0.4, 0.2), (0.8, 0.6, 0.1))
    found = quantile_table((line,), ((0.7, 0.7),), (0.2, 0.9)).at(np.full((1, 3), 0.7))
    for level, t in zip((0.2, 0.9), found[:, 0], strict=True):
        u = logit(t, *line.at(np.full(3, 0.7)))
        assert expit(u) == pytest.approx(np.full(3, level), abs=1e-12)


# ---- the line


@quick
@given(
    st.tuples(logs, logs, shifts),
    st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3)),
    st.floats(-100, 100),
    st.floats(0, 100),
)
def test_a_range_is_moved_to_where_all_three_parameters_are_within_their_bounds(
    base, loading, low, width
):
    line = BetaLine(base, loading)
    moved = line.within(low, low + width)
    assert moved[0] <= moved[1]
    assert line.bounded(*moved)
    # By more than rounding and the margin that is kept.
    if all(
        abs(start + loading * end) <= (1 - 1e-6) * bound
        for start, loading, bound in zip(base, line.loading, BOUNDS, strict=True)
        for end in (low, low + width)
    ):
        assert moved == (low, low + width)


def test_a_range_that_rounding_alone_puts_within_the_bounds_ends_at_them():
    line = BetaLine((0.0, LARGEST, 0.0), (0.0, -1.0, 0.0))
    assert line.within(-1e-220, 0.0) == (0.0, 0.0)


def test_a_line_beyond_its_bounds_is_not_bounded():
    assert not BetaLine((0.0, 0.0, 0.0), (1.0, 0.0, 0.0)).bounded(-1.0, LARGEST + 0.1)
    assert not BetaLine((0.0, 0.0, np.nan), (0.0, 0.0, 0.0)).bounded(0.0, 1.0)
