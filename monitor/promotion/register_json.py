"""The state of the register as JSON: floats keep every bit, and all that is read is checked.

It is what must outlive a restart, beside the recalibrators themselves. Its history is records, one
a line; there a number that is not finite is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from monitor.promotion.betting import FRACTIONS, Bets, Clip, Run, Watch
from monitor.promotion.records import Evidence, Factor, Happened, Record
from monitor.promotion.register import Follower
from monitor.promotion.trial import AwaitingGuard, Candidate, Guard, Trial
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.documents import (
    LARGEST,
    LEAST_POSITIVE,
    Document,
    InvalidRecalibrator,
    check_depth,
    member,
    number,
    numbers,
    part,
    parts,
    shown,
    whole,
)
from monitor.recalibration.documents import factors as factors_on_deviation
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import METHODS, read_method


@dataclass(frozen=True, slots=True)
class ConfiguredVersions:
    """Versions that the configuration named when this was written; '' where it named none."""

    recalibrator: str = ""
    class_recalibrator: str = ""


@dataclass(frozen=True, slots=True)
class RegisterState:
    """Recalibrators that are active and on trial at one moment.

    selection, class_selection
               active versions
    previous, class_previous
               versions that a rollback goes back through, the latest last
    sent       versions of documents that people have sent
    pinned     nothing acts by itself
    sequence   of the latest record
    spent      trials begun since the last change, by slice name
    befores    recalibrators of before, where no track has come since
    followers  of adaptive champions, by slice name
    entry      position in the ledger that tracks have reached; None where that is not known
    """

    selection: str
    class_selection: str
    previous: tuple[str, ...] = ()
    class_previous: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    configured: ConfiguredVersions = ConfiguredVersions()
    pinned: bool = False
    sequence: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    trials: tuple[Candidate, ...] = ()
    guards: tuple[Guard, ...] = ()
    befores: tuple[AwaitingGuard, ...] = ()
    followers: Mapping[str, Follower] = field(default_factory=dict)
    entry: int | None = None

    @property
    def in_force(self) -> frozenset[str]:
        """Versions without which the state cannot be used."""
        return frozenset((self.selection, self.class_selection))

    @property
    def named(self) -> frozenset[str]:
        """All versions that somebody may ask for because of it."""
        return self.in_force.union(self.previous, self.class_previous, self.sent)


# Times have 64 bits with a sign.
EARLIEST_NS = -(2**63)


class InvalidRecord(ValueError):
    """A line does not describe a record."""


def to_line(record: Record) -> str:
    """Writes a record as ASCII without a line break, whatever its words are."""
    return json.dumps(_plain(record), separators=(",", ":"), allow_nan=False)


def from_line(line: str | bytes) -> Record:
    """Reads a line of to_line; null is NaN. Fields that only newer code knows are left out.

    Raises InvalidRecord for anything else.
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"no line of JSON: {error}.") from None
    try:
        check_depth(content)
        return _record(part({"record": content}, "record"))
    except InvalidRecalibrator as error:
        raise InvalidRecord(f"no record: {error}") from None


def factors(content: Document, name: str) -> tuple[Factor, ...]:
    """Reads a list of factors, which may be empty. Raises InvalidRecalibrator."""
    return tuple(
        Factor(
            text(one, "dimension"),
            *(_number(one, column) for column in ("lowest", "typical", "highest")),
        )
        for one in parts(content, name, fewest=0)
    )


def text(content: Document, name: str) -> str:
    """Reads a string. Raises InvalidRecalibrator."""
    value = content.get(name)
    if not isinstance(value, str):
        raise InvalidRecalibrator(f"'{name}' is {shown(value)}: it must be a string.")
    return value


def _record(content: Document) -> Record:
    event_ns = content.get("event_ns")
    evidence = content.get("evidence")
    return Record(
        whole(content, "sequence"),
        whole(content, "time_ns", EARLIEST_NS),
        member(content, "what", Happened),
        text(content, "slice"),
        text(content, "version"),
        text(content, "before"),
        text(content, "after"),
        text(content, "actor"),
        text(content, "reason"),
        None if event_ns is None else whole(content, "event_ns", EARLIEST_NS),
        None if evidence is None else _evidence(part(content, "evidence")),
        factors(content, "factors"),
    )


def _evidence(content: Document) -> Evidence:
    return Evidence(
        whole(content, "tracks", 0),
        _number(content, "gain"),
        _number(content, "log10_better"),
        _number(content, "log10_worse"),
        _number(content, "log10_threshold"),
    )


def _number(content: Document, name: str) -> float:
    return math.nan if content.get(name, 0) is None else number(content, name)


FORMAT = "calibration-monitor/register/1"
Value = TypeVar("Value")


class InvalidRegister(ValueError):
    """A text does not describe a state of the register."""


class OtherRegister(InvalidRegister):
    """The state has a format that another version of the monitor reads."""


# ---- writing


