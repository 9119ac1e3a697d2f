"""The register of candidates, guards and followers of all slices: what whole tracks decide of them.

It knows no selection and no clock: the champion, the active recalibrator of a slice, is an
argument, and decisions are carried out by the owner, who tells the register what became active.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Annotated

import numpy as np
from annotated_types import Ge

from monitor.frames.detections import Limits
from monitor.frames.marks import Share
from monitor.frames.slices import Chain
from monitor.frames.space import FloatArray
from monitor.promotion.decisions import Decision
from monitor.promotion.records import (
    SWAPS,
    Evidence,
    Factor,
    Happened,
    PolicySettings,
    PromotionMode,
    PromotionSettings,
    Verdict,
)
from monitor.promotion.scored import ANY_SIZE, AnyRows, of_space, rows_of
from monitor.promotion.tracks import AnyTrack
from monitor.promotion.trial import (
    AwaitingGuard,
    Candidate,
    Guard,
    Trial,
    clip_of,
    full_say,
)
from monitor.recalibration.recalibrator import FactorOnDeviation, RecalibratorForm
from monitor.recalibration.scaling import AdaptiveScaling, followed
from monitor.recalibration.selection import AnyMethod

# Share of late labels that is left out: a fit, too, takes the 95 % quantile of delays.
_MOST_LATE = 0.05

# Tracks over which this share is averaged, exponentially.
_LATEST = 100

# Tracks that are scored in one step, of some milliseconds.
_AT_ONCE = 16

# Tracks on which a fit is judged: more would hold up frames, and say the same.
_JUDGES = 32

# On the variance or the temperature: a fit that differs by less from the candidate that waits does
# not supersede it.
_OTHER = 1.5

# Why a step without a bound of its losses waits; see Clip.insured.
_UNINSURED = (
    "tracks of one dimension, or of two that hold fewer than five detections, do not show how "
    "heavy the tails of errors are, and under heavy tails a wrong step may seem right"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of one fit in one slice, before any trial.

    candidate  to be tried: the fitted recalibrator, or the identity; None: neither
    reason     why that one, in words
    factors    of the fitted one, on what was sent; none where it fails
    shrinks    the candidate makes a variance or the temperature smaller than the champion does
    """

    candidate: AnyMethod | None
    reason: str
    factors: tuple[Factor, ...] = ()
    shrinks: bool = False


TOO_FEW = (
    "cannot fit for want of tracks: {} of the {} of [promotion] fit_tracks. Send upstream_track_id "
    "(upstream_track in Python): where tracks are not known, track_seconds of a stream are one"
)


def judge(
    fitted: AnyMethod,
    champion: AnyMethod,
    rows: AnyRows,
    policy: PolicySettings,
    limits: Limits = ANY_SIZE,
) -> Judgement:
    """Judges what is to be tried of a fit, on rows of the slice.

    Where every factor lies within the band, the detector is healthy, and the identity is tried:
    a factor that was fitted to it is mostly noise. An offset of the mean stays, since its fit has
    left out what is noise. The band and the leave to shrink protect what a detector claims: a
    slice without covariances claims nothing, so that its candidate is never replaced by the
    identity, and may shrink.

    A step that changes nothing by more than the hysteresis is not tried.

    limits  of the deviations that can be forwarded
    """
    unsound = rows.unsound(fitted, limits)
    if unsound:
        return Judgement(
            None,
            f"{fitted.method} {unsound}: look at the ground truth it was fitted on, or "
            "use another method",
        )
    found = rows.factors(fitted)
    low, high = rows.band(policy)
    within = all(low <= one.lowest and one.highest <= high for one in found)
    home = bool(found) and within and rows.claimed
    candidate: AnyMethod = rows.healthy(fitted) if home else fitted
    reason = f"{fitted.method} has no factors"
    if found:
        reason = rows.said(found, (low, high) if home else None)
    change, offset = rows.change(candidate, champion, limits), rows.offset_of(candidate)
    smaller = shrinks(change, policy.hysteresis)
    # A mean that is off by Δ makes mean z² larger by (Δ/σ)², as a factor on the variance does.
    larger = change[2].max() > policy.hysteresis
    moves = rows.moved(candidate, champion, limits).max() > policy.hysteresis - 1
    if not (smaller or larger or moves):
        same = f"none changes by more than {policy.hysteresis:g} against what is active"
        why = "nothing to correct" if home else same
        return Judgement(None, f"{reason}; {why}", found)
    if home:
        reason += f"; {offset or 'back to what is sent'}"
    elif offset:
        reason += f"; {offset}"
    return Judgement(candidate, reason, found, smaller and rows.claimed)


