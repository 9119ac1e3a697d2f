"""The demo: once for real, and its picture and tables from a drive without a sidecar."""

from __future__ import annotations

import copy
import json
import math
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from monitor.cli import main
from monitor.commands.demo.live_view import bar, render
from monitor.commands.demo.plan import Phase, Plan
from monitor.commands.demo.record import AnsweredFrame, Heard, Record, Story
from monitor.commands.demo.scene import simulate, with_variance_factor
from monitor.commands.demo.summary import SidecarAccount, SliceAccount, as_json, as_text, summarise
from monitor.commands.doctor.look import parse
from monitor.promotion.records import Evidence, Factor, Happened
from monitor.promotion.records import Record as Happening

DEMO = [sys.executable, "-m", "monitor", "demo"]
_PATIENCE = 580.0  # s; it takes 40 where nothing else runs
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def told():
    """What a real drive through a real sidecar printed with --json."""
    command = [*DEMO, "--duration", "30", "--speed", "1.5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_sidecar_counts_what_the_demo_sent(told):
    assert told["frames"] >= 60 * told["duration_seconds"]
    assert told["counts_agree"], told["differences"]
    for count in ("frames", "detections", "matched"):
        assert told["sidecar"][count] == told[count] > 0


@pytest.mark.campaign
def test_the_story_is_whole_and_in_order_and_nothing_of_it_is_asked_for_by_the_demo(told):
    assert told["story_is_whole"], told["missing"]
    faulty, begins, ends = (
        told[name] for name in ("faulty_sensor", "fault_seconds", "fault_end_seconds")
    )
    steps = [step for step in told["story"] if step["slice"] == faulty]
    began = next(s for s in steps if s["what"] == "began" and s["seconds"] > begins)
    promoted = next(s for s in steps if s["what"] == "promoted")
    back = [s for s in steps if s["what"] == "rolled_back"]
    assert begins < began["seconds"] <= promoted["seconds"] < ends < back[0]["seconds"]
    assert min(began["factors"][name] for name in "xyz") > 2
    for step in (promoted, *back):
        assert step["evidence"]["log10_better"] >= step["evidence"]["log10_threshold"]
        assert step["before"] != step["after"]
    assert back[-1]["after"] == told["sidecar"]["recalibrator_version"]
    assert told["swaps"][faulty]["rolled_back"] == len(back)


@pytest.mark.campaign
def test_the_fault_reads_five_is_corrected_and_at_home_all_is_as_sent(told):
    faulty = told["sensors"][told["faulty_sensor"]]
    nees = {
        phase: (cell["raw"]["nees_over_k"], cell["recalibrated"]["nees_over_k"])
        for phase, cell in faulty.items()
    }
    assert list(nees) == ["healthy", "fault", "corrected", "after", "home"]
    assert nees["fault"][0] == nees["fault"][1] > 3
    assert nees["corrected"][0] > 3
    # The first step may be a small one, as long as tracks of the time before are in it.
    assert 0.6 < nees["corrected"][1] < nees["corrected"][0] / 2
    assert nees["after"][0] == pytest.approx(1, abs=0.5)
    assert nees["after"][1] < nees["after"][0] / 2
    for phase in ("healthy", "home"):
        assert nees[phase][0] == nees[phase][1] == pytest.approx(1, abs=0.5)
    corrected = faulty["corrected"]
    assert corrected["recalibrated"]["ence_x"] < corrected["raw"]["ence_x"]


@pytest.mark.campaign
def test_no_healthy_sensor_is_touched(told):
    assert set(told["swaps"]) == {told["faulty_sensor"]}
    others = [cells for name, cells in told["sensors"].items() if name != told["faulty_sensor"]]
    assert len(others) == 5
    for by_phase in others:
        for cell in by_phase.values():
            assert cell["n"] > 0
            assert cell["recalibrated"] == cell["raw"]


@pytest.mark.campaign
def test_objects_keep_their_tracks_again_when_the_fault_is_corrected(told):
    tracking = told["tracking"]
    for phase in ("healthy", "fault"):
        # The sidecar's tracker and the demo's own are one code, fed the same.
        assert tracking[phase]["recalibrated"] == tracking[phase]["raw"]
    raw, recalibrated = tracking["corrected"]["raw"], tracking["corrected"]["recalibrated"]
    assert recalibrated["detections"] == raw["detections"] > 100
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
        ("--duration", "19"),
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


def happening(what: Happened, after: str, **fields: Any) -> Happening:
    faulty = Plan().faulty
    evidence = Evidence(12, 0.4, 3.1, -2.0, 2.0)
    known = Happening(1, 0, what, faulty, after, "before", after, "trial", "", None, evidence)
    return replace(known, **fields)


FACTORS = (Factor("x", 4.0, 4.5, 5.0), Factor("y", 4.8, 5.1, 5.3))
# Event time in the drive without a sidecar, s.
DURATION, PROMOTED, ROLLED_BACK = 20.0, 8.0, 15.0
HOME = happening(Happened.ROLLED_BACK, "identity-of-seven")


@pytest.fixture(scope="module")
def record() -> Record:
    """A drive that a perfect sidecar has answered: promoted at 8 s, rolled back at 15 s."""
    record = Record(Plan(duration_s=DURATION))
    plan = record.plan
    record.fault_ended_s = plan.fault_end_s
    to_hear = [
        (5.0, happening(Happened.BEGAN, "identity", factors=FACTORS)),
        (PROMOTED, happening(Happened.PROMOTED, "scaling-1", factors=FACTORS)),
        (ROLLED_BACK, HOME),
    ]
    for frame in simulate(plan.settings, plan.seed, plan.duration_s):
        record.elapsed_s = plan.event_s(frame.stamp_ns)
        while to_hear and record.elapsed_s >= to_hear[0][0]:
            record.hear(to_hear.pop(0)[1])
        faulty = frame.sensor == plan.faulty
        if faulty and plan.fault_s <= record.elapsed_s < plan.fault_end_s:
            frame = with_variance_factor(frame, plan.variance_factor)
        version, covariance = record.story.version, frame.covariance
        if version == "scaling-1" and faulty:
            covariance = covariance / plan.variance_factor
        answered = AnsweredFrame(frame, version, frame.mean, covariance)
        record.add_answer(answered)
        record.sensors[frame.sensor].add_truth(answered, record.phase_of(answered))
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
            if stage.n
        ]
        if nees:
            slices[name] = SliceAccount(whole.raw.n, nees[0], nees[1])

    def count(what: Happened) -> int:
        return sum(heard.record.what is what for heard in record.story.heard)

    metrics = parse(
        f"""# HELP calibration_frames_total Frames answered.
calibration_frames_total {record.frames}.0
calibration_ground_truth_total{{outcome="matched"}} {record.labelled}.0
calibration_recalibrator_swaps_total{{outcome="promoted"}} {count(Happened.PROMOTED)}.0
calibration_recalibrator_swaps_total{{outcome="rolled_back"}} {count(Happened.ROLLED_BACK)}.0
calibration_frame_seconds_bucket{{le="0.001"}} 10.0
calibration_frame_seconds_bucket{{le="0.005"}} 99.0
calibration_frame_seconds_bucket{{le="+Inf"}} 100.0
calibration_frame_seconds_count 100.0
"""
    )
    return SidecarAccount(
        record.frames, record.detections, record.labelled, record.story.version, slices, metrics
    )


