"""Values as messages and back, and those of operators: events, recalibrators.

A dataclass goes out as the message whose fields have the names of its attributes, but for the few
in _ATTRIBUTES: a nested one as a nested message, a tuple as a repeated field, None as an absent
field, a word as the enum value that ends with its name, and nanoseconds since 1970 as a Timestamp.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from monitor.drift.alarms import AlarmChange
from monitor.drift.charts import Quantity
from monitor.promotion.records import Record, TrialStanding

# Services of the contract.
MONITOR = "monitor.v1.PerceptionMonitor"
ADMIN = "monitor.v1.RecalibratorAdmin"

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
