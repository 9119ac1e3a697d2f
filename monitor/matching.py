"""Which detection each label of a frame belongs to, by the detection's id, and what it tells of
it: ground truth, its class, or both.

Every label ends in exactly one count of the account.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray, Limits, Reason
from monitor.calibration.matched import TrackIds
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.counters import TruthAccount
from monitor.frames import ReceivedTruth
from monitor.ledger import Outcome
from monitor.pending import PendingFrame
from monitor.usable_labels import label_notices, usable_labels


@dataclass(frozen=True, slots=True)
class Matching:
    """The outcome for the labels of one frame; all rows are rows of the frame.

    settled     (u,) whose fate is known by the labels, and (u,) of Outcome
    rows        (m,) the matched ones among these that have ground truth, truth (m, K)
    objects     (m,) whose truth it is, by the labeller's own ids; None where no label has one
    class_rows  (c,) those that have class probabilities and a true class, true_class (c,)
    open_rows   rows that a label names, but tells nothing of that can be used
    invalid     labels by the reason for which they, or their class, cannot be used
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
    invalid: dict[Reason, int]
    notices: tuple[Notice, ...]


def match_by_id(
    labels: ReceivedTruth, frame: PendingFrame, resolved: BoolArray, limits: Limits
) -> Matching:
    """Match labels to the detections that wait in a frame; the first label of each stands.

    resolved  (n,) those that do not wait any more

    It stands for ground truth and class alike: what was told the class alone waits for no
    ground truth. A class alone tells nothing of a detection without class probabilities, and
    does not resolve it.
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
    invalid = {
        Reason.GROUND_TRUTH_INVALID: int(np.count_nonzero(sorted_out.truth_invalid)),
        Reason.CLASS_PROBABILITIES_INVALID: int(np.count_nonzero(sorted_out.class_invalid)),
    }
    return Matching(
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
        invalid=invalid,
        notices=(
            label_notices(labels, sorted_out, frame.space, frame.classes, limits)
            if any(invalid.values())
            else ()
        ),
    )


def _find(ids: IdArray, frame: PendingFrame) -> tuple[BoolArray, IntArray]:
    """Which ids are in the frame, and where in its sorted ids; (n,) each."""
    place = np.searchsorted(frame.sorted_ids, ids)
    found = place < frame.sorted_ids.size
    found[found] = frame.sorted_ids[place[found]] == ids[found]
    return found, place


def orphan_notice(labels: ReceivedTruth, streams: Collection[str]) -> Notice:
    """Why there is no frame for labels; streams are the names that are known."""
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
