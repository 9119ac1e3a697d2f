"""Alarms of drift, and how its evidence stands, as protobuf messages, and back."""

from __future__ import annotations

from monitor.calibration.drift.alarm import (
    Alarm,
    AlarmChange,
    Counted,
    DriftState,
    Scale,
    SliceStanding,
    StageStanding,
    Why,
)
from monitor.calibration.drift.charts import Detector, Direction, Severity, Stage
from monitor.calibration.drift.reference import Origin
from monitor.edges.recalibrator_messages import word_of
from monitor.v1 import calibration_pb2
from monitor.v1 import drift_pb2 as drift_pb

# ---- to messages


def alarm(alarm: Alarm) -> drift_pb.DriftAlarm:
    """One alarm, as events, answers and standings carry it."""
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
    """What goes to those who watch."""
    return drift_pb.DriftEvent(
        change=f"DRIFT_CHANGE_{change.why.name}",
        alarm=alarm(change.alarm),
        concerned=change.concerned,
        actor=change.actor,
    )


def slice_standing(standing: SliceStanding) -> drift_pb.DriftStanding:
    """One slice under one severity, for GetCalibration."""
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
    """One slice at one stage, for GetCalibration."""
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
    """The inverse of alarm. Raises UnknownWord."""
    return Alarm(
        slice=message.slice,
        severity=_severity(message.severity),
        stage=_stage(message.stage),
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
    """The inverse of alarm_change. Raises UnknownWord."""
    return AlarmChange(
        word_of(drift_pb.DriftChange.items(), message.change, Why, "change"),
        read_alarm(message.alarm),
        tuple(message.concerned),
        message.actor,
    )


def read_slice_standing(message: drift_pb.DriftStanding) -> SliceStanding:
    """The inverse of slice_standing. Raises UnknownWord."""
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
    """The inverse of stage_standing. Raises UnknownWord."""
    return StageStanding(
        message.slice,
        _stage(message.stage),
        _read_scale(message.scale),
        message.effective_ratio,
        word_of(drift_pb.DriftOrigin.items(), message.reference, Origin, "reference"),
        message.reference_tracks,
        message.reference_detections,
        word_of(drift_pb.DriftUnit.items(), message.unit, Counted, "unit"),
    )


def _severity(number: int) -> Severity:
    return word_of(drift_pb.DriftSeverity.items(), number, Severity, "severity")


def _stage(number: int) -> Stage:
    return word_of(calibration_pb2.Stage.items(), number, Stage, "stage")


def _read_scale(message: drift_pb.DriftScale) -> Scale:
    return Scale(message.estimate, message.lower, message.upper)
