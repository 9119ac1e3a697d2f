"""GP-Normal and GP-Normal multivariate: the likelihood against quadrature, what is served against
matrix algebra, and what fits must reach on reference and simulated sets."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import norm

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.recalibration import scaling
from monitor.recalibration.processes import normal
from monitor.recalibration.processes.multivariate import (
    GpNormalMultivariate,
    fit_gp_normal_multivariate,
)
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import FullInput
from monitor.statistics.bins import Binning
from monitor.statistics.stage import observe
from tests import laws
from tests.recalibration.rows import (
    as_read,
    forwarded_loss,
    joined,
    normal_likelihood,
    nothing_to_find,
    reference_rows,
    rows_from,
    scaled_loss,
    sizes,
    true_log_factor,
)

XY, XYZ = plain_space(("x", "y")), plain_space(("x", "y", "z"))
# The order of whitening is here not the order of the dimensions.
YAW_XY = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *XY.dimensions))
FEW = 4  # inducing points: enough for laws, and quick


# ---- the likelihood of GP-Normal

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


@pytest.mark.parametrize("seed", range(2))
def test_the_expectation_is_that_of_quadrature(seed):
    rows = sizes(seed, n=200, k=3)
    random = np.random.default_rng(seed)
    mean, variance = random.normal(size=(3, 200)), random.uniform(0.0, 1.5, (3, 200))
    expected = 0.0
    for j in range(3):
        f = mean[j, :, None] + np.sqrt(variance[j])[:, None] * NODES
        scale = rows.deviation[:, j, None] * np.exp(0.5 * f)
        density = norm.logpdf(rows.error[:, j, None], scale=scale)
        expected = expected + density @ WEIGHTS / np.sqrt(2 * np.pi)
    found = normal_likelihood(rows).expected(mean, variance).value
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


# ---- what GP-Normal finds


def log_factor(model, rows):
    made = model.apply(rows.estimates).covariance
    ratio = np.diagonal(made, axis1=1, axis2=2) / rows.deviation**2
    return np.log(ratio)


@pytest.mark.parametrize("full", [False, True])
def test_the_factor_that_was_put_in_comes_out(full):
    model = normal.fit_gp_normal(sizes(1, n=3000, full=full))
    fresh = sizes(2, n=1000, full=full)
    gap = log_factor(model, fresh) - true_log_factor(fresh.estimates.mean)
    assert np.sqrt(np.mean(gap**2)) < 0.15
    assert np.mean(fresh.error**2 / (np.exp(log_factor(model, fresh)) * fresh.deviation**2)) == (
        pytest.approx(1.0, abs=0.1)
    )


@pytest.mark.parametrize(
    ("name", "evaluated", "reached"),
    [
        ("cosine_mean", slice(2000, 4000), 1.085),
        ("cosine_variance", slice(2000, 4000), 0.745),
        ("box4_size_dependent", slice(4000, 6000), 3.115),
    ],
)
def test_the_figures_of_the_reference_sets_are_reached(name, evaluated, reached):
    model = normal.fit_gp_normal(reference_rows(name, slice(0, 2000)))
    assert forwarded_loss(model, reference_rows(name, evaluated)) <= reached


def test_one_true_factor_is_left_to_variance_scaling():
    fitted_on = reference_rows("box4_overconfident_diag", slice(0, 2000))
    fresh = reference_rows("box4_overconfident_diag", slice(10_000, 12_000))
    found = forwarded_loss(normal.fit_gp_normal(fitted_on), fresh)
    assert found == pytest.approx(scaled_loss(fitted_on, fresh), abs=0.001)


def test_one_giant_error_makes_no_dependence():
    rows = sizes(18, n=500, factor=nothing_to_find)
    rows.error[7] = 1e9
    model = normal.fit_gp_normal(rows)
    assert np.ptp(log_factor(model, rows), axis=0) == pytest.approx(np.zeros(2), abs=1e-9)


# ---- what GP-Normal multivariate must reach


def correlated_pairs(seed, n=4000):
    """Two dimensions with variances only; the correlation goes from −0.9 to 0.9 with x."""
    random = np.random.default_rng(seed)
    mean = random.uniform(-2, 2, (n, 2))
    sigma = np.exp(0.3 * random.normal(size=(n, 2)))
    rho = 0.9 * np.tanh(1.5 * mean[:, 0])
    first, second = random.normal(size=(2, n))
    error = sigma * np.stack([first, rho * first + np.sqrt(1 - rho**2) * second], axis=1)
    return rows_from(mean, np.square(sigma), error)


def drifting(seed, n=600, k=3, *, diagonal=False, space=None):
    """k dimensions; what is wrong with sizes and correlations changes with the first mean."""
    random = np.random.default_rng(seed)
    mean = random.normal(size=(n, k))
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    covariance = root @ root.transpose(0, 2, 1) * np.exp(0.5 * random.normal(size=(n, 1, 1)))
    covariance *= np.eye(k) if diagonal else 1.0
    turn = np.eye(k) + np.tril(np.ones((k, k)), -1) * np.tanh(mean[:, :1, None])
    size = np.exp(0.5 * mean[:, :1])
    draw = (turn @ random.normal(size=(n, k, 1)))[..., 0] * size
    error = (np.linalg.cholesky(covariance) @ draw[..., None])[..., 0]
    return rows_from(mean, covariance, error, diagonal=diagonal, space=space)


def joint_likelihood(model, rows):
    """Negative log-likelihood of a row, in nats, and NEES / K."""
    made = model.apply(rows.estimates).covariance
    k = rows.space.k
    nees = (rows.error * np.linalg.solve(made, rows.error[..., None])[..., 0]).sum(axis=1)
    logarithm = k * np.log(2 * np.pi) + np.linalg.slogdet(made)[1]
    return 0.5 * np.mean(logarithm + nees), nees.mean() / k


def covariance_scaled(rows):
    statistics = observe(rows.space, Binning(), rows.error, rows.estimates.covariance)
    return scaling.fit_covariance_scaling(statistics, full_input=FullInput.WHITEN)


@cache
def fitted(form, k):
    """Of each form: what is wrong changes with the detection."""
    n = 150 if k < 8 else 60
    rows = drifting(k, n=n, k=k, diagonal=form == "variances")
    if form == "mixed":
        rows = joined(rows, drifting(k + 1, n=n, k=k, diagonal=True))
    return fit_gp_normal_multivariate(rows, FEW)


def test_boxes_with_lost_correlations_reach_covariance_scaling():
    name = "box4_overconfident_diag"
    model = fit_gp_normal_multivariate(reference_rows(name, slice(0, 2000)))
    likelihood, nees = joint_likelihood(model, reference_rows(name, slice(10_000, 12_000)))
    assert likelihood <= 12.065
    assert nees == pytest.approx(1.0, abs=0.05)


def test_correlations_that_depend_on_the_detection_are_found():
    rows = correlated_pairs(0)
    left, right = rows.take(np.arange(2000)), rows.take(np.arange(2000, 4000))
    found, nees = joint_likelihood(fit_gp_normal_multivariate(left), right)
    scaled, _ = joint_likelihood(covariance_scaled(left), right)
    assert found < scaled - 0.3
    assert nees == pytest.approx(1.0, abs=0.06)
    rho = 0.9 * np.tanh(1.5 * right.estimates.mean[:, 0])
    truth = np.log(2 * np.pi) + 1 + 0.5 * np.mean(np.log1p(-(rho**2)))
    truth += 0.5 * np.log(np.diagonal(right.estimates.covariance, 0, 1, 2)).sum(axis=1).mean()
    assert found == pytest.approx(truth, abs=0.1)


def test_one_dimension_is_gp_normal():
    left, right = (reference_rows("cosine_mean", slice(*at)) for at in ((0, 1000), (2000, 4000)))
    found = fit_gp_normal_multivariate(left).apply(right.estimates).covariance
    expected = normal.fit_gp_normal(left).apply(right.estimates).covariance
    assert found == pytest.approx(expected, rel=0.02)


# ---- what it serves


@pytest.mark.parametrize("space", [XYZ, YAW_XY])
def test_where_nothing_depends_on_the_detection_it_is_covariance_scaling(space):
    random = np.random.default_rng(5)
    mean = np.zeros((200, 3))
    root = 0.4 * random.normal(size=(3, 3)) + np.eye(3)
    covariance = np.repeat((root @ root.T)[None], 200, axis=0)
    error = random.normal(size=(200, 3)) @ (root + 0.3)
    for diagonal in (True, False):
        sent = covariance * np.eye(3) if diagonal else covariance
        rows = rows_from(mean, sent, error, diagonal=diagonal, space=space)
        found = fit_gp_normal_multivariate(rows).apply(rows.estimates)
        expected = covariance_scaled(rows).apply(rows.estimates)
        assert found.covariance == pytest.approx(expected.covariance, rel=1e-6, abs=1e-9)
        assert np.array_equal(found.diagonal, expected.diagonal)


def by_matrix_algebra(process, whitener, estimates, row):
    """W M G Gᵀ Mᵀ Wᵀ of one detection, the diagonal of G with what the uncertainty of φ adds."""
    mean, variance = (part[:, row] for part in process.weights.at(estimates))
    mean = np.clip(mean, process.weights.low, process.weights.high)
    variance = np.minimum(variance, process.most_uncertain)
    k = len(whitener)
    g = np.zeros((k, k))
    for i in range(k):
        at = i * (i + 1) // 2
        g[i, :i] = mean[at + 1 : at + 1 + i]
        own = np.exp(mean[at] + 0.5 * variance[at]) + variance[at + 1 : at + 1 + i].sum()
        g[i, i] = np.sqrt(own)
    half = whitener @ np.linalg.cholesky(np.array(process.moment)) @ g
    return half @ half.T


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("diagonal", [True, False])
def test_it_serves_the_second_moments_of_the_posterior(k, diagonal):
    model = fitted("mixed", k)
    process = model.variances if diagonal else model.covariances
    estimates = drifting(9, n=20, k=k, diagonal=diagonal).estimates
    made = model.apply(estimates)
    for row in range(20):
        whitener = np.linalg.cholesky(estimates.covariance[row])
        expected = by_matrix_algebra(process, whitener, estimates, row)
        assert made.covariance[row] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert made.mean is estimates.mean
    assert not made.diagonal.any()


def test_the_order_of_the_dimensions_is_that_of_the_space():
    angles = drifting(4, n=200, space=YAW_XY)
    model = fit_gp_normal_multivariate(angles, FEW)
    assert model.order == (1, 2, 0)
    turned = np.array(model.order)
    sent = angles.estimates
    plain = rows_from(
        sent.mean[:, turned],
        sent.covariance[:, turned[:, None], turned],
        angles.error[:, turned],
        space=Space(tuple(YAW_XY.dimensions[i] for i in turned)),
    )
    expected = fit_gp_normal_multivariate(plain, FEW).apply(plain.estimates).covariance
    found = model.apply(sent).covariance[:, turned[:, None], turned]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("k", [2, 3])
def test_a_form_that_was_not_fitted_is_only_scaled(k):
    for form in ("variances", "covariances"):
        rows = drifting(k, n=150, k=k, diagonal=form == "variances")
        others = drifting(20, n=30, k=k, diagonal=form != "variances").estimates
        size = np.sqrt(np.mean(np.square(rows.error / rows.deviation), axis=0))
        made = fitted(form, k).apply(others)
        assert made.covariance == pytest.approx(others.covariance * np.outer(size, size))
        assert np.array_equal(made.diagonal, others.diagonal)


def test_one_dimension_has_one_form_however_it_is_flagged():
    model = fitted("covariances", 1)
    sent = drifting(13, n=10, k=1).estimates
    flagged = Estimates(sent.mean, sent.covariance, np.ones(10, bool))
    laws.assert_same(model.apply(flagged), model.apply(sent))
    assert fit_gp_normal_multivariate(drifting(1, n=150, k=1, diagonal=True), FEW) == model


def test_a_form_with_too_few_rows_is_named():
    rows = joined(drifting(1, n=20, diagonal=True), drifting(2, n=2))
    with pytest.raises(UnfitData, match=r"of 2 rows with covariances .* leave out the rows with c"):
        fit_gp_normal_multivariate(rows, FEW)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize(("n", "apart"), [(4, 0.0), (5, 1e-7), (20, 0.0)])
def test_of_a_few_rows_that_repeat_a_fit_is_what_can_be_read(diagonal, n, apart):
    random = np.random.default_rng(n)
    few = drifting(n, n=n, diagonal=diagonal).take(np.repeat(np.arange(n), 40))
    few.error[:] *= 1 + apart * random.normal(size=few.error.shape)
    model = fit_gp_normal_multivariate(few, FEW)
    assert as_read(GpNormalMultivariate, model.parameters()) == model
    laws.recalibrated_covariances_are_positive_definite(model, few.estimates)
