"""Takes the live state for a checkpoint, and goes on from one.

The entries of the ledger after the checkpoint are done again.

These are clocks, streams, tracks that go on, and the account of detections and labels. A checkpoint
holds them, so that a restarted sidecar goes on as if it had never stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import numpy as np

from monitor.drift.family import FamilyState, family_state, restored_family
from monitor.frames.frame import Header, SliceKey, StoredFrame
from monitor.frames.marks import ArrayForm, Count, Nanoseconds
from monitor.frames.slices import CLASS_PROBABILITIES
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.frames.status import TruthAccount
from monitor.matching.objects import LabelRecord
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.learning import CLASS_CHAIN
from monitor.pipeline.pending import SHARES, Dropped, PendingFrame
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.streams import EventTime, Stream
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Record
from monitor.recalibration.selection import AnySelection, ClassSelection, Selection
from monitor.statistics.clusters import ALONE, ClusterArray, ClusterState
from monitor.statistics.observations import finished
from monitor.store.documents import Codec, ConfiguredVersions, RegisterState
from monitor.store.entries import Entry, FrameEntry, Kept, LabelEntry
from monitor.store.journal import Journal
from monitor.store.ledger import Opened

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class OpenTracks:
    """The tracks of one space that may go on; fields as in ClusterState.

    sums  (A · C,) axis by axis
    """

    space: Space
    counted: Count
    ids: Annotated[ClusterArray, ArrayForm(np.uint64, (None,))]
    last: Annotated[IntArray, ArrayForm(np.int64, (None,), 0)]
    rows: Annotated[FloatArray, ArrayForm(np.float64, (None,), 0.0)]
    sums: Annotated[FloatArray, ArrayForm(np.float64, (None,))]

    def __post_init__(self) -> None:
        n = self.ids.size
        if (self.ids == ALONE).any() or (self.ids[1:] <= self.ids[:-1]).any():
            raise ValueError("'ids' do not ascend above 0")
        if (self.last.size, self.rows.size, self.sums.size) != (n, n, n * self.axes):
            raise ValueError(f"'last', 'rows' and 'sums' are not of {n} tracks")
        if self.last.max(initial=-1) >= self.counted:
            raise ValueError(f"'last' are not all within the {self.counted} rows counted")

    @property
    def axes(self) -> int:
        """Counts the axes of the space, A."""
        return 2 * (self.space.k + 1)

    @property
    def clusters(self) -> ClusterState:
        """Returns them as the statistics take them."""
        sums = self.sums.reshape(self.axes, -1)
        return ClusterState(self.axes, self.counted, self.ids, self.last, self.rows, sums)


@dataclass(frozen=True, slots=True)
class KnownStream:
    """Holds what is known of a stream.

    number                   tells its tracks from those of others
    watermark_ns, latest_ns  as in EventTime
    """

    header: Header
    number: Count
    watermark_ns: Nanoseconds | None = None
    latest_ns: Nanoseconds | None = None


@dataclass(frozen=True, slots=True)
class SliceShare:
    """Detections of one slice by what became of them; counts as in SliceShares.

    chain  names by which the slice has recalibrators, as in SliceTable
    """

    space: Space
    key: SliceKey
    chain: tuple[str, ...] = ()
    predicted: int = 0
    labelled: int = 0
    gated: int = 0
    near_gate: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class RunState:
    """Holds what decides how the next frame is counted.

    sequence    of the last entry of the ledger; 0: of none
    now_ns, votes, other_ns, jumps
                of the EventClock
    generation  how often event time had begun anew
    numbered    streams numbered so far
    epoch       of the wall clock
    begins      the first entry of the ledger that is in the account
    in_memory   detections that waited in memory alone
    on_disk     detections that wait in the ledger, by partition
    account     detections by what became of them
    labels      by what became of them
    """

    sequence: Count
    now_ns: Nanoseconds | None = None
    votes: Count = 0
    other_ns: Nanoseconds = 0
    jumps: Count = 0
    generation: Count = 0
    numbered: Count = 0
    epoch: Count = 0
    begins: Count = 0
    in_memory: Count = 0
    on_disk: tuple[tuple[int, Count], ...] = ()
    account: Mapping[str, int] = field(default_factory=dict)
    labels: TruthAccount = field(default_factory=TruthAccount)
    streams: tuple[KnownStream, ...] = ()
    shares: tuple[SliceShare, ...] = ()
    tracks: tuple[OpenTracks, ...] = ()


RUN_STATE = Codec(
    RunState,
    "run",
    "Use a file that this monitor wrote, or remove it: all is then counted anew.",
    "calibration-monitor/run/1",
)


def run_state_of(pipeline: Pipeline) -> RunState:
    """Returns the state of a pipeline as of now, but for the tracks that go on."""
    ledger, live = pipeline.ledger, pipeline.live
    clock, fates = live.clock, ledger.fates
    return RunState(
        sequence=ledger.sequence,
        now_ns=clock.now_ns,
        votes=clock.votes,
        other_ns=clock.other_ns,
        jumps=clock.jumps,
        generation=live.generation,
        numbered=pipeline.numbered,
        epoch=ledger.epoch,
        begins=ledger.begins,
        in_memory=fates.store.unkept,
        on_disk=tuple((+fates.waiting).items()),
        account=dict(fates.account),
        labels=replace(pipeline.counters.truth),
        streams=tuple(
            KnownStream(
                # What its connection asks for is asked for anew.
                Header(
                    s.header.stream, s.header.space, s.header.classes, s.header.coordinate_frame
                ),
                *(s.number, s.time.watermark_ns, s.time.latest_ns),
            )
            for s in pipeline.streams.values()
        ),
        shares=tuple(
            SliceShare(
                entry.space,
                SliceKey(entry.key, entry.overflow, entry.space.assumed),
                live.slices.chains[index],
                *(fates.shares.of(name, index) for name in SHARES),
            )
            for index, entry in enumerate(live.slices.slices)
        ),
    )


def with_tracks(state: RunState, pipeline: Pipeline) -> RunState:
    """Adds the tracks that go on, as of all rows that are folded by now."""
    clusters = pipeline.live.accumulator.clusters()
    return replace(
        state,
        tracks=tuple(
            OpenTracks(space, one.counted, one.ids, one.last, one.rows, one.sums.ravel())
            for space, one in clusters.items()
        ),
    )


def restore_run(pipeline: Pipeline, state: RunState) -> None:
    """Goes on in a pipeline that has the statistics already, and has seen nothing yet."""
    ledger, live = pipeline.ledger, pipeline.live
    ledger.sequence, ledger.begins = max(ledger.sequence, state.sequence), state.begins
    ledger.epoch, live.generation = state.epoch, state.generation
    clock, fates = live.clock, ledger.fates
    # The panes may have moved on farther while they were read; what was then seen is seen again.
    clock.now_ns, clock.votes = state.now_ns, state.votes
    clock.other_ns, clock.jumps = state.other_ns, state.jumps
    live.accumulator.restore_clusters({one.space: one.clusters for one in state.tracks})
    pipeline.numbered = max(pipeline.numbered, state.numbered)
    for stream in state.streams:
        time = EventTime(stream.watermark_ns, stream.latest_ns)
        pipeline.restore_stream(stream.header, stream.number, time)
    for name in fates.account:
        fates.account[name] = state.account.get(name, 0)
    for name, count in asdict(state.labels).items():
        setattr(pipeline.counters.truth, name, count)
    fates.waiting.update(dict(state.on_disk))
    fates.account[f"dropped_{Dropped.RESTART}"] += state.in_memory
    for share in state.shares:
        index = live.slices.place(share.space, share.key.name, overflow=share.key.overflow)
        live.slices.chains[index] = share.chain
        for name in SHARES:
            fates.shares.add(name, np.full(1, index), getattr(share, name))


# Entries done again between two looks at what they left to be done.
_ENTRIES = 64


def _frame_again(ledger: TruthLedger, entry: FrameEntry) -> PendingFrame:
    frame, inline, fates = ledger.places.placed(entry), entry.inline, ledger.fates
    frame.kept = True
    if ledger.live.see(entry.frame.stamp_ns):
        ledger.drift.begin_anew()
    ledger.epoch = max(ledger.epoch, entry.frame.epoch)
    if inline is not None:
        _come_to(ledger, inline)
        ledger.count(frame, inline)
        ledger.counters.truth.add(inline.account)
    fates.came(frame, inline, wanted=True)
    return frame


def _come_to(ledger: TruthLedger, record: LabelRecord) -> None:
    """Sets event time to what it was for a record: frames that moved it need not be kept."""
    if ledger.live.come_to(record.generation, record.clock_ns):
        ledger.drift.begin_anew()


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
    state = family_state(watch.family, pipeline.recalibrators.versions)
    if watch.classes_since:
        begins[CLASS_PROBABILITIES] = watch.classes_since
    return replace(state, numbers=numbers, begins=begins)


def restore_drift(pipeline: Pipeline, state: FamilyState) -> None:
    """Goes on with evidence and alarms, once the active recalibrator is known."""
    watch = pipeline.drift
    given, selection = watch.family.usual.given, pipeline.recalibrators.versions
    if state.gathered.selection == selection:
        watch.classes_since = state.begins.get(CLASS_PROBABILITIES, 0)
    else:
        watch.classes_since = pipeline.ledger.sequence
    watch.epochs.restore(state.numbers, state.begins, watch.slices.names)
    family, changes = restored_family(state, watch.settings, given, selection)
    watch.go_on(family)
    for change in changes:
        watch.announce(change)


def register_of(promotions: Promotions, named: Mapping[str, str]) -> RegisterState:
    """Takes what is active and on trial as of now.

    named  versions that the configuration names, by its key
    """
    register, recalibrators = promotions.learning.register, promotions.recalibrators
    before, kind = recalibrators.before, promotions.learning.class_kind
    if CLASS_CHAIN[0] not in register.slices():
        kind = None  # the next run may learn from other classes
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
        classes=kind,
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
    # Without a register it is unknown which documents people have sent: all count as sent.
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

    def goes_on(slice: str) -> bool:
        of_classes = slice == CLASS_CHAIN[0]
        return ("class_recalibrator" if of_classes else "recalibrator") in restored

    trials = {entry.trial.slice: entry for entry in state.trials}
    guards = {guard.slice: guard for guard in state.guards}
    befores = {before.slice: before for before in state.befores}
    register.spent.update({name: spent for name, spent in state.spent.items() if goes_on(name)})
    register.on_trial.update({name: one for name, one in trials.items() if goes_on(name)})
    register.guards.update({name: one for name, one in guards.items() if goes_on(name)})
    register.befores.update({name: one for name, one in befores.items() if goes_on(name)})
    register.followers.update({name: one for name, one in state.followers.items() if goes_on(name)})
    kind = state.classes
    if goes_on(CLASS_CHAIN[0]) and kind and recalibrators.class_selection.fits(kind.names):
        promotions.learning.learn_classes(kind)
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
        _come_to(ledger, entry.record)
        ledger.tell(frame, entry.record, entry.sequence)
        ledger.counters.truth.add(entry.record.account)
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
        stream.slices.of(frame.class_index, frame.sent.mean, frame.assumed)
        return stream

    def _catch_up(self) -> None:
        finished(self.pipeline.drift.catch_up())
        while self.pipeline.live.behind:
            self.pipeline.live.fold_some()
