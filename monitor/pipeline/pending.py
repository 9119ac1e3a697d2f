"""Frames that are remembered because labels may still arrive, with the fate of every detection.

They stay in memory within a bound of bytes; the oldest are dropped first, and read back if the
ledger has them. A fate is counted exactly once, from the answer to its frame on:

predicted = matched + ignored + unmatched + unlabelled + dropped (by reason) + waiting

The counts change together with the pending frames in memory, so that they always add up. Matching
labels to detections never happens here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import Examined, ReceivedDetections
from monitor.frames.frame import (
    Opinions,
    ReceivedFrame,
    ReportedTracks,
    SliceKey,
    StoredEstimates,
    StoredFrame,
    TrackIds,
    stored_estimates,
)
from monitor.frames.slices import ClassSliceTable, SliceTable
from monitor.frames.space import BoolArray, IntArray, Space
from monitor.frames.status import Counters
from monitor.matching.objects import INLINE, GateVerdict, LabelRecord, Outcome
from monitor.pipeline.recalibrators import Recalibrated
from monitor.pipeline.streams import Stream
from monitor.store.entries import FrameEntry, Kept

# Frames remembered after they left memory, so that a repeated frame is recognised and a late label
# differs from one of a frame that never came.
REMEMBERED = 65536
K = TypeVar("K")
V = TypeVar("V")


class Dropped(StrEnum):
    """Reasons why a detection left without a label. A closed set: also a label of metrics."""

    REFUSED = "refused"  # no usable estimate
    BARE = "missing_covariance"  # of ledgers of before; such detections wait as others do now
    NO_FRAME_ID = "no_frame_id"  # no label can name it
    MEMORY = "memory"  # [pending] max_bytes, and not on disk
    SAMPLED = "sampled"  # not one of keep_one_frame_in, and out of memory
    DISK_BUSY = "disk_busy"  # the disk did not keep up, and out of memory
    BUDGET = "budget"  # [pending] disk_bytes
    CORRUPT = "corrupt"  # the file that held it cannot be read
    RESTART = "restart"  # in memory alone, or not yet on disk, when the process ended
    REPLACED = "replaced"  # the frame's number came again at another time
    OVERLOAD = "overload"  # work was shed
    STALE = "stale"  # the frame waited too long on its way
    FAILED = "failed"  # a fault of ours


# Bytes that Python itself takes for a stored frame, about: they bound empty frames too.
FRAME_OVERHEAD = 1600

# Bytes that Python itself takes for a record, about.
RECORD_OVERHEAD = 300
FrameKey = tuple[str, int]


@dataclass(slots=True)
class PendingFrame:
    """One frame whose labels may still arrive.

    slices             (n,) slice index of each detection in this run
    partition          of event time
    sequence           as in FrameEntry
    kept               whether the disk has the frame, or will have it
    why_not            reason that counts if the frame is not kept, and memory is full
    last               entry of the frame, or of its last labels
    outcome            (n,) Outcome of each detection
    records            of the labels so far, in order
    revision           of the labels that are counted
    objects_told       whether objects of that revision have come
    released           whether the estimates were let go
    before_account     whether it came before the account began, which never counts it
    weighed            bytes that the store counts for it
    """

    stored: StoredFrame
    slices: IntArray
    partition: int = 0
    sequence: int = 0
    kept: bool = False
    why_not: Dropped = Dropped.MEMORY
    last: int = field(init=False)
    outcome: npt.NDArray[np.uint8] = field(init=False)
    records: list[LabelRecord] = field(default_factory=list)
    revision: int = INLINE
    objects_told: bool = False
    released: bool = False
    before_account: bool = False
    weighed: int = 0

    def __post_init__(self) -> None:
        self.outcome = np.zeros(self.stored.n, np.uint8)
        self.last = abs(self.sequence)

    @property
    def key(self) -> FrameKey:
        """Returns stream and frame id."""
        return self.stored.header.stream, self.stored.frame_id

    @property
    def space(self) -> Space:
        """Returns the space of the stream."""
        return self.stored.header.space

    @property
    def resolved(self) -> BoolArray:
        """Tells which detections have their label, (n,)."""
        resolved: BoolArray = self.outcome != Outcome.WAITING
        return resolved

    @property
    def waiting(self) -> int:
        """Counts the detections without a label so far that are in the account."""
        if self.before_account:
            return 0
        return int(self.outcome.size - np.count_nonzero(self.outcome))

    @property
    def nbytes(self) -> int:
        """Estimates the bytes in memory, records included."""
        own = self.slices.nbytes + self.outcome.nbytes
        records = sum(_record_bytes(record) for record in self.records)
        return FRAME_OVERHEAD + self.stored.nbytes + own + records

    def tell(self, record: LabelRecord) -> IntArray:
        """Enters a record; returns the outcomes that it retracts, (≥0,)."""
        before: IntArray = self.outcome[:0].astype(np.int64)
        if record.replaces:
            before = self.outcome[self.outcome != Outcome.WAITING].astype(np.int64)
            self.outcome[:] = Outcome.WAITING
            self.records.clear()
            self.objects_told = False
        self.outcome[record.settled] = record.outcome
        self.revision = max(self.revision, record.revision)
        self.objects_told |= record.objects_told
        self.records.append(record)
        return before

    def release(self) -> None:
        """Lets go of the estimates: no label is expected. The ids stay, to tell duplicates."""
        k = self.space.k
        none = StoredEstimates(np.zeros((0, k)), np.zeros((0, k)), np.zeros(0, bool))
        self.stored = replace(self.stored, sent=none, made=None, tracks=None, opinions=None)
        self.records, self.released = [], True


def _record_bytes(record: LabelRecord) -> int:
    held = [getattr(record, one.name) for one in fields(record)]
    if record.objects is not None:
        held += [record.objects.id, record.objects.known]
    return RECORD_OVERHEAD + sum(one.nbytes for one in held if isinstance(one, np.ndarray))


def tracks_of(
    received: ReceivedDetections, rows: IntArray, tracks: ReportedTracks | None
) -> TrackIds | None:
    """Returns the track of each row of a batch: the detector's own if it sends one, else ours."""
    upstream = received.upstream_track
    if upstream is not None:
        return TrackIds(upstream[0][rows], upstream[1][rows])
    if tracks is None:
        return None
    number = np.zeros(received.n, np.uint64)
    known = np.zeros(received.n, bool)
    at = tracks.detection[tracks.detection >= 0]
    number[at], known[at] = tracks.id[tracks.detection >= 0], True
    return TrackIds(number[rows], known[rows])


