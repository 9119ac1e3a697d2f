"""calibration-monitor alarms: lists, acknowledges, watches the alarms of a running sidecar.

Evidence is judged in the sidecar; nothing is decided here. `replay` listens to alarms as well, and
tells them in the time of the drive that it plays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.commands.output import finite, plain, shown, table, tell
from monitor.commands.sidecar_client import (
    Client,
    DriftStandings,
    SidecarUnavailable,
    TimedAlarmChange,
    access_of,
    ask,
)
from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    AlarmReason,
    DriftState,
    SliceStanding,
    StageStanding,
    alarm_sentence,
    change_sentence,
    error_of,
    hours,
    left_out_sentence,
    moment,
    power_of_ten,
    size_of_error,
)
from monitor.drift.charts import Stage

if TYPE_CHECKING:
    from monitor.commands.sending import RecordedSequence

NOTHING_WATCHED = (
    "no slice is watched: no truth has come yet, or the sidecar was started with [drift] watch = "
    "false"
)

NO_ALARMS = "there were no alarms"

HOURS = (
    "evidence is as of now: healthy driving gives as much once in so many hours at most; "
    "an alarm is raised at the threshold, and evidence begins anew"
)
ONLY_IF_CHANGED = "as sent: watched where a recalibrator changes it; else it is what is forwarded"

# σ too small by 2.2 (1.9–2.6); a dash where it is unknown.
_SIZE = "σ {way} by {factor}", "–", "-"

STATES = {
    DriftState.OK: "ok",
    DriftState.WARNING: "warning",
    DriftState.ALARM: "alarm",
    DriftState.TOO_FEW: "too few watched",
}


def run(options: argparse.Namespace) -> int:
    """0 when the sidecar did what was asked.

    Raises SidecarUnavailable, SidecarRefused, UnknownWord.
    """
    act = _ACTIONS[options.action]
    ask(Client(options.address, access_of(options)), lambda client: act(client, options))
    return 0


async def _list(client: Client, options: argparse.Namespace) -> None:
    found = await client.standings(options.slices)
    tell(options, found, listing(found))


async def _acknowledge(client: Client, options: argparse.Namespace) -> None:
    ended = await client.acknowledge(options.slices, options.actor)
    tell(options, {"acknowledged": ended}, acknowledged(ended))


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


_ACTIONS = {"list": _list, "acknowledge": _acknowledge, "watch": _watch}


def concerns(change: AlarmChange, slices: list[str]) -> bool:
    """Tells if a change concerns one of these slices; without slices, every change does."""
    return not slices or not {change.alarm.slice, *change.concerned}.isdisjoint(slices)


def listing(found: DriftStandings) -> str:
    """Writes how all slices stand, what is known of them at each stage, and how to end alarms."""
    left_out = left_out_sentence(found.left_out)
    if not (found.standings or found.stages):
        return "\n\n".join(filter(None, (NOTHING_WATCHED, left_out)))
    blocks = [standings(found.standings), HOURS]
    if found.stages:
        blocks.append(stages(found.stages))
    raw = [entry for entry in found.stages if entry.stage is Stage.RAW]
    if any(size_of_error(entry.scale, *_SIZE) == "-" for entry in raw):
        blocks.append(ONLY_IF_CHANGED)
    if any(entry.alarm is not None for entry in found.standings):
        blocks.append("to end alarms: alarms acknowledge [SLICE ...]")
    return "\n\n".join(filter(None, (*blocks, left_out)))


def standings(standings: Iterable[SliceStanding]) -> str:
    """Writes a line for each slice and severity; stage and the last columns are of its alarm."""
    of_alarm = ("raised at", "size", "since", "tracks")
    heads = ("slice", "severity", "state", "evidence", "threshold", "log10", *of_alarm)
    return table(heads, list(map(_standing, standings)))


def _standing(entry: SliceStanding) -> tuple[str, ...]:
    state, alarm = STATES[entry.state], entry.alarm
    return (
        shown(entry.slice),
        str(entry.severity),
        state if alarm is None else f"{state}, {alarm.stage.words}",
        hours(entry.evidence),
        hours(entry.threshold),
        f"{power_of_ten(entry.evidence)} of {power_of_ten(entry.threshold)}",
        "-" if alarm is None else hours(alarm.evidence),
        "-" if alarm is None else shown(error_of(alarm, *_SIZE)),
        "-" if alarm is None else moment(alarm.since_ns),
        "-" if alarm is None or not alarm.tracks else f"{alarm.tracks:,}",
    )


def stages(stages: Iterable[StageStanding]) -> str:
    """Writes a line for each slice and stage."""
    rows = [
        (
            shown(entry.slice),
            entry.stage.words,
            size_of_error(entry.scale, *_SIZE),
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


def acknowledged(alarms: Iterable[Alarm]) -> str:
    """Writes a line for each alarm that is over."""
    return "\n".join(f"over: {shown(alarm_sentence(alarm))}" for alarm in alarms) or NO_ALARMS


def heard_lines(heard: TimedAlarmChange) -> str:
    """Writes a change on one line, with the time of the sidecar (UTC)."""
    return f"{moment(heard.time_ns)}  {shown(change_sentence(heard.change))}"


_EVIDENCE = ("evidence", "peak", "threshold")

# s that events may take longer than the answer that tells of the same alarms.
_PATIENCE = 5.0
_PERIOD = 0.01


@dataclass(frozen=True, slots=True)
class DriftFound:
    """Alarms and evidence that the sidecar told of.

    alarms     in the order in which they were raised
    standings  of each slice and severity, at the end
    left_out   labelled detections that no bet, or not every bet, has used meanwhile, by reason
    """

    alarms: tuple[Alarm, ...] = ()
    standings: tuple[SliceStanding, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriveMoment:
    """A time in the drive, told from the start of a sequence.

    stream    its name; None where several may be meant
    start_ns  event time of its first frame
    frame     number of the last frame by then; None where no sequence is played at that time
    """

    stream: str | None
    start_ns: int
    frame: int | None


@dataclass(slots=True)
class AlarmListener:
    """Alarms in the order in which they were raised, since it began.

    before    those that had been raised by then, and stayed
    left_out  labelled detections that had been left out by then, by reason
    """

    before: frozenset[tuple[str, ...]] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)
    raised: list[Alarm] = field(default_factory=list)

    async def listen(self, client: Client) -> None:
        """Listens as long as the sidecar serves."""
        async with contextlib.aclosing(client.alarm_changes()) as changes:
            async for heard in changes:
                if heard.change.why is AlarmReason.RAISED:
                    self.raised.append(heard.change.alarm)

    async def all_of(self, found: DriftStandings, patience: float = _PATIENCE) -> DriftFound:
        """Returns the alarms heard of; those that stay at the end are added if they were not heard.

        patience  s to wait for those that have not been
        """
        end = time.monotonic() + patience
        while (missing := self._missing(found.standings)) and time.monotonic() < end:
            await asyncio.sleep(_PERIOD)
        alarms = (*self.raised, *sorted(missing, key=lambda alarm: alarm.driven))
        left_out = {why: n - self.left_out.get(why, 0) for why, n in found.left_out.items()}
        return DriftFound(alarms, found.standings, left_out)

    def _missing(self, standings: tuple[SliceStanding, ...]) -> list[Alarm]:
        known = self.before | set(map(_key, self.raised))
        return [alarm for alarm in _staying(standings) if _key(alarm) not in known]


def drive_moment(event_ns: int, played: Sequence[RecordedSequence]) -> DriveMoment:
    """Places an event time among the sequences played, of which there is at least one.

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
    first = there[0] if there else 0
    name = played[first].header.stream if len(there or played) == 1 else None
    return DriveMoment(name, int(stamps[first][0]), last[first] if there else None)


