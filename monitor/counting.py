"""Detections with their truth, on their way into all that learns from them: statistics, the watch
over drift, and recalibrators.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.class_matched import Opinions
from monitor.calibration.slices import SliceTable
from monitor.calibration.space import BoolArray, FloatArray
from monitor.counters import Counters
from monitor.drift_watch import DriftWatch
from monitor.learning import Learning
from monitor.ledger import LabelRecord
from monitor.live_statistics import LiveStatistics
from monitor.pending import PendingFrame
from monitor.recalibration.recalibrator import Estimates
from monitor.truth_rows import Origin, TrueRows, tracks_of_rows, tracks_told

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """Which of those that learn an entry of the ledger is new to."""

    statistics: bool = True
    drift: bool = True
    learning: bool = True


ALL = Parts()


@dataclass(slots=True)
class Counting:
    """Of one pipeline."""

    live: LiveStatistics
    slices: SliceTable
    drift: DriftWatch
    learning: Learning
    counters: Counters

    def count(
        self, frame: PendingFrame, record: LabelRecord, sequence: int, parts: Parts = ALL
    ) -> None:
        """Take in what labels told of a frame; cheap.

        sequence  of the entry in the ledger
        """
        if record.rows.size:
            rows = self._rows(frame, record)
            self._take(rows, frame.stored.version, record, sequence, parts)
        if parts.statistics:
            self._count_classes(frame.opinions, record, record.stamp_ns)

    def count_inline(
        self,
        rows: TrueRows | None,
        version: str | None,
        opinions: Opinions | None,
        record: LabelRecord,
        sequence: int,
    ) -> None:
        """The same of what came with a frame, whose estimates are at hand; rows None: none has
        truth.
        """
        if rows is not None and rows.slices.size:
            self._take(rows, version, record, sequence, ALL)
        self._count_classes(opinions, record, record.stamp_ns)

    def take_back(self, frame: PendingFrame, record: LabelRecord, generation: int) -> None:
        """Undo in the statistics what was counted for it; exact.

        Evidence of drift and what recalibrators have learned stay: neither can be unlearned.

        generation  how often event time has begun anew by now
        """
        # What was counted before time began anew is older than every window.
        stamp_ns = record.stamp_ns if record.generation == generation else None
        if record.rows.size:
            rows = self._rows(frame, record).matched()
            self.live.count(replace(rows, stamp_ns=stamp_ns, live=False, retracts=True))
        self._count_classes(frame.opinions, record, stamp_ns, retracts=True)

    def _rows(self, frame: PendingFrame, record: LabelRecord) -> TrueRows:
        rows, stored = record.rows, frame.stored
        sent = stored.sent.estimates(rows)
        made = sent if stored.made is None else stored.made.estimates(rows)
        told = tracks_told(tracks_of_rows(stored.tracks, rows), record.objects)
        origin = Origin(record.stamp_ns, stored.source, told, record.delay_ns, record.live)
        if record.truth_covariance is not None:
            sent, made = _beside(sent, made, record.truth_covariance)
        return TrueRows(frame.space, frame.slices[rows], sent, made, record.truth, origin)

    def _take(
        self,
        rows: TrueRows,
        version: str | None,
        record: LabelRecord,
        sequence: int,
        parts: Parts,
    ) -> None:
        matched = replace(rows.matched(), stamp_ns=record.stamp_ns)
        if parts.statistics:
            in_overflow = np.isin(rows.slices, self.slices.overflowing)
            self.counters.overflow_detections += int(np.count_nonzero(in_overflow))
            self.live.count(matched)
        if record.replaces and not record.live:
            return  # told before: neither can be told otherwise
        try:
            if parts.drift:
                self.drift.add(matched, version, sequence)
            labelled = rows.labelled()
            if parts.learning and labelled is not None and record.stamp_ns is not None:
                self.learning.take(labelled)
        except Exception:
            # What is in the statistics by now must be in the ledger too.
            log.exception("neither drift nor recalibrators learned of matched detections")
            self.counters.internal_errors += 1

    def _count_classes(
        self,
        opinions: Opinions | None,
        record: LabelRecord,
        stamp_ns: int | None,
        *,
        retracts: bool = False,
    ) -> None:
        """Count class probabilities of rows, all of which have some, with their true class.

        A fault costs the statistics of these rows and nothing else.
        """
        rows = record.class_rows
        if opinions is None or rows.size == 0:
            return
        try:
            place = opinions.index
            if place is None or self.live.class_slices.slices[place].overflow:
                self.counters.overflow_classified += rows.size
            matched = opinions.matched(rows, record.true_class, stamp_ns)
            if matched is not None:
                self.live.count_classes(replace(matched, retracts=retracts))
        except Exception:
            log.exception("matched class probabilities were not counted")
            self.counters.internal_errors += 1


def _beside(
    sent: Estimates, made: Estimates, truth_covariance: FloatArray
) -> tuple[Estimates, Estimates]:
    """With what the truth itself is unsure of: Σ + Σ_truth is what an error is held against."""
    diagonal = _diagonal(truth_covariance)

    def wider(estimates: Estimates) -> Estimates:
        covariance = estimates.covariance + truth_covariance
        return Estimates(estimates.mean, covariance, estimates.diagonal & diagonal)

    if made is sent:
        both = wider(sent)
        return both, both
    return wider(sent), wider(made)


def _diagonal(covariance: FloatArray) -> BoolArray:
    k = covariance.shape[1]
    beside = (covariance * (1.0 - np.eye(k))).reshape(-1, k * k)
    found: BoolArray = np.count_nonzero(beside, axis=1) == 0
    return found
