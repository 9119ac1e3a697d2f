"""GP-Normal: factors that were put in come out, the laws of every recalibrator, the figures of
the reference sets, and data that do not determine it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.processes import normal
from monitor.recalibration.processes.normal import GpNormal
from monitor.recalibration.recalibrator import UnfitData
from monitor.store.codec import InvalidDocument
from tests import laws
from tests.recalibration.gp_sets import (
    likelihood_a_dimension,
    nothing_to_find,
    scaled_likelihood,
    sizes,
    true_log_factor,
)
from tests.recalibration.rows import as_read, reference_rows, rows_from, wild_estimates


def log_factor(model, rows):
    made = model.apply(rows.estimates).covariance
    ratio = np.diagonal(made, axis1=1, axis2=2) / rows.deviation**2
    return np.log(ratio)


# ---- what it finds


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
    assert likelihood_a_dimension(model, reference_rows(name, evaluated)) <= reached


def test_one_true_factor_is_left_to_variance_scaling():
    fitted_on = reference_rows("box4_overconfident_diag", slice(0, 2000))
    fresh = reference_rows("box4_overconfident_diag", slice(10_000, 12_000))
    found = likelihood_a_dimension(normal.fit_gp_normal(fitted_on), fresh)
    assert found == pytest.approx(scaled_likelihood(fitted_on, fresh), abs=0.001)


@pytest.mark.parametrize("name", ["cauchy_1d", "box4_heavy_tailed"])
def test_heavy_tails_are_no_worse_off_than_with_variance_scaling(name):
    fitted_on, fresh = (reference_rows(name, slice(a, a + 2000)) for a in (0, 2000))
    found = likelihood_a_dimension(normal.fit_gp_normal(fitted_on), fresh)
    assert found <= scaled_likelihood(fitted_on, fresh) + 0.01


def test_a_factor_that_turns_with_an_angle_has_no_jump_where_the_angle_is_wrapped():
    random = np.random.default_rng(3)
    yaw = random.uniform(-np.pi, np.pi, (4000, 1))
    space = Space((Dimension("yaw", "rad", DimensionKind.ANGLE),))
    error = 0.1 * np.exp(0.8 * np.cos(yaw - 2.8)) * random.normal(size=yaw.shape)
    model = normal.fit_gp_normal(rows_from(yaw, np.full_like(yaw, 0.01), error, space=space))
    ends = rows_from(np.array([[-np.pi], [np.pi]]), np.full((2, 1), 0.01), np.ones((2, 1)))
    left, right = log_factor(model, ends)[:, 0]
    assert left == pytest.approx(right, abs=1e-9)
    assert left == pytest.approx(1.6 * np.cos(np.pi - 2.8), abs=0.3)


@pytest.mark.parametrize("unit", [1.0, 0.1, 0.01, 0.001])
def test_rows_of_tracks_do_not_sharpen_the_fit_as_objects_do(unit):
    alone = sizes(4, n=300, k=1)
    alone = rows_from(alone.estimates.mean, (unit * alone.deviation) ** 2, alone.error)
    copies = np.repeat(np.arange(300), 20)

    def spread(track):
        rows = rows_from(
            alone.estimates.mean[copies],
            alone.deviation[copies] ** 2,
            alone.error[copies],
            track=track,
        )
        return normal.fit_gp_normal(rows).at(alone.estimates)[1].mean()

    as_given = normal.fit_gp_normal(alone).at(alone.estimates)[1].mean()
    assert spread(copies) == pytest.approx(as_given, rel=1e-3)
    assert spread(None) < 0.6 * as_given


# ---- laws


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_whatever_comes_the_factor_is_near_those_of_the_fit(seed):
    rows = sizes(seed, n=200)
    model = normal.fit_gp_normal(rows)
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(seed, 40, 2))
    logs = model.log_expectations(wild_estimates(seed, 40, 2)).T
    seen = log_factor(model, rows)
    assert (logs <= seen.max(axis=0) + 0.7).all()
    # The range of the fit is that of the means, which are lower by half of the variance.
    assert (logs >= seen.min(axis=0) - 1.5).all()


def test_correlations_means_and_forms_stay():
    rows = sizes(8, k=3, full=True)
    made = normal.fit_gp_normal(rows).apply(rows.estimates)
    size = np.sqrt(np.diagonal(made.covariance, axis1=1, axis2=2)) / rows.deviation
    expected = rows.estimates.covariance * size[:, :, None] * size[:, None, :]
    assert made.covariance == pytest.approx(expected, rel=1e-12)
    assert made.mean is rows.estimates.mean
    assert made.diagonal is rows.estimates.diagonal


def test_it_says_what_it_is():
    model = normal.fit_gp_normal(sizes(11, n=50, k=3))
    assert (model.method, model.output, model.k) == ("gp-normal", "gaussian", 3)
    assert model.keeps_definite


# ---- data at the edge of what can be fitted


def test_one_row_gives_its_own_scale():
    rows = sizes(12, n=1)
    model = normal.fit_gp_normal(rows)
    assert log_factor(model, rows) == pytest.approx(np.log((rows.error / rows.deviation) ** 2))


def test_eight_dimensions_are_as_good_as_one():
    model = normal.fit_gp_normal(sizes(13, n=400, k=8))
    fresh = sizes(14, n=1000, k=8)
    gap = log_factor(model, fresh) - true_log_factor(fresh.estimates.mean)
    assert np.sqrt(np.mean(gap**2)) < 0.4


def test_where_all_estimates_are_alike_it_is_variance_scaling():
    random = np.random.default_rng(15)
    error = 3.0 * random.normal(size=(200, 2))
    rows = rows_from(np.full((200, 2), 7.0), np.full((200, 2), 0.3), error)
    found = log_factor(normal.fit_gp_normal(rows), rows)
    expected = np.log(np.mean(error**2 / 0.3, axis=0))
    assert found == pytest.approx(np.broadcast_to(expected, (200, 2)))


def test_rows_that_repeat_are_no_trouble():
    rows = sizes(16, n=40).take(np.repeat(np.arange(40), 10))
    model = normal.fit_gp_normal(rows)
    laws.recalibrated_covariances_are_positive_definite(model, rows.estimates)


@pytest.mark.parametrize("unit", [1e-6, 1e5])
def test_a_wrong_unit_of_sigma_is_fitted_away(unit):
    rows = sizes(17, n=500)
    estimates = rows.estimates
    wrong = rows_from(estimates.mean, rows.deviation**2 * unit**2, rows.error)
    found, expected = (normal.fit_gp_normal(part).apply(part.estimates) for part in (wrong, rows))
    assert found.covariance == pytest.approx(expected.covariance, rel=1e-2)


def test_one_giant_error_makes_no_dependence():
    rows = sizes(18, n=500, factor=nothing_to_find)
    rows.error[7] = 1e9
    model = normal.fit_gp_normal(rows)
    assert np.ptp(log_factor(model, rows), axis=0) == pytest.approx(np.zeros(2), abs=1e-9)


def test_nothing_can_be_fitted_on_no_rows():
    with pytest.raises(UnfitData, match="cannot fit on 0 detections with ground truth: widen"):
        normal.fit_gp_normal(sizes(19).take(np.arange(0)))


def test_a_dimension_without_errors_is_named():
    rows = sizes(20)
    rows.error[:, 1] = 0.0
    with pytest.raises(UnfitData, match=r"dimension 'd1' has no error in 800 rows"):
        normal.fit_gp_normal(rows)


# ---- documents


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimensions": 3}, "'processes' have 2 outputs, 'dimensions' is 3"),
        ({"dimensions": 0}, "'parameters.dimensions' is 0"),
        ({"dimensions": None}, "'parameters"),
        ({"processes": []}, "'parameters.processes' has 0 entries"),
        ({"low": []}, "'low' has 0 entries: with 'processes' it must have 2"),
    ],
)
def test_a_document_that_is_no_gp_normal_is_refused(changes, message):
    parameters = {**normal.fit_gp_normal(sizes(21, n=100)).parameters(), **changes}
    with pytest.raises(InvalidDocument, match=message):
        as_read(GpNormal, parameters)


def test_an_empty_document_is_refused():
    with pytest.raises(InvalidDocument, match="'parameters"):
        as_read(GpNormal, {})
