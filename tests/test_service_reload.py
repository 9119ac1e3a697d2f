"""SIGHUP to a running sidecar: what may change does, what may not waits, and nothing breaks."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from monitor.v1 import frame_pb2, status_pb2
from tests.foreign_client import in_frame, opened, scaling
from tests.served import PATIENCE, Sidecar, eventually

USUAL = """
[metrics]
refresh_seconds = 0.2
[recalibration]
mode = "{mode}"
recalibrator = "{document}"
[state]
folder = ""
"""


@pytest.fixture
def doubling(tmp_path) -> Path:
    """A recalibrator that doubles deviations."""
    path = tmp_path / "doubling.json"
    path.write_text(scaling(2.0, 2.0), "utf-8")
    return Path(path)


def reloads(sidecar: Sidecar) -> dict[str, float]:
    found = re.findall(
        r'^calibration_configuration_reloads_total\{outcome="(\w+)"\} (\S+)$',
        sidecar.get("/metrics"),
        re.MULTILINE,
    )
    return {outcome: float(count) for outcome, count in found}


def reload(sidecar: Sidecar, text: str, outcome: str) -> status_pb2.GetStatusResponse:
    """Write another file, ask for it to be read, and wait until it was."""
    before = reloads(sidecar)[outcome]
    (Path(sidecar.log).parent / "sidecar.toml").write_text(text, "utf-8")
    sidecar.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: reloads(sidecar)[outcome] == before + 1), reloads(sidecar)
    found = sidecar.monitor.GetStatus(status_pb2.GetStatusRequest(), timeout=PATIENCE)
    assert isinstance(found, status_pb2.GetStatusResponse)
    return found


def test_a_reload_changes_what_is_forwarded_on_a_stream_that_stays_open(start, doubling):
    document = doubling
    sidecar = start(USUAL.format(mode="observe", document=document))
    stream = opened(sidecar, "lidar")
    observed = stream.ask(in_frame(1)).frame.detections[0]
    assert list(observed.covariance) == [4.0, 4.0]
    assert list(observed.shadow_covariance) == [16.0, 16.0]
    found = reload(sidecar, USUAL.format(mode="apply", document=document), "applied")
    assert list(found.waiting_keys) == []
    answer = stream.ask(in_frame(2)).frame
    assert list(answer.detections[0].covariance) == [16.0, 16.0]
    found = reload(sidecar, USUAL.format(mode="apply", document=document), "unchanged")
    assert list(found.waiting_keys) == []
    stream.close()


def test_what_needs_a_restart_waits_and_is_named_and_the_rest_is_taken(start, doubling):
    sidecar = start(USUAL.format(mode="observe", document=doubling))
    text = USUAL.format(mode="apply", document=doubling) + "[statistics]\nbins = 7\n"
    found = reload(sidecar, text, "applied")
    assert list(found.waiting_keys) == ["statistics.bins"]
    assert sidecar.metric("configuration_waiting_keys") == 1
    line = "new: recalibration.mode; for a restart: statistics.bins"
    assert line in sidecar.log.read_text("utf-8")


def test_a_file_that_cannot_be_used_changes_nothing_and_says_which_key_is_wrong(start, doubling):
    sidecar = start(USUAL.format(mode="apply", document=doubling))
    stream = opened(sidecar, "lidar")
    bad = USUAL.format(mode="observe", document=doubling) + "[server]\nshed_rows = -1\n"
    found = reload(sidecar, bad, "refused")
    assert "server.shed_rows" in found.configuration_refused
    assert "-1" in found.configuration_refused
    assert stream.ask(in_frame(1)).frame.status == frame_pb2.STATUS_RECALIBRATED
    reload(sidecar, "this is no TOML", "refused")
    found = reload(sidecar, USUAL.format(mode="apply", document=doubling), "unchanged")
    assert found.configuration_refused == ""
    (Path(sidecar.log).parent / "sidecar.toml").unlink()
    sidecar.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: reloads(sidecar)["refused"] == 3)
    stream.close()


def test_what_the_command_line_says_outlives_a_reload(start, doubling):
    usual = USUAL.format(mode="apply", document=doubling).replace('folder = ""', "")
    sidecar = start(usual, "--no-snapshot")
    found = reload(sidecar, usual + "[server]\ngrace_seconds = 5.0\n", "unchanged")
    # It was started with --never-shed, too: neither what is kept nor what is shed has changed.
    assert list(found.waiting_keys) == []


def test_many_signals_at_once_are_one_reload_or_a_few_and_harm_nothing(start, doubling):
    sidecar = start(USUAL.format(mode="apply", document=doubling))
    stream = opened(sidecar, "lidar")
    for number in range(50):
        sidecar.process.send_signal(signal.SIGHUP)
        assert stream.ask(in_frame(number)).frame.status == frame_pb2.STATUS_RECALIBRATED
    assert eventually(lambda: reloads(sidecar)["unchanged"] >= 1)
    stream.close()
    sidecar.stop()


def test_a_file_that_is_no_file_or_empty_is_refused_and_what_is_in_force_stays(start, doubling):
    usual = USUAL.format(mode="observe", document=doubling)
    sidecar = start(usual)
    found = reload(sidecar, "", "refused")
    assert "is empty" in found.configuration_refused
    path = Path(sidecar.log).parent / "sidecar.toml"
    path.unlink()
    os.mkfifo(path)
    sidecar.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: reloads(sidecar)["refused"] == 2)
    path.unlink()
    assert reload(sidecar, usual, "unchanged").configuration_refused == ""
    sidecar.stop()


def test_the_pace_of_a_stream_that_is_open_follows_a_reload(start, doubling):
    usual = USUAL.format(mode="apply", document=doubling)
    sidecar = start(usual)
    stream = opened(sidecar, "lidar")
    reload(sidecar, usual + "[server]\nmax_messages_per_second = 4.0\n", "applied")
    began = time.monotonic()
    for number in range(9):
        stream.ask(in_frame(number))
    # A second's worth is free, then four a second; a busy computer takes longer, never shorter.
    assert time.monotonic() - began > 0.9
    stream.close()


@pytest.mark.parametrize("moment", ["at once", "at the end"])
def test_a_reload_that_is_asked_for_too_early_or_too_late_ends_nothing(start, doubling, moment):
    sidecar = start(USUAL.format(mode="apply", document=doubling))
    if moment == "at the end":
        sidecar.process.send_signal(signal.SIGTERM)
        while sidecar.process.poll() is None:
            sidecar.process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
    else:
        for _ in range(20):
            sidecar.process.send_signal(signal.SIGHUP)
        sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(PATIENCE) == 0
