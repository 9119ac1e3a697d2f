"""Which detection each label of a frame belongs to: by the detection's id.

Every label ends in exactly one count of the account.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.detections import Limits, Reason
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.counters import TruthAccount
from monitor.frames import ReceivedTruth
from monitor.pending import PendingFrame


@dataclass(frozen=True, slots=True)
class Matching:
    """The outcome for the labels of one frame.

    resolved  rows of the frame whose fate is known by them
    rows      (m,) the matched ones among these, with their truth (m, K)
    """

    account: TruthAccount
    resolved: IntArray
    rows: IntArray
    truth: FloatArray
    notices: tuple[Notice, ...]


def match_by_id(labels: ReceivedTruth, frame: PendingFrame, limits: Limits) -> Matching:
    """Match labels to the detections that wait in a frame; the first label of each stands."""
    truth, usable = _usable(labels, frame.space.k, limits)
    candidates = np.flatnonzero(usable)
    ids = labels.id[candidates]
    place = np.searchsorted(frame.sorted_ids, ids)
    found = place < frame.sorted_ids.size
    found[found] = frame.sorted_ids[place[found]] == ids[found]
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
    notices = _notices(labels, usable, frame) if account.refused else ()
    return Matching(account, resolved, resolved[counted], truth[candidates[counted]], notices)


def _usable(labels: ReceivedTruth, k: int, limits: Limits) -> tuple[FloatArray, BoolArray]:
    """Truth (n, K), and which labels can be used at all (n,)."""
    truth = np.full((labels.n, k), np.nan)
    truth[:, : labels.truth.shape[1]] = labels.truth[:, :k]
    plausible = (np.abs(truth) <= limits.largest_mean).all(axis=1)
    valid = (labels.truth_length == k) & plausible
    return truth, labels.has_id & (valid | labels.ignore)


def _notices(labels: ReceivedTruth, usable: BoolArray, frame: PendingFrame) -> tuple[Notice, ...]:
    first = int(np.flatnonzero(~usable)[0])
    space = frame.space
    return (
        Notice(
            Reason.GROUND_TRUTH_INVALID,
            "ground_truth" if labels.has_id[first] else "detection_id",
            f"label {first} has {int(labels.truth_length[first])} values: send a detection_id "
            f"and {space.k} finite values "
            f"({', '.join(space.names)}).",
            int(np.count_nonzero(~usable)),
            first,
        ),
    )