def drift_json(found: DriftFound, played: Sequence[RecordedSequence]) -> dict[str, Any]:
    """Builds what replay --json tells of drift; None in place of what is not known."""
    return {
        "alarms": [_alarm_json(alarm, played) for alarm in found.alarms],
        "drift": [_standing_json(standing) for standing in found.standings],
        "drift_left_out": dict(found.left_out),
    }


def _alarm_json(alarm: Alarm, played: Sequence[RecordedSequence]) -> dict[str, Any]:
    at, scale = drive_moment(alarm.event_ns, played), alarm.scale
    return {
        "slice": alarm.slice,
        "severity": alarm.severity.value,
        "stage": alarm.stage.label,
        "detector": alarm.detector.value,
        "direction": alarm.direction.value,
        "dimension": alarm.dimension,
        "quantity": alarm.quantity.value,
        "size": finite(alarm.size),
        "unit": alarm.unit,
        "stream": at.stream,
        "t": (alarm.event_ns - at.start_ns) / 1e9,
        "frame": at.frame,
        "labelled": alarm.labelled,
        "detections": alarm.detections,
        "tracks": alarm.tracks,
        "evidence_hours": finite(alarm.evidence),
        "threshold_hours": alarm.threshold,
        "since_t": (alarm.since_ns - at.start_ns) / 1e9,
        "scale": [finite(value) for value in (scale.estimate, scale.lower, scale.upper)],
    }


