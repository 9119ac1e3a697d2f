"""The HTTP endpoint: /metrics, /healthz, /readyz and a page, read-only, in a thread of its own.

It serves bytes that were made elsewhere and touches no live state.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Published:
    """What the endpoint serves; each attribute is replaced whole."""

    metrics: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    page: bytes = b""
    ready: bool = False


class _Handler(BaseHTTPRequestHandler):
    published: Published
    timeout = 10
    server_version = "calibration-monitor"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        published = self.published
        path = self.path.split("?", 1)[0]
        match path:
            case "/metrics":
                self._send(200, published.metrics, published.content_type)
            case "/healthz":
                self._send(200, b"ok\n")
            case "/readyz":
                ready = published.ready
                self._send(200 if ready else 503, b"ready\n" if ready else b"not ready\n")
            case "/":
                self._send(200, published.page, "text/html; charset=utf-8")
            case _:
                self._send(404, b"there are /metrics, /healthz, /readyz and /\n")

    def _send(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line each."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


@dataclass(slots=True)
class Endpoint:
    """A running HTTP endpoint."""

    published: Published = field(default_factory=Published)
    _server: _Server | None = None

    def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError if the address is not to be had."""
        handler = type("Handler", (_Handler,), {"published": self.published})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        self._server = server((host, port), handler)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
