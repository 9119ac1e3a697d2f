"""Which detection each object of a labeller's belongs to, where the labeller has ids of its own,
and which detections are neither right nor wrong.

Every object of a message ends in exactly one count of the account. Several samples of one track
are one object: of those that it is interpolated between, and of those it is not, one is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.detections import Limits, Reason
from monitor.calibration.matched import TrackIds
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space
from monitor.calibration.truth_matching.at_time import (
    ObjectsAtTime,
    Samples,
    labels_told,
    objects_at_time,
    placed_at_time,
)
from monitor.calibration.truth_matching.class_names import ClassTable, class_table
from monitor.calibration.truth_matching.frame_matching import ignored_detections, matches
from monitor.calibration.truth_matching.placed import Placed
from monitor.calibration.truth_matching.settings import MatchingSettings
from monitor.counters import TruthAccount
from monitor.frames import Header, ReceivedObjects, ReceivedTruth
from monitor.recalibration.recalibrator import Estimates
from monitor.stream_gate import stream_gate
from monitor.usable_objects import (
    object_notice,
    untimely_notice,
    usable_objects,
    usable_regions,
)

_NS = 1e9


@dataclass(frozen=True, eq=False, slots=True)
class Candidates:
    """The n usable detections of a frame, as the detector sent them.

    class_index  (n,)
    free         (n,) those of which no label of this revision has told anything yet
    stamp_ns     of the frame; None where it has none
    """

    class_index: IntArray
    sent: Estimates
    free: BoolArray
    stamp_ns: int | None


@dataclass(frozen=True, eq=False, slots=True)
class ObjectMatching:
    """The outcome for the objects of one message; all rows are rows of the candidates.

    account           every object in one count
    rows              (m,) that an object belongs to, ascending, and its truth (m, K)
    truth_covariance  (m, K, K) zero where it is exact; None where all are
    objects           (m,) whose truth it is, by the labeller's own ids; None where no one has one
    ignored           (i,) rows that are neither right nor wrong, ascending
    near_gate         (m,) which matches lie near the gate
    whole             whether all objects and regions could be used. Without it, a detection that
                      none claims may belong to one that could not: it is no false positive,
                      however complete the labels are
    invalid           samples and regions by the reason for which they cannot be used
    """

    account: TruthAccount
    rows: IntArray
    truth: FloatArray
    truth_covariance: FloatArray | None
    objects: TrackIds | None
    ignored: IntArray
    near_gate: BoolArray
    whole: bool
    invalid: dict[Reason, int]
    notices: tuple[Notice, ...]


def objects_told(objects: ReceivedObjects | None) -> int:
    """How many objects the samples of a message are: the sum of their account, whatever it is."""
    if objects is None:
        return 0
    return labels_told(_samples(objects, np.ones(objects.n, bool)))[0]


def match_objects(
    labels: ReceivedTruth,
    frame: Candidates,
    header: Header,
    config: MatchingSettings,
    limits: Limits,
) -> ObjectMatching:
    """Find the detections of objects, and those that objects and regions ignore.

    labels  in the coordinate frame of the detections

    Objects of the detector's classes are matched first, among all detections: one whose
    detection was labelled before is a duplicate. What is left may be ignored.
    """
    objects, space = labels.foreign, header.space
    gate = stream_gate(config, header)
    if isinstance(gate, Notice):
        return _all_refused(objects, gate, space)
    if objects is None:
        objects = _NO_OBJECTS
    named = labels.class_names or header.classes
    table = class_table(named, header.classes, config.class_map, config.neighbours)
    usable = usable_objects(objects, space, len(named), limits)
    at = objects_at_time(
        _samples(objects, usable.usable),
        frame.stamp_ns,
        round(config.max_gap_seconds * _NS),
        round(config.max_offset_seconds * _NS),
    )
    placed = placed_at_time(usable.placed, at, space)
    own, ignores = _classes(objects, at, table, len(header.classes))
    compared, detections = placed, Placed(frame.sent.mean, frame.sent.covariance)
    if not gate.distance.weighs:
        compared, detections = Placed(placed.mean), Placed(frame.sent.mean)
    pairs = matches(compared, own, detections, frame.class_index, gate)
    fresh = pairs.take(np.flatnonzero(frame.free[pairs.detection]))

    rest = frame.free.copy()
    rest[fresh.detection] = False
    rows = np.flatnonzero(rest)
    regions, region_notice = usable_regions(labels.regions, space, len(header.classes), table)
    ignored = ignored_detections(
        compared, ignores, regions, detections.take(rows), frame.class_index[rows], gate, space
    )
    real = int(np.count_nonzero(own >= 0))
    left = real - pairs.object.size
    object_ids = TrackIds(objects.id[at.sample], objects.has_id[at.sample]).take(fresh.object)
    covariance = placed.covariance
    found = (
        object_notice(objects, usable, space, len(named), limits),
        untimely_notice(objects, at, frame.stamp_ns, config),
        region_notice,
    )
    notices = tuple(notice for notice in found if notice is not None)
    refused = at.told - at.label.size - at.duplicate
    return ObjectMatching(
        account=TruthAccount(
            matched=fresh.object.size,
            duplicate=at.duplicate + pairs.object.size - fresh.object.size,
            ignored=own.size - real,
            refused=refused,
            missed=left if labels.complete else 0,
            unassigned=0 if labels.complete else left,
        ),
        rows=fresh.detection,
        truth=placed.mean[fresh.object],
        truth_covariance=None if covariance is None else covariance[fresh.object],
        objects=object_ids if object_ids.known.any() else None,
        ignored=rows[ignored],
        near_gate=gate.nears(fresh.distance, own[fresh.object]),
        whole=refused == 0 and region_notice is None,
        invalid=_by_reason(notices),
        notices=notices,
    )


def _samples(objects: ReceivedObjects, usable: BoolArray) -> Samples:
    return Samples(objects.id, objects.has_id, objects.stamp_ns, objects.has_stamp, usable)


def _classes(
    objects: ReceivedObjects, at: ObjectsAtTime, table: ClassTable, classes: int
) -> tuple[IntArray, BoolArray]:
    """The detector's class of each object, (o,), −1 where it is to match nothing; and the classes
    it makes neither right nor wrong, (o, C).
    """
    index = objects.class_index[at.sample]
    ignore = objects.ignore[at.sample] | objects.ignore[at.other]
    named = np.flatnonzero(index >= 0)
    own = np.full(index.size, -1)
    own[named] = table.own[index[named]]
    ignores = np.ones((index.size, classes), bool)
    ignores[named] = table.beside[index[named]]
    itself = np.flatnonzero(ignore & (own >= 0))
    ignores[itself, own[itself]] = True
    return np.where(ignore, -1, own), ignores


def _by_reason(notices: tuple[Notice, ...]) -> dict[Reason, int]:
    counts: dict[Reason, int] = {}
    for notice in notices:
        counts[notice.reason] = counts.get(notice.reason, 0) + notice.count
    return counts


def _all_refused(objects: ReceivedObjects | None, notice: Notice, space: Space) -> ObjectMatching:
    nothing = np.zeros(0, np.int64)
    notice = replace(notice, count=0 if objects is None else objects.n)
    return ObjectMatching(
        account=TruthAccount(refused=objects_told(objects)),
        rows=nothing,
        truth=np.zeros((0, space.k)),
        truth_covariance=None,
        objects=None,
        ignored=nothing,
        near_gate=np.zeros(0, bool),
        whole=False,
        invalid={notice.reason: notice.count},
        notices=(notice,),
    )


_NO_OBJECTS = ReceivedObjects(
    id=np.zeros(0, np.uint64),
    has_id=np.zeros(0, bool),
    class_index=np.zeros(0, np.int64),
    truth=np.zeros((0, 0)),
    truth_length=np.zeros(0, np.int64),
    covariance=np.zeros((0, 0)),
    covariance_length=np.zeros(0, np.int64),
    ignore=np.zeros(0, bool),
    stamp_ns=np.zeros(0, np.int64),
    has_stamp=np.zeros(0, bool),
)
