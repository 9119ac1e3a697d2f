"""Alarms that stay, and how often there were any, as plain values of a JSON document, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from monitor.calibration.drift.alarm import Alarm, Scale
from monitor.calibration.drift.alarms import Key, Latched, Raised, key_of
from monitor.calibration.drift.charts import (
    CHARTS,
    DETECTORS,
    SEVERITIES,
    Detector,
    Direction,
    Severity,
    Stage,
)
from monitor.calibration.drift.family_state import (
    LARGEST_EVIDENCE,
    LONGEST_NAME,
    MOST_LATCHED,
)
from monitor.calibration.drift.reference_fields import Fields

# s and ns; far above any clock, and sums of them stay whole numbers.
LONGEST, LATEST = 1e12, 2**62
# Of √(NEES/K), and of tolerances.
LARGEST_SCALE = 1e9

_LATCHED = ("alarm", "since")
_COUNT = ("stage", "detector", "direction", "alarms")
_ALARM = tuple(Alarm.__dataclass_fields__)
_SCALE = tuple(Scale.__dataclass_fields__)

Document = dict[str, object]


# ---- writing


def latched_to_json(latched: Mapping[Key, Latched]) -> list[Document]:
    """Alarms with the s of driving from which they stay."""
    return [{"alarm": _of_alarm(one.alarm), "since": one.since_s} for one in latched.values()]


def counts_to_json(counts: Mapping[Raised, int]) -> list[Document]:
    """How often there was one, by what."""
    return [_of_count(what, alarms) for what, alarms in counts.items()]


def _of_alarm(alarm: Alarm) -> Document:
    values = {name: getattr(alarm, name) for name in _ALARM}
    scale = {name: getattr(alarm.scale, name) for name in _SCALE}
    return values | {
        "stage": alarm.stage.label,
        "evidence": min(alarm.evidence, LARGEST_EVIDENCE),
        "scale": {name: None if math.isnan(value) else value for name, value in scale.items()},
    }


def _of_count(what: Raised, alarms: int) -> Document:
    stage, detector, direction = what
    return dict(zip(_COUNT, (stage.label, detector.value, direction.value, alarms), strict=True))


# ---- reading; all of it raises as its fields do


def read_latched(fields: Fields, name: str) -> dict[Key, Latched]:
    """The inverse of latched_to_json, out of a member."""
    found: dict[Key, Latched] = {}
    for i, value in enumerate(fields.listed(name, 0, MOST_LATCHED)):
        one = fields.inner(value, f"{name}[{i}]", _LATCHED)
        alarm = _alarm(one.inner(one.content["alarm"], "alarm", _ALARM))
        found[key_of(alarm)] = Latched(alarm, one.number("since", 0.0, LONGEST))
    return found


def read_counts(fields: Fields, name: str) -> dict[Raised, int]:
    """The inverse of counts_to_json, out of a member."""
    found: dict[Raised, int] = {}
    for i, value in enumerate(fields.listed(name, 0, len(CHARTS) * len(DETECTORS))):
        one = fields.inner(value, f"{name}[{i}]", _COUNT)
        found[_what(one)] = one.whole("alarms")
    return found


def _alarm(fields: Fields) -> Alarm:
    stage, detector, direction = _what(fields)
    scale = fields.inner(fields.content["scale"], "scale", _SCALE)
    return Alarm(
        slice=read_name(fields, "slice"),
        severity=Severity(read_word(fields, "severity", SEVERITIES)),
        stage=stage,
        detector=detector,
        direction=direction,
        evidence=fields.number("evidence", 0.0, LARGEST_EVIDENCE),
        threshold=fields.number("threshold", 0.0, LARGEST_EVIDENCE),
        event_ns=fields.whole("event_ns", -LATEST, LATEST),
        since_ns=fields.whole("since_ns", -LATEST, LATEST),
        detections=fields.whole("detections"),
        tracks=fields.whole("tracks"),
        labelled=fields.whole("labelled"),
        scale=Scale(*(_known_or_nan(scale, name) for name in _SCALE)),
        epoch=fields.whole("epoch"),
        driven=fields.number("driven", 0.0, LONGEST),
    )


def _known_or_nan(fields: Fields, name: str) -> float:
    return math.nan if fields.content[name] is None else fields.number(name, 0.0, LARGEST_SCALE)


def _what(fields: Fields) -> Raised:
    label = read_word(fields, "stage", tuple(stage.label for stage in Stage))
    return (
        next(stage for stage in Stage if stage.label == label),
        Detector(read_word(fields, "detector", DETECTORS)),
        Direction(read_word(fields, "direction", tuple(Direction))),
    )


def read_word(fields: Fields, name: str, words: tuple[str, ...]) -> str:
    """One of some words."""
    value = fields.content[name]
    if not isinstance(value, str) or value not in words:
        raise fields.wrong(name, value, f"one of {', '.join(words)}")
    return value


def read_name(fields: Fields, name: str) -> str:
    """What a slice or a version may be called."""
    value = fields.content[name]
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise fields.wrong(name, value, f"a text of 1 to {LONGEST_NAME} characters")
    return value
