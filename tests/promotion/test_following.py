"""An adaptive champion follows the detector in steps that make a difference, as far as it may."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from monitor.promotion.fits import fit_rows
from monitor.promotion.records import Happened, PolicySettings, PromotionMode
from monitor.promotion.register import Follower
from monitor.promotion.tracks import WholeTrack
from monitor.recalibration.adaptive_scaling import AdaptiveScaling, fit_adaptive_scaling
from tests.promotion.owned_registers import CAR, Owner, adaptive, scaled, settings, whats
from tests.promotion.simulated_tracks import tracks

MANUAL, ADVISE, AUTOMATIC = PromotionMode
SHRINKING = PolicySettings(allow_shrinking=True)


def of(champion: AdaptiveScaling) -> Follower:
    """To which all tracks here, of 40 detections, have a full say."""
    return Follower.of(champion, 40.0)


def late(some: list[WholeTrack], delay_s: float) -> list[WholeTrack]:
    """The same, with truth that came so late."""
    return [replace(track, delay_ns=int(delay_s * 1e9)) for track in some]


def now_at(follower: Follower, *variance: float) -> Follower:
    """With a memory that says so."""
    scale = tuple(np.sqrt(np.broadcast_to(variance, 3)).tolist())
    return replace(follower, scaling=replace(follower.scaling, scale=scale))


def variance(found) -> list[float]:
    return [round(float(one**2), 9) for one in found.scale]


# ---- memory


def test_labels_later_than_the_time_constant_teach_nothing_and_say_so():
    follower = of(adaptive(1.0, time_constant_s=30.0))
    refused = follower.taken(late(tracks(0, 6, scale=9.0), 30.0))
    assert refused.scaling == follower.scaling
    assert "come 30 s late or later, up to 30 s" in refused.too_late
    again = refused.taken(late(tracks(0, 20, scale=9.0), 29.0))
    assert again.too_late == ""
    assert again.scaling.delay_s == 29.0


@pytest.mark.parametrize(("every", "complains"), [(40, False), (10, True), (2, True)])
def test_it_complains_where_more_than_one_in_twenty_come_too_late(every, complains):
    follower, complained = of(adaptive(1.0)), False
    for i, track in enumerate(tracks(0, 200)):
        follower = follower.taken(late([track], 60.0 if i % every == 0 else 1.0))
        complained |= follower.too_late != ""
    assert complained is complains
    assert follower.scaling.tracks > 7


# ---- steps


@pytest.mark.parametrize(
    ("now", "policy", "put"),
    [
        # Beyond the hysteresis of 1.1 it acts, and within the band it is at home.
        ((4.39, 4.39, 3.65), SHRINKING, None),
        ((4.41, 4.0, 4.0), SHRINKING, [4.41, 4.0, 4.0]),
        ((4.0, 3.6, 4.0), SHRINKING, [4.0, 3.6, 4.0]),
        ((1.99, 1.0, 0.51), SHRINKING, [1.0, 1.0, 1.0]),
        ((2.01, 1.0, 0.5), SHRINKING, [2.01, 1.0, 0.5]),
        # No lower than was approved, unless that is allowed.
        ((2.0, 3.0, 1.0), PolicySettings(), None),
        ((6.0, 3.0, 1.0), PolicySettings(), [6.0, 4.0, 4.0]),
    ],
)
def test_it_acts_beyond_the_hysteresis_and_goes_no_lower_than_it_may(now, policy, put):
    follower = now_at(of(adaptive(4.0)), *now)
    moved = follower.moved(policy)
    assert (moved and variance(moved)) == put
    if moved is not None:
        # What it acted on is no step any more.
        assert replace(follower, active=moved.scale).moved(policy) is None


# ---- in a register


def owner_of(champion, mode=ADVISE, **policy) -> Owner:
    return Owner(settings(mode, **policy), champion)


@pytest.mark.parametrize(("mode", "allow_shrinking"), [(ADVISE, False), (AUTOMATIC, True)])
def test_an_adaptive_champion_follows_a_detector_that_becomes_worse(mode, allow_shrinking):
    owner = owner_of(adaptive(1.0), mode, allow_shrinking=allow_shrinking)
    scale = np.repeat([1.0, 6.0], [20, 60])[:, None] * np.ones(3)
    some = tracks(2, 80, scale=scale)
    assert owner.take_one_by_one(some[:20]) == []
    decisions = owner.take_one_by_one(some[20:])
    assert set(whats(decisions)) == {Happened.ADAPTED}
    final = owner.champion()
    assert variance(final) == pytest.approx([6.0] * 3, rel=0.35)
    # Successive steps differ by more than the hysteresis.
    steps = np.array([[1.0] * 3, *(variance(decision.recalibrator) for decision in decisions)])
    assert (np.abs(np.log(steps[1:] / steps[:-1])).max(axis=1) > math.log(1.1)).all()


def test_it_goes_home_when_the_fault_ends_where_it_may_shrink():
    owner = owner_of(adaptive(6.0), AUTOMATIC, allow_shrinking=True)
    owner.take_one_by_one(tracks(4, 80))
    assert variance(owner.champion()) == [1.0, 1.0, 1.0]
    kept = owner_of(adaptive(6.0), AUTOMATIC)
    kept.take_one_by_one(tracks(4, 80))
    assert kept.champion() == adaptive(6.0)


def test_a_champion_that_was_on_trial_counts_votes_as_on_trial_and_stays_where_it_is():
    # Of 12 detections each: by the longest track there may be, none of them had a full vote, and
    # the prior would draw the champion towards 1, though the detector is as it was.
    owner, short = Owner(settings(AUTOMATIC)), tracks(20, 40, scale=4.0, length=12)
    fitted = fit_adaptive_scaling(fit_rows(short), 60.0)
    decision, _ = owner.register.begin(CAR, fitted, owner.champion(), short)
    assert decision is not None
    begin_ns = short[-1].ended_ns
    (promoted,) = owner.take(tracks(21, 60, scale=4.0, length=12, begin_ns=begin_ns))
    assert promoted.what is Happened.PROMOTED
    assert owner.register.followers["car"].full == 12
    begin_ns += 10**11
    owner.take_one_by_one(tracks(22, 300, scale=4.0, length=12, begin_ns=begin_ns))
    follower = owner.register.followers["car"]
    assert follower.full == 12
    # Tracks that count for less would be fewer in memory.
    full = replace(follower, full=32.0).taken(tracks(23, 1, length=12, begin_ns=2 * 10**13))
    assert (
        full.scaling.tracks
        < follower.taken(tracks(23, 1, length=12, begin_ns=2 * 10**13)).scaling.tracks
    )


# ---- on trial


def test_an_adaptive_candidate_goes_on_learning_while_it_is_tried():
    owner = Owner(settings(ADVISE))
    owner.begin(adaptive(3.0, remembered=4.0))
    some = tracks(8, 60, scale=9.0)
    (proven,) = owner.take(some)
    assert proven.what is Happened.PROVEN
    candidate = owner.register.on_trial["car"].trial.recalibrator
    assert variance(candidate) == pytest.approx([9.0] * 3, rel=0.35)


def test_an_adaptive_candidate_is_scored_by_what_it_was_before_the_tracks():
    owner = Owner(settings(ADVISE))
    owner.begin(adaptive(3.0))
    some = tracks(9, 1, scale=9.0)
    fixed = Owner(settings(ADVISE))
    fixed.begin(scaled(3.0))
    owner.take(some)
    fixed.take(some)
    ours, theirs = (one.register.on_trial["car"].trial for one in (owner, fixed))
    assert ours.bets.total == pytest.approx(theirs.bets.total)
