"""All trials of a sidecar, and what whole tracks decide of them.

It knows no selection and no clock: the champion is an argument, and what is decided is carried out
by its owner, who tells it what has come in force.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from monitor.calibration.detections import Limits
from monitor.promotion.decision import Decision
from monitor.promotion.factors import factors
from monitor.promotion.following import Follower
from monitor.promotion.guard import Guard
from monitor.promotion.judgement import Judgement, judge, shrinks
from monitor.promotion.records import SWAPS, Evidence, Factor, Happened
from monitor.promotion.settings import PromotionMode, PromotionSettings
from monitor.promotion.trial import Trial, Verdict, clip_of
from monitor.promotion.whole_track import WholeTrack, rows_of
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Chain

# Tracks that are scored in one go: a step of some milliseconds.
_AT_ONCE = 16
# Tracks by which a fit is judged: more would hold up frames, and say the same.
_JUDGES = 32

Champion = Callable[[], Recalibrator]
Later = Callable[[Sequence[WholeTrack]], list[WholeTrack]]


@dataclass(frozen=True, slots=True)
class OnTrial:
    """A candidate.

    proven   it is better, and waits for approval
    shrinks  whether it makes a variance smaller than the champion does
    """

    trial: Trial
    factors: tuple[Factor, ...]
    shrinks: bool
    proven: bool = False


@dataclass(frozen=True, slots=True)
class Before:
    """What served before, until the first track makes a guard of it."""

    slice: str
    recalibrator: Recalibrator
    since_ns: int


@dataclass(slots=True)
class Register:
    """By slice: what is on trial, what served before, and how many trials there have been.

    pinned  nothing acts by itself
    spent   trials begun since the last change in the slice
    held    slices, and what of them was said to be forbidden
    """

    settings: PromotionSettings
    limits: Limits
    pinned: bool = False
    on_trial: dict[str, OnTrial] = field(default_factory=dict)
    guards: dict[str, Guard] = field(default_factory=dict)
    befores: dict[str, Before] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    followers: dict[str, Follower] = field(default_factory=dict)
    held: set[tuple[str, str]] = field(default_factory=set)

    def slices(self) -> set[str]:
        """Of which anything is known."""
        return {*self.on_trial, *self.guards, *self.befores, *self.followers}

    # ---- fits

    def wants_fit(self, chain: Chain) -> bool:
        """Whether a fit of a slice would lead to anything by itself."""
        by_itself = self.settings.policy.mode is not PromotionMode.MANUAL and not self.pinned
        return by_itself and chain[0] not in self.on_trial

    def begin(
        self,
        chain: Chain,
        fitted: Recalibrator,
        champion: Recalibrator,
        tracks: Sequence[WholeTrack],
    ) -> tuple[Decision | None, Judgement]:
        """Put what was fitted on trial, if there is anything to try; who was on trial is not.

        tracks  at least one, that it was fitted on
        """
        rows = rows_of(tracks[:: -(-len(tracks) // _JUDGES)])
        policy = self.settings.policy
        names = rows.space.names
        judgement = judge(fitted, champion, rows.sent, names, policy)
        candidate = judgement.candidate
        if candidate is None:
            return None, judgement
        slice, number = chain[0], self.spent.get(chain[0], 0) + 1
        most = self.settings.trials.clip
        clip = clip_of(candidate, champion, rows, most)
        self.spent[slice] = number
        trial = Trial(slice, candidate, number, clip)
        self.on_trial[slice] = OnTrial(trial, judgement.factors, judgement.shrinks)
        decision = Decision(
            Happened.BEGAN,
            chain,
            names,
            candidate,
            judgement.reason,
            trial.evidence(self.settings.trials),
            judgement.factors,
        )
        return decision, judgement

    # ---- tracks

    def take(
        self,
        chain: Chain,
        champion_now: Champion,
        tracks: Sequence[WholeTrack],
        later_now: Later = list,
    ) -> Generator[None, None, list[Decision]]:
        """What tracks of a slice decide, in short steps: at most one change of what is in force.

        champion_now  what serves the slice, which may be another one after each step
        later_now     what of tracks has a say, which may be less after each step
        """
        decisions: list[Decision] = []
        for i in range(0, len(tracks), _AT_ONCE):
            for say in (self._guarded, self._tried, self._followed):
                part = later_now(tracks[i : i + _AT_ONCE])
                if part:
                    decisions += say(chain, champion_now(), part)
                if decisions and decisions[-1].what in SWAPS:
                    return decisions
                yield
        return decisions

    def _guarded(
        self, chain: Chain, champion: Recalibrator, tracks: Sequence[WholeTrack]
    ) -> list[Decision]:
        slice = chain[0]
        before = self.befores.pop(slice, None)
        if before is not None:
            self.guards[slice] = self._begun(before, champion, tracks)
        guard = self.guards.get(slice)
        if guard is None:
            return []
        self.guards[slice] = guard = guard.taken(tracks, champion, self.limits)
        if not guard.won(self.settings.trials):
            return []
        forbidden = self._forbidden()
        what = Happened.HELD if forbidden else Happened.ROLLED_BACK
        if forbidden and not self._say_once(chain, "rollback"):
            return []
        evidence = guard.evidence(self.settings.trials)
        reason = f"what served before is proven better{forbidden}"
        found = _decision(what, chain, tracks, guard.recalibrator, reason, evidence)
        return [replace(found, since_ns=guard.watch.changed_ns)]

    def _begun(self, before: Before, champion: Recalibrator, tracks: Sequence[WholeTrack]) -> Guard:
        """Its B is known from the first estimates that it sees."""
        rows, most = rows_of(tracks), self.settings.trials.clip
        clip = clip_of(before.recalibrator, champion, rows, most)
        return Guard.begun(before.slice, before.recalibrator, before.since_ns, clip)

    def _forbidden(self) -> str:
        """Why nothing may act by itself, as the end of a sentence; '' where it may."""
        if self.pinned:
            return ", but the recalibrator is pinned: `rollback` or `unpin`"
        if self.settings.policy.mode is PromotionMode.MANUAL:
            return ", but [promotion] mode is manual: `rollback`"
        return ""

    def _say_once(self, chain: Chain, what: str) -> bool:
        new = (chain[0], what) not in self.held
        self.held.add((chain[0], what))
        return new

    def _tried(
        self, chain: Chain, champion: Recalibrator, tracks: Sequence[WholeTrack]
    ) -> list[Decision]:
        slice, settings = chain[0], self.settings.trials
        entry = self.on_trial.get(slice)
        if entry is None:
            return []
        trial = entry.trial.taken(tracks, champion, self.limits)
        if isinstance(trial.recalibrator, AdaptiveScaling):
            trial = replace(
                trial, recalibrator=self._follower(trial.recalibrator).taken(tracks).scaling
            )
        self.on_trial[slice] = entry = replace(entry, trial=trial)
        verdict = trial.verdict(settings)
        if verdict is Verdict.BETTER:
            # What it is now, and beside what serves now: both may have followed the detector.
            entry = self._as_now(entry, champion, tracks)
        waits = self._waits(entry)
        match verdict:
            case Verdict.BETTER if waits and entry.proven:
                return []
            case Verdict.BETTER if waits:
                self.on_trial[slice] = replace(entry, proven=True)
                what, reason = Happened.PROVEN, f"proven better: {waits}"
            case Verdict.BETTER:
                what, reason = Happened.PROMOTED, "proven better"
            case Verdict.WORSE:
                what, reason = Happened.DISCARDED, "worse than the champion"
            case Verdict.UNSOUND:
                what = Happened.DISCARDED
                reason = "makes a covariance that is not finite or not positive definite"
            case Verdict.OVER if not entry.proven:
                what = Happened.DISCARDED
                reason = f"not proven better by {trial.bets.tracks} tracks"
            case _:
                return []
        if what is Happened.DISCARDED:
            del self.on_trial[slice]
        about = trial.recalibrator
        return [
            Decision(
                what,
                chain,
                tracks[0].space.names,
                about,
                reason,
                trial.evidence(settings),
                entry.factors,
                verdict,
                waited=entry.proven,
            )
        ]

    def _follower(self, champion: AdaptiveScaling) -> Follower:
        return Follower.of(champion, float(self.settings.tracks.rows_per_track))

    def _as_now(
        self, entry: OnTrial, champion: Recalibrator, tracks: Sequence[WholeTrack]
    ) -> OnTrial:
        rows, candidate = rows_of(tracks), entry.trial.recalibrator
        hysteresis = self.settings.policy.hysteresis
        return replace(
            entry,
            factors=factors(candidate, rows.sent, rows.space.names),
            shrinks=entry.shrinks or shrinks(candidate, champion, rows.sent, hysteresis),
        )

    def _waits(self, entry: OnTrial) -> str:
        """Why a proven candidate waits for approval; '' where it does not."""
        policy = self.settings.policy
        if policy.mode is not PromotionMode.AUTOMATIC:
            return f"[promotion] mode is {policy.mode}, `promote` puts it in force"
        if self.pinned:
            return "the recalibrator is pinned, `promote` puts it in force"
        if entry.shrinks and not policy.allow_shrinking:
            return "it makes covariances smaller, `promote` puts it in force"
        return ""

    def _followed(
        self, chain: Chain, champion: Recalibrator, tracks: Sequence[WholeTrack]
    ) -> list[Decision]:
        """Let the memory of an adaptive champion go on, and act where it has come far enough."""
        if not isinstance(champion, AdaptiveScaling):
            return []
        slice, policy = chain[0], self.settings.policy
        follower = self.followers.get(slice) or self._follower(champion)
        self.followers[slice] = follower = follower.taken(tracks)
        if follower.too_late:
            if not self._say_once(chain, "adaptation"):
                return []
            return [_decision(Happened.HELD, chain, tracks, champion, follower.too_late)]
        if self.pinned or policy.mode is PromotionMode.MANUAL:
            return []
        moved = follower.moved(policy)
        if moved is None:
            return []
        self.followers[slice] = follower.acted(moved)
        return [_decision(Happened.ADAPTED, chain, tracks, moved, "follows the detector")]

    # ---- what has come in force

    def changed(self, chain: Chain, before: Recalibrator | None, since_ns: int) -> bool:
        """Another recalibrator serves a slice: its trial is over, and what served before guards.

        before    None where nothing is to guard
        returns   whether a candidate was on trial that is not any more
        """
        slice = chain[0]
        self.spent.pop(slice, None)
        self.followers.pop(slice, None)
        self.guards.pop(slice, None)
        self.befores.pop(slice, None)
        self.held = {entry for entry in self.held if entry[0] != slice}
        if before is not None:
            self.befores[slice] = Before(slice, before, since_ns)
        return self.on_trial.pop(slice, None) is not None


def _decision(
    what: Happened,
    chain: Chain,
    tracks: Sequence[WholeTrack],
    recalibrator: Recalibrator,
    reason: str,
    evidence: Evidence | None = None,
) -> Decision:
    names, sent = tracks[0].space.names, rows_of(tracks).sent
    found = factors(recalibrator, sent, names)
    return Decision(what, chain, names, recalibrator, reason, evidence, found)
