"""Frames that wait for their truth, in memory: bounded by bytes, the oldest dropped first.

What the disk has is not lost with that, and is found there again. What is kept is what the
detector sent and what was forwarded in its place.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.accounts import Dropped
from monitor.calibration.class_matched import Opinions
from monitor.calibration.detections import FrameBatch, IdArray, ReceivedDetections
from monitor.calibration.matched import TrackIds
from monitor.calibration.slices import SliceTable
from monitor.calibration.space import BoolArray, IntArray, Space
from monitor.frames import Header
from monitor.ledger import INLINE, LabelRecord, Outcome
from monitor.recalibration.recalibrator import Estimates
from monitor.stored_frame import (
    SliceKey,
    StoredEstimates,
    StoredFrame,
    StoredOpinions,
    stored_estimates,
)
from monitor.tracking.reported import ReportedTracks

# What Python itself takes for a stored frame, about; counted so that empty frames are bounded too.
FRAME_OVERHEAD = 1600
# Likewise for what one message told of it.
RECORD_OVERHEAD = 300
# Frames remembered that are in memory no more: to know one that comes again, and to tell a late
# label from one of a frame that never was.
REMEMBERED = 65536

FrameKey = tuple[str, int]


def tracks_of(
    received: ReceivedDetections, rows: IntArray, tracks: ReportedTracks | None
) -> TrackIds | None:
    """The track of each row of a batch: the detector's own where it sends one, else ours."""
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
    """What makes up the slices that any of n detections is in, and (n,) which of them."""
    if slices.size and np.count_nonzero(slices == slices[0]) == slices.size:
        entry = table.slices[int(slices[0])]  # most frames are of one class
        return (SliceKey(entry.key, entry.overflow),), np.zeros(slices.size, np.int64)
    used, place = np.unique(slices, return_inverse=True)
    entries = [table.slices[index] for index in used.tolist()]
    return tuple(SliceKey(entry.key, entry.overflow) for entry in entries), place


def stored_frame(
    header: Header,
    frame_id: int,
    stamp_ns: int | None,
    received: ReceivedDetections,
    batch: FrameBatch,
    slices: IntArray,
    table: SliceTable,
    bare: int = 0,
    made: Estimates | None = None,
    version: str | None = None,
    tracks: TrackIds | None = None,
    source: int = 0,
    opinions: StoredOpinions | None = None,
    epoch: int = 0,
) -> StoredFrame:
    """The usable detections of a frame; nothing of the batch's own buffers is kept alive.

    made  what a recalibrator made of them; None where that is what was sent
    """
    keys, place = slice_keys(slices, table)
    return StoredFrame(
        header=header,
        frame_id=frame_id,
        stamp_ns=stamp_ns,
        received=received.n,
        bare=bare,
        id=batch.id.copy(),
        class_index=batch.class_index.astype(np.int64),
        slices=keys,
        slice=place.astype(np.uint16),
        sent=stored_estimates(Estimates(batch.mean, batch.covariance, batch.diagonal)),
        made=None if made is None else stored_estimates(made),
        version=version,
        unusable=np.sort(received.ids_beside(batch.rows)),
        tracks=tracks,
        source=source,
        opinions=opinions,
        epoch=epoch,
    )


@dataclass(slots=True)
class PendingFrame:
    """One frame in waiting.

    slices             (n,) index of each detection here
    partition          of event time
    kept               whether the disk has it, or will
    why_not            what will have become of it when memory is full, where it is not kept
    sorted_ids, order  the ids ascending, and their positions
    outcome            (n,) of Outcome
    records            what labels told of it, in order
    revision           of the labels that are counted
    objects_told       whether objects of that revision have come
    """

    stored: StoredFrame
    slices: IntArray
    opinions: Opinions | None = None
    partition: int = 0
    kept: bool = False
    why_not: Dropped = Dropped.MEMORY
    sequence: int = 0
    sorted_ids: IdArray = field(init=False)
    order: IntArray = field(init=False)
    outcome: npt.NDArray[np.uint8] = field(init=False)
    records: list[LabelRecord] = field(default_factory=list)
    revision: int = INLINE
    objects_told: bool = False
    released: bool = False

    def __post_init__(self) -> None:
        id = self.stored.id
        ascending = np.count_nonzero(id[1:] > id[:-1]) == max(0, id.size - 1)
        self.order = np.arange(id.size) if ascending else np.argsort(id, kind="stable")
        self.sorted_ids = id[self.order]
        self.outcome = np.zeros(id.size, np.uint8)

    @property
    def key(self) -> FrameKey:
        """Stream and number."""
        return self.stored.header.stream, self.stored.frame_id

    @property
    def space(self) -> Space:
        """Of its stream."""
        return self.stored.header.space

    @property
    def classes(self) -> int:
        """C: a true class lies in 0 … C − 1."""
        return len(self.stored.header.classes)

    @property
    def resolved(self) -> BoolArray:
        """(n,) detections whose fate is known."""
        resolved: BoolArray = self.outcome != Outcome.WAITING
        return resolved

    @property
    def waiting(self) -> int:
        """Detections that still wait."""
        return int(self.outcome.size - np.count_nonzero(self.outcome))

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        own = self.slices.nbytes + self.sorted_ids.nbytes + self.order.nbytes + self.outcome.nbytes
        records = sum(_record_bytes(record) for record in self.records)
        return FRAME_OVERHEAD + self.stored.nbytes + own + records

    @property
    def made(self) -> StoredEstimates:
        """What was forwarded, or would have been."""
        return self.stored.sent if self.stored.made is None else self.stored.made

    def tell(self, record: LabelRecord) -> IntArray:
        """Enter what labels told of it; (n,) outcomes that it takes back, if any."""
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
        """Let go of the estimates: nothing waits for them. The ids stay, to know a label again."""
        k = self.space.k
        none = StoredEstimates(np.zeros((0, k)), np.zeros((0, k)), np.zeros(0, bool))
        self.stored = replace(self.stored, sent=none, made=None, tracks=None, opinions=None)
        self.opinions, self.records, self.released = None, [], True


