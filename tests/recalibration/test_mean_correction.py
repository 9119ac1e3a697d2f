"""The offset of the mean: recovered, 0 within chance, drawn towards the wider slice, and before the
recalibrator that is fitted to what it leaves.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space
from monitor.recalibration.fit_rows import FitRows, FitSums
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.mean_correction import (
    KEEPS_MEAN,
    MeanCorrection,
    fit_offset,
    less_offset,
    parts_of,
    refuses,
    with_offset,
)
from monitor.recalibration.recalibrator import Identity, InvalidRecalibrator, Output, UnfitData
from monitor.recalibration.scaling import Prior, VarianceScaling
from monitor.recalibration.selection import METHODS, RECALIBRATORS, Selection
from monitor.statistics.bins import Binning
from monitor.store.documents import any_selection_from_json
from tests import laws
from tests.recalibration.rows import rows_from, wild_estimates

CORRECTED = FitOptions(correct_mean=True)
SPACE = Space(
    (Dimension("x", "m"), Dimension("y", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)
every_method = pytest.mark.parametrize("method", sorted(KEEPS_MEAN))


def rows(seed: int, tracks: int, offset=(0.3, 0.0, 0.1), length: int = 20) -> FitRows:
    """Errors of 0.5 m and 0.2 rad, AR(1) with ρ = 0.9 along tracks, about an offset."""
    random, n = np.random.default_rng(seed), tracks * length
    error = random.normal(size=(tracks, length, 3))
    for i in range(1, length):
        error[:, i] = 0.9 * error[:, i - 1] + math.sqrt(1 - 0.81) * error[:, i]
    deviation = np.array([0.5, 0.5, 0.2])
    found = error.reshape(n, 3) * deviation + np.array(offset)
    SPACE.wrap(found)
    mean = random.normal(size=(n, 3))
    variance = np.broadcast_to(deviation**2, (n, 3))
    return rows_from(mean, variance, found, track=np.repeat(np.arange(tracks), length), space=SPACE)


def test_an_offset_is_recovered_and_chance_is_mostly_none():
    found = np.array([fit_offset(rows(seed, 100)) for seed in range(60)])
    assert found.mean(axis=0) == pytest.approx([0.3, 0.0, 0.1], abs=0.02)
    without = found[:, 1]
    assert (without == 0).mean() >= 0.75
    # A mean error that is taken as it is would be off by 0.04.
    assert np.sqrt(np.square(without).mean()) < 0.02


def test_the_offset_is_the_mean_error_less_its_noise_by_hand():
    error = np.array([[1.0], [1.2], [0.8], [1.4], [0.6], [1.0]])
    given = rows_from(np.zeros((6, 1)), np.ones((6, 1)), error, track=np.arange(6))
    # Six tracks of one row: the jackknife's deviation is s/√n, Student's t of (6 − 1)/2 degrees.
    reach = 3.5583 * error.std(ddof=1) / math.sqrt(6)
    expected = 1.0 - 2 * (reach / 1.96) ** 2
    assert fit_offset(given) == pytest.approx([expected], rel=2e-3)
    assert fit_offset(replace(given, error=error - 1.0)).tolist() == [0.0]


def test_few_tracks_are_drawn_to_the_centre_and_many_are_not():
    centre = np.array([0.5, 0.0, 0.0])
    distance = []
    for tracks in (1, 12, 50, 400):
        found = [fit_offset(rows(seed, tracks), centre)[0] for seed in range(30)]
        distance.append(float(np.abs(np.array(found) - 0.5).mean()))
    assert distance[0] == 0.0 and distance == sorted(distance)
    assert distance[-1] == pytest.approx(0.2, abs=0.02)


def test_boxes_turned_round_do_not_move_an_angle_by_half_a_turn():
    given = rows(0, 200)
    turned = given.error.copy()
    turned[::9, 2] += math.pi
    SPACE.wrap(turned)
    assert fit_offset(replace(given, error=turned))[2] == pytest.approx(0.1, abs=0.03)
    # And an offset of nearly half a turn is one, on whichever side its errors are wrapped to.
    found = fit_offset(rows(1, 200, (0.0, 0.0, math.pi - 0.05)))[2]
    assert math.cos(found - (math.pi - 0.05)) > 0.999


@every_method
def test_what_follows_is_fitted_to_the_errors_that_the_offset_leaves(method):
    given = rows(2, 60)
    options = replace(CORRECTED, inducing=4 if "inducing" in FITTINGS[method].uses else None)
    made = FITTINGS[method].fit(given, options, None)
    assert isinstance(made, MeanCorrection)
    offset = fit_offset(given)
    error = given.error - offset
    SPACE.wrap(error)
    moved = laws.changed(given.estimates, mean=given.estimates.mean + offset)
    by_hand = FITTINGS[method].fit(
        replace(given, estimates=moved, error=error), replace(options, correct_mean=None), None
    )
    assert (made.offset, made.recalibrator) == (tuple(offset.tolist()), by_hand)
    sent = wild_estimates(3, 40, 3)
    expected = by_hand.apply(laws.changed(sent, mean=sent.mean + offset))
    laws.assert_same(made.apply(sent), expected)
    assert np.array_equal(made.apply(sent).mean, sent.mean + offset)
    value = sent.mean + 1.0
    theirs = by_hand.marginals(laws.changed(sent, mean=sent.mean + offset)).log_density(value)
    assert np.array_equal(made.marginals(sent).log_density(value), theirs, equal_nan=True)
    assert (made.output, made.keeps_definite) == (by_hand.output, by_hand.keeps_definite)


@every_method
def test_a_document_gives_it_back_whatever_it_wraps(method):
    options = replace(CORRECTED, inducing=4 if "inducing" in FITTINGS[method].uses else None)
    made = FITTINGS[method].fit(rows(2, 60), options, None)
    selection = Selection(SPACE.names, made, {"Car": made})
    again = any_selection_from_json(selection.to_json())
    assert again == selection and again.version == selection.version
    assert again.version.startswith("mean-correction-")
    sent = wild_estimates(5, 20, 3)
    laws.recalibration_leaves_its_argument_alone(made, sent)
    laws.each_detection_is_recalibrated_by_itself(made, sent)


def test_without_an_offset_the_recalibrator_is_the_very_one_that_would_be_fitted_anyway():
    given = less_offset(rows(4, 40, (0, 0, 0)), np.zeros(3))
    centred = replace(given, error=given.error - given.error.mean(axis=0))
    fitting = FITTINGS["variance-scaling"]
    made = fitting.fit(centred, CORRECTED, None)
    assert made == fitting.fit(centred, FitOptions(), None)
    assert with_offset(np.zeros(3), made) is made
    assert parts_of(made, 3)[1] is made


def test_a_prior_gives_its_offset_and_what_comes_after_it():
    thin, offset = rows(5, 1), (0.4, 0.0, 0.0)
    earlier = MeanCorrection(offset, VarianceScaling((2.0, 2.0, 2.0)))
    made = FITTINGS["variance-scaling"].fit(thin, CORRECTED, Prior(earlier, 1e9))
    assert isinstance(made, MeanCorrection) and made.offset == offset
    assert isinstance(made.recalibrator, VarianceScaling)
    assert made.recalibrator.scale == pytest.approx((2.0, 2.0, 2.0), rel=1e-3)


def scores(seed: int, offset: FloatArray) -> tuple[float, float]:
    """Mean squared errors in σ of tracks not fitted on: as sent, and less the offset."""
    unseen = rows(1000 + seed, 200)
    before = np.square(unseen.error / unseen.deviation).mean()
    after = np.square(less_offset(unseen, offset).error / unseen.deviation).mean()
    return float(before), float(after)


def test_it_helps_tracks_that_it_has_not_seen():
    found = [scores(seed, fit_offset(rows(seed, 60))) for seed in range(20)]
    assert sum(after < before for before, after in found) >= 19


def test_methods_that_move_the_mean_or_follow_the_detector_refuse_with_the_reason():
    assert sorted(KEEPS_MEAN) == sorted(
        set(METHODS) - {"isotonic-quantiles", "gp-beta", "adaptive-scaling"}
    )
    assert not any(map(refuses, KEEPS_MEAN))
    assert "moves the mean itself" in refuses("gp-beta")
    assert "does not know an offset" in refuses("adaptive-scaling")
    assert set(RECALIBRATORS) - set(METHODS) == {MeanCorrection.method} - set(FITTINGS)


def test_sums_alone_are_refused():
    given = rows(6, 30)
    sums = FitSums.of(SPACE, Binning(), [given.statistics])
    with pytest.raises(UnfitData, match="from sums alone: fit the raw logs"):
        FITTINGS["variance-scaling"].fit(sums, CORRECTED, None)


def test_an_offset_of_other_dimensions_than_what_it_wraps_is_refused():
    with pytest.raises(InvalidRecalibrator, match="'offset' has 2 entries: with variance-scaling"):
        MeanCorrection((0.1, 0.2), VarianceScaling((1.0,)))
    assert MeanCorrection((0.1,), Identity()).k == 1


@pytest.mark.parametrize(
    ("offset", "wrapped"),
    [
        ([], {"method": "identity", "parameters": {}}),
        ([1e13], {"method": "identity", "parameters": {}}),
        (["1"], {"method": "identity", "parameters": {}}),
        ([1.0], {"method": "mean-correction", "parameters": {}}),
        ([1.0], {"method": "gp-beta", "parameters": {}}),
        ([1.0], None),
    ],
)
def test_a_document_with_another_offset_or_wrapped_method_is_refused(offset, wrapped):
    content = json.loads(Selection(("x",), MeanCorrection((1.0,), Identity())).to_json())
    content["fallback"]["parameters"] = {"offset": offset, "recalibrator": wrapped}
    del content["version"]
    with pytest.raises(InvalidRecalibrator, match="fallback"):
        any_selection_from_json(json.dumps(content))


def test_what_is_forwarded_of_a_cauchy_stays_a_surrogate():
    made = FITTINGS["gp-cauchy"].fit(rows(7, 40), replace(CORRECTED, inducing=4), None)
    assert isinstance(made, MeanCorrection) and made.output is Output.SURROGATE
