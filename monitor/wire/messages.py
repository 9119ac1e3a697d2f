"""Messages of what operators watch: status, calibration, drift and events, both directions.

Nothing here is on the frame path.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    Counted,
    DriftReading,
    DriftState,
    SliceStanding,
    StageStanding,
    Why,
)
from monitor.drift.bets import Detector, Direction, Severity, Stage
from monitor.drift.evidence import Scale
from monitor.drift.reference import Origin
from monitor.frames.counters import Counters
from monitor.frames.space import Dimension, Space
from monitor.frames.status import Status, StreamStatus, TrackerStatus
from monitor.promotion.records import SWAPS, Record
from monitor.statistics.evaluation import DimensionMeasures, Evaluation, JointMeasures
from monitor.statistics.measures import ReliabilityBins
from monitor.statistics.reading import RAW, ClassReading, SliceReading
from monitor.v1 import calibration_pb2, event_pb2, perception_monitor_pb2, status_pb2
from monitor.v1 import drift_pb2 as drift_pb
from monitor.wire import recalibrator_messages
from monitor.wire.recalibrator_messages import word_of


@dataclass(frozen=True, slots=True)
class Health:
    """The sidecar serves, or no longer does."""

    serving: bool
    message: str


What = Health | Record | AlarmChange


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; time_ns is the wall clock, for people."""

    sequence: int
    time_ns: int
    what: What


# ---- to messages


def status_response(status: Status) -> status_pb2.GetStatusResponse:
    """Makes the answer of GetStatus."""
    return status_pb2.GetStatusResponse(
        version=status.version,
        started_ns=status.started_ns,
        now_ns=status.now_ns,
        streams=map(_stream, status.streams),
        tracker=None if status.tracker is None else _tracker(status.tracker),
        configuration=_text(status.configuration),
        waiting_keys=status.waiting_keys,
        configuration_refused=_text(status.configuration_refused),
    )


def _text(path: str) -> str:
    """Makes text of a file name, whose bytes need not be text."""
    return path.encode("utf-8", "replace").decode("utf-8")


def _stream(stream: StreamStatus) -> status_pb2.StreamStatus:
    return status_pb2.StreamStatus(
        stream=stream.stream,
        frames=stream.frames,
        detections=stream.detections,
        stamp_ns=stream.stamp_ns,
        stamped_received_ns=stream.stamped_received_ns,
        received_ns=stream.received_ns,
        matched=stream.matched,
        matched_received_ns=stream.matched_received_ns,
    )


def _tracker(tracker: TrackerStatus) -> status_pb2.TrackerStatus:
    return status_pb2.TrackerStatus(address=tracker.address, up=tracker.up, trouble=tracker.trouble)


# ---- from messages


def status_of(message: status_pb2.GetStatusResponse) -> Status:
    """Reads the answer of GetStatus."""
    return Status(
        message.version,
        message.started_ns,
        message.now_ns,
        tuple(map(_stream_of, message.streams)),
        _tracker_of(message.tracker) if message.HasField("tracker") else None,
        message.configuration,
        tuple(message.waiting_keys),
        message.configuration_refused,
    )


def _stream_of(message: status_pb2.StreamStatus) -> StreamStatus:
    return StreamStatus(
        message.stream,
        message.frames,
        message.detections,
        message.stamp_ns if message.HasField("stamp_ns") else None,
        message.stamped_received_ns if message.HasField("stamped_received_ns") else None,
        message.received_ns if message.HasField("received_ns") else None,
        message.matched,
        message.matched_received_ns if message.HasField("matched_received_ns") else None,
    )


def _tracker_of(message: status_pb2.TrackerStatus) -> TrackerStatus:
    return TrackerStatus(message.address, message.up, message.trouble)


# ---- to messages


def alarm(alarm: Alarm) -> drift_pb.DriftAlarm:
    """Makes the message of an alarm, for events, answers and standings."""
    return drift_pb.DriftAlarm(
        slice=alarm.slice,
        severity=f"DRIFT_SEVERITY_{alarm.severity.name}",
        stage=f"STAGE_{alarm.stage.name}",
        detector=f"DRIFT_DETECTOR_{alarm.detector.name}",
        direction=f"DRIFT_DIRECTION_{alarm.direction.name}",
        evidence_hours=alarm.evidence,
        threshold_hours=alarm.threshold,
        event_ns=alarm.event_ns,
        since_ns=alarm.since_ns,
        detections=alarm.detections,
        tracks=alarm.tracks,
        labelled=alarm.labelled,
        scale=_scale(alarm.scale),
        epoch=alarm.epoch,
        driven_hours=alarm.driven,
    )


