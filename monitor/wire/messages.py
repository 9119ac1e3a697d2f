"""Messages of what operators watch and manage: calibration, drift, events, recalibrators.

Nothing here is on the frame path.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from monitor.drift.alarms import AlarmChange, DriftReading
from monitor.frames.counters import Counters
from monitor.frames.space import Space
from monitor.promotion.records import SWAPS, KnownRecalibrator, Record, TrialStanding
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.statistics.evaluation import Evaluation
from monitor.statistics.measures import ReliabilityBins
from monitor.statistics.reading import RAW, ClassReading, SliceReading
from monitor.v1 import calibration_pb2, drift_pb2, event_pb2, perception_monitor_pb2
from monitor.v1 import recalibration_record_pb2 as record_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.fields import message_of

Value = TypeVar("Value")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Health:
    """The sidecar serves, or no longer does."""

    serving: bool
    message: str


EventContent = Health | Record | AlarmChange


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; time_ns is the wall clock, for people."""

    sequence: int
    time_ns: int
    what: EventContent


class Kind(StrEnum):
    """Kinds of what a recalibrator recalibrates."""

    ESTIMATES = "estimates"  # mean and covariance
    CLASS_PROBABILITIES = "class_probabilities"


@dataclass(frozen=True, slots=True)
class Summary:
    """A recalibrator in a few words.

    in_force     it is active
    dimensions   it was fitted on; empty where any will do, and of class probabilities
    slices       with parameters of their own
    class_names  it was fitted on; empty where any will do, and of estimates
    """

    version: str
    method: str
    kind: Kind
    in_force: bool
    dimensions: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """All that RecalibratorAdmin.List tells.

    records    the latest, in order
    promotion  the mode: manual, advise or automatic
    """

    recalibrators: tuple[Summary, ...]
    trials: tuple[TrialStanding, ...]
    records: tuple[Record, ...]
    pinned: bool
    promotion: str


# ---- to messages


def calibration(
    readings: Iterable[SliceReading],
    counters: Counters,
    pending: int,
    version: str,
    tau: tuple[float, ...],
    classes: Iterable[ClassReading] = (),
    *,
    drift: DriftReading,
    include_bins: bool,
) -> Generator[None, None, perception_monitor_pb2.GetCalibrationResponse]:
    """Makes the answer of GetCalibration, in a step for each slice."""
    return perception_monitor_pb2.GetCalibrationResponse(
        tau=tau,
        slices=(yield from _each(partial(_slice, include_bins), readings)),
        counts=message_of(
            calibration_pb2.ServiceCounts,
            counters,
            matched=counters.truth.matched,
            pending=pending,
        ),
        recalibrator_version=version,
        classes=[_classes(reading) for reading in classes],
        drift=(yield from _each(partial(message_of, drift_pb2.DriftStanding), drift.standings)),
        drift_stages=(
            yield from _each(partial(message_of, drift_pb2.DriftStageStanding), drift.stages)
        ),
    )


def _each(
    make: Callable[[Value], Made], values: Iterable[Value]
) -> Generator[None, None, list[Made]]:
    """Makes a message of each value, one a step."""
    made = []
    for value in values:
        made.append(make(value))
        yield
    return made


def _slice(bins: bool, reading: SliceReading) -> calibration_pb2.SliceCalibration:
    stages = [_stage_calibration(*stage, reading.space, bins) for stage in reading.stages]
    return calibration_pb2.SliceCalibration(slice=reading.name, stages=stages)


def _classes(reading: ClassReading) -> calibration_pb2.ClassCalibration:
    return message_of(
        calibration_pb2.ClassCalibration,
        reading.evaluation,
        slice=reading.name,
        class_names=reading.class_names,
    )


def _stage_calibration(
    name: str, measures: Evaluation, space: Space, bins: bool
) -> calibration_pb2.StageCalibration:
    dimensions = []
    for dimension in space.dimensions:
        found = measures.dimensions[dimension.name]
        dimensions.append(
            message_of(
                calibration_pb2.DimensionCalibration,
                found,
                name=dimension.name,
                unit=dimension.unit,
                bins=_bins(found.bins) if bins else [],
            )
        )
    joint = measures.joint
    return calibration_pb2.StageCalibration(
        stage=calibration_pb2.STAGE_RAW if name == RAW else calibration_pb2.STAGE_RECALIBRATED,
        n=measures.rows,
        dimensions=dimensions,
        joint=message_of(
            calibration_pb2.JointCalibration, joint, bins=_bins(joint.bins) if bins else []
        ),
    )


def _bins(bins: ReliabilityBins) -> list[calibration_pb2.Bin]:
    return [calibration_pb2.Bin(**row) for row in bins.rows()]


def event(event: Event) -> perception_monitor_pb2.WatchEventsResponse:
    """Makes one message of WatchEvents."""
    time = Timestamp()
    time.FromNanoseconds(event.time_ns)
    message = event_pb2.Event(sequence=event.sequence, time=time)
    what = event.what
    match what:
        case Health():
            message.health.serving = what.serving
            message.health.message = what.message
        case AlarmChange():
            message.drift.CopyFrom(message_of(drift_pb2.DriftEvent, what))
        case Record():
            record = message_of(record_pb.RecalibrationRecord, what)
            if what.what in SWAPS:
                version = event_pb2.VersionEvent(
                    before=what.before, after=what.after, actor=what.actor, record=record
                )
                message.version.CopyFrom(version)
            else:
                message.recalibration.CopyFrom(record)
    return perception_monitor_pb2.WatchEventsResponse(event=message)


# ---- recalibrators


def summary(known: KnownRecalibrator) -> admin_pb.RecalibratorSummary:
    """Makes one line of RecalibratorAdmin.List."""
    selection = known.selection
    found = admin_pb.RecalibratorSummary(
        version=selection.version,
        method=selection.method,
        promoted=known.promoted,
        kind=admin_pb.RECALIBRATOR_KIND_ESTIMATES,
    )
    if isinstance(selection, ClassSelection):
        found.kind = admin_pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES
        found.class_names.extend(selection.classes)
    else:
        found.dimensions.extend(selection.dimensions)
        found.slices.extend(sorted(selection.by_slice))
    return found


def listing(
    known: Iterable[KnownRecalibrator],
    trials: Iterable[TrialStanding],
    records: Iterable[Record],
    promotion: str,
    *,
    pinned: bool,
) -> Generator[None, None, admin_pb.ListResponse]:
    """Makes the answer of RecalibratorAdmin.List, in a step for each entry."""
    return admin_pb.ListResponse(
        pinned=pinned,
        promotion=promotion,
        recalibrators=(yield from _each(summary, known)),
        trials=(yield from _each(partial(message_of, admin_pb.Trial), trials)),
        records=(yield from _each(partial(message_of, record_pb.RecalibrationRecord), records)),
    )


def shown(
    known: KnownRecalibrator, document: str, records: Iterable[Record]
) -> Generator[None, None, admin_pb.GetResponse]:
    """Makes the answer of RecalibratorAdmin.Get, in a step for each record."""
    told = yield from _each(partial(message_of, record_pb.RecalibrationRecord), records)
    return admin_pb.GetResponse(summary=summary(known), document=document, records=told)
