"""Readings and events as protobuf messages: what is not on the frame path."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from monitor.calibration.drift.alarm import AlarmChange, DriftReading
from monitor.calibration.evaluation import DimensionMeasures, Evaluation, JointMeasures
from monitor.calibration.measures import ReliabilityBins
from monitor.calibration.space import Dimension, Space
from monitor.counters import Counters
from monitor.edges import drift_messages, recalibrator_messages
from monitor.events import Event, Health
from monitor.promotion.records import SWAPS, Record
from monitor.readings import RAW, ClassReading, SliceReading
from monitor.v1 import calibration_pb2, event_pb2, perception_monitor_pb2

# Fields of ClassCalibration that are called as in ClassEvaluation.
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
    """The answer of GetCalibration, returned after a step for each slice."""
    slices = []
    for reading in readings:
        stages = [
            _stage(name, found, reading.space, include_bins) for name, found in reading.stages
        ]
        slices.append(calibration_pb2.SliceCalibration(slice=reading.name, stages=stages))
        yield
    standings = []
    for standing in drift.standings:
        standings.append(drift_messages.slice_standing(standing))
        yield
    drift_stages = []
    for known in drift.stages:
        drift_stages.append(drift_messages.stage_standing(known))
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


def _stage(
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
    """One message of WatchEvents."""
    time = Timestamp()
    time.FromNanoseconds(event.time_ns)
    message = event_pb2.Event(sequence=event.sequence, time=time)
    what = event.what
    match what:
        case Health():
            message.health.serving = what.serving
            message.health.message = what.message
        case AlarmChange():
            message.drift.CopyFrom(drift_messages.alarm_change(what))
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