def alarm_change(change: AlarmChange) -> drift_pb.DriftEvent:
    """Makes the message of a change for those who watch."""
    return drift_pb.DriftEvent(
        change=f"DRIFT_CHANGE_{change.why.name}",
        alarm=alarm(change.alarm),
        concerned=change.concerned,
        actor=change.actor,
    )


def slice_standing(standing: SliceStanding) -> drift_pb.DriftStanding:
    """Makes the message of one slice under one severity, for GetCalibration."""
    return drift_pb.DriftStanding(
        slice=standing.slice,
        severity=f"DRIFT_SEVERITY_{standing.severity.name}",
        state=f"DRIFT_STATE_{standing.state.name}",
        evidence_hours=standing.evidence,
        peak_hours=standing.peak,
        threshold_hours=standing.threshold,
        alarm=None if standing.alarm is None else alarm(standing.alarm),
    )


def stage_standing(standing: StageStanding) -> drift_pb.DriftStageStanding:
    """Makes the message of one slice at one stage, for GetCalibration."""
    return drift_pb.DriftStageStanding(
        slice=standing.slice,
        stage=f"STAGE_{standing.stage.name}",
        scale=_scale(standing.scale),
        effective_ratio=standing.effective_ratio,
        reference=f"DRIFT_ORIGIN_{standing.reference.name}",
        reference_tracks=standing.reference_tracks,
        reference_detections=standing.reference_detections,
        unit=f"DRIFT_UNIT_{standing.unit.name}",
    )


def _scale(scale: Scale) -> drift_pb.DriftScale:
    return drift_pb.DriftScale(estimate=scale.estimate, lower=scale.lower, upper=scale.upper)


# ---- from messages


def read_alarm(message: drift_pb.DriftAlarm) -> Alarm:
    """Reads an alarm. Raises UnknownWord."""
    return Alarm(
        slice=message.slice,
        severity=_severity(message.severity),
        stage=_read_stage(message.stage),
        detector=word_of(drift_pb.DriftDetector.items(), message.detector, Detector, "detector"),
        direction=word_of(
            drift_pb.DriftDirection.items(), message.direction, Direction, "direction"
        ),
        evidence=message.evidence_hours,
        threshold=message.threshold_hours,
        event_ns=message.event_ns,
        since_ns=message.since_ns,
        detections=message.detections,
        tracks=message.tracks,
        labelled=message.labelled,
        scale=_read_scale(message.scale),
        epoch=message.epoch,
        driven=message.driven_hours,
    )


def read_alarm_change(message: drift_pb.DriftEvent) -> AlarmChange:
    """Reads a change of alarms. Raises UnknownWord."""
    return AlarmChange(
        word_of(drift_pb.DriftChange.items(), message.change, Why, "change"),
        read_alarm(message.alarm),
        tuple(message.concerned),
        message.actor,
    )


def read_slice_standing(message: drift_pb.DriftStanding) -> SliceStanding:
    """Reads the standing of a slice. Raises UnknownWord."""
    return SliceStanding(
        message.slice,
        _severity(message.severity),
        word_of(drift_pb.DriftState.items(), message.state, DriftState, "state"),
        message.evidence_hours,
        message.peak_hours,
        message.threshold_hours,
        read_alarm(message.alarm) if message.HasField("alarm") else None,
    )


def read_stage_standing(message: drift_pb.DriftStageStanding) -> StageStanding:
    """Reads the standing of a slice at a stage. Raises UnknownWord."""
    return StageStanding(
        message.slice,
        _read_stage(message.stage),
        _read_scale(message.scale),
        message.effective_ratio,
        word_of(drift_pb.DriftOrigin.items(), message.reference, Origin, "reference"),
        message.reference_tracks,
        message.reference_detections,
        word_of(drift_pb.DriftUnit.items(), message.unit, Counted, "unit"),
    )


def _severity(number: int) -> Severity:
    return word_of(drift_pb.DriftSeverity.items(), number, Severity, "severity")


