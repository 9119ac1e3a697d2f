"""What whole tracks decide of candidates and of what served before, who may act, how an adaptive
champion follows the detector, and that all of it comes back from its document.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scipy.stats import binom

from monitor.frames.slices import Chain
from monitor.promotion.records import (
    SWAPS,
    Evidence,
    Factor,
    Happened,
    PolicySettings,
    PromotionMode,
    Record,
    TrialSettings,
    Verdict,
)
from monitor.promotion.register import Follower, judge, shrinks
from monitor.promotion.scored import rows_of
from monitor.promotion.tracks import AnyTrack, WholeTrack
from monitor.recalibration.class_probabilities import ClassIdentity
from monitor.recalibration.class_scaling import Temperature, VectorScaling
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.scaling import AdaptiveScaling, VarianceScaling
from monitor.statistics.observations import finished
from monitor.store.documents import (
    RECORD_CODEC,
    REGISTER_CODEC,
    ConfiguredVersions,
    InvalidDocument,
    RegisterState,
)
from tests.promotion.odd_recalibrators import Odd, Spoiling
from tests.promotion.owned_registers import (
    BUS,
    CAR,
    CLASSES,
    FITTED_NS,
    IDENTITY,
    Owner,
    adaptive,
    scaled,
    settings,
    whats,
)
from tests.promotion.simulated_tracks import class_tracks, tracks

MANUAL, ADVISE, AUTOMATIC = PromotionMode
PROVEN, PROMOTED, DISCARDED = Happened.PROVEN, Happened.PROMOTED, Happened.DISCARDED
NAN = float("nan")
HELD, ROLLED_BACK = Happened.HELD, Happened.ROLLED_BACK


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


@pytest.mark.parametrize(
    ("scale", "count", "verdict", "words"),
    [
        (1.0, 300, Verdict.WORSE, "worse than the champion"),
        # Of the variance between the two, neither is much better.
        (4 * math.log(4) / 3, 48, Verdict.OVER, "not proven better by 32 tracks"),
    ],
)
def test_a_candidate_that_is_worse_or_whose_time_is_over_is_discarded(scale, count, verdict, words):
    owner = Owner(settings(trials=TrialSettings(tracks=30)))
    owner.begin(scaled(4.0))
    (decision,) = owner.take(tracks(0, count, scale=scale))
    assert (decision.what, decision.verdict, decision.reason) == (DISCARDED, verdict, words)
    assert owner.champion() == IDENTITY
    assert owner.register.on_trial == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [(NAN, "not finite"), (-1.0, "not positive definite"), (1e15, "largest_deviation")],
)
def test_a_candidate_that_fails_on_one_later_detection_is_discarded_with_the_reason(value, words):
    owner = Owner()
    owner.begin(Spoiling(value, (1, 1), first=401, last=402))
    # Ten tracks have 400 rows: only the eleventh is one too many. Nobody is better so far.
    assert owner.take(tracks(0, 10, scale=2 * math.log(2))) == []
    (decision,) = owner.take(tracks(1, 11, scale=4.0, begin_ns=10**12))
    assert (decision.what, decision.verdict) == (DISCARDED, Verdict.UNSOUND)
    assert decision.reason.startswith("spoiling makes ")
    assert words in decision.reason
    assert owner.champion() == IDENTITY


def test_what_fails_on_the_rows_it_was_fitted_on_gets_no_trial_and_a_champion_may_fail():
    owner = Owner()
    decision, judgement = owner.begin(Odd())
    assert decision is None
    assert "spoiling fails: RuntimeError: broken" in judgement.reason
    assert owner.register.spent == {}
    failing = Owner(champion=Odd())
    failing.begin(scaled(4.0))
    assert whats(failing.take(tracks(0, 80, scale=4.0))) == [PROMOTED]


def waiting(owner: Owner) -> None:
    """A candidate that is proven by a long fault."""
    owner.begin(scaled(4.0))
    assert whats(owner.take(tracks(1, 300, scale=4.0)))[0] is PROVEN


def test_a_candidate_that_waits_is_discarded_soon_after_the_fault_ends():
    owner = Owner(settings(ADVISE))
    waiting(owner)
    decisions = owner.take_one_by_one(tracks(10, 100))
    assert whats(decisions) == [Happened.DISCARDED]
    assert decisions[0].reason == "was proven better, and is worse by now"
    assert "car" not in owner.register.on_trial


def test_it_waits_as_long_as_the_fault_lasts_and_only_another_fit_takes_its_place():
    owner = Owner(settings(ADVISE))
    waiting(owner)
    assert owner.take(tracks(2, 600, scale=4.0)) == []
    assert owner.register.on_trial["car"].proven
    assert owner.register.wants_fit(CAR)
    begun, judgement = owner.begin(scaled(4.4))
    assert begun is None
    assert "waits for approval" in judgement.reason
    assert owner.register.on_trial["car"].proven
    begun, _ = owner.begin(scaled(16.0))
    assert begun is not None
    assert not owner.register.on_trial["car"].proven


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


def test_what_is_no_better_is_rarely_promoted_in_three_trials_of_calibrated_tracks():
    # At α = 0.2, so that a loose bound would show: promotions of 60 seeds are at most binomial
    # (60, 0.2), of which more than 22 have a chance of 1 in 1000.
    promoted = 0
    for seed in range(60):
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
    assert promoted <= binom.ppf(0.999, 60, 0.2) == 22


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


# Soon decided, so that much happens.
SOON = TrialSettings(alpha=0.5, tracks=20, rollback_tracks=100)
CHAINS = st.sampled_from([CAR, BUS, CLASSES])
SCALED = [IDENTITY, scaled(9.0), scaled(3.0), scaled(0.2), scaled(4.0, 1.0, 0.3)]
OTHERS = [adaptive(6.0, remembered=4.0), adaptive(0.3), Spoiling(NAN, first=401)]
RECALIBRATORS = st.sampled_from([*SCALED, *OTHERS])
OF_CLASSES = st.sampled_from(
    [
        ClassIdentity(),
        *map(Temperature, (0.5, 1.5, 2.0, 3.0)),
        VectorScaling((1.0,) * 5, (0.0,) * 5),
    ]
)
SERVED = st.one_of(
    st.tuples(RECALIBRATORS, st.sampled_from([CAR, BUS])), st.tuples(OF_CLASSES, st.just(CLASSES))
)


class Lives(RuleBasedStateMachine):
    """Of two slices and of class probabilities in one register."""

    @initialize(mode=st.sampled_from(PromotionMode), allow_shrinking=st.booleans())
    def begin(self, mode, allow_shrinking):
        given = settings(mode, SOON, allow_shrinking=allow_shrinking)
        self.owner = Owner(given)
        self.register, self.policy = self.owner.register, given.policy
        self.held: set[str] = set()
        self.seed = 0

    @rule(chain=CHAINS, scale=st.sampled_from([0.2, 1, 3, 9]), count=st.sampled_from([1, 9, 40]))
    def truth_comes(self, chain, scale, count):
        self.seed += 1
        begin_ns = self.owner.latest_ns
        if chain == CLASSES:
            some: list[AnyTrack] = [*class_tracks(self.seed, count, scale, begin_ns=begin_ns)]
        else:
            some = [*tracks(self.seed, count, length=6, scale=scale, begin_ns=begin_ns)]
        served = self.owner.champion(chain)
        decisions, rest = finished(self.register.take(chain, lambda: served, some))
        assert rest == some[len(some) - len(rest) :]
        assert decisions or not rest
        swaps = [decision for decision in decisions if decision.what in SWAPS]
        assert swaps in ([], decisions[-1:])
        assert {decision.chain for decision in decisions} <= {chain}
        assert not swaps or not (self.policy.mode is MANUAL or self.register.pinned)
        for decision in decisions:
            if decision.what is HELD:
                assert chain[0] not in self.held
                self.held.add(chain[0])
            if decision.what is PROMOTED:
                assert self.policy.mode is AUTOMATIC
                change = rows_of(some).change(decision.recalibrator, served)
                assert self.policy.allow_shrinking or not shrinks(change, self.policy.hysteresis)
            assert decision.what is not Happened.ADAPTED or isinstance(served, AdaptiveScaling)
            assert decision.what is not DISCARDED or chain[0] not in self.register.on_trial
        self.owner.latest_ns = some[-1].ended_ns
        for decision in swaps:
            self.becomes_active(decision.what, decision.recalibrator, chain)

    @rule(what=st.sampled_from([PROMOTED, ROLLED_BACK]), served=SERVED)
    def somebody_decides(self, what, served):
        self.becomes_active(what, *served)

    def becomes_active(self, what, recalibrator, chain):
        if what is Happened.ADAPTED:
            self.owner.champions[chain[0]] = recalibrator
            return
        self.owner.activate(recalibrator, chain, guard=what is PROMOTED)
        self.held.discard(chain[0])
        assert chain[0] not in {*self.register.on_trial, *self.register.guards}
        assert (chain[0] in self.register.befores) == (what is PROMOTED)

    @rule(served=SERVED)
    def a_fit_ends(self, served):
        fitted, chain = served
        spent, on_trial = self.register.spent.get(chain[0], 0), dict(self.register.on_trial)
        decision, judgement = self.owner.begin(fitted, chain)
        assert judgement.reason
        if decision is None:
            assert self.register.on_trial == on_trial
        else:
            assert self.register.on_trial[chain[0]].trial.number == spent + 1

    @rule(pinned=st.booleans())
    def somebody_pins(self, pinned):
        self.register.pinned = pinned

    @invariant()
    def trials_are_counted_and_end(self):
        register = self.register if hasattr(self, "owner") else Owner().register
        for slice, entry in register.on_trial.items():
            assert 1 <= entry.trial.number == register.spent[slice]
            assert entry.trial.unsound == ""
            # Not proven, it ends after the step of at most 16 tracks that reaches the last.
            assert entry.proven or entry.trial.bets.tracks < SOON.tracks
        assert not register.guards.keys() & register.befores.keys()


Lives.TestCase.settings = examples(
    max_examples=examples().max_examples // 2,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
TestLives = Lives.TestCase


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


def test_labels_later_than_the_time_constant_teach_nothing_and_say_so():
    follower = of(adaptive(1.0, time_constant_s=30.0))
    refused = follower.taken(late(tracks(0, 6, scale=9.0), 30.0))
    assert refused.scaling == follower.scaling
    assert "come 30 s late or later, up to 30 s" in refused.too_late
    again = refused.taken(late(tracks(0, 20, scale=9.0), 29.0))
    assert again.too_late == ""
    assert again.scaling.delay_s == 29.0


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


def test_an_adaptive_candidate_goes_on_learning_while_it_is_tried():
    owner = Owner(settings(ADVISE))
    owner.begin(adaptive(3.0, remembered=4.0))
    some = tracks(8, 60, scale=9.0)
    (proven,) = owner.take(some)
    assert proven.what is Happened.PROVEN
    candidate = owner.register.on_trial["car"].trial.recalibrator
    assert variance(candidate) == pytest.approx([9.0] * 3, rel=0.35)


RECORD = Record(
    *(3, 1_750_000_000_000_000_003, Happened.BEGAN, "car", "v", "v", "v", "policy", "why", 10**8),
    Evidence(40, 0.1 / 3, math.pi, -1.5, 2.0),
    (Factor("x", 0.5, 1 / 3, 2.0),),
)


def some_state() -> RegisterState:
    """With a candidate that waits, guards, a follower, and what no track has made a guard of."""
    owner = Owner(settings(PromotionMode.ADVISE))
    owner.begin(scaled(4.0))
    owner.take(tracks(0, 60, scale=4.0))
    actives: dict[Chain, Recalibrator] = {BUS: scaled(9.0), ("bike",): adaptive(4.0)}
    for chain, active in actives.items():
        owner.activate(active, chain)
        owner.take(tracks(1, 8), chain)
    owner.activate(scaled(2.0), ("Straße, 0-30 m",))
    register = owner.register
    return RegisterState(
        "identity",
        "class-identity",
        ("before",),
        configured=ConfiguredVersions("variance-scaling-0123456789ab", ""),
        pinned=True,
        sequence=7,
        spent=register.spent,
        trials=tuple(register.on_trial.values()),
        guards=tuple(register.guards.values()),
        befores=tuple(register.befores.values()),
        followers=register.followers,
    )


STATE = some_state()
CONTENT: Any = json.loads(REGISTER_CODEC.write(STATE))


def changed(path: tuple[Any, ...], value: Any) -> str:
    """The state with another value at one place."""
    copy = inside = json.loads(json.dumps(CONTENT))
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return json.dumps(copy)


def test_a_record_comes_back_and_what_is_not_finite_as_nan():
    assert RECORD_CODEC.read(RECORD_CODEC.write(RECORD)) == RECORD
    line = RECORD_CODEC.write(replace(RECORD, evidence=Evidence(40, math.inf, math.pi, -1.5, 2.0)))
    found = RECORD_CODEC.read(line).evidence
    assert found is not None and math.isnan(found.gain) and found.log10_better == math.pi


def test_a_state_comes_back_to_the_last_bit():
    assert STATE.trials and STATE.guards and STATE.befores and STATE.followers
    assert REGISTER_CODEC.read(REGISTER_CODEC.write(STATE)) == STATE


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("trials", 0, "trial", "recalibrator", "method"), "magic", "method' is 'magic'"),
        (("trials", 0, "trial", "clip", "loss"), 2.0, "trial.clip': 'loss' is 2.0"),
        (("trials", 0, "trial", "bets", "better"), [0.0], r"bets.better' has 1 entries"),
        (("guards", 0, "watch", "runs", 0, "cumulative"), -1.0, "cumulative' is -1.0"),
        (("followers", "bike", "scaling", "method"), "identity", "must be 'adaptive-scaling'"),
        (("followers", "bike", "approved"), [1.0], "have 3 and 1 factors"),
    ],
)
def test_a_wrong_value_of_a_state_is_refused_with_its_place(path, value, named):
    with pytest.raises(InvalidDocument, match=named):
        REGISTER_CODEC.read(changed(path, value))


def test_a_state_of_the_format_before_is_read_and_without_classes_it_has_no_keys_of_theirs():
    second = (Path(__file__).parent / "register_2.json").read_bytes()
    again = REGISTER_CODEC.write(REGISTER_CODEC.read(second))
    content = json.loads(second)
    assert content.pop("entry") == 7
    # The release before reads it, so that the software can be rolled back.
    assert json.loads(again) == content | {"format": "calibration-monitor/register/3"}


# ---- covariances that nobody claims


def test_to_make_estimated_covariances_smaller_needs_no_leave():
    sent = tracks(0, 20)
    assumed = [replace(one, space=one.space.with_assumed) for one in sent]
    for some, shrinking in ((sent, True), (assumed, False)):
        found = judge(scaled(0.2), scaled(0.4), rows_of(some), PolicySettings())
        assert found.candidate == scaled(0.2)
        assert found.shrinks is shrinking


@pytest.mark.parametrize(
    ("mode", "ends"), [(PromotionMode.AUTOMATIC, True), (PromotionMode.MANUAL, False)]
)
def test_a_trial_in_which_nothing_is_proven_can_be_ended_unless_people_decide(mode, ends):
    owner = Owner(settings(mode))
    owner.begin(scaled(4.0))
    found = owner.register.abandon(CAR, ("x", "y", "z"), "of another time")
    assert (found is not None) is ends
    assert (CAR[0] in owner.register.on_trial) is not ends
    if found is not None:
        assert (found.what, found.reason) == (Happened.DISCARDED, "of another time")
    assert owner.register.abandon(BUS, ("x", "y", "z"), "none there") is None
