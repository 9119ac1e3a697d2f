"""Isotonic regression on quantiles: its figures on the reference sets, what is forwarded, and its
documents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from monitor.frames.detections import Estimates
from monitor.recalibration.quantiles import LARGEST_ERROR, IsotonicQuantiles, fit_isotonic_quantiles
from monitor.recalibration.scaling import VarianceScaling
from monitor.statistics.measures import NormalMarginals
from monitor.store.codec import InvalidDocument
from tests import laws
from tests.recalibration.rows import as_read, reference_rows, wild_estimates
from tests.recalibration.simulated_rows import rows_of, splits

TAU = np.linspace(0.05, 0.95, 19)
BENT = {"normal": [[-1.0, 0.0, 1.0], [0.0]], "error": [[-3.0, 0.0, 2.0], [0.5]]}
GOOD = {**BENT, "below": [4.0, 1.0], "above": [2.0, 1.0]}


def scaling(rows) -> VarianceScaling:
    nees = np.mean(np.square(rows.error / rows.deviation), axis=0)
    return VarianceScaling(tuple(np.sqrt(nees).tolist()))


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
        scaled = scaling(fitted).apply(evaluated.estimates)
        before = scores(NormalMarginals(scaled.mean, scaled.deviation), evaluated)
        after = scores(fit_isotonic_quantiles(fitted).marginals(evaluated.estimates), evaluated)
        found.append(before - after)
    return np.array(found)


# ---- figures on the reference sets


def test_calibrated_boxes_keep_their_deviation():
    ratio = np.array(
        [fit_isotonic_quantiles(fitted).scale for fitted, _ in splits("box4_calibrated", 10_000)]
    )
    assert ratio.shape == (11, 4)
    assert ratio.min() > 0.98 and ratio.max() < 1.02
    assert ratio[1:].std(axis=0).max() < 0.01


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


def test_errors_without_a_variance_get_a_finite_distribution_with_the_right_coverage():
    fitted, evaluated = splits("cauchy_1d", 2000, count=0)[0]
    model = fit_isotonic_quantiles(fitted)
    nll, gap, _ = scores(model.marginals(evaluated.estimates), evaluated)
    assert nll < 2.1
    assert gap < 0.02
    # The moments rest on the largest errors, as the factor of variance scaling does: 120.
    assert 20 < model.scale.item() < scaling(fitted).scale[0]


def test_the_share_of_truths_below_each_quantile_is_its_level_on_the_rows_of_the_fit():
    rows = reference_rows("levi_random", slice(0, 25_000))
    marginals = fit_isotonic_quantiles(rows).marginals(rows.estimates)
    value = rows.estimates.mean + rows.error
    found = (value <= marginals.quantiles(TAU)).mean(axis=(1, 2))
    assert found == pytest.approx(TAU, abs=0.01)
    # Kuleshov's map: the empirical distribution of the probability that the Gaussian gave.
    given = np.sort(norm.cdf(rows.error[:, 0] / rows.deviation[:, 0]))
    one = fit_isotonic_quantiles(rows).maps[0]
    p = np.linspace(0.01, 0.99, 99)
    empirical = np.searchsorted(given, p) / given.size
    assert norm.cdf(one.normals(norm.ppf(p))) == pytest.approx(empirical, abs=0.003)


# ---- what is forwarded


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(-1e7, 1e7))
def test_moving_the_origin_changes_nothing(seed, distance):
    random = np.random.default_rng(seed)
    sigma = np.exp(random.normal(size=(500, 2)))
    rows = rows_of(sigma, sigma * random.standard_t(3, (500, 2)))
    model = fit_isotonic_quantiles(rows)
    far = Estimates(
        rows.estimates.mean + distance, rows.estimates.covariance, rows.estimates.diagonal
    )
    here, there = model.apply(rows.estimates), model.apply(far)
    assert np.array_equal(there.covariance, here.covariance)
    assert there.mean - far.mean == pytest.approx(here.mean - rows.estimates.mean, abs=1e-8)


def test_the_moments_of_the_recalibrated_distribution_are_forwarded():
    model = as_read(IsotonicQuantiles, GOOD)
    rows = rows_of([[0.5, 2.0], [3.0, 4.0]], np.ones((2, 2)))
    made = model.apply(rows.estimates)
    # Means of quantiles over levels that are even in probability.
    quantiles = model.marginals(rows.estimates).quantiles((np.arange(200_000) + 0.5) / 200_000)
    assert made.mean == pytest.approx(quantiles.mean(axis=0), rel=1e-4)
    assert made.deviation == pytest.approx(quantiles.std(axis=0), rel=1e-3)


def test_an_error_of_billions_of_sigmas_is_taken_as_a_million():
    error = np.append(np.random.default_rng(1).normal(size=2000), 1e200)
    found = fit_isotonic_quantiles(rows_of(np.ones(2001), error))
    assert found == fit_isotonic_quantiles(rows_of(np.ones(2001), np.minimum(error, LARGEST_ERROR)))
    assert np.isfinite(found.scale).all()


# ---- documents


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([1e-3, 1e-2, 1.0]))
def test_every_document_that_is_read_keeps_covariances_positive_definite(seed, knots, apart):
    random = np.random.default_rng(seed)
    normal = random.uniform(-9, 2) + np.cumsum(apart * random.uniform(1.001, 1.2, knots))
    rise = 10.0 ** random.uniform(-3, 5.5, knots)
    error = random.uniform(-1e6, 1e6) + np.cumsum(np.maximum(rise, 2e-3 * apart))
    below, above = 10.0 ** random.uniform(-3, 6, 2)
    model = as_read(
        IsotonicQuantiles,
        {
            "normal": [normal.tolist()],
            "error": [error.tolist()],
            "below": [float(below)],
            "above": [float(above)],
        },
    )
    assert 0 < model.scale.item() < np.inf
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(seed, 20, 1))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("normal", None, "'parameters.normal' is None"),
        ("normal", [[], []], r"'parameters.normal\[0\]' has 0 entries"),
        ("normal", [[0.0, -1.0, 1.0], [0.0]], "'normal' holds -1.0 after 0.0"),
        ("normal", [[-1.0, 0.0, 11.0], [0.0]], r"'parameters.normal\[0\]\[2\]' is 11.0"),
        ("normal", [[-1.0, 0.0, 9e-4], [0.0]], "knots must be 0.001 apart"),
        (
            "error",
            [[-3.0, 0.0], [0.5]],
            "'error' has 2 rows of 1 or 2 entries: with 'normal' it must have 2 row",
        ),
        ("error", [[-3.0, 0.0, 0.0], [0.5]], "'error' holds 0.0 after 0.0"),
        ("error", [[-3.0, 0.0, 1e-6], [0.5]], "'error' rises by 1e-06 per unit of 'normal'"),
        ("error", [[-3.0, 0.0, float("inf")], [0.5]], r"'parameters.error\[0\]\[2\]' is inf"),
        ("below", [4.0], "'below' has 1 entries: with 'normal' it must have 2"),
        ("below", [0.0, 1.0], r"'parameters.below\[0\]' is 0.0"),
        (
            "above",
            [1e9, 1.0],
            r"'parameters.above\[0\]' is 1000000000.0",
        ),
        ("above", 2.0, "'parameters.above' is 2.0"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field(name, value, message):
    with pytest.raises(InvalidDocument, match=message):
        as_read(IsotonicQuantiles, {**GOOD, name: value})
