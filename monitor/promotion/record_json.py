"""Records as JSON, one a line: floats keep every bit, and what is no finite number is null."""

from __future__ import annotations

import json
import math

from monitor.promotion.records import Evidence, Factor, Happened, Record
from monitor.recalibration.document import check_depth, member, number, part, parts, shown, whole
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator

# Of times: 64 bits with a sign.
EARLIEST_NS = -(2**63)


class InvalidRecord(ValueError):
    """A line does not describe a record."""


def to_line(record: Record) -> str:
    """ASCII without a line break, whatever its words are."""
    content = {
        "sequence": int(record.sequence),
        "time_ns": int(record.time_ns),
        "what": str(record.what),
        "slice": record.slice,
        "version": record.version,
        "before": record.before,
        "after": record.after,
        "actor": record.actor,
        "reason": record.reason,
        "event_ns": None if record.event_ns is None else int(record.event_ns),
        "evidence": None if record.evidence is None else _of_evidence(record.evidence),
        "factors": [of_factor(factor) for factor in record.factors],
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def from_line(line: str | bytes) -> Record:
    """The inverse of to_line; null is NaN. Fields that only newer code knows are left out.

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


def of_factor(factor: Factor) -> Document:
    """As a JSON object."""
    return {
        "dimension": factor.dimension,
        "lowest": _finite(factor.lowest),
        "typical": _finite(factor.typical),
        "highest": _finite(factor.highest),
    }


def factors(content: Document, name: str) -> tuple[Factor, ...]:
    """A list of them, which may be empty. Raises InvalidRecalibrator."""
    return tuple(
        Factor(
            text(one, "dimension"),
            _number(one, "lowest"),
            _number(one, "typical"),
            _number(one, "highest"),
        )
        for one in parts(content, name, fewest=0)
    )


def text(content: Document, name: str) -> str:
    """A string. Raises InvalidRecalibrator."""
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


def _of_evidence(evidence: Evidence) -> Document:
    return {
        "tracks": int(evidence.tracks),
        "gain": _finite(evidence.gain),
        "log10_better": _finite(evidence.log10_better),
        "log10_worse": _finite(evidence.log10_worse),
        "log10_threshold": _finite(evidence.log10_threshold),
    }


def _evidence(content: Document) -> Evidence:
    return Evidence(
        whole(content, "tracks", 0),
        _number(content, "gain"),
        _number(content, "log10_better"),
        _number(content, "log10_worse"),
        _number(content, "log10_threshold"),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(content: Document, name: str) -> float:
    return math.nan if content.get(name, 0) is None else number(content, name)
