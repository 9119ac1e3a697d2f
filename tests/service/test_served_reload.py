"""SIGHUP to a real sidecar, and the limits that a reload or the start sets for its clients."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from monitor.v1 import frame_pb2, status_pb2
from tests.foreign_client import failure, in_frame, in_header, opened, scaling
from tests.served import PATIENCE, Conversation, Sidecar, eventually

USUAL = """
[metrics]
refresh_seconds = 0.2
[recalibration]
mode = "{mode}"
recalibrator = "{document}"
"""
UNKEPT = '[state]\nfolder = ""\n'


@pytest.fixture
def doubling(tmp_path) -> Path:
    """A recalibrator that doubles deviations."""
    path = tmp_path / "doubling.json"
    path.write_text(scaling(2.0, 2.0), "utf-8")
    return Path(path)


def settings(sidecar: Sidecar) -> Path:
    return Path(sidecar.log).parent / "sidecar.toml"


def reloads(sidecar: Sidecar) -> dict[str, float]:
    found = re.findall(
        r'^calibration_configuration_reloads_total\{outcome="(\w+)"\} (\S+)$',
        sidecar.get("/metrics"),
        re.MULTILINE,
    )
    return {outcome: float(count) for outcome, count in found}


def reload(sidecar: Sidecar, text: str | None, outcome: str) -> status_pb2.GetStatusResponse:
    """Writes another file (None: leaves it as it is), and waits until it was read again."""
    before = reloads(sidecar)[outcome]
    if text is not None:
        settings(sidecar).write_text(text, "utf-8")
    sidecar.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: reloads(sidecar)[outcome] == before + 1), reloads(sidecar)
    found = sidecar.monitor.GetStatus(status_pb2.GetStatusRequest(), timeout=PATIENCE)
    assert isinstance(found, status_pb2.GetStatusResponse)
    return found


def test_a_reload_takes_what_may_change_names_what_waits_and_refuses_what_is_no_file(
    start, doubling
):
    apply, observe = (USUAL.format(mode=mode, document=doubling) for mode in ("apply", "observe"))
    sidecar = start(observe + UNKEPT, "--no-snapshot")
    stream = opened(sidecar, "lidar")
    observed = stream.ask(in_frame(1)).frame.detections[0]
    assert list(observed.covariance) == [4.0, 4.0]
    assert list(observed.shadow_covariance) == [16.0, 16.0]
    # What the command line says outlives a reload: nothing is kept, nothing shed.
    found = reload(sidecar, apply + "[statistics]\nbins = 7\n", "applied")
    assert list(found.waiting_keys) == ["statistics.bins"]
    assert eventually(lambda: sidecar.metric("configuration_waiting_keys") == 1)
    line = "new: recalibration.mode; for a restart: statistics.bins"
    assert line in sidecar.log.read_text("utf-8")
    recalibrated = stream.ask(in_frame(2)).frame.detections[0]
    assert list(recalibrated.covariance) == [16.0, 16.0]
    assert list(reload(sidecar, apply, "unchanged").waiting_keys) == []

    found = reload(sidecar, observe + "[server]\nshed_rows = -1\n", "refused")
    assert "server.shed_rows" in found.configuration_refused
    assert "-1" in found.configuration_refused
    assert "is empty" in reload(sidecar, "", "refused").configuration_refused
    reload(sidecar, "this is no TOML", "refused")
    settings(sidecar).unlink()
    reload(sidecar, None, "refused")
    os.mkfifo(settings(sidecar))
    reload(sidecar, None, "refused")
    settings(sidecar).unlink()
    assert list(stream.ask(in_frame(3)).frame.detections[0].covariance) == [16.0, 16.0]
    assert reload(sidecar, apply, "unchanged").configuration_refused == ""

    for number in range(10, 40):
        sidecar.process.send_signal(signal.SIGHUP)
        assert stream.ask(in_frame(number)).frame.status == frame_pb2.STATUS_RECALIBRATED
    time.sleep(0.3)
    reload(sidecar, apply + "[server]\nmax_messages_per_second = 4.0\n", "applied")
    began = time.monotonic()
    for number in range(50, 59):
        stream.ask(in_frame(number))
    # A second's worth is free, then four a second; a busy computer takes longer, never shorter.
    assert time.monotonic() - began > 0.9
    stream.close()
    sidecar.process.send_signal(signal.SIGTERM)
    while sidecar.process.poll() is None:  # too late, a reload ends nothing
        sidecar.process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert sidecar.process.wait(PATIENCE) == 0


FEW = """
[server]
max_calls = 3
keepalive_seconds = 0.3
keepalive_timeout_seconds = 0.3
"""
VANISHING = """
import sys
from queue import Queue
import grpc
channel = grpc.insecure_channel(sys.argv[1])
grpc.channel_ready_future(channel).result(10)
process = channel.stream_stream("/monitor.v1.PerceptionMonitor/Process")
streams = [process(iter(Queue().get, None)) for _ in range(3)]
print("open", flush=True)
Queue().get()
"""


def answers(sidecar: Sidecar) -> bool:
    try:
        sidecar.calibration()
    except grpc.RpcError:
        return False
    return True


def loopback() -> str:
    """Returns that of IPv6, where this machine has one."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return "127.0.0.1:0"
    return "[::1]:0"


def test_calls_beyond_the_limit_are_refused_and_those_of_a_vanished_client_end(start):
    sidecar = start(FEW, "--grpc-address", loopback(), "--http-address", loopback())
    for _ in range(20):  # asked for too early, a reload ends nothing
        sidecar.process.send_signal(signal.SIGHUP)
    streams = [opened(sidecar, f"call{i}") for i in range(3)]
    refused = Conversation(sidecar.monitor.Process)
    code, text = failure(lambda: refused.ask(in_header("one too many")))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "3 calls are open" in text
    assert "max_calls" in text
    assert sidecar.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1
    for stream in streams:
        stream.ask(in_frame(1))
        stream.close()
    assert eventually(lambda: answers(sidecar))
    command = [sys.executable, "-c", VANISHING, sidecar.grpc]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"open\n"
            assert eventually(lambda: not answers(sidecar))
            # Its machine still acknowledges what arrives, as one behind a dead link would not.
            client.send_signal(signal.SIGSTOP)
            assert eventually(lambda: answers(sidecar))
        finally:
            client.kill()