def _standing_json(standing: SliceStanding) -> dict[str, Any]:
    return {
        "slice": standing.slice,
        "severity": standing.severity.value,
        "state": standing.state.name.lower(),
        **{f"log10_{name}": _log10(getattr(standing, name)) for name in _EVIDENCE},
    }


def _log10(hours: float) -> float | None:
    """Logarithm of evidence; None without any."""
    return math.log10(hours) if 0 < hours < math.inf else None


def drift_table(found: DriftFound, played: Sequence[RecordedSequence]) -> str:
    """Writes a line for each slice and severity, one for each alarm, and what was left out.

    Empty if nothing was watched.
    """
    lines = []
    if found.standings:
        heads = ("drift", "severity", "state", "evidence", "peak", "threshold")
        lines.append(table(heads, [_row(standing) for standing in found.standings]))
    for alarm in found.alarms:
        at = drive_moment(alarm.event_ns, played)
        frame = "" if at.frame is None else f", frame {at.frame}"
        stream = "" if at.stream is None else f" of {at.stream}"
        when = f"{(alarm.event_ns - at.start_ns) / 1e9:.1f} s{frame}{stream}"
        lines.append(f"{when}: {shown(alarm_sentence(alarm))}")
    lines.append(left_out_sentence(found.left_out))
    return "\n".join(filter(None, lines))


def _row(standing: SliceStanding) -> tuple[str, ...]:
    return (
        shown(standing.slice),
        standing.severity.value,
        STATES[standing.state],
        *(hours(getattr(standing, name)) for name in _EVIDENCE),
    )


@contextlib.asynccontextmanager
async def listening_for_alarms(client: Client) -> AsyncIterator[AlarmListener]:
    """Listens for alarms as long as the context lasts."""
    heard = AlarmListener()
    listening = asyncio.create_task(heard.listen(client))
    try:
        # Whoever replays to a sidecar of somebody else has not raised what is there.
        found = await client.standings()
        heard.before = frozenset(map(_key, _staying(found.standings)))
        heard.left_out = found.left_out
        yield heard
    finally:
        listening.cancel()
        # If it broke, so has all else; and alarms that stay are read at the end.
        await asyncio.gather(listening, return_exceptions=True)


def _staying(standings: Iterable[SliceStanding]) -> list[Alarm]:
    return [standing.alarm for standing in standings if standing.alarm is not None]


def _key(alarm: Alarm) -> tuple[str, ...]:
    return (alarm.slice, alarm.severity, str(alarm.event_ns), str(alarm.epoch))