def _read_stage(number: int) -> Stage:
    return word_of(calibration_pb2.Stage.items(), number, Stage, "stage")


def _read_scale(message: drift_pb.DriftScale) -> Scale:
    return Scale(message.estimate, message.lower, message.upper)


# Fields of ClassCalibration with the names of ClassEvaluation.
_CLASS_MEASURES = tuple(
    name
    for name in calibration_pb2.ClassCalibration.DESCRIPTOR.fields_by_name
    if name not in ("slice", "class_names", "n")
)


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
        standings.append(slice_standing(standing))
        yield
    drift_stages = []
    for known in drift.stages:
        drift_stages.append(stage_standing(known))
        yield
    return perception_monitor_pb2.GetCalibrationResponse(
        tau=tau,
        slices=slices,
        counts=calibration_pb2.ServiceCounts(
            frames=counters.frames,
            detections=counters.detections,
            recalibrated=counters.recalibrated,
            passed_through=counters.passed_through,
            refused=counters.refused,
            matched=counters.truth.matched,
            pending=pending,
            dropped=counters.dropped,
        ),
        recalibrator_version=version,
        classes=[_classes(reading) for reading in classes],
        drift=standings,
        drift_stages=drift_stages,
    )


def _classes(reading: ClassReading) -> calibration_pb2.ClassCalibration:
    found = reading.evaluation
    return calibration_pb2.ClassCalibration(
        slice=reading.name,
        class_names=reading.class_names,
        n=found.n,
        **{name: getattr(found, name) for name in _CLASS_MEASURES},
    )


def _stage_calibration(
    name: str, measures: Evaluation, space: Space, bins: bool
) -> calibration_pb2.StageCalibration:
    return calibration_pb2.StageCalibration(
        stage=calibration_pb2.STAGE_RAW if name == RAW else calibration_pb2.STAGE_RECALIBRATED,
        n=measures.rows,
        dimensions=[
            _dimension(dimension, measures.dimensions[dimension.name], bins)
            for dimension in space.dimensions
        ],
        joint=_joint(measures.joint, bins),
    )


def _dimension(
    dimension: Dimension, measures: DimensionMeasures, bins: bool
) -> calibration_pb2.DimensionCalibration:
    return calibration_pb2.DimensionCalibration(
        name=dimension.name,
        unit=dimension.unit,
        ence=measures.ence,
        ence_noise_floor=measures.ence_noise_floor,
        uce=measures.uce,
        qce=measures.qce,
        qce_by_tau=measures.qce_by_tau.tolist(),
        nees_mean=measures.nees_mean,
        nll=measures.nll,
        bias=measures.bias,
        bins=_bins(measures.bins) if bins else [],
        ence_noise_floor_gaussian=measures.ence_noise_floor_gaussian,
        n_eff=measures.n_eff,
        kurtosis=measures.kurtosis,
        sharpness=measures.sharpness,
        c_v=measures.c_v,
        pinball=measures.pinball,
        calibration_area=measures.calibration_area,
    )


def _joint(measures: JointMeasures, bins: bool) -> calibration_pb2.JointCalibration:
    return calibration_pb2.JointCalibration(
        k=measures.k,
        nees_over_k=measures.nees_over_k,
        nees_median_ratio=measures.nees_median_ratio,
        qce=measures.qce,
        qce_by_tau=measures.qce_by_tau.tolist(),
        coverage_by_tau=measures.coverage_by_tau.tolist(),
        nll=measures.nll,
        bins=_bins(measures.bins) if bins else [],
        n_eff=measures.n_eff,
        nees_interval=measures.nees_interval,
        nees_interval_n_eff=measures.nees_interval_n_eff,
        calibration_area=measures.calibration_area,
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
            message.drift.CopyFrom(alarm_change(what))
        case Record():
            _put_record(message, what)
    return perception_monitor_pb2.WatchEventsResponse(event=message)


def _put_record(message: event_pb2.Event, what: Record) -> None:
    record = recalibrator_messages.record(what)
    if what.what in SWAPS:
        version = event_pb2.VersionEvent(
            before=what.before, after=what.after, actor=what.actor, record=record
        )
        message.version.CopyFrom(version)
    else:
        message.recalibration.CopyFrom(record)
