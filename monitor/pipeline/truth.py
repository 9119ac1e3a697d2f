"""The ledger of ground truth: frames as they come, labels with their revisions, each counted once.

Every entry holds what was counted for it, so that it can be retracted, and done again after a
crash. Labels of many objects may be matched ahead of their report, on any thread.

Matching labels to detections never happens here.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from monitor.config import Config
from monitor.drift.class_bets import judged
from monitor.frames.detections import Estimates, Limits, Reason
from monitor.frames.frame import (
    MatchedClasses,
    MatchedRows,
    Origin,
    ReceivedTruth,
    StoredEstimates,
    StoredFrame,
    TrackIds,
    TruthAnswer,
    by_space,
    no_tracks,
)
from monitor.frames.reasons import Notice
from monitor.frames.status import Counters, TruthAccount
from monitor.matching.labels import labels_told, match, orphan_notice
from monitor.matching.objects import INLINE, LabelRecord, Outcome
from monitor.pipeline.drift_watch import DriftWatch, WatchedClasses
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.learning import CLASS_SLICE, LabelledTracks
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.pipeline.pending import (
    Dropped,
    DroppedFrame,
    Fates,
    FrameKey,
    LedgerFrames,
    PendingFrame,
    PendingStore,
    last_of,
    remember,
)
from monitor.pipeline.streams import Stream
from monitor.promotion.tracks import ClassKind, LabelledClasses, LabelledRows
from monitor.statistics.clusters import cluster_id
from monitor.store.entries import FrameEntry, Kept, LabelEntry
from monitor.store.journal import Journal

log = logging.getLogger(__name__)


def rows_with_truth(
    frame: PendingFrame, record: LabelRecord
) -> tuple[tuple[MatchedRows, LabelledRows | None], ...]:
    """Returns labelled detections as statistics and drift take them, and as fits and trials do.

    Fits and trials take none without event time. Detections that came without a covariance are
    apart from the others.
    """
    rows, stored, space = record.rows, frame.stored, frame.space
    sent = _scored(stored.sent, record)
    made = sent if stored.made is None else _scored(stored.made, record)
    error = space.error(record.truth, sent.mean)
    tracks = None if stored.tracks is None else stored.tracks.take(rows)
    origin = None
    if stored.frame_id >= 0 or stored.stamp_ns is not None:
        stream = stored.header.stream
        origin = Origin(stream, stored.frame_id, stored.stamp_ns, rows, sent.mean)
    matched = MatchedRows(
        space=space,
        slices=frame.slices[rows],
        error=error,
        covariance=sent.covariance,
        recalibrated_error=error if made is sent else space.error(record.truth, made.mean),
        recalibrated_covariance=made.covariance,
        stamp_ns=record.stamp_ns,
        live=record.live,
        tracks=tracks_told(tracks, record.objects),
        source=stored.source,
        origin=origin,
    )
    labelled = None
    if record.stamp_ns is not None:
        labelled = LabelledRows(
            space=space,
            slices=matched.slices,
            sent=sent,
            truth=record.truth,
            stamp_ns=record.stamp_ns,
            delay_ns=record.delay_ns,
            tracks=matched.tracks,
            source=stored.source,
        )
    assumed = None if (bare := stored.assumed) is None else bare[rows]
    parts = by_space(matched, assumed)
    if labelled is None:
        return tuple((part, None) for part in parts)
    return tuple(zip(parts, by_space(labelled, assumed), strict=True))


def claimed(rows: MatchedRows) -> MatchedRows:
    """Leaves out covariances that are assumed: nobody claims them, so that none can drift.

    Estimated ones are watched as they were forwarded.
    """
    if not rows.space.assumed:
        return rows
    found = rows.take((rows.recalibrated_covariance != rows.covariance).any(axis=(1, 2)))
    # In the space of what was sent, so that both kinds are taken in together.
    found = replace(found, space=rows.space.with_sent)
    return replace(found, error=found.recalibrated_error, covariance=found.recalibrated_covariance)


def classes_with_truth(stored: StoredFrame, record: LabelRecord) -> LabelledClasses | None:
    """Returns class probabilities with their true classes, as fits and trials take them.

    They take none without event time.
    """
    opinions, rows = stored.opinions, record.class_rows
    if opinions is None or rows.size == 0 or record.stamp_ns is None:
        return None
    values = opinions.values[np.searchsorted(opinions.rows, rows)]
    return LabelledClasses(
        kind=ClassKind(stored.header.classes, values.shape[1]),
        slices=np.full(rows.size, CLASS_SLICE),
        probabilities=values,
        label=record.true_class,
        stamp_ns=record.stamp_ns,
        delay_ns=record.delay_ns,
        tracks=None if stored.tracks is None else stored.tracks.take(rows),
        source=stored.source,
    )


def class_tracks(stored: StoredFrame, record: LabelRecord) -> TrackIds | None:
    """Chooses the tracks of detections with a true class, as those of the others are."""
    rows, objects = record.class_rows, record.objects
    if objects is not None:
        place = np.full(stored.n, -1)
        place[record.rows] = np.arange(record.rows.size)
        there = place[rows] >= 0
        told, at = no_tracks(rows.size), place[rows[there]]
        told.id[there], told.known[there] = objects.id[at], objects.known[at]
        objects = told
    return tracks_told(None if stored.tracks is None else stored.tracks.take(rows), objects)


def tracks_told(tracks: TrackIds | None, objects: TrackIds | None) -> TrackIds | None:
    """Chooses the tracks of labelled detections: the labeller's objects, else a tracker's tracks.

    Ids of objects are hashed, so that an object and a track of the same number differ.
    """
    if objects is None:
        return tracks
    told = cluster_id((objects.id, 1))
    if tracks is None:
        return TrackIds(told, objects.known)
    return TrackIds(np.where(objects.known, told, tracks.id), objects.known | tracks.known)


def _scored(stored: StoredEstimates, record: LabelRecord) -> Estimates:
    """Returns the estimates of labelled rows with Σ + Σ_truth, against which errors are held."""
    found, extra = stored.estimates(record.rows), record.truth_covariance
    if extra is None:
        return found
    k = extra.shape[1]
    off_diagonal = (extra * (1.0 - np.eye(k))).reshape(-1, k * k)
    diagonal = found.diagonal & (np.count_nonzero(off_diagonal, axis=1) == 0)
    return Estimates(found.mean, found.covariance + extra, diagonal, found.score)


# Pairs of an object and a detection, and values of the objects' covariances, that are too many to
# be gone through between two frames: some milliseconds.
HEAVY = 40_000

# Dropped partitions remembered: far more than go while one frame is read from disk.
_RECENT = 4096

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


# Labels that were matched before their report, and the last entry of their frame at that time.
Ahead = tuple[int, LabelRecord]


def key_of(labels: ReceivedTruth) -> FrameKey:
    """Returns the key of the labelled frame; no frame has it where the labels name none."""
    return labels.stream, -1 if labels.frame_id is None else labels.frame_id


def revises(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Says whether labels replace those that were told before."""
    return labels.revision > max(frame.revision, 0)


