"""The ledger of ground truth: frames as they come, labels with their revisions, each entered once.

Every entry holds what was counted for it, so that it can be retracted, and done again after a
crash. Labels of many objects may be matched ahead of their report, on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from monitor.config import Config
from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Limits, Reason
from monitor.frames.frame import Opinions, ReceivedTruth, TruthAnswer
from monitor.frames.reasons import Notice
from monitor.frames.space import BoolArray, IntArray
from monitor.frames.stored import StoredFrame
from monitor.matching.labels import LabelsMatched, labels_told, matched_labels, orphan_notice
from monitor.matching.pending import Dropped, FrameKey, LabelRecord, Outcome, PendingFrame
from monitor.pipeline.accounts import Fates
from monitor.pipeline.labelled_rows import MatchedCounting
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.pipeline.pending import DroppedFrame, LedgerFrames, PendingStore, RecentChanges
from monitor.pipeline.streams import Stream
from monitor.store.entries import FrameEntry, Journal, Kept, LabelEntry

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
        """Runs the search: on any thread, once."""
        self.matched = self.work()

    def still(self, frame: PendingFrame, resolved: BoolArray, again: bool) -> LabelsMatched | None:
        """Returns the result, if matching the frame now would come to the same."""
        ours = self.frame
        same = (
            abs(frame.sequence) == abs(ours.sequence)
            and frame.stored.stamp_ns == ours.stored.stamp_ns
            and frame.released == ours.released
            and again == self.again
            and np.array_equal(resolved, self.resolved)
        )
        return self.matched if same else None


def key_of(labels: ReceivedTruth) -> FrameKey:
    """Returns the key of the labelled frame; no frame has it where the labels name none."""
    return labels.stream, -1 if labels.frame_id is None else labels.frame_id


def revises(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Says whether labels replace those that were told before."""
    return labels.revision > max(frame.revision, 0)


def replaces_told(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Says whether labels replace others that were counted, which are to be retracted."""
    return revises(labels, frame) and bool(frame.records)


def asks_for_estimates(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Says whether labels need the estimates of a frame of which only the ids are left."""
    spoken_of = labels.foreign is not None or bool(labels.regions)
    news = spoken_of and not frame.objects_told and labels.revision >= frame.revision
    return news or revises(labels, frame)


def resolved_before(labels: ReceivedTruth, frame: PendingFrame) -> tuple[BoolArray, bool]:
    """(n,) which detections wait no more for these labels, and whether objects have come."""
    replaces = replaces_told(labels, frame)
    resolved = np.zeros(frame.stored.n, bool) if replaces else frame.resolved
    return resolved, frame.objects_told and not replaces


def label_record(
    labels: ReceivedTruth,
    frame: PendingFrame,
    found: LabelsMatched,
    live: LiveStatistics,
    delay_ns: int,
) -> LabelRecord:
    """Makes the record of labels that were matched to a frame.

    live      as of now: what is counted is counted at its time
    delay_ns  by how much they come later than the frame
    """
    replaces = replaces_told(labels, frame)
    counted = any(one.rows.size or one.class_rows.size for one in frame.records)
    settled, outcome = found.settled, found.outcome
    if labels.complete:
        # A detection whose label could not be used may still get a better one.
        rest = ~(frame.resolved & (not replaces))
        rest[settled] = rest[found.open_rows] = False
        rest_rows = np.flatnonzero(rest)
        settled = np.append(settled, rest_rows)
        outcome = np.append(outcome, np.full(rest_rows.size, Outcome.UNMATCHED, np.uint8))
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
        stamp_ns=live.believed(frame.stored.stamp_ns),
        clock_ns=live.clock.now_ns,
        generation=live.generation,
        delay_ns=delay_ns,
        live=delay_ns <= live.live_ns and not (replaces and counted),
        account=found.account,
        objects_told=found.objects_told,
        gate=found.gate,
    )


