"""The sidecar as others meet it: a real process, real sockets, the generated stubs.

Every process listens on free ports of the loopback. Nothing that goes wrong over the wire
may show a traceback or a path, nor may anything unforeseen stand in the sidecar's log.
"""

import asyncio
import re

import grpc
import numpy as np
import pytest

from monitor.commands.sidecar_client import Client, SidecarRefused, SidecarUnavailable
from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.pipeline.events import Events
from monitor.service import frames, labels
from monitor.v1 import (
    frame_pb2,
    perception_monitor_pb2,
)
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    decode_truth_answer,
    encode_frame,
    encode_truth,
)
from monitor.wire.requests import WireLimits
from tests.foreign_client import (
    assert_clean,
    failure,
    frame,
    header,
    in_frame,
    in_header,
    opened,
    padded,
    scaling,
)
from tests.labelled import assert_numbers, drawn
from tests.piped import pipeline_of
from tests.served import (
    ADMIN,
    BY_STREAM,
    MONITOR,
    PATIENCE,
    Conversation,
    process_bytes,
)

# ---- Process


def test_a_header_then_frames_are_answered_in_order(shared):
    stream = Conversation(shared.monitor.Process)
    accepted = stream.ask(in_header("in_order")).header
    assert (accepted.stream, accepted.accepted) == ("in_order", True)
    assert not accepted.HasField("notice")
    for index in range(1, 20):
        sent = frame(1000 + index)
        result = stream.ask(perception_monitor_pb2.ProcessRequest(frame=sent)).frame
        assert (result.frame_id, result.stamp_ns) == (sent.frame_id, sent.stamp_ns)
        assert result.message_index == index
        assert (result.status, result.reason) == (1, 1)
        assert not result.notices
        (version,) = result.recalibrator_versions
        assert re.fullmatch(r"identity-[0-9a-f]{12}", version)
        assert [d.id for d in result.detections] == [0, 1, 2]
        for found, detection in zip(result.detections, sent.detections, strict=True):
            assert found.status == frame_pb2.STATUS_RECALIBRATED
            assert found.reason == frame_pb2.REASON_NONE
            assert found.recalibrator_index == 0
            assert found.mean == detection.mean
            assert found.covariance == detection.covariance
    stream.close()


def test_frames_sent_ahead_are_answered_in_their_order(shared):
    stream = opened(shared, "ahead")
    for i in range(200):
        stream.send(in_frame(i, n=1 + i % 5))
    for i in range(200):
        result = stream.receive().frame
        assert (result.frame_id, len(result.detections)) == (i, 1 + i % 5)
    stream.close()


def test_a_frame_before_the_header_is_refused_and_the_stream_goes_on(shared):
    stream = Conversation(shared.monitor.Process)
    result = stream.ask(in_frame(1)).frame
    assert result.status == frame_pb2.STATUS_REFUSED
    assert result.reason == frame_pb2.REASON_NO_HEADER
    assert result.message_index == 0
    assert not result.detections
    assert "header" in result.notices[0].message
    assert stream.ask(in_header("late_header")).header.accepted
    assert stream.ask(in_frame(1)).frame.status == frame_pb2.STATUS_RECALIBRATED
    stream.close()


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (in_header("no spaces"), "stream"),
        (in_header(""), "stream"),
        (in_header("x" * 65), "stream"),
        (in_header("../../etc"), "stream"),
        (in_header("bad", dimensions=()), "dimensions"),
        (in_header("bad", dimensions=[f"d{i}" for i in range(17)]), "dimensions"),
        (in_header("bad", dimensions=("x", "x")), "dimensions.name"),
        (in_header("bad", dimensions=("x", 'y"}')), "dimensions.name"),
        (in_header("bad", classes=()), "class_names"),
        (in_header("bad", classes=("car", "car")), "class_names"),
        (in_header("bad", classes=("line\nbreak",)), "class_names"),
        (in_header("bad", classes=[str(i) for i in range(257)]), "class_names"),
    ],
)
def test_a_bad_header_is_refused_by_field_and_a_good_one_accepted_on_the_same_stream(
    shared, bad, field
):
    stream = Conversation(shared.monitor.Process)
    refused = stream.ask(bad).header
    assert not refused.accepted
    assert refused.stream == bad.header.stream
    assert refused.notice.reason == frame_pb2.REASON_INVALID_HEADER
    assert refused.notice.field == field
    assert_clean(refused.notice.message)
    assert stream.ask(in_frame(1)).frame.reason == frame_pb2.REASON_NO_HEADER
    assert stream.ask(in_header("better")).header.accepted
    assert stream.ask(in_frame(1)).frame.status == frame_pb2.STATUS_RECALIBRATED
    stream.close()


