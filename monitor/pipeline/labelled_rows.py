"""Hands matched detections to everything that counts them: statistics, drift, recalibrators.

Matching labels to detections never happens here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from monitor.frames.detections import Estimates, FrameBatch
from monitor.frames.frame import MatchedRows, Opinions, StoredEstimates, TrackIds
from monitor.frames.slices import SliceTable
from monitor.frames.space import IntArray, Space
from monitor.frames.status import Counters
from monitor.matching.objects import LabelRecord
from monitor.pipeline.drift_watch import DriftWatch
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.learning import LabelledTracks
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.pipeline.pending import PendingFrame
from monitor.promotion.tracks import LabelledRows
from monitor.statistics.clusters import cluster_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class RowsWithTruth:
    """m detections of a frame, as sent and as recalibrated, with the record of their labels.

    slices  (m,)
    source  tells tracks (m,) of equal id apart
    """

    space: Space
    slices: IntArray
    sent: Estimates
    made: Estimates
    tracks: TrackIds | None
    source: int
    record: LabelRecord

    def matched(self) -> MatchedRows:
        """Returns the errors at both stages, as statistics and drift take them."""
        sent, made, record = self.sent, self.made, self.record
        error = self.space.error(record.truth, sent.mean)
        same = made.mean is sent.mean
        return MatchedRows(
            space=self.space,
            slices=self.slices,
            error=error,
            covariance=sent.covariance,
            recalibrated_error=error if same else self.space.error(record.truth, made.mean),
            recalibrated_covariance=made.covariance,
            stamp_ns=record.stamp_ns,
            live=record.live,
            tracks=self.tracks,
            source=self.source,
        )

    def labelled(self) -> LabelledRows | None:
        """Returns the rows for fits and trials; None without rows or event time."""
        record = self.record
        if record.stamp_ns is None or self.slices.size == 0:
            return None
        return LabelledRows(
            self.space,
            self.slices,
            self.sent,
            record.truth,
            record.stamp_ns,
            record.delay_ns,
            self.tracks,
            self.source,
        )


def inline_rows(
    batch: FrameBatch,
    record: LabelRecord,
    slices: IntArray,
    made: Estimates,
    tracks: TrackIds | None,
    source: int,
) -> RowsWithTruth:
    """Takes the rows of a batch whose labels came with it.

    slices, made, tracks  of the whole batch, (n,)
    """
    rows = record.rows
    sent = Estimates(batch.mean[rows], batch.covariance[rows], batch.diagonal[rows])
    same = made.mean is batch.mean and made.covariance is batch.covariance
    scored = sent if same else made.take(rows)
    known = None if tracks is None else tracks.take(rows)
    return RowsWithTruth(batch.space, slices[rows], sent, scored, known, source, record)


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

    def count(self, frame: PendingFrame, record: LabelRecord) -> None:
        """Counts the detections of a frame that labels matched; cheap."""
        rows = self._rows(frame, record) if record.rows.size else None
        self.count_rows(rows, frame.stored.version, frame.opinions, record)

    def count_rows(
        self,
        rows: RowsWithTruth | None,
        version: str | None,
        opinions: Opinions | None,
        record: LabelRecord,
    ) -> None:
        """Counts rows, and class probabilities of their frame, by the record of their labels.

        rows  None: no detection has ground truth
        """
        if rows is not None and rows.slices.size:
            matched = rows.matched()
            in_overflow = np.isin(rows.slices, self.slices.overflowing)
            self.counters.overflow_detections += int(np.count_nonzero(in_overflow))
            self.live.count(matched)
            # Drift and recalibrators cannot retract the label that a late one replaces.
            if record.live or not record.replaces:
                # The statistics hold the rows already, so the ledger must hold them too.
                fault = "matched detections were not counted for drift and recalibrators"
                with contained(self.counters, log, fault):
                    self.drift.add(matched, version)
                    labelled = rows.labelled()
                    if labelled is not None:
                        self.learning.take(labelled)
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
        tracks = None if stored.tracks is None else stored.tracks.take(rows)
        told, slices = tracks_told(tracks, record.objects), frame.slices[rows]
        return RowsWithTruth(frame.space, slices, sent, made, told, stored.source, record)

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
