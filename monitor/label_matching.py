"""Labels of a frame, whichever way they name its detections: by id, or as objects of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import Limits, Reason
from monitor.calibration.matched import TrackIds
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.calibration.truth_matching.settings import MatchingSettings
from monitor.counters import TruthAccount
from monitor.frames import Header, ReceivedTruth
from monitor.ledger import GateVerdict, Outcome
from monitor.matching import Matching, match_by_id
from monitor.object_labels import Candidates, ObjectMatching, match_objects, objects_told
from monitor.pending import PendingFrame
from monitor.stored_frame import StoredFrame


@dataclass(frozen=True, slots=True)
class LabelsMatched:
    """The outcome for the labels of one frame, of both kinds; as Matching has it."""

    account: TruthAccount
    settled: IntArray
    outcome: npt.NDArray[np.uint8]
    rows: IntArray
    truth: FloatArray
    truth_covariance: FloatArray | None
    objects: TrackIds | None
    class_rows: IntArray
    true_class: IntArray
    open_rows: IntArray
    gate: npt.NDArray[np.uint8] | None
    objects_told: bool
    invalid: Mapping[Reason, int]
    notices: tuple[Notice, ...]


def labels_told(labels: ReceivedTruth) -> int:
    """How many labels a message has; several samples of one track are one."""
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
    """Those by id first; objects are for the detections that are left. In a foreign coordinate
    frame no truth is where it seems to be: all is refused, and every detection stays open.

    resolved  (n,) those that do not wait any more
    again     objects of the same revision have come before: these are duplicates
    """
    stored, foreign = frame.stored, labels.foreign
    elsewhere = _foreign_frame(labels, stored.header)
    if elsewhere is not None:
        return _all_refused(labels, stored, elsewhere)
    by_id = match_by_id(labels, frame, resolved, limits)
    if foreign is None and not labels.regions:
        return _alone(by_id)
    if again or frame.released:
        by_id.account.duplicate += objects_told(foreign)
        return _alone(by_id)
    free = ~resolved
    free[by_id.settled] = False
    everything = np.arange(stored.n)
    candidates = Candidates(
        class_index=stored.class_index,
        sent=stored.sent.estimates(everything),
        free=free,
        stamp_ns=stored.stamp_ns,
    )
    return _both(by_id, match_objects(labels, candidates, stored.header, config, limits), frame)


def _foreign_frame(labels: ReceivedTruth, header: Header) -> Notice | None:
    """Why the labels cannot be where the detections are; None: they are."""
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
        truth_covariance=None,
        objects=None,
        class_rows=nothing,
        true_class=nothing,
        open_rows=np.arange(stored.n),
        gate=None,
        objects_told=False,
        invalid={notice.reason: notice.count},
        notices=(notice,),
    )


def _alone(by_id: Matching) -> LabelsMatched:
    return LabelsMatched(
        account=by_id.account,
        settled=by_id.settled,
        outcome=by_id.outcome,
        rows=by_id.rows,
        truth=by_id.truth,
        truth_covariance=None,
        objects=by_id.objects,
        class_rows=by_id.class_rows,
        true_class=by_id.true_class,
        open_rows=by_id.open_rows,
        gate=None,
        objects_told=False,
        invalid=by_id.invalid,
        notices=by_id.notices,
    )


def _both(by_id: Matching, found: ObjectMatching, frame: PendingFrame) -> LabelsMatched:
    account = TruthAccount()
    account.add(by_id.account)
    account.add(found.account)
    covariance = found.truth_covariance
    if covariance is not None and by_id.rows.size:
        exact = np.zeros((by_id.rows.size, *covariance.shape[1:]))
        covariance = np.concatenate([exact, covariance])
    return LabelsMatched(
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
        # Objects are matched within a class: that the class is right is no finding.
        class_rows=by_id.class_rows,
        true_class=by_id.true_class,
        open_rows=by_id.open_rows if found.whole else np.arange(frame.stored.n),
        gate=np.concatenate(
            [
                np.full(by_id.rows.size, GateVerdict.NONE, np.uint8),
                np.where(found.near_gate, GateVerdict.NEAR, GateVerdict.WITHIN).astype(np.uint8),
            ]
        ),
        # Where none could be used, they may be sent again.
        objects_told=found.whole or found.rows.size + found.ignored.size > 0,
        invalid={
            reason: by_id.invalid.get(reason, 0) + found.invalid.get(reason, 0)
            for reason in {*by_id.invalid, *found.invalid}
        },
        notices=by_id.notices + found.notices,
    )


def _objects(by_id: Matching, found: ObjectMatching) -> TrackIds | None:
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
