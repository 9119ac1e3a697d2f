"""Matches labelled objects, which have ids of the labeller's own, to the detections of a frame.

A sample can be used if it can be placed and its class was named; both are checked before any
detection is looked at. Every object of a message is in exactly one count of the TruthAccount;
several samples of one id are one object. Labels that name a detection never appear here.

How a label finds its detection is decided in labels.py and objects.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monitor.frames.covariances import absent, full_matrices, symmetric
from monitor.frames.detections import Limits, Reason
from monitor.frames.frame import (
    ReceivedObjects,
    ReceivedRegion,
    ReceivedTruth,
    StoredFrame,
    TrackIds,
)
from monitor.frames.reasons import Notice, numbers
from monitor.frames.space import BoolArray, DimensionKind, FloatArray, IntArray, Space
from monitor.frames.status import TruthAccount
from monitor.matching.distances import (
    MatchingSettings,
    ObjectsAtTime,
    Placed,
    objects_at_time,
    placed_at_time,
    samples_told,
)
from monitor.matching.gate import (
    ClassTable,
    IgnoreRegion,
    class_table,
    ignored_detections,
    matches,
    stream_gate,
)

# The revision of labels that came inline, with the frame itself.
INLINE = -1


class Outcome(IntEnum):
    """Fate of a detection."""

    WAITING = 0
    MATCHED = 1  # its ground truth, or its true class, is in the statistics
    IGNORED = 2  # neither right nor wrong
    UNMATCHED = 3  # the frame is completely labelled, and no label claims the detection


class GateVerdict(IntEnum):
    """Ways in which a match came about."""

    NONE = 0  # the label named the detection
    WITHIN = 1  # the gate let it in
    NEAR = 2  # the gate let it in, and the match lay near the gate


def _no_rows() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LabelRecord:
    """Holds what labels told of one frame, and what was counted for it. All rows are of the frame.

    Matching makes it; the pipeline adds whether it replaces others, and when it is counted.

    revision          INLINE for labels that came with the frame
    replaces          whether all earlier labels are retracted first
    settled, outcome  (u,) detections that got their label, and their Outcome (u,)
    rows              (m,) those with ground truth (m, K)
    truth_covariance  (m, K, K); None: ground truth is exact
    objects           (m,) the labeller's own ids; None where the labeller sent none
    class_rows        (c,) those with class probabilities and a true class (c,)
    stamp_ns          event time it is counted at; None where unknown or not believed
    clock_ns          how far event time had come
    generation        how often event time had begun anew
    delay_ns          time from the frame to the labels
    live              whether the labels came in time for counters that never fall
    objects_told      whether objects of this revision have come: more of them change nothing
    gate              (m,) of GateVerdict; None where no gate decided
    samples           (m, 2) of the message: the nearer one that ground truth lies between, and the
                      other, which is the same where ground truth is a sample's own; never kept.
                      None without objects; −1 for labels by id
    notices           faults of the labels, for their answer; never kept
    """

    revision: int
    replaces: bool = False
    settled: IntArray = field(default_factory=_no_rows)
    outcome: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    rows: IntArray = field(default_factory=_no_rows)
    truth: FloatArray
    truth_covariance: FloatArray | None = None
    objects: TrackIds | None = None
    class_rows: IntArray = field(default_factory=_no_rows)
    true_class: IntArray = field(default_factory=_no_rows)
    stamp_ns: int | None = None
    clock_ns: int | None = None
    generation: int = 0
    delay_ns: int = 0
    live: bool = True
    account: TruthAccount = field(default_factory=TruthAccount)
    objects_told: bool = False
    gate: npt.NDArray[np.uint8] | None = None
    samples: IntArray | None = None
    notices: tuple[Notice, ...] = ()


# An eigenvalue this far below zero, against the largest one, is rounding.
_ROUNDING = 1e-9


def padded_truth(
    sent: FloatArray, length: IntArray, space: Space, limits: Limits
) -> tuple[FloatArray, BoolArray]:
    """Brings ground truth (n, ≥0) of some lengths (n,) to the dimensions of a space.

    returns  (n, K), NaN where values are absent; and (n,) whether it can be used
    """
    truth = np.full((length.size, space.k), np.nan)
    truth[:, : sent.shape[1]] = sent[:, : space.k]
    return truth, (length == space.k) & (np.abs(truth) <= limits.largest_mean).all(axis=1)


def truth_fault(sent: FloatArray, length: int, space: Space, limits: Limits) -> str:
    """Puts into words why ground truth (≥0,) cannot be used."""
    return (
        f"{numbers(sent, length)}: send {space.k} values ({', '.join(space.names)}), finite and "
        f"within ±{limits.largest_mean:g} ([limits] largest_mean)."
    )


def _usable(
    objects: ReceivedObjects, space: Space, classes: int, limits: Limits
) -> tuple[BoolArray, Placed, Notice | None]:
    """Checks samples for a stream of this space; classes is how many names the labeller has.

    returns  (m,) which can be placed, and are of a class that was named; all of them placed, with
             covariances of zero where none came; the fault of the first that cannot be used
    """
    truth, has_truth = padded_truth(objects.truth, objects.truth_length, space, limits)
    covariance, covariance_invalid = _covariances(objects, space.k, limits)
    # An ignored object may be of any class, and need not name one.
    named = (objects.class_index >= 0) | objects.ignore
    class_invalid = ~named | (objects.class_index >= classes)
    usable = has_truth & ~(covariance_invalid | class_invalid)
    placed = Placed(np.where(has_truth[:, None], truth, 0.0), covariance)
    invalid = np.flatnonzero(~usable)
    if invalid.size == 0:
        return usable, placed, None
    first = int(invalid[0])
    if not has_truth[first]:
        field, sent = "objects.ground_truth", int(objects.truth_length[first])
        message = truth_fault(objects.truth[first], sent, space, limits)
    elif class_invalid[first]:
        index = int(objects.class_index[first])
        field = "objects.class_index"
        message = (
            "absent: an object that is not ignored needs its class."
            if index < 0
            else f"{index}: there are {classes} class names, from 0."
        )
    else:
        sent, k = int(objects.covariance_length[first]), space.k
        field = "objects.covariance"
        message = (
            f"{numbers(objects.covariance[first], sent)}, {sent} values: send {k} variances, "
            f"{k * (k + 1) // 2} of the lower triangle or all {k * k}, symmetric, without "
            f"negative eigenvalues and with deviations of at most {limits.largest_deviation:g} "
            "([limits] largest_deviation), or none."
        )
    notice = Notice(Reason.GROUND_TRUTH_INVALID, field, message, int(invalid.size), first)
    return usable, placed, notice


def _covariances(
    objects: ReceivedObjects, k: int, limits: Limits
) -> tuple[FloatArray | None, BoolArray]:
    """Unpacks covariances of samples, and marks those that cannot be used.

    A labeller may know some dimensions exactly: zeros on the diagonal are no fault.

    returns  (m, K, K), zero where none came, or none that can be used; None if none came at all;
             and (m,) which cannot be used
    """
    length = objects.covariance_length
    invalid = np.zeros(objects.n, bool)
    if not length.any():
        return None, invalid
    forms = (k, k * (k + 1) // 2, k * k)
    fits = np.isin(length, forms)
    values = objects.covariance[:, : k * k]
    nothing = absent(values, length, fits)
    known = fits if nothing is None else fits & ~nothing
    invalid = ~fits & (length > 0)
    matrices = full_matrices(values, np.where(known, length, 0), forms)
    with np.errstate(invalid="ignore", over="ignore"):
        variance = np.diagonal(matrices, axis1=1, axis2=2)
        # No covariance is larger than the largest variance. Beyond the limit the eigenvalues
        # could overflow.
        plausible = np.abs(matrices) <= limits.largest_deviation**2
        finite = plausible.all(axis=(1, 2)) & (variance >= 0).all(axis=1)
    matrices = np.where((known & finite)[:, None, None], matrices, 0.0)
    matrices, asymmetric = symmetric(matrices, known & (length == forms[2]))
    invalid |= known & ~finite
    if asymmetric is not None:
        invalid |= asymmetric
    eigenvalues = np.linalg.eigvalsh(matrices)
    # Written so that NaN is invalid, too.
    invalid |= ~(eigenvalues[:, 0] >= -_ROUNDING * np.maximum(eigenvalues[:, -1], 0))
    matrices = np.where(invalid[:, None, None], 0.0, matrices)
    return (matrices if known.any() else None), invalid


def untimely_notice(
    objects: ReceivedObjects, at: ObjectsAtTime, stamp_ns: int | None, config: MatchingSettings
) -> Notice | None:
    """Says why objects could not be placed at the frame's time; None if all could be."""
    if not at.untimely:
        return None
    message = (
        f"{objects.stamp_ns[at.first]}: the frame has no stamp to compare it with. Send objects "
        "without one."
        if stamp_ns is None
        else f"{objects.stamp_ns[at.first]} and a frame of {stamp_ns}: send two samples around "
        f"the frame, at most {config.max_gap_seconds:g} s apart ([matching] max_gap_seconds), or "
        f"one within {config.max_offset_seconds:g} s of it (max_offset_seconds)."
    )
    return Notice(Reason.TRUTH_STAMP, "objects.stamp_ns", message, at.untimely, at.first)


