"""Matches the labels of one frame to its detections, and gives every label one outcome.

Labels come inline with the detections, by detection id, or as objects of the labeller's own
(objects.py). A label whose ground truth cannot be used is refused whole, so that a better one may
come. A true class beyond the header's names is set aside, and refuses only a label that says
nothing else. Every label is in exactly one count of the TruthAccount. Storage of frames and of
what labels told never lives here: see pending.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Examined, IdArray, Limits, Reason, ReceivedDetections
from monitor.frames.frame import Header, Opinions, ReceivedTruth, TrackIds
from monitor.frames.reasons import Notice, numbers
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.frames.stored import StoredFrame
from monitor.matching.distances import MatchingSettings
from monitor.matching.objects import Candidates, ObjectMatching, match_objects, objects_told
from monitor.matching.pending import INLINE, GateVerdict, LabelRecord, Outcome, PendingFrame


@dataclass(frozen=True, slots=True)
class UsableLabels:
    """Sorts n labels by id into usable ones and ones with a fault.

    usable         (n,) which can be used at all; an ignored label needs only an id
    truth          (n, K)
    has_truth      (n,) which have all K values, and plausible ones
    has_class      (n,) which have a class of the header
    truth_invalid  (n,) refused for their ground truth, or because they lack an id
    class_invalid  (n,) whose class is beyond the header's names
    """

    usable: BoolArray
    truth: FloatArray
    has_truth: BoolArray
    has_class: BoolArray
    truth_invalid: BoolArray
    class_invalid: BoolArray


def usable_labels(
    labels: ReceivedTruth, space: Space, classes: int, limits: Limits
) -> UsableLabels:
    """Checks labels for a frame of this space with this number of classes."""
    truth = np.full((labels.named, space.k), np.nan)
    truth[:, : labels.truth.shape[1]] = labels.truth[:, : space.k]
    plausible = (np.abs(truth) <= limits.largest_mean).all(axis=1)
    has_truth = (labels.truth_length == space.k) & plausible
    told = has_truth | (labels.truth_length == 0)
    has_class = (labels.class_index >= 0) & (labels.class_index < classes)
    usable = labels.has_id & (has_truth | (told & has_class) | labels.ignore)
    beyond = labels.class_index >= classes
    class_invalid = beyond & told & labels.has_id & ~labels.ignore
    return UsableLabels(
        usable, truth, has_truth, has_class, ~usable & ~class_invalid, class_invalid
    )


def label_notices(
    labels: ReceivedTruth, sorted_out: UsableLabels, space: Space, classes: int, limits: Limits
) -> tuple[Notice, ...]:
    """Puts the faults of labels into words; at most one notice for each reason."""
    found: list[Notice] = []
    invalid = np.flatnonzero(sorted_out.truth_invalid)
    if invalid.size:
        first = int(invalid[0])
        if labels.has_id[first]:
            field, sent = "ground_truth", int(labels.truth_length[first])
            message = (
                f"{numbers(labels.truth[first], sent)}: send {space.k} values "
                f"({', '.join(space.names)}), finite and within ±{limits.largest_mean:g} "
                "([limits] largest_mean)."
            )
        else:
            field, message = "detection_id", "absent: name the detection that the label belongs to."
        found.append(Notice(Reason.GROUND_TRUTH_INVALID, field, message, invalid.size, first))
    invalid = np.flatnonzero(sorted_out.class_invalid)
    if invalid.size:
        first = int(invalid[0])
        message = f"{labels.class_index[first]}: the header names {classes} classes, from 0."
        reason = Reason.CLASS_PROBABILITIES_INVALID
        found.append(Notice(reason, "class_index", message, invalid.size, first))
    return tuple(found)


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
        replaces=False,
        settled=settled,
        outcome=np.full(settled.size, Outcome.MATCHED, np.uint8),
        rows=rows,
        truth=batch.truth[rows],
        truth_covariance=None,
        objects=None,
        class_rows=class_rows,
        true_class=batch.true_class[class_rows],
        stamp_ns=stamp_ns,
        clock_ns=clock_ns,
        generation=generation,
        delay_ns=0,
        live=True,
        account=TruthAccount(matched=settled.size, refused=refused, unusable=unusable),
    )


@dataclass(frozen=True, slots=True)
class LabelsMatched:
    """Outcome of the labels of one frame; all rows are rows of the frame.

    settled           (u,) detections that have their label now, and their Outcome (u,)
    rows              (m,) the matched ones among these that have ground truth, truth (m, K)
    objects           (m,) the labeller's own ids of the objects; None if no label has one
    class_rows        (c,) those that have class probabilities and a true class, true_class (c,)
    open_rows         detections that a label names without saying anything that can be used
    notices           labels that, or whose class, cannot be used
    truth_covariance  (m, K, K); None: ground truth is exact
    gate              (m,) of GateVerdict; None where no gate decided
    objects_told      whether objects of this revision have come
    """

    account: TruthAccount
    settled: IntArray
    outcome: npt.NDArray[np.uint8]
    rows: IntArray
    truth: FloatArray
    objects: TrackIds | None
    class_rows: IntArray
    true_class: IntArray
    open_rows: IntArray
    notices: tuple[Notice, ...]
    truth_covariance: FloatArray | None = None
    gate: npt.NDArray[np.uint8] | None = None
    objects_told: bool = False


def match_by_id(
    labels: ReceivedTruth, frame: PendingFrame, resolved: BoolArray, limits: Limits
) -> LabelsMatched:
    """Matches labels to detections of a pending frame by id; the first label of each counts.

    The first label counts for ground truth and class alike: a detection that got its class alone
    expects no ground truth any more. A class alone does not resolve a detection without class
    probabilities.

    resolved  (n,) detections that have their label already
    """
    sorted_out = usable_labels(labels, frame.space, frame.classes, limits)
    candidates = np.flatnonzero(sorted_out.usable)
    ids = labels.id[candidates]
    found, place = _find(ids, frame)
    beside = int(np.isin(ids[~found], frame.stored.unusable).sum())
    candidates, rows = candidates[found], frame.order[place[found]]
    ignored = labels.ignore[candidates]
    classified = sorted_out.has_class[candidates] & ~ignored
    classified &= False if frame.opinions is None else frame.opinions.of(rows)
    tells = sorted_out.has_truth[candidates] | classified | ignored

    standing = np.flatnonzero(tells & ~resolved[rows])
    fresh = np.sort(standing[np.unique(rows[standing], return_index=True)[1]])
    resolved_by = np.full(resolved.size, rows.size)
    resolved_by[resolved] = -1
    resolved_by[rows[fresh]] = fresh
    duplicate = resolved_by[rows] < np.arange(rows.size)
    open_now = ~tells & ~duplicate

    counted = fresh[~ignored[fresh]]
    with_truth = counted[sorted_out.has_truth[candidates[counted]]]
    with_class = counted[classified[counted]]
    refused_found, refused_place = _find(labels.id[~sorted_out.usable & labels.has_id], frame)
    unusable = beside + int(np.count_nonzero(open_now))
    return LabelsMatched(
        account=TruthAccount(
            matched=counted.size,
            unusable=unusable,
            orphan=ids.size - rows.size - beside,
            duplicate=int(np.count_nonzero(duplicate)),
            ignored=fresh.size - counted.size,
            refused=labels.named - ids.size,
        ),
        settled=rows[fresh],
        outcome=np.where(ignored[fresh], Outcome.IGNORED, Outcome.MATCHED).astype(np.uint8),
        rows=rows[with_truth],
        truth=sorted_out.truth[candidates[with_truth]],
        objects=None if labels.objects is None else labels.objects.take(candidates[with_truth]),
        class_rows=rows[with_class],
        true_class=labels.class_index[candidates[with_class]],
        open_rows=np.append(frame.order[refused_place[refused_found]], rows[open_now]),
        notices=label_notices(labels, sorted_out, frame.space, frame.classes, limits),
    )


def _find(ids: IdArray, frame: PendingFrame) -> tuple[BoolArray, IntArray]:
    """Finds ids in the sorted ids of a frame: which are there, (n,), and where, (n,)."""
    place = np.searchsorted(frame.sorted_ids, ids)
    found = place < frame.sorted_ids.size
    found[found] = frame.sorted_ids[place[found]] == ids[found]
    return found, place


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


def labels_told(labels: ReceivedTruth) -> int:
    """Counts the labels of a message; several samples of one object are one."""
    return labels.named + objects_told(labels.foreign)


def matched_labels(
    labels: ReceivedTruth,
    frame: PendingFrame,
    resolved: BoolArray,
    config: MatchingSettings,
    limits: Limits,
    *,
    again: bool,
) -> LabelsMatched:
    """Matches labels by id first, then objects with the detections that are left.

    Labels in another coordinate frame are refused, since their ground truth is not where it seems
    to be: every detection stays open.

    resolved  (n,) detections that have their label already
    again     whether objects of this revision came before, so that these are duplicates
    """
    stored, foreign = frame.stored, labels.foreign
    elsewhere = _foreign_frame(labels, stored.header)
    if elsewhere is not None:
        return _all_refused(labels, stored, elsewhere)
    by_id = match_by_id(labels, frame, resolved, limits)
    if foreign is None and not labels.regions:
        return by_id
    if again or frame.released:
        by_id.account.duplicate += objects_told(foreign)
        return by_id
    free = ~resolved
    free[by_id.settled] = False
    candidates = Candidates(
        class_index=stored.class_index,
        sent=stored.sent.estimates(np.arange(stored.n)),
        free=free,
        stamp_ns=stored.stamp_ns,
    )
    return _both(by_id, match_objects(labels, candidates, stored.header, config, limits), frame)


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


def _all_refused(labels: ReceivedTruth, stored: StoredFrame, notice: Notice) -> LabelsMatched:
    nothing = np.zeros(0, np.int64)
    return LabelsMatched(
        account=TruthAccount(refused=labels_told(labels)),
        settled=nothing,
        outcome=np.zeros(0, np.uint8),
        rows=nothing,
        truth=np.zeros((0, stored.header.space.k)),
        objects=None,
        class_rows=nothing,
        true_class=nothing,
        open_rows=np.arange(stored.n),
        notices=(notice,),
    )


def _both(by_id: LabelsMatched, found: ObjectMatching, frame: PendingFrame) -> LabelsMatched:
    account = TruthAccount()
    account.add(by_id.account)
    account.add(found.account)
    covariance = found.truth_covariance
    if covariance is not None and by_id.rows.size:
        exact = np.zeros((by_id.rows.size, *covariance.shape[1:]))
        covariance = np.concatenate([exact, covariance])
    return replace(
        by_id,
        account=account,
        settled=np.concatenate([by_id.settled, found.rows, found.ignored]),
        outcome=np.concatenate(
            [
                by_id.outcome,
                np.full(found.rows.size, Outcome.MATCHED, np.uint8),
                np.full(found.ignored.size, Outcome.IGNORED, np.uint8),
            ]
        ),
        rows=np.concatenate([by_id.rows, found.rows]),
        truth=np.concatenate([by_id.truth, found.truth]),
        truth_covariance=covariance,
        objects=_objects(by_id, found),
        # Classes stay: objects are matched within a class, so that a right class says nothing.
        open_rows=by_id.open_rows if found.whole else np.arange(frame.stored.n),
        gate=np.concatenate(
            [
                np.full(by_id.rows.size, GateVerdict.NONE, np.uint8),
                np.where(found.near_gate, GateVerdict.NEAR, GateVerdict.WITHIN).astype(np.uint8),
            ]
        ),
        # If no object could be used, they may be sent again.
        objects_told=found.whole or found.rows.size + found.ignored.size > 0,
        notices=by_id.notices + found.notices,
    )


def _objects(by_id: LabelsMatched, found: ObjectMatching) -> TrackIds | None:
    if by_id.objects is None and found.objects is None:
        return None
    parts = [
        part
        if part is not None
        else TrackIds(np.zeros(rows.size, np.uint64), np.zeros(rows.size, bool))
        for part, rows in ((by_id.objects, by_id.rows), (found.objects, found.rows))
    ]
    return TrackIds(
        np.concatenate([part.id for part in parts]), np.concatenate([part.known for part in parts])
    )
