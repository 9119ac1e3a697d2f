"""What a real sidecar says on standard error: in which form, how much of it, and where it can't."""

import json
import os
import re
import signal
import subprocess

import pytest

from monitor.frames.frame import Header
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.client_messages import encode_frame, encode_header
from tests.piped import CLASSES, XYZ
from tests.served import (
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


def section(**keys: object) -> str:
    return METRICS + "".join(
        ["[log]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())]
    )


def flooded(sidecar: Sidecar) -> None:
    """Frames of which each is answered, though each fails."""
    stream = Conversation(process_bytes(sidecar.channel))
    stream.ask(encode_header(Header("lidar", XYZ, CLASSES)))
    for number in range(1, FRAMES + 1):
        data = stream.ask(encode_frame(frame(number)))
        found = perception_monitor_pb2.ProcessResponse.FromString(data).frame
        assert found.frame_id == number
        assert {one.reason for one in found.detections} == {frame_pb2.REASON_INTERNAL}
    stream.close()


def events(sidecar: Sidecar) -> list[dict[str, object]]:
    """Every line of standard error is one."""
    return [json.loads(line) for line in sidecar.log.read_bytes().splitlines()]


def test_by_default_it_is_text_and_at_a_hangup_it_becomes_what_the_file_says(tmp_path):
    sidecar = Sidecar(tmp_path, METRICS)
    try:
        with (tmp_path / "sidecar.toml").open("a", encoding="utf-8") as file:
            file.write('[log]\nformat = "json"\n')
        sidecar.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: '"message": "configuration' in sidecar.log.read_text("utf-8"))
        sidecar.stop()
    finally:
        sidecar.end()
    lines = sidecar.log.read_text("utf-8").splitlines()
    text = [line for line in lines if not line.startswith("{")]
    assert text
    assert all(re.match(rf"{STAMP} (INFO|WARNING) monitor\S*: \S", line) for line in text)
    *_, last = [json.loads(line) for line in lines[len(text) :]]
    assert last["message"].startswith("stopped: 0 frames")


def test_a_flood_of_one_fault_leaves_a_few_lines_of_json_that_tell_of_all(tmp_path, failing):
    sidecar = Sidecar(tmp_path, section(format="json", burst=3, lines_a_minute=1, level="debug"))
    try:
        flooded(sidecar)
        assert eventually(lambda: sidecar.metric("internal_errors_total") == FRAMES)
        sidecar.stop()
    finally:
        sidecar.end()
    found = events(sidecar)
    assert all(
        list(event) == ["time", "level", "logger", "template", "message", "left_out", "exception"]
        and re.fullmatch(STAMP, str(event["time"]))
        for event in found
    )
    fault = [event for event in found if "passed through unprocessed" in str(event["template"])]
    passed = [event for event in fault if event["exception"]]
    told = sum(int(str(event["left_out"])) for event in fault)
    assert 3 <= len(passed) < 10
    assert len(passed) + told == FRAMES
    assert "ZeroDivisionError" in str(passed[0]["exception"])
    text = sidecar.log.read_text("utf-8")
    assert "t0k3n" not in text
    assert "Bearer (left out)" in text
    assert len(text) < 100_000


def test_tokens_of_calls_are_in_no_line_even_of_the_lowest_level(tmp_path):
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    security = f'[security]\ndata_token_file = "{file}"\nreload_seconds = 0.1\n'
    settings = section(format="json", level="error") + security
    sidecar = Sidecar(tmp_path, settings, "--log-level", "debug")
    try:
        call = sidecar.channel.unary_unary(f"/{MONITOR}/GetCalibration")
        for token in (TOKEN, f"{TOKEN}-of-another", f"\n{TOKEN}".encode().hex()):
            metadata = (("authorization", f"Bearer {token}"),)
            answer = call.future(b"", metadata=metadata, timeout=PATIENCE)
            assert (answer.exception() is None) == (token == TOKEN)
        new = file.with_suffix(".new")
        new.touch(0o600)
        new.write_text(f"{TOKEN} is not a token\n", encoding="ascii")
        new.replace(file)
        assert eventually(lambda: "Until then" in sidecar.log.read_text("utf-8"))
        sidecar.stop()
    finally:
        sidecar.end()
    # The option goes before the file: there are lines of the lowest level.
    assert {"debug", "info", "warning"} <= {event["level"] for event in events(sidecar)}
    assert "t0k3n" not in sidecar.log.read_text("utf-8")


def test_where_nobody_reads_standard_error_frames_are_answered_and_it_ends(tmp_path, failing):
    os.mkfifo(tmp_path / "stderr.txt")
    pipe = os.open(tmp_path / "stderr.txt", os.O_RDONLY | os.O_NONBLOCK)
    try:
        sidecar = Sidecar(tmp_path, section(lines_a_minute=0))
        try:
            flooded(sidecar)  # of more than a pipe holds
            sidecar.stop()
        finally:
            sidecar.end()
        text = os.read(pipe, 1 << 20).decode()
    finally:
        os.close(pipe)
    # What came until then: an error's words end no line, and its secret is not among them.
    assert len(text) > 1 << 15
    assert "\n    ZeroDivisionError: fell\n    over\\x1b[2J" in text
    assert "\x1b" not in text
    assert "t0k3n" not in text
    assert all(re.match(rf"{STAMP} | {{4}}", line) for line in text.splitlines()[:-1])


def test_where_standard_error_is_full_frames_are_answered_and_lines_counted(tmp_path, failing):
    (tmp_path / "stderr.txt").symlink_to("/dev/full")
    sidecar = Sidecar(tmp_path, section(burst=2))
    try:
        flooded(sidecar)
        assert eventually(lambda: sidecar.metric("log_lines_left_out_total") >= FRAMES)
        sidecar.stop()
    finally:
        sidecar.end()


def test_without_standard_error_it_serves_and_writes_into_no_other_file(tmp_path):
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
