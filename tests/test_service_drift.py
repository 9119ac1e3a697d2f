"""Drift of calibration in streams to a real sidecar: none is seen where there is none, and where
covariances are wrong it is told by every way there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from monitor.cli import main
from monitor.commands.sidecar_client import Client
from monitor.v1 import calibration_pb2, drift_pb2
from tests.drifting import (
    ALARM,
    PAGE,
    QUIET,
    RAISED,
    TICKET,
    TOO_LARGE,
    TOO_SMALL,
    Drive,
    Known,
    acknowledge,
    drift_events,
    drive_until_alarm,
    settings,
    stage,
    standing,
)
from tests.foreign_client import failure
from tests.promoted import Watcher, listed, series
from tests.served import PATIENCE, ROOT, Sidecar, eventually, starting

OVER, UNDER = drift_pb2.DRIFT_DIRECTION_OVER, drift_pb2.DRIFT_DIRECTION_UNDER
FORWARDED = calibration_pb2.STAGE_RECALIBRATED
ACKNOWLEDGED = drift_pb2.DRIFT_CHANGE_ACKNOWLEDGED
# s of healthy driving after which it is known what is usual: 2,000 detections with truth.
LEARNED = 40.0
# h; a thousandth of what an alarm needs.
SMALL = 1.0
APART = '[statistics]\nslice_by = ["stream", "class"]'


@pytest.fixture
def start(tmp_path):
    """Starts sidecars with the default budget that end with the test."""
    with starting(tmp_path, settings()) as begin:
        yield begin


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One for tests that look at slices of their own streams alone; the budget is that of all."""
    with starting(tmp_path_factory.mktemp("shared"), settings(more=APART)) as begin:
        yield begin()


def counted(sidecar: Sidecar) -> float:
    """Alarms that were ever raised."""
    return sum(series(sidecar, "drift_alarms_total").values())


def raised(watcher: Watcher, *slices: str) -> list[drift_pb2.DriftAlarm]:
    """Alarms that were told; of some slices alone, where these are named."""
    told = [event.alarm for event in drift_events(watcher, RAISED)]
    return [alarm for alarm in told if not slices or alarm.slice in slices]


def assert_quiet(sidecar: Sidecar, watcher: Watcher, *slices: str) -> None:
    """Nothing is found, by whatever way one looks."""
    for name in slices:
        for severity in (PAGE, TICKET):
            found = standing(sidecar, name, severity)
            assert found.state in QUIET
            assert not found.HasField("alarm")
            assert found.peak_hours < SMALL
    of_slices = [f'slice="{name}"' for name in slices]

    def shown(family: str) -> list[float]:
        found = series(sidecar, family).items()
        return [value for labels, value in found if any(one in labels for one in of_slices)]

    assert eventually(lambda: len(shown("drift_state")) == 2 * len(slices))
    assert set(shown("drift_state")) <= {0.0, 3.0}
    assert max(shown("drift_log10_evidence")) < math.log10(SMALL)
    assert not raised(watcher, *slices)


# ---- healthy


@pytest.mark.parametrize(
    ("seconds", "known", "degrees", "delay_seconds"),
    [
        (240, Known.BY_MESSAGE, math.inf, 0.0),
        (80, Known.BY_LABELLER, 5.0, 3.0),
        (120, Known.BY_NOBODY, math.inf, 0.0),
    ],
)
def test_minutes_without_a_fault_raise_nothing(start, seconds, known, degrees, delay_seconds):
    sidecar = start()
    watcher = Watcher(sidecar)
    drive = Drive(sidecar, objects=4, known=known, degrees=degrees, delay_seconds=delay_seconds)
    drive.send(seconds)
    assert_quiet(sidecar, watcher, "car", "total")
    assert counted(sidecar) == 0
    assert stage(sidecar, FORWARDED).reference == "learned"
    driven = seconds - delay_seconds
    assert eventually(
        lambda: series(sidecar, "drift_driving_seconds_total")[""] == pytest.approx(driven, abs=1)
    )
    drive.close()


# ---- found