@dataclass(slots=True)
class TruthLedger:
    """Enters the frames and labels of one pipeline, and counts each exactly once.

    journal   where entries are written
    sequence  of the last entry
    epoch     of the wall clock
    begins    the first entry that is in the account: frames before it are never counted in it
    """

    config: Config
    limits: Limits
    counting: MatchedCounting
    streams: Mapping[str, Stream]
    journal: Journal
    fates: Fates = field(init=False)
    places: LedgerFrames = field(init=False)
    sequence: int = 0
    epoch: int = 0
    begins: int = 0
    _recent: RecentChanges = field(default_factory=RecentChanges)

    def __post_init__(self) -> None:
        config = self.config
        self.fates = Fates(self.counting.counters, PendingStore(config.pending.max_bytes))
        angles = config.statistics.angles_in_joint
        self.places = LedgerFrames(self.counting.slices, self.counting.live.class_slices, angles)

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
        """Says whether a frame without labels of its own goes to the disk."""
        # Numbers that follow each other are spread.
        mixed = (frame_id * 0x9E3779B97F4A7C15) & (2**64 - 1)
        return (mixed >> 33) % self.config.pending.keep_one_frame_in == 0

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
        self.fates.came(frame)
        if inline is not None:
            self.fates.came_with(frame, inline)
        entry = FrameEntry(frame.sequence, frame.partition, stored, inline)
        if inline is None and not self.sampled(stored.frame_id):
            frame.why_not = Dropped.SAMPLED if self.journal.keeps else Dropped.MEMORY
        else:
            frame.kept = self.journal.note(entry)
            frame.why_not = Dropped.DISK_BUSY if self.journal.keeps else Dropped.MEMORY
        self.fates.hold(frame)

    def known(self, stream: str, frame_id: int, stamp_ns: int | None, partition: int) -> None:
        """Notes that the disk has a frame."""
        self.fates.store.remember((stream, frame_id), DroppedFrame(stamp_ns, partition, True))

    def dropped(self, partition: int, why: str) -> None:
        """The disk has a partition no more; what memory has of it goes on, unless it expired."""
        self._recent.dropped(partition, self.sequence)
        self.fates.partition_gone(partition, why)

    def restore(self, kept: Kept, *, lost: bool = False) -> PendingFrame:
        """A frame that the disk gave back, with all that labels told of it; nothing is counted.

        lost  the disk did not have it when the process began
        """
        frame = self.places.as_told(kept)
        frame.before_account = abs(frame.sequence) < self.begins
        self.fates.hold_again(frame, lost=lost)
        return frame

    # ---- labels

    def report(
        self, labels: ReceivedTruth, found: Kept | None = None, ahead: Ahead | None = None
    ) -> TruthAnswer | Search:
        """Matches labels to the detections of their frame, and counts what matched.

        ahead    the part that was done before
        found    what a Search has found on the disk; None before one was made
        returns  a Search where the frame may be on the disk alone
        """
        key = key_of(labels)
        frame = self.fates.store.get(key)
        if frame is None or (frame.released and asks_for_estimates(labels, frame)):
            if found is None or not self._up_to_date(found, key, frame):
                return self._elsewhere(labels, key, frame)
            if self._recent.dropped_since(found):
                return self.in_vain(labels)
            frame = self.restore(found)
        return self._report(labels, frame, ahead)

    def _up_to_date(self, found: Kept, key: FrameKey, frame: PendingFrame | None) -> bool:
        """Says whether a Search found all labels: more may have come while it went on.

        frame  what memory has of it, released
        """
        if self._recent.told_since(found, key):
            return False
        if frame is None:
            return True
        there = self.places.as_told(found)
        same = there.stored.stamp_ns == frame.stored.stamp_ns and there.revision == frame.revision
        return same and np.array_equal(there.outcome, frame.outcome)

    def heavy(self, labels: ReceivedTruth, found: Kept | None = None) -> Ahead | None:
        """Prepares heavy matching, which may be done on any thread before `report`.

        found    as `report` has it
        returns  None where matching is light, or the frame is not at hand
        """
        objects, known = labels.foreign, self.fates.store.get(key_of(labels))
        if known is not None and not (known.released and asks_for_estimates(labels, known)):
            stored, taken = known.stored, partial(copy, known)
        elif found is not None:
            stored, taken = found.entry.frame, partial(self.places.as_told, found)
        else:
            return None
        if objects is None:
            return None
        unsure = int(np.count_nonzero(objects.covariance_length))
        if objects.n * stored.n + unsure * stored.header.space.k**2 < HEAVY:
            return None
        frame = taken()
        resolved, again = resolved_before(labels, frame)
        return Ahead(frame, resolved, again, self._matching(labels, frame, resolved, again))

    def in_vain(self, labels: ReceivedTruth) -> TruthAnswer:
        """The answer where a Search has found nothing."""
        key, told = key_of(labels), labels_told(labels)
        if self.fates.store.gone(key) is not None or key in self.fates.store:
            return self._answered(TruthAccount(too_late=told))
        return self._answered(TruthAccount(orphan=told), orphan_notice(labels, self.streams))

    def _elsewhere(
        self, labels: ReceivedTruth, key: FrameKey, frame: PendingFrame | None
    ) -> TruthAnswer | Search:
        gone = self.fates.store.gone(key)
        kept = frame.kept if frame is not None else gone is None or gone.kept
        if labels.frame_id is None or not self.journal.keeps or not kept:
            return self.in_vain(labels)
        known = frame or gone
        partition = None if known is None else known.partition
        return Search(labels.stream, labels.frame_id, partition)

    def _report(
        self, labels: ReceivedTruth, frame: PendingFrame, ahead: Ahead | None = None
    ) -> TruthAnswer:
        revised, told = revises(labels, frame), labels_told(labels)
        if labels.stamp_ns not in (None, frame.stored.stamp_ns):
            return self._answered(TruthAccount(orphan=told), OTHER_FRAME)
        if labels.revision < frame.revision or (frame.released and revised):
            return self._answered(TruthAccount(duplicate=told))
        if self.journal.full:
            # Counted and not kept, they would be counted again when they are sent again.
            return self._answered(TruthAccount(refused=told), JOURNAL_FULL)
        resolved, again = resolved_before(labels, frame)
        matched = None if ahead is None else ahead.still(frame, resolved, again)
        if matched is None:
            matched = self._matching(labels, frame, resolved, again)()
        for notice in matched.notices:
            self.counting.counters.note(notice.reason, notice.count)
        if revised and told and matched.account.refused + matched.account.orphan == told:
            # A mistake in all labels is no reason to take back what was good.
            return self._answered(matched.account, *matched.notices)
        stream = self.streams.get(labels.stream)
        delay_ns = 0 if stream is None else stream.time.since(frame.stored.stamp_ns)
        record = label_record(labels, frame, matched, self.counting.live, delay_ns)
        self.counting.counters.unmatched += record.settled.size - matched.settled.size
        self.counting.counters.truth.add(matched.account)
        if not (revised or record.settled.size or record.objects_told):
            return TruthAnswer(matched.account, matched.notices)
        self.counting.counters.truth_delay.observe(record.delay_ns / 1e9)
        sequence = self.next_sequence()
        entry = LabelEntry(sequence, frame.partition, *frame.key, record)
        if not frame.kept:
            # Labels are scarce: what they are of goes to the disk with them.
            inline = next((one for one in frame.records if one.revision < 0), None)
            brought = FrameEntry(-abs(frame.sequence), frame.partition, frame.stored, inline)
            entry = replace(entry, frame=brought)
        retracted = self.tell(frame, record, sequence)
        if self.journal.note(entry) and not frame.kept and not frame.released:
            self.fates.kept(frame)
        return TruthAnswer(matched.account, matched.notices, retracted, sequence)

    def _matching(
        self, labels: ReceivedTruth, frame: PendingFrame, resolved: BoolArray, again: bool
    ) -> Callable[[], LabelsMatched]:
        config, limits = self.config.matching, self.limits
        return partial(matched_labels, labels, frame, resolved, config, limits, again=again)

    def _answered(self, account: TruthAccount, *notices: Notice) -> TruthAnswer:
        """Labels that change nothing."""
        self.counting.counters.truth.add(account)
        return TruthAnswer(account, notices)

    def tell(self, frame: PendingFrame, record: LabelRecord, sequence: int) -> int:
        """Counts what labels tell of a frame; returns the detections whose fate they take back."""
        if record.replaces:
            for earlier in frame.records:
                self.counting.take_back(frame, earlier)
        self.counting.count(frame, record)
        self._recent.told(frame.key, sequence)
        return self.fates.tell(frame, record)
