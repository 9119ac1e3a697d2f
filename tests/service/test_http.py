"""The HTTP endpoint: what it serves, and clients that push, drip, smuggle and stay."""

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from monitor.config import checked
from monitor.pipeline.drift_watch import DriftWatch
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.service import http as endpoint_module
from monitor.service.history import History
from monitor.service.http import LARGEST_REQUEST, Endpoint, Published
from monitor.service.metrics import render
from monitor.service.pages import Pages
from monitor.sidecar import Sidecar
from tests.served import PATIENCE, eventually


class FixedPages(Pages):
    """Stands in for pages: one slice of an odd name."""

    def __init__(self) -> None:
        pass

    def get(self, slice: str | None = None, *, part: bool = False) -> bytes | None:
        found = b"main" if part else b"page"
        return found if slice is None else {"a/b é": b"slice"}.get(slice)


PUBLISHED = Published(metrics=b"m" * 2**20, pages=FixedPages(), ready=True)
NOTHING = b"there are /metrics, /healthz, /readyz, / and /slice/NAME\n"
HEALTH = b"GET /healthz HTTP/1.0\r\n\r\n"


@pytest.fixture
def port(monkeypatch) -> Iterator[int]:
    """An endpoint that takes three connections, and gives each request half a second."""
    monkeypatch.setattr(endpoint_module, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(endpoint_module, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(endpoint_module, "_LOOK_SECONDS", 0.02)
    endpoint = Endpoint(PUBLISHED)
    found = endpoint.start("127.0.0.1", 0)
    yield found
    endpoint.stop()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(2**16):
            found += data
    return found


def answer(port: int, request: bytes) -> bytes:
    with connected(port) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        return read_all(connection)


def test_a_reader_waits_for_a_newer_text_and_takes_the_last_one_if_none_is_made(monkeypatch):
    monkeypatch.setattr(endpoint_module, "_PATIENCE_SECONDS", 0.2)
    published, read = Published(most_age=100.0), list[bytes]()
    published.publish(b"old", FixedPages())
    published.wait_for_newer()
    assert not published.wanted
    published.most_age = 0.0
    published.wait_for_newer()  # the loop stands
    assert published.wanted and published.metrics == b"old"

    monkeypatch.setattr(endpoint_module, "_PATIENCE_SECONDS", PATIENCE)
    published.wanted = False
    reader = threading.Thread(
        target=lambda: (published.wait_for_newer(), read.append(published.metrics))
    )
    reader.start()
    assert eventually(lambda: published.wanted)
    published.publish(b"new", FixedPages())
    reader.join(PATIENCE)
    assert read == [b"new"]


def test_what_nobody_reads_is_not_made_and_the_rest_is_kept_up_all_the_same(monkeypatch):
    rendered = Mock(side_effect=render)
    monkeypatch.setattr(endpoint_module, "render", rendered)
    monkeypatch.setattr(endpoint_module, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(endpoint_module, "WINDOW_SECONDS", 0.1)
    settings = {"state": {"folder": ""}, "metrics": {"refresh_seconds": 0.05}}
    sidecar = Sidecar(checked(settings, "test"))
    kept, folded, history = (
        Mock(wraps=getattr(of, name))
        for of, name in (
            (sidecar.pipeline.drift, "reading"),
            (sidecar.pipeline.live, "catch_up"),
            (sidecar.exporting.history, "add"),
        )
    )
    monkeypatch.setattr(DriftWatch, "reading", kept)
    monkeypatch.setattr(LiveStatistics, "catch_up", folded)
    monkeypatch.setattr(History, "add", history)
    published = sidecar.endpoint.published

    async def watch() -> None:
        keeping = asyncio.create_task(sidecar.exporting.keep_fresh())
        while kept.call_count < 5 or history.call_count < 2:
            await asyncio.sleep(0.01)
        assert rendered.call_count == 0 < folded.call_count
        assert published.most_age == 0.05
        await asyncio.to_thread(published.wait_for_newer)
        assert rendered.call_count == 1
        assert b"calibration_frames_total 0.0" in published.metrics
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        published.wait_for_newer()  # nobody makes one

    asyncio.run(asyncio.wait_for(watch(), PATIENCE))
    assert rendered.call_count == 1
    assert sidecar.pipeline.counters.internal_errors == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "body"),
    [
        ("GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", PUBLISHED.metrics),
        ("GET", "/metrics?name[]=up", 200, "text/plain; version=0.0.4; charset=utf-8", None),
        ("GET", "/healthz", 200, "text/plain; charset=utf-8", b"ok\n"),
        ("GET", "/readyz", 200, "text/plain; charset=utf-8", b"ready\n"),
        ("GET", "/", 200, "text/html; charset=utf-8", b"page"),
        ("GET", "/?main", 200, "text/html; charset=utf-8", b"main"),
        ("HEAD", "/", 200, "text/html; charset=utf-8", b""),
        ("GET", "/slice/a%2Fb%20%C3%A9", 200, "text/html; charset=utf-8", b"slice"),
        ("GET", "/slice/a%252Fb%20%C3%A9", 404, None, b"there is no such slice\n"),
        ("GET", "/nothing", 404, None, NOTHING),
        ("GET", "/../../etc/passwd", 404, None, None),
        *((method, "/metrics", 501, None, None) for method in ("POST", "PUT", "DELETE")),
    ],
)
def test_it_serves_metrics_health_and_a_page_and_refuses_everything_else(
    port, method, path, status, kind, body
):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path)
    found = connection.getresponse()
    said = found.read()
    assert found.status == status
    assert kind is None or found.headers["Content-Type"] == kind
    assert body is None or said == body
    assert b"Traceback" not in said
    assert "Python" not in str(found.headers)
    if status != 501:
        assert found.headers["Cache-Control"] == "no-store"
        assert found.headers["Content-Security-Policy"].startswith("default-src 'none'")
    connection.close()


