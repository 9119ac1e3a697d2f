"""Messages of what operators watch and manage: calibration, drift, events, recalibrators.

Nothing here is on the frame path. How a value becomes a message is told in values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TypeVar

from monitor.drift.alarms import AlarmChange, DriftReading
from monitor.frames.space import Space
from monitor.frames.status import Counters
from monitor.promotion.decisions import KnownRecalibrator
from monitor.promotion.records import SWAPS, Record, TrialStanding
from monitor.recalibration.selection import ClassSelection
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.measures import Evaluation, ReliabilityBins
from monitor.statistics.reading import (
    RAW,
    RECALIBRATED,
    ClassReading,
    PredictedReading,
    SliceReading,
)
from monitor.v1 import calibration_pb2, drift_pb2, event_pb2, perception_monitor_pb2
from monitor.v1 import recalibration_record_pb2 as record_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.values import Event, Health, message_of

Item = TypeVar("Item")
Result = TypeVar("Result")


def calibration(
    readings: Iterable[SliceReading],
    counters: Counters,
    pending: int,
    version: str,
    tau: tuple[float, ...],
    classes: Iterable[ClassReading] = (),
    *,
    predicted: Iterable[PredictedReading] = (),
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
        classes=[_classes(reading, *stage) for reading in classes for stage in reading.stages],
        predicted=[message_of(calibration_pb2.PredictedCalibration, one) for one in predicted],
        drift=(yield from _each(partial(message_of, drift_pb2.DriftStanding), drift.standings)),
        drift_stages=(
            yield from _each(partial(message_of, drift_pb2.DriftStageStanding), drift.stages)
        ),
        drift_left_out=[
            drift_pb2.DriftLeftOut(reason=why, detections=n) for why, n in drift.left_out
        ],
    )


_STAGES = {RAW: calibration_pb2.STAGE_RAW, RECALIBRATED: calibration_pb2.STAGE_RECALIBRATED}


def _each(
    make: Callable[[Item], Result], values: Iterable[Item]
) -> Generator[None, None, list[Result]]:
    """Makes a message of each value, one a step."""
    made = []
    for value in values:
        made.append(make(value))
        yield
    return made


def _slice(bins: bool, reading: SliceReading) -> calibration_pb2.SliceCalibration:
    stages = [_stage_calibration(*stage, reading.space, bins) for stage in reading.stages]
    return calibration_pb2.SliceCalibration(slice=reading.name, stages=stages)


def _classes(
    reading: ClassReading, stage: str, measures: ClassEvaluation
) -> calibration_pb2.ClassCalibration:
    return message_of(
        calibration_pb2.ClassCalibration,
        measures,
        slice=reading.name,
        class_names=reading.class_names,
        stage=_STAGES[stage],
    )


def _stage_calibration(
    name: str, measures: Evaluation, space: Space, bins: bool
) -> calibration_pb2.StageCalibration:
    joint, by_name = measures.joint, measures.dimensions
    return calibration_pb2.StageCalibration(
        stage=_STAGES[name],
        n=measures.rows,
        dimensions=[
            message_of(
                calibration_pb2.DimensionCalibration,
                by_name[dimension.name],
                name=dimension.name,
                unit=dimension.unit,
                bins=_bins(by_name[dimension.name].bins) if bins else [],
            )
            for dimension in space.dimensions
        ],
        joint=message_of(
            calibration_pb2.JointCalibration, joint, bins=_bins(joint.bins) if bins else []
        ),
    )


def _bins(bins: ReliabilityBins) -> list[calibration_pb2.Bin]:
    return [calibration_pb2.Bin(**row) for row in bins.rows()]


def event(event: Event) -> perception_monitor_pb2.WatchEventsResponse:
    """Makes one message of WatchEvents."""
    message, what = event_pb2.Event(sequence=event.sequence), event.what
    message.time.FromNanoseconds(event.time_ns)
    match what:
        case Health():
            message.health.CopyFrom(message_of(event_pb2.HealthEvent, what))
        case AlarmChange():
            message.drift.CopyFrom(message_of(drift_pb2.DriftEvent, what))
        case Record():
            record = message_of(record_pb.RecalibrationRecord, what)
            if what.what in SWAPS:
                version = message_of(event_pb2.VersionEvent, what, record=record)
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
