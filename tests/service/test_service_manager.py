"""The notifications to a service manager, over real datagram sockets."""

import errno
import logging
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.service.host import ServiceManager

PID = 4711


@pytest.fixture(params=["path", "abstract"])
def listener(request, tmp_path):
    """A bound socket, and what NOTIFY_SOCKET says of it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        if request.param == "path":
            name = str(tmp_path / "notify")
            bound.bind(name)
        else:
            name = f"@calibration-monitor-test-{os.getpid()}"
            bound.bind("\0" + name[1:])
        bound.setblocking(False)
        yield bound, name


def heard(bound: socket.socket) -> list[str]:
    """All datagrams that wait."""
    found = []
    while True:
        try:
            found.append(bound.recv(4096).decode())
        except BlockingIOError:
            return found


def told_of(name: str, **others: str) -> ServiceManager:
    return ServiceManager.of({"NOTIFY_SOCKET": name, **others}, PID)


def filled(name: str) -> socket.socket:
    """A socket that has sent so much there that nobody can send more."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            sender.sendto(b"x", name)
    return sender


def test_every_state_is_one_datagram(listener):
    bound, name = listener
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
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(PID)}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "nobody"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "3 0"}, None),
        ({"WATCHDOG_USEC": "٣"}, None),  # a digit, but not one of ASCII
        ({"WATCHDOG_USEC": str(2**64 - 1)}, None),  # systemd's infinity
    ],
)
def test_half_of_the_watchdogs_limit_is_the_pace_if_it_watches_us(variables, seconds):
    assert told_of("/run/notify", **variables).watchdog_seconds == seconds


def test_a_missing_path_is_said_once_and_told_when_it_is_there(tmp_path, caplog):
    name = str(tmp_path / "notify")
    manager = told_of(name)
    with caplog.at_level(logging.WARNING):
        manager.ready("ready")
        manager.alive()
        manager.alive()
    (record,) = caplog.records
    assert name in record.getMessage()
    assert os.strerror(errno.ENOENT) in record.getMessage()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(name)
        bound.setblocking(False)
        manager.alive()
        assert heard(bound) == ["READY=1\nSTATUS=ready", "WATCHDOG=1"]


def test_of_states_that_were_not_heard_the_newest_alone_is_told_to_a_manager_that_begins_anew(
    tmp_path,
):
    name = str(tmp_path / "notify")
    manager = told_of(name)
    for _ in range(2):
        manager.ready("ready")
        manager.stopping()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
            bound.bind(name)
            bound.setblocking(False)
            manager.alive()
            assert heard(bound) == ["STOPPING=1\nSTATUS=stopping", "WATCHDOG=1"]
        Path(name).unlink()


def test_a_manager_that_does_not_read_holds_nothing_up_and_hears_of_the_state_later(
    tmp_path, caplog
):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(name)
        bound.setblocking(False)
        with filled(name):
            manager = told_of(name)
            manager.ready("ready")
            manager.alive()
            assert len(caplog.records) == 1
            assert "READY=1" not in "".join(heard(bound))
        manager.alive()
        assert heard(bound) == ["READY=1\nSTATUS=ready", "WATCHDOG=1"]


def test_a_path_longer_than_a_socket_may_have_is_no_reason_to_fail(caplog):
    manager = told_of("/" + "x" * 200)
    manager.ready("ready")
    manager.alive()
    assert len(caplog.records) == 1


@given(text=st.text(max_size=3000))
def test_no_text_becomes_an_assignment_or_is_too_long_for_systemd(text):
    name = f"@calibration-monitor-any-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("\0" + name[1:])
        manager = told_of(name)
        manager.ready(text)
        bound.settimeout(5)
        message = bound.recv(10_000)
        assert len(message) <= 4096
        ready, status = message.decode().split("\n")
        assert ready == "READY=1"
        assert status.startswith("STATUS=")
