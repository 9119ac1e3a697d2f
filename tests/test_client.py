"""A detector's client and a real sidecar: that works, dies, comes back, stands still, refuses."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from monitor import client as client_module
from monitor.client import Access, MonitorClient
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, Space
from monitor.recalibration.selection import IDENTITY
from monitor.v1 import frame_pb2
from monitor.wire.client_messages import Why
from tests.foreign_client import promote, scaling
from tests.scripted_monitor import HEADER, answered_again, assert_raw, connected, frame
from tests.served import BY_STREAM, PATIENCE, Sidecar, eventually, running

CONFIG = (
    BY_STREAM
    + """
[tracker]
kind = "embedded"
[limits]
max_detections = 6
"""
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """For all tests that leave it running; each promotes what it needs."""
    with running(tmp_path_factory.mktemp("client"), CONFIG) as sidecar:
        yield sidecar


def named(stream: str) -> Header:
    return replace(HEADER, stream=stream)


@pytest.fixture
def free_address():
    """Where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_recalibrated_estimates_come_back_as_arrays(shared):
    promote(shared, document=scaling(2.0, 3.0))
    with connected(shared.grpc, named("recalibrated")) as client:
        result = client.process(frame())
    assert not result.raw
    assert (result.why, result.text) == (None, "")
    np.testing.assert_array_equal(result.mean, frame().mean)
    np.testing.assert_allclose(result.covariance, np.tile([[16.0, 6.0], [6.0, 18.0]], (3, 1, 1)))
    assert (result.status == frame_pb2.STATUS_RECALIBRATED).all()
    assert result.answer is not None
    assert result.answer.versions
    assert (client.counters.answered, client.counters.connections) == (1, 1)
    assert sum(client.counters.raw.values()) == 0


def test_many_frames_of_all_sizes_are_answered_in_turn(shared):
    with connected(shared.grpc, named("many")) as client:
        for number in range(200):
            n = number % 7
            assert client.process(frame(number, n)).status.shape == (n,)
        assert client.counters.answered == 200
    assert client.counters.late == 0


def test_variances_come_back_as_diagonal_matrices(shared):
    promote(shared, version=IDENTITY.version)
    with connected(shared.grpc, named("variances")) as client:
        result = client.process(frame(covariance=np.tile([4.0, 9.0], (3, 1))))
    assert not result.raw
    np.testing.assert_array_equal(result.covariance, np.tile(np.diag([4.0, 9.0]), (3, 1, 1)))


def test_a_detection_that_is_refused_is_as_it_was_given_beside_good_ones(shared):
    given = frame()
    given.mean[1, 0] = np.nan
    given.covariance[2] = [[1.0, 5.0], [7.0, 1.0]]
    promote(shared, version=IDENTITY.version)
    with connected(shared.grpc, named("refused")) as client:
        result = client.process(given)
    assert not result.raw
    assert result.status.tolist() == [1, 3, 3]
    np.testing.assert_array_equal(result.mean, given.mean)
    np.testing.assert_array_equal(result.covariance, given.covariance)


def test_tracks_come_back_where_they_are_asked_for(shared):
    with connected(shared.grpc, replace(named("tracked"), return_tracks=True)) as client:
        assert client.track_dimensions[:2] == ("x", "y")
        results = [client.process(replace(frame(i), stamp_ns=i * 10**8)) for i in range(4)]
    tracks = results[-1].tracks
    assert tracks is not None
    assert tracks.id.size == 3
    assert tracks.state.shape == (3, len(client.track_dimensions))


def test_a_frame_that_the_sidecar_refuses_whole_comes_back_raw_and_the_next_is_answered(shared):
    with connected(shared.grpc, named("too_many")) as client:
        given = frame(1, 7)
        result = client.process(given)
        assert_raw(result, given)
        assert result.why is Why.REFUSED
        assert "max_detections" in result.text
        assert not client.process(frame(2, 6)).raw
    assert client.counters.raw[Why.REFUSED] == client.counters.answered == 1
    assert client.counters.connections == 1


def test_a_header_that_is_refused_says_why_with_every_frame(shared):
    unusable = Header("no spaces allowed", Space((Dimension("x"),)), ("car",))
    with MonitorClient(shared.grpc, unusable, timeout_seconds=PATIENCE) as client:
        given = frame(mean=np.zeros((3, 1)), covariance=np.ones((3, 1, 1)))
        assert eventually(lambda: client.process(given).why is Why.REFUSED)
        result = client.process(given)
        assert_raw(result, given)
        assert "stream" in result.text
        assert not client.connected


