"""What the README says, tried: its client runs, its metrics exist, its files are where it says."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from monitor.commands.sending import Addresses, running_sidecar

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FAST_METRICS = "[metrics]\nrefresh_seconds = 0.1\n"


@pytest.fixture(scope="module")
def sidecar():
    with running_sidecar(FAST_METRICS) as addresses:
        yield addresses


def run_client(sidecar: Addresses) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    code = code.replace("127.0.0.1:50051", sidecar.grpc)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_in_the_readme_gets_its_detection_back_and_a_nees(sidecar):
    printed = run_client(sidecar)
    assert "STATUS_RECALIBRATED" in printed
    # (0.1² / 0.04 + 0.1² / 0.04 + 0.1² / 0.01) / 3
    assert float(printed.splitlines()[-1]) == pytest.approx(0.5)


def test_every_metric_in_the_readme_is_exported(sidecar):
    run_client(sidecar)
    section = README.partition("## Metrics")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}
    with urllib.request.urlopen(f"http://{sidecar.http}/metrics") as response:
        text = response.read().decode()
    exported = set(re.findall(r"^# TYPE calibration_(\S+) ", text, flags=re.MULTILINE))
    assert len(named) > 20
    assert named <= exported
    assert exported - named == set(), "exported, but not in the README"


def test_every_verb_and_every_linked_file_exists():
    verbs = set(re.findall(r"^\| `([a-z]+)[ `]", README, flags=re.MULTILINE))
    from monitor.cli import VERBS

    assert set(VERBS) <= verbs
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