def register_to_json(state: RegisterState) -> str:
    """Writes the state as one object, in ASCII."""
    content = {"format": FORMAT, **_fields(state)}
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: a dataclass by the names of its fields, in their order."""
    match value:
        case Evidence() | Factor():
            found = _fields(value)
            floats = {one.name for one in fields(value) if one.type == "float"}
            return {name: _finite(one) if name in floats else one for name, one in found.items()}
        case Candidate():
            found = _fields(value)
            del found["doubt"]
            return {**found.pop("trial"), **found}
        case Guard():
            found = _fields(value)
            watch = found.pop("watch")
            return {**found, **watch}
        case np.generic():
            return value.item()
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case tuple():
            return [_plain(one) for one in value]
        case _ if hasattr(value, "parameters"):
            return {"method": value.method, "parameters": value.parameters()}
        case _ if is_dataclass(value):
            return _fields(value)
        case _:
            return value


def _fields(value: Any) -> Document:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# ---- reading


def register_from_json(body: str | bytes) -> RegisterState:
    """Reads the text of register_to_json. Raises OtherRegister, InvalidRegister."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRegister(f"no JSON: {error}.") from None
    try:
        check_depth(content)
        content = part({"state": content}, "state")
        found = text(content, "format")
        if found != FORMAT:
            raise OtherRegister(
                f"'format' is {shown(found)}, but this monitor reads {FORMAT!r}: use the monitor "
                "that wrote it, or promote anew."
            )
        return _state(content)
    except InvalidRecalibrator as error:
        raise InvalidRegister(f"no state: {error}") from None


def _state(content: Document) -> RegisterState:
    configured = part(content, "configured")
    spent = part(content, "spent")
    return RegisterState(
        text(content, "selection"),
        text(content, "class_selection"),
        _texts(content, "previous"),
        _texts(content, "class_previous"),
        _texts(content, "sent"),
        ConfiguredVersions(
            text(configured, "recalibrator"), text(configured, "class_recalibrator")
        ),
        _truth(content, "pinned"),
        whole(content, "sequence", 0),
        {name: whole(spent, name, 0) for name in spent},
        _each(content, "trials", _trial),
        _each(content, "guards", _guard),
        _each(content, "befores", _before),
        _by_name(content, "followers", _follower),
        None if content.get("entry") is None else whole(content, "entry", 0),
    )


def _trial(content: Document) -> Candidate:
    bets = part(content, "bets")
    trial = Trial(
        text(content, "slice"),
        _recalibrator(content, "recalibrator"),
        whole(content, "number"),
        _clip(content),
        Bets(
            whole(bets, "tracks", 0),
            number(bets, "total"),
            numbers(bets, "better", len(FRACTIONS)),
            numbers(bets, "worse", len(FRACTIONS)),
        ),
        text(content, "unsound"),
    )
    return Candidate(
        trial,
        factors(content, "factors"),
        _truth(content, "shrinks"),
        _truth(content, "proven"),
        number(content, "late", 0.0, 1.0),
    )


def _guard(content: Document) -> Guard:
    runs = tuple(
        Run(
            number(run, "statistic", 0),
            number(run, "cumulative", 0),
            whole(run, "tracks", 0),
            number(run, "total"),
        )
        for run in parts(content, "runs", len(FRACTIONS))
    )
    recalibrator = _recalibrator(content, "recalibrator")
    return Guard(text(content, "slice"), recalibrator, _clip(content), Watch(runs))


def _before(content: Document) -> AwaitingGuard:
    rows = number(content, "rows", 0) if "rows" in content else 0.0
    return AwaitingGuard(text(content, "slice"), _recalibrator(content, "recalibrator"), rows)


def _follower(content: Document) -> Follower:
    scaling = _recalibrator(content, "scaling")
    if not isinstance(scaling, AdaptiveScaling):
        raise InvalidRecalibrator(
            f"'scaling.method' is {scaling.method!r}: it must be {AdaptiveScaling.method!r}."
        )
    in_force, approved = (factors_on_deviation(content, name) for name in ("in_force", "approved"))
    if not len(in_force) == len(approved) == scaling.k:
        raise InvalidRecalibrator(
            f"'in_force' and 'approved' have {len(in_force)} and {len(approved)} factors: they "
            f"must have {scaling.k}, as 'scaling' has."
        )
    full, late = number(content, "full", 1.0, LARGEST), number(content, "late", 0.0, 1.0)
    return Follower(scaling, in_force, approved, full, late, text(content, "too_late"))


def _clip(content: Document) -> Clip:
    clip = part(content, "clip")
    most = number(clip, "most", LEAST_POSITIVE, LARGEST)
    return Clip(
        most,
        number(clip, "loss", LEAST_POSITIVE, most),
        number(clip, "gain", LEAST_POSITIVE, most),
        number(clip, "rows", 1.0, LARGEST),
    )


def _recalibrator(content: Document, name: str) -> Recalibrator:
    return read_method(part(content, name), name, METHODS)


def _truth(content: Document, name: str) -> bool:
    value = content.get(name)
    if not isinstance(value, bool):
        raise InvalidRecalibrator(f"'{name}' is {shown(value)}: it must be true or false.")
    return value


def _texts(content: Document, name: str) -> tuple[str, ...]:
    values = content.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidRecalibrator(f"'{name}' is {shown(values)}: it must be a list of strings.")
    return tuple(values)


def _each(content: Document, name: str, read: Callable[[Document], Value]) -> tuple[Value, ...]:
    return tuple(
        _inside(f"{name}[{i}]", read, one) for i, one in enumerate(parts(content, name, fewest=0))
    )


def _by_name(content: Document, name: str, read: Callable[[Document], Value]) -> dict[str, Value]:
    found = part(content, name)
    return {key: _inside(f"{name}.{key}", read, part(found, key)) for key in found}


def _inside(where: str, read: Callable[[Document], Value], content: Document) -> Value:
    try:
        return read(content)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in '{where}': {error}") from None
