"""Alarms of drift, and how its evidence stands, as people read them."""

from __future__ import annotations

from collections.abc import Iterable

from monitor.calibration.drift.alarm import (
    Alarm,
    DriftState,
    Scale,
    SliceStanding,
    StageStanding,
)
from monitor.calibration.drift.alarm_words import (
    alarm_sentence,
    change_sentence,
    hours,
    moment,
    power_of_ten,
    size_of_error,
)
from monitor.edges.drift_client import DriftStandings, HeardChange
from monitor.verbs.printed import shown, table

NOTHING_WATCHED = (
    "no slice is watched: no truth has come yet, or the sidecar was started with [drift] watch = "
    "false"
)
NO_ALARMS = "there were no alarms"

STATES = {
    DriftState.OK: "ok",
    DriftState.WARNING: "warning",
    DriftState.ALARM: "alarm",
    DriftState.TOO_FEW: "too few labelled",
}


def listing(found: DriftStandings) -> str:
    """How all slices stand, what is known of them at each stage, and how alarms end."""
    if not (found.standings or found.stages):
        return NOTHING_WATCHED
    blocks = [standings(found.standings)]
    if found.stages:
        blocks.append(stages(found.stages))
    if any(entry.alarm is not None for entry in found.standings):
        blocks.append("to end alarms: alarms acknowledge [SLICE ...]")
    return "\n\n".join(blocks)


def standings(standings: Iterable[SliceStanding]) -> str:
    """A line for each slice and severity; stage, size, beginning and tracks are of its alarm."""
    heads = (
        *("slice", "severity", "state"),
        *("evidence", "threshold", "log10"),
        *("size", "since", "tracks"),
    )
    return table(heads, [_standing(entry) for entry in standings])


def _standing(entry: SliceStanding) -> tuple[str, ...]:
    state, alarm = STATES[entry.state], entry.alarm
    return (
        shown(entry.slice),
        str(entry.severity),
        state if alarm is None else f"{state}, {alarm.stage.label}",
        hours(entry.evidence),
        hours(entry.threshold),
        f"{power_of_ten(entry.evidence)} of {power_of_ten(entry.threshold)}",
        "-" if alarm is None else size(alarm.scale),
        "-" if alarm is None else moment(alarm.since_ns),
        "-" if alarm is None or not alarm.tracks else f"{alarm.tracks:,}",
    )


def stages(stages: Iterable[StageStanding]) -> str:
    """A line for each slice and stage."""
    rows = [
        (
            shown(entry.slice),
            entry.stage.label,
            size(entry.scale),
            f"{entry.effective_ratio:.2g}",
            shown(entry.unit),
            _reference(entry),
        )
        for entry in stages
    ]
    return table(("slice", "stage", "size", "one is worth", "counted by", "reference"), rows)


def _reference(entry: StageStanding) -> str:
    """learned: 31 tracks, 2,040 detections; a shipped one is of none."""
    origin = shown(entry.reference)
    if not entry.reference_detections:
        return origin
    return f"{origin}: {entry.reference_tracks:,} tracks, {entry.reference_detections:,} detections"


def size(scale: Scale) -> str:
    """σ too small by 2.2 (1.9–2.6); a dash where it is unknown."""
    error = size_of_error(scale)
    if error is None:
        return "-"
    text = f"σ {error.way} by {error.factor}"
    return f"{text} ({'–'.join(error.interval)})" if error.interval else text


def acknowledged(alarms: Iterable[Alarm]) -> str:
    """A line for each alarm that is over."""
    return "\n".join(f"over: {shown(alarm_sentence(alarm))}" for alarm in alarms) or NO_ALARMS


def heard(heard: HeardChange) -> str:
    """One line, with the time of the sidecar (UTC)."""
    return f"{moment(heard.time_ns)}  {shown(change_sentence(heard.change))}"
