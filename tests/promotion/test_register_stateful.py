"""Whatever tracks, fits and people do: what is in force changes by decisions alone, and by none
that policy forbids.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monitor.promotion.records import SWAPS, Happened, PromotionMode, TrialSettings
from monitor.promotion.register import shrinks
from monitor.promotion.tracks import rows_of
from monitor.promotion.trial import ratios
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.statistics.observations import finished
from tests.promotion import owned_registers
from tests.promotion.odd_recalibrators import Spoiling
from tests.promotion.owned_registers import BUS, CAR, IDENTITY, Owner, adaptive, scaled
from tests.promotion.simulated_tracks import tracks

# Soon decided, so that much happens.
TRIALS = TrialSettings(alpha=0.5, tracks=20, rollback_tracks=100)
CHAINS = st.sampled_from([CAR, BUS])
RECALIBRATORS = st.sampled_from(
    [
        IDENTITY,
        scaled(9.0),
        scaled(3.0),
        scaled(0.2),
        scaled(4.0, 1.0, 0.3),
        adaptive(6.0, remembered=4.0),
        adaptive(0.3),
        Spoiling(float("nan"), first=401),
    ]
)


class Lives(RuleBasedStateMachine):
    """Of two slices in one register."""

    @initialize(mode=st.sampled_from(PromotionMode), allow_shrinking=st.booleans())
    def begin(self, mode, allow_shrinking):
        given = owned_registers.settings(mode, TRIALS, allow_shrinking=allow_shrinking)
        self.owner = Owner(given)
        self.register, self.policy = self.owner.register, given.policy
        self.held: set[str] = set()
        self.seed = 0

    @property
    def acts(self) -> bool:
        return self.policy.mode is not PromotionMode.MANUAL and not self.register.pinned

    @rule(
        chain=CHAINS, scale=st.sampled_from([0.2, 1.0, 3.0, 9.0]), count=st.sampled_from([1, 9, 40])
    )
    def truth_comes(self, chain, scale, count):
        self.seed += 1
        some = tracks(self.seed, count, length=6, scale=scale, begin_ns=self.owner.latest_ns)
        before = dict(self.owner.champions)
        served = self.owner.champion(chain)
        steps = self.register.take(chain, lambda: self.owner.champion(chain), some)
        decisions, rest = finished(steps)
        assert rest == some[len(some) - len(rest) :]
        assert decisions or not rest
        assert self.owner.champions == before
        swaps = [decision for decision in decisions if decision.what in SWAPS]
        assert swaps in ([], decisions[-1:])
        assert {decision.chain for decision in decisions} <= {chain}
        assert not swaps or self.acts
        for decision in decisions:
            if decision.what is Happened.HELD:
                assert chain[0] not in self.held
                self.held.add(chain[0])
            if decision.what is Happened.PROMOTED:
                assert self.policy.mode is PromotionMode.AUTOMATIC
                change = ratios(decision.recalibrator, served, rows_of(some).sent)
                assert self.policy.allow_shrinking or not shrinks(change, self.policy.hysteresis)
            if decision.what is Happened.ADAPTED:
                assert isinstance(served, AdaptiveScaling)
            if decision.what is Happened.DISCARDED:
                assert chain[0] not in self.register.on_trial
        self.owner.latest_ns = some[-1].ended_ns
        for decision in swaps:
            self.come_in_force(decision.what, decision.recalibrator, chain)

    def come_in_force(self, what, recalibrator, chain):
        if what is Happened.ADAPTED:
            self.owner.champions[chain[0]] = recalibrator
            return
        guard = what is not Happened.ROLLED_BACK
        self.owner.activate(recalibrator, chain, guard=guard)
        self.held.discard(chain[0])
        assert chain[0] not in self.register.on_trial
        assert chain[0] not in self.register.guards
        assert (chain[0] in self.register.befores) == guard

    @rule(chain=CHAINS, fitted=RECALIBRATORS)
    def a_fit_ends(self, chain, fitted):
        spent = self.register.spent.get(chain[0], 0)
        champion, on_trial = self.owner.champion(chain), dict(self.register.on_trial)
        decision, judgement = self.owner.begin(fitted, chain)
        assert self.owner.champion(chain) is champion
        assert judgement.reason
        if decision is None:
            assert self.register.on_trial == on_trial
        else:
            assert self.register.on_trial[chain[0]].trial.number == spent + 1

    @rule(chain=CHAINS, recalibrator=RECALIBRATORS)
    def somebody_promotes(self, chain, recalibrator):
        self.come_in_force(Happened.PROMOTED, recalibrator, chain)

    @rule(chain=CHAINS)
    def somebody_rolls_back(self, chain):
        self.come_in_force(Happened.ROLLED_BACK, IDENTITY, chain)

    @rule(pinned=st.booleans())
    def somebody_pins(self, pinned):
        self.register.pinned = pinned

    @invariant()
    def trials_are_counted_and_end(self):
        if not hasattr(self, "owner"):
            return
        for slice, entry in self.register.on_trial.items():
            assert 1 <= entry.trial.number == self.register.spent[slice]
            assert entry.trial.unsound == ""
            # Not proven, it ends after the step of at most 16 tracks that reaches the last.
            assert entry.proven or entry.trial.bets.tracks < TRIALS.tracks
        assert not self.register.guards.keys() & self.register.befores.keys()


Lives.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
TestLives = Lives.TestCase
