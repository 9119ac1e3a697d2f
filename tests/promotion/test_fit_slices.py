"""Candidates are fitted slice by slice: what is wrong with one slice is no other's affair."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.promotion import fits
from monitor.promotion.fits import FitJob, fit_slices, nothing_wrong
from monitor.promotion.records import FitSettings
from monitor.recalibration.fitting import FITTINGS, FitOptions, Fitting
from monitor.recalibration.recalibrator import Output
from monitor.recalibration.scaling import Objective
from tests.promotion.fit_jobs import job_of, rows_of


@pytest.mark.parametrize("method", FITTINGS)
def test_every_method_fits_the_slices_that_it_is_given(method):
    job = job_of(method, {"car": rows_of(1), "van": rows_of(2)})
    outcome = fit_slices(job)
    assert not outcome.refused
    assert [one.method for one in outcome.fitted.values()] == [method, method]
    assert list(outcome.fitted) == ["car", "van"]


@pytest.mark.parametrize("method", ["variance-scaling", "covariance-scaling", "gp-normal"])
def test_the_same_rows_are_fitted_alike_to_the_last_bit(method):
    job = job_of(method, {"car": rows_of(1)})
    first, second = (fit_slices(job).fitted["car"].parameters() for _ in range(2))
    assert first == second


def test_a_scaling_of_many_tracks_finds_the_factor():
    job = job_of("variance-scaling", {"car": rows_of(3, tracks=400, factor=1.5)})
    scale = fit_slices(job).fitted["car"].parameters()["scale"]
    np.testing.assert_allclose(scale, 1.5, rtol=0.08)


@pytest.mark.parametrize("method", ["variance-scaling", "covariance-scaling"])
@pytest.mark.parametrize("per_track", [1, 40])
def test_few_tracks_are_drawn_towards_nothing_wrong_and_towards_one_factor(method, per_track):
    rows = rows_of(4, tracks=3, per_track=per_track, factor=2.0, alike=True)
    # Of one object all errors are the same: its rows are worth one, however many they are.
    alone = fit_slices(job_of(method, {"car": rows}, prior_tracks=1e-9)).fitted["car"]
    drawn = fit_slices(job_of(method, {"car": rows}, prior_tracks=3.0)).fitted["car"]
    alone_log, drawn_log = (np.log(one.parameters()["scale"]) for one in (alone, drawn))
    # 3 tracks against 3, and then against 20.
    own = 3 / 23
    np.testing.assert_allclose(
        drawn_log.mean(), (own + (1 - own) / 2) * alone_log.mean(), rtol=0.05
    )
    free = np.log(FITTINGS[method].fit(rows, FitOptions(), None).parameters()["scale"])
    np.testing.assert_allclose(drawn_log - drawn_log.mean(), own * (free - free.mean()), atol=0.01)


def test_nothing_is_wrong_where_angles_are_whitened_last():
    space = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), Dimension("x", "m")))
    prior = nothing_wrong(space)
    assert prior.order == (1, 0)
    estimates = Estimates(np.zeros((1, 2)), np.array([[[2.0, 0.3], [0.3, 1.0]]]), np.array([False]))
    np.testing.assert_array_equal(prior.apply(estimates).covariance, estimates.covariance)
    job = job_of("covariance-scaling", {"car": replace(rows_of(1, k=2), space=space)})
    assert not fit_slices(job).refused


def test_the_objective_of_the_settings_is_that_of_the_fit():
    settings = FitSettings(objective=Objective.QUANTILE)
    fitted = fit_slices(FitJob(settings, {"car": rows_of(1)})).fitted["car"]
    assert fitted.parameters()["objective"] == "quantile"


def test_the_time_constant_of_the_settings_is_that_of_the_fit():
    settings = FitSettings("adaptive-scaling", time_constant_s=17.0)
    fitted = fit_slices(FitJob(settings, {"car": rows_of(1)})).fitted["car"]
    assert fitted.parameters()["time_constant_s"] == 17.0


def test_a_slice_whose_rows_determine_nothing_is_refused_in_the_words_of_the_method():
    perfect = rows_of(1)
    perfect.error[:, 1] = 0.0
    outcome = fit_slices(job_of("variance-scaling", {"car": perfect, "van": rows_of(2)}))
    assert list(outcome.fitted) == ["van"]
    assert outcome.refused["car"].startswith("dimension 'd1' has no error in ")


@pytest.mark.parametrize("error", [MemoryError("no room"), np.linalg.LinAlgError("no room")])
def test_a_method_that_fails_on_one_slice_refuses_that_slice_alone(monkeypatch, error):
    unlucky = rows_of(1)

    def fails(rows, prior):
        if rows is unlucky:
            raise error
        return FITTINGS["variance-scaling"].fit(rows, FitOptions(), prior)

    fitting = Fitting(fails, borrows=True)
    monkeypatch.setattr(fits, "FITTINGS", {"variance-scaling": fitting})
    outcome = fit_slices(job_of("variance-scaling", {"car": unlucky, "van": rows_of(2)}))
    assert list(outcome.fitted) == ["van"]
    assert outcome.refused == {
        "car": f"variance-scaling failed: {type(error).__name__}: no room",
    }


class Broken:
    """A recalibrator that yields what nobody can invert, or cannot be described."""

    method, k, output, keeps_definite = "variance-scaling", None, Output.GAUSSIAN, False

    def __init__(self, covariance, scale):
        self.covariance, self.scale = covariance, scale

    def apply(self, estimates):
        return Estimates(estimates.mean, estimates.covariance * self.covariance, estimates.diagonal)

    def parameters(self):
        return {"scale": [self.scale] * 3}


@pytest.mark.parametrize("factor", [np.nan, np.inf, -1.0, 0.0, 1e30])
def test_what_would_make_its_own_rows_unusable_is_refused(monkeypatch, factor):
    fitting = Fitting(lambda rows: Broken(factor, 1.0))
    monkeypatch.setattr(fits, "FITTINGS", {"variance-scaling": fitting})
    outcome = fit_slices(job_of("variance-scaling", {"car": rows_of(1)}))
    assert not outcome.fitted
    reason = outcome.refused["car"]
    assert reason.startswith("of the rows it was fitted on, variance-scaling makes ")
    assert ", of 600 of 600 detections: choose another method" in reason


def test_the_deviations_that_are_sound_are_those_of_the_job():
    job = replace(job_of("variance-scaling", {"car": rows_of(1)}), limits=Limits(1e8, 1e-6, 0.1))
    (reason,) = fit_slices(job).refused.values()
    assert "deviations beyond [limits] largest_deviation = 0.1" in reason


def test_a_job_without_slices_comes_to_nothing():
    outcome = fit_slices(job_of("variance-scaling", {}))
    assert (outcome.fitted, outcome.refused) == ({}, {})
