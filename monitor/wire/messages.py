"""Messages of what operators watch and manage: calibration, drift, events, recalibrators.

Nothing here is on the frame path.

A dataclass goes out as the message whose fields have the names of its attributes, but for the few
in _ATTRIBUTES: a nested one as a nested message, a tuple as a repeated field, None as an absent
field, a word as the enum value that ends with its name, and nanoseconds since 1970 as a Timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache, partial
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from monitor.drift.alarms import AlarmChange, DriftReading
from monitor.drift.bets import Quantity
from monitor.frames.space import Space
from monitor.frames.status import Counters
from monitor.promotion.records import SWAPS, KnownRecalibrator, Record, TrialStanding
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

# Values of fields that older sidecars do not send.
_UNSENT = {"quantity": Quantity.SCALE}

# Attributes of values by the fields of the contract that have other names.
_ATTRIBUTES = {
    "evidence_hours": "evidence",
    "peak_hours": "peak",
    "threshold_hours": "threshold",
    "driven_hours": "driven",
    "change": "why",
    "promoted": "in_force",
    "time": "time_ns",
}

Value = TypeVar("Value")
Made = TypeVar("Made", bound=Message)


class UnknownWord(ValueError):
    """A sidecar uses a word that came into the contract after this program was written."""


# ---- to messages


def message_of(kind: type[Made], value: object, **given: Any) -> Made:
    """Makes a message of the attributes of a value.

    given  fields that are not attributes of it
    """
    return kind(**given, **_content(cast(Descriptor, kind.DESCRIPTOR), value, given))


def _content(kind: Descriptor, value: object, given: Collection[str] = ()) -> dict[str, Any]:
    return {
        field.name: _outgoing(field, getattr(value, attribute))
        for attribute, field in _fields(kind)
        if field.name not in given
    }


def _outgoing(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        return _prefix(field.enum_type) + value.name
    if field.message_type is None or value is None:
        return value
    if field.message_type is Timestamp.DESCRIPTOR:
        time = Timestamp()
        time.FromNanoseconds(value)
        return time
    if isinstance(value, tuple):
        return [_content(field.message_type, one) for one in value]
    return _content(field.message_type, value)


# ---- from messages


def value_of(kind: type[Value], message: Message) -> Value:
    """Makes a dataclass of the fields of a message. Raises UnknownWord."""
    types = _types(cast(Hashable, kind))
    return kind(
        **{
            attribute: _incoming(types[attribute], field, message)
            for attribute, field in _fields(cast(Descriptor, message.DESCRIPTOR))
        }
    )


def _incoming(wanted: Any, field: FieldDescriptor, message: Message) -> Any:
    value = getattr(message, field.name)
    inner = [one for one in get_args(wanted) if one not in (NoneType, Ellipsis)]
    if get_origin(wanted) is tuple:
        return tuple(_one(inner[0], field, one) for one in value)
    if inner and not message.HasField(field.name):
        return None
    return _one(inner[0] if inner else wanted, field, value)


def _one(wanted: Any, field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        return _word(wanted, field.name, field.enum_type, value)
    if isinstance(value, Timestamp):
        return value.ToNanoseconds()
    return value if field.message_type is None else value_of(wanted, value)


def _word(words: type[Enum], name: str, values: EnumDescriptor, number: int) -> Enum:
    if number == 0 and name in _UNSENT:
        return _UNSENT[name]
    known = values.values_by_number.get(number)
    word = known and words.__members__.get(known.name.removeprefix(_prefix(values)))
    if not isinstance(word, words):
        raise UnknownWord(
            f"the sidecar answers with '{name}' {number}, which is unknown here: use the program "
            "of the sidecar's own version."
        )
    return word


def _prefix(values: EnumDescriptor) -> str:
    """Returns the beginning of all values of an enum, the first of which is …_UNSPECIFIED."""
    name: str = values.values[0].name
    return name.removesuffix("UNSPECIFIED")


@lru_cache
def _fields(kind: Descriptor) -> tuple[tuple[str, FieldDescriptor], ...]:
    """Lists the fields of a message, each with its attribute."""
    return tuple((_ATTRIBUTES.get(field.name, field.name), field) for field in kind.fields)


@lru_cache
def _types(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


Item = TypeVar("Item")
Result = TypeVar("Result")


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
