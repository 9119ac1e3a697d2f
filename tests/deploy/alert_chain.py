"""A real Prometheus, a real Alertmanager and a webhook on the loopback, seconds apart; no tests."""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.components import program
from tests.deploy.alerting import FILES
from tests.deploy.scraping import FOLDER, PATIENCE, Prometheus, Started, until

ALERTMANAGER = FOLDER / "alertmanager.yml"


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

    def told(self, path: str, status: str) -> dict[str, Any]:
        """The first message to this path of this status, firing or resolved; waits for it."""

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
    """As in the example, but without delay, and to this webhook."""

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
    """From one target, known as the van, to a webhook, with all alert rules."""
    with contextlib.ExitStack() as running:
        webhook = Webhook()
        running.callback(webhook.stop)
        alertmanager = Alertmanager(folder, webhook)
        running.callback(alertmanager.stop)
        prometheus = Prometheus(folder, {"van": port}, FILES, [alertmanager.address])
        running.callback(prometheus.stop)
        yield webhook
