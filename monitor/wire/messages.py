"""Messages of what operators watch: status, calibration, drift and events.

Nothing here is on the frame path.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

from google.protobuf.timestamp_pb2 import Timestamp

from monitor.drift.alarms import AlarmChange, DriftReading
from monitor.frames.counters import Counters
from monitor.frames.space import Space
from monitor.frames.status import Status
from monitor.promotion.records import SWAPS, Record
from monitor.statistics.evaluation import Evaluation
from monitor.statistics.measures import ReliabilityBins
from monitor.statistics.reading import RAW, ClassReading, SliceReading
from monitor.v1 import calibration_pb2, drift_pb2, event_pb2, perception_monitor_pb2, status_pb2
from monitor.v1 import recalibration_record_pb2 as record_pb
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