@pytest.mark.parametrize(
    ("at_s", "version", "phase"),
    [
        (1.0, "identity", Phase.HEALTHY),
        (1.0, "scaling-1", Phase.HEALTHY),
        (6.0, "identity", Phase.FAULT),
        (6.0, "scaling-of-another-sensor", Phase.FAULT),
        (6.0, "scaling-1", Phase.CORRECTED),
        (12.0, "scaling-1", Phase.AFTER),
        (12.0, "identity", Phase.HOME),
    ],
)
def test_phases_follow_the_stamp_and_what_the_version_does_to_the_faulty_sensor(
    record, at_s, version, phase
):
    frame = next(simulate(record.plan.settings, 7, 1.0))
    frame = replace(frame, stamp_ns=record.plan.settings.start_ns + round(at_s * 1e9))
    answered = AnsweredFrame(frame, version, frame.mean, frame.covariance)
    assert record.phase_of(answered) is phase


@pytest.mark.parametrize(
    ("entered_s", "at_s", "may_end"),
    [
        (None, 11.0, False),  # nothing was promoted yet
        (None, 70.9, False),
        (None, 71.0, True),  # and nobody waits for ever
        (5.0, 10.9, False),  # the fault is as long as planned
        (5.0, 11.0, True),
        (9.0, 13.9, False),  # its correction is to be seen
        (9.0, 14.0, True),
    ],
)
def test_the_fault_lasts_until_its_correction_was_seen(entered_s, at_s, may_end):
    record = Record(Plan(duration_s=DURATION))
    if entered_s is not None:
        record.entered_s[Phase.CORRECTED] = entered_s
    assert record.fault_may_end(at_s) is may_end


@pytest.mark.parametrize(
    ("entered_s", "at_s", "may_end"),
    [(None, 20.0, False), (None, 80.0, True), (12.0, 20.0, True), (17.0, 21.9, False)],
)
def test_the_drive_lasts_until_the_way_home_was_seen(entered_s, at_s, may_end):
    record = Record(Plan(duration_s=DURATION), fault_ended_s=11.0)
    if entered_s is not None:
        record.entered_s[Phase.HOME] = entered_s
    assert record.drive_may_end(at_s) is may_end


def test_the_phases_are_entered_in_their_order(record):
    assert list(record.entered_s) == list(Phase)
    assert list(record.entered_s.values()) == pytest.approx([0, 4, 8, 11, 15], abs=0.1)


