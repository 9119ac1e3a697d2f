"""A real sidecar at its end, at a reload, at its limits, and what it says on standard error."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from monitor.frames.frame import Header
from monitor.v1 import frame_pb2, status_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import encode_frame, encode_header
from tests.foreign_client import failure, in_frame, in_header, labels, opened, promote, scaling
from tests.piped import CLASSES, XYZ
from tests.served import (
    BY_STREAM,
    MONITOR,
    PATIENCE,
    ROOT,
    Conversation,
    Sidecar,
    eventually,
    process_bytes,
    serve_command,
)
from tests.trackers import frame

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Pusher(threading.Thread):
    """A stream that sends as fast as it can, with a few frames ahead of their answers."""

    AHEAD = 8

    def __init__(self, sidecar, name) -> None:
        super().__init__(daemon=True)
        self.stream = opened(sidecar, name)
        self.sent = self.acknowledged = 0
        self.code: grpc.StatusCode | None = None

    def run(self) -> None:
        try:
            for number in range(1_000_000):
                self.sent += 1
                self.stream.send(in_frame(number, n=20))
                if number >= self.AHEAD:
                    assert len(self.stream.receive().frame.detections) == 20
                    self.acknowledged += 1
        except (grpc.RpcError, StopIteration):
            pass
        self.code = self.stream.call.code()
        self.stream.send(None)


def test_sigterm_under_load_is_told_to_who_watches_and_loses_no_acknowledged_frame(start):
    sidecar = start(BY_STREAM + "[server]\ngrace_seconds = 5\n")
    events = sidecar.monitor.WatchEvents(pb.WatchEventsRequest(), timeout=3 * PATIENCE)
    first = next(events).event
    assert first.health.serving
    assert abs(first.time.ToNanoseconds() / 1e9 - time.time()) < PATIENCE
    healths = [
        sidecar.health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=3 * PATIENCE)
        for service in ("", MONITOR)
    ]
    assert [next(watch).status for watch in healths] == [SERVING, SERVING]
    answer = promote(sidecar, document=scaling(2.0, 3.0))
    second = next(events).event
    assert second.sequence == first.sequence + 1
    assert (second.version.before, second.version.after) == (answer.before, answer.after)
    assert second.version.actor == "test"
    idle, truth = opened(sidecar, "idle"), Conversation(sidecar.monitor.ReportGroundTruth)
    truth.ask(labels("nobody", 1, [0]))
    pushers = [Pusher(sidecar, f"pusher_{i}") for i in range(4)]
    for pusher in pushers:
        pusher.start()
    assert eventually(lambda: min(pusher.acknowledged for pusher in pushers) > 50)
    assert sidecar.stop() < 5
    for pusher in pushers:
        pusher.join(PATIENCE)
        assert not pusher.is_alive()
        assert pusher.code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    frames, detections, labelled = sidecar.stopped()
    acknowledged = sum(pusher.acknowledged for pusher in pushers)
    assert acknowledged <= frames <= sum(pusher.sent for pusher in pushers)
    assert detections == labelled == 20 * frames
    for stream in (idle, truth):
        with pytest.raises(StopIteration):
            stream.receive()
        assert stream.call.code() is grpc.StatusCode.OK
    assert [next(watch).status for watch in healths] == [NOT_SERVING, NOT_SERVING]
    third = next(events).event
    assert third.sequence == second.sequence + 1
    assert not third.health.serving
    with pytest.raises(StopIteration):
        next(events)


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
keepalive_timeout_seconds = 2
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


def test_calls_beyond_the_limit_are_refused_and_those_of_a_vanished_client_end(start):
    sidecar = start(FEW)
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


METRICS = "[metrics]\nrefresh_seconds = 0.2\n"
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
FRAMES = 200
TOKEN = "t0k3n-of-a-detector-" * 2
# A sitecustomize: each frame fails, in words with line breaks and with a secret.
_AT_PROCESSING = f"""
import sys

