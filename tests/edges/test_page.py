"""The HTTP endpoint against clients that push, drip, smuggle and stay."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from monitor.service import http
from monitor.service.http import Endpoint, Published
from tests.served import PATIENCE, eventually


@pytest.fixture
def port(monkeypatch) -> Iterator[int]:
    """Of an endpoint that takes three connections, and gives each request half a second."""
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(http, "_LOOK_SECONDS", 0.02)
    endpoint = Endpoint(Published(metrics=b"m" * 2**20, page=b"page", ready=True))
    found = endpoint.start("127.0.0.1", 0)
    yield found
    endpoint.stop()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def read_all(connection: socket.socket) -> bytes:
    """Until the endpoint closes."""
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


def test_several_requests_may_follow_each_other_on_a_connection(port):
    requests = (
        b"GET /healthz HTTP/1.1\r\n\r\n" * 3 + b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    found = answer(port, requests)
    assert found.count(b"HTTP/1.1 200 OK") == 4
    assert found.count(b"\r\nok\n") == 3
    assert b"page" not in found


@pytest.mark.parametrize("header", [b"Content-Length: 30", b"Transfer-Encoding: chunked"])
def test_a_body_is_refused_and_never_taken_for_a_request(port, header):
    smuggled = b"GET /metrics HTTP/1.1\r\n\r\n"
    found = answer(port, b"GET /healthz HTTP/1.1\r\n" + header + b"\r\n\r\n" + smuggled)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in found
    assert found.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 2 * http.LARGEST_REQUEST + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 2 * http.LARGEST_REQUEST + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: 12345678901234567890\r\n" * 2000 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
    ],
)
def test_a_request_that_is_too_large_is_refused(port, request_bytes):
    found = answer(port, request_bytes)
    assert found == b"" or b" 4" in found.split(b"\r\n")[0]
    assert b"page" not in found
    assert answer(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nX: "])
def test_a_request_that_is_never_finished_is_not_awaited(port, sent):
    with connected(port) as connection:
        connection.sendall(sent)
        assert b"page" not in read_all(connection)


def test_a_request_that_drips_is_sent_away_however_steadily(port):
    with connected(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.05)
        for _ in range(1000):
            try:
                connection.sendall(b"X: 1\r\n"[:1])
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it was waited for")


def test_connections_beyond_the_limit_are_closed_and_there_is_room_again_later(port, monkeypatch):
    monkeypatch.setattr(http, "REQUEST_SECONDS", 60.0)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(port))
            connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert connection.recv(2**10).startswith(b"HTTP/1.1 200")
        assert answer(port, b"GET /healthz HTTP/1.0\r\n\r\n") == b""
    assert eventually(lambda: answer(port, b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"ok\n")


def test_who_never_reads_the_answer_is_sent_away(port):
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(port))
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 20)
        assert eventually(lambda: answer(port, b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"ok\n")


@pytest.mark.parametrize(
    ("silent_s", "status", "said"),
    [(None, 200, b"ok\n"), (29.0, 200, b"ok\n"), (31.0, 503, b"the loop stands\n")],
)
def test_a_loop_that_stands_is_not_healthy(monkeypatch, silent_s, status, said):
    now = 1000.0
    monkeypatch.setattr("monitor.service.http.time.monotonic", lambda: now)
    turned = None if silent_s is None else now - silent_s
    endpoint = Endpoint(Published(ready=True, turned=turned))
    found = answer(endpoint.start("127.0.0.1", 0), b"GET /healthz HTTP/1.0\r\n\r\n")
    endpoint.stop()
    assert found.startswith(b"HTTP/1.1 %d " % status)
    assert found.endswith(b"\r\n" + said)
