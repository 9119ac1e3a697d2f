"""A detector turns overconfident: from its frames to the page that people get, and its end when it
is acknowledged. Sidecar, Prometheus and Alertmanager are real.
"""

import json
import re

import numpy as np
import pytest

from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from tests.deploy.alert_chain import chain
from tests.served import Conversation, Sidecar, process_bytes

pytestmark = pytest.mark.components

# What an alert asks Prometheus for must be quoted well.
CAR = 'a "quoted" \\ car'
SPACE = plain_space(("x", "y", "z"), "m")
CONFIG = "[metrics]\nrefresh_seconds = 0.2\n"
# Ten frames a second of twenty tracked cars.
TRACKS, PERIOD_NS = 20, 10**8


class Drive:
    """Frames with their truth, sent one after the other."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.random = np.random.default_rng(17)
        self.sent = 0
        self.stream = Conversation(process_bytes(sidecar.channel))
        self.stream.ask(encode_header(Header("lidar", SPACE, (CAR,))))

    def send(self, frames: int, claimed: float) -> None:
        """Errors have variance 1; the detector claims another."""
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


@pytest.fixture
def sidecar(tmp_path):
    (tmp_path / "sidecar").mkdir()
    found = Sidecar(tmp_path / "sidecar", CONFIG)
    yield found
    found.end()


def test_a_detector_that_turns_overconfident_pages_somebody_until_they_acknowledge_it(
    tmp_path, sidecar
):
    drive = Drive(sidecar)
    with chain(tmp_path, int(sidecar.http.rpartition(":")[2])) as webhook:
        drive.send(300, claimed=1.0)
        drive.send(150, claimed=0.2)
        told = webhook.told("/page", "firing")
        acknowledged = sidecar.monitor.AcknowledgeDrift(pb.AcknowledgeDriftRequest(actor="anna"))
        over = webhook.told("/page", "resolved")
    drive.stream.close()
    print(json.dumps(told, indent=2, ensure_ascii=False))
    alert, ended = (
        next(alert for alert in message["alerts"] if alert["labels"]["slice"] == CAR)
        for message in (told, over)
    )
    assert (
        alert["labels"]
        == ended["labels"]
        == {
            "alertname": "CalibrationDriftPage",
            "severity": "page",
            "slice": CAR,
            "instance": "van",
            "job": "calibration_monitor",
        }
    )
    words = alert["annotations"]
    assert words["summary"].startswith(f"Covariances of {CAR} that van forwards are too small")
    # √5, as far as 150 frames tell.
    scale = re.fullmatch(r"standard deviations are (\S+) times too small", words["scale"])
    assert scale is not None
    assert float(scale[1]) == pytest.approx(5**0.5, rel=0.2)
    assert "calibration-monitor alarms list" in words["runbook"]
    assert CAR in {alarm.slice for alarm in acknowledged.acknowledged}