def usable_regions(
    regions: tuple[ReceivedRegion, ...], space: Space, table: ClassTable
) -> tuple[list[IgnoreRegion], Notice | None]:
    """Returns the regions that can be used, and a notice of the others."""
    used, faults = [], []
    for i, region in enumerate(regions):
        fault = _region_fault(region, space, table.own.size)
        if fault is not None:
            faults.append((i, fault))
            continue
        columns = tuple(space.names.index(name) for name in region.dimensions)
        of = table.alike[max(region.class_index, -1)]
        used.append(IgnoreRegion(columns, region.lower, region.upper, of))
    if not faults:
        return used, None
    first, message = faults[0]
    reason = Reason.GROUND_TRUTH_INVALID
    return used, Notice(reason, "ignore_regions", message, len(faults), first)


def _region_fault(region: ReceivedRegion, space: Space, labelled: int) -> str | None:
    """Puts the fault of a region into words; None if it can be used."""
    names = region.dimensions
    if region.class_index >= labelled:
        return f"class_index {region.class_index}: there are {labelled} class names, from 0."
    if not 1 <= len(names) <= space.k or len(set(names)) < len(names):
        return f"{len(names)} dimensions: name at least one, each once, of {space.names}."
    for name in names:
        if name not in space.names:
            return f"dimension '{name[:64]}': name some of {', '.join(space.names)}."
    if not region.lower.size == region.upper.size == len(names):
        return (
            f"{region.lower.size} lower and {region.upper.size} upper bounds of {len(names)} "
            "dimensions: send one of each for every dimension."
        )
    for i, name in enumerate(names):
        low, high = float(region.lower[i]), float(region.upper[i])
        angle = space.dimensions[space.names.index(name)].kind is not DimensionKind.LENGTH
        if not low <= high or (angle and not np.isfinite([low, high]).all()):
            return f"{low:g} to {high:g} of '{name}': the lower bound first, numbers both."
    return None


