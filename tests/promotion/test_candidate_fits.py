"""Candidates are fitted slice by slice; and a fit is tried, sent home, or nothing new."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.promotion import fits
from monitor.promotion.fits import FitJob, fit_slices
from monitor.promotion.records import FitSettings, PolicySettings, stepped
from monitor.promotion.register import judge
from monitor.promotion.reservoir import looks_healthy
from monitor.recalibration.fitting import FITTINGS, FitOptions, Fitting
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import Objective, VarianceScaling
from monitor.recalibration.selection import IDENTITY as NOTHING
from tests.promotion.fit_jobs import job_of, rows_of
from tests.promotion.simulated_tracks import tracks

POLICY, IDENTITY, BAND = PolicySettings(), Identity(), (0.5, 2.0)
SENT = tracks(0, 1)[0].sent
NAMES = ("x", "y", "z")
# As of a clock that counts from 1970: as a float it would be known to 256 ns.
TODAY = 1_770_000_000_000_000_001


# ---- rows


# ---- fits


def test_a_scaling_of_many_tracks_finds_the_factor_and_the_same_one_again():
    job = job_of("variance-scaling", {"car": rows_of(3, tracks=400, factor=1.5)})
    first, second = (fit_slices(job).fitted["car"].parameters() for _ in range(2))
    np.testing.assert_allclose(first["scale"], 1.5, rtol=0.08)
    assert first == second


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


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        (FitSettings(objective=Objective.QUANTILE), "objective", "quantile"),
        (FitSettings("adaptive-scaling", time_constant_s=17.0), "time_constant_s", 17.0),
    ],
)
def test_the_objective_and_time_constant_of_the_settings_are_those_of_the_fit(
    settings, field, value
):
    fitted = fit_slices(FitJob(settings, {"car": rows_of(1)})).fitted["car"]
    assert fitted.parameters()[field] == value


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


# ---- what looks healthy


@pytest.mark.parametrize(
    ("factor", "settings", "healthy"),
    [
        (1.1, FitSettings("variance-scaling"), True),
        (2.0, FitSettings("variance-scaling"), False),
        (0.5, FitSettings("variance-scaling"), False),
        # Of methods whose factors are not the mean nothing is sure.
        (1.0, FitSettings("gp-normal"), False),
        (1.0, FitSettings("variance-scaling", Objective.QUANTILE), False),
    ],
)
def test_health_is_told_by_the_mean_square_of_every_dimension(factor, settings, healthy):
    assert looks_healthy(rows_of(1, tracks=100, factor=factor), settings, BAND) == healthy


# ---- what is tried


def scaled(*factors: float) -> VarianceScaling:
    return VarianceScaling(tuple(np.sqrt(factors).tolist()))


def judged(fitted, champion=IDENTITY):
    return judge(fitted, champion, SENT, NAMES, POLICY)


@pytest.mark.parametrize(
    ("factors", "champion", "candidate", "words"),
    [
        ((3.0, 1.2, 0.9), None, (3.0, 1.2, 0.9), "factors on the variance: x 3, y 1.2, z 0.9"),
        # A healthy detector is left alone, and a single factor beyond the band is reason enough.
        ((1.99, 0.51, 1.5), None, None, "lies within 0.5 … 2: x 1.99, y 0.51, z 1.5; nothing to"),
        ((2.01, 1.0, 1.0), None, (2.01, 1.0, 1.0), "factors on the variance: x 2.01"),
        ((1.0, 1.0, 0.49), None, (1.0, 1.0, 0.49), "z 0.49"),
        # One that is healthy again goes home, whatever serves it now.
        ((1.1, 0.9, 1.3), (4.0, 4.0, 4.0), (), "x 1.1, y 0.9, z 1.3; back to what is sent"),
        # A step that changes next to nothing is none.
        ((3.2, 3.0, 2.8), (3.0, 3.0, 3.0), None, "none changes by more than 1.1"),
        ((3.4, 3.0, 3.0), (3.0, 3.0, 3.0), (3.4, 3.0, 3.0), "factors on the variance"),
    ],
)
def test_a_fault_is_corrected_and_a_healthy_detector_is_left_alone(
    factors, champion, candidate, words
):
    judgement = judged(scaled(*factors), scaled(*champion) if champion else IDENTITY)
    expected = scaled(*candidate) if candidate else IDENTITY
    assert judgement.candidate == (None if candidate is None else expected)
    assert words in judgement.reason
    assert [factor.typical for factor in judgement.factors] == pytest.approx(factors)


# ---- a step changes one slice
TWICE, THRICE = VarianceScaling((2.0, 2.0)), VarianceScaling((3.0, 3.0))
XY = ("x", "y")


def test_a_step_gives_one_slice_a_recalibrator_and_leaves_the_others_theirs():
    first = stepped(NOTHING, XY, ("car",), TWICE)
    assert (first.dimensions, first.of(("car",)), first.of(("van",))) == (XY, TWICE, Identity())
    second = stepped(first, XY, ("van",), THRICE)
    assert (second.of(("car",)), second.of(("van",))) == (TWICE, THRICE)


def test_the_way_back_leads_to_the_very_version_that_was_left():
    first = stepped(NOTHING, XY, ("car",), TWICE)
    second = stepped(first, XY, ("van",), THRICE)
    assert stepped(second, XY, ("van",), Identity()).version == first.version
    assert stepped(first, XY, ("car",), Identity()) == NOTHING