def test_covariances_that_become_too_small_are_a_page_by_every_way_until_somebody_says_they_know(
    start,
):
    sidecar = start()
    watcher = Watcher(sidecar)
    drive = Drive(sidecar)
    drive.send(LEARNED)
    began = drive.seconds
    drive.variance["car"] = TOO_SMALL
    alarm = drive_until_alarm(drive, 6)
    assert (alarm.slice, alarm.severity, alarm.stage) == ("car", PAGE, FORWARDED)
    assert alarm.direction == OVER
    assert alarm.evidence_hours >= alarm.threshold_hours == 1000
    assert began <= alarm.event_ns / 1e9 <= began + 6
    assert abs(alarm.since_ns / 1e9 - began) <= 2
    assert alarm.scale.lower <= math.sqrt(5) <= alarm.scale.upper
    assert alarm.scale.lower < alarm.scale.estimate < alarm.scale.upper
    assert 0 < alarm.tracks <= alarm.detections <= alarm.labelled <= 8 * drive.frames
    assert alarm.epoch == 0
    assert 3600 * alarm.driven_hours == pytest.approx(alarm.event_ns / 1e9)

    assert eventually(lambda: raised(watcher))
    assert raised(watcher) == [alarm]
    of_car = 'severity="page",slice="car"'
    assert eventually(lambda: series(sidecar, "drift_state")[of_car] == 2)
    assert counted(sidecar) == 1
    (labels,) = (
        labels for labels, alarms in series(sidecar, "drift_alarms_total").items() if alarms
    )
    assert 'direction="over"' in labels
    assert 'stage="recalibrated"' in labels
    threshold = series(sidecar, "drift_log10_threshold")['severity="page"']
    assert threshold == pytest.approx(3)

    # The peak begins anew with the alarm; a fault that goes on brings it up again, and no news.
    drive.send(15)
    assert eventually(lambda: series(sidecar, "drift_log10_evidence")[of_car] >= threshold)
    assert standing(sidecar).alarm == alarm
    for name in ("car", "total"):
        assert standing(sidecar, name, TICKET).state in QUIET
        assert standing(sidecar, name, TICKET).peak_hours < SMALL
    assert len(raised(watcher)) == 1
    # Nobody wished for a fit.
    assert not watcher.records
    assert not listed(sidecar).trials

    # A fault that goes on comes again.
    assert acknowledge(sidecar, "car") == [alarm]
    drive_until_alarm(drive, 10)
    assert eventually(lambda: len(drift_events(watcher)) == 3)
    changes = [event.change for event in drift_events(watcher)]
    assert changes == [RAISED, ACKNOWLEDGED, RAISED]
    assert eventually(lambda: counted(sidecar) == 2)
    drive.close()


def test_covariances_that_become_too_large_are_a_ticket_and_no_page(shared):
    watcher = Watcher(shared)
    drive = Drive(shared, stream="large")
    drive.send(LEARNED)
    drive.variance["car"] = TOO_LARGE
    alarm = drive_until_alarm(drive, 6, "large/car", TICKET)
    assert (alarm.stage, alarm.direction) == (FORWARDED, UNDER)
    assert alarm.scale.lower <= 1 / math.sqrt(5) <= alarm.scale.upper
    drive.send(20)
    assert eventually(lambda: raised(watcher, "large/car"))
    assert raised(watcher, "large/car") == [alarm]
    assert standing(shared, "large/car").state in QUIET
    assert standing(shared, "large/car").peak_hours < SMALL


def test_a_fault_of_one_class_leaves_the_other_as_it_is(shared):
    watcher = Watcher(shared)
    drive = Drive(shared, stream="two", classes=("car", "van"))
    drive.send(2 * LEARNED)
    drive.variance["van"] = TOO_SMALL
    drive_until_alarm(drive, 10, "two/van")
    drive.send(20)
    assert_quiet(shared, watcher, "two/car")
    assert eventually(lambda: raised(watcher, "two/van"))
    assert not [event for event in drift_events(watcher) if "two/car" in event.concerned]


def test_the_one_of_two_streams_that_is_wrong_is_found_while_the_other_lags_behind(shared):
    watcher = Watcher(shared)
    left, right = Drive(shared, stream="left"), Drive(shared, stream="right", seed=2)
    for _ in range(10):
        left.send(LEARNED / 10)
    right.send(LEARNED)
    right.variance["car"] = TOO_SMALL
    alarm = drive_until_alarm(right, 10, "right/car")
    assert alarm.slice == "right/car"
    left.send(30)
    assert_quiet(shared, watcher, "left/car")


@pytest.mark.parametrize("known", Known)
def test_covariances_that_are_too_small_from_the_first_frame_on_are_found_without_a_reference(
    shared, known
):
    drive = Drive(shared, stream=known.name, known=known, variance={"car": TOO_SMALL})
    slice = f"{known.name}/car"
    alarm = drive_until_alarm(drive, 30, slice)
    assert alarm.direction == OVER
    assert stage(shared, FORWARDED, slice).reference == "shipped"
    drive.send(LEARNED)
    # A fault is never learned as what is usual.
    assert stage(shared, FORWARDED, slice).reference == "shipped"
    assert standing(shared, slice).state == ALARM


# ---- truth that comes later, and whose tracks they are


def test_truth_that_comes_seconds_later_finds_a_fault_as_well(shared):
    drive = Drive(shared, stream="later", delay_seconds=3.0)
    drive.send(LEARNED + 3)
    began = drive.seconds
    drive.variance["car"] = TOO_SMALL
    alarm = drive_until_alarm(drive, 12, "later/car")
    assert began <= alarm.event_ns / 1e9 <= began + 6


