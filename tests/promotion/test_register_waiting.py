"""A proof does not last: what waits for approval, and what may act later than it was proven."""

import pytest

from monitor.promotion.records import Happened, PromotionMode
from tests.promotion.owned_registers import BUS, CAR, IDENTITY, Owner, scaled, settings, whats
from tests.promotion.simulated_tracks import tracks

ADVISE, AUTOMATIC = PromotionMode.ADVISE, PromotionMode.AUTOMATIC


def waiting(owner: Owner, fault=4.0, seen=300) -> None:
    """A candidate that is proven by a long fault."""
    owner.begin(scaled(fault))
    assert whats(owner.take(tracks(1, seen, scale=fault)))[0] is Happened.PROVEN


@pytest.mark.parametrize("seed", range(5))
def test_a_candidate_that_waits_is_discarded_soon_after_the_fault_ends(seed):
    owner = Owner(settings(ADVISE))
    waiting(owner)
    decisions = owner.take_one_by_one(tracks(10 + seed, 100))
    assert whats(decisions) == [Happened.DISCARDED]
    assert decisions[0].reason == "was proven better, and is worse by now"
    assert "car" not in owner.register.on_trial


def test_it_waits_as_long_as_the_fault_lasts():
    owner = Owner(settings(ADVISE))
    waiting(owner)
    assert owner.take(tracks(2, 600, scale=4.0)) == []
    assert owner.register.on_trial["car"].proven


def test_what_was_proven_while_pinned_is_proven_anew_before_it_acts():
    owner = Owner(settings(AUTOMATIC))
    owner.register.pinned = True
    waiting(owner)
    owner.register.pinned = False
    assert owner.take(tracks(2, 3)) == []
    trial = owner.register.on_trial["car"].trial
    assert (trial.number, trial.bets.tracks) == (2, 3)
    assert owner.register.spent["car"] == 2
    # The fault is over: nothing is promoted by what it said.
    assert Happened.PROMOTED not in whats(owner.take(tracks(3, 400)))
    assert owner.champion() == IDENTITY


def test_and_acts_where_the_fault_goes_on():
    owner = Owner(settings(AUTOMATIC))
    owner.register.pinned = True
    waiting(owner)
    owner.register.pinned = False
    assert whats(owner.take(tracks(2, 100, scale=4.0))) == [Happened.PROMOTED]


def test_a_slice_whose_candidate_waits_is_fitted_again_and_only_another_one_takes_its_place():
    owner = Owner(settings(ADVISE))
    waiting(owner)
    assert owner.register.wants_fit(CAR)
    begun, judgement = owner.begin(scaled(4.4))
    assert begun is None
    assert "waits for approval" in judgement.reason
    assert owner.register.on_trial["car"].proven
    begun, _ = owner.begin(scaled(16.0))
    assert begun is not None
    assert not owner.register.on_trial["car"].proven
    assert not owner.register.wants_fit(CAR)
    assert owner.register.wants_fit(BUS)
