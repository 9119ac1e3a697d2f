"""What GP-Cauchy and GP-Beta have in common: the laws of recalibrators, exact documents, fits that
depend on the rows alone, and clear results or refusals for rows that say little."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import plain_space
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes import beta, cauchy
from monitor.recalibration.processes.beta import GpBeta
from monitor.recalibration.processes.cauchy import GpCauchy
from monitor.recalibration.recalibrator import UnfitData
from monitor.store.codec import InvalidDocument
from tests import laws
from tests.recalibration.rows import as_read, wild_estimates

FITS: dict[str, Any] = {"cauchy": cauchy.fit_gp_cauchy, "beta": beta.fit_gp_beta}
TYPES: dict[str, Any] = {"cauchy": GpCauchy, "beta": GpBeta}
both = pytest.mark.parametrize("name", FITS)


def rows(seed=0, n=300, k=2, *, track=None) -> FitRows:
    """Errors that grow with the first mean, with covariances that are not diagonal."""
    random = np.random.default_rng(seed)
    mean = random.uniform(-2, 2, (n, k))
    sigma = np.exp(0.4 * random.normal(size=(n, k)))
    shape = 0.3 * np.ones((k, k)) + 0.7 * np.eye(k)
    covariance = sigma[:, :, None] * sigma[:, None, :] * shape
    error = sigma * np.exp(0.6 * mean[:, :1]) * random.normal(size=(n, k))
    sent = Estimates(mean, covariance, np.zeros(n, bool))
    names = tuple(f"d{i}" for i in range(k))
    tracks = np.full(n, -1) if track is None else track
    return FitRows(plain_space(names), sent, error, tracks)


@cache
def fitted(name, k=2):
    return FITS[name](rows(k=k))


def replaced(given_rows, **changes) -> FitRows:
    sent = given_rows.estimates
    part = Estimates(
        changes.get("mean", sent.mean), changes.get("covariance", sent.covariance), sent.diagonal
    )
    return FitRows(given_rows.space, part, changes.get("error", given_rows.error), given_rows.track)


# ---- laws of recalibrators


@both
def test_correlations_and_the_form_of_covariances_stay(name):
    sent = wild_estimates(4, 20, 2)
    made = fitted(name).apply(sent)
    assert np.array_equal(made.diagonal, sent.diagonal)

    def correlation(covariance):
        size = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        return covariance / (size[:, :, None] * size[:, None, :])

    assert correlation(made.covariance) == pytest.approx(correlation(sent.covariance), abs=1e-12)


# ---- documents


@both
def test_a_document_is_refused_whatever_part_of_it_is_wrong(name):
    def paths(value, path=()):
        yield path
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from paths(inner, (*path, key))
        if isinstance(value, list) and value:
            yield from paths(value[0], (*path, 0))

    wrongs: list[Any] = [None, "far", [], {}, float("nan"), 1e400, [[float("inf")]], -1e9, True]
    good = fitted(name).parameters()
    for path in list(paths(good))[1:]:
        for wrong in wrongs:
            broken = json.loads(json.dumps(good))
            inner = broken
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = wrong
            try:
                model = as_read(TYPES[name], broken)
            except InvalidDocument as error:
                assert str(error)
                continue
            # What is not refused can be served.
            laws.recalibrated_covariances_are_positive_definite(
                model, wild_estimates(7, 20, model.k)
            )


@both
def test_a_document_without_one_of_its_fields_is_refused(name):
    good = fitted(name).parameters()
    for key in good:
        with pytest.raises(InvalidDocument, match=key):
            as_read(TYPES[name], {k: v for k, v in good.items() if k != key})


@both
def test_a_process_of_two_outputs_is_refused(name):
    broken = json.loads(json.dumps(fitted(name).parameters()))
    stack = broken["log_weight" if name == "cauchy" else "latent"]
    constant = {
        **{key: [] for key in ("inducing", "scale", "mixing", "location", "spread", "inputs")},
        "form": "normalised",
        "constant": [0.0, 0.0],
    }
    stack["processes"][0] = constant
    stack["low"], stack["high"] = [0.0] * 3, [0.0] * 3
    with pytest.raises(InvalidDocument, match="output"):
        as_read(TYPES[name], broken)


# ---- fits


@both
@pytest.mark.parametrize("unit", [1.0, 0.001])
def test_rows_of_one_track_weigh_less_than_rows_of_their_own(name, unit):
    single = rows(3, n=120, k=1)
    single = replaced(single, covariance=unit**2 * single.estimates.covariance)
    alone = single.take(np.repeat(np.arange(120), 5))
    together = FitRows(alone.space, alone.estimates, alone.error, np.repeat(np.arange(120), 5))
    sent = single.estimates
    reference = FITS[name](single).apply(sent).covariance
    near = np.abs(np.log(np.abs(FITS[name](together).apply(sent).covariance / reference)))
    far = np.abs(np.log(np.abs(FITS[name](alone).apply(sent).covariance / reference)))
    assert near.mean() < 0.05
    assert near.mean() < far.mean()


@both
@pytest.mark.parametrize("k", [1, 8])
def test_one_row_gives_a_model_that_can_be_served(name, k):
    model = FITS[name](rows(4, n=1, k=k))
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(8, 20, k))
    assert not any(process.inducing for process in stack_of(model).processes)


def stack_of(model):
    return model.log_weight if isinstance(model, GpCauchy) else model.latent


@both
def test_a_constant_deviation_is_no_input_and_does_no_harm(name):
    given_rows = rows(5)
    constant = replaced(given_rows, covariance=np.tile(np.eye(2), (300, 1, 1)))
    model = FITS[name](constant)
    kinds = {str(f.kind) for process in stack_of(model).processes for f in process.inputs}
    assert "log-deviation" not in kinds
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(9, 20, 2))


@both
def test_rows_that_are_all_alike_give_a_constant(name):
    model = FITS[name](rows(6, n=1).take(np.zeros(50, np.int64)))
    assert not any(process.inducing for process in stack_of(model).processes)
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(10, 20, 2))


@both
def test_units_far_apart_are_fitted_and_served(name):
    given_rows = rows(7)
    unit = np.array([1e-6, 1e6])
    other = FitRows(
        given_rows.space,
        Estimates(
            given_rows.estimates.mean * unit,
            given_rows.estimates.covariance * (unit[:, None] * unit),
            given_rows.estimates.diagonal,
        ),
        given_rows.error * unit,
        given_rows.track,
    )
    made = FITS[name](other).apply(other.estimates).covariance / (unit[:, None] * unit)
    assert made == pytest.approx(
        FITS[name](given_rows).apply(given_rows.estimates).covariance, rel=1e-3
    )


@both
def test_errors_of_another_order_than_their_deviations_are_scaled(name):
    given_rows = rows(8)
    model = FITS[name](replaced(given_rows, error=1e9 * given_rows.error))
    small = FITS[name](given_rows).apply(given_rows.estimates).covariance
    made = model.apply(given_rows.estimates).covariance
    assert made / 1e18 == pytest.approx(small, rel=1e-3)


@both
def test_without_rows_a_fit_is_refused(name):
    with pytest.raises(UnfitData, match="0 detections"):
        FITS[name](rows(10, n=0))


@both
def test_a_dimension_without_errors_is_refused_with_its_name(name):
    given_rows = rows(11)
    error = given_rows.error.copy()
    error[:, 1] = 0.0
    with pytest.raises(UnfitData, match="'d1'"):
        FITS[name](replaced(given_rows, error=error))


@both
def test_where_nothing_is_to_be_found_the_factor_is_constant(name):
    random = np.random.default_rng(12)
    given_rows = rows(12, n=1000, k=1)
    error = given_rows.deviation * random.standard_cauchy((1000, 1))
    if name == "beta":
        error = given_rows.deviation * random.normal(size=(1000, 1))
    model = FITS[name](replaced(given_rows, error=error))
    assert not any(process.inputs for process in stack_of(model).processes)
    made = np.sqrt(model.apply(given_rows.estimates).covariance)[:, 0] / given_rows.deviation
    assert np.ptp(np.log(made)) == pytest.approx(0.0, abs=1e-12)