def slice_keys(slices: IntArray, table: SliceTable) -> tuple[tuple[SliceKey, ...], IntArray]:
    """Returns the keys of the slices of n detections, and (n,) an index into them."""
    # There are few slices: to count is quicker than to sort.
    there = np.bincount(slices) > 0
    used, place = np.flatnonzero(there), (np.cumsum(there) - 1)[slices]
    entries = (table.slices[index] for index in used.tolist())
    keys = (SliceKey(entry.key, entry.overflow, entry.space.assumed) for entry in entries)
    return tuple(keys), place


@dataclass(frozen=True, slots=True)
class DroppedFrame:
    """A frame that has left memory.

    kept  whether it was written; its partition may have gone since (`TruthLedger.dropped`)
    last  its last entry, as far as this process knows; 0 for one of an earlier run
    """

    stamp_ns: int | None
    partition: int
    kept: bool
    last: int = 0


@dataclass(slots=True)
class PendingStore:
    """Pending frames by (stream, frame_id), oldest first."""

    max_bytes: int
    bytes: int = 0
    # Detections that wait in frames which only memory has.
    unkept: int = 0
    _frames: OrderedDict[FrameKey, PendingFrame] = field(default_factory=OrderedDict)
    # Frames that may release their estimates, in the order in which they were settled.
    _settled: dict[FrameKey, None] = field(default_factory=dict)
    _gone: OrderedDict[FrameKey, DroppedFrame] = field(default_factory=OrderedDict)

    def __contains__(self, key: FrameKey) -> bool:
        return key in self._frames

    def __len__(self) -> int:
        return len(self._frames)

    def get(self, key: FrameKey) -> PendingFrame | None:
        """Returns a frame; None if it is not in memory."""
        return self._frames.get(key)

    def gone(self, key: FrameKey) -> DroppedFrame | None:
        """Returns what is remembered of a frame that has left memory; None if nothing is."""
        return self._gone.get(key)

    def knows(self, key: FrameKey, stamp_ns: int | None) -> bool:
        """True if this very frame came before, as far as frames are remembered."""
        frame = self._frames.get(key)
        known = self._gone.get(key) if frame is None else frame.stored
        return known is not None and known.stamp_ns == stamp_ns

    def remember(self, key: FrameKey, gone: DroppedFrame) -> None:
        """Remembers a frame that has left memory."""
        remember(self._gone, key, gone, REMEMBERED)

    def unkept_from(self, partition: int) -> list[PendingFrame]:
        """Marks the frames in memory of a lost partition as not kept, and returns them."""
        found = [f for f in self._frames.values() if f.kept and f.partition == partition]
        for frame in found:
            frame.kept = False
            self.unkept += frame.waiting
        return found

    def add(self, frame: PendingFrame, *, wanted: bool = False) -> list[PendingFrame]:
        """Stores a frame in place of one of its number; returns those that made room for it.

        wanted  True: it stays until the next frame is stored, even beyond max_bytes
        """
        key = frame.key
        self.discard(key)
        self._frames[key] = frame
        self._gone.pop(key, None)
        self._weigh(frame, 1)
        self._note_settled(frame)
        return self._made_room(key if wanted else None)

    def _weigh(self, frame: PendingFrame, times: int) -> None:
        """Counts the bytes and waiting detections of a frame; times = -1 takes them back."""
        if times > 0:
            frame.weighed = frame.nbytes
        self.bytes += times * frame.weighed
        if not frame.kept:
            self.unkept += times * frame.waiting

    def _note_settled(self, frame: PendingFrame) -> None:
        settled = np.count_nonzero(frame.outcome) == frame.outcome.size
        if settled and not frame.released:
            self._settled[frame.key] = None
        else:
            self._settled.pop(frame.key, None)

    def _made_room(self, wanted: FrameKey | None) -> list[PendingFrame]:
        """Releases estimates, then frames, the oldest first; the wanted one is last in both."""
        while self.bytes > self.max_bytes and self._settled:
            key = next(iter(self._settled))
            if key == wanted:
                break
            del self._settled[key]
            frame = self._frames[key]
            self._weigh(frame, -1)
            frame.release()
            self._weigh(frame, 1)
        out: list[PendingFrame] = []
        while self.bytes > self.max_bytes and self._frames:
            key = next(iter(self._frames))
            if key == wanted:
                break
            out.append(self.take_out(key))
        return out

    def take_out(self, key: FrameKey) -> PendingFrame:
        """Lets a frame go from memory, and remembers it."""
        frame = self._frames.pop(key)
        self._settled.pop(key, None)
        self._weigh(frame, -1)
        gone = DroppedFrame(frame.stored.stamp_ns, frame.partition, frame.kept, frame.last)
        self.remember(key, gone)
        return frame

    def discard(self, key: FrameKey) -> PendingFrame | None:
        """Forgets a frame, and returns it if it was there."""
        if key not in self._frames:
            return None
        frame = self.take_out(key)
        self._gone.pop(key, None)
        return frame

    def told(self, frame: PendingFrame, record: LabelRecord) -> IntArray:
        """Applies a record to a frame, in memory or not; returns the outcomes that it took back."""
        stored = self._frames.get(frame.key) is frame
        if stored:
            self._weigh(frame, -1)
        before = frame.tell(record)
        if stored:
            self._weigh(frame, 1)
            self._note_settled(frame)
        return before