def test_a_sidecar_that_is_not_ready_says_so_on_the_loopback_of_ipv6_too():
    for host in ("127.0.0.1", "::1"):
        endpoint = Endpoint(Published())
        try:
            connection = http.client.HTTPConnection(host, endpoint.start(host, 0), PATIENCE)
        except OSError:
            assert host == "::1"  # this machine has none
            continue
        connection.request("GET", "/readyz")
        found = connection.getresponse()
        assert (found.status, found.read()) == (503, b"not ready\n")
        connection.close()
        endpoint.stop()


@pytest.mark.parametrize(
    ("silent_s", "status", "said"),
    [(None, 200, b"ok\n"), (30.0, 200, b"ok\n"), (30.1, 503, b"the loop stands\n")],
)
def test_a_loop_that_stands_is_not_healthy(monkeypatch, silent_s, status, said):
    now = 1000.0
    monkeypatch.setattr("monitor.service.http.time.monotonic", lambda: now)
    turned = None if silent_s is None else now - silent_s
    endpoint = Endpoint(Published(ready=True, turned=turned))
    found = answer(endpoint.start("127.0.0.1", 0), HEALTH)
    endpoint.stop()
    assert found.startswith(b"HTTP/1.1 %d " % status)
    assert found.endswith(b"\r\n" + said)


@pytest.mark.parametrize("header", [b"Content-Length: 30", b"Transfer-Encoding: chunked"])
def test_a_body_is_refused_and_never_taken_for_a_request(port, header):
    smuggled = b"GET /metrics HTTP/1.1\r\n\r\n"
    found = answer(port, b"GET /healthz HTTP/1.1\r\n" + header + b"\r\n\r\n" + smuggled)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in found
    assert found.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "rest",
    [
        b"a" * 2 * LARGEST_REQUEST + b" HTTP/1.1\r\n\r\n",
        b" HTTP/1.1\r\nX: " + b"a" * 2 * LARGEST_REQUEST + b"\r\n\r\n",
        b" HTTP/1.1\r\n" + b"X: 12345678901234567890\r\n" * 2000 + b"\r\n",
        b" HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
    ],
)
def test_a_request_that_is_too_large_is_refused(port, rest):
    found = answer(port, b"GET /" + rest)
    assert found == b"" or b" 4" in found.split(b"\r\n")[0]
    assert b"page" not in found
    assert answer(port, HEALTH).endswith(b"ok\n")


def test_a_request_that_drips_is_sent_away_however_steadily(port):
    with connected(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.05)
        for _ in range(1000):
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(b"X")
                    if connection.recv(1) == b"":
                        return
                except ConnectionError:
                    return
    raise AssertionError("it was waited for")


def test_connections_beyond_the_limit_are_closed_and_there_is_room_again_later(port, monkeypatch):
    monkeypatch.setattr(endpoint_module, "REQUEST_SECONDS", 60.0)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(port))
            connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert connection.recv(2**10).startswith(b"HTTP/1.1 200")
        assert answer(port, HEALTH) == b""
    assert eventually(lambda: answer(port, HEALTH)).endswith(b"ok\n")


def test_a_client_that_never_reads_the_answer_is_sent_away(port):
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(port))
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 20)
        assert eventually(lambda: answer(port, HEALTH)).endswith(b"ok\n")
