"""A detector's client: recalibrated in time or its own detections, whatever the sidecar does."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from monitor.client import Access, MonitorClient
from monitor.frames.detections import Reason
from monitor.frames.frame import Header
from monitor.frames.space import Space
from monitor.recalibration.estimated.covariates import Layout
from monitor.recalibration.estimated.residual import ResidualCovariance
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import Selection
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import Why
from tests.foreign_client import promote, scaling
from tests.scripted_monitor import (
    HEADER,
    accepted,
    answered_again,
    assert_raw,
    connected,
    covariances,
    doubled,
    frame,
    in_bytes,
    serving,
    well,
)
from tests.served import BY_STREAM, PATIENCE, Sidecar, eventually, running

_LEVEL = tuple(np.log([0.25, 4.0]).tolist())
_PLAIN = ((1.0, 0.0), (0.0, 1.0))
ESTIMATED = Selection(
    ("x", "y"),
    Identity(),
    {
        "no covariance": ResidualCovariance(
            2, Layout(), (0.0,), (0.0,), (_LEVEL, _LEVEL), (_PLAIN, _PLAIN)
        )
    },
).to_json()
CONFIG = BY_STREAM + '[tracker]\nkind = "embedded"\n[limits]\nmax_detections = 6\n'


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """One for all tests that leave it running; each promotes what it needs."""
    with running(tmp_path_factory.mktemp("client"), CONFIG) as started:
        yield started


def named(stream: str) -> Header:
    return replace(HEADER, stream=stream)


@pytest.fixture
def free_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_recalibrated_estimates_and_tracks_come_back_and_what_is_refused_as_it_was(sidecar):
    promote(sidecar, document=scaling(2.0, 3.0))
    with connected(sidecar.grpc, replace(named("tracked"), return_tracks=True)) as client:
        assert client.track_dimensions[:2] == ("x", "y")
        results = [client.process(replace(frame(i), stamp_ns=i * 10**8)) for i in range(4)]
        result = results[-1]
        assert (result.raw, result.why, result.text) == (False, None, "")
        np.testing.assert_array_equal(result.mean, frame().mean)
        expected = np.tile([[16.0, 6.0], [6.0, 18.0]], (3, 1, 1))
        np.testing.assert_allclose(result.covariance, expected)
        assert (result.status == frame_pb2.STATUS_RECALIBRATED).all()
        assert result.answer is not None and result.answer.versions
        assert result.tracks is not None and result.tracks.id.size == 3
        assert result.tracks.state.shape == (3, len(client.track_dimensions))
        assert client.process(frame(5, 0)).status.shape == (0,)
        given = frame(61)
        given.mean[1, 0] = np.nan
        covariances(given)[2] = [[1.0, 5.0], [7.0, 1.0]]
        result = client.process(given)
        assert (result.raw, result.status.tolist()) == (False, [1, 3, 3])
        np.testing.assert_array_equal(result.mean, given.mean)
        np.testing.assert_array_equal(result.covariance[1:], covariances(given)[1:])
        given = frame(62, 7)
        result = client.process(given)
        assert_raw(result, given)
        assert result.why is Why.REFUSED
        assert "max_detections" in result.text
        assert not client.process(frame(63, 6)).raw
    assert client.counters.raw[Why.REFUSED] == client.counters.connections == 1
    assert (client.counters.answered, client.counters.late) == (7, 0)


def test_a_detector_without_covariances_gets_those_that_are_estimated_and_until_then_nan(sidecar):
    bare = replace(frame(1), covariance=None)
    with connected(sidecar.grpc, named("bare")) as client:
        result = client.process(bare)
        assert (result.raw, set(result.reason.tolist())) == (False, {Reason.MISSING_COVARIANCE})
        assert "from which one is learned" in result.text
        assert np.isnan(result.covariance).all()
        np.testing.assert_array_equal(result.mean, bare.mean)
        promote(sidecar, document=ESTIMATED)
        some = frame(2)
        covariances(some)[1] = 0.0
        result = client.process(some)
        assert result.reason.tolist() == [1, Reason.COVARIANCE_ESTIMATED, 1]
        np.testing.assert_allclose(result.covariance[1], np.diag([0.25, 4.0]))
        result = client.process(replace(frame(3), covariance=None))
        assert (result.status == frame_pb2.STATUS_RECALIBRATED).all()
        np.testing.assert_allclose(result.covariance, np.tile(np.diag([0.25, 4.0]), (3, 1, 1)))
        assert result.answer is not None
        assert set(result.answer.output.tolist()) == {frame_pb2.OUTPUT_ESTIMATED}


def test_a_sidecar_that_stands_still_costs_its_deadline_a_few_times_and_then_nothing(sidecar):
    timeout, most = 0.1, 4
    options = {"timeout_seconds": timeout, "max_in_flight": most, "hang_seconds": PATIENCE}
    with (
        connected(sidecar.grpc, named("still"), **options) as client,
        connected(sidecar.grpc, named("hangs"), timeout_seconds=0.05, hang_seconds=0.2) as other,
    ):
        assert answered_again(client)
        assert answered_again(other)
        assert eventually(lambda: client._stream is not None and not client._stream.unanswered)
        os.kill(sidecar.process.pid, signal.SIGSTOP)
        try:
            reasons = []
            for number in range(2, 40):
                given, began = frame(number), time.monotonic()
                result = client.process(given)
                assert time.monotonic() - began < 10 * timeout
                assert_raw(result, given)
                reasons.append(result.why)
            # The other gives its connection up for a new one.
            assert eventually(lambda: other.process(frame(2)).why is Why.DOWN)
        finally:
            os.kill(sidecar.process.pid, signal.SIGCONT)
        assert reasons == [Why.SLOW] * most + [Why.FULL] * (38 - most)
        # Its answers still come, too late, and belong to no frame of now.
        assert answered_again(client)
        assert client.counters.late >= most
        assert client.counters.connections == 1
        assert answered_again(other)
        assert other.counters.connections >= 2


def test_without_a_sidecar_detections_come_back_at_once_and_later_recalibrated(
    tmp_path, free_address
):
    with MonitorClient(free_address, HEADER, timeout_seconds=PATIENCE) as client:
        assert not client.wait_connected(0.01)
        for number in range(200):
            began = time.monotonic()
            result = client.process(frame(number))
            assert_raw(result, frame())
            assert result.why is Why.DOWN
            assert time.monotonic() - began < PATIENCE / 2
        for end in ("killed", "stopped"):
            (tmp_path / end).mkdir()
            sidecar = Sidecar(tmp_path / end, BY_STREAM, "--grpc-address", free_address)
            try:
                assert answered_again(client)
                if end == "stopped":
                    sidecar.stop()
            finally:
                sidecar.end()
            assert eventually(lambda: client.process(frame()).why is Why.DOWN)
        assert client.counters.connections == 2


def changing(index, request, change) -> bytes:
    answer = doubled(index, request)
    change(answer)
    return in_bytes(answer)


def all_internal(answer) -> None:
    for detection in answer.detections:
        detection.status = frame_pb2.STATUS_PASSED_THROUGH
        detection.reason = frame_pb2.REASON_INTERNAL


def refused(index, reason) -> bytes:
    answer = frame_pb2.FrameResult(
        message_index=index, status=frame_pb2.STATUS_REFUSED, reason=reason
    )
    answer.notices.add(reason=reason, field="message", message="no.")
    return in_bytes(answer)


CHANGES = [
    (lambda answer: answer.detections.pop(), Why.MALFORMED),
    (lambda answer: answer.detections[1].ClearField("covariance"), Why.MALFORMED),
    (lambda answer: answer.detections[2].mean.__setitem__(0, np.inf), Why.MALFORMED),
    (lambda answer: setattr(answer, "message_index", answer.message_index + 1), Why.MALFORMED),
    (lambda answer: setattr(answer, "message_index", answer.message_index - 1), Why.MALFORMED),
    (all_internal, Why.INTERNAL),
]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        *(((lambda i, r, c=change: changing(i, r, c)), why) for change, why in CHANGES),
        (lambda *_: b"\xff" * 40, Why.MALFORMED),
        (lambda index, request: next(accepted(index, request)), Why.MALFORMED),
        (lambda index, _: refused(index, frame_pb2.REASON_TOO_LARGE), Why.REFUSED),
        (lambda index, _: refused(index, frame_pb2.REASON_INTERNAL), Why.INTERNAL),
    ],
)
def test_an_answer_that_cannot_be_used_gives_raw_detections_and_the_next_is_used(wrong, why):
    left = [wrong]

    def script(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        if request.HasField("header") or not left:
            return well(index, request)
        return iter([left.pop()(index, request)])

    with serving(script) as address, connected(address) as client:
        given = frame()
        result = client.process(given)
        assert_raw(result, given)
        assert result.why is why
        assert answered_again(client)
        np.testing.assert_array_equal(client.process(frame()).covariance, 2 * covariances(frame()))


@pytest.fixture
def slow():
    go_on = threading.Event()

    def script(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        if index == 1:
            go_on.wait(PATIENCE)
        return well(index, request)

    return script, go_on


def test_an_answer_that_comes_too_late_is_never_taken_for_that_of_another_frame(slow):
    script, go_on = slow
    with serving(script) as address, connected(address, timeout_seconds=0.02) as client:
        first = frame(1)
        result = client.process(first)
        assert_raw(result, first)
        assert result.why is Why.SLOW
        client._timeout = PATIENCE
        threading.Timer(0.05, go_on.set).start()
        second = frame(2, mean=np.full((3, 2), 7.0))
        np.testing.assert_array_equal(client.process(second).mean, second.mean)
        assert (client.counters.late, client.counters.answered) == (1, 1)
        assert client.counters.connections == 1


def test_another_thread_waits_no_longer_than_its_deadline(slow):
    script, go_on = slow
    with serving(script) as address, connected(address) as client:
        first = threading.Thread(target=client.process, args=(frame(1),))
        first.start()
        assert eventually(client._turn.locked)
        client._timeout = 0.01
        given = frame(2)
        result = client.process(given)
        assert_raw(result, given)
        assert result.why is Why.BUSY
        go_on.set()
        first.join(PATIENCE)
    assert client.counters.answered == 1


def test_a_closed_client_ends_its_thread_and_is_refused_as_a_mistake_of_ours():
    with serving(well) as address, connected(address) as client:
        pass
    assert not client._thread.is_alive()
    with pytest.raises(ValueError, match="closed"):
        client.process(frame())
    client.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("address", ""),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", float("nan")),
        ("max_in_flight", 0),
        ("hang_seconds", -1.0),
        ("header", replace(HEADER, space=Space(()))),
        ("access", Access("/nowhere/access.pem")),
        ("access", Access(token_file="/nowhere/access")),
    ],
)
def test_a_client_that_makes_no_sense_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        MonitorClient(**{"address": "127.0.0.1:1", "header": HEADER} | {name: value})