def test_without_a_sidecar_detections_come_back_at_once_and_later_recalibrated(
    tmp_path, free_address
):
    with MonitorClient(free_address, HEADER, timeout_seconds=PATIENCE) as client:
        for number in range(200):
            began = time.monotonic()
            result = client.process(frame(number))
            assert_raw(result, frame())
            assert result.why is Why.DOWN
            assert time.monotonic() - began < PATIENCE / 2
        sidecar = Sidecar(tmp_path, BY_STREAM, "--grpc-address", free_address)
        try:
            assert answered_again(client)
            sidecar.stop()
            # It ended in order; that costs no more than if it had never been there.
            assert eventually(lambda: not client.connected)
            result = client.process(frame())
            assert_raw(result, frame())
            assert result.why is Why.DOWN
        finally:
            sidecar.end()
    assert client.counters.raw[Why.DOWN] >= 200


def test_a_sidecar_that_is_killed_and_started_anew_is_used_again_within_few_tries(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    sidecar = Sidecar(folders[0], BY_STREAM)
    try:
        with connected(sidecar.grpc) as client:
            assert not client.process(frame()).raw
            sidecar.process.kill()
            sidecar.process.wait(PATIENCE)
            given = frame()
            assert_raw(client.process(given), given)
            address = sidecar.grpc
            sidecar.end()
            sidecar = Sidecar(folders[1], BY_STREAM, "--grpc-address", address)
            assert answered_again(client)
            assert client.counters.connections == 2
        sidecar.stop()
    finally:
        sidecar.end()


def test_a_sidecar_that_stands_still_costs_its_deadline_a_few_times_and_then_nothing(shared):
    timeout, most = 0.1, 4
    with connected(
        shared.grpc,
        named("still"),
        timeout_seconds=timeout,
        max_in_flight=most,
        hang_seconds=PATIENCE,
    ) as client:
        assert answered_again(client)
        assert eventually(lambda: client._stream is not None and not client._stream.unanswered)
        os.kill(shared.process.pid, signal.SIGSTOP)
        try:
            reasons = []
            for number in range(2, 40):
                given = frame(number)
                began = time.monotonic()
                result = client.process(given)
                assert time.monotonic() - began < 10 * timeout
                assert_raw(result, given)
                reasons.append(result.why)
        finally:
            os.kill(shared.process.pid, signal.SIGCONT)
        assert reasons == [Why.SLOW] * most + [Why.FULL] * (38 - most)
        # Its answers still come, too late, and belong to no frame of now.
        assert answered_again(client)
        assert client.counters.late >= most
        assert client.counters.connections == 1


def test_a_connection_that_hangs_is_given_up_for_a_new_one(shared):
    with connected(shared.grpc, named("hangs"), timeout_seconds=0.05, hang_seconds=0.2) as client:
        assert answered_again(client)
        os.kill(shared.process.pid, signal.SIGSTOP)
        try:
            assert eventually(lambda: client.process(frame(2)).why is Why.DOWN)
        finally:
            os.kill(shared.process.pid, signal.SIGCONT)
        assert answered_again(client)
        assert client.counters.connections >= 2


def test_a_token_file_that_is_slow_to_read_holds_up_no_frame(free_address, tmp_path, monkeypatch):
    reading, go_on, too_late = threading.Event(), threading.Event(), threading.Event()
    token = tmp_path / "token"
    token.write_text("t" * 32, "ascii")
    read = client_module._bytes

    def slow(path: str, option: str) -> bytes:
        reading.set()
        if not go_on.wait(2):
            too_late.set()
        return read(path, option)

    with MonitorClient(free_address, HEADER, access=Access(token_file=str(token))) as client:
        monkeypatch.setattr(client_module, "_bytes", slow)
        assert reading.wait(PATIENCE)
        given = frame()
        result = client.process(given)
        assert not too_late.is_set()
        assert_raw(result, given)
        assert result.why is Why.DOWN
        go_on.set()


def test_waiting_for_a_connection_ends_when_there_is_none(free_address):
    with MonitorClient(free_address, HEADER) as client:
        assert not client.wait_connected(0.01)