def has_counted(frame: PendingFrame) -> bool:
    """Says whether labels of a frame were counted, and are not taken back."""
    return any(one.rows.size or one.class_rows.size for one in frame.records)


def asks_for_estimates(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Says whether labels need the estimates of a frame of which only the ids are left."""
    spoken_of = labels.foreign is not None or bool(labels.regions)
    news = spoken_of and not frame.objects_told and labels.revision >= frame.revision
    return news or revises(labels, frame)


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
    live: LiveStatistics
    drift: DriftWatch
    learning: LabelledTracks
    counters: Counters
    streams: Mapping[str, Stream]
    journal: Journal
    fates: Fates = field(init=False)
    places: LedgerFrames = field(init=False)
    sequence: int = 0
    epoch: int = 0
    begins: int = 0
    # The last entry before each partition was dropped.
    _dropped: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        config = self.config
        self.fates = Fates(self.counters, PendingStore(config.pending.max_bytes))
        angles = config.statistics.angles_in_joint
        self.places = LedgerFrames(self.live.slices, self.live.class_slices, angles)

    # ---- frames

    def next_sequence(self) -> int:
        """Returns the number of an entry that is to be made."""
        self.sequence += 1
        return self.sequence

    def partition_of(self, stamp_ns: int | None) -> int:
        """Returns the partition of an event time; of now if there is none, or none is believed."""
        length_ns = int(self.config.pending.partition_minutes * 60e9)
        believed = self.live.believed(stamp_ns)
        time_ns = self.live.clock.now_ns if believed is None else believed
        return 0 if time_ns is None else time_ns // length_ns

    def sampled(self, frame_id: int) -> bool:
        """Says whether a frame without labels of its own goes to the disk."""
        # Numbers that follow each other are spread.
        mixed = (frame_id * 0x9E3779B97F4A7C15) & (2**64 - 1)
        return (mixed >> 33) % self.config.pending.keep_one_frame_in == 0

    def enter(self, frame: PendingFrame, inline: LabelRecord | None) -> None:
        """Enters a frame that was answered, and the labels with it, which are counted already."""
        entry = FrameEntry(frame.sequence, frame.partition, frame.stored, inline)
        if inline is not None or self.sampled(frame.stored.frame_id):
            frame.kept = self.journal.note(entry)
            missed = Dropped.DISK_BUSY
        else:
            missed = Dropped.SAMPLED
        frame.why_not = missed if self.journal.keeps else Dropped.MEMORY
        self.fates.came(frame, inline)

    def known(self, stream: str, frame_id: int, stamp_ns: int | None, partition: int) -> None:
        """Notes that the disk has a frame."""
        self.fates.store.remember((stream, frame_id), DroppedFrame(stamp_ns, partition, True))

    def dropped(self, partition: int, why: str) -> None:
        """Notes that the disk lost a partition; its frames in memory stay, unless it expired."""
        remember(self._dropped, partition, self.sequence, _RECENT)
        self.fates.partition_gone(partition, why)

    def restore(self, kept: Kept, *, lost: bool = False) -> PendingFrame:
        """Keeps a frame that the disk gave back, with all that labels told of it; counts nothing.

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

        found    what a Search has found on the disk; None before one was made
        ahead    labels that `heavy` had matched; used unless others were told meanwhile
        returns  a Search where the frame may be on the disk alone
        """
        key = key_of(labels)
        frame = self.fates.store.get(key)
        if frame is None or (frame.released and asks_for_estimates(labels, frame)):
            known = self.fates.store.gone(key) if frame is None else frame
            if labels.frame_id is None or not self._may_be_on_disk(known):
                return self.in_vain(labels)
            # More labels may have come while the disk was read.
            if found is None or (known is not None and last_of(found) < known.last):
                partition = None if known is None else known.partition
                return Search(labels.stream, labels.frame_id, partition)
            if last_of(found) <= self._dropped.get(found.entry.partition, -1):
                return self.in_vain(labels)
            frame = self.restore(found)
        return self._report(labels, frame, ahead)

    def _may_be_on_disk(self, known: PendingFrame | DroppedFrame | None) -> bool:
        """Says whether the disk may have a frame; None: memory knows nothing of it."""
        if known is None:
            return self.journal.keeps
        return known.kept and known.last > self._dropped.get(known.partition, -1)

    def heavy(
        self, labels: ReceivedTruth, found: Kept | None = None
    ) -> tuple[int, Callable[[], LabelRecord]] | None:
        """Prepares matching that would hold up the loop, to be done on any thread.

        found    as `report` has it
        returns  the two parts of Ahead, the second still to be made; None where matching is light,
                 or the frame is not at hand
        """
        objects, frame = labels.foreign, self.fates.store.get(key_of(labels))
        if objects is None:
            return None
        if frame is None or (frame.released and asks_for_estimates(labels, frame)):
            if found is None:
                return None
            frame = self.places.as_told(found)
        unsure = int(np.count_nonzero(objects.covariance_length))
        if objects.n * frame.stored.n + unsure * frame.space.k**2 < HEAVY:
            return None
        return frame.last, self._matching(labels, frame)

    def in_vain(self, labels: ReceivedTruth) -> TruthAnswer:
        """Answers labels whose frame a Search has not found."""
        key, told = key_of(labels), labels_told(labels)
        if self.fates.store.gone(key) is not None or key in self.fates.store:
            return self._answered(TruthAccount(too_late=told))
        return self._answered(TruthAccount(orphan=told), orphan_notice(labels, self.streams))

    def _report(
        self, labels: ReceivedTruth, frame: PendingFrame, ahead: Ahead | None
    ) -> TruthAnswer:
        counters, live = self.counters, self.live
        revised, told = revises(labels, frame), labels_told(labels)
        if labels.stamp_ns not in (None, frame.stored.stamp_ns):
            return self._answered(TruthAccount(orphan=told), OTHER_FRAME)
        if labels.revision < frame.revision or (frame.released and revised):
            return self._answered(TruthAccount(duplicate=told))
        if self.journal.full:
            # Counted and not kept, they would be counted again when they are sent again.
            return self._answered(TruthAccount(refused=told), JOURNAL_FULL)
        if ahead is not None and ahead[0] == frame.last:
            matched = ahead[1]
        else:
            matched = self._matching(labels, frame)()
        account, notices = matched.account, matched.notices
        for notice in notices:
            counters.notices[notice.reason] += notice.count
        if revised and told and account.refused + account.orphan == told:
            # A mistake in all labels is no reason to take back what was good.
            return self._answered(account, *notices)
        counters.unmatched += int(np.count_nonzero(matched.outcome == Outcome.UNMATCHED))
        counters.truth.add(account)
        if not (revised or matched.settled.size or matched.objects_told):
            return TruthAnswer(account, notices)
        stream = self.streams.get(labels.stream)
        delay_ns = 0 if stream is None else stream.time.since(frame.stored.stamp_ns)
        counters.truth_delay.observe(delay_ns / 1e9)
        replaces = revised and bool(frame.records)
        record = replace(
            matched,
            replaces=replaces,
            stamp_ns=live.believed(frame.stored.stamp_ns),
            clock_ns=live.clock.now_ns,
            generation=live.generation,
            delay_ns=delay_ns,
            live=delay_ns <= live.live_ns and not (replaces and has_counted(frame)),
            notices=(),
        )
        sequence = self.next_sequence()
        entry = LabelEntry(sequence, frame.partition, *frame.key, record)
        if not frame.kept:
            # Labels are scarce: what they are of goes to the disk with them.
            inline = next((one for one in frame.records if one.revision == INLINE), None)
            brought = FrameEntry(-abs(frame.sequence), frame.partition, frame.stored, inline)
            entry = replace(entry, frame=brought)
        retracted = self.tell(frame, record, sequence)
        if self.journal.note(entry) and not frame.kept and not frame.released:
            self.fates.kept(frame)
        return TruthAnswer(account, notices, retracted, sequence)

    def _matching(self, labels: ReceivedTruth, frame: PendingFrame) -> Callable[[], LabelRecord]:
        """Prepares matching on arrays that nothing changes."""
        replaces = revises(labels, frame) and bool(frame.records)
        free = np.ones(frame.stored.n, bool) if replaces else ~frame.resolved
        again = frame.released or (frame.objects_told and not replaces)
        config, limits = self.config.matching, self.limits
        return partial(match, labels, frame.stored, free, config, limits, again=again)

    def _answered(self, account: TruthAccount, *notices: Notice) -> TruthAnswer:
        """Counts labels that change nothing."""
        self.counters.truth.add(account)
        return TruthAnswer(account, notices)

    def tell(self, frame: PendingFrame, record: LabelRecord, sequence: int) -> int:
        """Counts what labels tell of a frame; returns the detections whose fate they take back."""
        again = record.replaces and has_counted(frame)
        if record.replaces:
            for earlier in frame.records:
                self.take_back(frame, earlier)
        self.count(frame, record, again=again)
        frame.last = sequence
        return self.fates.tell(frame, record)

    # ---- statistics

    def count(self, frame: PendingFrame, record: LabelRecord, *, again: bool = False) -> None:
        """Counts the detections of a frame that labels matched, with their classes; cheap.

        again  they replace labels that were counted: neither drift nor recalibrators can retract
               those, so that they take none of the new ones
        """
        parts = rows_with_truth(frame, record) if record.rows.size else ()
        for matched, labelled in parts:
            for slice in self.live.slices.overflowing:
                overflowed = int(np.count_nonzero(matched.slices == slice))
                self.counters.overflow_detections += overflowed
            self.live.count(matched)
            if not again:
                # The statistics hold the rows already, so the ledger must hold them too.
                fault = "matched detections were not counted for drift and recalibrators"
                with contained(self.counters, log, fault):
                    self.drift.add(claimed(matched), frame.stored.version)
                    if labelled is not None:
                        self.learning.take(labelled)
        self._count_classes(frame, record, record.stamp_ns, again=again)

    def take_back(self, frame: PendingFrame, record: LabelRecord) -> None:
        """Retracts a record from the statistics, exactly.

        Evidence of drift and the tracks for fits stay: neither can be retracted.
        """
        # Rows that were counted before event time began anew are older than every window.
        stamp_ns = record.stamp_ns if record.generation == self.live.generation else None
        for rows, _ in rows_with_truth(frame, record) if record.rows.size else ():
            self.live.count(replace(rows, stamp_ns=stamp_ns, live=False, retracts=True))
        self._count_classes(frame, record, stamp_ns, retracts=True)

    def _count_classes(
        self,
        frame: PendingFrame,
        record: LabelRecord,
        stamp_ns: int | None,
        *,
        again: bool = False,
        retracts: bool = False,
    ) -> None:
        """Counts class probabilities of labelled rows with their true class.

        A fault costs the class statistics of these rows alone.
        """
        stored, rows, table = frame.stored, record.class_rows, self.live.class_slices
        opinions, watched = stored.opinions, not (retracts or again)
        if opinions is None or rows.size == 0:
            return
        with contained(self.counters, log, "matched class probabilities were not counted"):
            index, key = None, opinions.slice
            if key is not None:
                index = table.place(stored.header.classes, key.name, overflow=key.overflow)
            if index is None or table.slices[index].overflow:
                self.counters.overflow_classified += rows.size
            if index is not None:
                place = np.searchsorted(opinions.rows, rows)
                made = None if opinions.made is None else opinions.made[place]
                values, true_class = opinions.values[place], record.true_class
                matched = MatchedClasses(index, values, true_class, stamp_ns, retracts, made)
                self.live.count(matched)
                if watched:
                    confidence, right = judged(values, made, true_class)
                    self.drift.add(
                        WatchedClasses(
                            index,
                            confidence,
                            right,
                            class_tracks(stored, record),
                            stamp_ns,
                            record.live,
                            stored.source,
                            made is None,
                            abs(frame.sequence),
                        )
                    )
        if watched:
            with contained(self.counters, log, "class labels were not kept for fits"):
                labelled = classes_with_truth(stored, record)
                if labelled is not None:
                    self.learning.take(labelled)
