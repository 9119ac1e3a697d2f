"""Takes the live state into a checkpoint, and goes on from one.

What the statistics do not say of themselves is kept with them as progress; the entries of the
ledger after the checkpoint are done again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from monitor.drift.state import FamilyState, family_state, restored_family
from monitor.frames.counters import TruthAccount
from monitor.frames.space import Space
from monitor.frames.stored import SliceKey, StoredFrame
from monitor.matching.pending import Dropped, LabelRecord, PendingFrame
from monitor.pipeline.accounts import account_from_counts
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.labelled_rows import EntryParts, MatchedCounting
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.streams import EventTime, Stream
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Record
from monitor.recalibration.classes.class_selection import AnySelection, ClassSelection
from monitor.recalibration.selection import Selection
from monitor.statistics.observations import finished
from monitor.store.ledger.entries import Entry, FrameEntry, Kept, LabelEntry
from monitor.store.ledger.journal import Journal, Opened
from monitor.store.progress import KeptClusters, KeptStream, Progress, Share
from monitor.store.recalibrator_documents import ConfiguredVersions, RegisterState
from monitor.store.state_definitions import InvalidState

log = logging.getLogger(__name__)

# Detections that wait, by partition, among the counts of progress.
IN_PARTITION = "waiting_in_"
_PARTITION = re.compile(r"-?[0-9]{1,19}")

# The first entry of the ledger that is in the account, among the same.
_BEGINS = "account_begins"

# Entries done again between two looks at what they left to be done.
_ENTRIES = 64
_SHARES = ("predicted", "labelled", "gated", "near_gate")

# Numbers of the ledger that are left out where it is not known which were given.
_BEYOND = 1 << 32


def _frame_again(ledger: TruthLedger, entry: FrameEntry, parts: EntryParts) -> PendingFrame:
    frame, inline, fates = ledger.places.placed(entry), entry.inline, ledger.fates
    if parts.statistics:
        frame.kept = True
        if ledger.counting.live.see(entry.frame.stamp_ns):
            ledger.counting.drift.begin_anew()
        if inline is not None:
            _come_to(ledger.counting, inline)
        ledger.epoch = max(ledger.epoch, entry.frame.epoch)
        fates.came(frame)
    if inline is not None:
        ledger.counting.count(frame, inline, entry.sequence, parts)
    if parts.statistics:
        if inline is not None:
            fates.came_with(frame, inline)
            ledger.counting.counters.truth.add(inline.account)
        fates.hold(frame, wanted=True)
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


class Disk(Protocol):
    """Reads the ledger at start."""

    def replay(self, after: int) -> Iterable[Entry]:
        """Yields all entries after one, in order."""
        ...

    def look_up(
        self, stream: str, frame_id: int, partition: int | None, before: int = 0
    ) -> Kept | None:
        """A frame, with the labels of it that came before an entry."""
        ...


def begin_ledger(ledger: TruthLedger, journal: Journal, opened: Opened) -> None:
    """Lets a ledger begin with what its disk has, after the last checkpoint was loaded.

    Detections that wait in partitions which have gone since the checkpoint are dropped.
    """
    ledger.sequence = max(ledger.sequence, opened.sequence)
    if opened.uncertain:
        # What could not be read has numbers too, which must not be given again.
        ledger.sequence += _BEYOND
    for partition in sorted(set(ledger.fates.waiting) - set(opened.partitions)):
        why = opened.dropped.get(partition)
        if why is None:
            # It may have gone as it should, after the checkpoint.
            why = journal.missing(partition, ledger.partition_of(None))
            log.warning(
                "pending: partition %d is not there, or empty (%s): what waited in it, %d "
                "detections, is not known any more",
                *(partition, why, ledger.fates.waiting[partition]),
            )
        ledger.dropped(partition, why)
    for frame in opened.frames:
        ledger.known(frame.stream, frame.frame_id, frame.stamp_ns, frame.partition)


def progress_of(pipeline: Pipeline) -> Progress:
    """Takes the progress as of now, but clusters as of the rows that are folded."""
    ledger, live = pipeline.ledger, pipeline.live
    clock, waiting = live.clock, +ledger.fates.waiting
    return Progress(
        sequence=ledger.sequence,
        now_ns=clock.now_ns,
        votes=clock.votes,
        other_ns=clock.other_ns,
        jumps=clock.jumps,
        generation=live.generation,
        streams=tuple(
            KeptStream(s.header, s.number, s.time.watermark_ns, s.time.latest_ns)
            for s in pipeline.streams.values()
        ),
        numbered=pipeline.numbered,
        detections=ledger.fates.account.counts()
        | {f"{IN_PARTITION}{number}": count for number, count in waiting.items()}
        | {_BEGINS: ledger.begins},
        labels=asdict(pipeline.counters.truth),
        shares=tuple(
            Share(
                entry.space,
                SliceKey(entry.key, entry.overflow),
                *(ledger.fates.shares.of(name, index) for name in _SHARES),
            )
            for index, entry in enumerate(live.slices.slices)
        ),
        epoch=ledger.epoch,
        waiting=ledger.fates.pending,
    )


def check_progress(progress: Progress) -> None:
    """Raises InvalidState where progress cannot be restored."""
    for name, count in progress.detections.items():
        if name.startswith(IN_PARTITION):
            number = name.removeprefix(IN_PARTITION)
            if not _PARTITION.fullmatch(number) or count < 0:
                raise InvalidState(
                    f"progress.detections: '{name}' is {count}, where a partition and how many "
                    "wait in it belong. The state is damaged or forged."
                )


def with_clusters(progress: Progress, pipeline: Pipeline) -> Progress:
    """The tracks of all rows that are folded by now."""
    clusters = pipeline.live.accumulator.clusters()
    return replace(
        progress, clusters=tuple(KeptClusters(space, state) for space, state in clusters.items())
    )


def restore_progress(pipeline: Pipeline, progress: Progress) -> None:
    """Into a pipeline that has the statistics already, and has seen nothing yet."""
    ledger, live = pipeline.ledger, pipeline.live
    ledger.sequence = max(ledger.sequence, progress.sequence)
    ledger.begins = progress.detections.get(_BEGINS, 0)
    ledger.epoch, live.generation = progress.epoch, progress.generation
    clock = live.clock
    # The panes may have moved on farther while they were read; what was then seen is seen again.
    clock.now_ns, clock.votes = progress.now_ns, progress.votes
    clock.other_ns, clock.jumps = progress.other_ns, progress.jumps
    live.accumulator.restore_clusters({kept.space: kept.state for kept in progress.clusters})
    pipeline.numbered = max(pipeline.numbered, progress.numbered)
    for kept in progress.streams:
        time = EventTime(kept.watermark_ns, kept.latest_ns)
        pipeline.restore_stream(kept.header, kept.number, time)
    ledger.fates.account = account_from_counts(progress.detections)
    for name, count in progress.labels.items():
        if name in TruthAccount.__dataclass_fields__:
            setattr(pipeline.counters.truth, name, count)
    for name, count in progress.detections.items():
        if name.startswith(IN_PARTITION):
            ledger.fates.waiting[int(name.removeprefix(IN_PARTITION))] = count
    in_memory = progress.waiting - sum(ledger.fates.waiting.values())
    ledger.fates.account.drop(Dropped.RESTART, max(0, in_memory))
    for share in progress.shares:
        space = Space(share.space.dimensions, share.space.angles_in_joint)
        index = live.slices.place(space, share.key.name, overflow=share.key.overflow)
        for name in _SHARES:
            ledger.fates.shares.put(name, index, getattr(share, name))


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


@dataclass(frozen=True, slots=True)
class Register:
    """Holds what the last run left of recalibrators.

    state      None where there is nothing that could be used
    documents  recalibrators by version, the oldest first; those that the state names among them
    records    the latest, in order
    """

    state: RegisterState | None
    documents: Mapping[str, AnySelection]
    records: Sequence[Record]


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


def restore_register(promotions: Promotions, named: Mapping[str, str], found: Register) -> set[str]:
    """Makes active what was so in the last run, and goes on with its trials.

    returns  the kinds of recalibrators, by key of the configuration, that are as they were; others
             are named anew by the configuration
    """
    recalibrators, state = promotions.recalibrators, found.state
    keep = recalibrators.needed.union(named.values(), state.named if state else ())
    # Where no state says who needs what is there, people may.
    sent = found.documents if state is None else state.sent
    for version, selection in found.documents.items():
        if version in keep or version in sent:
            recalibrators.known.admit(selection, keep=keep)
        if version in sent:
            recalibrators.admit(selection.to_json(), selection)
    sequence = max((record.sequence for record in found.records), default=0)
    promotions.remember(found.records, max(sequence, 0 if state is None else state.sequence))
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

    statistics, drift, learning  the last entry that each has already
    entries, failed              how many were done again, and how many could not be
    """

    pipeline: Pipeline
    statistics: int = 0
    drift: int = 0
    learning: int = 0
    entries: int = 0
    failed: int = 0

    def run(self, disk: Disk, statistics: int, drift: int, learning: int) -> None:
        """Does all entries again that one of the three lacks; a fault costs its entry alone."""
        self.statistics, self.drift, self.learning = statistics, drift, learning
        for entry in disk.replay(min(self.statistics, self.drift, self.learning)):
            counters, done, number = self.pipeline.counters, False, entry.sequence
            with contained(counters, log, "entry %d of the ledger was not done again", number):
                done = self._again(entry, disk)
            self.entries += 1
            self.failed += not done
            if self.entries % _ENTRIES == 0:
                self._catch_up()
        self._catch_up()
        if self.entries:
            log.info("ledger: %d entries done again, %d not", self.entries, self.failed)

    def _again(self, entry: Entry, disk: Disk) -> bool:
        """Does an entry again that some parts do not have yet; says whether that was possible."""
        parts, ledger = self._parts(entry.sequence), self.pipeline.ledger
        if isinstance(entry, FrameEntry):
            stamp_ns = entry.frame.stamp_ns
            stream = self._stream_of(entry.frame, now=parts.statistics)
            if parts.statistics and stamp_ns is not None and stream is not None:
                stream.time.advance(stamp_ns, self.pipeline.disorder_ns)
        ledger.sequence = max(ledger.sequence, entry.sequence)
        if isinstance(entry, FrameEntry):
            _frame_again(ledger, entry, parts)
            return True
        key = entry.stream, entry.frame_id
        frame = ledger.fates.store.get(key) if parts.statistics else None
        if frame is None or frame.released or _is_of_another(entry, frame):
            kept = disk.look_up(*key, entry.partition, entry.sequence)
            if kept is None:
                return False
            self._stream_of(kept.entry.frame, now=False)
            frame = self._found(kept) if parts.statistics else ledger.places.placed(kept.entry)
        if not parts.statistics:
            ledger.counting.count(frame, entry.record, entry.sequence, parts)
            return True
        _come_to(ledger.counting, entry.record)
        ledger.tell(frame, entry.record, entry.sequence, parts)
        ledger.counting.counters.truth.add(entry.record.account)
        return True

    def _found(self, kept: Kept) -> PendingFrame:
        """The frame of labels that are told again."""
        ledger, entered = self.pipeline.ledger, -kept.entry.sequence
        if entered < 0 or kept.labels:
            return ledger.restore(kept)
        # It goes to the disk with the first of its labels: until then memory alone had it.
        if entered > self.statistics:
            again = replace(kept.entry, sequence=entered)
            return _frame_again(ledger, again, self._parts(entered))
        return ledger.restore(kept, lost=True)

    def _parts(self, sequence: int) -> EntryParts:
        """Returns the parts that an entry is new to."""
        return EntryParts(
            statistics=sequence > self.statistics,
            drift=sequence > self.drift,
            learning=sequence > self.learning,
        )

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