@dataclass(frozen=True, slots=True)
class LedgerFrames:
    """Turns frames into what the ledger keeps, and its entries into pending frames.

    Slices have indices in this process, and names in the ledger.
    """

    slices: SliceTable
    class_slices: ClassSliceTable
    angles_in_joint: bool

    def stored(
        self,
        stream: Stream,
        frame: ReceivedFrame,
        examined: Examined,
        recalibrated: Recalibrated,
        tracks: TrackIds | None,
        opinions: Opinions | None,
        epoch: int,
    ) -> StoredFrame:
        """Copies the usable detections of a frame, so that no buffer of the batch is kept alive."""
        batch, acted = examined.batch, recalibrated.acted
        sent, made = recalibrated.sent, recalibrated.made
        keys, place = slice_keys(recalibrated.slices, self.slices)
        return StoredFrame(
            header=stream.header,
            frame_id=-1 if frame.frame_id is None else frame.frame_id,
            stamp_ns=frame.stamp_ns,
            received=frame.detections.n,
            id=batch.id.copy(),
            class_index=batch.class_index.astype(np.int64),
            slices=keys,
            slice=place.astype(np.uint16),
            sent=stored_estimates(sent),
            made=None if made is sent else stored_estimates(made),
            version=None if acted is None else acted.version,
            unusable=np.sort(frame.detections.ids_beside(batch.rows)),
            tracks=tracks,
            source=stream.number,
            opinions=opinions,
            epoch=epoch,
        )

    def placed(self, entry: FrameEntry) -> PendingFrame:
        """Makes the frame as it came, without the labels that came with it."""
        header = entry.frame.header
        # The dimensions of joint measures are a setting of this process, not of the ledger.
        space = Space(header.space.dimensions, self.angles_in_joint)
        stored = replace(entry.frame, header=replace(header, space=space))
        index = [
            self.slices.place(
                space.with_assumed if key.assumed else space, key.name, overflow=key.overflow
            )
            for key in stored.slices
        ]
        slices = np.array(index, np.int64)[stored.slice.astype(np.int64)]
        if stored.opinions is not None and (key := stored.opinions.slice) is not None:
            self.class_slices.place(header.classes, key.name, overflow=key.overflow)
        return PendingFrame(stored, slices, entry.partition, entry.sequence)

    def as_told(self, kept: Kept) -> PendingFrame:
        """Makes the frame as it was after the last of its labels."""
        frame = self.placed(kept.entry)
        if kept.entry.inline is not None:
            frame.tell(kept.entry.inline)
        for entry in kept.labels:
            frame.tell(entry.record)
        frame.last = last_of(kept)
        return frame


