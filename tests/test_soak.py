"""The soak, for some seconds: it makes its report, and what it bounds holds."""

import re
import subprocess
import sys

import pytest

from tests.served import PATIENCE, ROOT

pytestmark = pytest.mark.campaign

# How late the loop is tells of the machine that the tests run on.
SHORT = ["--minutes", "0.3", "--every", "6", "--detections-per-second", "6000", "--most-lag", "60"]


def test_a_short_soak_makes_its_report_and_nothing_is_beyond_its_bound():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *SHORT, "--tracker", "embedded"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=12 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bounds hold" in done.stdout
    lines = re.findall(r"^ +0\.\d +\d+\.\d +\d+ ", done.stdout, re.MULTILINE)
    assert len(lines) >= 2
    labels = re.search(r"label messages (\d+), answered (\d+), durable (\d+)", done.stdout)
    assert labels is not None
    sent, answered, durable = map(int, labels.groups())
    assert sent == answered == durable > 0
