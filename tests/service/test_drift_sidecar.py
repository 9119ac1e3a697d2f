"""Drift is told by every way there is, and ends with what compensates it."""

from __future__ import annotations

import json
import math

import pytest

from monitor.cli import main
from monitor.v1 import calibration_pb2, drift_pb2
from tests.drifting import (
    NEW_EPOCH,
    QUIET,
    RAISED,
    TICKET,
    TOO_SMALL,
    Drive,
    acknowledge,
    drift_events,
    drive_until_alarm,
    settings,
    standing,
)
from tests.foreign_client import promote, scaling
from tests.promoted import BEGAN, Watcher, series
from tests.served import PATIENCE, eventually, running

RAW, FORWARDED = calibration_pb2.STAGE_RAW, calibration_pb2.STAGE_RECALIBRATED
OVER = drift_pb2.DRIFT_DIRECTION_OVER
ACKNOWLEDGED = drift_pb2.DRIFT_CHANGE_ACKNOWLEDGED
# s of healthy driving after which it is known what is usual: 2,000 detections with truth.
LEARNED = 40.0
OF_CAR = 'severity="page",slice="car"'


def test_a_page_is_told_by_every_way_until_somebody_knows_and_a_promotion_ends_it(tmp_path, capsys):
    def verb(*words: str) -> str:
        assert main(["alarms", *words, "--address", sidecar.grpc]) == 0
        said: str = capsys.readouterr().out
        return said

    with running(tmp_path, settings("refit_on_page = true")) as sidecar:
        watcher, drive = Watcher(sidecar), Drive(sidecar)
        drive.send(LEARNED)
        for name in ("car", "total"):
            assert standing(sidecar, name).state in QUIET
            assert standing(sidecar, name).peak_hours < 1
        began = drive.seconds
        drive.variance["car"] = TOO_SMALL
        alarm = drive_until_alarm(drive, 6)
        assert (alarm.stage, alarm.direction, alarm.epoch) == (FORWARDED, OVER, 0)
        assert alarm.evidence_hours >= alarm.threshold_hours == 1000
        assert began <= alarm.event_ns / 1e9 <= began + 6
        assert abs(alarm.since_ns / 1e9 - began) <= 2
        assert alarm.scale.lower <= math.sqrt(5) <= alarm.scale.upper
        assert 0 < alarm.tracks <= alarm.detections <= alarm.labelled <= 8 * drive.frames
        assert 3600 * alarm.driven_hours == pytest.approx(alarm.event_ns / 1e9)
        assert eventually(lambda: series(sidecar, "drift_state")[OF_CAR] == 2)
        assert eventually(lambda: [one.alarm for one in drift_events(watcher)] == [alarm])
        assert sum(series(sidecar, "drift_alarms_total").values()) == 1
        assert "alarm, as forwarded" in verb("list")

        # It is fitted once tracks of the fault have ended; a fit has the lowest priority.
        drive.send(15)
        assert standing(sidecar).alarm == alarm
        assert eventually(lambda: watcher.of(BEGAN), 6 * PATIENCE)
        assert (watcher.of(BEGAN)[0].slice, watcher.of(BEGAN)[0].actor) == ("car", "drift")
        # A fault that goes on comes again.
        assert acknowledge(sidecar, "car") == [alarm]
        page = drive_until_alarm(drive, 10)

        # What a promotion compensates is no page any more, and stays visible as a ticket.
        promote(sidecar, document=scaling(math.sqrt(5), math.sqrt(5)))
        assert eventually(lambda: drift_events(watcher, NEW_EPOCH))
        assert drift_events(watcher, NEW_EPOCH)[0].alarm == page
        ticket = drive_until_alarm(drive, 10, severity=TICKET)
        assert (ticket.stage, ticket.direction, ticket.epoch) == (RAW, OVER, 1)
        assert standing(sidecar).state in QUIET
        ended = json.loads(verb("acknowledge", "car", "--actor", "anna", "--json"))
        assert [one["severity"] for one in ended["acknowledged"]] == ["ticket"]
        assert "there were no alarms" in verb("acknowledge")
        changes = [RAISED, ACKNOWLEDGED, RAISED, NEW_EPOCH, RAISED, ACKNOWLEDGED]
        assert eventually(lambda: [one.change for one in drift_events(watcher)] == changes)
        assert eventually(lambda: sidecar.metric("drift_epochs_total") == 1)
        drive.close()


def test_class_probabilities_that_are_too_sure_are_told_of_by_a_name_of_their_own(tmp_path, capsys):
    name = "class probabilities"
    with running(tmp_path, settings("hours_between_false_pages = 0.1")) as sidecar:
        watcher, drive = Watcher(sidecar), Drive(sidecar, tuple("abcde"), too_sure=4.0)
        alarm = drive_until_alarm(drive, 120, name)
        assert (alarm.detector, alarm.direction) == (drift_pb2.DRIFT_DETECTOR_CONFIDENCE, OVER)
        assert (alarm.quantity, alarm.dimension) == (drift_pb2.DRIFT_QUANTITY_CONFIDENCE, "")
        assert -0.5 < alarm.size < -0.1
        assert eventually(lambda: [one.alarm for one in drift_events(watcher)] == [alarm])
        of_classes = f'severity="page",slice="{name}"'
        assert eventually(lambda: series(sidecar, "drift_state")[of_classes] == 2)
        assert "points below the stated confidence" in sidecar.get("/")
        assert main(["alarms", "list", "--address", sidecar.grpc]) == 0
        assert "points below" in capsys.readouterr().out
        assert acknowledge(sidecar, name) == [alarm]
        drive.close()
