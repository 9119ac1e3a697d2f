"""What a replay heard of drift: alarms in the order in which they were raised, and how the evidence
stands at the end, for programs and for people.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

import numpy as np

from monitor.calibration.drift.alarm import Alarm, SliceStanding
from monitor.calibration.drift.alarm_words import alarm_sentence, hours
from monitor.verbs.alarm_tables import STATES
from monitor.verbs.playback import Sequence
from monitor.verbs.printed import shown, table


@dataclass(frozen=True, slots=True)
class DriftFound:
    """What was told of drift.

    alarms     in the order in which they were raised
    standings  of each slice and severity, at the end
    """

    alarms: tuple[Alarm, ...] = ()
    standings: tuple[SliceStanding, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was, in the time of a sequence.

    stream    its name; None where several may be meant
    start_ns  event time of its first frame
    frame     number of the last frame by then; None where no sequence is played at that time
    """

    stream: str | None
    start_ns: int
    frame: int | None


def moment(event_ns: int, played: Several[Sequence]) -> Moment:
    """The place of an event time among the sequences played, of which there is at least one.

    It is told from the first of those that have a frame with this very stamp; where none has, of
    those that are played by then.
    """
    stamps = [np.rint(sequence.times * 1e9).astype(np.int64) for sequence in played]
    last = [int(np.searchsorted(of, event_ns, side="right")) - 1 for of in stamps]
    running = [
        i
        for i, (of, at) in enumerate(zip(stamps, last, strict=True))
        if at >= 0 and event_ns <= of[-1]
    ]
    there = [i for i in running if stamps[i][last[i]] == event_ns] or running
    if not there:
        alone = played[0].header.stream if len(played) == 1 else None
        return Moment(alone, int(stamps[0][0]), None)
    first = there[0]
    name = played[first].header.stream if len(there) == 1 else None
    return Moment(name, int(stamps[first][0]), last[first])


def drift_json(found: DriftFound, played: Several[Sequence]) -> dict[str, Any]:
    """alarms and drift of replay --json; None in place of what is not known."""
    return {
        "alarms": [_alarm(alarm, played) for alarm in found.alarms],
        "drift": [_standing(standing) for standing in found.standings],
    }


def _alarm(alarm: Alarm, played: Several[Sequence]) -> dict[str, Any]:
    at, scale = moment(alarm.event_ns, played), alarm.scale
    return {
        "slice": alarm.slice,
        "severity": alarm.severity.value,
        "stage": alarm.stage.label,
        "detector": alarm.detector.value,
        "direction": alarm.direction.value,
        "stream": at.stream,
        "t": (alarm.event_ns - at.start_ns) / 1e9,
        "frame": at.frame,
        "labelled": alarm.labelled,
        "detections": alarm.detections,
        "tracks": alarm.tracks,
        "evidence_hours": _number(alarm.evidence),
        "threshold_hours": alarm.threshold,
        "since_t": (alarm.since_ns - at.start_ns) / 1e9,
        "scale": [_number(value) for value in (scale.estimate, scale.lower, scale.upper)],
    }


def _standing(standing: SliceStanding) -> dict[str, Any]:
    return {
        "slice": standing.slice,
        "severity": standing.severity.value,
        "state": standing.state.name.lower(),
        "log10_evidence": _log10(standing.evidence),
        "log10_peak": _log10(standing.peak),
        "log10_threshold": _log10(standing.threshold),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _log10(hours: float) -> float | None:
    """None of no evidence at all."""
    return math.log10(hours) if 0 < hours < math.inf else None


def drift_table(found: DriftFound, played: Several[Sequence]) -> str:
    """A line for each slice and severity, and one for each alarm; empty where nobody watched."""
    lines = []
    if found.standings:
        heads = ("drift", "severity", "state", "evidence", "peak", "threshold")
        lines.append(table(heads, [_row(standing) for standing in found.standings]))
    for alarm in found.alarms:
        at = moment(alarm.event_ns, played)
        frame = "" if at.frame is None else f", frame {at.frame}"
        stream = "" if at.stream is None else f" of {at.stream}"
        when = f"{(alarm.event_ns - at.start_ns) / 1e9:.1f} s{frame}{stream}"
        lines.append(f"{when}: {shown(alarm_sentence(alarm))}")
    return "\n".join(lines)


def _row(standing: SliceStanding) -> tuple[str, ...]:
    return (
        shown(standing.slice),
        standing.severity.value,
        STATES[standing.state],
        *map(hours, (standing.evidence, standing.peak, standing.threshold)),
    )
