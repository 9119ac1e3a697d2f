"""What labels say that is new to a frame, and the record of it that the ledger keeps."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import BoolArray
from monitor.frames import ReceivedTruth
from monitor.label_matching import LabelsMatched
from monitor.ledger import LabelRecord, Outcome
from monitor.live_statistics import LiveStatistics
from monitor.pending import FrameKey, PendingFrame


def key_of(labels: ReceivedTruth) -> FrameKey:
    """Of the frame that they are of; no frame has it where they name none."""
    return labels.stream, -1 if labels.frame_id is None else labels.frame_id


def revises(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Whether they take the place of what was told."""
    return labels.revision > max(frame.revision, 0)


def replaces_told(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Whether they do, and there is something to take back: where nothing was told, nothing is."""
    return revises(labels, frame) and bool(frame.records)


def asks_for_estimates(labels: ReceivedTruth, frame: PendingFrame) -> bool:
    """Whether a frame of which only the ids are left is too little for them."""
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
    """Of labels that were matched to a frame.

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
