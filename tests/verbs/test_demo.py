"""The demo: once for real, and its picture and tables from a drive without a sidecar."""

from __future__ import annotations

import json
import math
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from monitor.cli import main
from monitor.simulation.drive import simulate, with_variance_factor
from monitor.verbs.drive_record import AnsweredFrame, Phase, Plan, Record
from monitor.verbs.drive_summary import (
    SidecarAccount,
    SliceAccount,
    as_json,
    as_text,
    summarise,
)
from monitor.verbs.live_view import bar, render
from monitor.verbs.scrape import parse

DEMO = [sys.executable, "-m", "monitor", "demo"]
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def test_the_demo_shows_a_fault_and_its_repair_over_real_grpc():
    done = subprocess.run(
        [*DEMO, "--duration", "8", "--speed", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert found["frames"] == 480
    assert found["counts_agree"], found["differences"]
    for count in ("frames", "detections", "matched"):
        assert found["sidecar"][count] == found[count] > 0
    assert found["promoted"] == found["sidecar"]["recalibrator_version"]
    assert found["promoted"].startswith("covariance-scaling-")

    sensors = dict(found["sensors"])
    faulty = sensors.pop(found["faulty_sensor"])
    assert faulty["during"]["raw"]["nees_over_k"] > 3
    assert faulty["during"]["recalibrated"] == faulty["during"]["raw"]
    assert faulty["after"]["raw"]["nees_over_k"] > 3
    assert 0.6 < faulty["after"]["recalibrated"]["nees_over_k"] < 1.6
    assert faulty["after"]["recalibrated"]["ence_x"] < faulty["after"]["raw"]["ence_x"] / 2
    assert len(sensors) == 5
    for by_phase in sensors.values():
        for phase in by_phase.values():
            assert phase["n"] > 0
            assert phase["recalibrated"] == phase["raw"]

    tracking = found["tracking"]
    for phase in ("before", "during"):
        # The sidecar's tracker and the demo's own are one code, fed the same.
        assert tracking[phase]["recalibrated"] == tracking[phase]["raw"]
    raw, recalibrated = tracking["after"]["raw"], tracking["after"]["recalibrated"]
    assert recalibrated["detections"] == raw["detections"] > 300
    assert recalibrated["tracked"] > raw["tracked"]
    assert recalibrated["id_switches"] < raw["id_switches"]


def test_an_interrupted_demo_ends_with_130_and_takes_its_sidecar_along():
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", demo.stdout.readline())
        assert address is not None
        assert "healthy" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(20) == 130
        assert demo.stderr.read() == ""
    assert not _listens(int(address[1]))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--duration", "5"),
        ("--duration", "nan"),
        ("--speed", "0"),
        ("--speed", "11"),
        ("--seed", "-1"),
    ],
)
def test_an_option_out_of_range_is_named(options, capsys):
    with pytest.raises(SystemExit) as end:
        main(["demo", *options])
    assert end.value.code == 2
    assert f"'{options[1]}'" in capsys.readouterr().err


# ---- without a sidecar


@pytest.fixture(scope="module")
def record() -> Record:
    """A drive that a perfect sidecar has answered, with the fit at its time."""
    record = Record(Plan(duration_s=9.0))
    plan = record.plan
    for frame in simulate(plan.settings, plan.seed, plan.duration_s):
        at = plan.event_s(frame.stamp_ns)
        record.elapsed_s = at
        if frame.sensor == plan.faulty and at >= plan.fault_s:
            frame = with_variance_factor(frame, plan.variance_factor)
        if record.version is None and at >= plan.fit_s:
            record.version = record.fit().version
            record.events.append((at, f"promoted {record.version}"))
        phase = record.phase_of(frame, (record.version or "identity",))
        covariance = frame.covariance
        if phase is Phase.AFTER and frame.sensor == plan.faulty:
            covariance = covariance / plan.variance_factor
        sensor = record.sensors[frame.sensor]
        sensor.frames += 1
        sensor.detections += frame.ids.size
        sensor.add_truth(AnsweredFrame(frame, phase, frame.mean, covariance))
        record.latency_s.append(0.001)
    record.frames_wall_s = 9.0
    return record


