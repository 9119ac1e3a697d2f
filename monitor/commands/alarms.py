"""calibration-monitor alarms: lists, acknowledges, watches the alarms of a running sidecar.

Evidence is judged in the sidecar; nothing is decided here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterable

from monitor.commands.options import add_action, add_actor, add_json, plain, shown, table
from monitor.commands.sidecar_client import (
    Client,
    DriftStandings,
    SidecarUnavailable,
    TimedAlarmChange,
    access_of,
    add_sidecar,
    ask,
)
from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    DriftState,
    SliceStanding,
    StageStanding,
    alarm_sentence,
    change_sentence,
    hours,
    moment,
    power_of_ten,
    size_of_error,
)
from monitor.drift.evidence import Scale

EXAMPLE = """examples:
  calibration-monitor alarms list
  calibration-monitor alarms list Car total --json
  calibration-monitor alarms acknowledge Car --actor "anna, after the mirror was cleaned"
  calibration-monitor alarms watch --address 127.0.0.1:50051 --json"""

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "slices",
        metavar="SLICE",
        nargs="*",
        help="as list shows it; total: all of them together (default: all, and total)",
    )
    add_sidecar(shared)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    text = "how the evidence of drift stands, and what it rests on"
    add_json(add_action(actions, "list", text, _list, shared))
    text = "end alarms; what is watched goes on, and may raise them again"
    acknowledge = add_action(actions, "acknowledge", text, _acknowledge, shared)
    add_json(acknowledge)
    add_actor(acknowledge, "who says so, for the log")
    text = "a line when an alarm is raised or over, until interrupted"
    add_json(add_action(actions, "watch", text, _watch, shared), "JSON, an object a line")


def run(options: argparse.Namespace) -> int:
    """0 when the sidecar did what was asked.

    Raises SidecarUnavailable, SidecarRefused, UnknownWord.
    """
    client = Client(options.address, access_of(options))
    asyncio.run(ask(client, lambda client: options.act(client, options)))
    return 0


async def _list(client: Client, options: argparse.Namespace) -> None:
    found = await client.standings(options.slices)
    print(json.dumps(plain(found)) if options.json else listing(found))


async def _acknowledge(client: Client, options: argparse.Namespace) -> None:
    ended = await client.acknowledge(options.slices, options.actor)
    if options.json:
        print(json.dumps({"acknowledged": plain(ended)}))
    else:
        print(acknowledged(ended))


async def _watch(client: Client, options: argparse.Namespace) -> None:
    """Prints changes of alarms until interrupted, or until the sidecar ends."""
    async with contextlib.aclosing(client.alarm_changes()) as changes:
        async for heard in changes:
            if not concerns(heard.change, options.slices):
                continue
            line = json.dumps(plain(heard)) if options.json else heard_lines(heard)
            # A reader behind a pipe hears of it now.
            print(line, flush=True)
    raise SidecarUnavailable(
        f"the sidecar at {options.address} was shut down: watch again when it serves."
    )


def concerns(change: AlarmChange, slices: list[str]) -> bool:
    """Tells if a change concerns one of these slices; without slices, every change does."""
    return not slices or not {change.alarm.slice, *change.concerned}.isdisjoint(slices)


def listing(found: DriftStandings) -> str:
    """Writes how all slices stand, what is known of them at each stage, and how to end alarms."""
    if not (found.standings or found.stages):
        return NOTHING_WATCHED
    blocks = [standings(found.standings)]
    if found.stages:
        blocks.append(stages(found.stages))
    if any(entry.alarm is not None for entry in found.standings):
        blocks.append("to end alarms: alarms acknowledge [SLICE ...]")
    return "\n\n".join(blocks)


def standings(standings: Iterable[SliceStanding]) -> str:
    """Writes a line for each slice and severity; stage, size, since, tracks are of its alarm."""
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
    """Writes a line for each slice and stage."""
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
    """Writes "learned: 31 tracks, 2,040 detections"; a shipped reference is of none."""
    origin = shown(entry.reference)
    if not entry.reference_detections:
        return origin
    return f"{origin}: {entry.reference_tracks:,} tracks, {entry.reference_detections:,} detections"


def size(scale: Scale) -> str:
    """Writes "σ too small by 2.2 (1.9–2.6)"; a dash where it is unknown."""
    error = size_of_error(scale)
    if error is None:
        return "-"
    text = f"σ {error.way} by {error.factor}"
    return f"{text} ({'–'.join(error.interval)})" if error.interval else text


def acknowledged(alarms: Iterable[Alarm]) -> str:
    """Writes a line for each alarm that is over."""
    return "\n".join(f"over: {shown(alarm_sentence(alarm))}" for alarm in alarms) or NO_ALARMS


def heard_lines(heard: TimedAlarmChange) -> str:
    """Writes a change on one line, with the time of the sidecar (UTC)."""
    return f"{moment(heard.time_ns)}  {shown(change_sentence(heard.change))}"
