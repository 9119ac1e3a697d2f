"""The registries: every method that a document may name can be fitted, and the other way round."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import plain_space
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions, statistics_of
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import Clamp, FullInput, Objective, Prior
from monitor.recalibration.selection import METHODS, Selection
from monitor.store.recalibrator_documents import any_selection_from_json
from tests import laws
from tests.recalibration.rows import as_read

XY = plain_space(("x", "y"), "m")
# An option that is not the method's own default.
OTHERS: dict[str, Any] = {
    "objective": Objective.QUANTILE,
    "full_input": FullInput.WHITEN,
    "clamp": Clamp(0.9, 1.1),
    "inducing": 4,
    "surrogate_level": 0.9,
    "time_constant": 5.0,
}


def rows(n: int = 150) -> FitRows:
    """Errors whose size depends on x, and that correlate."""
    random = np.random.default_rng(1)
    mean = random.uniform(1, 20, (n, 2))
    root = random.normal(size=(n, 2, 2)) + 3 * np.eye(2)
    covariance = root @ root.transpose(0, 2, 1)
    factor = np.linalg.cholesky(covariance)
    error = (factor @ random.normal(size=(n, 2, 1)))[:, :, 0] * np.sqrt(mean[:, :1] / 4)
    sent = Estimates(mean, covariance, np.zeros(n, bool))
    return FitRows(XY, sent, error, np.full(n, -1), np.arange(n) / 10, np.zeros(n))


@pytest.fixture(scope="module")
def sample() -> FitRows:
    return rows()


def test_what_can_be_served_can_be_fitted_and_the_other_way_round():
    assert tuple(METHODS) == tuple(FITTINGS)
    assert set(METHODS) == {
        *("identity", "variance-scaling", "covariance-scaling", "adaptive-scaling"),
        *("histogram-binning", "isotonic-std", "isotonic-quantiles"),
        *("gp-normal", "gp-normal-multivariate", "gp-beta", "gp-cauchy"),
    }


@pytest.mark.parametrize("method", FITTINGS)
def test_a_fit_is_of_its_method_and_its_document_read_back_is_the_same(method, sample):
    fitted = FITTINGS[method].fit(sample, FitOptions(), None)
    assert fitted.method == method
    again = as_read(METHODS[method], json.loads(json.dumps(fitted.parameters())))
    laws.assert_same(again.parameters(), fitted.parameters())
    selection = Selection(XY.names, fitted)
    assert any_selection_from_json(selection.to_json()).version == selection.version
    laws.assert_same(again.apply(sample.estimates), fitted.apply(sample.estimates))
    laws.recalibrated_covariances_are_positive_definite(fitted, sample.estimates)


@pytest.mark.parametrize("method", FITTINGS)
def test_no_estimates_become_no_estimates(method, sample):
    nothing = Estimates(np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros(0, bool))
    made = FITTINGS[method].fit(sample, FitOptions(), None).apply(nothing)
    assert made.shapes == nothing.shapes


@pytest.mark.parametrize("method", FITTINGS)
def test_a_fit_repeated_is_the_same_whatever_order_the_rows_come_in(method, sample):
    turned = sample.take(np.random.default_rng(0).permutation(sample.n))
    one = FITTINGS[method].fit(sample, FitOptions(), None)
    other = FITTINGS[method].fit(turned, FitOptions(), None)
    laws.assert_same(one.parameters(), other.parameters())


@pytest.mark.parametrize(
    ("method", "option"),
    [(method, option) for method in FITTINGS for option in sorted(FITTINGS[method].uses)],
)
def test_an_option_that_a_method_uses_changes_its_fit(method, option, sample):
    plain = FITTINGS[method].fit(sample, FitOptions(), None)
    asked = FITTINGS[method].fit(sample, FitOptions(**{option: OTHERS[option]}), None)
    assert asked.parameters() != plain.parameters()


def test_every_option_is_of_some_method():
    assert {name for fitting in FITTINGS.values() for name in fitting.uses} == {
        entry.name for entry in fields(FitOptions)
    }


CLAMPED = [name for name, one in FITTINGS.items() if one.borrows and "clamp" in one.uses]


@pytest.mark.parametrize("method", CLAMPED)
def test_a_scaling_that_borrows_is_drawn_towards_the_prior(method, sample):
    fitting = FITTINGS[method]
    own = fitting.fit(sample, FitOptions(), None)
    wide = fitting.fit(sample, FitOptions(clamp=Clamp(3.0, 3.0)), None)
    drawn = fitting.fit(sample, FitOptions(), Prior(wide, float(sample.n)))
    scales = [np.array(one.parameters()["scale"]) for one in (own, drawn, wide)]
    assert np.sqrt(scales[0] * scales[2]) == pytest.approx(scales[1])


@pytest.mark.parametrize("method", [name for name in FITTINGS if name != "identity"])
def test_no_rows_are_refused_by_every_method_but_the_identity(method, sample):
    with pytest.raises(UnfitData, match="0 detections with ground truth"):
        FITTINGS[method].fit(sample.take(np.zeros(0, np.int64)), FitOptions(), None)


def test_the_sums_of_scalings_know_how_much_alike_the_rows_of_a_track_are():
    part = rows(200)
    repeated = FitRows(
        XY,
        Estimates(
            np.repeat(part.estimates.mean, 5, axis=0),
            np.repeat(part.estimates.covariance, 5, axis=0),
            np.zeros(1000, bool),
        ),
        np.repeat(part.error, 5, axis=0),
        np.repeat(np.arange(200), 5),
    )
    prior: Prior[Any] = Prior(
        FITTINGS["variance-scaling"].fit(part, FitOptions(clamp=Clamp(9.0, 9.0)), None), 50.0
    )
    alone = FITTINGS["variance-scaling"].fit(part, FitOptions(), prior)
    tracked = FITTINGS["variance-scaling"].fit(repeated, FitOptions(), prior)
    # As far as the 200 objects go, not the thousand rows.
    assert tracked.parameters()["scale"] == pytest.approx(alone.parameters()["scale"], rel=0.05)
    assert statistics_of(repeated).n == 1000


def test_serving_loads_no_optimiser():
    script = (
        "import sys, monitor.recalibration.classes.class_selection\n"
        "print(*[m for m in sys.modules if m.startswith(('scipy.optimize', 'scipy.stats'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
