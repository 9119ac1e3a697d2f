"""Decisions about recalibrators in a running sidecar, by people or by tracks, each recorded.

The name of a candidate is the version that would become active if it were promoted. A candidate
gets another name when the recalibrator changes that it is compared with.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from monitor.drift.alarms import AlarmChange, AlarmReason
from monitor.frames.slices import CLASS_PROBABILITIES, Chain, is_bare_chain
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.learning import CLASS_CHAIN, LabelledTracks, TracksToFit
from monitor.pipeline.recalibrators import Kind, NothingToRollBack, Recalibrators
from monitor.promotion.decisions import Decision, stepped
from monitor.promotion.fits import FitOutcome
from monitor.promotion.records import (
    SWAPS,
    Factor,
    Happened,
    Record,
    SliceFitted,
    TrialStanding,
    TrialState,
)
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import (
    CLASS_IDENTITY,
    AnyMethod,
    AnySelection,
    ClassSelection,
    Selection,
)

log = logging.getLogger(__name__)

# Records that are remembered, beside the audit log on disk.
REMEMBERED = 1000

# Versions that a rollback can go back through.
_MOST_BEFORE = 100

# The actor of automatic fits.
SCHEDULE = "schedule"
SWAP_OUTCOMES = ("promoted", "rolled_back", "adapted")
FIT_OUTCOMES = ("candidate", "nothing", "refused", "failed", "superseded")
DISCARDED = ("discarded_worse", "discarded_unsound", "discarded_over")
TRIAL_OUTCOMES = ("began", "proven", "promoted", *DISCARDED, "superseded")


@dataclass(slots=True)
class RecalibrationCounters:
    """Counts since the start, by outcome.

    swaps   how often another recalibrator became active, of either kind, by why
    fits    slices by what came of their fit: a candidate for a trial; nothing worth a change; a
            refusal of the method; a process that failed; superseded, where something else has
            become active in the slice, or has gone on trial, while it was fitted
    trials  candidates by what became of them; each began, and may be in some of the others;
            superseded by a newer candidate, by another active recalibrator, or ended by drift
    """

    swaps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SWAP_OUTCOMES, 0))
    fits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIT_OUTCOMES, 0))
    trials: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TRIAL_OUTCOMES, 0))


@dataclass(slots=True)
class Promotions:
    """Decides for one pipeline, in whose events every record is published."""

    pipeline: Pipeline
    now_ns: Callable[[], int] = time.time_ns
    counters: RecalibrationCounters = field(default_factory=RecalibrationCounters)
    sequence: int = 0
    learning: LabelledTracks = field(init=False)
    recalibrators: Recalibrators = field(init=False)
    _records: deque[Record] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    # Versions that rolling back would lead to, by slice.
    _guards: dict[str, str] = field(default_factory=dict)
    # Whatever a candidate that is on trial was ever called, and its slice.
    _called: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learning = self.pipeline.learning
        self.recalibrators = self.pipeline.recalibrators
        self.pipeline.events.listen(AlarmChange, self._drifted)

    @property
    def pinned(self) -> bool:
        """Says whether nothing happens by itself."""
        return self.learning.register.pinned

    # ---- people

    def promote(self, version: str, actor: str) -> Record:
        """Makes a known recalibrator active from the next frame on; of either kind.

        An earlier name of a candidate promotes the candidate under its present name, which the
        record gives as `after`. Raises UnknownVersion.
        """
        decision = self._decision_of(version)
        if decision is not None:
            return self._carried_out(decision, actor)
        selection = self.recalibrators.known.find(version)
        return self._activate(selection, Happened.PROMOTED, actor, "asked for")

    def rollback(self, kind: Kind, slice: str, actor: str) -> Record:
        """Makes the recalibrator active again that was so before the last change, of one kind.

        slice   the only one that goes back; '' for all
        raises  NothingToRollBack
        """
        if slice == CLASS_CHAIN[0]:
            kind = ClassSelection
        if slice and kind is Selection:
            back: AnySelection = self._with_slice_before(slice)
        else:
            back = self._known_before(kind)
        return self._activate(back, Happened.ROLLED_BACK, actor, "asked for", slice)

    def _known_before(self, kind: Kind) -> AnySelection:
        before, known = self.recalibrators.before[kind], self.recalibrators.known
        while before and before[-1] not in known:
            before.pop()
        if not before:
            raise NothingToRollBack(
                f"nothing was active before '{self._active(kind).version}': "
                "there is nothing to roll back to. Promote a version that is known"
                f"{self._also_changed(kind)}."
            )
        return known[before[-1]]

    def _also_changed(self, kind: Kind) -> str:
        """Ends the sentence by the way to roll back the other kind, where that has changed."""
        others = [one for one, before in self.recalibrators.before.items() if before]
        if kind in others or not others:
            return ""
        way = "with" if kind is Selection else "without"
        return f", or roll back {way} --classes what has changed"

    def _with_slice_before(self, slice: str) -> AnySelection:
        """Rolls one slice of the active selection back. Raises NothingToRollBack."""
        chains, now = self.learning.chains(), self.recalibrators.selection
        chain = chains.get(slice, ())
        for version in reversed(self.recalibrators.before[Selection] if chain else []):
            earlier = self.recalibrators.known.get(version)
            if isinstance(earlier, Selection) and earlier.of(chain) != now.of(chain):
                dimensions = now.dimensions or earlier.dimensions
                return self._stepped(chain, dimensions, earlier.of(chain))
        raise NothingToRollBack(
            f"slice '{slice[:80]}' was served by nothing else before: roll back one of "
            f"{', '.join(chains) or 'no slices'}, or all of them."
        )

    def pin(self, *, pinned: bool, actor: str) -> Record:
        """Sets whether anything may happen by itself."""
        self.learning.register.pinned = pinned
        self.learning.register.held.clear()
        what = Happened.PINNED if pinned else Happened.UNPINNED
        return self._record(what, actor, "asked for", version=self.recalibrators.selection.version)

    # ---- tracks and fits

    def carry_out(self, decisions: Sequence[Decision]) -> None:
        """Carries out what tracks have decided."""
        trials = self.counters.trials
        for decision in decisions:
            at_once = decision.what is Happened.PROMOTED and not decision.waited
            if at_once or decision.what is Happened.PROVEN:
                trials["proven"] += 1
            elif decision.what is Happened.DISCARDED and decision.verdict is not None:
                trials[f"discarded_{decision.verdict}"] += 1
            self._carried_out(decision, "trial")

    def begin(
        self, entries: Sequence[TracksToFit], outcome: FitOutcome, actor: str
    ) -> Generator[None, None, tuple[SliceFitted, ...]]:
        """Puts what was fitted on trial, slice by slice, where there is anything to try.

        returns  what came of each
        """
        found = []
        for entry in entries:
            found.append(self._begun(entry, outcome, actor))
            yield
        return tuple(found)

    def _begun(self, entry: TracksToFit, outcome: FitOutcome, actor: str) -> SliceFitted:
        register, chain, counts = self.learning.register, entry.chain, self.counters
        slice = chain[0]
        if slice in outcome.refused:
            counts.fits["refused"] += 1
            # Nobody else says it, and without a fit nothing is ever tried.
            reason = outcome.refused[slice]
            log.warning("%s is not fitted: %s", slice, reason, extra={"of": slice})
            return _fitted(entry, "", reason)
        champion, fitted = self.learning.champion(chain), outcome.fitted[slice]
        if self.learning.chains().get(slice) != chain or champion != entry.champion:
            counts.fits["superseded"] += 1
            return _fitted(entry, "", "another recalibrator became active while it was fitted")
        if actor == SCHEDULE and not register.wants_fit(chain):
            counts.fits["superseded"] += 1
            return _fitted(entry, "", "somebody has put another candidate on trial, or has pinned")
        superseded = slice in register.on_trial
        begun, judgement = register.begin(chain, fitted, champion, entry.tracks)
        if begun is None:
            counts.fits["nothing"] += 1
            return _fitted(entry, "", judgement.reason, judgement.factors)
        self.learning.count_from(chain, entry.until)
        counts.fits["candidate"] += 1
        counts.trials["began"] += 1
        counts.trials["superseded"] += superseded
        record = self._carried_out(begun, actor)
        return _fitted(entry, record.version, "", judgement.factors)

    def _drifted(self, change: AlarmChange) -> None:
        """Learns anew what has drifted, where covariances are estimated.

        There a trial runs nearly always, of a candidate that is much like what is active, and as
        wrong as that by now: no other would be fitted until it is over.
        """
        chain = self.learning.chains().get(change.alarm.slice)
        if change.why is not AlarmReason.RAISED or chain is None or not is_bare_chain(chain):
            return
        # Whoever listens too hears of the alarm all the same.
        fault = "what had drifted in slice %s is not learned anew"
        with contained(self.pipeline.counters, log, fault, chain[0]):
            self.learning.keep_since(chain, change.alarm.since_ns)
            names, reason = self.learning.names()[chain], "fitted on tracks from before the drift"
            found = self.learning.register.abandon(chain, names, reason)
            if found is not None:
                self.counters.trials["superseded"] += 1
                self._carried_out(found, "drift")

    def fit_failed(self, reason: str, slices: Sequence[TracksToFit], actor: str) -> Record:
        """Records that a fit came to nothing; the champion stays."""
        self.counters.fits["failed"] += len(slices)
        slice = slices[0].chain[0] if len(slices) == 1 else ""
        return self._record(Happened.FIT_FAILED, actor, reason, about=slice)

    def _carried_out(self, decision: Decision, actor: str) -> Record:
        selection = self._stepped(decision.chain, decision.dimensions, decision.recalibrator)
        if decision.what is Happened.PROMOTED:
            self.counters.trials["promoted"] += 1
        if decision.what is Happened.ROLLED_BACK and decision.keep is not None:
            # What is before would make another recalibrator of a fault that is over.
            self.learning.forget(decision.chain, decision.keep)
        if decision.what in SWAPS:
            return self._activate(selection, decision.what, actor, decision.reason, decision)
        if decision.what is Happened.BEGAN:
            before = self.recalibrators.on_trial.get(decision.slice, "")
            self._over(decision.slice)
            self._know(decision.slice, selection)
            self._forget({before})
        elif decision.what is Happened.DISCARDED:
            self._over(decision.slice, selection.version)
        return self._record(
            decision.what, actor, decision.reason, selection.version, about=decision
        )

    # ---- active

    def _active(self, kind: Kind) -> AnySelection:
        found = self.recalibrators
        return found.selection if kind is Selection else found.class_selection

    def _activate(
        self,
        selection: AnySelection,
        what: Happened,
        actor: str,
        reason: str,
        about: Decision | str = "",
    ) -> Record:
        """Makes a selection active.

        about  the decision that did it, or the slice that somebody named
        """
        kind: Kind = type(selection)
        earlier = self._active(kind)
        if selection.version == earlier.version:
            return self._record(Happened.HELD, actor, "active already", version=earlier.version)
        after = self.recalibrators.known.admit(selection, keep=self.recalibrators.needed)
        chain = self.learning.chains().get(_slice_of(about))
        if what is Happened.ROLLED_BACK and chain is not None:
            self._unwind(chain, earlier, after)
        self.pipeline.activate(after.version, follows=what is Happened.ADAPTED)
        self._note_before(kind, earlier.version, after.version, what)
        self._tell_register(earlier, after, what)
        self.counters.swaps[what] += 1
        self._renew()
        if kind is ClassSelection:
            about = about or CLASS_PROBABILITIES
        return self._record(what, actor, reason, after.version, earlier.version, about)

    def _note_before(self, kind: Kind, earlier: str, after: str, what: Happened) -> None:
        before = self.recalibrators.before[kind]
        if what is Happened.ADAPTED:
            # The same recalibrator has gone on: what it was before is nothing to roll back to.
            if earlier not in before and earlier not in self.recalibrators.sent:
                self.recalibrators.known.pop(earlier, None)
        elif what is Happened.ROLLED_BACK:
            while before and before[-1] == after:
                before.pop()
        elif earlier != after:
            before.append(earlier)
            del before[:-_MOST_BEFORE]

    def _unwind(self, chain: Chain, bad: AnySelection, good: AnySelection) -> None:
        """Removes what a slice was rolled back from, so that nothing goes back to it."""
        known, names = self.recalibrators.known, self.learning.names()[chain]
        before, served = self.recalibrators.before[type(good)], good.of(chain)
        for i, version in enumerate(before):
            earlier = known.get(version)
            if earlier is None or earlier.of(chain) != bad.of(chain):
                continue
            if isinstance(earlier, Selection) and isinstance(served, Recalibrator):
                made = stepped(earlier, names, chain, served, self.learning.slices.ranges)
                before[i] = known.admit(made, keep=self.recalibrators.needed).version
            else:
                before[i] = good.version

    def _tell_register(self, earlier: AnySelection, after: AnySelection, what: Happened) -> None:
        """Every slice that is served by another recalibrator now."""
        register = self.learning.register
        for chain, names in self.learning.names().items():
            old, new = earlier.applied_to(chain, names), after.of(chain)
            if old == new or what is Happened.ADAPTED or not self._same_kind(chain, after):
                continue
            tried = register.on_trial.get(chain[0])
            if tried is not None and tried.trial.recalibrator != new:
                self.counters.trials["superseded"] += 1
            before = self._earlier(chain, new) if what is Happened.ROLLED_BACK else old
            register.changed(chain, new, before)
            self.learning.count_from(chain)
        for slice in register.slices() - self.learning.chains().keys():
            # Of the last run, and no detection of it has come in this one.
            chain = (slice,)
            if self._same_kind(chain, after) and earlier.of(chain) != after.of(chain):
                register.changed(chain, after.of(chain), None)
        of = self.learning.class_kind
        if isinstance(after, ClassSelection) and of is not None and not after.fits(of.names):
            self.learning.learn_classes(None)

    def _same_kind(self, chain: Chain, selection: AnySelection) -> bool:
        return isinstance(selection, type(self.learning.selection(chain)))

    def _earlier(self, chain: Chain, now: AnyMethod) -> AnyMethod | None:
        """Finds what served a slice before, and was not rolled back from."""
        before = reversed(self.recalibrators.before[type(self.learning.selection(chain))])
        found = (self.recalibrators.known.get(version) for version in before)
        served = (one.of(chain) for one in found if one is not None)
        return next((one for one in served if one != now), None)

    # ---- records

    def _record(
        self,
        what: Happened,
        actor: str,
        reason: str,
        version: str = "",
        before: str = "",
        about: Decision | str = "",
    ) -> Record:
        decision = about if isinstance(about, Decision) else None
        slice = _slice_of(about)
        self.sequence += 1
        now = version if before else self.learning.selection((slice,)).version
        record = Record(
            sequence=self.sequence,
            time_ns=self.now_ns(),
            what=what,
            slice=slice,
            version=version,
            before=before or now,
            after=now,
            actor=actor,
            reason=reason,
            event_ns=self.learning.latest_ns,
            evidence=None if decision is None else decision.evidence,
            factors=() if decision is None else decision.factors,
        )
        self._records.append(record)
        about = slice or "all"
        log.info("%s %s %s: %s (%s)", what, about, version, reason, actor, extra={"of": about})
        self.pipeline.events.publish(record, record.time_ns)
        return record

    def remember(self, records: Sequence[Record], sequence: int) -> None:
        """Takes the records of earlier runs, in order; the next one has the number after."""
        self._records.extend(records)
        self.sequence = sequence

    def records(self, most: int) -> tuple[Record, ...]:
        """The latest, in order."""
        return tuple(self._records)[-most:] if most else ()

    def records_of(self, version: str) -> tuple[Record, ...]:
        """Lists all remembered records that name a version, in order."""
        return tuple(
            record
            for record in self._records
            if version in (record.version, record.before, record.after)
        )

    # ---- candidates: each is known as long as it is on trial, and no longer

    def trials(self) -> tuple[TrialStanding, ...]:
        """Lists all trials that run: of candidates, and guards."""
        register, settings = self.learning.register, self.learning.settings.trials
        self._renew_if_others()
        found = []
        for slice, entry in sorted(register.on_trial.items()):
            state = TrialState.PROVEN if entry.proven else TrialState.RUNNING
            evidence = entry.trial.evidence(settings)
            version = self.recalibrators.on_trial.get(slice, "")
            found.append(TrialStanding(slice, version, state, evidence, entry.factors))
        for slice, guard in sorted(register.guards.items()):
            evidence, version = guard.evidence(settings), self._guards.get(slice, "")
            found.append(TrialStanding(slice, version, TrialState.GUARD, evidence, ()))
        return tuple(found)

    def _decision_of(self, version: str) -> Decision | None:
        """To promote the candidate that is called so, or was; None where none is."""
        self._renew_if_others()
        now = {called: slice for slice, called in self.recalibrators.on_trial.items()}
        slice = now.get(version, "")
        if not slice and version not in self.recalibrators.whole:
            slice = self._called.get(version, "")
        entry = self.learning.register.on_trial.get(slice)
        chain = self.learning.chains().get(slice)
        if entry is None or chain is None:
            return None
        return Decision(
            Happened.PROMOTED,
            chain,
            self.learning.names()[chain],
            entry.trial.recalibrator,
            "approved" if entry.proven else "approved before it was proven",
            entry.trial.evidence(self.learning.settings.trials),
            entry.factors,
        )

    def _renew_if_others(self) -> None:
        """A track has made a guard of what served before, or a slice of the last run is there."""
        register, there = self.learning.register, self.learning.chains().keys()
        tried = there & register.on_trial.keys() <= self.recalibrators.on_trial.keys()
        if not (tried and there & register.guards.keys() <= self._guards.keys()):
            self._renew()

    def _renew(self) -> None:
        """Knows the candidates that are on trial beside the present champion, and no others."""
        register, versions = self.learning.register, self.recalibrators.on_trial
        before = set(versions.values())
        versions.clear()
        self._guards.clear()
        for chain, names in self.learning.names().items():
            slice = chain[0]
            if slice in register.on_trial:
                recalibrator = register.on_trial[slice].trial.recalibrator
                self._know(slice, self._stepped(chain, names, recalibrator))
            if slice in register.guards:
                recalibrator = register.guards[slice].recalibrator
                self._guards[slice] = self._stepped(chain, names, recalibrator).version
        self._called = {called: name for called, name in self._called.items() if name in versions}
        self._forget(before)

    def _over(self, slice: str, *versions: str) -> None:
        """Forgets a candidate under all its names; its trial may have begun in the last run."""
        self.recalibrators.on_trial.pop(slice, None)
        self._called = {called: name for called, name in self._called.items() if name != slice}
        self._forget({*versions})

    def _know(self, slice: str, selection: AnySelection) -> None:
        self.recalibrators.known.setdefault(selection.version, selection)
        self.recalibrators.on_trial[slice] = selection.version
        self._called[selection.version] = slice

    def _forget(self, versions: set[str]) -> None:
        """Forgets versions that are not needed, unless people have sent them."""
        for version in versions - self.recalibrators.needed - self.recalibrators.sent:
            self.recalibrators.known.pop(version, None)

    def _stepped(
        self, chain: Chain, names: tuple[str, ...], recalibrator: AnyMethod
    ) -> AnySelection:
        """Returns the active selection with another recalibrator in one slice, or of classes.

        names  of the dimensions, or of the classes
        """
        if isinstance(recalibrator, Recalibrator):
            champion, ranges = self.recalibrators.selection, self.learning.slices.ranges
            return stepped(champion, names, chain, recalibrator, ranges)
        active = self.recalibrators.class_selection
        before = map(self.recalibrators.known.get, self.recalibrators.before[ClassSelection])
        for one in (active, CLASS_IDENTITY, *before):
            # The way back leads to the very version that was left.
            if (
                isinstance(one, ClassSelection)
                and (one.recalibrator, one.rejection) == (recalibrator, active.rejection)
                and one.fits(names)
            ):
                return one
        return ClassSelection(names, recalibrator, active.rejection)


def _slice_of(about: Decision | str) -> str:
    return about if isinstance(about, str) else about.slice


def _fitted(
    entry: TracksToFit, version: str, reason: str, factors: tuple[Factor, ...] = ()
) -> SliceFitted:
    detections = sum(track.n for track in entry.tracks)
    return SliceFitted(entry.chain[0], version, reason, len(entry.tracks), detections, factors)