class AsItProcesses:
    def find_spec(self, name, path=None, target=None):
        if name == "monitor.sidecar":
            from monitor.pipeline.frame_path import Pipeline

            def fail(*_):
                raise ZeroDivisionError("fell\\nover\\x1b[2J (authorization, Bearer {TOKEN})")

            Pipeline._process = fail
        return None

sys.meta_path.insert(0, AsItProcesses())
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """In every sidecar that is started, each frame fails."""
    seam = tmp_path / "seam"
    seam.mkdir()
    (seam / "sitecustomize.py").write_text(_AT_PROCESSING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(seam))


def flooded(sidecar: Sidecar) -> None:
    stream = Conversation(process_bytes(sidecar.channel))
    stream.ask(encode_header(Header("lidar", XYZ, CLASSES)))
    for number in range(1, FRAMES + 1):
        data = stream.ask(encode_frame(frame(number)))
        found = pb.ProcessResponse.FromString(data).frame
        assert found.frame_id == number
        assert {one.reason for one in found.detections} == {frame_pb2.REASON_INTERNAL}
    stream.close()


def test_a_flood_of_one_fault_leaves_a_few_lines_that_tell_of_all_and_no_secret(tmp_path, failing):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"{TOKEN}\n", encoding="ascii")
    security = f'[security]\ntruth_token_file = "{tokens}"\nreload_seconds = 0.1\n'
    limits = "[log]\nburst = 3\nlines_a_minute = 1\n"
    sidecar = Sidecar(tmp_path, METRICS + security + limits, "--log-level", "debug")
    try:
        call = sidecar.channel.unary_unary("/monitor.v1.PerceptionMonitor/ReportGroundTruth")
        metadata = (("authorization", f"Bearer {TOKEN}-of-another"),)
        assert call.future(b"", metadata=metadata, timeout=PATIENCE).exception() is not None
        with (tmp_path / "sidecar.toml").open("r+", encoding="utf-8") as file:
            file.write(METRICS + security + limits + 'format = "json"\n[state]\nfolder = ""\n')
        sidecar.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: '"message": "configuration' in sidecar.log.read_text("utf-8"))
        flooded(sidecar)
        assert eventually(lambda: sidecar.metric("internal_errors_total") == FRAMES)
        tokens.write_text(f"{TOKEN} is not a token\n", encoding="ascii")
        assert eventually(lambda: "Until then" in sidecar.log.read_text("utf-8"))
        sidecar.stop()
    finally:
        sidecar.end()
    said = sidecar.log.read_text("utf-8")
    lines = said.splitlines()
    # By default it is text, and since the hangup what the file says.
    text = [line for line in lines if not line.startswith("{")]
    assert text
    assert all(re.match(rf"{STAMP} (DEBUG|INFO|WARNING) \w\S*: \S", line) for line in text)
    found = [json.loads(line) for line in lines[len(text) :]]
    keys = ["time", "level", "logger", "template", "message", "left_out", "exception"]
    assert all(list(one) == keys and re.fullmatch(STAMP, one["time"]) for one in found)
    assert {"debug", "info", "warning", "error"} >= {one["level"] for one in found}
    assert any(one["message"].startswith(f"stopped: {FRAMES} frames") for one in found)
    fault = [one for one in found if "passed through unprocessed" in one["template"]]
    passed = [one for one in fault if one["exception"]]
    assert 3 <= len(passed) < 10
    assert len(passed) + sum(one["left_out"] for one in fault) == FRAMES
    assert "ZeroDivisionError" in passed[0]["exception"]
    assert "t0k3n" not in said
    assert "Bearer (left out)" in said
    assert len(said) < 100_000


def test_without_standard_error_it_serves_and_writes_into_no_other_file():
    command = serve_command("--no-snapshot", "--exit-with-parent")
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    output, _ = process.communicate(timeout=6 * PATIENCE)
    assert process.returncode == 0
    assert re.fullmatch(rb"listening \{[^\n]*\}\n", output)
