"""Hands matched detections to everything that counts them: statistics, drift, recalibrators.

Matching labels to detections never happens here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from monitor.frames.counters import Counters
from monitor.frames.detections import Estimates, FrameBatch
from monitor.frames.frame import MatchedRows, Opinions, TrackIds
from monitor.frames.slices import SliceTable
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.frames.stored import StoredEstimates
from monitor.matching.record import LabelRecord
from monitor.pipeline.drift_watch import DriftWatch
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.learning import LabelledTracks
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.pipeline.pending import PendingFrame
from monitor.promotion.tracks import LabelledRows
from monitor.statistics.clusters import cluster_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryParts:
    """The parts of the state that do not hold an entry of the ledger yet."""

    statistics: bool = True
    drift: bool = True
    learning: bool = True


ALL = EntryParts()


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of matched detections: event time of their frame, stream, and their tracks.

    delay_ns  event time between the frame and its labels
    live      True: the labels came in time for the counters
    """

    stamp_ns: int | None
    source: int
    tracks: TrackIds | None
    delay_ns: int = 0
    live: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class RowsWithTruth:
    """m detections of a frame, as sent and as recalibrated, with truth (m, K) and slices (m,)."""

    space: Space
    slices: IntArray
    sent: Estimates
    made: Estimates
    truth: FloatArray
    origin: Origin

    def matched(self) -> MatchedRows:
        """Returns the errors at both stages, as statistics and drift take them."""
        sent, made, origin = self.sent, self.made, self.origin
        error = self.space.error(self.truth, sent.mean)
        same = made.mean is sent.mean
        return MatchedRows(
            space=self.space,
            slices=self.slices,
            error=error,
            covariance=sent.covariance,
            recalibrated_error=error if same else self.space.error(self.truth, made.mean),
            recalibrated_covariance=made.covariance,
            stamp_ns=origin.stamp_ns,
            live=origin.live,
            tracks=origin.tracks,
            source=origin.source,
        )

    def labelled(self) -> LabelledRows | None:
        """Returns the rows for fits and trials; None without rows or event time."""
        origin = self.origin
        if origin.stamp_ns is None or self.slices.size == 0:
            return None
        return LabelledRows(
            self.space,
            self.slices,
            self.sent,
            self.truth,
            origin.stamp_ns,
            origin.delay_ns,
            origin.tracks,
            origin.source,
        )


def inline_rows(
    batch: FrameBatch, rows: IntArray, slices: IntArray, made: Estimates, origin: Origin
) -> RowsWithTruth:
    """Takes the rows (m,) of a batch whose labels came with it.

    slices, made  of the whole batch, (n,)
    """
    sent = Estimates(batch.mean[rows], batch.covariance[rows], batch.diagonal[rows])
    same = made.mean is batch.mean and made.covariance is batch.covariance
    scored = sent if same else made.take(rows)
    return RowsWithTruth(batch.space, slices[rows], sent, scored, batch.truth[rows], origin)


def tracks_of_rows(tracks: TrackIds | None, rows: IntArray) -> TrackIds | None:
    """Returns the tracks of some detections of a frame; None if none are known."""
    return None if tracks is None else tracks.take(rows)


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


@dataclass(slots=True)
class MatchedCounting:
    """Counts matched detections of one pipeline."""

    live: LiveStatistics
    slices: SliceTable
    drift: DriftWatch
    learning: LabelledTracks
    counters: Counters

    def count(
        self, frame: PendingFrame, record: LabelRecord, sequence: int, parts: EntryParts = ALL
    ) -> None:
        """Counts the detections of a frame that labels matched; cheap.

        sequence  of the entry in the ledger
        """
        rows = self._rows(frame, record) if record.rows.size else None
        self.count_rows(rows, frame.stored.version, frame.opinions, record, sequence, parts)

    def count_rows(
        self,
        rows: RowsWithTruth | None,
        version: str | None,
        opinions: Opinions | None,
        record: LabelRecord,
        sequence: int,
        parts: EntryParts = ALL,
    ) -> None:
        """Counts rows, and class probabilities of their frame, by the record of their labels.

        rows  None: no detection has ground truth
        """
        if rows is not None and rows.slices.size:
            matched = rows.matched()
            if parts.statistics:
                in_overflow = np.isin(rows.slices, self.slices.overflowing)
                self.counters.overflow_detections += int(np.count_nonzero(in_overflow))
                self.live.count(matched)
            # Drift and recalibrators cannot retract the label that a late one replaces.
            if record.live or not record.replaces:
                # The statistics hold the rows already, so the ledger must hold them too.
                fault = "matched detections were not counted for drift and recalibrators"
                with contained(self.counters, log, fault):
                    if parts.drift:
                        self.drift.add(matched, version, sequence)
                    labelled = rows.labelled()
                    if parts.learning and labelled is not None:
                        self.learning.take(labelled)
        if parts.statistics:
            self._count_classes(opinions, record, record.stamp_ns)

    def take_back(self, frame: PendingFrame, record: LabelRecord) -> None:
        """Retracts a record from the statistics, exactly.

        Evidence of drift and the tracks for fits stay: neither can be retracted.
        """
        # Rows that were counted before event time began anew are older than every window.
        stamp_ns = record.stamp_ns if record.generation == self.live.generation else None
        if record.rows.size:
            rows = self._rows(frame, record).matched()
            self.live.count(replace(rows, stamp_ns=stamp_ns, live=False, retracts=True))
        self._count_classes(frame.opinions, record, stamp_ns, retracts=True)

    def _rows(self, frame: PendingFrame, record: LabelRecord) -> RowsWithTruth:
        rows, stored = record.rows, frame.stored
        sent = _scored(stored.sent, record)
        made = sent if stored.made is None else _scored(stored.made, record)
        told = tracks_told(tracks_of_rows(stored.tracks, rows), record.objects)
        origin = Origin(record.stamp_ns, stored.source, told, record.delay_ns, record.live)
        return RowsWithTruth(frame.space, frame.slices[rows], sent, made, record.truth, origin)

    def _count_classes(
        self,
        opinions: Opinions | None,
        record: LabelRecord,
        stamp_ns: int | None,
        *,
        retracts: bool = False,
    ) -> None:
        """Counts class probabilities of labelled rows with their true class.

        A fault costs the class statistics of these rows alone.
        """
        rows = record.class_rows
        if opinions is None or rows.size == 0:
            return
        with contained(self.counters, log, "matched class probabilities were not counted"):
            place = opinions.index
            if place is None or self.live.class_slices.slices[place].overflow:
                self.counters.overflow_classified += rows.size
            matched = opinions.matched(rows, record.true_class, stamp_ns)
            if matched is not None:
                self.live.count(replace(matched, retracts=retracts))


def _scored(stored: StoredEstimates, record: LabelRecord) -> Estimates:
    """Returns the estimates of labelled rows with Σ + Σ_truth, against which errors are held."""
    found, extra = stored.estimates(record.rows), record.truth_covariance
    if extra is None:
        return found
    k = extra.shape[1]
    off_diagonal = (extra * (1.0 - np.eye(k))).reshape(-1, k * k)
    diagonal = found.diagonal & (np.count_nonzero(off_diagonal, axis=1) == 0)
    return Estimates(found.mean, found.covariance + extra, diagonal)
