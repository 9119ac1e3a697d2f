"""Candidates that correct the mean: fitted, tried and promoted where a detector is off, and not
where it is right; what is bounded, changed and left alone behind an offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.promotion.fits import FitJob, fit_rows, fit_slices, looks_healthy
from monitor.promotion.records import FitSettings, Happened, PolicySettings, PromotionMode
from monitor.promotion.register import judge
from monitor.promotion.scored import TrackRows, rows_of
from monitor.promotion.tracks import WholeTrack
from monitor.recalibration.mean_correction import MeanCorrection
from monitor.recalibration.recalibrator import Identity, Recalibrator
from monitor.recalibration.scaling import VarianceScaling
from monitor.store.documents import REGISTER_CODEC, RegisterState
from tests import laws
from tests.promotion.owned_registers import CAR, FITTED_NS, IDENTITY, Owner, scaled, settings, whats
from tests.promotion.simulated_tracks import tracks

CORRECTS = FitSettings(correct_mean=True)
POLICY = PolicySettings()


def halved(some: Sequence[WholeTrack], bias: float) -> list[WholeTrack]:
    """Errors and deviations of 0.5 m about, and x too small by the bias, m."""
    found = []
    for one in some:
        mean = one.truth - 0.5 * (one.truth - one.sent.mean) - np.array([bias, 0.0, 0.0])
        sent = laws.changed(one.sent, mean=mean, covariance=0.25 * one.sent.covariance)
        found.append(replace(one, sent=sent))
    return found


def candidate(seed: int, bias: float, count: int = 60, scale: float = 1.0, **given) -> Recalibrator:
    """What a round of fits makes of tracks."""
    some = halved(tracks(seed, count, scale=scale, begin_ns=FITTED_NS), bias)
    job = FitJob(replace(CORRECTS, **given), {"car": fit_rows(some)})
    made = fit_slices(job).fitted["car"]
    assert isinstance(made, Recalibrator)
    return made


def story(
    seed: int, bias: float, mode: PromotionMode = PromotionMode.AUTOMATIC
) -> tuple[Owner, list[Happened]]:
    """A fit on 60 tracks, and a trial on 400 later ones if there is anything to try."""
    owner = Owner(settings(mode))
    fitted_on = halved(tracks(seed, 60, begin_ns=FITTED_NS), bias)
    if looks_healthy(fit_rows(fitted_on), CORRECTS, POLICY):
        return owner, []
    made = candidate(seed, bias)
    owner.register.begin(CAR, made, owner.champion(), fitted_on)
    return owner, whats(owner.take(halved(tracks(10_000 + seed, 400), bias)))


@pytest.mark.parametrize("seed", range(5))
def test_a_detector_that_is_off_by_0_3_m_gets_its_mean_corrected(seed):
    owner, happened = story(seed, 0.3)
    assert happened == [Happened.PROMOTED]
    champion = owner.champion()
    assert isinstance(champion, MeanCorrection) and isinstance(champion.recalibrator, Identity)
    assert champion.offset[0] == pytest.approx(0.3, abs=0.15)
    unseen = rows_of(halved(tracks(77, 100), 0.3))
    made = champion.apply(unseen.sent)
    before, after = (abs((unseen.truth - one.mean)[:, 0].mean()) for one in (unseen.sent, made))
    assert after < 0.5 * before


@pytest.mark.parametrize("seed", range(20))
def test_a_detector_that_is_right_is_left_alone(seed):
    owner, happened = story(seed, 0.0)
    assert Happened.PROMOTED not in happened
    assert owner.champion() == IDENTITY


def test_without_the_setting_the_bias_stays_and_nothing_is_tried():
    given = fit_rows(halved(tracks(0, 60), 0.3))
    assert looks_healthy(given, FitSettings(), POLICY)
    assert not looks_healthy(given, CORRECTS, POLICY)
    made = candidate(0, 0.3, correct_mean=False)
    assert isinstance(made, VarianceScaling)


def test_an_overconfident_detector_that_is_off_gets_both():
    made = candidate(0, 0.3, scale=4.0)
    assert isinstance(made, MeanCorrection) and isinstance(made.recalibrator, VarianceScaling)
    assert min(made.recalibrator.scale) > 1.5
    rows = rows_of(halved(tracks(1, 60, scale=4.0), 0.3))
    found = judge(made, IDENTITY, rows, POLICY)
    assert found.candidate == made and not found.shrinks
    assert found.reason.startswith("factors on the variance: x ")
    assert found.reason.endswith(" m to x")


def test_a_method_that_moves_the_mean_itself_is_fitted_as_ever_when_asked_for():
    assert candidate(0, 0.3, method="isotonic-quantiles").method == "isotonic-quantiles"


# ---- the judgement

OFFSET = (0.3, 0.0, 0.0)


@pytest.fixture(scope="module")
def rows() -> TrackRows:
    return rows_of(halved(tracks(3, 30), 0.3))


def test_factors_within_the_band_are_left_alone_and_the_offset_is_not(rows):
    found = judge(MeanCorrection(OFFSET, scaled(1.5)), IDENTITY, rows, POLICY)
    assert found.candidate == MeanCorrection(OFFSET, IDENTITY)
    assert "lies within 0.5 … 2" in found.reason
    assert found.reason.endswith("; it adds +0.3 m to x")
    assert not found.shrinks


def test_an_offset_that_is_active_or_too_small_to_matter_is_not_tried(rows):
    active = MeanCorrection(OFFSET, IDENTITY)
    assert judge(MeanCorrection(OFFSET, scaled(1.5)), active, rows, POLICY).candidate is None
    # 0.01 m of 0.5 m makes the mean square larger by 0.0004.
    small = MeanCorrection((0.01, 0.0, 0.0), scaled(1.5))
    assert judge(small, IDENTITY, rows, POLICY).candidate is None
    # And back to what is sent, once the detector is right.
    back = judge(scaled(1.0), active, rows, POLICY)
    assert back.candidate == IDENTITY
    assert back.reason.endswith("back to what is sent")


def test_a_bound_of_what_is_lost_is_known_only_where_means_are_equal(rows):
    inflating, active = scaled(4.0), MeanCorrection(OFFSET, IDENTITY)
    bounded = rows.bounds(inflating, IDENTITY)
    assert bounded[0] == pytest.approx(0.5 * np.log(4.0))
    assert rows.bounds(MeanCorrection(OFFSET, inflating), IDENTITY) == (None, None)
    assert rows.bounds(IDENTITY, active) == (None, None)
    assert rows.bounds(MeanCorrection(OFFSET, inflating), active) == bounded
    other = MeanCorrection((0.2, 0.0, 0.0), IDENTITY)
    assert rows.bounds(MeanCorrection(OFFSET, inflating), other) == (None, None)


def test_what_is_scored_and_shown_is_behind_the_offset(rows):
    made = MeanCorrection(OFFSET, scaled(4.0))
    assert [one.typical for one in rows.factors(made)] == pytest.approx([4.0] * 3)
    moved = rows.moved(made, IDENTITY)
    assert moved[0] == pytest.approx(np.square(0.3 / rows.sent.deviation[:, 0]).mean())
    assert moved[1:].tolist() == [0.0, 0.0]
    assert rows.change(made, MeanCorrection(OFFSET, IDENTITY))[1] == pytest.approx([4.0] * 3)


def test_a_trial_of_it_comes_back_from_its_document():
    owner = Owner()
    fitted_on = halved(tracks(0, 30, begin_ns=FITTED_NS), 0.3)
    owner.register.begin(CAR, MeanCorrection(OFFSET, scaled(4.0)), IDENTITY, fitted_on)
    state = RegisterState("a", "b", trials=tuple(owner.register.on_trial.values()))
    assert REGISTER_CODEC.read(REGISTER_CODEC.write(state)) == state


def test_a_proven_offset_that_waits_is_superseded_by_another_one():
    owner = Owner(settings(PromotionMode.ADVISE))
    first = MeanCorrection((0.3, 0.0, 0.0), IDENTITY)
    fitted_on = halved(tracks(0, 30, begin_ns=FITTED_NS), 0.3)
    owner.register.begin(CAR, first, IDENTITY, fitted_on)
    assert whats(owner.take(halved(tracks(1, 300), 0.3))) == [Happened.PROVEN]
    same, _ = owner.register.begin(
        CAR, replace(first, offset=(0.32, 0.0, 0.0)), IDENTITY, fitted_on
    )
    assert same is None
    other, _ = owner.register.begin(
        CAR, replace(first, offset=(0.9, 0.0, 0.0)), IDENTITY, fitted_on
    )
    assert other is not None and other.what is Happened.BEGAN