def remember(known: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Puts a value last; of more than `most`, the first is forgotten."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def last_of(found: Kept) -> int:
    """Returns the sequence of the last entry of a frame."""
    return max([abs(found.entry.sequence), *(entry.sequence for entry in found.labels)])


# Fates that labels give, by their name in the account.
_SETTLED = {"matched": Outcome.MATCHED, "ignored": Outcome.IGNORED, "unmatched": Outcome.UNMATCHED}
_NAMES = ("predicted", *_SETTLED, "unlabelled", "retracted")

# Counts of SliceShares.
SHARES = ("predicted", "labelled", "gated", "near_gate")


def new_account() -> dict[str, int]:
    """Makes an account at zero: detections since the ledger began by fate, `predicted` of them all.

    unlabelled  no label came before the partition expired
    retracted   a later revision took the fate back; the detection waits again, or has another
    dropped_…   by reason
    """
    return dict.fromkeys((*_NAMES, *(f"dropped_{why}" for why in Dropped)), 0)


@dataclass(slots=True)
class SliceShares:
    """Counts by slice index, since labels are not missing at random.

    counts  (S,) each, by name
            predicted  detections that came
            labelled   those that have a label
            gated      matches that a gate decided
            near_gate  those of them that lay near it
    """

    counts: dict[str, IntArray] = field(
        default_factory=lambda: dict.fromkeys(SHARES, np.zeros(0, np.int64))
    )

    def add(self, name: str, slices: IntArray, times: int = 1) -> None:
        """Counts detections by slice (n,); times = -1 takes them back."""
        if slices.size == 0:
            return
        known = self.counts[name]
        counts = times * np.bincount(slices, minlength=known.size)
        counts[: known.size] += known
        self.counts[name] = counts

    def of(self, name: str, index: int) -> int:
        """Returns a count of one slice."""
        known = self.counts[name]
        return int(known[index]) if index < known.size else 0


@dataclass(slots=True)
class Fates:
    """Owns the fates of one pipeline's detections; after every call, all without one are `pending`.

    Frames that came before the account began are stored, and never counted.

    store    pending frames in memory
    account  as of new_account
    waiting  detections that wait in frames which the disk has, by partition
    """

    counters: Counters
    store: PendingStore
    account: dict[str, int] = field(default_factory=new_account)
    shares: SliceShares = field(default_factory=SliceShares)
    waiting: Counter[int] = field(default_factory=Counter)

    @property
    def pending(self) -> int:
        """Counts the detections that wait, on disk or in memory."""
        return self.store.unkept + sum(self.waiting.values())

    # ---- frames come and go

    def lose(self, received: int, why: Dropped) -> None:
        """Counts detections that no label can reach."""
        self.account["predicted"] += received
        self._drop(why, received)

    def _drop(self, why: Dropped, count: int) -> None:
        self.account[f"dropped_{why}"] += count
        if why not in (Dropped.REFUSED, Dropped.BARE):
            self.counters.dropped += count

    def unnamed(self, received: int, slices: IntArray, inline: LabelRecord | None) -> None:
        """Counts a frame that no label can name, with the labels that came with it."""
        settled = 0 if inline is None else inline.settled.size
        self._predict(received, slices, inline)
        self._drop(Dropped.NO_FRAME_ID, slices.size - settled)

    def came(
        self, frame: PendingFrame, inline: LabelRecord | None = None, *, wanted: bool = False
    ) -> None:
        """Counts a frame with the labels that came with it, and keeps it as long as there is room.

        wanted  the next call brings a label of this frame
        """
        earlier = self.store.discard(frame.key)
        # The same number at another time: the detector was restarted. Detections of an earlier
        # frame on disk wait until its partition goes: to count them, it would have to be read.
        if earlier is not None and not earlier.kept:
            self._drop(Dropped.REPLACED, earlier.waiting)
        if inline is not None:
            frame.tell(inline)
        stored = frame.stored
        self._predict(stored.received, frame.slices, inline, bare=stored.bare)
        if frame.kept:
            self.waiting[frame.partition] += frame.waiting
        self._store(frame, wanted=wanted)

    def _predict(
        self, received: int, slices: IntArray, inline: LabelRecord | None, bare: int = 0
    ) -> None:
        """Counts the detections of a frame, with the slices (n,) of the usable ones.

        bare  as of StoredFrame: of ledgers of before
        """
        self.account["predicted"] += received
        self._drop(Dropped.BARE, bare)
        self._drop(Dropped.REFUSED, received - slices.size - bare)
        self.shares.add("predicted", slices)
        if inline is not None:
            self._settle(slices, inline)

    def _store(self, frame: PendingFrame, *, wanted: bool) -> None:
        for gone in self.store.add(frame, wanted=wanted):
            if not gone.kept:
                self._drop(gone.why_not, gone.waiting)

    def hold_again(self, frame: PendingFrame, *, lost: bool = False) -> None:
        """Keeps a frame that was read from the ledger, with all its labels.

        Its detections are counted already: they waited on disk all the time.

        lost  the disk did not have it when the process began
        """
        frame.kept = True
        self._store(frame, wanted=True)
        if lost:
            self._admit(frame.waiting, frame.slices)
            self.waiting[frame.partition] += frame.waiting

    def _admit(self, count: int, slices: IntArray) -> None:
        """Counts detections as waiting again that were counted as lost.

        Their frame was written again when its partition went, or reached the disk after the
        checkpoint.

        slices  of at least `count` detections
        """
        lost = (f"dropped_{why}" for why in (Dropped.RESTART, Dropped.BUDGET, Dropped.CORRUPT))
        for fate in (*lost, "unlabelled"):
            some = min(count, self.account[fate])
            self.account[fate] -= some
            count -= some
        # The others are in no count: the entry of their frame could not be done again at start.
        self.account["predicted"] += count
        self.shares.add("predicted", slices[:count])

    def kept(self, frame: PendingFrame) -> None:
        """Moves a frame's waiting detections from memory to the disk, which has it or will."""
        frame.kept = True
        if frame.key in self.store:
            self.store.unkept -= frame.waiting
        self.waiting[frame.partition] += frame.waiting

    def partition_gone(self, partition: int, why: str) -> None:
        """Counts the loss of a partition; its frames in memory stay, unless it expired.

        why  "expired", "budget", or how it was damaged
        """
        lost = self.waiting.pop(partition, 0)
        expired = why == "expired"
        reason = Dropped.BUDGET if why == "budget" else Dropped.CORRUPT
        for frame in self.store.unkept_from(partition):
            if expired or any(record.revision >= 0 for record in frame.records):
                # Its labels are lost too: written again without them, they would be counted twice.
                self.store.take_out(frame.key)
                continue
            frame.why_not = reason
            lost -= frame.waiting
            if lost < 0:
                self._admit(-lost, frame.slices[~frame.resolved])
                lost = 0
        if expired:
            self.account["unlabelled"] += lost
        else:
            self._drop(reason, lost)

    # ---- labels

    def tell(self, frame: PendingFrame, record: LabelRecord) -> int:
        """Counts the fates that labels give to the detections of a frame.

        returns  detections whose earlier fate was taken back
        """
        if frame.before_account:
            return int(self.store.told(frame, record).size)
        if record.replaces:
            for earlier in frame.records:
                self._gated(frame.slices, earlier, -1)
        waited = frame.waiting
        told = frame.slices[frame.resolved] if record.replaces else frame.slices[:0]
        back = self.store.told(frame, record)
        if frame.kept:
            self.waiting[frame.partition] += frame.waiting - waited
            more = -self.waiting[frame.partition]
            if more > 0:
                # More detections waited on disk than this account knew.
                self.waiting[frame.partition] = 0
                self._admit(more, frame.slices[record.settled])
        self._count(back, -1)
        self.account["retracted"] += back.size
        self.shares.add("labelled", told, -1)
        self._settle(frame.slices, record)
        return int(back.size)

    def _settle(self, slices: IntArray, record: LabelRecord) -> None:
        self._count(record.outcome.astype(np.int64))
        self.shares.add("labelled", slices[record.settled])
        self._gated(slices, record, 1)

    def _count(self, outcome: IntArray, times: int = 1) -> None:
        """Counts outcomes (u,) of Outcome; times = -1 takes them back."""
        counts = np.bincount(outcome, minlength=len(Outcome))
        for name, fate in _SETTLED.items():
            self.account[name] += times * int(counts[fate])

    def _gated(self, slices: IntArray, record: LabelRecord, times: int) -> None:
        if record.gate is not None:
            matched = slices[record.rows]
            self.shares.add("gated", matched[record.gate != GateVerdict.NONE], times)
            self.shares.add("near_gate", matched[record.gate == GateVerdict.NEAR], times)
