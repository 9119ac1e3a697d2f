"""Laws that every method of Gaussians obeys, whatever it is fitted on: one table, all methods."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.words import FullInput, Objective
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import CLASS_FITS, FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Output, Recalibrator, UnfitData
from monitor.recalibration.scaling import Clamp, Prior
from monitor.recalibration.selection import CLASS_METHODS, METHODS
from tests import laws
from tests.laws import costly
from tests.recalibration.rows import (
    as_read,
    correlation,
    joined,
    one_scale,
    rows_from,
    rows_of,
    wild_estimates,
    wrong_by_size,
)

# A few inducing points are enough for laws, and quick.
TABLE: dict[str, tuple[str, FitOptions]] = {
    name: (name, FitOptions(inducing=4 if "inducing" in one.uses else None))
    for name, one in FITTINGS.items()
} | {
    "variance-scaling quantile": ("variance-scaling", FitOptions(objective=Objective.QUANTILE)),
    "covariance-scaling whiten": ("covariance-scaling", FitOptions(full_input=FullInput.WHITEN)),
}
# What comes out besides a Gaussian, and what each method does to a covariance.
OUTPUTS = {
    "isotonic-quantiles": Output.MOMENTS,
    "gp-beta": Output.MOMENTS,
    "gp-cauchy": Output.SURROGATE,
    "residual-covariance": Output.ESTIMATED,
    "covariance-regression": Output.ESTIMATED,
}
LEARNS_CORRELATIONS = ("covariance-scaling", "covariance-scaling whiten", "gp-normal-multivariate")
# These have covariances of their own.
ESTIMATES = tuple(name for name, one in FITTINGS.items() if one.estimates)
NO_MEAN_SQUARE = ("adaptive-scaling", "variance-scaling quantile")
PROCESSES = tuple(name for name, one in FITTINGS.items() if "inducing" in one.uses)
BINNED = ("histogram-binning", "isotonic-std", "isotonic-quantiles")
FITTED = tuple(name for name in TABLE if name != "identity")

every_method = pytest.mark.parametrize("name", TABLE)
every_fit = pytest.mark.parametrize("name", FITTED)
every_shape = pytest.mark.parametrize(
    ("k", "form"), [(1, "covariances"), (2, "variances"), (2, "covariances"), (3, "mixed")]
)
seeds = st.integers(0, 2**32 - 1)


@cache
def rows(k: int, form: str = "covariances") -> FitRows:
    """Errors whose size goes with the first mean, so that every method finds it; values repeat."""
    if form == "mixed":
        return joined(rows(k, "variances"), rows(k, "covariances"))
    random, n = np.random.default_rng(k), 90
    mean = np.round(random.uniform(1, 20, (n, k)), 1)
    root = np.eye(k) + 0.3 * random.normal(size=(n, k, k)) * (form == "covariances")
    root *= np.exp(0.5 * random.normal(size=(n, k)))[:, :, None]
    covariance = root @ root.transpose(0, 2, 1)
    size = (mean[:, :1] / 8) ** 1.5
    error = (np.linalg.cholesky(covariance) @ random.normal(size=(n, k, 1)))[..., 0] * size
    track = np.arange(n) // 3 - 1
    return rows_from(mean, covariance, error, diagonal=form == "variances", track=track)


def fit(name: str, given: FitRows) -> Recalibrator:
    method, options = TABLE[name]
    return FITTINGS[method].fit(given, options, None)


@cache
def fitted(name: str, k: int, form: str = "covariances") -> Recalibrator:
    return fit(name, rows(k, form))


def log_sizes(name: str, given: FitRows, sent: Estimates) -> Any:
    """log σ of what the method makes when it is fitted on the rows given."""
    return np.log(fit(name, given).apply(sent).deviation)


# ---- what is served


@every_method
@every_shape
@costly
@given(seeds)
def test_any_detection_is_recalibrated_by_itself_and_stays_positive_definite(name, k, form, seed):
    model = fitted(name, k, form)
    for n in (0, 1, 40):
        sent = wild_estimates(seed, n, k)
        if model.keeps_definite:
            laws.recalibrated_covariances_are_positive_definite(model, sent)
        laws.recalibration_leaves_its_argument_alone(model, sent)
        laws.each_detection_is_recalibrated_by_itself(model, sent)
        assert model.apply(sent).shapes == sent.shapes


@every_method
@every_shape
def test_a_document_gives_the_same_recalibrator_to_the_last_bit(name, k, form):
    model = fitted(name, k, form)
    again = as_read(METHODS[model.method], json.loads(json.dumps(model.parameters())))
    assert again == model
    sent = wild_estimates(k, 30, k)
    laws.assert_same(again.apply(sent), model.apply(sent))


@every_method
def test_a_type_says_what_it_makes_of_a_detection(name):
    model = fitted(name, 2)
    assert model.method == TABLE[name][0]
    assert model.output is OUTPUTS.get(model.method, Output.GAUSSIAN)
    assert model.k == (None if name == "identity" else 2)
    assert model.keeps_definite == (name != "covariance-scaling whiten")


@pytest.mark.parametrize(
    "name", [name for name in TABLE if name not in (*LEARNS_CORRELATIONS, *ESTIMATES)]
)
def test_correlations_means_and_forms_stay_unless_the_method_learns_them(name):
    model, sent = fitted(name, 3, "mixed"), wild_estimates(4, 20, 3)
    made = model.apply(sent)
    assert correlation(made) == pytest.approx(correlation(sent), rel=1e-9, abs=1e-12)
    assert made.diagonal is sent.diagonal
    assert (made.mean is sent.mean) == (model.output is not Output.MOMENTS)
    assert (made is sent) == (name == "identity")


# ---- fits


@every_method
@every_shape
def test_a_fit_is_the_same_whatever_order_its_rows_come_in(name, k, form):
    one = rows(k, form)
    turned = one.take(np.random.default_rng(k).permutation(one.n))
    assert fit(name, turned) == fitted(name, k, form)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_rows_of_these_laws_show_each_process_what_depends_on_the_estimate(name):
    assert "'inducing': [[" in str(fitted(name, 2, "variances").parameters())


@every_fit
def test_no_rows_are_refused(name):
    with pytest.raises(UnfitData, match="cannot fit on 0 detections with ground truth: widen"):
        fit(name, rows(2).take(np.arange(0)))


@every_fit
def test_a_dimension_without_errors_is_named(name):
    error = rows(3).error.copy()
    error[:, 1] = 0.0
    with pytest.raises(UnfitData, match=r"dimension 'd1' has no error in 90 rows.*Leave the dim"):
        fit(name, replace(rows(3), error=error))


@every_fit
@pytest.mark.parametrize("k", [1, 2])
def test_of_one_row_a_fit_is_its_own_scale_or_refused_with_the_remedy(name, k):
    one = rows(k).take(np.arange(1))
    if k > 1 and name in LEARNS_CORRELATIONS:
        with pytest.raises(UnfitData, match=r"of 1 rows .*are singular.* more (data|rows)"):
            fit(name, one)
        return
    model = fit(name, one)
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(8, 20, k))
    if model.output is Output.GAUSSIAN and name not in NO_MEAN_SQUARE:
        assert model.apply(one.estimates).deviation == pytest.approx(np.abs(one.error))


@pytest.mark.parametrize("name", [name for name in FITTED if name != "adaptive-scaling"])
def test_a_wrong_unit_of_sigma_is_fitted_away(name):
    # Errors that the covariances whiten are mixed by another unit of one dimension alone.
    whitens = name in ("covariance-scaling whiten", "gp-normal-multivariate")
    right, unit = rows(2), np.array([25.0, 25.0] if whitens else [25.0, 0.04])
    sent = right.estimates
    other = Estimates(sent.mean, sent.covariance * np.outer(unit, unit), sent.diagonal)
    wrong = replace(right, estimates=other)
    found, expected = (fit(name, one).apply(one.estimates) for one in (wrong, right))
    size = expected.deviation
    gap = np.abs(found.covariance - expected.covariance) / (size[:, :, None] * size[:, None, :])
    # A quantile is that of a bin of the histogram, and a process is searched for.
    assert gap.max() < {"variance-scaling quantile": 0.1}.get(name, 1e-6)


@every_fit
def test_estimates_and_errors_in_another_unit_give_estimates_in_that_unit(name):
    right, unit = rows(2), np.array([1e-3, 1e3])
    sent, square = right.estimates, np.outer(unit, unit)
    scaled = Estimates(sent.mean * unit, sent.covariance * square, sent.diagonal)
    other = replace(right, estimates=scaled, error=right.error * unit)
    made = fit(name, other).apply(scaled).covariance / square
    assert made == pytest.approx(fitted(name, 2).apply(sent).covariance, rel=1e-2, abs=1e-2)


@pytest.mark.parametrize("name", PROCESSES)
def test_rows_of_one_object_that_repeat_do_not_sharpen_the_fit_as_objects_do(name):
    whole = rows(1)
    once = rows_from(whole.estimates.mean, 1e-6 * whole.estimates.covariance, whole.error)
    copies = np.repeat(np.arange(90), 5)
    apart = once.take(copies)
    # Equal in the first digits they would be known for copies.
    noise = 1 + 1e-3 * np.random.default_rng(3).normal(size=apart.error.shape)
    together = replace(apart, error=apart.error * noise, track=copies)
    apart = replace(together, track=np.full(apart.n, -1))
    expected, near, far = (log_sizes(name, one, once.estimates) for one in (once, together, apart))
    assert np.abs(near - expected).mean() < 0.05
    assert np.abs(near - expected).mean() < 0.5 * np.abs(far - expected).mean()


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("n", [1, 7, 49])
def test_few_rows_make_variance_scaling(name, n):
    few = wrong_by_size(6, n, 2)
    made = fit(name, few).apply(few.estimates).deviation
    assert made == pytest.approx(few.deviation * one_scale(few))


@pytest.mark.parametrize("name", BINNED)
def test_rows_of_a_track_that_repeat_each_other_add_no_numbers(name):
    some = wrong_by_size(8, 300, 2)
    twice = np.repeat(np.arange(300), 20)

    def numbers(given: FitRows) -> int:
        return sum(map(len, next(iter(fit(name, given).parameters().values()))))

    repeated = rows_of(some.deviation[twice], some.error[twice], twice)
    independent = rows_of(some.deviation[twice], some.error[twice])
    assert numbers(repeated) <= numbers(some) < numbers(independent)


# ---- options and registries

# An option that is not the method's own default.
OTHERS: dict[str, Any] = {
    "objective": Objective.QUANTILE,
    "full_input": FullInput.WHITEN,
    "clamp": Clamp(0.9, 1.1),
    "inducing": 5,
    "surrogate_level": 0.9,
    "time_constant": 5.0,
}


@pytest.mark.parametrize(
    ("method", "option"),
    [
        (method, option)
        for method in FITTINGS
        for option in sorted(FITTINGS[method].uses - {"axes"})  # one dimension has no others
    ],
)
def test_an_option_that_a_method_uses_changes_its_fit(method, option):
    _, options = TABLE[method]
    asked = FITTINGS[method].fit(rows(1), replace(options, **{option: OTHERS[option]}), None)
    assert asked.parameters() != fitted(method, 1).parameters()


@pytest.mark.parametrize(
    "method", [name for name, one in FITTINGS.items() if one.borrows and "clamp" in one.uses]
)
def test_a_scaling_that_borrows_is_drawn_towards_the_prior(method):
    fitting, alone = FITTINGS[method], replace(rows(2), track=np.full(90, -1))
    own = fitting.fit(alone, FitOptions(), None)
    wide = fitting.fit(alone, FitOptions(clamp=Clamp(3.0, 3.0)), None)
    drawn = fitting.fit(alone, FitOptions(), Prior(wide, 90.0))
    scales = [np.array(one.parameters()["scale"]) for one in (own, drawn, wide)]
    assert np.sqrt(scales[0] * scales[2]) == pytest.approx(scales[1])


def test_what_can_be_served_can_be_fitted_and_the_other_way_round():
    assert list(METHODS) == list(FITTINGS)
    assert list(CLASS_FITS) == list(CLASS_METHODS)


def test_serving_loads_no_optimiser():
    script = (
        "import sys, monitor.recalibration.selection\n"
        "import monitor.recalibration.selection\n"
        "print(*[m for m in sys.modules if m.startswith(('scipy.optimize', 'scipy.stats'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
