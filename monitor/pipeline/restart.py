"""Takes the live state for a checkpoint, and goes on from one.

The entries of the ledger after the checkpoint are done again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.drift.state import FamilyState, family_state, restored_family
from monitor.frames.stored import StoredFrame
from monitor.matching.record import LabelRecord
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.labelled_rows import MatchedCounting
from monitor.pipeline.pending import PendingFrame
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.streams import EventTime, Stream
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Record
from monitor.recalibration.classes.class_selection import AnySelection, ClassSelection
from monitor.recalibration.selection import Selection
from monitor.statistics.observations import finished
from monitor.store.entries import Entry, FrameEntry, Kept, LabelEntry
from monitor.store.journal import Journal
from monitor.store.ledger import Opened
from monitor.store.recalibrator_documents import ConfiguredVersions, RegisterState

log = logging.getLogger(__name__)

# Entries done again between two looks at what they left to be done.
_ENTRIES = 64


def _frame_again(ledger: TruthLedger, entry: FrameEntry) -> PendingFrame:
    frame, inline, fates = ledger.places.placed(entry), entry.inline, ledger.fates
    frame.kept = True
    if ledger.counting.live.see(entry.frame.stamp_ns):
        ledger.counting.drift.begin_anew()
    if inline is not None:
        _come_to(ledger.counting, inline)
    ledger.epoch = max(ledger.epoch, entry.frame.epoch)
    if inline is not None:
        ledger.counting.count(frame, inline)
        ledger.counting.counters.truth.add(inline.account)
    fates.came(frame, inline, wanted=True)
    return frame


def _come_to(counting: MatchedCounting, record: LabelRecord) -> None:
    """Sets event time to what it was for a record: frames that moved it need not be kept."""
    if counting.live.come_to(record.generation, record.clock_ns):
        counting.drift.begin_anew()


def _is_of_another(entry: LabelEntry, frame: PendingFrame) -> bool:
    """Says whether labels are of another frame with the number of this one."""
    brought = entry.frame
    if brought is not None and abs(brought.sequence) != abs(frame.sequence):
        return True
    return entry.partition != frame.partition


def begin_ledger(ledger: TruthLedger, journal: Journal, opened: Opened) -> None:
    """Lets a ledger begin with what its disk has, after the last checkpoint was loaded.

    Detections that wait in partitions which have gone since the checkpoint are dropped.
    """
    covered = ledger.sequence
    ledger.sequence = max(ledger.sequence, opened.sequence)
    for partition in sorted(ledger.fates.waiting):
        gone = opened.dropped.get(partition)
        if partition in opened.partitions and (gone is None or gone.sequence < covered):
            continue
        why = opened.unknown if gone is None else gone.reason
        journal.drops[why] += 1
        log.warning(
            "pending: partition %d is not there (%s): what waited in it, %d detections, is not "
            "known any more",
            *(partition, why, ledger.fates.waiting[partition]),
        )
        ledger.dropped(partition, why)
    for frame in opened.frames:
        ledger.known(*frame)


def drift_of(pipeline: Pipeline) -> FamilyState:
    """Takes evidence, references and alarms as of now, but for what is being learned."""
    watch = pipeline.drift
    numbers, begins = watch.epochs.state(watch.slices.names)
    state = family_state(watch.family, pipeline.recalibrators.selection.version)
    return replace(state, numbers=numbers, begins=begins)


def restore_drift(pipeline: Pipeline, state: FamilyState) -> None:
    """Goes on with evidence and alarms, once the active recalibrator is known."""
    watch = pipeline.drift
    known, selection = watch.family, pipeline.recalibrators.selection.version
    watch.epochs.restore(state.numbers, state.begins, watch.slices.names)
    family, changes = restored_family(state, watch.settings, known.usual.given, selection)
    for name, k in zip(known.names, known.degrees, strict=True):
        family.grow(name, k)
    watch.family = family
    for change in changes:
        watch.announce(change)


def register_of(promotions: Promotions, named: Mapping[str, str]) -> RegisterState:
    """Takes what is active and on trial as of now.

    named  versions that the configuration names, by its key
    """
    register, recalibrators = promotions.learning.register, promotions.recalibrators
    before = recalibrators.before
    return RegisterState(
        selection=recalibrators.selection.version,
        class_selection=recalibrators.class_selection.version,
        previous=tuple(before[Selection]),
        class_previous=tuple(before[ClassSelection]),
        sent=tuple(sorted(recalibrators.sent)),
        configured=ConfiguredVersions(**named),
        pinned=register.pinned,
        sequence=promotions.sequence,
        spent=dict(register.spent),
        trials=tuple(register.on_trial.values()),
        guards=tuple(register.guards.values()),
        befores=tuple(register.befores.values()),
        followers=dict(register.followers),
    )


def restore_register(
    promotions: Promotions,
    named: Mapping[str, str],
    state: RegisterState | None,
    documents: Mapping[str, AnySelection],
    records: Sequence[Record],
) -> set[str]:
    """Makes active what was so in the last run, and goes on with its trials.

    state      None where there is nothing that could be used
    documents  recalibrators by version, the oldest first; those that the state names among them
    records    the latest, in order

    returns  the kinds of recalibrators, by key of the configuration, that are as they were; others
             are named anew by the configuration
    """
    recalibrators = promotions.recalibrators
    keep = recalibrators.needed.union(named.values(), state.named if state else ())
    # Without a register nobody knows which documents people have sent: all count as sent.
    sent = documents if state is None else state.sent
    for version, selection in documents.items():
        if version in keep or version in sent:
            recalibrators.known.admit(selection, keep=keep)
        if version in sent:
            recalibrators.admit(selection.to_json(), selection)
    sequence = max((record.sequence for record in records), default=0)
    promotions.remember(records, max(sequence, 0 if state is None else state.sequence))
    if state is None:
        return set()
    before = recalibrators.before
    before[Selection][:], before[ClassSelection][:] = state.previous, state.class_previous
    restored = set()
    active = {"recalibrator": state.selection, "class_recalibrator": state.class_selection}
    for key, version in active.items():
        if version not in recalibrators.known:
            continue
        promotions.pipeline.activate(version)
        if named[key] in ("", getattr(state.configured, key)):
            restored.add(key)
    register = promotions.learning.register
    register.pinned = state.pinned
    if "recalibrator" in restored:
        register.spent.update(state.spent)
        register.on_trial.update({entry.trial.slice: entry for entry in state.trials})
        register.guards.update({guard.slice: guard for guard in state.guards})
        register.befores.update({before.slice: before for before in state.befores})
        register.followers.update(state.followers)
    return restored


@dataclass(slots=True)
class Resumption:
    """Does entries of the ledger again.

    entries, failed  how many were done again, and how many could not be
    """

    pipeline: Pipeline
    entries: int = 0
    failed: int = 0

    def run(self, disk: Journal, after: int) -> None:
        """Does all entries after one again; a fault costs its entry alone."""
        for entry in disk.replay(after):
            counters, done, number = self.pipeline.counters, False, entry.sequence
            with contained(counters, log, "entry %d of the ledger was not done again", number):
                done = self._again(entry, disk, after)
            self.entries += 1
            self.failed += not done
            if self.entries % _ENTRIES == 0:
                self._catch_up()
        self._catch_up()
        if self.entries:
            log.info(
                "ledger: %d entries done again, %d not", self.entries - self.failed, self.failed
            )

    def _again(self, entry: Entry, disk: Journal, after: int) -> bool:
        """Does an entry again; says whether that was possible."""
        ledger = self.pipeline.ledger
        ledger.sequence = max(ledger.sequence, entry.sequence)
        if isinstance(entry, FrameEntry):
            stamp_ns, stream = entry.frame.stamp_ns, self._stream_of(entry.frame, now=True)
            if stamp_ns is not None and stream is not None:
                stream.time.advance(stamp_ns, self.pipeline.disorder_ns)
            _frame_again(ledger, entry)
            return True
        key = entry.stream, entry.frame_id
        frame = ledger.fates.store.get(key)
        if frame is None or frame.released or _is_of_another(entry, frame):
            kept = disk.look_up(*key, entry.partition, entry.sequence)
            if kept is None:
                return False
            self._stream_of(kept.entry.frame, now=False)
            frame = self._found(kept, after)
        _come_to(ledger.counting, entry.record)
        ledger.tell(frame, entry.record, entry.sequence)
        ledger.counting.counters.truth.add(entry.record.account)
        return True

    def _found(self, kept: Kept, after: int) -> PendingFrame:
        """Returns the frame of labels that are told again."""
        ledger, entered = self.pipeline.ledger, -kept.entry.sequence
        if entered < 0 or kept.labels:
            return ledger.restore(kept)
        # It goes to the disk with the first of its labels: until then memory alone had it.
        if entered > after:
            return _frame_again(ledger, replace(kept.entry, sequence=entered))
        return ledger.restore(kept, lost=True)

    def _stream_of(self, frame: StoredFrame, *, now: bool) -> Stream | None:
        """The stream that a frame came on; None where there is no room for it.

        now  it is as the frame has it: with another header it begins anew
        """
        pipeline, header = self.pipeline, frame.header
        known, ours = pipeline.streams.get(header.stream), pipeline.as_here(header)
        if known is not None and now and known.header != ours:
            del pipeline.streams[header.stream]
        pipeline.restore_stream(header, frame.source, EventTime())
        pipeline.numbered = max(pipeline.numbered, frame.source)
        stream = pipeline.streams.get(header.stream)
        if stream is None or stream.header != ours:
            return None
        # The slices are known by now, but not in which wider ones they lie.
        stream.slices.of(frame.class_index, frame.sent.mean)
        return stream

    def _catch_up(self) -> None:
        finished(self.pipeline.drift.catch_up())
        while self.pipeline.live.behind:
            self.pipeline.live.fold_some()