def test_truth_that_comes_too_late_is_counted_and_says_nothing(start):
    sidecar = start(settings(more="[statistics]\nlive_seconds = 10"))
    watcher = Watcher(sidecar)
    drive = Drive(sidecar, delay_seconds=15.0, variance={"car": TOO_SMALL})
    drive.send(35)
    found = sidecar.calibration("car")
    assert found.slices[0].stages[0].n > 0
    assert eventually(
        lambda: series(sidecar, "drift_left_out_total")['reason="late"'] == 20 * 10 * 8
    )
    assert series(sidecar, "drift_driving_seconds_total")[""] == 0
    assert_quiet(sidecar, watcher, "car", "total")
    assert standing(sidecar).state == drift_pb2.DRIFT_STATE_TOO_FEW


def test_the_ids_of_a_labeller_make_tracks_known_where_nobody_tracks(shared):
    drive = Drive(shared, stream="labelled", known=Known.BY_LABELLER)
    drive.send(LEARNED)
    known = stage(shared, FORWARDED, "labelled/car")
    assert (known.reference, known.unit) == ("learned", "track-second")
    assert known.reference_tracks >= 30
    labels = 'origin="learned",slice="labelled/car",unit="track-second"'
    shown = known.reference_tracks
    assert eventually(lambda: series(shared, "drift_reference_tracks").get(labels) == shown)
    drive.variance["car"] = TOO_SMALL
    assert drive_until_alarm(drive, 6, "labelled/car").tracks > 0


def test_where_no_track_is_known_frames_count_and_a_fault_is_found_as_well(shared):
    drive = Drive(shared, stream="untracked", known=Known.BY_NOBODY)
    drive.send(LEARNED)
    known = stage(shared, FORWARDED, "untracked/car")
    assert (known.reference, known.unit) == ("learned", "frame")
    assert known.reference_tracks == 0
    drive.variance["car"] = TOO_SMALL
    assert drive_until_alarm(drive, 30, "untracked/car").tracks == 0


# ---- acknowledged


def test_verbs_list_end_and_hear_of_alarms(start, capsys):
    sidecar = start()

    def verb(*words: str) -> str:
        assert main(["alarms", *words, "--address", sidecar.grpc]) == 0
        said: str = capsys.readouterr().out
        return said

    drive = Drive(sidecar)
    drive.send(LEARNED)
    drive.variance["car"] = TOO_SMALL
    with watching(sidecar) as heard:
        # It hears nothing of what was before it had a connection.
        for _ in range(200):
            drive_until_alarm(drive, 10)
            acknowledge(sidecar)
            if heard:
                break
        drive_until_alarm(drive, 10)
        drive.variance.clear()
        drive.send(10)
        assert "alarm, recalibrated" in verb("list")
        (page,) = (
            one
            for one in json.loads(verb("list", "--json"))["standings"]
            if (one["slice"], one["severity"]) == ("car", "page")
        )
        ended = json.loads(verb("acknowledge", "car", "--actor", "anna", "--json"))
        assert ended["acknowledged"] == [page["alarm"]]
        assert standing(sidecar).state in QUIET
        assert standing(sidecar).peak_hours < SMALL
        assert "there were no alarms" in verb("acknowledge")
        assert "alarm, recalibrated" not in verb("list")
        assert eventually(lambda: heard[-1]["actor"] == "anna")
        told = heard[-2:]
    assert [one["why"] for one in told] == ["raised", "acknowledged"]
    assert told[0]["alarm"] == told[1]["alarm"] == page["alarm"]


@contextlib.contextmanager
def watching(sidecar: Sidecar) -> Iterator[list[dict[str, Any]]]:
    """The changes that `alarms watch` tells of, as they come."""
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor", "alarms", "watch", "--json", "--address", sidecar.grpc],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = process.stdout
    assert lines is not None
    heard: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: heard.extend(json.loads(line)["change"] for line in lines), daemon=True
    )
    thread.start()
    try:
        yield heard
    finally:
        process.kill()
        process.wait(PATIENCE)
        thread.join(PATIENCE)
        lines.close()


def test_a_slice_that_nobody_knows_is_not_found(shared):
    Drive(shared, stream="known").send(1)
    code, text = failure(lambda: acknowledge(shared, "tram"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "tram" in text
    assert "known/car" in text
    assert "total" in text
    assert not acknowledge(shared, "known/car")


def test_our_client_reads_what_a_foreign_one_does(shared):
    Drive(shared, stream="asked").send(LEARNED)

    async def asked():
        async with Client(shared.grpc) as client:
            return await client.standings(["asked/car"])

    found = asyncio.run(asked())
    told = shared.calibration("asked/car")
    assert [one.evidence for one in found.standings] == [one.evidence_hours for one in told.drift]
    worth = [one.effective_ratio for one in found.stages]
    assert worth == [one.effective_ratio for one in told.drift_stages]
