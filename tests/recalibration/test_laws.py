"""Laws that every method of Gaussians obeys, whatever it is fitted on."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.scaling import FullInput, Objective
from monitor.recalibration.selection import METHODS
from tests import laws
from tests.recalibration.rows import as_read, joined, rows_from, wild_estimates

# A few inducing points are enough for laws, and quick.
FITTED: dict[str, tuple[str, FitOptions]] = {
    name: (name, FitOptions(inducing=4 if "inducing" in one.uses else None))
    for name, one in FITTINGS.items()
} | {
    "variance-scaling quantile": ("variance-scaling", FitOptions(objective=Objective.QUANTILE)),
    "covariance-scaling whiten": ("covariance-scaling", FitOptions(full_input=FullInput.WHITEN)),
}
quick = settings(max_examples=5)
seeds = st.integers(0, 2**32 - 1)
of_every_method = pytest.mark.parametrize(
    ("name", "k"),
    [
        *((name, k) for name in FITTINGS for k in (1, 2, 8)),
        *((name, k) for name in FITTED if name not in FITTINGS for k in (1, 2)),
    ],
)
of_every_form = pytest.mark.parametrize("form", ["variances", "covariances", "mixed"])
with_and_without_tracks = pytest.mark.parametrize("tracked", [False, True])


@cache
def rows(k: int, form: str, tracked: bool) -> FitRows:
    """Errors whose size goes with the first mean and with σ; some values repeat."""
    if form == "mixed":
        return joined(rows(k, "variances", tracked), rows(k, "covariances", tracked))
    random, n = np.random.default_rng(k), 90 if k < 8 else 36
    mean = np.round(random.uniform(1, 20, (n, k)), 1)
    root = np.eye(k) + 0.3 * random.normal(size=(n, k, k)) * (form == "covariances")
    root *= np.exp(0.5 * random.normal(size=(n, k)))[:, :, None]
    covariance = root @ root.transpose(0, 2, 1)
    size = np.sqrt(mean[:, :1] / 8)
    error = (np.linalg.cholesky(covariance) @ random.normal(size=(n, k, 1)))[..., 0] * size
    track = np.arange(n) // 3 - 1 if tracked else None
    return rows_from(mean, covariance, error, diagonal=form == "variances", track=track)


@cache
def fitted(name: str, k: int, form: str, tracked: bool) -> Recalibrator:
    method, options = FITTED[name]
    return FITTINGS[method].fit(rows(k, form, tracked), options, None)


@of_every_method
@of_every_form
@quick
@given(seeds)
def test_any_detection_is_recalibrated_by_itself_and_stays_positive_definite(name, k, form, seed):
    model = fitted(name, k, form, False)
    for n in (0, 1, 40):
        sent = wild_estimates(seed, n, k)
        if model.keeps_definite:
            laws.recalibrated_covariances_are_positive_definite(model, sent)
        laws.recalibration_leaves_its_argument_alone(model, sent)
        laws.each_detection_is_recalibrated_by_itself(model, sent)


@of_every_method
@of_every_form
@with_and_without_tracks
def test_a_fit_is_the_same_whatever_order_its_rows_come_in(name, k, form, tracked):
    method, options = FITTED[name]
    one = rows(k, form, tracked)
    turned = one.take(np.random.default_rng(k).permutation(one.n))
    assert FITTINGS[method].fit(turned, options, None) == fitted(name, k, form, tracked)


@of_every_method
@of_every_form
def test_a_document_gives_the_same_recalibrator_to_the_last_bit(name, k, form):
    model = fitted(name, k, form, False)
    again = as_read(METHODS[model.method], json.loads(json.dumps(model.parameters())))
    assert again == model
    sent = wild_estimates(k, 30, k)
    laws.assert_same(again.apply(sent), model.apply(sent))
