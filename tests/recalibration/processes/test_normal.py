"""GP-Normal and GP-Normal multivariate: likelihoods against quadrature, covariances from triangular
factors against the LDLᵀ of the paper, what is served, and what fits must reach."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from monitor.frames.cholesky import factorise, positive_definite
from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.words import FullInput
from monitor.recalibration import scaling
from monitor.recalibration.processes import normal
from monitor.recalibration.processes.normal import (
    UNEXPLAINED,
    GpNormalMultivariate,
    TriangularRow,
    factor_of_weights,
    fit_gp_normal_multivariate,
    keep_definite,
    lower_factor,
    lower_product,
    row_of_weights,
    squared,
)
from monitor.recalibration.recalibrator import UnfitData
from monitor.statistics.bins import Binning
from monitor.statistics.state import observe
from tests import laws
from tests.recalibration.rows import (
    as_read,
    forwarded_loss,
    joined,
    normal_likelihood,
    nothing_to_find,
    reference_rows,
    rows_from,
    sizes,
    true_log_factor,
)

seeds = st.integers(0, 2**32 - 1)
dimensions = st.integers(1, 8)


def covariances(random, n, k):
    root = 0.5 * random.normal(size=(n, k, k)) + np.eye(k)
    size = np.exp(random.normal(size=(n, k)))
    return (root @ root.transpose(0, 2, 1)) * (size[:, :, None] * size[:, None, :])


def weights(random, n, k, spread=0.5):
    return spread * random.normal(size=(k * (k + 1) // 2, n))


def factor(weight, k):
    """G of one detection's weights."""
    g = np.zeros((k, k))
    for i in range(k):
        f, *phi = weight[row_of_weights(i)]
        g[i, :i] = phi
        g[i, i] = np.exp(0.5 * f)
    return g


def assembled(covariance, mean, variance):
    g = lower_product(lower_factor(covariance), factor_of_weights(mean, variance))
    return squared(g)


@given(seeds, dimensions)
def test_weights_are_those_of_the_ldl_factors(seed, k):
    random = np.random.default_rng(seed)
    covariance = covariances(random, 5, k)
    weight = weights(random, 5, k)
    made = assembled(covariance, weight, np.zeros_like(weight))
    for sent, w, found in zip(covariance, weight.T, made, strict=True):
        l0 = np.linalg.cholesky(sent)
        root = np.diag(np.diag(l0))
        unit, pivots = l0 @ np.linalg.inv(root), root @ root
        g = factor(w, k)
        # An elementwise weight on D, a unit lower triangular one on L.
        on_d = np.diag(np.diag(g) ** 2)
        on_l = root @ g @ np.linalg.inv(np.diag(np.diag(g))) @ np.linalg.inv(root)
        assert np.diag(on_l) == pytest.approx(np.ones(k))
        expected = (unit @ on_l) @ (pivots * on_d) @ (unit @ on_l).T
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize(("seed", "k"), [(0, 1), (1, 2), (2, 3)])
def test_a_row_has_the_mean_weights_and_the_expected_square_of_its_error(seed, k):
    random = np.random.default_rng(seed)
    p = k * (k + 1) // 2
    mean, variance = weights(random, 1, k), random.uniform(0, 0.8, (p, 1))
    g = factor_of_weights(mean, variance)[..., 0]
    at_f = {row_of_weights(i).start for i in range(k)}
    rules = [np.polynomial.hermite_e.hermegauss(8 if i in at_f else 2) for i in range(p)]
    for i in range(k):
        row = row_of_weights(i)
        found = np.zeros(i + 1)
        for picked in product(*(zip(*rule, strict=True) for rule in rules[row])):
            node, weight = np.array(picked).T
            f, *phi = mean[row, 0] + np.sqrt(variance[row, 0]) * node
            share = np.prod(weight / np.sqrt(2 * np.pi))
            found += share * np.array([*phi, np.exp(f) + np.square(phi).sum()])
        assert g[i, :i] == pytest.approx(found[:i], rel=1e-8)
        assert g[i] @ g[i] == pytest.approx(found[i], rel=1e-8)


@given(seeds, st.integers(2, 8))
def test_however_near_to_singular_the_covariance_it_stays_positive_definite(seed, k):
    random = np.random.default_rng(seed)
    unit = np.tril(random.normal(size=(10, k, k)), -1)
    unit /= np.maximum(np.linalg.norm(unit, axis=2, keepdims=True), 1e-9)
    # Shares of the variances that the earlier dimensions leave: down to where they vanish.
    left = np.where(random.random((10, k)) < 0.5, 1.0, 10.0 ** random.uniform(-16, 0, (10, k)))
    left[:, 0] = 1.0
    root = unit * np.sqrt(1.0 - left)[:, :, None] + np.sqrt(left)[:, :, None] * np.eye(k)
    root *= 10.0 ** random.uniform(-6, 5, (10, k))[:, :, None]
    weight = weights(random, 10, k)
    lower = lower_factor(root @ root.transpose(0, 2, 1))
    g = lower_product(lower, factor_of_weights(weight, np.zeros_like(weight)))
    made = squared(g)
    before = made.copy()
    keep_definite(made, g)
    np.linalg.cholesky(made)
    assert made == pytest.approx(before, rel=1.1e-9)
    assert np.array_equal(made.diagonal(0, 1, 2), before.diagonal(0, 1, 2))
    assert positive_definite(factorise(made)).all()


def test_a_covariance_that_is_singular_by_a_rounding_has_a_factor():
    covariance = np.array([[[1.0, 1.0], [1.0, 1.0]], [[4.0, 1.0], [1.0, 9.0]]])
    lower = lower_factor(covariance)
    assert lower[..., 0] @ lower[..., 0].T == pytest.approx(covariance[0], rel=1.1e-9)
    assert np.array_equal(lower[..., 1], np.linalg.cholesky(covariance[1]))


