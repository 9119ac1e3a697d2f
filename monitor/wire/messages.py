"""Messages of what operators watch and manage: status, calibration, drift, events, recalibrators.

Nothing here is on the frame path.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from google.protobuf.timestamp_pb2 import Timestamp

from monitor.drift.alarms import AlarmChange, DriftReading
from monitor.frames.counters import Counters
from monitor.frames.space import Space
from monitor.frames.status import Status
from monitor.promotion.records import SWAPS, KnownRecalibrator, Record, TrialStanding
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.statistics.evaluation import Evaluation
from monitor.statistics.measures import ReliabilityBins
from monitor.statistics.reading import RAW, ClassReading, SliceReading
from monitor.v1 import calibration_pb2, drift_pb2, event_pb2, perception_monitor_pb2, status_pb2
from monitor.v1 import recalibration_record_pb2 as record_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.fields import message_of


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


def status_response(status: Status) -> status_pb2.GetStatusResponse:
    """Makes the answer of GetStatus."""
    readable = replace(
        status,
        configuration=_text(status.configuration),
        configuration_refused=_text(status.configuration_refused),
    )
    return message_of(status_pb2.GetStatusResponse, readable)


def _text(path: str) -> str:
    """Makes text of a file name, whose bytes need not be text."""
    return path.encode("utf-8", "replace").decode("utf-8")


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
    slices = []
    for reading in readings:
        stages = [
            _stage_calibration(name, found, reading.space, include_bins)
            for name, found in reading.stages
        ]
        slices.append(calibration_pb2.SliceCalibration(slice=reading.name, stages=stages))
        yield
    standings = []
    for standing in drift.standings:
        standings.append(message_of(drift_pb2.DriftStanding, standing))
        yield
    drift_stages = []
    for known in drift.stages:
        drift_stages.append(message_of(drift_pb2.DriftStageStanding, known))
        yield
    return perception_monitor_pb2.GetCalibrationResponse(
        tau=tau,
        slices=slices,
        counts=message_of(
            calibration_pb2.ServiceCounts,
            counters,
            matched=counters.truth.matched,
            pending=pending,
        ),
        recalibrator_version=version,
        classes=[_classes(reading) for reading in classes],
        drift=standings,
        drift_stages=drift_stages,
    )


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
    found = admin_pb.ListResponse(pinned=pinned, promotion=promotion)
    for entry in known:
        found.recalibrators.append(summary(entry))
        yield
    for standing in trials:
        found.trials.append(message_of(admin_pb.Trial, standing))
        yield
    for one in records:
        found.records.append(message_of(record_pb.RecalibrationRecord, one))
        yield
    return found


def shown(
    known: KnownRecalibrator, document: str, records: Iterable[Record]
) -> Generator[None, None, admin_pb.GetResponse]:
    """Makes the answer of RecalibratorAdmin.Get, in a step for each record."""
    found = admin_pb.GetResponse(summary=summary(known), document=document)
    for one in records:
        found.records.append(message_of(record_pb.RecalibrationRecord, one))
        yield
    return found
