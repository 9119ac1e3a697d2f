"""Counts the fate of every detection exactly once, from the answer to its frame on.

predicted = matched + ignored + unmatched + unlabelled + dropped (by reason) + waiting

The counts change together with the pending frames in memory, so that they always add up. Matching
labels to detections never happens here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from monitor.frames.space import IntArray
from monitor.frames.status import Counters
from monitor.matching.objects import GateVerdict, LabelRecord, Outcome
from monitor.pipeline.pending import Dropped, PendingFrame, PendingStore

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

    def put(self, name: str, index: int, count: int) -> None:
        """Sets the count of one slice, as read from a checkpoint."""
        self.add(name, np.full(1, index), count - self.of(name, index))

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

    def unnamed(
        self, received: int, bare: int, slices: IntArray, inline: LabelRecord | None
    ) -> None:
        """Counts a frame that no label can name, with the labels that came with it."""
        settled = 0 if inline is None else inline.settled.size
        self._predict(received, bare, slices, inline)
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
        self._predict(frame.stored.received, frame.stored.bare, frame.slices, inline)
        if frame.kept:
            self.waiting[frame.partition] += frame.waiting
        self._store(frame, wanted=wanted)

    def _predict(
        self, received: int, bare: int, slices: IntArray, inline: LabelRecord | None
    ) -> None:
        """Counts the detections of a frame, with the slices (n,) of the usable ones."""
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