_NS = 1e9


def objects_told(objects: ReceivedObjects | None) -> int:
    """Counts the objects that the samples of a message make up: the sum of their account."""
    return 0 if objects is None else samples_told(objects)[0]


def with_objects(
    record: LabelRecord,
    labels: ReceivedTruth,
    frame: StoredFrame,
    free: BoolArray,
    config: MatchingSettings,
    limits: Limits,
) -> tuple[LabelRecord, bool]:
    """Adds the objects of a message, and what they and its regions ignore, to a record.

    Objects of the detector's classes are matched first, among all detections: an object whose
    detection was labelled before is a duplicate. The detections that are left may be ignored.

    record   of the labels by id
    labels   in the coordinate frame of the detections
    free     (n,) detections that have no label yet
    returns  also whether all objects and regions could be used. If not, a detection without an
             object may belong to one that could not be used: it is no false positive, however
             complete the labels are
    """
    objects, header, n = labels.foreign, frame.header, frame.n
    space, account = header.space, record.account
    gate = stream_gate(config, header)
    if isinstance(gate, Notice):
        account.refused += objects_told(objects)
        notice = replace(gate, count=0 if objects is None else objects.n)
        return replace(record, notices=(*record.notices, notice)), False
    if objects is None:
        objects = _NO_OBJECTS
    named = labels.class_names or header.classes
    table = class_table(named, header.classes, config.class_map, config.neighbours)
    usable, placed, fault = _usable(objects, space, len(named), limits)
    at = objects_at_time(
        objects,
        usable,
        frame.stamp_ns,
        round(config.max_gap_seconds * _NS),
        round(config.max_offset_seconds * _NS),
    )
    placed = placed_at_time(placed, at, space)
    own, ignores = _classes(objects, at, table)
    sent = frame.sent.estimates(np.arange(n))
    compared, detections = placed, Placed(sent.mean, sent.covariance)
    if not gate.distance.weighs:
        compared, detections = Placed(placed.mean), Placed(sent.mean)
    pairs = matches(compared, own, detections, frame.class_index, gate)
    fresh = pairs.take(free[pairs.detection])

    rest = free.copy()
    rest[fresh.detection] = False
    rows = np.flatnonzero(rest)
    regions, region_fault = usable_regions(labels.regions, space, table)
    ignored = rows[
        ignored_detections(
            compared, ignores, regions, detections.take(rows), frame.class_index[rows], gate, space
        )
    ]
    real = int(np.count_nonzero(own >= 0))
    left, refused = real - pairs.object.size, at.told - at.label.size - at.duplicate
    account.add(
        TruthAccount(
            matched=fresh.object.size,
            duplicate=at.duplicate + pairs.object.size - fresh.object.size,
            ignored=own.size - real,
            refused=refused,
            missed=left if labels.complete else 0,
            unassigned=0 if labels.complete else left,
        )
    )
    whole = refused == 0 and region_fault is None
    matched = fresh.detection.size
    near = gate.nears(fresh.distance, own[fresh.object])
    fates = np.array([Outcome.MATCHED, Outcome.IGNORED], np.uint8)
    outcome = np.repeat(fates, [matched, ignored.size])
    by_id = np.full(record.rows.size, GateVerdict.NONE, np.uint8)
    samples = np.stack([at.sample[fresh.object], at.other[fresh.object]], axis=1)
    gate_verdict = np.where(near, GateVerdict.NEAR, GateVerdict.WITHIN).astype(np.uint8)
    faults = fault, untimely_notice(objects, at, frame.stamp_ns, config), region_fault
    return replace(
        record,
        settled=np.concatenate([record.settled, fresh.detection, ignored]),
        outcome=np.append(record.outcome, outcome),
        rows=np.append(record.rows, fresh.detection),
        truth=np.concatenate([record.truth, placed.mean[fresh.object]]),
        truth_covariance=_covariance(record, placed, fresh.object),
        objects=_object_ids(record, objects, at.sample[fresh.object]),
        # Classes stay: objects are matched within a class, so that a right class says nothing.
        gate=np.append(by_id, gate_verdict),
        samples=np.concatenate([np.full((record.rows.size, 2), -1), samples]),
        # If no object could be used, they may be sent again.
        objects_told=whole or matched + ignored.size > 0,
        notices=record.notices + tuple(one for one in faults if one is not None),
    ), whole