# ---- the likelihood of one dimension


def some_row(seed, j, n=5):
    """Dimension j of n detections, and a Gaussian for each of its 1 + j outputs."""
    random = np.random.default_rng(seed)
    row = TriangularRow(
        random.normal(size=n), random.normal(size=(j, n)), 3.0 * random.normal(size=n)
    )
    mean = random.normal(size=(1 + j, n))
    variance = random.uniform(0.0, 0.8, size=(1 + j, n))
    return row, mean, variance


def by_quadrature(row, mean, variance):
    """E_q[log N(u; Σ φ_j ε_j, exp f) − log_unit] by a product rule: in each φ it is a parabola.

    Of a share of the square, the rest of it is the same for all."""
    rules = [np.polynomial.hermite_e.hermegauss(60 if i == 0 else 4) for i in range(len(mean))]
    found = np.zeros(row.value.size)
    for picked in product(*(zip(*rule, strict=True) for rule in rules)):
        at, weights = np.array(picked).T
        f, *phi = mean + np.sqrt(variance) * at[:, None]
        centre = sum((p * u for p, u in zip(phi, row.earlier, strict=True)), np.zeros_like(f))
        gap = np.sqrt(UNEXPLAINED + (1 - UNEXPLAINED) * (row.value - centre) ** 2)
        density = norm.logpdf(gap, 0.0, np.exp(0.5 * f))
        found += np.prod(weights / np.sqrt(2 * np.pi)) * density
    return found - row.log_unit


@pytest.mark.parametrize(("seed", "j"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_the_expectation_is_that_of_a_gauss_hermite_product_rule(seed, j):
    row, mean, variance = some_row(seed, j)
    found = row.expected(mean, variance).value
    assert found == pytest.approx(by_quadrature(row, mean, variance), rel=1e-12, abs=1e-12)


@given(seeds, st.integers(0, 4))
def test_the_start_is_the_best_of_all_constants(seed, j):
    row, _, _ = some_row(seed, j, n=40)

    def total(weights):
        constant = np.repeat(weights[:, None], 40, axis=1)
        return row.expected(constant, np.zeros_like(constant))

    best = total(row.start)
    assert best.by_mean.sum(axis=1) == pytest.approx(np.zeros(1 + j), abs=1e-8)
    random = np.random.default_rng(seed)
    for _ in range(5):
        other = row.start + 0.1 * random.normal(size=1 + j)
        assert total(other).value.sum() < best.value.sum()


@pytest.mark.parametrize("repeated", [1, 2])
def test_errors_that_the_earlier_ones_explain_have_a_finite_start(repeated):
    u = np.random.default_rng(1).normal(size=30)
    row = TriangularRow(0.9 * u, np.stack([u] * repeated), np.zeros(30))
    start = row.start
    assert np.isfinite(start).all()
    assert start[1:].sum() == pytest.approx(0.9)
    assert start[0] == pytest.approx(np.log(UNEXPLAINED))


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
    return 2 * np.log(model.apply(rows.estimates).deviation / rows.deviation)


@pytest.mark.parametrize("full", [False, True])
def test_the_factor_that_was_put_in_comes_out(full):
    model = normal.fit_gp_normal(sizes(1, n=3000, full=full))
    fresh = sizes(2, n=1000, full=full)
    gap = log_factor(model, fresh) - true_log_factor(fresh.estimates.mean)
    assert np.sqrt(np.mean(gap**2)) < 0.15
    nees = np.square(fresh.error / model.apply(fresh.estimates).deviation)
    assert np.mean(nees) == pytest.approx(1.0, abs=0.1)


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


def test_one_giant_error_makes_no_dependence():
    rows = sizes(18, n=500, factor=nothing_to_find)
    rows.error[7] = 1e9
    model = normal.fit_gp_normal(rows)
    assert np.ptp(log_factor(model, rows), axis=0) == pytest.approx(np.zeros(2), abs=1e-9)


# ---- what GP-Normal multivariate must reach


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
    rows = drifting(k, n=150, k=k, diagonal=form == "variances")
    if form == "mixed":
        rows = joined(rows, drifting(k + 1, n=150, k=k, diagonal=True))
    return fit_gp_normal_multivariate(rows, FEW)


def test_correlations_that_depend_on_the_detection_are_found():
    """Of two dimensions with variances alone; the correlation goes from −0.9 to 0.9 with x."""
    random = np.random.default_rng(0)
    mean = random.uniform(-2, 2, (4000, 2))
    sigma = np.exp(0.3 * random.normal(size=(4000, 2)))
    rho = 0.9 * np.tanh(1.5 * mean[:, 0])
    first, second = random.normal(size=(2, 4000))
    error = sigma * np.stack([first, rho * first + np.sqrt(1 - rho**2) * second], axis=1)
    rows = rows_from(mean, np.square(sigma), error)
    left, right = rows.take(np.arange(2000)), rows.take(np.arange(2000, 4000))
    found, nees = joint_likelihood(fit_gp_normal_multivariate(left), right)
    assert found < joint_likelihood(covariance_scaled(left), right)[0] - 0.3
    assert nees == pytest.approx(1.0, abs=0.06)
    truth = np.log(2 * np.pi) + 1 + 0.5 * np.log1p(-(rho**2)) + np.log(sigma).sum(axis=1)
    assert found == pytest.approx(truth[2000:].mean(), abs=0.1)


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


@pytest.mark.parametrize(("k", "diagonal"), [(2, True), (3, False)])
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
