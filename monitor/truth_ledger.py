"""What labels tell of frames, entered once: frames in waiting, labels with their revisions, and
what was counted for each, so that it can be taken back, and done again after a crash.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from monitor.accounts import DetectionAccount, Dropped, SliceShares
from monitor.calibration.class_matched import Opinions
from monitor.calibration.class_slices import ClassSliceTable
from monitor.calibration.detections import Limits, Reason
from monitor.calibration.notices import Notice
from monitor.calibration.slices import SliceTable
from monitor.calibration.space import BoolArray, IntArray, Space
from monitor.config import Config
from monitor.counters import Counters, TruthAccount
from monitor.counting import ALL, Counting, Parts
from monitor.frames import ReceivedObjects, ReceivedTruth, TruthAnswer
from monitor.label_matching import LabelsMatched, labels_told, matched_labels
from monitor.ledger import Entry, FrameEntry, GateVerdict, Kept, LabelEntry, LabelRecord, Outcome
from monitor.matching import orphan_notice
from monitor.pending import FrameKey, Gone, PendingFrame, PendingStore
from monitor.stored_frame import StoredFrame
from monitor.streams import Stream

K = TypeVar("K")

# Of what has just happened, so much is remembered: a Search takes no longer.
_RECENT = 4096


# Pairs of an object and a detection, and values of the objects' covariances, that are too many to
# be gone through between two frames: some milliseconds.
HEAVY = 40_000

JOURNAL_FULL = Notice(
    Reason.OVERLOAD,
    "truth",
    "the disk has taken no labels for long, and no more can wait for it: send them again later.",
)


OTHER_FRAME = Notice(
    Reason.GROUND_TRUTH_INVALID,
    "stamp_ns",
    "the frame of this number has another stamp: it is not the one that is labelled.",
)


class Journal(Protocol):
    """Where entries are kept."""

    @property
    def full(self) -> bool:
        """Whether labels cannot be taken."""
        ...

    def note(self, entry: Entry) -> bool:
        """Have an entry written, soon; whether it will be."""
        ...


@dataclass(frozen=True, slots=True)
class NoJournal:
    """Nothing is kept."""

    full: bool = False

    def note(self, entry: Entry) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class Search:
    """Labels of a frame that memory does not hold, and the disk may.

    partition  None where it is not known
    """

    stream: str
    frame_id: int
    partition: int | None


@dataclass(slots=True)
class Ahead:
    """Labels of a frame matched ahead of their report.

    frame            a copy: what the loop does to its own meanwhile does not reach it
    resolved, again  as matched_labels has them
    work             does it; the result is `matched`
    """

    frame: PendingFrame
    resolved: BoolArray
    again: bool
    work: Callable[[], LabelsMatched]
    matched: LabelsMatched | None = None

    def run(self) -> None:
        """Do it: on any thread, once."""
        self.matched = self.work()

    def still(self, frame: PendingFrame, resolved: BoolArray, again: bool) -> LabelsMatched | None:
        """What came of it, if matching the frame now would come to the same."""
        ours = self.frame
        same = (
            abs(frame.sequence) == abs(ours.sequence)
            and frame.stored.stamp_ns == ours.stored.stamp_ns
            and frame.released == ours.released
            and again == self.again
            and np.array_equal(resolved, self.resolved)
        )
        return self.matched if same else None


@dataclass(slots=True)
class TruthLedger:
    """Of one pipeline.

    sequence  of the last entry
    waiting   detections that wait in frames which the disk has, by partition
    on_disk   whether anything is kept
    epoch     of the wall clock
    resumed   the last entry that was in what the process began with; 0: it began with nothing
    """

    config: Config
    limits: Limits
    counting: Counting
    counters: Counters
    streams: Mapping[str, Stream]
    class_slices: ClassSliceTable
    journal: Journal = field(default_factory=NoJournal)
    account: DetectionAccount = field(default_factory=DetectionAccount)
    shares: SliceShares = field(default_factory=SliceShares)
    store: PendingStore = field(init=False)
    sequence: int = 0
    waiting: Counter[int] = field(default_factory=Counter)
    on_disk: bool = False
    epoch: int = 0
    resumed: int = 0
    # Sequence of the last labels of frames that were told of.
    _told: OrderedDict[FrameKey, int] = field(default_factory=OrderedDict)
    # Sequence of the last entry when a partition was dropped.
    _lost: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.store = PendingStore(self.config.pending.max_bytes)

    @property
    def slices(self) -> SliceTable:
        """Of the statistics."""
        return self.counting.slices

    @property
    def pending(self) -> int:
        """Detections that wait, on disk or in memory."""
        return self.store.unkept + sum(self.waiting.values())

    # ---- frames

    def next_sequence(self) -> int:
        """The number of an entry that is to be made."""
        self.sequence += 1
        return self.sequence

    def partition_of(self, stamp_ns: int | None) -> int:
        """That of an event time; of one that is not believed, or none, the one of now."""
        length_ns = int(self.config.pending.partition_minutes * 60e9)
        believed = self.counting.live.believed(stamp_ns)
        time_ns = self.counting.live.clock.now_ns if believed is None else believed
        return 0 if time_ns is None else time_ns // length_ns

    def sampled(self, frame_id: int) -> bool:
        """Whether a frame without truth of its own goes to the disk."""
        # Numbers that follow each other are spread.
        mixed = (frame_id * 0x9E3779B97F4A7C15) & (2**64 - 1)
        return (mixed >> 33) % self.config.pending.keep_one_frame_in == 0

    def lose(self, received: int, why: Dropped) -> None:
        """Detections that nobody will ever tell of."""
        self.account.predicted += received
        self._drop(why, received)

    def _drop(self, why: Dropped, count: int) -> None:
        self.account.drop(why, count)
        if why not in (Dropped.REFUSED, Dropped.BARE):
            self.counters.dropped += count

    def enter_unnamed(
        self, received: int, bare: int, slices: IntArray, inline: LabelRecord | None
    ) -> None:
        """A frame that no label can name, with what came with it, which is counted already."""
        settled = 0 if inline is None else inline.settled.size
        self.account.predicted += received
        self._drop(Dropped.BARE, bare)
        self._drop(Dropped.REFUSED, received - slices.size - bare)
        self._drop(Dropped.NO_FRAME_ID, slices.size - settled)
        self.shares.add("predicted", slices)
        if inline is not None:
            self.account.settle(inline.outcome.astype(np.int64))
            self.shares.add("labelled", slices[inline.settled])

    def enter(
        self,
        stored: StoredFrame,
        slices: IntArray,
        opinions: Opinions | None,
        inline: LabelRecord | None,
        sequence: int,
    ) -> None:
        """A frame that was answered, and what came with it, which is counted already."""
        frame = PendingFrame(stored, slices, opinions, self.partition_of(stored.stamp_ns))
        frame.sequence = sequence
        self._replace(frame.key)
        self._predicted(frame)
        if inline is not None:
            self.store.told(frame, inline)
            self._fates(frame, inline)
        entry = FrameEntry(frame.sequence, frame.partition, stored, inline)
        if inline is None and not self.sampled(stored.frame_id):
            frame.why_not = Dropped.SAMPLED if self.on_disk else Dropped.MEMORY
        else:
            frame.kept = self.journal.note(entry)
            frame.why_not = Dropped.DISK_BUSY if self.on_disk else Dropped.MEMORY
        self._hold(frame)

    def _predicted(self, frame: PendingFrame) -> None:
        stored = frame.stored
        self.account.predicted += stored.received
        self._drop(Dropped.BARE, stored.bare)
        self._drop(Dropped.REFUSED, stored.received - stored.n - stored.bare)
        self.shares.add("predicted", frame.slices)

    def _hold(self, frame: PendingFrame, *, wanted: bool = False) -> None:
        """In memory, as long as there is room.

        wanted  something is told of it next
        """
        if frame.kept:
            self.waiting[frame.partition] += frame.waiting
        for gone in self.store.add(frame, wanted=wanted):
            if not gone.kept:
                self._drop(gone.why_not, gone.waiting)

    def _replace(self, key: FrameKey) -> None:
        """The same number at another time: the detector began anew."""
        earlier = self.store.discard(key)
        # One that the disk has waits there until its partition goes, as it does where memory has
        # lost sight of it: how many wait in it would have to be read first.
        if earlier is not None and not earlier.kept:
            self._drop(Dropped.REPLACED, earlier.waiting)

    def dropped(self, partition: int, why: str) -> None:
        """The disk has a partition no more; what memory has of it goes on, unless it expired."""
        lost = self.waiting.pop(partition, 0)
        expired = why == "expired"
        reason = Dropped.BUDGET if why == "budget" else Dropped.CORRUPT
        _remember(self._lost, partition, self.sequence)
        for frame in self.store.unkept_from(partition, forget=expired):
            if expired:
                continue
            if any(record.revision >= 0 for record in frame.records):
                # Its labels went too: written anew without them, it would be told twice.
                self.store.discard(frame.key)
                gone = Gone(frame.stored.stamp_ns, partition, False)
                self.store.remember(frame.key, gone)
                continue
            lost -= frame.waiting
            frame.why_not = reason
        if expired:
            self.account.unlabelled += lost
        else:
            self._drop(reason, lost)

    # ---- labels

    def report(
        self, labels: ReceivedTruth, found: Kept | None = None, ahead: Ahead | None = None
    ) -> TruthAnswer | Search:
        """Match labels to the detections of their frame, and count what matched.

        ahead    the part that was done before
        found    what a Search has found; asked again with nothing found, it was in vain
        returns  a Search where the frame may be on the disk alone
        """
        key = (labels.stream, -1 if labels.frame_id is None else labels.frame_id)
        frame = self.store.get(key)
        if frame is None or (frame.released and self._asks_for_estimates(labels, frame)):
            if found is None or not self._up_to_date(found, key, frame):
                return self._elsewhere(labels, key, frame)
            if self._lost_since(found):
                return self.in_vain(labels)
            frame = self.restore(found)
        return self._report(labels, frame, ahead)

    def _up_to_date(self, found: Kept, key: FrameKey, frame: PendingFrame | None) -> bool:
        """Whether a Search has found all that was told: labels may have come while it went on.

        frame  what memory has of it, released
        """
        last = _last_of(found)
        if last < self._told.get(key, last):
            return False
        if frame is None:
            return True
        there = self._again(found)
        same = there.stored.stamp_ns == frame.stored.stamp_ns and there.revision == frame.revision
        return same and np.array_equal(there.outcome, frame.outcome)

    def _lost_since(self, found: Kept) -> bool:
        """Whether the disk has lost what was found while it was on its way."""
        return _last_of(found) <= self._lost.get(found.entry.partition, -1)

    def heavy(self, labels: ReceivedTruth, found: Kept | None = None) -> Ahead | None:
        """Finding the detections of many objects, which may be done anywhere, before `report`.

        found    as `report` has it
        returns  None where it is light, or the frame is not at hand
        """
        foreign = labels.foreign
        if foreign is None:
            return None
        frame = self.store.get((labels.stream, -1 if labels.frame_id is None else labels.frame_id))
        if frame is not None and not (frame.released and self._asks_for_estimates(labels, frame)):
            if _work(foreign, frame.stored) < HEAVY:
                return None
            frame = copy(frame)
        elif found is not None and _work(foreign, found.entry.frame) >= HEAVY:
            frame = self._again(found)
        else:
            return None
        resolved, again = self._before(labels, frame)
        settings = self.config.matching, self.limits
        work = partial(matched_labels, labels, frame, resolved, *settings, again=again)
        return Ahead(frame, resolved, again, work)

    def _before(self, labels: ReceivedTruth, frame: PendingFrame) -> tuple[BoolArray, bool]:
        """(n,) which detections wait no more for these labels, and whether objects have come."""
        replaces = self._revises(labels, frame) and bool(frame.records)
        resolved = np.zeros(frame.stored.n, bool) if replaces else frame.resolved
        return resolved, frame.objects_told and not replaces

    def in_vain(self, labels: ReceivedTruth) -> TruthAnswer:
        """The answer where a Search has found nothing."""
        key = (labels.stream, -1 if labels.frame_id is None else labels.frame_id)
        account = TruthAccount()
        if self.store.gone(key) is not None or key in self.store:
            account.too_late = labels_told(labels)
            self.counters.truth.add(account)
            return TruthAnswer(account)
        account.orphan = labels_told(labels)
        self.counters.truth.add(account)
        return TruthAnswer(account, (orphan_notice(labels, self.streams),))

    def _asks_for_estimates(self, labels: ReceivedTruth, frame: PendingFrame) -> bool:
        """Whether a frame of which only the ids are left is too little for labels."""
        spoken_of = labels.foreign is not None or bool(labels.regions)
        news = spoken_of and not frame.objects_told and labels.revision >= frame.revision
        return news or self._revises(labels, frame)

    def _revises(self, labels: ReceivedTruth, frame: PendingFrame) -> bool:
        return labels.revision > max(frame.revision, 0)

    def _elsewhere(
        self, labels: ReceivedTruth, key: FrameKey, frame: PendingFrame | None
    ) -> TruthAnswer | Search:
        gone = self.store.gone(key)
        kept = frame.kept if frame is not None else gone is None or gone.kept
        if labels.frame_id is None or not self.on_disk or not kept:
            return self.in_vain(labels)
        known = frame or gone
        partition = None if known is None else known.partition
        return Search(labels.stream, labels.frame_id, partition)

    def _report(
        self, labels: ReceivedTruth, frame: PendingFrame, ahead: Ahead | None = None
    ) -> TruthAnswer:
        revises, told = self._revises(labels, frame), labels_told(labels)
        if labels.stamp_ns not in (None, frame.stored.stamp_ns):
            return self._answered(TruthAccount(orphan=told), OTHER_FRAME)
        if labels.revision < frame.revision or (frame.released and revises):
            return self._answered(TruthAccount(duplicate=told))
        if self.journal.full:
            # Counted and not kept, they would be counted again when they are sent again.
            return self._answered(TruthAccount(refused=told), JOURNAL_FULL)
        # Where nothing was told, nothing is taken back.
        replaces = revises and bool(frame.records)
        resolved, again = self._before(labels, frame)
        matched = None if ahead is None else ahead.still(frame, resolved, again)
        if matched is None:
            matched = matched_labels(
                labels, frame, resolved, self.config.matching, self.limits, again=again
            )
        for reason, invalid in matched.invalid.items():
            self.counters.note(reason, invalid)
        if revises and told and matched.account.refused + matched.account.orphan == told:
            # A mistake in all labels is no reason to take back what was good.
            return self._answered(matched.account, *matched.notices)
        record = self._record(labels, frame, matched, replaces=replaces)
        self.counters.truth.add(matched.account)
        if not (revises or record.settled.size or record.objects_told):
            return TruthAnswer(matched.account, matched.notices)
        self.counters.truth_delay.observe(record.delay_ns / 1e9)
        sequence = self.next_sequence()
        entry = LabelEntry(sequence, frame.partition, *frame.key, record)
        if not frame.kept:
            # Labels are scarce: what they are of goes to the disk with them.
            inline = next((one for one in frame.records if one.revision < 0), None)
            brought = FrameEntry(-abs(frame.sequence), frame.partition, frame.stored, inline)
            entry = replace(entry, frame=brought)
        retracted = self._tell(frame, record, sequence)
        if self.journal.note(entry) and not frame.kept and not frame.released:
            self._now_kept(frame)
        return TruthAnswer(matched.account, matched.notices, retracted, sequence)

    def _answered(self, account: TruthAccount, *notices: Notice) -> TruthAnswer:
        """Labels that change nothing."""
        self.counters.truth.add(account)
        return TruthAnswer(account, notices)

    def _now_kept(self, frame: PendingFrame) -> None:
        frame.kept = True
        if frame.key in self.store:
            self.store.unkept -= frame.waiting
        self.waiting[frame.partition] += frame.waiting

    def _record(
        self, labels: ReceivedTruth, frame: PendingFrame, found: LabelsMatched, *, replaces: bool
    ) -> LabelRecord:
        live = self.counting.live
        stream = self.streams.get(labels.stream)
        stamp_ns = frame.stored.stamp_ns
        delay_ns = 0 if stream is None else stream.time.since(stamp_ns)
        counted = any(one.rows.size or one.class_rows.size for one in frame.records)
        settled, outcome = found.settled, found.outcome
        if labels.complete:
            # A detection whose label could not be used may still get a better one.
            rest = ~(frame.resolved & (not replaces))
            rest[settled] = rest[found.open_rows] = False
            rest_rows = np.flatnonzero(rest)
            settled = np.append(settled, rest_rows)
            outcome = np.append(outcome, np.full(rest_rows.size, Outcome.UNMATCHED, np.uint8))
            self.counters.unmatched += rest_rows.size
        return LabelRecord(
            revision=labels.revision,
            replaces=replaces,
            settled=settled,
            outcome=outcome,
            rows=found.rows,
            truth=found.truth,
            truth_covariance=found.truth_covariance,
            objects=found.objects,
            class_rows=found.class_rows,
            true_class=found.true_class,
            stamp_ns=live.believed(stamp_ns),
            clock_ns=live.clock.now_ns,
            generation=live.generation,
            delay_ns=delay_ns,
            live=delay_ns <= live.live_ns and not (replaces and counted),
            account=found.account,
            objects_told=found.objects_told,
            gate=found.gate,
        )

    def _tell(
        self, frame: PendingFrame, record: LabelRecord, sequence: int, parts: Parts = ALL
    ) -> int:
        """Count what labels tell of a frame; detections whose fate they take back."""
        if record.replaces:
            for earlier in frame.records:
                self.counting.take_back(frame, earlier, self.counting.live.generation)
                if earlier.gate is not None:
                    self._gated(frame, earlier, -1)
        self.counting.count(frame, record, sequence, parts)
        waited = frame.waiting
        told = frame.slices[frame.resolved] if record.replaces else frame.slices[:0]
        back = self.store.told(frame, record)
        _remember(self._told, frame.key, sequence)
        if frame.kept:
            self.waiting[frame.partition] += frame.waiting - waited
        self.account.settle(back, -1)
        self.account.retracted += back.size
        self.shares.add("labelled", told, -1)
        self._fates(frame, record)
        return int(back.size)

    def _fates(self, frame: PendingFrame, record: LabelRecord) -> None:
        """Enter what became of a frame's detections."""
        self.account.settle(record.outcome.astype(np.int64))
        self.shares.add("labelled", frame.slices[record.settled])
        self._gated(frame, record, 1)

    def _gated(self, frame: PendingFrame, record: LabelRecord, times: int) -> None:
        if record.gate is None:
            return
        slices = frame.slices[record.rows]
        self.shares.add("gated", slices[record.gate != GateVerdict.NONE], times)
        self.shares.add("near_gate", slices[record.gate == GateVerdict.NEAR], times)

    # ---- again

    def restore(self, kept: Kept) -> PendingFrame:
        """A frame that the disk gave back, with all that labels told of it; nothing is counted."""
        frame = self._again(kept)
        there = self.store.discard(frame.key)
        if there is not None and there.kept:
            self.waiting[there.partition] -= there.waiting
        frame.kept = True
        # It waited there all the time.
        before = self.waiting[frame.partition]
        self._hold(frame, wanted=True)
        if there is None:
            self.waiting[frame.partition] = before
        return frame

    def _again(self, kept: Kept) -> PendingFrame:
        """As it was when the last of its labels had come."""
        frame = self._placed(kept.entry)
        if kept.entry.inline is not None:
            self.store.told(frame, kept.entry.inline)
        for entry in kept.labels:
            self.store.told(frame, entry.record)
        return frame

    def _placed(self, entry: FrameEntry) -> PendingFrame:
        header = entry.frame.header
        # What takes part in joint measures is a setting, and not kept.
        space = Space(header.space.dimensions, self.config.statistics.angles_in_joint)
        stored = replace(entry.frame, header=replace(header, space=space))
        index = [self.slices.place(space, key.name, overflow=key.overflow) for key in stored.slices]
        slices = np.array(index, np.int64)[stored.slice.astype(np.int64)]
        opinions = None
        if stored.opinions is not None:
            key = stored.opinions.slice
            place = None
            if key is not None:
                names = stored.header.classes
                place = self.class_slices.place(names, key.name, overflow=key.overflow)
            opinions = Opinions(place, stored.opinions.rows, stored.opinions.values)
        frame = PendingFrame(stored, slices, opinions, entry.partition)
        frame.sequence = entry.sequence
        return frame

    def replay(
        self,
        entry: Entry,
        parts_of: Callable[[int], Parts],
        find: Callable[[LabelEntry], Kept | None],
    ) -> bool:
        """Do an entry again that some parts do not have yet; whether that was possible.

        parts_of  those that do not have the entry of a sequence
        find      the frame of labels, with the labels of it that came before them
        """
        parts = parts_of(entry.sequence)
        self.sequence = max(self.sequence, entry.sequence)
        if isinstance(entry, FrameEntry):
            self._replay_frame(entry, parts)
            return True
        frame = self.store.get((entry.stream, entry.frame_id)) if parts.statistics else None
        if frame is None or frame.released or _is_of_another(entry, frame):
            kept = find(entry)
            if kept is None:
                return False
            again = parts.statistics
            frame = self._found_again(kept, parts_of) if again else self._placed(kept.entry)
        if not parts.statistics:
            self.counting.count(frame, entry.record, entry.sequence, parts)
            return True
        self._come_to(entry.record)
        self._tell(frame, entry.record, entry.sequence, parts)
        self.counters.truth.add(entry.record.account)
        return True

    def _come_to(self, record: LabelRecord) -> None:
        """Let event time be what it was for a record: frames that moved it need not be kept."""
        if self.counting.live.come_to(record.generation, record.clock_ns):
            self.counting.drift.begin_anew()

    def _found_again(self, kept: Kept, parts_of: Callable[[int], Parts]) -> PendingFrame:
        """The frame of labels that are told again."""
        entered = -kept.entry.sequence
        if entered < 0 or kept.labels:
            return self.restore(kept)
        # It goes to the disk with the first of its labels: until then memory alone had it.
        if entered > self.resumed:
            again = replace(kept.entry, sequence=entered)
            return self._replay_frame(again, parts_of(entered))
        frame = self.restore(kept)
        # Taken for lost at the start, if the disk did not have it then.
        if self.account.dropped[Dropped.RESTART] >= frame.waiting:
            self.account.drop(Dropped.RESTART, -frame.waiting)
            self.waiting[frame.partition] += frame.waiting
        return frame

    def _replay_frame(self, entry: FrameEntry, parts: Parts) -> PendingFrame:
        frame = self._placed(entry)
        if parts.statistics:
            frame.kept = True
            live = self.counting.live
            generation = live.generation
            live.see(entry.frame.stamp_ns)
            if generation != live.generation:
                self.counting.drift.begin_anew()
            if entry.inline is not None:
                self._come_to(entry.inline)
            self.epoch = max(self.epoch, entry.frame.epoch)
            self._replace(frame.key)
            self._predicted(frame)
        if entry.inline is not None:
            self.counting.count(frame, entry.inline, entry.sequence, parts)
        if parts.statistics:
            if entry.inline is not None:
                self.store.told(frame, entry.inline)
                self._fates(frame, entry.inline)
                self.counters.truth.add(entry.inline.account)
            self._hold(frame, wanted=True)
        return frame

    def known(self, stream: str, frame_id: int, stamp_ns: int | None, partition: int) -> None:
        """Remember that the disk has a frame."""
        self.store.remember((stream, frame_id), Gone(stamp_ns, partition, True))


def _is_of_another(entry: LabelEntry, frame: PendingFrame) -> bool:
    """Whether labels are not of a frame, though of one with its number."""
    brought = entry.frame
    if brought is not None and abs(brought.sequence) != abs(frame.sequence):
        return True
    return entry.partition != frame.partition


def _work(objects: ReceivedObjects, frame: StoredFrame) -> int:
    """What HEAVY is held against."""
    unsure = int(np.count_nonzero(objects.covariance_length))
    return objects.n * frame.n + unsure * frame.header.space.k**2


def _remember(known: OrderedDict[K, int], key: K, number: int) -> None:
    known[key] = number
    known.move_to_end(key)
    if len(known) > _RECENT:
        known.popitem(last=False)


def _last_of(found: Kept) -> int:
    """Sequence of the last that was told of a frame."""
    return max([abs(found.entry.sequence), *(entry.sequence for entry in found.labels)])
