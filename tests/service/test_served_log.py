"""What a real sidecar says on standard error: in which form, how much, and where it cannot."""

import json
import re
import signal
import subprocess

import pytest

from monitor.frames.frame import Header
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import encode_frame, encode_header
from tests.piped import CLASSES, XYZ
from tests.served import (
    PATIENCE,
    ROOT,
    Conversation,
    Sidecar,
    eventually,
    process_bytes,
    serve_command,
)
from tests.trackers import frame

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
    """Sends frames of which each is answered, though each fails."""
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
