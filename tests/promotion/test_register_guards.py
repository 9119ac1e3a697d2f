"""What served before comes back when it is proven better, unless somebody has forbidden it."""

import math

import numpy as np
import pytest

from monitor.promotion.records import SWAPS, Happened, PromotionMode
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.owned_registers import (
    CAR,
    FITTED_NS,
    IDENTITY,
    Owner,
    scaled,
    settings,
    whats,
)
from tests.promotion.simulated_tracks import tracks

MANUAL, ADVISE, AUTOMATIC = PromotionMode


def fault_and_recovery(seed: int, factor: float = 4.0):
    """60 tracks of a fault, 100 of none."""
    scale = np.repeat([factor, 1.0], [60, 100])[:, None] * np.ones(3)
    return tracks(seed, 160, scale=scale)


def test_what_served_before_comes_back_when_the_fault_ends():
    owner, some = Owner(champion=IDENTITY), fault_and_recovery(0)
    owner.activate(scaled(4.0))
    decisions = owner.take(some)
    (decision,) = decisions
    assert decision.what is Happened.ROLLED_BACK
    assert decision.what in SWAPS
    assert owner.champion() == IDENTITY
    # The tracks since the fault has ended: of a hundred, whether they have had their say or not.
    assert decision.keep is not None
    assert abs(decision.keep - 100) < 10
    # Nothing is to guard after a rollback.
    assert (owner.register.guards, owner.register.befores) == ({}, {})


def test_a_guard_begins_with_the_first_track_after_the_change():
    owner = Owner()
    owner.activate(scaled(4.0))
    assert owner.register.guards == {}
    owner.take(tracks(0, 1))
    assert owner.register.befores == {}
    guard = owner.register.guards["car"]
    assert guard.recalibrator == IDENTITY
    # What it can lose is bounded by nothing, what it can gain by the factor.
    assert guard.clip.loss == 1.0
    assert guard.clip.gain == pytest.approx(math.log(2.0))


@pytest.mark.parametrize(("mode", "pinned"), [(MANUAL, False), (AUTOMATIC, True), (ADVISE, True)])
def test_a_rollback_that_is_forbidden_is_said_once_and_not_done(mode, pinned):
    owner = Owner(settings(mode))
    owner.register.pinned = pinned
    owner.activate(scaled(4.0))
    decisions = owner.take_one_by_one(fault_and_recovery(1))
    assert whats(decisions) == [Happened.HELD]
    assert ("pinned" if pinned else "manual") in decisions[0].reason
    assert owner.champion() == scaled(4.0)
    owner.register.pinned = False
    if mode is not MANUAL:
        later = owner.take(tracks(2, 1, begin_ns=10**13))
        assert whats(later) == [Happened.ROLLED_BACK]


@pytest.mark.parametrize(("length", "what"), [(4, Happened.HELD), (5, Happened.ROLLED_BACK)])
def test_what_served_before_comes_back_by_itself_only_where_tracks_show_their_tails(length, what):
    owner, wide = Owner(settings(AUTOMATIC)), VarianceScaling((2.0, 2.0))
    fault = tracks(1000, 100, k=2, length=length, scale=4.0)
    owner.register.begin(CAR, wide, IDENTITY, fault[:10])
    assert any(owner.take([track]) for track in fault[10:])
    assert owner.champion() == wide
    # The first track after the change is a piece: as many detections as on trial have a full say.
    piece = tracks(2, 1, k=2, length=1, begin_ns=10**12)
    after = tracks(3, 200, k=2, length=length, begin_ns=10**13)
    decisions = owner.take_one_by_one([*piece, *after])
    assert whats(decisions) == [what]
    assert ("how heavy" in decisions[0].reason) == (what is Happened.HELD)
    assert (owner.champion() == wide) == (what is Happened.HELD)


def test_a_candidate_that_shrinks_one_dimension_waits():
    owner, narrow = Owner(settings(allow_shrinking=True)), VarianceScaling((math.sqrt(0.05),))
    fitted_on = tracks(1000, 10, k=1, length=1, begin_ns=FITTED_NS)
    owner.register.begin(CAR, narrow, IDENTITY, fitted_on)
    decisions = owner.take_one_by_one(tracks(3, 200, k=1, length=1, scale=0.05))
    assert whats(decisions) == [Happened.PROVEN]
    assert "how heavy" in decisions[0].reason


def test_what_is_forbidden_is_said_again_of_another_champion():
    owner = Owner(settings(MANUAL))
    for number in range(2):
        owner.activate(IDENTITY, guard=False)
        owner.activate(scaled(4.0))
        some = tracks(number, 100, begin_ns=number * 10**13)
        assert whats(owner.take_one_by_one(some)) == [Happened.HELD]
