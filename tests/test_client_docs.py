"""docs/degradation.md, tried: its example runs with and without a sidecar, its words exist."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from monitor.commands.sending import running_sidecar
from monitor.config import ServerConfig
from monitor.frames.detections import Reason
from monitor.wire.client_messages import Why

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "degradation.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sidecar():
    with running_sidecar("[metrics]\nrefresh_seconds = 0.1\n") as addresses:
        yield addresses


def run_example(address: str, patience: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    code = code.replace("127.0.0.1:50051", address)
    # The example is about the interface; a busy machine must not fail it.
    code = code.replace("timeout_seconds=0.02", f"timeout_seconds={patience}")
    done = subprocess.run(
        [sys.executable, "-c", code.replace("wait_connected(5)", f"wait_connected({patience})")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_gets_every_frame_answered(sidecar):
    assert run_example(sidecar.grpc, "10") == "10 answered; 0 raw\n"


def test_the_example_without_a_sidecar_goes_on_with_raw_detections():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        printed = run_example(f"127.0.0.1:{taken.getsockname()[1]}", "0.01")
    lines = printed.splitlines()
    assert len(lines) == 11
    assert all("is not recalibrated: down: " in line for line in lines[:-1])
    assert lines[-1] == "0 answered; 10 raw"


def test_every_reason_of_raw_detections_is_in_the_table_and_no_other():
    rows = re.findall(r"^\| `([a-z]+)` \|", TEXT, flags=re.MULTILINE)
    assert rows[1:] == [str(why) for why in Why]


def test_every_metric_reason_and_setting_of_the_page_exists(sidecar):
    with urllib.request.urlopen(f"http://{sidecar.http}/metrics") as response:
        exported = response.read().decode()
    metrics = set(re.findall(r"`calibration_([a-z0-9_]+)`", TEXT))
    assert len(metrics) > 5
    assert metrics <= set(re.findall(r"^# TYPE calibration_(\S+) ", exported, flags=re.MULTILINE))
    reasons = set(re.findall(r"(?:reason|notice) `([A-Z_]+)`", TEXT))
    assert len(reasons) > 3
    assert reasons <= set(Reason.__members__)
    for key in re.findall(r"`(?:\[server\] )?(shed_\w+|stale_\w+|clock_\w+|write_\w+)`", TEXT):
        assert key in ServerConfig.model_fields
    assert "STATUS_REFUSED" in TEXT
