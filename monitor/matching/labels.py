"""Matches the labels of one frame to its detections, and gives every label one outcome.

Labels come inline with the detections, by detection id, or as objects of the labeller's own
(objects.py). A label whose ground truth cannot be used is refused whole, so that a better one may
come. A true class beyond the header's names is set aside, and refuses only a label that says
nothing else. Every label is in exactly one count of the TruthAccount.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from monitor.frames.detections import Examined, IdArray, Limits, Reason, ReceivedDetections
from monitor.frames.frame import Header, Opinions, ReceivedTruth, StoredFrame
from monitor.frames.reasons import Notice
from monitor.frames.space import BoolArray, IntArray
from monitor.frames.status import TruthAccount
from monitor.matching.distances import MatchingSettings
from monitor.matching.objects import (
    INLINE,
    LabelRecord,
    Outcome,
    objects_told,
    padded_truth,
    truth_fault,
    with_objects,
)


def labels_sent(received: ReceivedDetections) -> int:
    """Counts the detections that carry a label of any kind, usable or not."""
    labelled = received.truth_length > 0
    if received.ground_truth_class is not None:
        labelled = labelled | received.ground_truth_class[1]
    return int(np.count_nonzero(labelled))


def inline_record(
    received: ReceivedDetections,
    examined: Examined,
    opinions: Opinions | None,
    stamp_ns: int | None,
    clock_ns: int | None,
    generation: int,
) -> LabelRecord | None:
    """Matches labels that came inline with a frame; None if no detection carries any.

    Ground truth that cannot be used refuses the class beside it too: a better label may come.
    A class that cannot be used does not harm the ground truth beside it.

    stamp_ns, clock_ns, generation  as in LabelRecord
    """
    sent = labels_sent(received)
    if sent == 0:
        return None
    batch = examined.batch
    resolved = np.isfinite(batch.truth[:, 0])
    rows = settled = np.flatnonzero(resolved)
    class_rows = rows[:0]
    if opinions is not None and received.ground_truth_class is not None:
        told = np.flatnonzero((batch.true_class >= 0) & ~examined.truth_invalid[batch.rows])
        class_rows = told[opinions.of(told)]
        resolved[class_rows] = True
        settled = np.flatnonzero(resolved)
    bad_class = examined.true_class_invalid & (received.truth_length == 0)
    refused = int(np.count_nonzero(examined.truth_invalid | bad_class))
    unusable = sent - refused - settled.size
    return LabelRecord(
        revision=INLINE,
        settled=settled,
        outcome=np.full(settled.size, Outcome.MATCHED, np.uint8),
        rows=rows,
        truth=batch.truth[rows],
        class_rows=class_rows,
        true_class=batch.true_class[class_rows],
        stamp_ns=stamp_ns,
        clock_ns=clock_ns,
        generation=generation,
        account=TruthAccount(matched=settled.size, refused=refused, unusable=unusable),
    )


def labels_told(labels: ReceivedTruth) -> int:
    """Counts the labels of a message; several samples of one object are one."""
    return labels.named + objects_told(labels.foreign)


def match(
    labels: ReceivedTruth,
    frame: StoredFrame,
    free: BoolArray,
    config: MatchingSettings,
    limits: Limits,
    *,
    again: bool = False,
) -> LabelRecord:
    """Matches labels by id first, then objects with the detections that are left.

    Labels in another coordinate frame are refused, since their ground truth is not where it seems
    to be: every detection stays open.

    free     (n,) detections that have no label yet
    again    whether objects of this revision came before, so that these are duplicates
    returns  what labels tell, without what the pipeline adds
    """
    elsewhere = _foreign_frame(labels, frame.header)
    if elsewhere is not None:
        return LabelRecord(
            revision=labels.revision,
            truth=np.zeros((0, frame.header.space.k)),
            account=TruthAccount(refused=labels_told(labels)),
            notices=(elsewhere,),
        )
    record, rest = _by_id(labels, frame, free, limits)
    if again:
        record.account.duplicate += objects_told(labels.foreign)
    elif labels.foreign is not None or labels.regions:
        left = free.copy()
        left[record.settled] = False
        record, whole = with_objects(record, labels, frame, left, config, limits)
        # A detection may belong to an object that could not be used.
        rest &= whole
    if not labels.complete:
        return record
    rest[record.settled] = False
    unmatched = np.flatnonzero(rest)
    outcome = np.full(unmatched.size, Outcome.UNMATCHED, np.uint8)
    return replace(
        record,
        settled=np.append(record.settled, unmatched),
        outcome=np.append(record.outcome, outcome),
    )


def _foreign_frame(labels: ReceivedTruth, header: Header) -> Notice | None:
    """Says that labels are in another coordinate frame than the detections; None if not."""
    told, ours = labels.coordinate_frame, header.coordinate_frame
    if not told or told == ours:
        return None
    message = (
        f"'{told[:64]}': the detections are in '{ours}'. Send labels in the coordinate "
        "frame of the stream's header."
    )
    return Notice(Reason.COORDINATE_FRAME, "coordinate_frame", message, labels.n)


def _by_id(
    labels: ReceivedTruth, frame: StoredFrame, free: BoolArray, limits: Limits
) -> tuple[LabelRecord, BoolArray]:
    """Matches labels to detections by id; the first label of each detection counts.

    The first label counts for ground truth and class alike: a detection that got its class alone
    expects no ground truth any more. A class alone does not resolve a detection without class
    probabilities. An ignored label needs only an id.

    returns  also (n,) the free detections that no label names in vain: one whose label cannot be
             used may still get a better one
    """
    space, classes = frame.header.space, len(frame.header.classes)
    truth, has_truth = padded_truth(labels.truth, labels.truth_length, space, limits)
    told = has_truth | (labels.truth_length == 0)
    has_class = (labels.class_index >= 0) & (labels.class_index < classes)
    usable = labels.has_id & (has_truth | (told & has_class) | labels.ignore)
    beyond = (labels.class_index >= classes) & told & labels.has_id & ~labels.ignore

    row_of = np.where(labels.has_id, _rows(frame.id, labels.id), -1)
    strange = usable & (row_of < 0)
    beside = int(np.isin(labels.id[strange], frame.unusable).sum())
    found = np.flatnonzero(usable & (row_of >= 0))
    rows, ignored = row_of[found], labels.ignore[found]
    opined = np.zeros(frame.n, bool)
    if frame.opinions is not None:
        opined[frame.opinions.rows] = True
    classified = has_class[found] & ~ignored & opined[rows]
    tells = has_truth[found] | classified | ignored

    standing = np.flatnonzero(tells & free[rows])
    fresh = np.sort(standing[np.unique(rows[standing], return_index=True)[1]])
    resolved_by = np.where(free, rows.size, -1)
    resolved_by[rows[fresh]] = fresh
    duplicate = resolved_by[rows] < np.arange(rows.size)
    in_vain = ~tells & ~duplicate
    rest = free.copy()
    rest[row_of[~usable & (row_of >= 0)]] = rest[rows[in_vain]] = False

    counted = fresh[~ignored[fresh]]
    with_truth = counted[has_truth[found[counted]]]
    with_class = counted[classified[counted]]
    record = LabelRecord(
        revision=labels.revision,
        settled=rows[fresh],
        outcome=np.where(ignored[fresh], Outcome.IGNORED, Outcome.MATCHED).astype(np.uint8),
        rows=rows[with_truth],
        truth=truth[found[with_truth]],
        objects=None if labels.objects is None else labels.objects.take(found[with_truth]),
        class_rows=rows[with_class],
        true_class=labels.class_index[found[with_class]],
        account=TruthAccount(
            matched=counted.size,
            unusable=beside + int(np.count_nonzero(in_vain)),
            orphan=int(np.count_nonzero(strange)) - beside,
            duplicate=int(np.count_nonzero(duplicate)),
            ignored=fresh.size - counted.size,
            refused=int(np.count_nonzero(~usable)),
        ),
        notices=(
            *_notices(labels, ~usable & ~beyond, beyond, frame.header, limits),
            *_strange(labels, strange & ~np.isin(labels.id, frame.unusable)),
        ),
    )
    return record, rest


def _rows(id: IdArray, wanted: IdArray) -> IntArray:
    """Finds the row of each wanted id, −1 where no detection has it."""
    order = np.argsort(id, kind="stable")
    row = np.append(order, -1)[np.searchsorted(id, wanted, sorter=order)]
    found = row >= 0
    found[found] = id[row[found]] == wanted[found]
    return np.where(found, row, -1)


def _notices(
    labels: ReceivedTruth,
    truth_invalid: BoolArray,
    class_invalid: BoolArray,
    header: Header,
    limits: Limits,
) -> tuple[Notice, ...]:
    """Puts the faults of labels by id into words; at most one notice for each reason.

    truth_invalid  (n,) refused for their ground truth, or because they lack an id
    class_invalid  (n,) whose class is beyond the header's names
    """
    space, found = header.space, list[Notice]()
    invalid = np.flatnonzero(truth_invalid)
    if invalid.size:
        first = int(invalid[0])
        if labels.has_id[first]:
            field, sent = "ground_truth", int(labels.truth_length[first])
            message = truth_fault(labels.truth[first], sent, space, limits)
        else:
            field, message = "detection_id", "absent: name the detection that the label belongs to."
        found.append(Notice(Reason.GROUND_TRUTH_INVALID, field, message, invalid.size, first))
    invalid = np.flatnonzero(class_invalid)
    if invalid.size:
        first, classes = int(invalid[0]), len(header.classes)
        message = f"{labels.class_index[first]}: the header names {classes} classes, from 0."
        reason = Reason.CLASS_PROBABILITIES_INVALID
        found.append(Notice(reason, "class_index", message, invalid.size, first))
    return tuple(found)


def _strange(labels: ReceivedTruth, orphan: BoolArray) -> tuple[Notice, ...]:
    """Says which detection was not found; the account has how many, and no reason counts them."""
    if not orphan.any():
        return ()
    first = int(np.argmax(orphan))
    message = (
        f"{labels.id[first]}: frame {labels.frame_id} has no such detection. Send the id that the "
        "detection had in its frame."
    )
    return (Notice(Reason.GROUND_TRUTH_INVALID, "detection_id", message, first_index=first),)


def orphan_notice(labels: ReceivedTruth, streams: Collection[str]) -> Notice:
    """Says why no frame was found for labels; streams are the names that are known."""
    if labels.stream not in streams:
        message = f"no stream '{labels.stream[:64]}': process its frames first."
        return Notice(Reason.GROUND_TRUTH_INVALID, "stream", message, labels.n)
    if labels.frame_id is None:
        message = "absent: name the frame that the labels belong to."
        return Notice(Reason.MISSING_FRAME_KEY, "frame_id", message, labels.n)
    message = (
        f"{labels.frame_id}: no such frame of stream '{labels.stream}' is known. "
        "Send the labels of frames that were answered, with their frame_id."
    )
    return Notice(Reason.GROUND_TRUTH_INVALID, "frame_id", message, labels.n)
