"""Features: what is taken, standardised and never outside of the fit's range."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.processes.inputs import (
    Feature,
    FeatureKind,
    Inputs,
    candidate_inputs,
)
from monitor.store.codec import InvalidDocument
from tests.recalibration.gp_sets import sizes
from tests.recalibration.rows import as_read, rows_from, wild_estimates

POSE = Space(
    (
        Dimension("x", "m"),
        Dimension("length", "m"),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
        Dimension("axis", "rad", DimensionKind.ANGLE_MODULO_PI),
    )
)


def poses(seed, n=200):
    random = np.random.default_rng(seed)
    mean = np.stack(
        [
            random.normal(0, 30, n),
            np.exp(random.normal(1, 0.3, n)),
            random.uniform(-np.pi, np.pi, n),
            random.uniform(-np.pi / 2, np.pi / 2, n),
        ],
        axis=1,
    )
    variance = np.exp(random.normal(size=(n, 4)))
    return rows_from(mean, variance, random.normal(size=(n, 4)), space=POSE)


def kinds(inputs):
    return [(str(feature.kind), feature.dimension) for feature in inputs.features]


def test_candidates_are_means_by_their_kind_and_all_deviations():
    assert kinds(candidate_inputs(poses(1))) == [
        ("mean", 0),
        ("log-mean", 1),
        ("cosine", 2),
        ("sine", 2),
        ("cosine-of-twice", 3),
        ("sine-of-twice", 3),
        *(("log-deviation", i) for i in range(4)),
    ]


def test_features_are_standardised_over_the_rows_of_the_fit():
    rows = poses(2)
    inputs = candidate_inputs(rows)
    points = inputs.of(rows.estimates)
    assert points.mean(axis=0) == pytest.approx(np.zeros(10), abs=1e-12)
    assert points.std(axis=0) == pytest.approx(np.ones(10))
    mean, sigma = rows.estimates.mean, rows.deviation
    raw = [mean[:, 0], np.log(mean[:, 1]), np.cos(mean[:, 2]), np.sin(mean[:, 2])]
    raw += [np.cos(2 * mean[:, 3]), np.sin(2 * mean[:, 3]), *np.log(sigma).T]
    for column, values in zip(points.T, raw, strict=True):
        assert column == pytest.approx((values - values.mean()) / values.std(), abs=1e-12)


@pytest.mark.parametrize(("dimension", "period"), [(2, 2 * np.pi), (3, np.pi)])
def test_an_angle_a_period_away_is_the_same_point(dimension, period):
    rows = poses(3)
    inputs = candidate_inputs(rows)
    turned = rows.estimates.mean.copy()
    turned[:, dimension] += period
    other = Estimates(turned, rows.estimates.covariance, rows.estimates.diagonal)
    assert inputs.of(other) == pytest.approx(inputs.of(rows.estimates), abs=1e-9)


def test_a_dimension_that_is_not_positive_throughout_enters_as_it_is():
    rows = sizes(4, k=2)
    rows.estimates.mean[17, 1] = -1.0
    assert kinds(candidate_inputs(rows))[:2] == [("log-mean", 0), ("mean", 1)]


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_whatever_the_estimate_its_point_is_within_the_range_of_the_fit(seed):
    rows = poses(5)
    inputs = candidate_inputs(rows)
    seen = inputs.of(rows.estimates)
    points = inputs.of(wild_estimates(seed, 50, 4))
    assert (points >= seen.min(axis=0)).all()
    assert (points <= seen.max(axis=0)).all()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64])
def test_an_estimate_has_the_same_bits_alone_and_among_others(n):
    inputs = candidate_inputs(poses(6))
    estimates = wild_estimates(7, n, 4)
    whole = inputs.of(estimates)
    for i in range(n):
        one = slice(i, i + 1)
        alone = Estimates(estimates.mean[one], estimates.covariance[one], estimates.diagonal[one])
        assert np.array_equal(inputs.of(alone)[0], whole[i])


@pytest.mark.parametrize("n", [1, 300])
def test_what_does_not_vary_is_no_candidate(n):
    mean = np.column_stack([np.full(n, 1234.5), np.full(n, 0.1) + 0.2])
    rows = rows_from(mean, np.full((n, 2), 0.1) * 0.3, np.ones((n, 2)))
    assert not candidate_inputs(rows).features
    assert Inputs(()).of(rows.estimates).shape == (n, 0)


def document_of(inputs):
    return json.loads(json.dumps({"features": [one.parameters() for one in inputs.features]}))


def test_a_round_trip_through_json_loses_nothing():
    for inputs in (candidate_inputs(poses(10)), Inputs(())):
        assert as_read(Inputs, document_of(inputs)) == inputs


FEATURE = Feature(FeatureKind.LOG_MEAN, 1, 0.5, 3.0, 0.1, 0.7).parameters()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "square"),
        ("kind", "variance"),
        ("kind", 3),
        ("dimension", -1),
        ("dimension", 0.5),
        ("dimension", True),
        ("low", 5.0),
        ("low", 0.0),
        ("low", -1.0),
        ("low", "1"),
        ("high", float("inf")),
        ("centre", float("nan")),
        ("centre", None),
        ("scale", 0.0),
        ("scale", -1.0),
        ("scale", 1e-9),
    ],
)
def test_a_document_that_is_no_feature_is_refused_by_name(name, value):
    with pytest.raises(InvalidDocument, match=rf"\b{name}'"):
        as_read(Inputs, {"features": [{**FEATURE, name: value}]})


@pytest.mark.parametrize("parameters", [None, {}, [3]])
def test_a_document_that_is_no_list_of_features_is_refused(parameters):
    with pytest.raises(InvalidDocument, match="features"):
        as_read(Inputs, {"features": parameters})
