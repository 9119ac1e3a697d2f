"""Which detection each label of a frame belongs to: by the detection's id.

Every label ends in exactly one count of the account.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from monitor.calibration.detections import IdArray, Limits, Reason
from monitor.calibration.notices import Notice, numbers
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.counters import TruthAccount
from monitor.frames import ReceivedTruth
from monitor.pending import PendingFrame


@dataclass(frozen=True, slots=True)
class Matching:
    """The outcome for the labels of one frame.

    resolved      rows of the frame whose fate is known by them
    rows          (m,) the matched ones among these, with their truth (m, K)
    refused_rows  rows that a label names but says nothing usable of
    """

    account: TruthAccount
    resolved: IntArray
    rows: IntArray
    truth: FloatArray
    refused_rows: IntArray
    notices: tuple[Notice, ...]


def match_by_id(labels: ReceivedTruth, frame: PendingFrame, limits: Limits) -> Matching:
    """Match labels to the detections that wait in a frame; the first label of each stands."""
    truth, usable = _usable(labels, frame.space.k, limits)
    candidates = np.flatnonzero(usable)
    ids = labels.id[candidates]
    found, place = _find(ids, frame)
    unusable = int(np.isin(ids[~found], frame.unusable).sum())
    candidates, rows = candidates[found], frame.order[place[found]]
    _, first_of = np.unique(rows, return_index=True)
    fresh = np.zeros(rows.size, bool)
    fresh[first_of] = True
    fresh &= ~frame.resolved[rows]
    candidates, resolved = candidates[fresh], rows[fresh]
    counted = ~labels.ignore[candidates]
    account = TruthAccount(
        matched=int(np.count_nonzero(counted)),
        unusable=unusable,
        orphan=int(ids.size - rows.size - unusable),
        duplicate=int(rows.size - resolved.size),
        ignored=int(np.count_nonzero(~counted)),
        refused=int(labels.n - ids.size),
    )
    refused_found, refused_place = _find(labels.id[~usable & labels.has_id], frame)
    return Matching(
        account=account,
        resolved=resolved,
        rows=resolved[counted],
        truth=truth[candidates[counted]],
        refused_rows=frame.order[refused_place[refused_found]],
        notices=_notices(labels, usable, frame, limits) if account.refused else (),
    )


def _find(ids: IdArray, frame: PendingFrame) -> tuple[BoolArray, IntArray]:
    """Which ids are in the frame, and where in its sorted ids; (n,) each."""
    place = np.searchsorted(frame.sorted_ids, ids)
    found = place < frame.sorted_ids.size
    found[found] = frame.sorted_ids[place[found]] == ids[found]
    return found, place


def _usable(labels: ReceivedTruth, k: int, limits: Limits) -> tuple[FloatArray, BoolArray]:
    """Truth (n, K), and which labels can be used at all (n,)."""
    truth = np.full((labels.n, k), np.nan)
    truth[:, : labels.truth.shape[1]] = labels.truth[:, :k]
    plausible = (np.abs(truth) <= limits.largest_mean).all(axis=1)
    valid = (labels.truth_length == k) & plausible
    return truth, labels.has_id & (valid | labels.ignore)


def _notices(
    labels: ReceivedTruth, usable: BoolArray, frame: PendingFrame, limits: Limits
) -> tuple[Notice, ...]:
    first = int(np.flatnonzero(~usable)[0])
    space, sent = frame.space, int(labels.truth_length[first])
    if labels.has_id[first]:
        field = "ground_truth"
        message = (
            f"{numbers(labels.truth[first], sent)}: send {space.k} values "
            f"({', '.join(space.names)}), finite and within ±{limits.largest_mean:g} "
            "([limits] largest_mean)."
        )
    else:
        field, message = "detection_id", "absent: name the detection that the label belongs to."
    count = int(np.count_nonzero(~usable))
    return (Notice(Reason.GROUND_TRUTH_INVALID, field, message, count, first),)


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