def account(record: Record) -> SidecarAccount:
    """Of a sidecar that counted the same."""
    slices = {}
    for name, sensor in record.sensors.items():
        whole = sensor.whole()
        nees = [
            float(stage.axis(stage.joint_axis).nees.sum()) / (6 * stage.n)
            for stage in (whole.raw, whole.recalibrated)
        ]
        slices[name] = SliceAccount(whole.raw.n, nees[0], nees[1])
    metrics = parse(
        f"""# HELP calibration_frames_total Frames answered.
calibration_frames_total {record.frames}.0
calibration_ground_truth_total{{outcome="matched"}} {record.labelled}.0
calibration_frame_seconds_bucket{{le="0.001"}} 10.0
calibration_frame_seconds_bucket{{le="0.005"}} 99.0
calibration_frame_seconds_bucket{{le="+Inf"}} 100.0
calibration_frame_seconds_count 100.0
"""
    )
    return SidecarAccount(
        record.frames, record.detections, record.labelled, record.version or "", slices, metrics
    )


def test_phases_follow_the_stamp_and_then_the_version_that_answered(record):
    frames = list(simulate(record.plan.settings, 7, 9.0))
    assert record.phase_of(frames[0], (record.version,)) is Phase.BEFORE
    assert record.phase_of(frames[-1], ("identity",)) is Phase.DURING
    assert record.phase_of(frames[-1], (record.version,)) is Phase.AFTER


def test_the_faulty_sensor_reads_five_and_one_again(record):
    recent = record.sensors[record.plan.faulty].recent()
    after = record.sensors[record.plan.faulty].of(Phase.AFTER)
    assert after.raw.n < recent.n  # 5 s reach back into the fault
    summary = summarise(record, account(record))
    cell = summary.cells[record.plan.faulty][Phase.AFTER]
    ratio = cell.raw.joint.nees_over_k / cell.recalibrated.joint.nees_over_k
    assert ratio == pytest.approx(5.0)


def test_the_summary_names_all_sensors_in_80_columns(record):
    text = as_text(summarise(record, account(record)))
    assert max(len(line) for line in text.splitlines()) <= 80
    for name in record.sensors:
        rows = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert [row.count("→") for row in rows] == [3, 3]
    assert record.version in text
    assert "p99 ≤ 5 ms" in text
    assert "agree: frames" in text


@pytest.mark.parametrize("field", ["frames", "detections", "matched"])
def test_a_count_that_differs_is_named_with_both_values(record, field):
    theirs = account(record)
    wrong = replace(theirs, **{field: getattr(theirs, field) - 1})
    (difference,) = summarise(record, wrong).differences
    assert difference.startswith(field)
    assert str(getattr(theirs, field)) in difference
    assert str(getattr(theirs, field) - 1) in difference


def test_a_sensor_that_the_sidecar_does_not_know_is_named(record):
    theirs = account(record)
    slices = {name: entry for name, entry in theirs.slices.items() if name != "camera_back"}
    differences = summarise(record, replace(theirs, slices=slices)).differences
    assert differences
    assert all("camera_back" in difference for difference in differences)


def test_the_json_has_no_nan_even_before_any_truth():
    empty = Record(Plan())
    empty.latency_s.append(0.001)
    empty.frames_wall_s = 1.0
    text = json.dumps(as_json(summarise(empty, account_of_nothing())), allow_nan=False)
    assert json.loads(text)["sensors"]["camera_back"]["after"]["raw"]["nees_over_k"] is None


def account_of_nothing() -> SidecarAccount:
    return SidecarAccount(0, 0, 0, "identity", {}, parse(""))


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 50), (56, 14), (30, 8), (1, 1)])
@pytest.mark.parametrize("colour", [True, False])
def test_the_picture_fits_the_terminal(record, columns, rows, colour):
    lines = render(record, "127.0.0.1:12345", columns, rows, colour=colour)
    plain = [CODES.sub("", line) for line in lines]
    assert len(lines) <= rows
    assert max(len(line) for line in plain) <= columns
    assert colour or plain == lines


def test_the_picture_shows_every_sensor_and_what_happened(record):
    text = "\n".join(render(record, "127.0.0.1:12345", 80, 24, colour=False))
    assert all(name in text for name in record.sensors)
    assert f"promoted {record.version}" in text
    assert "camera_front recalibrated" in text


def test_the_picture_of_a_drive_that_has_not_begun_has_dashes_for_numbers():
    lines = render(Record(Plan()), "127.0.0.1:12345", 80, 24, colour=True)
    assert sum("–" in line for line in lines) == 6
    assert "healthy" in lines[0]


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (0.0, "    "),
        (6.0, "████"),
        (600.0, "████"),
        (3.0, "██  "),
        (0.75, "▌   "),
        (math.nan, "    "),
    ],
)
def test_a_bar_is_full_at_six(value, drawn):
    assert bar(value, 4) == drawn
