"""Answers that wait for a tracker elsewhere: in order, and never lost to a fault of forwarding."""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from monitor.frames.frame import FrameAnswer, Header
from monitor.pipeline.events import Events
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.service.frames import Service
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.client_messages import encode_frame, encode_header
from monitor.wire.requests import WireLimits
from tests.piped import CLASSES, XYZ, pipeline_of
from tests.trackers import frame


class Call:
    """A Process stream that sends what it was given, and ends."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.written: list[bytes] = []

    async def read(self) -> Any:
        return self.messages.pop(0) if self.messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def time_remaining(self) -> float | None:
        return 1.5


class Waiting:
    """In the place of a tracker elsewhere: each answer waits a turn of the loop."""

    def __init__(self) -> None:
        self.left: list[float | None] = []

    def forward(self, _: object, answer: FrameAnswer, left: float | None) -> Awaitable[FrameAnswer]:
        self.left.append(left)
        return self.later(answer)

    async def later(self, answer: FrameAnswer) -> FrameAnswer:
        await asyncio.sleep(0)
        return answer


class Broken(Waiting):
    """It fails at once."""

    def forward(self, *_: object) -> Awaitable[FrameAnswer]:
        raise ZeroDivisionError


class BrokenLater(Waiting):
    """It fails while the answer waits."""

    async def later(self, _: FrameAnswer) -> FrameAnswer:
        raise ZeroDivisionError


def answers(
    tracker: Any, *frames: bytes, **settings: Any
) -> tuple[list[frame_pb2.FrameResult], Service]:
    """To three frames of a stream, or these."""
    service = Service(pipeline_of(**settings), Events(), WireLimits(2**20, 100), tracker=tracker)
    frames = frames or tuple(map(encoded, (1, 2, 3)))
    call: Any = Call(encode_header(Header("lidar", XYZ, CLASSES)), *frames)
    asyncio.run(service.process(None, call))
    responses = map(perception_monitor_pb2.ProcessResponse.FromString, call.written)
    return [response.frame for response in responses][1:], service


def encoded(number: int) -> bytes:
    return encode_frame(frame(number))


def test_answers_that_wait_come_in_order_and_know_what_is_left_of_their_call():
    tracker = Waiting()
    found, service = answers(tracker)
    assert [result.frame_id for result in found] == [1, 2, 3]
    assert [result.message_index for result in found] == [1, 2, 3]
    assert tracker.left == [1.5] * 3
    assert sum(service.pipeline.counters.frame_seconds.counts) == 3


def test_a_fault_of_forwarding_costs_no_answer():
    found, service = answers(Broken())
    assert [len(result.detections) for result in found] == [2, 2, 2]
    assert service.pipeline.counters.internal_errors == 3


def test_a_fault_while_an_answer_waits_is_answered_and_the_stream_goes_on(caplog):
    found, service = answers(BrokenLater())
    assert [result.reason for result in found] == [frame_pb2.REASON_INTERNAL] * 3
    assert service.pipeline.counters.internal_errors == 3
    assert not service._sessions
    assert "ZeroDivisionError" in caplog.text


class Ordered(Call):
    """It writes down what happens when; writing takes a turn of the loop, or fails."""

    def __init__(self, service: Service, order: list[str], *, fails: bool) -> None:
        super().__init__(encode_header(Header("lidar", XYZ, CLASSES)), *map(encoded, (1, 2)))
        self.order, self.fails, self.store = order, fails, service.pipeline.ledger.fates.store

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)
        self.order.append(f"{len(self.store)} remembered")
        if self.fails and len(self.order) > 1:
            raise asyncio.CancelledError
        await super().write(message)


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_is_written_before_its_frame_is_remembered_and_it_is_whatever_happens(fails):
    service = Service(pipeline_of(), Events(), WireLimits(2**20, 100))
    order: list[str] = []
    call: Any = Ordered(service, order, fails=fails)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(service.process(None, call))
    # The answers to the header, and to each frame.
    assert order == ["0 remembered", "0 remembered", "1 remembered"][: 2 if fails else 3]
    assert len(service.pipeline.ledger.fates.store) == (1 if fails else 2)


def test_a_fault_of_memory_ends_no_stream_and_its_detections_are_counted_as_lost(monkeypatch):
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pipeline, "_remember", fails)
    found, service = answers(None)
    assert [len(result.detections) for result in found] == [2, 2, 2]
    assert service.pipeline.counters.internal_errors == 3
    assert service.pipeline.ledger.fates.account[f"dropped_{Dropped.FAILED}"] == 6


@pytest.mark.parametrize("tracker", [None, Waiting()], ids=["none", "elsewhere"])
def test_one_frame_at_a_time_is_answered_alike(tracker: Any):
    service = Service(pipeline_of(), Events(), WireLimits(2**20, 100), tracker=tracker)
    header = perception_monitor_pb2.ProcessRequest.FromString(
        encode_header(Header("lidar", XYZ, CLASSES))
    ).header
    request = perception_monitor_pb2.ProcessFrameRequest(
        header=header, frame=perception_monitor_pb2.ProcessRequest.FromString(encoded(1)).frame
    )
    call: Any = Call()
    data = asyncio.run(service.process_frame(request.SerializeToString(), call))
    result = perception_monitor_pb2.ProcessFrameResponse.FromString(data).frame
    assert len(result.detections) == 2
    assert len(service.pipeline.ledger.fates.store) == 1


def test_a_stale_frame_is_not_forwarded():
    tracker = Waiting()
    # Stamps of one nanosecond after the other: all but the first came later than that.
    late = [encode_frame(replace(frame(number), stamp_ns=number)) for number in (1, 2, 3)]
    found, _ = answers(tracker, *late, server={"stale_seconds": 1e-9})
    stale = [[notice.reason for notice in answer.notices] for answer in found]
    assert stale == [[], [frame_pb2.REASON_STALE], [frame_pb2.REASON_STALE]]
    assert len(tracker.left) == 1
