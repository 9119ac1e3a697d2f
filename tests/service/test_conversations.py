"""Calls without a wire: every message is answered, in order, whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from monitor.frames.frame import FrameAnswer
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.selection import IDENTITY
from monitor.service import handlers
from monitor.v1 import frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import encode_frame, encode_header, encode_truth
from tests.administered import Refused
from tests.foreign_client import assert_clean
from tests.piped import HEADER, pipeline_of
from tests.service.handled import Call, asked, labelled, service_of, talked
from tests.trackers import frame as outgoing
from tests.written import tagged


def encoded(number: int, n: int = 2) -> bytes:
    return encode_frame(outgoing(number, n))


def test_frames_are_answered_in_their_order_by_number_and_position():
    found = talked(service_of(), *(encoded(1000 + i, 1 + i % 5) for i in range(1, 20)))
    for index, result in enumerate((answer.frame for answer in found), 1):
        sent = outgoing(1000 + index, 1 + index % 5)
        assert (result.frame_id, result.stamp_ns) == (sent.frame_id, sent.stamp_ns)
        assert result.message_index == index
        assert list(result.recalibrator_versions) == [IDENTITY.version]
        assert (result.status, result.reason) == (1, 1)
        assert not result.notices
        assert [one.id for one in result.detections] == sent.id.tolist()
        for one, mean in zip(result.detections, sent.mean, strict=True):
            assert (one.status, one.reason, one.recalibrator_index) == (1, 1, 0)
            assert list(one.mean) == mean.tolist()


@pytest.mark.parametrize(
    ("message", "reason", "said"),
    [
        (b"\x12\x05\x7a\x7f", "MALFORMED", "bytes are not"),
        (b"", "MALFORMED", "neither header nor frame"),
        (tagged(1000, 2, bytes(2**20)), "TOO_LARGE", "1048"),
        (encoded(1, 101), "TOO_MANY_DETECTIONS", "101 of them: at most 100"),
    ],
)
def test_a_message_that_cannot_be_used_is_answered_and_the_stream_goes_on(message, reason, said):
    service = service_of()
    refused, answered = (one.frame for one in talked(service, message, encoded(2)))
    assert refused.status == frame_pb2.STATUS_REFUSED
    assert refused.reason == frame_pb2.Reason.Value(f"REASON_{reason}")
    assert (refused.message_index, answered.message_index) == (1, 2)
    assert answered.status == frame_pb2.STATUS_RECALIBRATED
    assert not refused.detections
    assert said in refused.notices[0].message
    assert_clean(refused.notices[0].message)
    assert sum(service.pipeline.counters.frames_refused.values()) == 1


def test_without_a_good_header_frames_are_refused_and_with_one_they_are_not():
    service, bad = service_of(), replace(HEADER, stream="no spaces")
    messages = [encoded(1), encode_header(bad), encoded(1), encode_header(HEADER), encoded(1)]
    before, refused, still, accepted, after = talked(service, *messages, header=None)
    for answer, index in ((before, 0), (still, 2)):
        assert answer.frame.reason == frame_pb2.REASON_NO_HEADER
        assert answer.frame.message_index == index
        assert "send the header first" in answer.frame.notices[0].message
    assert not refused.header.accepted
    assert refused.header.stream == bad.stream
    assert refused.header.notice.reason == frame_pb2.REASON_INVALID_HEADER
    assert refused.header.notice.field == "stream"
    assert_clean(refused.header.notice.message)
    assert accepted.header.accepted
    assert not accepted.header.HasField("notice")
    assert after.frame.status == frame_pb2.STATUS_RECALIBRATED


def test_a_dimension_in_degrees_is_accepted_and_said():
    turned = Space((*HEADER.space.dimensions, Dimension("yaw", "deg", DimensionKind.ANGLE)))
    (answer,) = talked(service_of(), encode_header(replace(HEADER, space=turned)), header=None)
    assert answer.header.accepted
    assert answer.header.notice.field == "dimensions.unit"
    assert "'deg' of yaw" in answer.header.notice.message


def test_more_streams_than_allowed_are_refused_by_name_and_number():
    service = service_of(pipeline_of(server={"max_streams": 2}))
    named = [encode_header(replace(HEADER, stream=name)) for name in ("a", "b", "c", "a")]
    answers = talked(service, *named, header=None)
    assert [answer.header.accepted for answer in answers] == [True, True, False, True]
    assert "max_streams" in answers[2].header.notice.message


def unary(number: int, **others: Any) -> bytes:
    sent = pb.ProcessRequest.FromString(encoded(number)).frame
    return pb.ProcessFrameRequest(frame=sent, **others).SerializeToString()


def wire_header(**changes: Any) -> frame_pb2.StreamHeader:
    return pb.ProcessRequest.FromString(encode_header(replace(HEADER, **changes))).header


def refusal(service, handler, data: bytes) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Refused) as ended:
        asked(service, handler, data)
    assert_clean(ended.value.words)
    return ended.value.status, ended.value.words


def test_a_unary_frame_needs_a_header_once():
    service = service_of()
    status, words = refusal(service, service.process_frame, unary(1, stream="lidar"))
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert words == "header: stream 'lidar' has none: send the header first."
    with_header = unary(1, stream="lidar", header=wire_header())
    for request in (with_header, unary(2, stream="lidar"), with_header):
        data = asked(service, service.process_frame, request)
        assert [one.status for one in pb.ProcessFrameResponse.FromString(data).frame.detections]


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (unary(1, header=wire_header(space=Space(()))), "INVALID_ARGUMENT", "dimensions: "),
        (unary(1, stream="a", header=wire_header()), "INVALID_ARGUMENT", "stream: 'a', but the"),
        (tagged(1000, 2, bytes(2**20)), "RESOURCE_EXHAUSTED", "message: 1048"),
        (b"\xff\xff", "INVALID_ARGUMENT", "message: 2 bytes are not a monitor.v1."),
    ],
)
def test_a_unary_frame_that_cannot_be_used_is_refused_by_status(request_, status, words):
    service = service_of()
    found, said = refusal(service, service.process_frame, request_)
    assert found is grpc.StatusCode[status]
    assert said.startswith(words)


def test_malformed_requests_and_impossible_questions_are_invalid_arguments():
    service = service_of()
    for handler in (service.get_calibration, service.get_status, service.acknowledge_drift):
        status, words = refusal(service, handler, b"\xff\xff")
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert words.startswith("message: 2 bytes are not a monitor.v1.")
    assert asked(
        service, service.get_calibration, pb.GetCalibrationRequest(bins=512).SerializeToString()
    )
    request = pb.GetCalibrationRequest(bins=513).SerializeToString()
    _, words = refusal(service, service.get_calibration, request)
    assert words == "bins: 513, at most 512."


def account(response: pb.ReportGroundTruthResponse) -> dict[str, int]:
    return {field.name: count for field, count in response.account.ListFields()}


def test_every_label_is_accounted_for_and_a_malformed_message_ends_nothing():
    service = service_of()
    talked(service, encoded(1, 3))
    first, second, third = outgoing(1, 3).id.tolist()
    zeros = np.zeros((4, 3))
    ids = np.array([first, first, 99, second], np.uint64)
    request = pb.ReportGroundTruthRequest.FromString(encode_truth("lidar", 1, ids, zeros))
    request.truth.detections[3].ignore = True
    request.truth.detections.add(detection_id=third, ground_truth=[1.0])
    found = labelled(
        service,
        b"\xff\xff",
        tagged(1000, 2, bytes(2**20)),
        b"",
        request.SerializeToString(),
        encode_truth("lidar", 2, ids[:1], zeros[:1]),
        encode_truth("nobody", 1, ids[:1], zeros[:1]),
    )
    assert [frame_pb2.Reason.Name(one.notices[0].reason) for one in found[:3]] == [
        *("REASON_MALFORMED", "REASON_TOO_LARGE", "REASON_GROUND_TRUTH_INVALID")
    ]
    assert not any(account(one) for one in found[:3])
    told = found[3]
    assert (told.stream, told.frame_id) == ("lidar", 1)
    assert account(told) == {"matched": 1, "duplicate": 1, "orphan": 1, "ignored": 1, "refused": 1}
    assert [(account(one), one.notices[0].field) for one in found[4:]] == [
        ({"orphan": 1}, "frame_id"),
        ({"orphan": 1}, "stream"),
    ]
    assert service.pipeline.streams["lidar"].seen.matched == 1


class Waiting:
    """Stands in for a tracker elsewhere: each answer waits a turn of the loop, or fails."""

    def __init__(self, *, fails: str = "") -> None:
        self.left: list[float | None] = []
        self.fails = fails

    def forward(self, _: object, answer: FrameAnswer, left: float | None) -> Awaitable[FrameAnswer]:
        self.left.append(left)
        if self.fails == "at once":
            raise ZeroDivisionError
        return self.later(answer)

    async def later(self, answer: FrameAnswer) -> FrameAnswer:
        await asyncio.sleep(0)
        if self.fails:
            raise ZeroDivisionError
        return answer


def three(tracker: Any) -> tuple[list[frame_pb2.FrameResult], Any]:
    service = service_of(tracker=tracker)
    return [one.frame for one in talked(service, *map(encoded, (1, 2, 3)))], service


def test_answers_that_wait_come_in_order_and_know_what_is_left_of_their_call():
    tracker = Waiting()
    found, service = three(tracker)
    assert [(one.frame_id, one.message_index) for one in found] == [(1, 1), (2, 2), (3, 3)]
    assert tracker.left == [1.5] * 3
    assert sum(service.pipeline.counters.frame_seconds.counts) == 3


def test_a_fault_of_forwarding_costs_no_answer(caplog):
    found, service = three(Waiting(fails="at once"))
    assert [len(result.detections) for result in found] == [2, 2, 2]
    assert service.pipeline.counters.internal_errors == 3
    found, service = three(Waiting(fails="later"))
    assert [result.reason for result in found] == [frame_pb2.REASON_INTERNAL] * 3
    assert service.pipeline.counters.internal_errors == 3
    assert not service._sessions
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("method", ["process", "report_ground_truth"])
def test_a_fault_of_ours_is_answered_without_showing_what_it_was_and_the_stream_lives(
    monkeypatch, caplog, method
):
    def broken(*_):
        raise ZeroDivisionError("/srv/secret.py")

    monkeypatch.setattr(handlers, "decode_process_request", broken)
    monkeypatch.setattr(handlers, "decode_truth_request", broken)
    service, call = service_of(), Call(b"anything", b"more")
    asyncio.run(getattr(service, method)(None, call))
    assert len(call.written) == 2
    kind = pb.ProcessResponse if method == "process" else pb.ReportGroundTruthResponse
    text = str(kind.FromString(call.written[1]))
    assert "REASON_INTERNAL" in text
    assert "secret" not in text
    assert "secret" in caplog.text
    assert service.pipeline.counters.internal_errors == 2
    assert not service._sessions


class Idle(Call):
    """Sends a message, and then nothing for ever; or reads no answer."""

    def __init__(self, *messages: bytes, deaf: bool = False) -> None:
        super().__init__(*messages)
        self.deaf = deaf

    async def read(self) -> Any:
        if self.messages:
            return self.messages.pop(0)
        return await asyncio.Event().wait()

    async def write(self, message: bytes) -> None:
        if self.deaf:
            await asyncio.Event().wait()
        await super().write(message)


NO_LABELS = pb.ReportGroundTruthRequest(truth=truth_pb2.FrameTruth(stream="x")).SerializeToString()
OPENING = {"process": encode_header(HEADER), "report_ground_truth": NO_LABELS}


@pytest.mark.parametrize("method", OPENING)
def test_an_idle_stream_ends_at_once_when_the_service_is_drained(method):
    service, call = service_of(), Idle(OPENING[method])

    async def life() -> None:
        talking = asyncio.create_task(getattr(service, method)(None, call))
        while not call.written:
            await asyncio.sleep(0)
        service.drain()
        await service.drained(5.0)
        assert talking.done() or await asyncio.wait_for(talking, 5) is None
        late = Idle(OPENING[method])
        await asyncio.wait_for(getattr(service, method)(None, late), 5)
        assert late.written == []

    asyncio.run(life())
    assert len(call.written) == 1


@pytest.mark.parametrize("method", OPENING)
def test_a_client_that_reads_no_answers_is_dropped_after_the_timeout_and_not_before(method):
    service, call = service_of(), Idle(OPENING[method], deaf=True)

    async def life() -> None:
        talking = asyncio.create_task(getattr(service, method)(None, call))
        while not any(session.writing_since for session in service._sessions):
            await asyncio.sleep(0)
        service.drop_stuck(60.0)
        assert not talking.done()
        service.drain()
        await asyncio.wait_for(service.drained(0.05), 5)  # it holds up the end no longer
        assert not talking.done()
        await asyncio.sleep(0.01)
        service.drop_stuck(0.001)
        with pytest.raises(Refused, match="the answers were not read") as ended:
            await asyncio.wait_for(talking, 5)
        assert ended.value.status is grpc.StatusCode.ABORTED

    asyncio.run(life())
    assert service.pipeline.counters.streams_dropped == 1
    assert not service._sessions
