"""Covariances that are estimated from errors alone: laws on detections with range, score, size and
heading, oracles from the equations, few tracks, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.words import Axes, Objective
from monitor.recalibration.estimated.covariates import (
    CovariateKind,
    Layout,
    by_track,
    columns,
    covariates_of,
)
from monitor.recalibration.estimated.regression import (
    CovarianceRegression,
    design,
    fit_correlation,
    fit_covariance_regression,
    fit_slopes,
    ridge_of,
    terms_of,
)
from monitor.recalibration.estimated.residual import (
    MOST_RANGES,
    MOST_SCORES,
    ResidualCovariance,
    fit_residual_covariance,
)
from monitor.recalibration.estimated.sizes import (
    CUT,
    MEAN_OF_CUT,
    MOST_OF_A_TRACK,
    UNCORRELATED,
    independent_rows,
    log_size,
)
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions, worth
from monitor.recalibration.recalibrator import (
    Identity,
    InvalidRecalibrator,
    Recalibrator,
    UnfitData,
)
from monitor.recalibration.scaling import Prior
from monitor.recalibration.selection import METHODS, Selection
from tests import laws
from tests.laws import costly
from tests.recalibration.rows import as_read, correlation, json_values, wild_estimates
from tests.recalibration.test_documents import JUNK, assert_refused_or_usable, bare, paths
from tests.recalibration.test_documents import changed as changed_document

ESTIMATES = tuple(name for name, one in FITTINGS.items() if one.estimates)
BOX = Space(
    (
        *(Dimension(name, "m") for name in ("x", "y", "z", "l", "w", "h")),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)
SIZES = np.array([0.4, 0.1, 0.08, 0.25, 0.08, 0.07, 0.06])

every_method = pytest.mark.parametrize("method", ESTIMATES)
all_axes = pytest.mark.parametrize("axes", list(Axes))


@cache
def boxes(tracks: int = 60, seed: int = 0, length: int = 12, *, unscored: bool = True) -> FitRows:
    """Errors that are longer along the heading, grow with range and fall with the score."""
    random = np.random.default_rng([seed, tracks])
    track = np.repeat(np.arange(tracks), length)
    n = track.size
    bearing, distance = random.uniform(-1, 1, tracks)[track], random.uniform(5, 60, tracks)[track]
    mean = np.empty((n, 7))
    mean[:, 0], mean[:, 1] = distance * np.cos(bearing), distance * np.sin(bearing)
    mean[:, 2] = random.normal(0, 0.3, n)
    mean[:, 3:6] = np.exp(random.normal(0, 0.1, (n, 3))) * (4.2, 1.8, 1.6)
    mean[:, 6] = random.uniform(-np.pi, np.pi, tracks)[track]
    score = random.uniform(0, 1, n)
    size = SIZES * np.exp(0.5 * np.log(distance / 20) - (score - 0.5))[:, None]
    error = size * random.normal(size=(n, 7))
    cosine, sine = np.cos(mean[:, 6]), np.sin(mean[:, 6])
    along, across = error[:, 0].copy(), error[:, 1].copy()
    error[:, 0], error[:, 1] = cosine * along - sine * across, sine * along + cosine * across
    if unscored:
        score[random.random(n) < 0.1] = np.nan
    sent = Estimates(mean, np.repeat(np.eye(7)[None], n, axis=0), np.ones(n, bool), score)
    return FitRows(BOX, sent, error, track, np.arange(n) / 10, np.zeros(n))


def alone(rows: FitRows) -> FitRows:
    """Every row is an object of its own."""
    return replace(rows, track=np.full(rows.n, -1))


def fit(
    method: str, rows: FitRows, prior: Recalibrator | None = None, strength: float = 30.0, **given
):
    towards = None if prior is None else Prior(prior, strength)
    return FITTINGS[method].fit(rows, FitOptions(**given), towards)


@cache
def fitted(method: str, axes: Axes | None = None):
    return fit(method, boxes(), axes=axes)


def at(
    distance: float = 20.0, bearing: float = 0.0, heading: float = 0.0, score: float = 0.5
) -> Estimates:
    """One detection of a car."""
    place = distance * np.cos(bearing), distance * np.sin(bearing)
    mean = np.array([[*place, 0.0, 4.2, 1.8, 1.6, heading]])
    return Estimates(mean, np.eye(7)[None], np.ones(1, bool), np.array([score]))


def deviations(model: Recalibrator, estimates: Estimates):
    return model.apply(estimates).deviation[0]


# ---- what is served


@every_method
@all_axes
@costly
@given(seed=st.integers(0, 2**32 - 1))
def test_any_detection_gets_a_covariance_by_itself_whatever_it_is(method, axes, seed):
    model = fitted(method, axes)
    random = np.random.default_rng(seed)
    for n in (0, 1, 35):
        score = random.choice([np.nan, 0.5, -1e300, 1e300, np.inf, -np.inf], n)
        sent = laws.changed(wild_estimates(seed, n, 7), score=score)
        laws.recalibrated_covariances_are_positive_definite(model, sent)
        laws.recalibration_leaves_its_argument_alone(model, sent)
        laws.each_detection_is_recalibrated_by_itself(model, sent)
        turned = random.permutation(n)
        laws.assert_same(model.apply(sent.take(turned)), model.apply(sent).take(turned))


@every_method
@all_axes
def test_a_document_of_boxes_is_read_back_to_the_last_bit_and_holds_no_rows(method, axes):
    model = fitted(method, axes)
    text = json.dumps(model.parameters())
    again = as_read(METHODS[method], json.loads(text))
    assert again == model
    laws.assert_same(again.apply(boxes().estimates), model.apply(boxes().estimates))
    larger = fit(method, boxes(240), axes=axes)
    assert len(json.dumps(larger.parameters())) < 1.3 * len(text)


@every_method
def test_what_was_sent_is_not_looked_at(method):
    model, sent = fitted(method), boxes().estimates
    other = laws.changed(sent, covariance=7.0 * sent.covariance, diagonal=~sent.diagonal)
    assert np.array_equal(model.apply(other).covariance, model.apply(sent).covariance)
    again = fit(method, replace(boxes(), estimates=other))
    assert np.array_equal(again.apply(sent).covariance, model.apply(sent).covariance)


@every_method
def test_covariances_are_full_and_means_stay(method):
    made = fitted(method).apply(boxes().estimates)
    assert not made.diagonal.any()
    assert made.mean is boxes().estimates.mean


@every_method
def test_deviations_grow_with_range_fall_with_score_and_are_longer_along_the_heading(method):
    model = fit(method, boxes(300), axes=Axes.OBJECT)
    near, far, sure = (
        deviations(model, at(*one)) for one in ((10.0, 0, 0, 0.5), (50.0,), (20.0, 0, 0, 0.95))
    )
    assert (near < 0.8 * far).all()
    assert (sure < 0.8 * deviations(model, at(20.0, 0, 0, 0.1))).all()
    ahead, aside = deviations(model, at()), deviations(model, at(heading=np.pi / 2))
    assert ahead[0] > 2.5 * ahead[1]
    assert aside[[1, 0]] == pytest.approx(ahead[:2], rel=0.25)


@pytest.mark.parametrize("axes", [Axes.SENSOR, Axes.OBJECT])
@every_method
def test_a_scene_that_is_turned_has_covariances_that_are_turned(method, axes):
    model, turn = fitted(method, axes), 0.7
    one, other = at(30.0, 0.2, 0.5), at(30.0, 0.2 + turn, 0.5 + turn)
    c, s = np.cos(turn), np.sin(turn)
    q = np.eye(7)
    q[:2, :2] = [[c, -s], [s, c]]
    expected = q @ model.apply(one).covariance[0] @ q.T
    assert model.apply(other).covariance[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@every_method
def test_beyond_what_the_fit_has_seen_nothing_changes(method):
    model = fitted(method)
    seen = model.apply(boxes().estimates).deviation
    for one in (at(1e8), at(0.0), at(20.0, score=1e9), at(20.0, score=-1e9)):
        made = deviations(model, one)
        assert (made[2:] <= 1.000001 * seen.max(axis=0)[2:]).all()
        assert (made[2:] >= 0.999999 * seen.min(axis=0)[2:]).all()
    assert deviations(model, at(61.0)) == pytest.approx(deviations(model, at(1e7)), rel=1e-9)


@every_method
def test_a_detection_without_a_score_has_the_deviations_of_a_usual_one(method):
    model = fitted(method)
    none = laws.changed(at(), score=None)
    unknown = deviations(model, at(score=np.nan))
    assert np.array_equal(deviations(model, none), unknown)
    assert (deviations(model, at(score=1.0)) < unknown).all()
    assert (deviations(model, at(score=0.0)) > unknown).all()


# ---- axes


@all_axes
def test_errors_are_turned_and_covariances_turned_back_as_the_equation_says(axes):
    random, layout = np.random.default_rng(1), Layout((0, 2), (), 3, axes)
    n, k = 20, 4
    mean, error = random.normal(size=(n, k)) * 9, random.normal(size=(n, k))
    angle = {
        Axes.PLAIN: np.zeros(n),
        Axes.SENSOR: np.arctan2(mean[:, 2], mean[:, 0]),
        Axes.OBJECT: mean[:, 3],
    }[axes]
    logs = random.normal(size=(k, n))
    root = np.eye(k) + 0.3 * random.normal(size=(n, k, k))
    r = root @ root.transpose(0, 2, 1)
    size = np.sqrt(np.einsum("nii->ni", r))
    r /= size[:, :, None] * size[:, None, :]
    turned, made = layout.turned(mean, error), layout.covariances(mean, logs.copy(), r)
    for i in range(n):
        q = np.eye(k)
        q[np.ix_([0, 2], [0, 2])] = [
            [np.cos(angle[i]), -np.sin(angle[i])],
            [np.sin(angle[i]), np.cos(angle[i])],
        ]
        s = np.diag(np.exp(0.5 * logs[:, i]))
        assert q @ turned[:, i] == pytest.approx(error[i])
        assert made[i] == pytest.approx(q @ s @ r[i] @ s @ q.T)


@every_method
def test_the_best_axes_that_can_be_made_are_those_that_are_taken(method):
    assert fitted(method).layout.axes is (
        Axes.OBJECT if method == ResidualCovariance.method else Axes.SENSOR
    )
    no_heading = without(boxes(), "yaw")
    assert fit(method, no_heading).layout.axes is Axes.SENSOR
    assert fit(method, without(no_heading, "x")).layout.axes is Axes.PLAIN


def without(rows: FitRows, *names: str) -> FitRows:
    keep = [i for i, name in enumerate(rows.space.names) if name not in names]
    sent = rows.estimates
    covariance = sent.covariance[:, keep][:, :, keep]
    fewer = laws.changed(sent, mean=sent.mean[:, keep], covariance=covariance)
    space = Space(tuple(rows.space.dimensions[i] for i in keep))
    return replace(rows, space=space, estimates=fewer, error=rows.error[:, keep])


@every_method
@pytest.mark.parametrize(
    ("axes", "gone", "message"),
    [
        ("sensor", "y", r"axes 'sensor' need x and y.* are x, z, .*fit with axes 'plain'"),
        ("object", "x", r"axes 'object' need x and y"),
        ("object", "yaw", r"axes 'object' need a heading, an angle that is called yaw or heading"),
    ],
)
def test_axes_that_cannot_be_made_are_refused_with_the_field_and_the_remedy(
    method, axes, gone, message
):
    with pytest.raises(UnfitData, match=message):
        fit(method, without(boxes(), gone), axes=Axes(axes))


# ---- fields that are absent or wild


@every_method
def test_image_boxes_have_no_range(method):
    names = ("x", "y", "w", "h")
    space = Space(tuple(Dimension(name, "px") for name in names))
    random, n = np.random.default_rng(2), 200
    mean = np.exp(random.normal(4, 0.7, (n, 4)))
    error = 0.1 * mean[:, 2:3] * random.normal(size=(n, 4))
    sent = Estimates(mean, np.repeat(np.eye(4)[None], n, axis=0), np.ones(n, bool))
    model = fit(method, FitRows(space, sent, error, np.arange(n)))
    assert model.layout == Layout((), (2, 3))
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(3, 30, 4))
    with pytest.raises(UnfitData, match="axes 'sensor' need x and y in metres"):
        fit(method, FitRows(space, sent, error, np.arange(n)), axes=Axes.SENSOR)


@every_method
def test_one_dimension_and_no_score_give_its_root_mean_square(method):
    random = np.random.default_rng(4)
    error = random.normal(size=(50, 1)) * 3
    sent = Estimates(random.normal(size=(50, 1)), np.ones((50, 1, 1)), np.zeros(50, bool))
    model = fit(method, FitRows(plain_space(("u",)), sent, error, np.full(50, -1)))
    made = model.apply(sent)
    assert made.deviation == pytest.approx(np.full((50, 1), np.sqrt(np.mean(error**2))))
    assert np.array_equal(made.diagonal, sent.diagonal)


@every_method
def test_detections_at_the_sensor_itself_are_fitted(method):
    rows = boxes()
    mean = rows.estimates.mean.copy()
    mean[:20, :2] = 0.0
    model = fit(method, replace(rows, estimates=laws.changed(rows.estimates, mean=mean)))
    laws.recalibrated_covariances_are_positive_definite(model, at(0.0))
    laws.recalibrated_covariances_are_positive_definite(model, boxes().estimates)


# ---- oracles


@every_method
def test_where_nothing_tells_errors_apart_it_is_the_covariance_of_the_errors(method):
    random, n, k = np.random.default_rng(5), 40, 3
    error = random.normal(size=(n, k)) @ random.normal(size=(k, k))
    sent = Estimates(np.zeros((n, k)), np.repeat(np.eye(k)[None], n, axis=0), np.ones(n, bool))
    rows = FitRows(plain_space(("a", "b", "c")), sent, error, np.full(n, -1))
    made = fit(method, rows).apply(sent.take(slice(0, 1)))
    moment = sum(np.outer(e, e) for e in error) / n
    assert made.deviation[0] == pytest.approx(np.sqrt(np.diagonal(moment)))
    size = np.sqrt(np.diagonal(moment))
    worth = independent_rows((error / size).T ** 2, rows.track).min()
    share = worth / (worth + UNCORRELATED + k)
    sample = moment / np.outer(size, size)
    expected = share * sample + (1 - share) * np.eye(k)
    assert correlation(made)[0] == pytest.approx(expected, abs=2e-6)


def test_slopes_are_where_the_gradient_of_the_penalised_likelihood_is_zero():
    rows = alone(boxes())
    layout = Layout.of(rows.space, Axes.OBJECT)
    covariates = covariates_of(layout, rows)
    terms = terms_of(covariates)
    x = design(terms, columns(covariates, layout, rows.estimates), rows.n)
    square = layout.turned(rows.estimates.mean, rows.error) ** 2
    random = np.random.default_rng(6)
    ridge, towards = ridge_of(terms), 0.3 * random.normal(size=(7, len(terms)))
    weight = random.uniform(0.1, 1.0, 7)
    found = fit_slopes(square, x, ridge, towards, weight)
    for d in range(7):
        gradient = -0.5 * ridge * (found[d] - towards[d])
        for i in range(rows.n):
            z2 = square[d, i] / np.exp(x[:, i] @ found[d])
            gradient += 0.5 * weight[d] * x[:, i] * (min(z2, CUT) / MEAN_OF_CUT - 1)
        assert np.abs(gradient).max() < 1e-5


def test_the_correlation_of_x_and_y_is_where_its_penalised_likelihood_is_largest():
    random, n = np.random.default_rng(7), 400
    u = np.stack([np.ones(n), random.uniform(-1, 1, n)])
    rho = np.tanh(np.array([0.2, 0.8]) @ u)
    z = random.normal(size=(2, n))
    z[1] = rho * z[0] + np.sqrt(1 - rho**2) * z[1]
    towards, ridge, weight = np.array([0.1, -0.1]), 5.0, 0.5

    def likelihood(gamma):
        r = np.tanh(gamma @ u)
        quadratic = (z[0] ** 2 - 2 * r * z[0] * z[1] + z[1] ** 2) / (1 - r**2)
        own = -0.5 * np.log(1 - r**2) - 0.5 * quadratic
        return weight * own.sum() - 0.5 * ridge * np.sum((gamma - towards) ** 2)

    found, step = fit_correlation(z, u, ridge, towards, weight), 1e-5
    for i in range(2):
        e = step * np.eye(2)[i]
        assert abs(likelihood(found + e) - likelihood(found - e)) / (2 * step) < 1e-4
    assert found == pytest.approx([0.2, 0.8], abs=0.25)


def test_the_correlation_of_x_and_y_is_that_of_an_error_along_the_heading():
    """In axes of the sensor it is (σ²_l − σ²_t) sin 2a / 2 over both deviations."""
    model = fit("covariance-regression", boxes(400), axes=Axes.SENSOR)
    for aspect in (-0.6, 0.0, 0.6):
        made = model.apply(at(heading=aspect)).covariance[0, :2, :2]
        c, s = np.cos(aspect), np.sin(aspect)
        q = np.array([[c, -s], [s, c]])
        true = q @ np.diag(SIZES[:2] ** 2) @ q.T
        found, expected = (m[0, 1] / np.sqrt(m[0, 0] * m[1, 1]) for m in (made, true))
        assert found == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("objective", list(Objective))
def test_a_size_satisfies_its_objective(objective):
    square = 5.0 * np.random.default_rng(8).standard_t(4, (3, 2000)) ** 2
    z2 = square / np.exp(log_size(square, objective))[:, None]
    met = {
        Objective.MEAN: z2.mean(axis=1) - 1,
        Objective.WINSORISED_MEAN: np.minimum(z2, CUT).mean(axis=1) - MEAN_OF_CUT,
        Objective.QUANTILE: (z2 <= 1).mean(axis=1) - 0.6827,
    }[objective]
    assert np.abs(met).max() < 1e-3
    assert (
        pytest.approx(
            np.minimum(np.random.default_rng(9).normal(size=10**6) ** 2, CUT).mean(), abs=0.005
        )
        == MEAN_OF_CUT
    )


@every_method
@pytest.mark.parametrize("objective", list(Objective))
def test_over_the_rows_of_the_fit_each_dimension_satisfies_the_objective(method, objective):
    rows = boxes(200, unscored=False)
    model = fit(method, rows, objective=objective, axes=Axes.PLAIN)
    z2 = np.square(rows.error / model.apply(rows.estimates).deviation)
    off = 0.0 if method == CovarianceRegression.method else 0.08
    if objective is Objective.MEAN:
        assert z2.mean(axis=0) == pytest.approx(np.ones(7), abs=1e-6 + off)
    elif objective is Objective.QUANTILE:
        assert (z2 <= 1).mean(axis=0) == pytest.approx(np.full(7, 0.6827), abs=2e-3 + off)


# ---- tracks


@every_method
def test_rows_that_repeat_in_a_track_are_worth_no_more_than_two_of_them(method):
    rows = boxes(40)
    square = np.square(rows.error.T)
    assert (independent_rows(square, rows.track) <= MOST_OF_A_TRACK * 40).all()
    copies = np.repeat(np.arange(40) * 12, 9)
    apart = replace(boxes(40).take(copies), track=np.arange(360))
    together = replace(apart, track=np.repeat(np.arange(40), 9))
    means = apart.estimates

    def spread(one: FitRows) -> float:
        """How much the covariances of a fit differ from row to row."""
        return float(np.log(fit(method, one).apply(means).deviation).std(axis=0).mean())

    assert spread(together) < spread(apart)


@every_method
@pytest.mark.parametrize("tracks", [1, 2, 3, 10])
def test_few_tracks_give_plausible_deviations_in_all_directions(method, tracks):
    model = fit(method, boxes(tracks))
    made = model.apply(boxes(50, 1).estimates).covariance
    values = np.linalg.eigvalsh(made)
    assert values.min() > (0.01 * SIZES.min()) ** 2
    assert values.max() < (100 * SIZES.max()) ** 2


def test_cells_are_few_with_few_tracks():
    few, many = (fit(ResidualCovariance.method, boxes(tracks)) for tracks in (3, 100))
    assert (len(few.ranges), len(few.scores)) == (1, 1)
    assert (len(many.ranges), len(many.scores)) == (MOST_RANGES, MOST_SCORES)


@every_method
def test_the_fewer_the_tracks_the_nearer_a_slice_is_to_the_wider_one(method):
    rows = boxes(200)
    wide = fit(method, replace(rows, error=3.0 * rows.error))
    there = boxes(60, 1).estimates
    before = np.log(wide.apply(there).deviation)

    def far(tracks: int, strength: float) -> float:
        own = rows.take(rows.track < tracks)
        count = strength * own.n * own.weight / worth(own)
        made = np.log(fit(method, own, wide, count).apply(there).deviation)
        return float(np.abs(made - before).mean())

    assert far(1, 1e9) < 0.02
    assert far(1, 30.0) < far(20, 30.0) < far(200, 30.0)
    assert far(200, 30.0) == pytest.approx(np.log(3.0), abs=0.25)


@every_method
def test_a_slice_takes_over_the_axes_of_the_wider_one(method):
    wide = fit(method, boxes(), axes=Axes.PLAIN)
    assert fit(method, boxes(10), wide, axes=Axes.OBJECT).layout == wide.layout


def test_each_track_counts_once_where_a_covariate_is_standardised():
    rows = boxes(3, length=2).take(np.array([0, 1, 2, 3, 4]))
    assert by_track(rows) == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 3])
    kinds = [one.kind for one in covariates_of(Layout.of(BOX, Axes.SENSOR), boxes())]
    assert CovariateKind.SCORE in kinds
    assert CovariateKind.SINE_OF_BEARING not in kinds


# ---- documents


def changed(method: str, **fields):
    return replace(fitted(method), **fields)


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        ("residual-covariance", {"ranges": (2.0, 1.0)}, "'ranges' are .* must rise strictly"),
        ("residual-covariance", {"scores": (0.0,)}, "'log_variance' has"),
        ("residual-covariance", {"dimensions": 3}, "must be less than 3"),
        ("covariance-regression", {"low": (9.0,) * 7, "high": (8.0,) * 7}, "must be in order"),
        ("covariance-regression", {"terms": ((),)}, "'coefficients' has"),
        ("covariance-regression", {"covariates": ()}, "a term has the covariate"),
        ("covariance-regression", {"correlation": ((1.0,),)}, "'correlation' has"),
        ("covariance-regression", {"layout": Layout()}, "'pair' needs 'position'"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(method, fields, message):
    with pytest.raises(InvalidRecalibrator, match=message):
        changed(method, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": (0,)}, "two places or none"),
        ({"position": (1, 1)}, "two places or none"),
        ({"axes": Axes.SENSOR}, "'axes' is 'sensor': it needs 'position'"),
        ({"axes": Axes.OBJECT, "position": (0, 1)}, "'axes' is 'object': it needs 'heading'"),
    ],
)
def test_a_layout_without_what_its_axes_need_is_refused(fields, message):
    with pytest.raises(InvalidRecalibrator, match=message):
        Layout(**fields)


def test_fits_are_reached_by_their_names():
    assert set(ESTIMATES) == {"residual-covariance", "covariance-regression"}
    rows = boxes(20)
    assert fit("covariance-regression", rows) == fit_covariance_regression(rows)
    assert fit("residual-covariance", rows) == fit_residual_covariance(rows)


@cache
def small_document(method: str):
    """Of x, y and a heading, with a score; of one covariate and cell a kind."""
    rows = without(boxes(6), "z", "l", "w", "h")
    return Selection(rows.space.names, fit(method, rows), {"car": Identity()})


@every_method
@given(st.data())
def test_whatever_stands_in_one_place_of_a_document_is_refused_or_can_be_served(method, data):
    document = bare(small_document(method))
    path = data.draw(st.sampled_from(paths(document["fallback"], ("fallback",))))
    value = data.draw(st.sampled_from(JUNK) | json_values)
    assert_refused_or_usable(json.dumps(changed_document(document, path, value)))


@every_method
def test_sizes_of_nothing_and_scores_of_a_kind_of_their_own_have_no_leverage(method):
    rows = boxes()
    wild, score = rows.estimates.mean.copy(), np.array(rows.estimates.score)
    wild[::50, 3:6], wild[7::50, 3:6] = 0.0, -4.0
    score[3::50], score[11::50] = 1e300, -9999.0
    usual = fit(method, rows)
    strange = laws.changed(rows.estimates, mean=wild, score=score)
    some = fit(method, replace(rows, estimates=strange))

    def made(model, estimates):
        return model.apply(estimates).deviation

    found = made(some, rows.estimates) / made(usual, rows.estimates)
    assert found.min() > 0.5
    assert found.max() < 2.0
    nothing = laws.changed(rows.estimates, mean=wild, score=score)
    assert made(some, nothing).max() < 3 * made(usual, rows.estimates).max()
