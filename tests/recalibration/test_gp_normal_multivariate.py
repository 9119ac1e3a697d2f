"""GP-Normal multivariate: what it must reach on reference and simulated sets, what it serves
against matrix algebra row by row, and the laws that every recalibrator obeys."""

import copy
import json
from functools import cache

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.processes import normal
from monitor.recalibration.processes.multivariate import (
    GpNormalMultivariate,
    fit_gp_normal_multivariate,
)
from monitor.recalibration.recalibrator import Identity, UnfitData
from monitor.store.codec import InvalidDocument
from tests import laws
from tests.recalibration.gp_multivariate_sets import (
    correlated_pairs,
    covariance_scaled,
    drifting,
    joint_likelihood,
    rows_of,
    space_of,
)
from tests.recalibration.rows import as_read, joined
from tests.reference.datasets import all_sets

# The order of whitening is here not the order of the dimensions.
YAW_XY = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *space_of(2).dimensions))
# Enough for laws, and quick.
FEW = 4  # inducing points


@cache
def reference(name):
    found = all_sets()[name]
    mean, error = found["mean"], found["gt"] - found["mean"]
    if "cov" in found:
        return rows_of(mean, found["cov"], error)
    return rows_of(mean, found["var"][:, :, None] * np.eye(mean.shape[1]), error, True)


@cache
def fitted(form, k):
    """Of each form: what is wrong changes with the detection."""
    n = 150 if k < 8 else 60
    rows = drifting(k, n=n, k=k, diagonal=form == "variances")
    if form == "mixed":
        rows = joined(rows, drifting(k + 1, n=n, k=k, diagonal=True))
    return fit_gp_normal_multivariate(rows, FEW)


# ---- what it must reach


def test_boxes_with_lost_correlations_reach_covariance_scaling():
    rows = reference("box4_overconfident_diag")
    likelihood, nees = joint_likelihood(
        fit_gp_normal_multivariate(rows.take(np.arange(2000))), rows.take(np.arange(10_000, 12_000))
    )
    assert likelihood <= 12.065
    assert nees == pytest.approx(1.0, abs=0.05)