def _covariance(record: LabelRecord, placed: Placed, which: IntArray) -> FloatArray | None:
    """Returns the covariances of the ground truth by id, which is exact, and of some objects."""
    if placed.covariance is None:
        return None
    exact = np.zeros((record.rows.size, *placed.covariance.shape[1:]))
    return np.concatenate([exact, placed.covariance[which]])


def _object_ids(record: LabelRecord, objects: ReceivedObjects, used: IntArray) -> TrackIds | None:
    """Returns the ids of objects by id of a detection, then of the samples used; None if none."""
    m, known = record.rows.size, objects.has_id[used]
    by_id = record.objects
    if by_id is None:
        if not known.any():
            return None
        by_id = TrackIds(np.zeros(m, np.uint64), np.zeros(m, bool))
    return TrackIds(np.append(by_id.id, objects.id[used]), np.append(by_id.known, known))


def _classes(
    objects: ReceivedObjects, at: ObjectsAtTime, table: ClassTable
) -> tuple[IntArray, BoolArray]:
    """Returns the detector's class of each object, (o,), −1 for one that must match nothing, and
    the classes that the object makes neither right nor wrong, (o, C).
    """
    index = objects.class_index[at.sample]
    ignore = objects.ignore[at.sample] | objects.ignore[at.other]
    # An object of no class is one to be ignored.
    ignores = table.alike[np.maximum(index, -1)]
    ignores[~ignore] = table.beside[index[~ignore]]
    own = np.full(index.size, -1)
    own[~ignore] = table.own[index[~ignore]]
    return own, ignores


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
