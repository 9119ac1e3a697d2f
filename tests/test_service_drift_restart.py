"""Alarms of drift over restarts of a real sidecar: wherever it was killed, an alarm neither is lost
nor comes again, and evidence goes on where it was.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from monitor.v1 import drift_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.checkpointed import on_disk
from tests.promoted import Traffic, Watcher, series
from tests.served import PATIENCE, Sidecar, eventually, starting

PAGE = drift_pb2.DRIFT_SEVERITY_PAGE
RAISED = drift_pb2.DRIFT_CHANGE_RAISED
FAULT = 0.2  # of the variance that is sent
ALARM = 2.0


def config(folder: Path | str, more="", *, hours=1e-4, every=0.2) -> str:
    """hours: between two false pages."""
    return f"""
[metrics]
refresh_seconds = 0.1
[state]
folder = '{folder}'
every_seconds = {every}
[drift]
hours_between_false_pages = {hours}
hours_between_false_tickets = 1e9
calm_hours = 0.0
{more}
"""


@pytest.fixture
def kept(tmp_path) -> Path:
    """Where the state is kept."""
    folder: Path = tmp_path / "state"
    return folder


@pytest.fixture
def start(tmp_path, kept):
    """Starts sidecars that end with the test."""
    with starting(tmp_path, config(kept)) as begin:
        yield begin


def kill(sidecar: Sidecar) -> None:
    sidecar.process.kill()
    sidecar.process.wait(PATIENCE)


def drift_on_disk(folder: Path) -> dict[str, Any]:
    """What is kept of drift as of now; nothing where there is no file yet."""
    if not (folder / "state.db").exists():
        return {}
    found: dict[str, Any] = json.loads(on_disk(folder).parts["drift"])
    return found


def standing(sidecar: Sidecar, slice="car"):
    """Of pages, as GetCalibration has it; None where nothing is known of the slice."""
    found = [one for one in sidecar.calibration().drift if one.slice == slice]
    return next((one for one in found if one.severity == PAGE), None)


def alarms_total(sidecar: Sidecar) -> float:
    return sum(series(sidecar, "drift_alarms_total").values())


def state_of(sidecar: Sidecar) -> float:
    """As the metric has it."""
    return series(sidecar, "drift_state").get('severity="page",slice="car"', math.nan)


def drift_events(watcher: Watcher) -> list[drift_pb2.DriftEvent]:
    return [one.event.drift for one in watcher.events if one.event.WhichOneof("event") == "drift"]


def page(traffic: Traffic) -> None:
    """Send a fault until there is one."""
    traffic.variance["car"] = FAULT
    for _ in range(50):
        traffic.send()
        found = standing(traffic.sidecar)
        if found is not None and found.HasField("alarm"):
            return
    raise AssertionError("there was no page")


def test_a_page_outlives_kills_is_not_raised_again_and_is_gone_when_acknowledged(start, kept):
    sidecar = start()
    traffic, watcher = Traffic(sidecar), Watcher(sidecar)
    page(traffic)
    told = standing(sidecar).alarm
    assert eventually(lambda: [one.change for one in drift_events(watcher)] == [RAISED])
    assert eventually(lambda: drift_on_disk(kept).get("latched"))
    assert eventually(lambda: alarms_total(sidecar) == 1)
    kill(sidecar)
    watcher.close()

    sidecar = start()
    watcher = Watcher(sidecar)
    traffic.variance.clear()
    traffic.connect(sidecar)
    traffic.send()
    again = standing(sidecar)
    assert again.state == drift_pb2.DRIFT_STATE_ALARM
    assert again.alarm == told
    assert eventually(lambda: state_of(sidecar) == ALARM)
    assert alarms_total(sidecar) == 1
    assert drift_events(watcher) == []
    watcher.close()
    request = pb.AcknowledgeDriftRequest(actor="test")
    ended = sidecar.monitor.AcknowledgeDrift(request, timeout=PATIENCE).acknowledged
    assert list(ended) == [told]
    # It was answered when it was on the disk.
    assert drift_on_disk(kept)["latched"] == []
    kill(sidecar)

    sidecar = start()
    traffic.connect(sidecar)
    traffic.send(1)
    assert not standing(sidecar).HasField("alarm")
    assert standing(sidecar).state != drift_pb2.DRIFT_STATE_ALARM
    assert eventually(lambda: alarms_total(sidecar) == 1)


def test_evidence_goes_on_where_it_was(start, kept):
    settings = config(kept, hours=1e60)
    sidecar = start(settings)
    traffic = Traffic(sidecar, variance={"car": FAULT})
    traffic.send(40)
    before = standing(sidecar)
    assert before.evidence_hours > 1
    driven = on_disk_soon(kept, sidecar)
    kill(sidecar)

    sidecar = start(settings)
    # A frame is as good as none: it is the first of its source.
    traffic.connect(sidecar)
    traffic.send(1)
    after = standing(sidecar)
    assert after.evidence_hours > 1
    assert abs(math.log10(after.evidence_hours / before.evidence_hours)) < 2
    assert after.peak_hours >= before.peak_hours
    assert eventually(
        lambda: series(sidecar, "drift_driving_seconds_total")[""] == pytest.approx(driven)
    )
    stages = [one for one in sidecar.calibration().drift_stages if one.slice == "car"]
    assert len(stages) == 2


def on_disk_soon(kept: Path, sidecar: Sidecar) -> float:
    """Wait until all that the sidecar knows by now is there; the seconds driven."""

    def driven() -> float:
        return series(sidecar, "drift_driving_seconds_total")[""]

    assert eventually(lambda: driven() > 0 and drift_on_disk(kept).get("driven") == driven())
    return driven()


def test_an_orderly_end_keeps_what_came_last(start, kept):
    settings = config(kept, hours=1e9, every=3600)
    sidecar = start(settings)
    Traffic(sidecar).send(20)
    sidecar.stop()
    assert drift_on_disk(kept)["slices"][0]["labelled"] == 20 * 24


def test_where_nothing_can_be_written_it_watches_and_says_so(start, tmp_path):
    (tmp_path / "file").touch()
    sidecar = start(config(tmp_path / "file" / "state"))
    assert "cannot be written" in sidecar.log.read_text("utf-8")
    page(Traffic(sidecar))
    assert eventually(lambda: series(sidecar, "checkpoint_failures_total")[""] >= 2)
    sidecar.stop()
