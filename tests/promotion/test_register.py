"""What whole tracks decide of candidates and of what served before, and who may act."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from monitor.promotion.betting import Bets
from monitor.promotion.records import Happened, PromotionMode, TrialSettings, Verdict
from monitor.promotion.register import judge
from monitor.recalibration.recalibrator import Recalibrator
from monitor.statistics.observations import finished
from tests.promotion.odd_recalibrators import Counting, Raising, Spoiling
from tests.promotion.owned_registers import (
    BUS,
    CAR,
    FITTED_NS,
    IDENTITY,
    Owner,
    adaptive,
    scaled,
    settings,
    whats,
)
from tests.promotion.simulated_tracks import tracks

MANUAL, ADVISE, AUTOMATIC = PromotionMode
PROVEN, PROMOTED, DISCARDED = Happened.PROVEN, Happened.PROMOTED, Happened.DISCARDED
NAN = float("nan")


# ---- who acts


@pytest.mark.parametrize("factor", [4.0, 0.25])
@pytest.mark.parametrize(
    ("mode", "allow_shrinking", "pinned"),
    [(mode, allow, pin) for mode in PromotionMode for allow in (0, 1) for pin in (0, 1)],
)
def test_a_proven_candidate_acts_only_where_policy_lets_it(mode, allow_shrinking, pinned, factor):
    owner = Owner(settings(mode, allow_shrinking=bool(allow_shrinking)))
    owner.register.pinned = bool(pinned)
    owner.begin(scaled(factor))
    decisions = owner.take(tracks(0, 80, scale=factor))
    acts = mode is AUTOMATIC and not pinned and (factor > 1 or allow_shrinking)
    assert whats(decisions) == [PROMOTED if acts else PROVEN]
    assert owner.champion() == (scaled(factor) if acts else IDENTITY)
    assert ("car" in owner.register.on_trial) is not acts
    assert decisions[0].recalibrator == scaled(factor)
    assert decisions[0].evidence is not None
    assert decisions[0].evidence.log10_better >= decisions[0].evidence.log10_threshold


def test_that_a_candidate_is_proven_is_said_once_and_its_time_is_not_over():
    owner = Owner(settings(ADVISE))
    owner.begin(scaled(4.0))
    decisions = owner.take(tracks(0, 500, scale=4.0))
    assert whats(decisions) == [PROVEN]
    assert "mode is advise, `promote`" in decisions[0].reason
    assert owner.register.on_trial["car"].proven
    assert owner.register.on_trial["car"].trial.bets.tracks == 500


def test_a_proven_candidate_that_becomes_worse_is_discarded():
    owner = Owner(settings(ADVISE))
    owner.begin(scaled(4.0))
    scale = np.repeat([4.0, 0.5], [12, 100])[:, None] * np.ones(3)
    assert whats(owner.take_one_by_one(tracks(0, 112, scale=scale))) == [PROVEN, DISCARDED]
    assert owner.register.on_trial == {}


def test_a_proven_candidate_stays_though_later_tracks_say_nothing_and_its_time_is_over():
    owner = Owner(settings(ADVISE, TrialSettings(tracks=40)))
    owner.begin(scaled(4.0))
    assert whats(owner.take_one_by_one(tracks(0, 12, scale=4.0))) == [PROVEN]
    entry = owner.register.on_trial["car"]
    undone = replace(entry.trial, bets=Bets(tracks=60, total=0.0))
    owner.register.on_trial["car"] = replace(entry, trial=undone)
    assert owner.take(tracks(1, 1, scale=1.85, begin_ns=10**13)) == []
    assert owner.register.on_trial["car"].trial.verdict(TrialSettings(tracks=40)) is Verdict.OVER


# ---- who is discarded


def test_a_candidate_that_is_worse_is_discarded():
    owner = Owner()
    owner.begin(scaled(4.0))
    (decision,) = owner.take(tracks(0, 300))
    assert (decision.what, decision.verdict) == (DISCARDED, Verdict.WORSE)
    assert owner.champion() == IDENTITY
    assert owner.register.on_trial == {}


def test_a_candidate_whose_time_is_over_is_discarded_with_the_number_of_tracks():
    owner = Owner(settings(trials=TrialSettings(tracks=30)))
    # Of the variance between the two, neither is much better.
    owner.begin(scaled(4.0))
    (decision,) = owner.take(tracks(0, 48, scale=4 * math.log(4) / 3))
    assert (decision.what, decision.verdict) == (DISCARDED, Verdict.OVER)
    assert decision.reason == "not proven better by 32 tracks"


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (Spoiling(NAN, first=401, last=402), "not finite"),
        (Spoiling(-1.0, first=401, last=402), "not positive definite"),
        (Spoiling(math.inf, (0, 2), first=401, last=402), "not finite"),
        (Spoiling(1e9, (1, 0), first=401, last=402), "not positive definite"),
        (Spoiling(1e15, first=401, last=402), "largest_deviation"),
    ],
)
def test_a_candidate_that_fails_on_one_later_detection_is_discarded_with_the_reason(odd, words):
    owner = Owner()
    decision, _ = owner.begin(odd)
    assert decision is not None
    # Ten tracks have 400 rows: only the eleventh is one too many. Nobody is better so far.
    assert owner.take(tracks(0, 10, scale=2 * math.log(2))) == []
    (decision,) = owner.take(tracks(1, 11, scale=4.0, begin_ns=10**12))
    assert (decision.what, decision.verdict) == (DISCARDED, Verdict.UNSOUND)
    assert decision.reason.startswith("spoiling makes ")
    assert words in decision.reason
    assert owner.champion() == IDENTITY


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (Raising(1.0), "spoiling fails: RuntimeError: broken"),
        (Spoiling(NAN), "not finite"),
        (Spoiling(-1.0), "not positive definite"),
        (Spoiling(1e15), "largest_deviation"),
    ],
)
def test_what_fails_on_the_rows_it_was_fitted_on_gets_no_trial(odd, words):
    owner = Owner()
    decision, judgement = owner.begin(odd)
    assert decision is None
    assert words in judgement.reason
    assert owner.register.spent == {}


def test_a_champion_that_fails_counts_as_what_was_sent():
    owner = Owner(champion=Raising(1.0))
    owner.begin(scaled(4.0))
    assert whats(owner.take(tracks(0, 80, scale=4.0))) == [PROMOTED]


# ---- what is tried


@pytest.mark.parametrize("factor", [0.51, 0.9, 1.0, 1.99])
def test_what_lies_within_the_band_is_nothing_to_try_at_home_and_the_way_home_elsewhere(factor):
    decision, judgement = Owner().begin(scaled(factor))
    assert decision is None
    assert "nothing to correct" in judgement.reason
    away, _ = Owner(champion=scaled(4.0)).begin(scaled(factor))
    assert away is not None
    assert away.recalibrator == IDENTITY


@pytest.mark.parametrize(("factor", "tried"), [(4.0, 0), (4.3, 0), (4.5, 1), (3.7, 0), (3.5, 1)])
def test_a_step_within_the_hysteresis_is_none(factor, tried):
    decision, judgement = Owner(champion=scaled(4.0)).begin(scaled(factor))
    assert (decision is not None) == tried
    assert ("none changes by more than 1.1" in judgement.reason) != tried


def test_what_is_begun_is_judged_by_its_tracks():
    fitted_on = tracks(1000, 10, begin_ns=FITTED_NS)
    owner, fitted = Owner(), scaled(4.0, 1.0, 0.25)
    begun, judgement = owner.begin(fitted)
    policy = owner.register.settings.policy
    expected = judge(fitted, IDENTITY, fitted_on[0].sent, ("x", "y", "z"), policy)
    assert begun is not None
    assert begun.what is Happened.BEGAN
    typical = [factor.typical for factor in judgement.factors]
    assert typical == pytest.approx([factor.typical for factor in expected.factors])
    assert owner.register.on_trial["car"].shrinks
    assert begun.evidence is not None
    assert (begun.evidence.tracks, begun.evidence.gain) == (0, 0.0)


# ---- chance


def test_every_trial_since_the_last_change_makes_the_next_proof_harder():
    owner = Owner()
    for number in range(1, 5):
        owner.begin(scaled(3.0 + number))
        owner.begin(scaled(5.0), BUS) if number == 1 else None
        trial = owner.register.on_trial["car"].trial
        evidence = trial.evidence(owner.register.settings.trials)
        assert trial.number == number
        assert evidence.log10_threshold == pytest.approx(math.log10(number * (number + 1) / 0.02))
    owner.activate(scaled(4.0))
    owner.begin(scaled(9.0))
    assert owner.register.on_trial["car"].trial.number == 1
    assert owner.register.spent == {"car": 1, "bus": 1}


def test_discarded_candidates_are_not_forgotten_by_the_count():
    owner = Owner()
    for _ in range(2):
        owner.begin(scaled(9.0))
        assert whats(owner.take(tracks(0, 60))) == [DISCARDED]
    assert owner.register.spent == {"car": 2}


def test_what_is_no_better_is_rarely_promoted_in_three_trials_of_calibrated_tracks():
    # At α = 0.2, so that a loose bound would show: promotions of 100 seeds are at most binomial
    # (100, 0.2); more than 33 have a chance of 1 in 1000.
    bound, promoted = int(binom.ppf(0.999, 100, 0.2)), 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        trials = TrialSettings(alpha=0.2, tracks=40)
        owner = Owner(settings(trials=trials, allow_shrinking=True, band=(1, 1), hysteresis=1.01))
        for number in range(3):
            owner.begin(scaled(*np.exp(random.normal(0.0, 0.3, 3)).tolist()))
            begin_ns = number * 10**12
            decided = owner.take(tracks(seed + 100 * number, 40, length=8, begin_ns=begin_ns))
            if PROMOTED in whats(decided):
                promoted += 1
                break
    assert bound == 33
    assert promoted <= bound


@pytest.mark.parametrize("seed", range(10))
def test_what_is_needed_is_promoted_within_a_hundred_tracks(seed):
    owner = Owner()
    owner.begin(scaled(2.25))
    assert whats(owner.take(tracks(seed, 100, scale=2.25))) == [PROMOTED]


# ---- what has come in force


@pytest.mark.parametrize("guard", [True, False])
def test_another_champion_ends_the_trial_of_its_slice_and_of_no_other(guard):
    owner = Owner()
    owner.begin(scaled(4.0))
    owner.begin(scaled(4.0), BUS)
    owner.activate(scaled(2.5), guard=guard)
    assert list(owner.register.on_trial) == ["bus"]
    assert list(owner.register.befores) == (["car"] if guard else [])


def test_a_fit_is_wanted_where_it_could_lead_to_something_by_itself():
    owner = Owner(settings(ADVISE))
    assert owner.register.wants_fit(CAR)
    owner.register.pinned = True
    assert not owner.register.wants_fit(CAR)
    owner.register.pinned = False
    owner.begin(scaled(4.0))
    assert not owner.register.wants_fit(CAR)
    assert owner.register.wants_fit(BUS)
    assert not Owner(settings(MANUAL)).register.wants_fit(CAR)


def test_one_take_changes_what_is_in_force_at_most_once():
    owner = Owner()
    owner.begin(scaled(4.0))
    scale = np.repeat([4.0, 1.0], [60, 200])[:, None] * np.ones(3)
    assert whats(owner.take(tracks(0, 260, scale=scale))) == [PROMOTED]
    assert owner.register.guards == {}


def test_any_decision_ends_the_take_and_gives_back_the_tracks_that_had_no_say():
    owner, some = Owner(settings(ADVISE)), tracks(0, 100, scale=4.0)
    owner.begin(scaled(4.0))
    decisions, rest = finished(owner.register.take(CAR, owner.champion, some))
    assert whats(decisions) == [PROVEN]
    said = owner.register.on_trial["car"].trial.bets.tracks
    assert said % 16 == 0
    assert rest == some[said:]
    assert finished(owner.register.take(CAR, owner.champion, rest)) == ([], [])
    assert owner.register.on_trial["car"].trial.bets.tracks == 100


def test_what_is_decided_is_returned_before_anybody_could_end_the_take():
    """Whenever that happens: what the register knows to be proven was returned."""
    some = tracks(0, 100, scale=4.0)
    for steps in range(40):
        owner = Owner(settings(ADVISE))
        owner.begin(scaled(4.0))
        taking = owner.register.take(CAR, owner.champion, some)
        for _ in range(steps):
            try:
                next(taking)
            except StopIteration as end:
                decisions, _ = end.value
                assert whats(decisions) == [PROVEN]
                break
        else:
            assert not owner.register.on_trial["car"].proven
            taking.close()


def test_what_is_proven_and_waits_is_shown_as_it_has_become():
    owner = Owner(settings(ADVISE))
    owner.begin(adaptive(3.0, remembered=4.0))
    (proven,) = owner.take(tracks(8, 60, scale=9.0))
    owner.take(tracks(9, 60, scale=30.0, begin_ns=10**12))
    (first, *_), (now, *_) = proven.factors, owner.register.on_trial["car"].factors
    assert first.typical < 12 < 20 < now.typical


def test_a_step_between_two_that_stay_as_they_are_is_not_judged_again():
    candidate = Counting(4.0)
    owner = Owner(settings(ADVISE))
    owner.begin(candidate)
    owner.take(tracks(0, 16, scale=4.0))
    owner.take(tracks(1, 16, scale=4.0, begin_ns=10**12))
    before = candidate.times
    owner.take(tracks(2, 16, scale=4.0, begin_ns=2 * 10**12))
    assert owner.register.on_trial["car"].proven
    # As a candidate, and beside the champion that may be better by now.
    assert candidate.times == before + 2


def test_work_is_done_in_short_steps_and_asks_each_time_what_is_in_force():
    owner, asked = Owner(settings(MANUAL)), 0
    owner.begin(scaled(4.0))

    def champion() -> Recalibrator:
        nonlocal asked
        asked += 1
        return owner.champion()

    steps = owner.register.take(CAR, champion, tracks(0, 64, scale=4 * math.log(4) / 3))
    taken = 0
    for _ in steps:
        entry = owner.register.on_trial.get("car")
        now = taken if entry is None else entry.trial.bets.tracks
        assert now - taken <= 16
        taken = now
    assert taken == 64
    assert asked >= 4
