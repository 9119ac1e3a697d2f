"""A detector turns overconfident: from its frames to the page that people get, and its end when it
is acknowledged. Sidecar, Prometheus and Alertmanager are real.
"""

import contextlib
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from tests.components import program
from tests.deploy.scraping import (
    ALERT_FILES,
    FOLDER,
    PATIENCE,
    RUNBOOK_BASE,
    Prometheus,
    Started,
    until,
)
from tests.served import Conversation, Sidecar, process_bytes

pytestmark = pytest.mark.components

# What an alert asks Prometheus for must be quoted well.
CAR = 'a "quoted" \\ car'
SPACE = plain_space(("x", "y", "z"), "m")
CONFIG = "[metrics]\nrefresh_seconds = 0.2\n"
# Ten frames a second of twenty tracked cars.
TRACKS, PERIOD_NS = 20, 10**8


class Drive:
    """Sends frames with their truth, one after the other."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.random = np.random.default_rng(17)
        self.sent = 0
        self.stream = Conversation(process_bytes(sidecar.channel))
        self.stream.ask(encode_header(Header("lidar", SPACE, (CAR,))))

    def send(self, frames: int, claimed: float) -> None:
        """Sends errors of variance 1; the detector claims another."""
        ids = np.arange(1, TRACKS + 1, dtype=np.uint64)
        for _ in range(frames):
            self.sent += 1
            mean = self.random.normal(size=(TRACKS, SPACE.k))
            frame = OutgoingFrame(
                self.sent,
                self.sent * PERIOD_NS,
                ids,
                np.zeros(TRACKS, np.int64),
                mean,
                np.full((TRACKS, SPACE.k), claimed),
                truth=mean + self.random.normal(size=(TRACKS, SPACE.k)),
                upstream_track=ids,
            )
            self.stream.ask(encode_frame(frame))


class Alertmanager(Started):
    """Runs that of the example, but without delay."""

    def __init__(self, folder: Path) -> None:
        text = (FOLDER / "alertmanager.yml").read_text("utf-8")
        text = re.sub(r"group_wait: \d+s", "group_wait: 0s", text)
        config = folder / "alertmanager.yml"
        config.write_text(text, "utf-8")
        super().__init__(
            folder / "alertmanager.txt",
            program("prometheus-alertmanager"),
            f"--config.file={config}",
            f"--storage.path={folder / 'alertmanager'}",
            "--cluster.listen-address=",  # alone
        )

    def pages(self) -> list[dict[str, Any]]:
        """Lists what somebody is called for now, of the quoted car."""
        url = f"http://{self.address}/api/v2/alerts"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            alerts = json.load(response)
        paged = [each for each in alerts if {"name": "page"} in each["receivers"]]
        return [each for each in paged if each["labels"]["slice"] == CAR]


def test_a_detector_that_turns_overconfident_pages_somebody_until_they_acknowledge_it(tmp_path):
    (tmp_path / "sidecar").mkdir()
    sidecar = Sidecar(tmp_path / "sidecar", CONFIG)
    with contextlib.ExitStack() as running:
        running.callback(sidecar.end)
        drive = Drive(sidecar)
        alertmanager = Alertmanager(tmp_path)
        running.callback(alertmanager.stop)
        port = int(sidecar.http.rpartition(":")[2])
        prometheus = Prometheus(tmp_path, {"van": port}, ALERT_FILES, [alertmanager.address])
        running.callback(prometheus.stop)
        drive.send(300, claimed=1.0)
        assert alertmanager.pages() == []
        drive.send(150, claimed=0.2)
        (alert,) = until(alertmanager.pages, "a page")
        acknowledged = sidecar.monitor.AcknowledgeDrift(pb.AcknowledgeDriftRequest(actor="anna"))
        until(lambda: not alertmanager.pages(), "the end of the page")
        drive.stream.close()
    assert CAR in {alarm.slice for alarm in acknowledged.acknowledged}
    assert alert["labels"] == {
        "alertname": "CalibrationDriftPage",
        "severity": "page",
        "slice": CAR,
        "instance": "van",
        "job": "calibration_monitor",
    }
    words = alert["annotations"]
    assert words["summary"].startswith(f"Estimates of {CAR} that van forwards are overconfident")
    # √5, as far as 150 frames tell.
    scale = re.fullmatch(
        r"recalibrated, joint: errors are (\S+) times what was predicted", words["cause"]
    )
    assert scale is not None
    assert float(scale[1]) == pytest.approx(5**0.5, rel=0.2)
    assert "calibration-monitor alarms list" in words["runbook"]
    assert words["runbook_url"] == f"{RUNBOOK_BASE}#calibrationdriftpage"