def shrinks(change: FloatArray, hysteresis: float) -> bool:
    """Tells whether a candidate makes a variance, or the temperature, smaller than the champion.

    That is in some dimension, by more than the hysteresis, on more than 5 % of the estimates.

    change  the candidate's variances over the champion's, as rows.change returns them
    """
    return bool((change[0] < 1 / hysteresis).any())


@dataclass(frozen=True, slots=True)
class Follower:
    """An adaptive scaling between two tracks: its memory goes on with every one of them.

    It is made active anew where its factors have changed enough.

    active     K active factors on σ
    approved   the least factors that may act by themselves, where covariances must not shrink
    full       detections of a track that has a full vote; a shorter track has its share of one:
               else the pieces that a tracker breaks off at large errors would drive the scaling
    late       share of tracks with labels too late to follow, of about a hundred latest ones
    too_late   why that is too much; '' where it is not
    """

    scaling: Annotated[AdaptiveScaling, RecalibratorForm({AdaptiveScaling.method: AdaptiveScaling})]
    active: tuple[FactorOnDeviation, ...]
    approved: tuple[FactorOnDeviation, ...]
    full: Annotated[float, Ge(1.0)]
    late: Share = 0.0
    too_late: str = ""

    def __post_init__(self) -> None:
        if not len(self.active) == len(self.approved) == self.scaling.k:
            raise ValueError(
                f"'active' and 'approved' have {len(self.active)} and {len(self.approved)} "
                f"factors: they must have {self.scaling.k}, as 'scaling' has"
            )

    @classmethod
    def of(cls, champion: AdaptiveScaling, full: float, late: float = 0.0) -> Follower:
        """Begins to follow an adaptive scaling that was promoted."""
        return cls(champion, champion.scale, champion.scale, full, late)

    def taken(self, tracks: Sequence[AnyTrack]) -> Follower:
        """Returns the follower after whole tracks, but for those whose labels came too late."""
        tracks = of_space(tracks)
        delays_s = [max(0.0, track.delay_ns / 1e9) for track in tracks]
        in_time = [delay_s < self.scaling.time_constant_s for delay_s in delays_s]
        late = self.late
        for came in in_time:
            late += ((not came) - late) / _LATEST
        scaling, late_s = self.scaling, max(delays_s)
        if any(in_time):
            rows = rows_of(list(compress(tracks, in_time)))
            error = rows.space.error(rows.truth, rows.sent.mean)
            variance = rows.sent.variance
            ended_s = np.array([track.ended_ns for track in compress(tracks, in_time)]) / 1e9
            nees = rows.means(np.square(error) / variance)
            votes = np.minimum(1.0, rows.counts / self.full)
            delay_s = max(compress(delays_s, in_time))
            scaling = followed(scaling, nees, ended_s, delay_s, votes)
        too_late = ""
        if late > _MOST_LATE and all(in_time):
            too_late = self.too_late
        elif late > _MOST_LATE:
            too_late = (
                f"labels of more than one track in twenty come {scaling.time_constant_s:g} s late "
                f"or later, up to {late_s:g} s: what they say would be forgotten before it could "
                "serve, and is left out. Choose a time constant that is long against the delay, "
                "bring labels earlier, or use variance-scaling"
            )
        return replace(self, scaling=scaling, late=late, too_late=too_late)

    def moved(self, policy: PolicySettings) -> AdaptiveScaling | None:
        """Returns the scaling to be made active now; None where it would change too little.

        Within the band it changes nothing: such factors are mostly noise.
        """
        scale = np.array(self.scaling.scale)
        low, high = policy.band
        if ((low <= scale**2) & (scale**2 <= high)).all():
            scale = np.ones_like(scale)
        if not policy.allow_shrinking:
            scale = np.maximum(scale, self.approved)
        ratio = np.square(scale / self.active)
        if (np.maximum(ratio, 1 / ratio) <= policy.hysteresis).all():
            return None
        return replace(self.scaling, scale=tuple(scale.tolist()))


