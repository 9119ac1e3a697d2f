"""A real sidecar that uploads to a real S3 API on loopback, past a network that fails: what the
bucket holds is what the sidecar has counted, bit for bit.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from monitor.fleet.objects import objects_at
from monitor.fleet.uploads import PENDING
from monitor.statistics.state import StatisticsState
from monitor.store.files import read_body
from monitor.store.statistics_state import parsed
from tests.labelled import converse, exported, header, labelled_frame
from tests.served import Sidecar, eventually
from tests.states import assert_counted

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@dataclass
class Network:
    """Stands between the sidecar and the store.

    trouble  "down": no answer, the connection ends; "full": 507 or 503; "slow"; "stuck": no answer
             ever
    passes   writes that go through before one is held
    early    whether a held write has not reached the store yet
    held     set once one is
    """

    store: str
    trouble: str = ""
    passes: int | None = None
    early: bool = False
    held: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    names: list[str] = field(default_factory=list)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        hold = False
        if request.command == "PUT":
            self.names.append(request.path)
            if self.passes is not None:
                self.passes -= 1
                hold = self.passes < 0
        if self.trouble == "down":
            request.close_connection = True
            return
        if self.trouble == "full":
            self.send(
                request, (507, 503)[len(self.names) % 2], b"<Error><Code>Trouble</Code></Error>"
            )
            return
        if (hold and self.early) or self.trouble == "stuck":
            self.hold(request)
            return
        if self.trouble == "slow":
            self.over.wait(1.0)
        connection = http.client.HTTPConnection(self.store)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        connection.request(request.command, request.path, body, headers)
        found = connection.getresponse()
        content = found.read()
        connection.close()
        if hold:
            self.hold(request)
        else:
            self.send(request, found.status, content, dict(found.getheaders()))

    def hold(self, request: BaseHTTPRequestHandler) -> None:
        self.held.set()
        self.over.wait(60)
        request.close_connection = True

    def send(self, request, code: int, content: bytes, headers: dict[str, str] | None = None):
        request.send_response(code)
        for name, value in (headers or {}).items():
            if name.lower() in ("etag", "last-modified", "content-type"):
                request.send_header(name, value)
        length = (headers or {}).get("Content-Length", "0")
        request.send_header("Content-Length", str(len(content)) if content else length)
        request.end_headers()
        request.wfile.write(content)


@pytest.fixture
def network(monkeypatch) -> Iterator[Network]:
    store = ThreadedMotoServer("127.0.0.1", 0)
    store.start()
    host, port = store.get_host_and_port()
    found = Network(f"{host}:{port}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            found.answer(self)

        def do_GET(self) -> None:
            found.answer(self)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
    connection = http.client.HTTPConnection(found.store)
    # One process has one S3, whatever its ports.
    for method, path in (("POST", "/moto-api/reset"), ("PUT", "/bucket")):
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    yield found
    found.over.set()
    proxy.shutdown()
    proxy.server_close()
    store.stop()


@dataclass
class Vehicle:
    """One folder, and the sidecars that have it one after the other."""

    folder: Path
    sent: int = 0
    runs: int = 0

    def start(self) -> Sidecar:
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        return Sidecar(
            folder,
            f"""
[metrics]
refresh_seconds = 0.1
[state]
folder = "{self.folder}/state"
[fleet]
upload = "s3://bucket/fleet/{{vehicle}}/{{epoch}}/{{sequence}}.state"
vehicle = "car"
every_minutes = 0.005
""",
        )

    def drive(self, sidecar: Sidecar, frames: int = 3) -> None:
        numbers = range(self.sent, self.sent + frames)
        self.sent += frames
        converse(sidecar, header("lidar"), *(labelled_frame(7, n, rows=8) for n in numbers))

    def drive_until(self, sidecar: Sidecar, check: Callable[[], object]) -> None:
        def driven() -> object:
            self.drive(sidecar)
            return check()

        assert eventually(driven, 60), sidecar.log.read_text("utf-8")

    def arrives(self, network: Network) -> StatisticsState:
        """The network is well: a last drive, an orderly end; what the sidecar has counted."""
        network.trouble, network.passes = "", None
        sidecar = self.start()
        try:
            self.drive(sidecar)
            found = exported(sidecar).state
            sidecar.stop()
            assert "Traceback" not in sidecar.log.read_text("utf-8")
        finally:
            sidecar.end()
        assert not (self.folder / "state" / PENDING).exists()
        return found


def in_bucket(folder: Path) -> StatisticsState:
    """Adds up all objects; raises AlreadyHeld where two hold the same upload."""
    objects, states = objects_at("s3://bucket/fleet"), []
    for name in objects.names():
        path = folder / "object"
        path.write_bytes(objects.get(name))
        states.append(parsed(read_body(path)).state)
    found = reduce(StatisticsState.merge, states)
    assert len(found.holds) == len(states)
    return found


@pytest.mark.timeout(240)
def test_while_the_store_is_down_full_slow_or_stuck_nothing_is_lost(tmp_path, network):
    vehicle = Vehicle(tmp_path)
    for trouble in ("down", "full", "stuck", "slow"):
        network.trouble = trouble
        sidecar = vehicle.start()
        try:
            network.names.clear()
            vehicle.drive_until(sidecar, lambda: network.names)
            vehicle.drive(sidecar)
            sidecar.stop(20)  # in order, whatever the store does
            assert "Traceback" not in sidecar.log.read_text("utf-8")
        finally:
            sidecar.end()
        assert (vehicle.folder / "state" / PENDING).exists() == (trouble != "slow")
    counted = vehicle.arrives(network)
    found = in_bucket(tmp_path)
    assert_counted(found, counted)
    assert len(found.holds.spans) == 1
    assert sum(entry.n for entry in counted.slices) == 8 * vehicle.sent


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_killed_twenty_times_between_write_and_acknowledgement_nothing_is_lost_or_doubled(
    tmp_path, network
):
    """Before and behind the store's own write, of an object that is new or sent again."""
    vehicle, held_before = Vehicle(tmp_path), 0
    for number in range(20):
        network.passes, network.early = number // 2 % 3, bool(number % 2)
        network.held.clear()
        sidecar = vehicle.start()
        try:
            vehicle.drive_until(sidecar, network.held.is_set)
            held_before += (vehicle.folder / "state" / PENDING).exists()
            sidecar.process.kill()
        finally:
            sidecar.end()
    assert held_before == 20
    counted = vehicle.arrives(network)
    found = in_bucket(tmp_path)
    assert_counted(found, counted)
    assert len(found.holds.spans) == 1
    assert len(network.names) > len(found.holds) > 10
