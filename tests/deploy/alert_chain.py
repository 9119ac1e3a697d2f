"""A real Prometheus, a real Alertmanager and a webhook on the loopback, seconds apart; no tests."""

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.alerting import FILES
from tests.deploy.scraping import PATIENCE, PROMETHEUS, free_port, until

ALERTMANAGER = shutil.which("prometheus-alertmanager")

with_alertmanager = pytest.mark.skipif(
    PROMETHEUS is None or ALERTMANAGER is None,
    reason="prometheus or prometheus-alertmanager (Debian packages) is not installed",
)


class Webhook:
    """Remembers what is posted to it.

    received  path and body of each, in order
    """

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

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join(PATIENCE)
        self.server.server_close()


class Started:
    """A program that serves HTTP, ready."""

    def __init__(self, address: str, log: Path, *command: str) -> None:
        self.address, self.log = address, log
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self.log.open("wb")
        )
        try:
            until(self.ready, f"{command[0]} to be ready")
        except BaseException:
            self.stop()
            raise

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text("utf-8")
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Chain:
    """From one target, known as the van, to the webhook, with all alert rules.

    What is ended in the sidecar is told as over after two seconds, not a quarter of an hour.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.webhook = Webhook()
        self.started: list[Started] = []
        try:
            self.started.append(self._alertmanager(folder))
            self.started.append(self._prometheus(folder, port, self.started[0].address))
        except BaseException:
            self.stop()
            raise

    def _alertmanager(self, folder: Path) -> Started:
        receivers = {
            severity: [{"url": f"{self.webhook.url}/{severity}", "send_resolved": True}]
            for severity in ("page", "ticket", "others")
        }
        settings = {
            "route": {
                "receiver": "others",
                "group_by": ["alertname", "instance"],
                "group_wait": "0s",
                "group_interval": "1s",
                "repeat_interval": "1h",
                "routes": [
                    {"receiver": severity, "matchers": [f'severity="{severity}"']}
                    for severity in ("page", "ticket")
                ],
            },
            "receivers": [
                {"name": name, "webhook_configs": hooks} for name, hooks in receivers.items()
            ],
        }
        # JSON is YAML.
        config = folder / "alertmanager.yml"
        config.write_text(json.dumps(settings), "utf-8")
        address = f"127.0.0.1:{free_port()}"
        assert ALERTMANAGER is not None
        return Started(
            address,
            folder / "alertmanager.txt",
            ALERTMANAGER,
            f"--config.file={config}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",  # alone
        )

    def _prometheus(self, folder: Path, port: int, alertmanager: str) -> Started:
        for path in FILES:
            text = re.sub(r"interval: \d+[sm]", "interval: 1s", path.read_text("utf-8"))
            text = re.sub(r"keep_firing_for: \d+m", "keep_firing_for: 2s", text)
            (folder / path.name).write_text(text, "utf-8")
        van = {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": "van"}}
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [path.name for path in FILES],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [{"job_name": "calibration_monitor", "static_configs": [van]}],
        }
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(settings), "utf-8")
        address = f"127.0.0.1:{free_port()}"
        assert PROMETHEUS is not None
        return Started(
            address,
            folder / "prometheus.txt",
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={address}",
        )

    def told(self, path: str, status: str) -> dict[str, Any]:
        """The first message to this path of this status, firing or resolved; waits for it."""

        def found() -> list[dict[str, Any]]:
            received = list(self.webhook.received)
            return [body for to, body in received if to == path and body["status"] == status]

        bodies: list[dict[str, Any]] = until(found, f"{status} at {path}")
        return bodies[0]

    def stop(self) -> None:
        for each in reversed(self.started):
            each.stop()
        self.webhook.stop()