def _record_bytes(record: LabelRecord) -> int:
    arrays: list[npt.NDArray[Any]] = [
        record.settled,
        record.outcome,
        record.rows,
        record.truth,
        record.class_rows,
        record.true_class,
    ]
    arrays += [one for one in (record.truth_covariance, record.gate) if one is not None]
    if record.objects is not None:
        arrays += [record.objects.id, record.objects.known]
    return RECORD_OVERHEAD + sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class Gone:
    """A frame that memory holds no more.

    kept  whether the disk may have it
    """

    stamp_ns: int | None
    partition: int
    kept: bool


@dataclass(slots=True)
class PendingStore:
    """Pending frames by (stream, frame_id), oldest first."""

    max_bytes: int
    bytes: int = 0
    # Detections that wait in frames which only memory has.
    unkept: int = 0
    _frames: OrderedDict[FrameKey, PendingFrame] = field(default_factory=OrderedDict)
    # Those that may let go of their estimates, in the order in which they were settled.
    _settled: dict[FrameKey, None] = field(default_factory=dict)
    _gone: OrderedDict[FrameKey, Gone] = field(default_factory=OrderedDict)

    def __contains__(self, key: FrameKey) -> bool:
        return key in self._frames

    def __len__(self) -> int:
        return len(self._frames)

    def get(self, key: FrameKey) -> PendingFrame | None:
        """The frame, if it is in memory."""
        return self._frames.get(key)

    def gone(self, key: FrameKey) -> Gone | None:
        """What is known of a frame that is in memory no more."""
        return self._gone.get(key)

    def knows(self, key: FrameKey, stamp_ns: int | None) -> bool:
        """Whether this very frame has come before, as far as that is remembered."""
        frame = self._frames.get(key)
        if frame is not None:
            return frame.stored.stamp_ns == stamp_ns
        gone = self._gone.get(key)
        return gone is not None and gone.stamp_ns == stamp_ns

    def remember(self, key: FrameKey, gone: Gone) -> None:
        """That there was a frame."""
        self._gone.pop(key, None)
        self._gone[key] = gone
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)

    def unkept_from(self, partition: int, *, forget: bool) -> list[PendingFrame]:
        """The disk has a partition no more; the frames of it that memory has, which are now all
        there is of them, or go too.
        """
        found = [f for f in self._frames.values() if f.kept and f.partition == partition]
        for frame in found:
            frame.kept = False
            self.unkept += frame.waiting
            if forget:
                self._take_out(frame.key)
        for key, gone in list(self._gone.items()):
            if gone.kept and gone.partition == partition:
                self._gone[key] = replace(gone, kept=False)
        return found

    def add(self, frame: PendingFrame, *, wanted: bool = False) -> list[PendingFrame]:
        """Store a frame, in place of one of its number; those that had to go for want of room.

        wanted  it stays as it is until the next one is stored, however little room there is
        """
        key = frame.key
        self.discard(key)
        self._frames[key] = frame
        self._gone.pop(key, None)
        self.bytes += frame.nbytes
        if not frame.kept:
            self.unkept += frame.waiting
        self._note_settled(frame)
        return self._made_room(key if wanted else None)

    def _note_settled(self, frame: PendingFrame) -> None:
        if frame.waiting == 0 and not frame.released:
            self._settled[frame.key] = None
        else:
            self._settled.pop(frame.key, None)

    def _made_room(self, wanted: FrameKey | None) -> list[PendingFrame]:
        """Whatever is wanted was stored last: it is the last in both."""
        while self.bytes > self.max_bytes and self._settled:
            key = next(iter(self._settled))
            if key == wanted:
                break
            del self._settled[key]
            frame = self._frames[key]
            before = frame.nbytes
            frame.release()
            self.bytes += frame.nbytes - before
        out: list[PendingFrame] = []
        while self.bytes > self.max_bytes and self._frames:
            key = next(iter(self._frames))
            if key == wanted:
                break
            out.append(self._take_out(key))
        return out

    def _take_out(self, key: FrameKey) -> PendingFrame:
        frame = self._frames.pop(key)
        self._settled.pop(key, None)
        self.bytes -= frame.nbytes
        if not frame.kept:
            self.unkept -= frame.waiting
        self.remember(key, Gone(frame.stored.stamp_ns, frame.partition, frame.kept))
        return frame

    def discard(self, key: FrameKey) -> PendingFrame | None:
        """Forget a frame, if it is there."""
        if key not in self._frames:
            return None
        frame = self._take_out(key)
        self._gone.pop(key, None)
        return frame

    def told(self, frame: PendingFrame, record: LabelRecord) -> IntArray:
        """PendingFrame.tell, of one that may be stored here; what it returns."""
        stored = self._frames.get(frame.key) is frame
        if stored:
            self.bytes -= frame.nbytes
            if not frame.kept:
                self.unkept -= frame.waiting
        before = frame.tell(record)
        if stored:
            self.bytes += frame.nbytes
            if not frame.kept:
                self.unkept += frame.waiting
            self._note_settled(frame)
        return before
