"""A detector's client and servers that answer wrongly, late, or not at all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.client import MonitorClient
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import Unusable, Why, as_given, checked, index_of, read_answer
from tests.scripted_monitor import (
    HEADER,
    accepted,
    answered_again,
    assert_raw,
    connected,
    doubled,
    frame,
    in_bytes,
    serving,
    well,
)
from tests.served import PATIENCE, eventually


def wrong_once(change):
    """Answers well, but for the first frame of the first stream."""
    wrong = [True]

    def script(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        if request.HasField("header") or not wrong:
            return well(index, request)
        wrong.clear()
        return iter([change(index, request)])

    return script


def without(n: int):
    def change(index, request):
        answer = doubled(index, request)
        del answer.detections[:n]
        return in_bytes(answer)

    return change


def with_index(offset: int):
    def change(index, request):
        answer = doubled(index, request)
        answer.message_index += offset
        return in_bytes(answer)

    return change


def without_covariance(index, request):
    answer = doubled(index, request)
    answer.detections[1].ClearField("covariance")
    return in_bytes(answer)


def not_finite(index, request):
    answer = doubled(index, request)
    answer.detections[2].mean[0] = np.inf
    return in_bytes(answer)


def refused(reason):
    def change(index, request):
        answer = frame_pb2.FrameResult(
            message_index=index, status=frame_pb2.STATUS_REFUSED, reason=reason
        )
        answer.notices.add(reason=reason, field="message", message="no.")
        return in_bytes(answer)

    return change


def all_internal(index, request):
    answer = doubled(index, request)
    for detection in answer.detections:
        detection.status = frame_pb2.STATUS_PASSED_THROUGH
        detection.reason = frame_pb2.REASON_INTERNAL
    return in_bytes(answer)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without(1), Why.MALFORMED),
        (without(3), Why.MALFORMED),
        (without_covariance, Why.MALFORMED),
        (not_finite, Why.MALFORMED),
        (with_index(1), Why.MALFORMED),
        (with_index(-1), Why.MALFORMED),
        (lambda *_: b"", Why.MALFORMED),
        (lambda *_: b"\xff" * 40, Why.MALFORMED),
        (lambda *_: b"\x12\x05\x19\x01", Why.MALFORMED),
        (lambda index, request: next(accepted(index, request)), Why.MALFORMED),
        (refused(frame_pb2.REASON_TOO_LARGE), Why.REFUSED),
        (refused(frame_pb2.REASON_INTERNAL), Why.INTERNAL),
        (all_internal, Why.INTERNAL),
    ],
)
def test_an_answer_that_cannot_be_used_gives_raw_detections_and_the_next_is_used(change, why):
    with serving(wrong_once(change)) as address, connected(address) as client:
        given = frame()
        result = client.process(given)
        assert_raw(result, given)
        assert result.why is why
        assert answered_again(client)
        np.testing.assert_array_equal(client.process(frame()).covariance, 2 * frame().covariance)


def test_an_answer_that_comes_too_late_is_never_taken_for_that_of_another_frame():
    go_on = threading.Event()

    def slow(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        if index == 1:
            go_on.wait(PATIENCE)
        return well(index, request)

    with serving(slow) as address, connected(address, timeout_seconds=0.02) as client:
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


def test_another_thread_waits_no_longer_than_its_deadline():
    go_on = threading.Event()

    def slow(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        if index == 1:
            go_on.wait(PATIENCE)
        return well(index, request)

    with serving(slow) as address, connected(address) as client:
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


def test_a_stream_that_ends_after_every_frame_is_opened_again_and_again():
    def ends(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        if index == 2:
            raise RuntimeError("the script is over")
        return well(index, request)

    with serving(ends) as address, connected(address) as client:
        for times in range(1, 4):
            assert answered_again(client)
            given = frame()
            assert_raw(client.process(given), given)
            assert client.counters.connections >= times


def test_what_is_said_of_a_lost_stream_holds_up_no_frame():
    said: list[tuple[str, bool, bool]] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ours = threading.current_thread() is threading.main_thread()
            # Its typing leaves out what only those ask who wait for it.
            locked = client._change._is_owned()  # type: ignore[attr-defined]
            said.append((record.getMessage(), ours, locked))

    def mute(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
        return accepted(index, request) if request.HasField("header") else iter(())

    log, handler = logging.getLogger("monitor.client"), Listening()
    with (
        serving(mute) as address,
        connected(address, hang_seconds=0.05, timeout_seconds=0.01) as client,
    ):
        log.addHandler(handler)
        try:
            assert eventually(lambda: client.process(frame()).why is Why.DOWN)
            assert eventually(lambda: any("go raw: no answer" in text for text, *_ in said))
        finally:
            log.removeHandler(handler)
    assert not any(ours or locked for _, ours, locked in said)


def test_a_closed_client_ends_its_thread_and_is_refused_as_a_mistake_of_ours():
    with serving(well) as address, connected(address) as client:
        pass
    assert not client._thread.is_alive()
    with pytest.raises(ValueError, match="closed"):
        client.process(frame())
    client.close()


# ---- mistakes of the programmer


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mean": np.zeros((3, 3))}, "mean"),
        ({"mean": np.zeros(6)}, "mean"),
        ({"mean": [["a", "b"]] * 3}, "mean"),
        ({"covariance": np.zeros((3, 3))}, "covariance"),
        ({"covariance": np.zeros((2, 2, 2))}, "covariance"),
        ({"id": np.array([0, 1, -1])}, "id"),
        ({"id": np.array([0.0, 1.0, 2.0])}, "id"),
        ({"id": np.zeros((3, 1), int)}, "id"),
        ({"class_index": np.zeros(2, int)}, "class_index"),
        ({"class_index": np.full(3, -1)}, "class_index"),
        ({"score": np.zeros(2)}, "score"),
        ({"truth": np.zeros((4, 2))}, "truth"),
        ({"frame_id": -1}, "frame_id"),
        ({"frame_id": 2**64}, "frame_id"),
        ({"stamp_ns": 2**63}, "stamp_ns"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused_by_name(changes, field):
    number = changes.pop("frame_id", 1)
    stamp = changes.pop("stamp_ns", None)
    given = frame(number, **changes)
    if stamp is not None:
        object.__setattr__(given, "stamp_ns", stamp)
    else:
        object.__setattr__(given, "stamp_ns", 1)
    with pytest.raises(ValueError, match=f"^{field}: "):
        checked(given, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": ""},
        {"timeout_seconds": 0.0},
        {"timeout_seconds": float("nan")},
        {"max_in_flight": 0},
        {"hang_seconds": -1.0},
    ],
)
def test_a_client_that_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MonitorClient(**({"address": "127.0.0.1:1", "header": HEADER} | wrong))


# ---- the bytes of an answer


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_no_bytes_break_the_reading_of_an_answer(data):
    given_frame = checked(frame(), 2)
    for read in (index_of, lambda data: read_answer(data, given_frame)):
        try:
            read(data)
        except Unusable as error:
            assert str(error)


@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_the_index_of_an_answer_is_found_without_reading_the_rest(index, stamp, n):
    result = frame_pb2.FrameResult(frame_id=5, stamp_ns=stamp, message_index=index)
    result.notices.add(field="x", message="y")
    result.detections.extend(frame_pb2.DetectionResult(id=i, mean=[1.0]) for i in range(n))
    assert index_of(in_bytes(result)) == index
    assert index_of(pb.ProcessResponse(header=pb.HeaderResult()).SerializeToString()) is None


def test_raw_variances_are_diagonal_matrices():
    given_frame = checked(frame(covariance=np.tile([4.0, 9.0], (3, 1))), 2)
    result = as_given(given_frame, Why.DOWN, "down: a test")
    np.testing.assert_array_equal(result.covariance, np.tile(np.diag([4.0, 9.0]), (3, 1, 1)))