def test_the_faulty_sensor_reads_five_one_and_a_fifth_and_one_again(record):
    cells = summarise(record, account(record)).cells[record.plan.faulty]
    ratios = {
        phase: cell.raw.joint.nees_over_k / cell.recalibrated.joint.nees_over_k
        for phase, cell in cells.items()
    }
    assert ratios == pytest.approx(
        {Phase.HEALTHY: 1, Phase.FAULT: 1, Phase.CORRECTED: 5, Phase.AFTER: 5, Phase.HOME: 1}
    )


def test_the_summary_names_all_sensors_in_80_columns(record):
    text = as_text(summarise(record, account(record)))
    assert [line for line in text.splitlines() if len(line) > 80] == []
    for name in record.sensors:
        (row,) = [line for line in text.splitlines() if re.match(f"{name} +[0-9]", line)]
        assert row.count("→") == 5
    assert "p99 ≤ 5 ms" in text
    assert "agree: frames" in text
    assert "promoted  4.0 s after the fault began: 12 tracks, evidence 1,259 of 100" in text
    assert "sent home 4.0 s after it ended: 12 tracks" in text
    assert "camera_front: promoted 1 ×, rolled back 1 ×\n" in text
    assert "missing" not in text


def test_a_healthy_sensor_that_was_recalibrated_is_named(record):
    swap = Heard(4.0, happening(Happened.PROMOTED, "scaling-2", slice="camera_back"))
    told = with_story(record, [swap, *record.story.heard])
    text = as_text(summarise(told, account(told)))
    assert "camera_back: promoted 1 ×, which has no fault" in text


def with_story(record: Record, heard: list[Heard]) -> Record:
    changed = copy.copy(record)
    changed.story = Story(heard)
    return changed


def heard_only(*whats: tuple[float, Happened]) -> Record:
    record = Record(Plan(duration_s=DURATION), fault_ended_s=11.0)
    for at_s, what in whats:
        record.elapsed_s = at_s
        record.hear(happening(what, f"{what}-1"))
    return record


@pytest.mark.parametrize(
    ("record_of", "missing"),
    [
        ((), "nor put one on trial"),
        (((5.0, Happened.BEGAN),), "promoted a recalibrator for camera_front"),
        (((1.0, Happened.PROMOTED),), "promoted a recalibrator for camera_front while"),
        (((11.5, Happened.PROMOTED),), "promoted a recalibrator for camera_front while"),
        (((5.0, Happened.BEGAN), (8.0, Happened.PROMOTED)), "sent camera_front home"),
        (((8.0, Happened.PROMOTED), (20.0, Happened.ROLLED_BACK)), "sent camera_front home"),
    ],
)
def test_what_did_not_come_is_said(record_of, missing):
    record = heard_only(*record_of)
    record.latency_s.append(0.001)
    record.frames_wall_s = 1.0
    summary = summarise(record, account(record))
    assert missing in summary.missing
    assert f"missing   the sidecar has not {summary.missing}" in as_text(summary)


def test_a_story_that_is_whole_misses_nothing(record):
    assert summarise(record, account(record)).missing == ""


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


def test_a_swap_that_was_not_heard_of_is_named(record):
    theirs = replace(account(record), version="scaling-3")
    (difference,) = summarise(record, theirs).differences
    assert "scaling-3" in difference
    deaf = with_story(record, record.story.heard[:-1])
    differences = summarise(deaf, account(record)).differences
    assert [text.partition(":")[0] for text in differences] == [
        "recalibrators rolled_back",
        "recalibrator",
    ]


def test_the_json_has_no_nan_even_before_any_truth():
    empty = Record(Plan())
    empty.latency_s.append(0.001)
    empty.frames_wall_s = 1.0
    text = json.dumps(as_json(summarise(empty, account_of_nothing())), allow_nan=False)
    assert json.loads(text)["sensors"]["camera_back"]["home"]["raw"]["nees_over_k"] is None


def account_of_nothing() -> SidecarAccount:
    return SidecarAccount(0, 0, 0, Story().version, {}, parse(""))


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
    assert "camera_front: promoted, 12 tracks" in text


@pytest.mark.parametrize(
    ("heard", "at_s", "said"),
    [
        ((), 1.0, "healthy"),
        ((), 6.0, "FAULT in camera_front"),
        (("scaling-1",), 9.0, "camera_front recalibrated"),
        (("scaling-1",), 13.0, "the fault is over, and is still corrected"),
        (("scaling-1", "identity-1"), 16.0, "the fault is over, nothing is corrected"),
    ],
)
def test_the_picture_says_the_phase(heard, at_s, said):
    record = Record(Plan(duration_s=DURATION), correcting={"scaling-1"})
    record.fault_ended_s = 11.0 if at_s > 11 else math.inf
    for version in heard:
        record.hear(happening(Happened.PROMOTED, version))
    record.elapsed_s = at_s
    assert said in render(record, "127.0.0.1:12345", 100, 24, colour=False)[0]


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