def test_calibrated_covariances_stay_calibrated():
    rows = reference("box4_calibrated")
    others = rows.take(np.arange(2000, 12_000))
    before, _ = joint_likelihood(Identity(), others)
    after, nees = joint_likelihood(fit_gp_normal_multivariate(rows.take(np.arange(2000))), others)
    assert after < before + 0.01
    assert nees == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_that_depend_on_the_detection_are_found(seed):
    rows = correlated_pairs(seed)
    left, right = rows.take(np.arange(2000)), rows.take(np.arange(2000, 4000))
    found, nees = joint_likelihood(fit_gp_normal_multivariate(left), right)
    scaled, _ = joint_likelihood(covariance_scaled(left), right)
    assert found < scaled - 0.3
    assert nees == pytest.approx(1.0, abs=0.06)
    rho = 0.9 * np.tanh(1.5 * right.estimates.mean[:, 0])
    truth = np.log(2 * np.pi) + 1 + 0.5 * np.mean(np.log1p(-(rho**2)))
    truth += 0.5 * np.log(np.diagonal(right.estimates.covariance, 0, 1, 2)).sum(axis=1).mean()
    assert found == pytest.approx(truth, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_that_do_not_are_those_of_covariance_scaling(seed):
    rows = correlated_pairs(seed, depends=False)
    left, right = rows.take(np.arange(2000)), rows.take(np.arange(2000, 4000))
    found, _ = joint_likelihood(fit_gp_normal_multivariate(left), right)
    scaled, _ = joint_likelihood(covariance_scaled(left), right)
    assert found == pytest.approx(scaled, abs=0.01)


@pytest.mark.parametrize("diagonal", [True, False])
def test_errors_of_covariances_that_depend_on_the_detection_are_corrected(diagonal):
    rows = drifting(3, n=2500, diagonal=diagonal)
    left, right = rows.take(np.arange(500)), rows.take(np.arange(500, 2500))
    found, nees = joint_likelihood(fit_gp_normal_multivariate(left), right)
    scaled, _ = joint_likelihood(covariance_scaled(left), right)
    assert found < scaled - 0.2
    assert nees == pytest.approx(1.0, abs=0.1)


def test_one_dimension_is_gp_normal():
    rows = reference("cosine_mean")
    left, right = rows.take(np.arange(1000)), rows.take(np.arange(2000, 4000))
    found = fit_gp_normal_multivariate(left).apply(right.estimates).covariance
    expected = normal.fit_gp_normal(left).apply(right.estimates).covariance
    assert found == pytest.approx(expected, rel=0.02)


# ---- what it serves


@pytest.mark.parametrize("space", [space_of(3), YAW_XY])
def test_where_nothing_depends_on_the_detection_it_is_covariance_scaling(space):
    random = np.random.default_rng(5)
    mean = np.zeros((200, 3))
    root = 0.4 * random.normal(size=(3, 3)) + np.eye(3)
    covariance = np.repeat((root @ root.T)[None], 200, axis=0)
    error = random.normal(size=(200, 3)) @ (root + 0.3)
    for diagonal in (True, False):
        sent = covariance * np.eye(3) if diagonal else covariance
        rows = rows_of(mean, sent, error, diagonal, space=space)
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
    plain = rows_of(
        sent.mean[:, turned],
        sent.covariance[:, turned[:, None], turned],
        angles.error[:, turned],
        space=Space(tuple(YAW_XY.dimensions[i] for i in turned)),
    )
    expected = fit_gp_normal_multivariate(plain, FEW).apply(plain.estimates).covariance
    found = model.apply(sent).covariance[:, turned[:, None], turned]
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_frame_of_both_forms_is_recalibrated_row_by_row():
    model = fitted("mixed", 3)
    plain = drifting(11, n=40, diagonal=True)
    full = drifting(12, n=50)
    both = joined(plain, full).take(np.random.default_rng(1).permutation(90))
    made = model.apply(both.estimates)
    flags = both.estimates.diagonal
    for part in (flags, ~flags):
        sent = both.take(np.flatnonzero(part)).estimates
        assert np.array_equal(made.covariance[part], model.apply(sent).covariance)
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


def test_far_outside_of_the_fit_weights_are_those_at_its_edge():
    model = fitted("variances", 2)
    sent = drifting(14, n=10, k=2, diagonal=True).estimates
    far = [
        model.apply(Estimates(sent.mean * 0 + at, sent.covariance, sent.diagonal)).covariance
        for at in (1e2, 1e8)
    ]
    assert np.array_equal(*far)


def test_a_wrong_unit_is_fitted_away():
    rows = drifting(15, n=150, diagonal=True)
    unit = np.array([1.0, 1000.0, 0.01])
    sent = rows.estimates
    other = rows_of(sent.mean, sent.covariance * np.outer(unit, unit), rows.error, True)
    expected = fit_gp_normal_multivariate(rows, FEW).apply(rows.estimates).covariance
    assert fit_gp_normal_multivariate(other, FEW).apply(
        other.estimates
    ).covariance == pytest.approx(expected, rel=1e-3)


# ---- laws


def test_rows_of_one_object_are_not_taken_for_as_many():
    rows = correlated_pairs(1, n=60)
    track = np.arange(60)
    sent = rows.estimates
    once = rows_of(sent.mean, sent.covariance, rows.error, True, track=track)
    often = once.take(np.repeat(track, 5))
    apart = often.take(np.arange(often.n))
    apart.track[:] = -1
    # Equal in the first digits they would be known for copies.
    apart.error[:] *= 1 + 1e-3 * np.random.default_rng(3).normal(size=apart.error.shape)
    sent = correlated_pairs(2, n=200).estimates
    found, expected, sharpened = (
        fit_gp_normal_multivariate(one).apply(sent).covariance for one in (often, once, apart)
    )
    gap = np.abs(found - expected).max()
    assert gap < 0.1 * np.abs(sharpened - expected).max()


def test_its_type_says_what_it_is():
    model = fitted("variances", 2)
    assert (model.method, model.output, model.k) == ("gp-normal-multivariate", "gaussian", 2)
    assert model.keeps_definite


# ---- data that do not determine a recalibrator


def test_nothing_can_be_fitted_on_no_rows():
    with pytest.raises(UnfitData, match="cannot fit on 0 detections"):
        fit_gp_normal_multivariate(drifting(1, n=0))


def test_a_dimension_without_errors_is_named():
    rows = drifting(1)
    rows.error[:, 1] = 0.0
    with pytest.raises(UnfitData, match="dimension 'y' has no error in 600 rows"):
        fit_gp_normal_multivariate(rows)


def test_one_row_determines_one_dimension_and_no_more():
    one = drifting(1, n=1, k=1)
    made = fit_gp_normal_multivariate(one).apply(one.estimates).covariance
    assert made[0, 0, 0] == pytest.approx(one.error[0, 0] ** 2)
    for k in (2, 3):
        for diagonal, form in ((True, "variances"), (False, "covariances")):
            with pytest.raises(
                UnfitData, match=rf"of 1 rows with {form} over .* are singular: {k}"
            ):
                fit_gp_normal_multivariate(drifting(1, n=1, k=k, diagonal=diagonal))


@pytest.mark.parametrize("diagonal", [True, False])
def test_errors_that_repeat_each_other_are_refused(diagonal):
    rows = drifting(1, diagonal=diagonal)
    factor = np.linalg.cholesky(rows.estimates.covariance)
    u = np.linalg.solve(factor, rows.error[..., None])[..., 0]
    u[:, 2] = 2.0 * u[:, 0]
    rows.error[:] = (factor @ u[..., None])[..., 0]
    with pytest.raises(UnfitData, match="are singular: 3 dimensions need more rows"):
        fit_gp_normal_multivariate(rows)


def test_a_form_with_too_few_rows_is_named():
    rows = joined(drifting(1, n=20, diagonal=True), drifting(2, n=2))
    with pytest.raises(UnfitData, match=r"of 2 rows with covariances .* leave out the rows with c"):
        fit_gp_normal_multivariate(rows, FEW)


@pytest.mark.parametrize("diagonal", [True, False])
def test_duplicated_rows_and_constant_deviations_are_fitted(diagonal):
    rows = drifting(6, n=60, diagonal=diagonal)
    rows.estimates.covariance[:] = rows.estimates.covariance[0]
    model = fit_gp_normal_multivariate(rows.take(np.repeat(np.arange(60), 3)), FEW)
    laws.recalibrated_covariances_are_positive_definite(model, rows.estimates)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("n", [4, 5, 8, 20])
@pytest.mark.parametrize("apart", [0.0, 1e-7])
def test_of_a_few_rows_that_repeat_a_fit_is_what_can_be_read(diagonal, n, apart):
    random = np.random.default_rng(n)
    few = drifting(n, n=n, diagonal=diagonal).take(np.repeat(np.arange(n), 40))
    few.error[:] *= 1 + apart * random.normal(size=few.error.shape)
    model = fit_gp_normal_multivariate(few, FEW)
    document = json.loads(json.dumps(model.parameters()))
    assert as_read(GpNormalMultivariate, document) == model
    laws.recalibrated_covariances_are_positive_definite(model, few.estimates)


def test_rows_that_repeat_show_no_more_than_once():
    once = drifting(7, n=40)
    again = once.take(np.repeat(np.arange(40), 100))
    alone, repeated = (
        fit_gp_normal_multivariate(rows, FEW).apply(once.estimates).covariance
        for rows in (once, again)
    )
    assert repeated == pytest.approx(alone, rel=1e-3, abs=1e-3 * np.abs(alone).max())


# ---- documents


def changed(content, path, value):
    content = copy.deepcopy(content)
    place = content
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


# Its smallest eigenvalue is positive by a rounding, and still it has no root.
SINGULAR = [[(1 / 3) ** 2, (1 / 3) * (1 / 9)], [(1 / 3) * (1 / 9), (1 / 9) ** 2]]
WRONG = {
    "no scale": (("scale",), None, "'parameters' has no 'scale'"),
    "a negative scale": (("scale", 0), -1.0, r"'parameters.scale\[0\]' is -1.0"),
    "a scale of another unit": (("scale", 0), 1e13, r"'parameters.scale\[0\]' is 10000000000000.0"),
    "an order of other dimensions": (("order",), [0, 2], "'order' is"),
    "a form that is no object": (("variances",), [], r"'parameters.variances' is \[\]"),
    "no moment": (("variances", "moment"), None, "'parameters.variances' has no 'moment'"),
    "an indefinite moment": (("variances", "moment"), [[1.0, 2.0], [2.0, 1.0]], "not positive"),
    "a singular moment": (("variances", "moment"), SINGULAR, "'moment' is"),
    "a vanishing moment": (("variances", "moment"), [[1e-25, 0.0], [0.0, 1.0]], "'moment' is"),
    "a moment of another unit": (("variances", "moment"), [[1e30, 0.0], [0.0, 1.0]], "1e.30"),
    "no weights": (("variances", "weights"), None, "'parameters.variances' has no 'weights'"),
    "a weight beyond bounds": (
        ("variances", "weights", "high", 0),
        1e3,
        r"'parameters.variances.weights.high\[0\]' is 1000.0",
    ),
    "NaN": (
        ("variances", "weights", "low", 0),
        float("nan"),
        r"'parameters.variances.weights.low\[0\]' is nan",
    ),
    "too few limits": (
        ("variances", "weights", "low"),
        [0.0],
        "'parameters.variances.weights': 'low' has 1 entries: with 'processes' ",
    ),
    "no variance of the weights": (
        ("variances", "most_uncertain"),
        None,
        "'parameters.variances' has no 'most_uncertain'",
    ),
    "too few variances": (
        ("variances", "most_uncertain"),
        [0.0],
        "'parameters.variances': 'most_uncertain' has 1 entries: with 'weights'",
    ),
    "a negative variance": (
        ("variances", "most_uncertain", 1),
        -0.1,
        r"'parameters.variances.most_uncertain\[1\]' is -0.1",
    ),
    "a boundless variance": (
        ("variances", "most_uncertain", 1),
        1e9,
        r"'parameters.variances.most_uncertain\[1\]' is 1000000000.0",
    ),
}


@pytest.mark.parametrize(("path", "value", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_document_is_refused(path, value, message):
    content = changed(fitted("mixed", 2).parameters(), path, value)
    with pytest.raises(InvalidDocument, match=message):
        as_read(GpNormalMultivariate, content)


def test_processes_of_other_outputs_are_refused():
    content = fitted("mixed", 2).parameters()
    weights = content["variances"]["weights"]
    weights["processes"].reverse()
    with pytest.raises(
        InvalidDocument,
        match=r"'parameters.variances': 'processes' have \[2, 1\] outputs: 2 dimensions ",
    ):
        as_read(GpNormalMultivariate, content)


def test_a_document_without_any_form_is_refused():
    content = fitted("mixed", 2).parameters()
    del content["variances"], content["covariances"]
    with pytest.raises(InvalidDocument, match="'covariances' is missing, and so is 'var"):
        as_read(GpNormalMultivariate, content)
    content = fitted("covariances", 1).parameters()
    content["variances"] = content.pop("covariances")
    with pytest.raises(InvalidDocument, match="'covariances' is missing: one dimension needs"):
        as_read(GpNormalMultivariate, content)