@dataclass(slots=True)
class Register:
    """Holds the candidate, the guard and the follower of each slice by its name.

    pinned  nothing acts by itself
    spent   trials begun since the last change in the slice
    held    slices, each with an action that was reported as forbidden
    """

    settings: PromotionSettings
    limits: Limits
    pinned: bool = False
    on_trial: dict[str, Candidate] = field(default_factory=dict)
    guards: dict[str, Guard] = field(default_factory=dict)
    befores: dict[str, AwaitingGuard] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    followers: dict[str, Follower] = field(default_factory=dict)
    held: set[tuple[str, str]] = field(default_factory=set)

    def slices(self) -> set[str]:
        """Names the slices that have an entry."""
        return {*self.on_trial, *self.guards, *self.befores, *self.followers}

    # ---- fits

    def wants_fit(self, chain: Chain) -> bool:
        """Tells whether a fit of a slice would lead to anything by itself."""
        entry = self.on_trial.get(chain[0])
        return self._by_itself and (entry is None or entry.proven)

    @property
    def _by_itself(self) -> bool:
        return self.settings.policy.mode is not PromotionMode.MANUAL and not self.pinned

    def abandon(self, chain: Chain, names: tuple[str, ...], reason: str) -> Decision | None:
        """Ends a trial in which nothing is proven, unless people alone decide.

        names  of the dimensions
        """
        entry = self.on_trial.get(chain[0])
        if entry is None or entry.proven or not self._by_itself:
            return None
        del self.on_trial[chain[0]]
        evidence, about = entry.trial.evidence(self.settings.trials), entry.trial.recalibrator
        what = Happened.DISCARDED
        return Decision(what, chain, names, about, reason, evidence, entry.factors)

    def begin(
        self,
        chain: Chain,
        fitted: AnyMethod,
        champion: AnyMethod,
        tracks: Sequence[AnyTrack],
    ) -> tuple[Decision | None, Judgement]:
        """Puts a fit on trial in place of the last one, if there is anything to try.

        tracks  those that it was fitted on, at least one
        """
        rows = rows_of(tracks[:: -(-len(tracks) // _JUDGES)])
        judgement = judge(fitted, champion, rows, self.settings.policy, self.limits)
        candidate, found = judgement.candidate, judgement.factors
        if candidate is None:
            fewest = self.settings.fits.tracks
            if found and rows.claimed and len(tracks) < fewest:
                # Drawn towards 1, few tracks never say that nothing is wrong.
                judgement = replace(judgement, reason=TOO_FEW.format(len(tracks), fewest))
            return None, judgement
        slice, number = chain[0], self.spent.get(chain[0], 0) + 1
        waiting = self.on_trial.get(slice)
        if waiting is not None and waiting.proven:
            waits = waiting.trial.recalibrator
            lowest, _, highest = rows.change(candidate, waits)
            apart = rows.moved(candidate, waits).max() > _OTHER - 1
            if (lowest >= 1 / _OTHER).all() and (highest <= _OTHER).all() and not apart:
                reason = "a candidate that is much the same is proven, and waits for approval"
                return None, replace(judgement, candidate=None, reason=reason)
        clip = clip_of(candidate, champion, rows, self.settings.trials.clip)
        self.spent[slice] = number
        trial = Trial(slice, candidate, number, clip)
        self.on_trial[slice] = Candidate(trial, found, judgement.shrinks)
        evidence, reason = trial.evidence(self.settings.trials), judgement.reason
        began = Decision(Happened.BEGAN, chain, rows.names, candidate, reason, evidence, found)
        return began, judgement

    # ---- tracks

    def take(
        self,
        chain: Chain,
        champion_now: Callable[[], AnyMethod],
        tracks: Sequence[AnyTrack],
        later_now: Callable[[Sequence[AnyTrack]], list[AnyTrack]] = list,
    ) -> Generator[None, None, tuple[list[Decision], list[AnyTrack]]]:
        """Decides by tracks of a slice, in short steps: at most one change of the active one.

        A decision has changed the register already, so it is returned at once: an owner who ends
        the generator between two steps loses tracks, but no decision.

        champion_now  returns the champion, which may be another one after each step
        later_now     returns the tracks that have a say, which may be fewer after each step
        returns       the decisions, and the tracks after those that decided: to be taken again once
                      the decisions are carried out
        """
        for i in range(0, len(tracks) if self._asks(chain, champion_now()) else 0, _AT_ONCE):
            some, rest = tracks[i : i + _AT_ONCE], list(tracks[i + _AT_ONCE :])
            decisions: list[Decision] = []
            for say in (self._guarded, self._tried, self._followed):
                part = later_now(some)
                if part:
                    decisions += say(chain, champion_now(), part)
                if decisions and decisions[-1].what in SWAPS:
                    break
                if not decisions:
                    yield
            if decisions:
                # The rest is newer than those that decided, and kept too.
                return [
                    one if one.keep is None else replace(one, keep=one.keep + len(rest))
                    for one in decisions
                ], rest
        return [], []

    def _asks(self, chain: Chain, champion: AnyMethod) -> bool:
        """Says whether tracks of a slice may decide anything."""
        waiting = self.befores, self.guards, self.on_trial
        return isinstance(champion, AdaptiveScaling) or any(chain[0] in one for one in waiting)

    def _guarded(
        self, chain: Chain, champion: AnyMethod, tracks: Sequence[AnyTrack]
    ) -> list[Decision]:
        slice = chain[0]
        before = self.befores.pop(slice, None)
        if before is not None:
            clip = clip_of(
                before.recalibrator, champion, rows_of(tracks), self.settings.trials.clip
            )
            # A track needs as many detections for a full say as it did on trial.
            full = before.rows or self._full_say(tracks)
            self.guards[slice] = Guard(slice, before.recalibrator, replace(clip, rows=full))
        guard = self.guards.get(slice)
        if guard is None:
            return []
        self.guards[slice] = guard = guard.taken(tracks, champion, self.limits)
        if not guard.won(self.settings.trials):
            return []
        forbidden = self._forbidden()
        if not forbidden and not guard.clip.insured(rows_of(tracks[:1]).tails):
            forbidden = f", but {_UNINSURED}: `rollback`"
        what = Happened.HELD if forbidden else Happened.ROLLED_BACK
        if forbidden and not self._say_once(chain, "rollback"):
            return []
        evidence = guard.evidence(self.settings.trials)
        reason = f"what served before is proven better{forbidden}"
        found = _decision(what, chain, tracks, guard.recalibrator, reason, evidence)
        return [replace(found, keep=guard.watch.leading.tracks)]

    def _forbidden(self) -> str:
        """Ends a sentence by why nothing may act by itself; returns '' where it may."""
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
        self, chain: Chain, champion: AnyMethod, tracks: Sequence[AnyTrack]
    ) -> list[Decision]:
        slice = chain[0]
        entry = self.on_trial.get(slice)
        if entry is None:
            return []
        if entry.proven and not self._waits(entry, tracks):
            entry = entry.anew()
            self.spent[slice] = entry.trial.number
        trial, too_late = entry.trial.taken(tracks, champion, self.limits), ""
        entry = replace(entry, trial=trial)
        if entry.proven:
            entry = entry.doubted(tracks, champion, self.limits, self.settings.trials.clip)
        if isinstance(trial.recalibrator, AdaptiveScaling):
            follower = Follower.of(trial.recalibrator, trial.clip.rows, entry.late).taken(tracks)
            trial, too_late = replace(trial, recalibrator=follower.scaling), follower.too_late
            entry = replace(entry, trial=trial, late=follower.late)
        verdict = trial.verdict(self.settings.trials)
        if verdict is Verdict.BETTER:
            entry = self._as_now(entry, champion, tracks)
        self.on_trial[slice] = entry
        decision = self._decided(chain, entry, verdict, tracks)
        if decision is not None:
            return [decision]
        return self._too_late(chain, trial.recalibrator, too_late, tracks)

    def _decided(
        self, chain: Chain, entry: Candidate, verdict: Verdict, tracks: Sequence[AnyTrack]
    ) -> Decision | None:
        """Decides by the verdict on a candidate; None: nothing."""
        trial, waits = entry.trial, self._waits(entry, tracks)
        doubted = entry.doubt is not None and entry.doubt.won(self.settings.trials)
        match verdict:
            case Verdict.BETTER | Verdict.RUNNING | Verdict.OVER if doubted:
                verdict = Verdict.WORSE
                what, reason = Happened.DISCARDED, "was proven better, and is worse by now"
            case Verdict.BETTER if waits and entry.proven:
                return None
            case Verdict.BETTER if waits:
                self.on_trial[chain[0]] = replace(entry, proven=True)
                what, reason = Happened.PROVEN, f"proven better: {waits}"
            case Verdict.BETTER:
                what, reason = Happened.PROMOTED, "proven better"
            case Verdict.WORSE:
                what, reason = Happened.DISCARDED, "worse than the champion"
            case Verdict.UNSOUND:
                what = Happened.DISCARDED
                reason = f"{trial.recalibrator.method} {trial.unsound}"
            case Verdict.OVER if not entry.proven:
                what = Happened.DISCARDED
                reason = f"not proven better by {trial.bets.tracks} tracks"
            case _:
                return None
        if what is Happened.DISCARDED:
            del self.on_trial[chain[0]]
        evidence, about = trial.evidence(self.settings.trials), trial.recalibrator
        found = _decision(what, chain, tracks, about, reason, evidence, entry.factors)
        return replace(found, verdict=verdict, waited=entry.proven)

    def _as_now(
        self, entry: Candidate, champion: AnyMethod, tracks: Sequence[AnyTrack]
    ) -> Candidate:
        """Updates factors and shrinks, where the candidate or the champion follows the detector."""
        candidate = entry.trial.recalibrator
        if not any(isinstance(one, AdaptiveScaling) for one in (candidate, champion)):
            return entry
        rows, hysteresis = rows_of(tracks), self.settings.policy.hysteresis
        smaller = shrinks(rows.change(candidate, champion), hysteresis) and rows.claimed
        found = rows.factors(candidate)
        return replace(entry, factors=found, shrinks=entry.shrinks or smaller)

    def _waits(self, entry: Candidate, tracks: Sequence[AnyTrack]) -> str:
        """Says why a proven candidate waits for approval; '' where it does not."""
        policy, rows = self.settings.policy, rows_of(tracks[:1])
        if policy.mode is not PromotionMode.AUTOMATIC:
            return f"[promotion] mode is {policy.mode}, `promote` makes it active"
        if self.pinned:
            return "the recalibrator is pinned, `promote` makes it active"
        if entry.shrinks and not policy.allow_shrinking:
            return f"{rows.shrinking_words}, `promote` makes it active"
        if not entry.trial.clip.insured(rows.tails):
            return f"{_UNINSURED}, `promote` makes it active"
        return ""

    def _followed(
        self, chain: Chain, champion: AnyMethod, tracks: Sequence[AnyTrack]
    ) -> list[Decision]:
        """Follows the detector with an adaptive champion, and acts where it has come far enough."""
        if not isinstance(champion, AdaptiveScaling):
            return []
        slice, policy = chain[0], self.settings.policy
        follower = self.followers.get(slice) or Follower.of(champion, self._full_say(tracks))
        self.followers[slice] = follower = follower.taken(tracks)
        said = self._too_late(chain, champion, follower.too_late, tracks)
        if said:
            return said
        if self.pinned or policy.mode is PromotionMode.MANUAL:
            return []
        moved = follower.moved(policy)
        if moved is None:
            return []
        self.followers[slice] = replace(follower, active=moved.scale)
        return [_decision(Happened.ADAPTED, chain, tracks, moved, "follows the detector")]

    def _full_say(self, tracks: Sequence[AnyTrack]) -> float:
        """Reads the detections of a full say off the first tracks, where there was no trial.

        Pieces that a tracker breaks off are whole first, so the first tracks may be pieces: take at
        least half of the longest there are.
        """
        least = self.settings.tracks.rows_per_track / 2
        return max(least, full_say(np.array([track.n for track in tracks])))

    def _too_late(
        self, chain: Chain, about: AnyMethod, reason: str, tracks: Sequence[AnyTrack]
    ) -> list[Decision]:
        if not reason or not self._say_once(chain, "adaptation"):
            return []
        return [_decision(Happened.HELD, chain, tracks, about, reason)]

    # ---- changes of the champion

    def changed(self, chain: Chain, now: AnyMethod, before: AnyMethod | None) -> None:
        """Ends the trial of a slice that has another champion, and puts the one before on guard.

        before  None where there is to be no guard
        """
        slice = chain[0]
        self.spent.pop(slice, None)
        self.followers.pop(slice, None)
        self.guards.pop(slice, None)
        self.befores.pop(slice, None)
        self.held = {entry for entry in self.held if entry[0] != slice}
        tried = self.on_trial.pop(slice, None)
        if tried is not None and tried.trial.recalibrator != now:
            tried = None
        if before is not None:
            rows = tried.trial.clip.rows if tried is not None else 0.0
            self.befores[slice] = AwaitingGuard(slice, before, rows)
        if tried is not None and isinstance(now, AdaptiveScaling):
            # It keeps the full say of its trial: with another, the same errors would move it.
            self.followers[slice] = Follower.of(now, tried.trial.clip.rows, tried.late)


def _decision(
    what: Happened,
    chain: Chain,
    tracks: Sequence[AnyTrack],
    recalibrator: AnyMethod,
    reason: str,
    evidence: Evidence | None = None,
    found: tuple[Factor, ...] | None = None,
) -> Decision:
    """Makes a decision; its factors are read off the tracks where `found` does not give them."""
    rows = rows_of(tracks)
    found = rows.factors(recalibrator) if found is None else found
    return Decision(what, chain, rows.names, recalibrator, reason, evidence, found)
