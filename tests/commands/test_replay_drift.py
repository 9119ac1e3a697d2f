"""replay: ids of objects with the labels, references, and what it tells of drift."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest

from monitor.commands import replay
from monitor.commands.alarms import (
    DriftFound,
    drift_json,
    drift_table,
    drive_moment,
    listening_for_alarms,
)
from monitor.commands.sending import RecordedSequence
from monitor.commands.sidecar_client import DriftStandings, TimedAlarmChange
from monitor.drift.alarms import AlarmChange, AlarmReason, DriftState, SliceStanding
from monitor.drift.charts import Quantity, Scale, Severity
from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.store.recordings import Recording
from tests.alarmed import alarm
from tests.commands.spoken import done, refused


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        # A sidecar of somebody else takes no settings.
        (("--address", "h:1", "--reference", "u.json"), "--reference: it would be a setting"),
        (("--address", "h:1", "--config", "s.toml"), "--config: it is for a sidecar that is"),
        # What cannot be usual is told before a sidecar is started.
        (("--reference", "gone.json"), "cannot read the reference gone.json"),
        (("--reference-where", "class=cyclist"), "nothing is learned"),
        (("--reference-where", "colour=red"), "'colour'"),
    ],
)
def test_what_makes_no_sense_starts_no_sidecar(drive, monkeypatch, words, sentence):
    monkeypatch.setattr(replay, "running_sidecar", None)
    line = refused("replay", drive, *words)
    assert sentence in line
    assert ("leave --address out" in line) == ("--address" in words)


ALARM = alarm(evidence=2000.0, event_ns=12_300_000_000, since_ns=10_100_000_000)


def standing(alarm=None, **other):
    state = DriftState.OK if alarm is None else DriftState.ALARM
    values = {"slice": "car", "severity": Severity.PAGE, "state": state, "evidence": 0.001}
    values |= {"peak": 2000.0, "threshold": 1000.0}
    return SliceStanding(**{**values, **other}, alarm=alarm)


@dataclass
class Telling:
    """A client that tells of these changes, and of these alarms from before."""

    changes: list[AlarmChange]
    there: tuple[SliceStanding, ...] = ()
    pause: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)

    async def standings(self):
        return DriftStandings(self.there, (), self.left_out)

    async def alarm_changes(self):
        for change in self.changes:
            await asyncio.sleep(self.pause)
            yield TimedAlarmChange(0, change)
        await asyncio.Event().wait()


def heard_by_the_end(client, standings, patience=5.0, left_out=None):
    async def listened():
        async with listening_for_alarms(client) as heard:
            return await heard.all_of(DriftStandings(standings, (), left_out or {}), patience)

    return asyncio.run(asyncio.wait_for(listened(), 30))


def test_an_alarm_from_before_the_replay_is_no_news():
    old = Telling([], (standing(ALARM),))
    assert heard_by_the_end(old, (standing(ALARM),)).alarms == ()
    again = replace(ALARM, event_ns=ALARM.event_ns + 1)
    over = AlarmChange(AlarmReason.ACKNOWLEDGED, ALARM, actor="anna")
    raised = Telling([over, AlarmChange(AlarmReason.RAISED, again)], (standing(ALARM),))
    assert heard_by_the_end(raised, (standing(again),)).alarms == (again,)
    # One that nobody heard of is there at the end all the same.
    assert heard_by_the_end(Telling([]), (standing(again),), 0.0).alarms == (again,)


def test_labels_that_were_left_out_before_the_replay_are_no_news():
    found = heard_by_the_end(Telling([], left_out={"late": 5}), (), left_out={"late": 7, "x": 1})
    assert found.left_out == {"late": 2, "x": 1}
    assert drift_json(found, [])["drift_left_out"] == {"late": 2, "x": 1}
    assert drift_table(found, []).startswith("drift has left out 2 labelled detections: 2 late (")


def sequence(name: str, times: list[float]) -> RecordedSequence:
    none = np.zeros(0, np.int64)
    nothing = cast("Recording", None)  # nobody looks at its rows
    header = Header(name, plain_space(("x",)), ("car",))
    return RecordedSequence(name, nothing, header, none, none, np.array(times))


TENTHS = [i / 10 for i in range(200)]


def test_a_moment_is_told_in_the_time_of_its_sequence():
    since_1970 = [1.7e9 + t for t in TENTHS]
    played = [sequence("north", since_1970)]
    stamp = round(since_1970[123] * 1e9)
    found = drive_moment(stamp, played)
    assert (found.stream, found.start_ns, found.frame) == ("north", 1_700_000_000 * 10**9, 123)
    assert drive_moment(stamp + 1, played).frame == 123
    assert drive_moment(stamp - 1, played).frame == 122
    assert drive_moment(5, played).frame is None
    assert drive_moment(stamp + 10**12, played).frame is None


def test_a_moment_of_several_sequences_names_the_one_that_has_a_frame_of_this_very_stamp():
    played = [sequence("north", TENTHS), sequence("south", [t + 0.05 for t in TENTHS])]
    assert drive_moment(12_310_000_000, played).stream is None
    found = drive_moment(round(0.75 * 1e9), played)
    assert (found.stream, found.start_ns, found.frame) == ("south", 50_000_000, 7)


def test_programs_and_people_are_told_what_they_need_to_know_of_alarms():
    played = [sequence("north", [t + 100 for t in TENTHS])]
    alarm = replace(
        ALARM,
        event_ns=112_300_000_000,
        since_ns=110_100_000_000,
        scale=Scale(2.2, 1.9, math.inf),
        dimension="y",
        quantity=Quantity.BIAS,
        size=math.nan,
        unit="m",
    )
    standings = (standing(alarm), standing(None, slice="total", evidence=0.0))
    found = drift_json(DriftFound((alarm,), standings), played)
    (told,) = found["alarms"]
    assert told.pop("t") == 12.3
    assert told.pop("since_t") == 10.1
    assert told == {
        "slice": "car",
        "severity": "page",
        "stage": "recalibrated",
        "detector": "track",
        "direction": "over",
        "dimension": "y",
        "quantity": "bias",
        "size": None,
        "unit": "m",
        "stream": "north",
        "frame": 123,
        "labelled": 1214,
        "detections": 214,
        "tracks": 7,
        "evidence_hours": 2000.0,
        "threshold_hours": 1000.0,
        "scale": [2.2, 1.9, None],
    }
    car, total = found["drift"]
    assert car == {
        "slice": "car",
        "severity": "page",
        "state": "alarm",
        "log10_evidence": pytest.approx(-3),
        "log10_peak": pytest.approx(math.log10(2000)),
        "log10_threshold": pytest.approx(3),
    }
    assert (total["state"], total["log10_evidence"]) == ("ok", None)
    table = drift_table(DriftFound((alarm,), standings), played).splitlines()
    assert table[1].split() == ["car", "page", "alarm", "0.001", "h", "2,000", "h", "1,000", "h"]
    assert table[3].startswith("12.3 s, frame 123 of north: page: car, biased as forwarded")
    assert drift_table(DriftFound(), played) == ""


DIMENSIONS = ("x", "y", "z")
RATE = 10  # Hz
CARS, SECONDS = 15, 20
FAULT_S = 10.0


def simulated(path, seed=0):
    """Three sequences of cars that are seen all the time, errors alike within each car."""
    rng = np.random.default_rng(seed)
    names = ["seq", "role", "frame", "t", "class", *DIMENSIONS]
    names += [f"{part}{name}" for part in ("var_", "gt_") for name in DIMENSIONS] + ["gt_id"]
    lines = [",".join(names)]
    for sequence, role in (("north", "fit"), ("south", "fit"), ("west", "deploy")):
        size = np.exp(rng.normal(0, 0.15, CARS))
        error = rng.normal(size=(CARS, 3))
        for frame in range(SECONDS * RATE):
            error = 0.5 * error + np.sqrt(0.75) * rng.normal(size=(CARS, 3))
            truth = 20.0 * np.arange(CARS)[:, None] + [0.0, 1.0, 0.5]
            mean = truth - 0.3 * size[:, None] * error
            for car in range(CARS):
                head = (sequence, role, frame, frame / RATE, "car")
                values = (*mean[car], *[0.09] * 3, *truth[car])
                lines.append(",".join(map(str, (*head, *values, f"{sequence}-{car}"))))
    path.write_text("\n".join(lines))
    return path


def test_a_fault_is_told_and_a_healthy_drive_raises_nothing(tmp_path):
    path, config = simulated(tmp_path / "drive.csv"), tmp_path / "sidecar.toml"
    played = ("replay", path, "--where", "role=deploy", "--reference-where", "role=fit", "--json")
    config.write_text("[drift]\nhours_between_false_pages = 2000\n")
    found = json.loads(done(*played, "--config", config))
    assert found["matched"] == CARS * SECONDS * RATE
    assert found["alarms"] == []
    entries = {(entry["slice"], entry["severity"]): entry for entry in found["drift"]}
    assert entries.keys() >= {(s, kind) for s in ("car", "total") for kind in ("page", "ticket")}
    assert {entry["state"] for entry in found["drift"]} == {"ok"}
    assert all(entry["log10_peak"] < entry["log10_threshold"] - 1 for entry in found["drift"])
    assert entries["car", "page"]["log10_threshold"] == pytest.approx(np.log10(2000))

    fault = ("--fault", f"variance=0.1@t={FAULT_S}s")
    text = done(*played, *fault)
    first = json.loads(text)["alarms"][0]
    assert (first["severity"], first["direction"]) == ("page", "over")
    assert (first["stage"], first["stream"]) == ("recalibrated", "west")
    assert FAULT_S < first["t"] < FAULT_S + 8
    assert first["frame"] == round(first["t"] * RATE)
    assert first["evidence_hours"] >= first["threshold_hours"] == 1000
    # To the byte, however the drive is played.
    assert done(*played, *fault, "--speed", "20", "--ground-truth-delay", "0.7s") == text