def test_more_streams_than_allowed_are_refused_by_number(start):
    sidecar = start(BY_STREAM + "[server]\nmax_streams = 2\n")
    streams = [opened(sidecar, f"stream_{i}") for i in range(2)]
    third = Conversation(sidecar.monitor.Process)
    refused = third.ask(in_header("third")).header
    assert not refused.accepted
    assert "max_streams" in refused.notice.message
    assert third.ask(in_header("stream_0")).header.accepted
    for stream in (*streams, third):
        stream.close()


@pytest.mark.parametrize("malformed", [b"\xff\xff", b"", b"\x12\x05\x7a\x7f", b"\x0a\x03\x0a\x01"])
def test_a_malformed_message_is_answered_as_such_and_the_stream_lives(shared, malformed):
    stream = Conversation(process_bytes(shared.channel))
    stream.ask(in_header("malformed").SerializeToString())
    data = stream.ask(malformed)
    result = perception_monitor_pb2.ProcessResponse.FromString(data).frame
    assert result.status == frame_pb2.STATUS_REFUSED
    assert result.reason == frame_pb2.REASON_MALFORMED
    assert result.message_index == 1
    assert_clean(result.notices[0].message)
    data = stream.ask(in_frame(1).SerializeToString())
    result = perception_monitor_pb2.ProcessResponse.FromString(data).frame
    assert (result.message_index, result.status) == (2, frame_pb2.STATUS_RECALIBRATED)
    stream.close()


def test_a_detection_without_any_field_does_not_end_the_stream(shared):
    stream = opened(shared, "empty_detection")
    sent = frame(1)
    sent.detections.add()
    result = stream.ask(perception_monitor_pb2.ProcessRequest(frame=sent)).frame
    assert [d.status for d in result.detections] == [1, 1, 1, 3]
    assert result.detections[3].reason == frame_pb2.REASON_MISSING_ID
    stream.close()


def test_a_message_of_5_mib_is_answered_too_large_and_the_stream_lives(shared):
    stream = Conversation(process_bytes(shared.channel))
    stream.ask(in_header("large").SerializeToString())
    allowed = perception_monitor_pb2.ProcessResponse.FromString(stream.ask(padded(4 * 2**20)))
    assert allowed.frame.status == frame_pb2.STATUS_RECALIBRATED
    refused = perception_monitor_pb2.ProcessResponse.FromString(stream.ask(padded(5 * 2**20)))
    assert refused.frame.reason == frame_pb2.REASON_TOO_LARGE
    assert str(5 * 2**20) in refused.frame.notices[0].message
    data = stream.ask(in_frame(2).SerializeToString())
    answered = perception_monitor_pb2.ProcessResponse.FromString(data).frame
    assert answered.status == frame_pb2.STATUS_RECALIBRATED
    stream.close()


