"""The notifications to a service manager, over real datagram sockets."""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.sidecar import ServiceManager

PID = 4711
READY = ["READY=1\nSTATUS=ready", "WATCHDOG=1"]


@contextlib.contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """Binds a socket there: a path, or the abstract name behind an @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("\0" + name[1:] if name[0] == "@" else name)
        bound.setblocking(False)
        yield bound
    if name[0] != "@":
        Path(name).unlink()


def heard(bound: socket.socket) -> list[str]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(bound.recv(10_000).decode())
    return found


def told_of(name: str, **others: str) -> ServiceManager:
    return ServiceManager.of({"NOTIFY_SOCKET": name, **others}, PID)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_every_state_is_one_datagram(kind, tmp_path):
    name = str(tmp_path / "notify") if kind == "path" else f"@calibration-test-{os.getpid()}"
    with listening(name) as bound:
        manager = told_of(name)
        manager.ready("grpc 127.0.0.1:50051")
        manager.alive()
        manager.reloading(123_456)
        manager.stopping()
        assert heard(bound) == [
            "READY=1\nSTATUS=grpc 127.0.0.1:50051",
            "WATCHDOG=1",
            "RELOADING=1\nMONOTONIC_USEC=123456\nSTATUS=reloading",
            "STOPPING=1\nSTATUS=stopping",
        ]


@pytest.mark.parametrize("name", [None, "", "/", "@", "relative/path", "vsock:2:1234"])
def test_without_a_socket_nothing_happens(name, caplog):
    variables = {} if name is None else {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"}
    manager = ServiceManager.of(variables, PID)
    assert manager.watchdog_seconds is None
    manager.ready("ready")
    manager.alive()
    manager.stopping()
    assert not caplog.records


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("30000000", None, 15.0),
        ("30000000", str(PID), 15.0),
        ("30000000", "1", None),
        ("30000000", "nobody", None),
        *((text, None, None) for text in ("0", "-5", "soon", "٣", str(2**64 - 1))),
    ],
)
def test_half_of_the_watchdogs_limit_is_the_pace_if_it_watches_us(microseconds, pid, seconds):
    given = {"WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
    manager = told_of("/run/notify", **{name: text for name, text in given.items() if text})
    assert manager.watchdog_seconds == seconds


def test_a_manager_that_is_not_there_is_said_once_and_told_the_newest_state_when_it_comes(
    tmp_path, caplog
):
    name = str(tmp_path / "notify")
    manager = told_of(name)
    with caplog.at_level(logging.WARNING):
        manager.stopping()
        manager.ready("ready")
        manager.alive()
    (record,) = caplog.records
    assert name in record.getMessage()
    assert os.strerror(errno.ENOENT) in record.getMessage()
    with listening(name) as bound:
        manager.alive()
        assert heard(bound) == READY
    manager.alive()
    with listening(name) as bound:  # it begins anew at the same path
        manager.alive()
        assert heard(bound) == ["WATCHDOG=1"]
    told_of("/" + "x" * 200).ready("longer than a path may be")
