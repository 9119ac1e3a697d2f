"""A detector turns overconfident: from its frames to the page that people get, and its end when it
is acknowledged. Sidecar, Prometheus and Alertmanager are real.
"""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from tests.components import program
from tests.deploy.scraping import ALERT_FILES, FOLDER, PATIENCE, Prometheus, Started, until
from tests.served import Conversation, Sidecar, process_bytes

pytestmark = pytest.mark.components

# What an alert asks Prometheus for must be quoted well.
CAR = 'a "quoted" \\ car'
SPACE = plain_space(("x", "y", "z"), "m")
CONFIG = "[metrics]\nrefresh_seconds = 0.2\n"
# Ten frames a second of twenty tracked cars.
TRACKS, PERIOD_NS = 20, 10**8
ALERTMANAGER = FOLDER / "alertmanager.yml"


class Webhook:
    """Remembers path and body of all that is posted to it."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def told(self, path: str, status: str) -> dict[str, Any]:
        """Waits for the first message to this path that is firing, or resolved."""

        def found() -> list[dict[str, Any]]:
            return [
                body for to, body in list(self.received) if to == path and body["status"] == status
            ]

        bodies: list[dict[str, Any]] = until(found, f"{status} at {path}")
        return bodies[0]

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join(PATIENCE)
        self.server.server_close()


class Alertmanager(Started):
    """Runs the example, but without delay, and with this webhook."""

    def __init__(self, folder: Path, webhook: Webhook) -> None:
        text = re.sub(r"http://127\.0\.0\.1:\d+", webhook.url, ALERTMANAGER.read_text("utf-8"))
        text = re.sub(r"group_wait: \d+s", "group_wait: 0s", text)
        text = re.sub(r"group_interval: \d+m", "group_interval: 1s", text)
        config = folder / ALERTMANAGER.name
        config.write_text(text, "utf-8")
        super().__init__(
            folder / "alertmanager.txt",
            program("prometheus-alertmanager"),
            f"--config.file={config}",
            f"--storage.path={folder / 'alertmanager'}",
            "--cluster.listen-address=",  # alone
        )


@contextlib.contextmanager
def chain(folder: Path, port: int) -> Iterator[Webhook]:
    """Leads from one target, known as the van, to a webhook, with all alert rules."""
    with contextlib.ExitStack() as running:
        webhook = Webhook()
        running.callback(webhook.stop)
        alertmanager = Alertmanager(folder, webhook)
        running.callback(alertmanager.stop)
        prometheus = Prometheus(folder, {"van": port}, ALERT_FILES, [alertmanager.address])
        running.callback(prometheus.stop)
        yield webhook


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