def test_a_message_of_20_mib_ends_its_own_stream_and_no_other(shared):
    other = opened(shared, "other")
    huge = Conversation(process_bytes(shared.channel))
    huge.ask(in_header("huge").SerializeToString())
    code, _ = failure(lambda: huge.ask(padded(20 * 2**20)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    for i in range(10):
        assert other.ask(in_frame(i)).frame.status == frame_pb2.STATUS_RECALIBRATED
    other.close()
    again = opened(shared, "huge")
    again.close()


def test_too_many_detections_are_refused_and_the_stream_lives(shared):
    stream = opened(shared, "many")
    many = perception_monitor_pb2.ProcessRequest(
        frame=frame_pb2.Frame(frame_id=1, detections=[frame_pb2.Detection()] * 4097)
    )
    result = stream.ask(many).frame
    assert result.reason == frame_pb2.REASON_TOO_MANY_DETECTIONS
    assert "4097" in result.notices[0].message
    assert stream.ask(in_frame(2)).frame.status == frame_pb2.STATUS_RECALIBRATED
    stream.close()


def test_a_client_that_hangs_up_leaves_nothing_open(start):
    sidecar = start()
    for i in range(5):
        stream = opened(sidecar, f"hangs_up_{i}")
        stream.send(in_frame(1))
        stream.call.cancel()
    assert opened(sidecar, "next").ask(in_frame(1)).frame.status == 1
    assert sidecar.stop() < 3


# ---- unary methods


def unary(name, **changes):
    request = perception_monitor_pb2.ProcessFrameRequest(stream=name, frame=frame(1))
    for field, value in changes.items():
        getattr(request, field).CopyFrom(value)
    return request


def test_a_unary_frame_needs_a_header_once(shared):
    process_frame = shared.monitor.ProcessFrame
    code, text = failure(lambda: process_frame(unary("unary"), timeout=PATIENCE))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "unary" in text
    assert "header" in text
    with_header = unary("unary", header=header("unary"))
    for request in (with_header, unary("unary", frame=frame(2)), with_header):
        result = process_frame(request, timeout=PATIENCE).frame
        assert result.frame_id == request.frame.frame_id
        assert [d.status for d in result.detections] == [1, 1, 1]


def test_a_unary_frame_with_a_bad_header_is_refused_by_field(shared):
    request = unary("bad", header=header("bad", dimensions=()))
    code, text = failure(lambda: shared.monitor.ProcessFrame(request, timeout=PATIENCE))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("dimensions: ")


def test_a_unary_frame_that_is_too_large_is_refused(shared):
    data = perception_monitor_pb2.ProcessFrameRequest(stream="x").SerializeToString()
    call = shared.channel.unary_unary(f"/{MONITOR}/ProcessFrame")
    code, text = failure(lambda: call(data + padded(5 * 2**20), timeout=PATIENCE))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "max_message_bytes" in text


@pytest.mark.parametrize(
    "method",
    [
        f"{MONITOR}/ProcessFrame",
        f"{MONITOR}/GetCalibration",
        f"{ADMIN}/List",
        f"{ADMIN}/Get",
        f"{ADMIN}/Promote",
    ],
)
def test_malformed_unary_requests_are_invalid_arguments(shared, method):
    call = shared.channel.unary_unary(f"/{method}")
    code, text = failure(lambda: call(b"\xff\xff", timeout=PATIENCE))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "2 bytes are not a monitor.v1." in text


def test_a_malformed_request_to_watch_is_an_invalid_argument(shared):
    call = shared.channel.unary_stream(f"/{MONITOR}/WatchEvents")
    code, _ = failure(lambda: next(call(b"\xff\xff", timeout=PATIENCE)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_an_unknown_method_is_unimplemented(shared):
    call = shared.channel.unary_unary(f"/{MONITOR}/Nothing")
    code, _ = failure(lambda: call(b"", timeout=PATIENCE))
    assert code is grpc.StatusCode.UNIMPLEMENTED


# ---- our own client


SPACE = plain_space(("x", "y"), "m")


def outgoing(frame_id, mean, covariance, **changes):
    n = len(mean)
    return OutgoingFrame(
        frame_id=frame_id,
        stamp_ns=frame_id,
        id=np.arange(n, dtype=np.uint64),
        class_index=np.zeros(n, np.int64),
        mean=mean,
        covariance=covariance,
        **changes,
    )


def test_our_client_talks_to_the_sidecar(start):
    sidecar = start()
    mean, covariance, truth = drawn(9, n=40)

    async def talk():
        async with Client(sidecar.grpc) as client:
            before, after = await client.promote("client", document=scaling(2.0, 2.0))
            assert (before[:8], after[:16]) == ("identity", "variance-scaling")
            conversation = await client.open(Header("client", SPACE, ("car",)))
            await conversation.send(encode_frame(outgoing(1, mean, covariance)))
            answer = decode_answer(await conversation.receive(), 2)
            assert answer.versions == (after,)
            assert (answer.status == frame_pb2.STATUS_RECALIBRATED).all()
            assert np.array_equal(answer.mean, mean)
            assert np.array_equal(answer.covariance, 4 * covariance)
            late = client.truth()
            await late.send(encode_truth("client", 1, np.arange(40, dtype=np.uint64), truth))
            account, words = decode_truth_answer(await late.receive())
            assert (account.matched, words) == (40, "")
            response = await client.calibration(bins=1, include_bins=True)
            (stage,) = (s.stages[0] for s in response.slices if s.slice == "client")
            assert_numbers(stage, mean, covariance, truth, np.array(response.tau))
            for stream in (conversation, late):
                await stream.close()
                assert [answer async for answer in stream.answers()] == []

    asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def test_our_client_passes_on_what_the_sidecar_refuses(shared):
    async def talk():
        async with Client(shared.grpc) as client:
            with pytest.raises(SidecarRefused, match=r"^stream: 'no spaces'"):
                await client.open(Header("no spaces", SPACE, ("car",)))
            with pytest.raises(SidecarRefused, match="JSON"):
                await client.promote("client", document="not json")

    asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def test_our_client_says_when_the_sidecar_is_gone(start):
    sidecar = start()

    async def talk():
        async with Client(sidecar.grpc) as client:
            conversation = await client.open(Header("client", SPACE, ("car",)))
            await asyncio.to_thread(sidecar.stop)
            with pytest.raises(SidecarUnavailable):
                await conversation.receive()
            with pytest.raises(SidecarUnavailable, match=re.escape(sidecar.grpc)):
                await client.calibration()

    asyncio.run(asyncio.wait_for(talk(), PATIENCE))


def test_a_stream_that_breaks_off_ends_the_further_answers_in_our_own_words(start):
    sidecar = start()

    async def talk():
        async with Client(sidecar.grpc) as client:
            conversation = await client.open(Header("client", SPACE, ("car",)))
            sidecar.process.kill()
            with pytest.raises(SidecarUnavailable, match=r"^the stream ended: "):
                assert [answer async for answer in conversation.answers()] == []

    asyncio.run(asyncio.wait_for(talk(), PATIENCE))


# ---- a fault of ours


class Call:
    """What a handler sees of a stream with some messages."""

    def __init__(self, *messages: bytes) -> None:
        self.waiting: list[object] = [*messages, grpc.aio.EOF]
        self.written: list[bytes] = []

    async def read(self):
        return self.waiting.pop(0)

    async def write(self, message):
        self.written.append(message)

    async def abort(self, code, details):
        raise grpc.aio.AbortError(code, details)


@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("process", perception_monitor_pb2.ProcessResponse),
        ("report_ground_truth", perception_monitor_pb2.ReportGroundTruthResponse),
    ],
)
def test_a_fault_of_ours_is_answered_without_showing_what_it_was_and_the_stream_lives(
    monkeypatch, caplog, method, response
):
    def broken(*_):
        raise ZeroDivisionError("/srv/secret.py")

    monkeypatch.setattr(frames, "decode_process_request", broken)
    monkeypatch.setattr(labels, "decode_truth_request", broken)
    service = frames.Service(pipeline_of(), Events(), WireLimits(1000, 10))
    call = Call(b"anything", b"more")
    asyncio.run(getattr(service, method)(None, call))
    assert len(call.written) == 2
    text = str(response.FromString(call.written[1]))
    assert "REASON_INTERNAL" in text
    assert "secret" not in text
    assert "secret" in caplog.text
    assert service.pipeline.counters.internal_errors == 2
    assert not service._sessions
