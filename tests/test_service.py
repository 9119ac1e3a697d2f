"""The sidecar as others meet it: a real process, real sockets, the generated stubs.

Every process listens on free ports of the loopback. Nothing that goes wrong over the wire
may show a traceback or a path, nor may anything unforeseen stand in the sidecar's log.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from monitor.calibration.space import plain_space
from monitor.cli import main
from monitor.config import Config
from monitor.edges import service as service_module
from monitor.edges.answered import decode_answer, decode_truth_answer
from monitor.edges.client import Client, SidecarRefused, SidecarUnavailable
from monitor.edges.requests import OutgoingFrame, encode_frame, encode_truth
from monitor.edges.wire import WireLimits
from monitor.events import Events
from monitor.frames import Header
from monitor.pipeline import Pipeline
from monitor.recalibration.selection import Selection
from monitor.recalibration.variance_scaling import VarianceScaling
from monitor.v1 import (
    frame_pb2,
    perception_monitor_pb2,
    recalibrator_admin_pb2,
    truth_pb2,
)
from tests.labelled import assert_numbers, drawn
from tests.served import (
    ADMIN,
    MONITOR,
    PATIENCE,
    ROOT,
    Conversation,
    Sidecar,
    eventually,
    process_bytes,
    running,
    serve_command,
    starting,
)

CONFIG = """
[metrics]
refresh_seconds = 0.2
[statistics]
slice_by = ["stream"]
max_slices = 64
"""
INTERNALS = re.compile(r'Traceback|File "|\.py\b|site-packages|/srv|/tmp|<class|Exception|Error')


# ---- a process


def serve_to_the_end(*options: str) -> subprocess.CompletedProcess[str]:
    """A `serve` that is expected to end by itself."""
    return subprocess.run(
        serve_command(*options), cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One sidecar for all tests that leave it as it is; each uses streams of its own."""
    with running(tmp_path_factory.mktemp("shared"), CONFIG) as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def swapping(tmp_path_factory):
    """One sidecar for tests that promote; each begins with the identity in force."""
    sidecar = Sidecar(tmp_path_factory.mktemp("swapping"), CONFIG)
    yield sidecar
    sidecar.end()
    assert "Traceback" not in sidecar.log.read_text("utf-8")


@pytest.fixture
def start(tmp_path):
    """Starts sidecars that end with the test."""
    with starting(tmp_path, CONFIG) as begin:
        yield begin


# ---- a foreign client


def header(name, dimensions=("x", "y"), classes=("car",)):
    return frame_pb2.StreamHeader(
        stream=name,
        dimensions=[frame_pb2.Dimension(name=d, unit="m") for d in dimensions],
        class_names=classes,
    )


def in_header(name, **changes):
    return perception_monitor_pb2.ProcessRequest(header=header(name, **changes))


def frame(frame_id, n=3, truth=True, **changes):
    """n detections at (i, 1) with σ² = 4, off by (1, 0)."""
    detections = [
        frame_pb2.Detection(
            id=i,
            class_index=0,
            mean=[i, 1.0],
            covariance=[4.0, 4.0],
            ground_truth=[i + 1.0, 1.0] if truth else [],
        )
        for i in range(n)
    ]
    return frame_pb2.Frame(frame_id=frame_id, stamp_ns=frame_id, detections=detections, **changes)


def in_frame(frame_id, **changes):
    return perception_monitor_pb2.ProcessRequest(frame=frame(frame_id, **changes))


def opened(sidecar, name, **changes) -> Conversation:
    """A Process stream whose header was accepted."""
    stream = Conversation(sidecar.monitor.Process)
    assert stream.ask(in_header(name, **changes)).header.accepted
    return stream


def failure(call):
    """Code and text of a call that must fail; the text shows nothing of the inside."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = caught.value
    assert isinstance(error, grpc.Call)
    assert_clean(error.details())
    return error.code(), error.details()


def assert_clean(text):
    assert text
    assert not INTERNALS.search(text), text


def scaling(*scale, dimensions=("x", "y")) -> str:
    """A recalibrator document."""
    return Selection(tuple(dimensions), VarianceScaling(tuple(scale))).to_json()


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
    sidecar = start(CONFIG + "[server]\nmax_streams = 2\n")
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


def padded(size):
    """A frame with an unknown field, of so many bytes in all."""
    data = in_frame(1).SerializeToString()
    rest = size - len(data)
    tag, length = b"\xc2\x3e", rest - 2 - 4  # field 1000; lengths of four bytes
    assert 2**21 <= length < 2**28
    groups = [length >> 7 * i & 0x7F for i in range(4)]
    data += tag + bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:]) + bytes(length)
    assert len(data) == size
    return data


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


# ---- truth


def labels(stream, frame_id, ids, **changes):
    return perception_monitor_pb2.ReportGroundTruthRequest(
        truth=truth_pb2.FrameTruth(
            stream=stream,
            frame_id=frame_id,
            detections=[
                truth_pb2.DetectionTruth(detection_id=i, ground_truth=[i + 1.0, 1.0]) for i in ids
            ],
            **changes,
        )
    )


def accounted(response):
    """The counts of a truth answer that are not 0."""
    return {field.name: count for field, count in response.account.ListFields()}


def test_truth_that_comes_late_and_truth_that_comes_along_count_the_same(start):
    sidecar = start()
    late, inline = opened(sidecar, "late"), opened(sidecar, "inline")
    late.ask(in_frame(7, truth=False))
    assert sidecar.calibration().counts.pending == 3
    truth = Conversation(sidecar.monitor.ReportGroundTruth)
    first = truth.ask(labels("late", 7, [0, 1]))
    assert (first.stream, first.frame_id) == ("late", 7)
    assert accounted(first) == {"matched": 2}
    assert accounted(truth.ask(labels("late", 7, [1, 2]))) == {"matched": 1, "duplicate": 1}
    assert inline.ask(in_frame(7)).frame.status == 1
    assert accounted(truth.ask(labels("inline", 7, [0, 1, 2]))) == {"duplicate": 3}
    response = sidecar.calibration(bins=1)
    stages = {s.slice: s.stages[0] for s in response.slices}
    assert stages["late"] == stages["inline"]
    assert stages["late"].dimensions[0].nees_mean == 0.25
    assert stages["late"].dimensions[0].bias == 1.0
    assert response.counts.matched == 6
    assert response.counts.pending == 0
    for stream in (late, inline, truth):
        stream.close()


def test_every_label_is_accounted_for(shared):
    stream = opened(shared, "account")
    sent = frame(1, truth=False)
    sent.detections[2].ClearField("covariance")
    stream.ask(perception_monitor_pb2.ProcessRequest(frame=sent))
    truth = Conversation(shared.monitor.ReportGroundTruth)
    request = labels("account", 1, [0, 0, 2, 99])
    request.truth.detections.add(detection_id=1, ignore=True)
    request.truth.detections.add(detection_id=0, ground_truth=[1.0])
    request.truth.detections.add(ground_truth=[1.0, 1.0])
    answer = truth.ask(request)
    assert accounted(answer) == {
        "matched": 1,
        "duplicate": 1,
        "unusable": 1,
        "orphan": 1,
        "ignored": 1,
        "refused": 2,
    }
    assert answer.notices[0].reason == frame_pb2.REASON_GROUND_TRUTH_INVALID
    for request, field in (
        (labels("account", 2, [0]), "frame_id"),
        (labels("nobody", 1, [0]), "stream"),
    ):
        answer = truth.ask(request)
        assert accounted(answer) == {"orphan": 1}
        assert answer.notices[0].field == field
    truth.close()
    stream.close()


def test_malformed_truth_is_answered_and_the_stream_lives(shared):
    truth = Conversation(process_bytes(shared.channel, "ReportGroundTruth"))
    for data, reason in (
        (b"\xff\xff", frame_pb2.REASON_MALFORMED),
        (padded(5 * 2**20), frame_pb2.REASON_TOO_LARGE),
        (b"", frame_pb2.REASON_GROUND_TRUTH_INVALID),
    ):
        answer = perception_monitor_pb2.ReportGroundTruthResponse.FromString(truth.ask(data))
        assert not accounted(answer)
        assert answer.notices[0].reason == reason
        assert_clean(answer.notices[0].message)
    truth.close()


# ---- recalibrators


def identity_of(sidecar) -> str:
    """The version of the identity, which is put in force."""
    listed = sidecar.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    version: str = listed.recalibrators[0].version
    promote(sidecar, version=version)
    return version


def in_force(listed) -> list[str]:
    """Versions of the promoted recalibrators of estimates."""
    entries = [entry for entry in listed.recalibrators if entry.promoted]
    return [entry.version for entry in entries if entry.method != "class-identity"]


def promote(sidecar, **candidate):
    request = recalibrator_admin_pb2.PromoteRequest(actor="test", **candidate)
    return sidecar.admin.Promote(request, timeout=PATIENCE)


def test_a_promoted_recalibrator_is_in_force_from_the_next_frame_on(swapping):
    sidecar, before = swapping, identity_of(swapping)
    stream = opened(sidecar, "promoted")
    assert list(stream.ask(in_frame(1)).frame.recalibrator_versions) == [before]
    answer = promote(sidecar, document=scaling(2.0, 3.0))
    assert answer.before == before
    assert answer.after.startswith("variance-scaling-")
    result = stream.ask(in_frame(2)).frame
    assert list(result.recalibrator_versions) == [answer.after]
    for detection in result.detections:
        assert detection.status == frame_pb2.STATUS_RECALIBRATED
        assert result.recalibrator_versions[detection.recalibrator_index] == answer.after
        assert list(detection.covariance) == [16.0, 36.0]
    back = promote(sidecar, version=before)
    assert (back.before, back.after) == (answer.after, before)
    result = stream.ask(in_frame(3)).frame
    assert list(result.recalibrator_versions) == [before]
    assert list(result.detections[0].covariance) == [4.0, 4.0]
    stream.close()


def test_list_and_get_show_what_was_promoted(swapping):
    sidecar, identity = swapping, identity_of(swapping)
    document = scaling(4.0, 5.0)
    version = promote(sidecar, document=document).after
    listed = sidecar.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    assert in_force(listed) == [version]
    assert (listed.recalibrators[0].version, listed.recalibrators[0].method) == (
        identity,
        "identity",
    )
    for summary in listed.recalibrators:
        request = recalibrator_admin_pb2.GetRequest(version=summary.version)
        got = sidecar.admin.Get(request, timeout=PATIENCE)
        assert got.summary == summary
        assert json.loads(got.document)["version"] == summary.version
    summary = listed.recalibrators[-1]
    assert (summary.version, summary.method) == (version, "variance-scaling")
    assert list(summary.dimensions) == ["x", "y"]
    request = recalibrator_admin_pb2.GetRequest(version=version)
    assert sidecar.admin.Get(request, timeout=PATIENCE).document == document


def test_a_recalibrator_of_other_dimensions_passes_frames_through(swapping):
    sidecar = swapping
    promote(sidecar, document=scaling(2.0, 2.0, dimensions=("u", "v")))
    stream = opened(sidecar, "mismatch")
    result = stream.ask(in_frame(1)).frame
    assert {d.status for d in result.detections} == {frame_pb2.STATUS_PASSED_THROUGH}
    assert {d.reason for d in result.detections} == {frame_pb2.REASON_RECALIBRATOR_MISMATCH}
    assert list(result.detections[0].covariance) == [4.0, 4.0]
    stream.close()


def test_unknown_versions_are_not_found(shared):
    code, text = failure(lambda: promote(shared, version="gp-normal-0123456789ab"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "gp-normal-0123456789ab" in text
    request = recalibrator_admin_pb2.GetRequest(version="nothing")
    code, text = failure(lambda: shared.admin.Get(request, timeout=PATIENCE))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "nothing" in text


def changed(**parameters):
    """The document of a scaling with other parameters."""
    content = json.loads(scaling(2.0, 3.0))
    del content["version"]
    content["fallback"]["parameters"].update(parameters)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("", "JSON"),
        ("not json", "JSON"),
        ("[]", "the document is []"),
        ("{}", "format"),
        ('{"format": "calibration-monitor/recalibrator/1"}', "dimensions"),
        ('{"format": "calibration-monitor/recalibrator/1", "dimensions": ["x"]}', "fallback"),
        (changed(scale=[1.0]), "fallback"),
        (changed(scale=[1.0, -1.0]), "scale"),
        (changed(scale=[1.0, float("nan")]), "scale"),
        (changed(scale=[1.0, 10**400]), "scale"),
        (changed(scale="wide"), "scale"),
        (changed(objective="best"), "fallback"),
        (scaling(2.0, 3.0).replace("2.0", "2.5"), "version"),
        ("[" * 100_000, "JSON"),
        (scaling(2.0, dimensions=("\ud800",)), "dimensions"),
    ],
)
def test_a_document_that_is_no_recalibrator_is_an_invalid_argument_by_field(
    swapping, document, field
):
    identity = identity_of(swapping)
    code, text = failure(lambda: promote(swapping, document=document))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert field in text
    listed = swapping.admin.List(recalibrator_admin_pb2.ListRequest(), timeout=PATIENCE)
    assert in_force(listed) == [identity]


def test_observing_forwards_what_came_and_shows_what_would_have_been(start, tmp_path):
    document = tmp_path / "scaling.json"
    document.write_text(scaling(2.0, 3.0), encoding="utf-8")
    sidecar = start(CONFIG + f"[recalibration]\nmode = 'observe'\nrecalibrator = '{document}'\n")
    stream = opened(sidecar, "observed")
    for detection in stream.ask(in_frame(1)).frame.detections:
        assert detection.status == frame_pb2.STATUS_PASSED_THROUGH
        assert detection.reason == frame_pb2.REASON_OBSERVE_MODE
        assert list(detection.covariance) == [4.0, 4.0]
        assert detection.shadow_mean == detection.mean
        assert list(detection.shadow_covariance) == [16.0, 36.0]
    raw, recalibrated = sidecar.calibration("observed").slices[0].stages
    assert raw.dimensions[0].nees_mean == 0.25
    assert recalibrated.dimensions[0].nees_mean == 0.0625
    stream.close()


# ---- events, health, reflection


def test_watchers_see_health_then_versions_then_the_end(start):
    sidecar = start()
    watch = sidecar.monitor.WatchEvents(
        perception_monitor_pb2.WatchEventsRequest(), timeout=3 * PATIENCE
    )
    first = next(watch).event
    assert first.WhichOneof("event") == "health"
    assert first.health.serving
    assert abs(first.time.ToNanoseconds() / 1e9 - time.time()) < PATIENCE
    answer = promote(sidecar, document=scaling(2.0, 3.0))
    second = next(watch).event
    assert second.sequence == first.sequence + 1
    assert (second.version.before, second.version.after) == (answer.before, answer.after)
    assert second.version.actor == "test"
    assert sidecar.stop() < 3
    third = next(watch).event
    assert third.sequence == second.sequence + 1
    assert third.WhichOneof("event") == "health"
    assert not third.health.serving
    with pytest.raises(StopIteration):
        next(watch)


@pytest.mark.parametrize("service", ["", MONITOR, ADMIN])
def test_the_health_service_says_serving(shared, service):
    request = health_pb2.HealthCheckRequest(service=service)
    answer = shared.health.Check(request, timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_health_of_an_unknown_service_is_not_found(shared):
    request = health_pb2.HealthCheckRequest(service="nothing")
    with pytest.raises(grpc.RpcError) as caught:
        shared.health.Check(request, timeout=PATIENCE)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("service", ["", MONITOR])
def test_the_health_service_says_not_serving_upon_sigterm(start, service):
    sidecar = start()
    request = health_pb2.HealthCheckRequest(service=service)
    watch = sidecar.health.Watch(request, timeout=3 * PATIENCE)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    sidecar.process.send_signal(signal.SIGTERM)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert sidecar.process.wait(PATIENCE) == 0


def test_one_who_watches_health_does_not_hold_up_the_end(start):
    sidecar = start(CONFIG + "[server]\ngrace_seconds = 8\n")
    watch = sidecar.health.Watch(health_pb2.HealthCheckRequest(), timeout=3 * PATIENCE)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert sidecar.stop() < 4


def list_services(sidecar):
    stub = reflection_pb2_grpc.ServerReflectionStub(sidecar.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE))
    return {service.name for service in answer.list_services_response.service}


def test_reflection_is_off_by_default(shared):
    code, _ = failure(lambda: list_services(shared))
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_lists_the_services_where_it_is_switched_on(start):
    sidecar = start(CONFIG + "[server]\nreflection = true\n")
    assert {MONITOR, ADMIN, "grpc.health.v1.Health"} <= list_services(sidecar)
    stub = reflection_pb2_grpc.ServerReflectionStub(sidecar.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=MONITOR)
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE))
    assert answer.file_descriptor_response.file_descriptor_proto


# ---- clients that go away, stand still or push


KILLED_CLIENT = """
import itertools, sys
import grpc
sys.path.insert(0, {root!r})
from tests.test_service import in_frame, in_header
from monitor.v1 import perception_monitor_pb2_grpc

stub = perception_monitor_pb2_grpc.PerceptionMonitorStub(grpc.insecure_channel({address!r}))
def requests():
    yield in_header("killed")
    for number in range(100_000):
        yield in_frame(number)
for number, answer in enumerate(stub.Process(requests(), timeout=30)):
    print(number, flush=True)
"""


def test_a_client_killed_in_mid_stream_disturbs_nobody_and_its_counts_are_exact(start):
    sidecar = start()
    survivor = opened(sidecar, "survivor")
    code = textwrap.dedent(KILLED_CLIENT).format(root=str(ROOT), address=sidecar.grpc)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as client:
        output = client.stdout
        assert output is not None
        try:
            sent = 0
            for _ in range(30):
                assert output.readline()
                assert survivor.ask(in_frame(sent)).frame.status == 1
                sent += 1
        finally:
            client.kill()
        # Line 0 is the header's; a last line may be cut off.
        rest = output.read().decode()
    acknowledged = 29 + rest.count("\n")
    for _ in range(50):
        assert survivor.ask(in_frame(sent)).frame.status == 1
        sent += 1
    assert sidecar.labelled("survivor") == 3 * sent
    # The sidecar may have answered what was still on its way when the client died.
    in_slice = sidecar.labelled("killed")
    assert in_slice % 3 == 0
    assert in_slice >= 3 * acknowledged
    survivor.close()
    assert sidecar.stop() < 3
    frames, detections, labelled = sidecar.stopped()
    assert frames >= acknowledged + sent
    assert detections == labelled == 3 * frames


class Pusher(threading.Thread):
    """A stream that sends as fast as it can, with a few frames ahead of their answers."""

    AHEAD = 8

    def __init__(self, sidecar, name) -> None:
        super().__init__(daemon=True)
        self.stream = opened(sidecar, name)
        self.sent = self.acknowledged = 0
        self.code: grpc.StatusCode | None = None

    def run(self) -> None:
        try:
            for number in range(1_000_000):
                self.sent += 1
                self.stream.send(in_frame(number, n=20))
                if number >= self.AHEAD:
                    result = self.stream.receive().frame
                    assert len(result.detections) == 20
                    self.acknowledged += 1
        except (grpc.RpcError, StopIteration):
            pass
        self.code = self.stream.call.code()
        self.stream.send(None)


def test_sigterm_under_load_loses_no_acknowledged_frame(start):
    sidecar = start(CONFIG + "[server]\ngrace_seconds = 5\n")
    idle = opened(sidecar, "idle")
    pushers = [Pusher(sidecar, f"pusher_{i}") for i in range(4)]
    for pusher in pushers:
        pusher.start()
    assert eventually(lambda: min(pusher.acknowledged for pusher in pushers) > 50)
    assert sidecar.stop() < 5
    for pusher in pushers:
        pusher.join(PATIENCE)
        assert not pusher.is_alive()
        assert pusher.code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    frames, detections, labelled = sidecar.stopped()
    acknowledged = sum(pusher.acknowledged for pusher in pushers)
    assert acknowledged <= frames <= sum(pusher.sent for pusher in pushers)
    assert detections == labelled == 20 * frames
    with pytest.raises((StopIteration, grpc.RpcError)):
        idle.receive()


@pytest.mark.parametrize("kind", ["Process", "ReportGroundTruth"])
def test_an_idle_stream_does_not_hold_up_the_end(start, kind):
    sidecar = start(CONFIG + "[server]\ngrace_seconds = 8\n")
    stream = Conversation(getattr(sidecar.monitor, kind))
    if kind == "Process":
        stream.ask(in_header("idle"))
    else:
        stream.ask(labels("nobody", 1, [0]))
    assert sidecar.stop() < 4
    with pytest.raises(StopIteration):
        stream.receive()
    assert stream.call.code() is grpc.StatusCode.OK


def large_requests(name, number):
    """Frames of 120 kB each, one after another."""
    yield in_header(name, dimensions=[f"d{i}" for i in range(8)])
    detections = [
        frame_pb2.Detection(id=i, class_index=0, mean=[1.0] * 8, covariance=np.eye(8).ravel())
        for i in range(200)
    ]
    for frame_id in range(number):
        yield perception_monitor_pb2.ProcessRequest(
            frame=frame_pb2.Frame(frame_id=frame_id, stamp_ns=frame_id, detections=detections)
        )


def test_a_client_that_reads_no_answers_is_dropped_and_holds_up_nobody(start):
    sidecar = start(
        CONFIG + "[server]\nwrite_timeout_seconds = 1\n[pending]\nmax_bytes = 1000000\n"
    )
    other = opened(sidecar, "other")
    assert other.ask(in_frame(0)).frame.status == 1
    before = sidecar.memory()
    deaf, deafer = (
        sidecar.monitor.Process(large_requests(name, 2000), timeout=3 * PATIENCE)
        for name in ("deaf", "deafer")
    )
    slowest, number = 0.0, 1
    end = time.monotonic() + PATIENCE
    while sidecar.metric("streams_dropped_total") < 2 and time.monotonic() < end:
        began = time.monotonic()
        assert other.ask(in_frame(number)).frame.status == 1
        slowest = max(slowest, time.monotonic() - began)
        number += 1
        time.sleep(0.02)
    assert sidecar.metric("streams_dropped_total") == 2
    # 480 MB were to be sent.
    assert sidecar.memory() - before < 100e6
    assert slowest < 1
    code, text = failure(lambda: [next(deaf) for _ in range(2001)])
    assert code is grpc.StatusCode.ABORTED
    assert "read" in text
    assert sidecar.labelled("other") == 3 * number
    other.close()
    # The other deaf one reads nothing to the last.
    assert sidecar.stop() < 3
    with pytest.raises(grpc.RpcError):
        for _ in range(2001):
            next(deafer)


def test_a_client_that_reads_no_answers_holds_up_the_end_no_longer_than_the_grace(start):
    sidecar = start(CONFIG + "[server]\ngrace_seconds = 2\nwrite_timeout_seconds = 100\n")
    deaf = sidecar.monitor.Process(large_requests("deaf", 2000), timeout=3 * PATIENCE)
    settled = -1.0

    def stands_still():
        nonlocal settled
        last, settled = settled, sidecar.metric("frames_total")
        time.sleep(0.3)
        return settled > 0 and settled == last

    assert eventually(stands_still)
    sidecar.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: not is_ready(sidecar), 1.5)
    assert sidecar.process.wait(PATIENCE) == 0
    with pytest.raises(grpc.RpcError):
        for _ in range(2001):
            next(deaf)


# ---- HTTP


def is_ready(sidecar: Sidecar) -> bool:
    try:
        return sidecar.get("/readyz") == "ready\n"
    except OSError:
        return False


def test_http_serves_metrics_health_and_a_page(shared):
    stream = opened(shared, "http")
    stream.ask(in_frame(1))
    assert eventually(lambda: 'slice="http"' in shared.get("/metrics"))
    assert shared.metric("frames_total") >= 1
    assert shared.get("/healthz") == "ok\n"
    assert shared.get("/readyz") == "ready\n"
    assert shared.get("/metrics?name[]=up").startswith("# HELP calibration_")
    page = shared.get("/")
    assert page.startswith("<!doctype html>")
    assert "<td>http<td>" in page
    stream.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("/healthz", "text/plain; charset=utf-8"),
        ("/", "text/html; charset=utf-8"),
    ],
)
def test_http_names_its_content_type(shared, path, kind):
    with urllib.request.urlopen(shared.http + path, timeout=PATIENCE) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == kind
    head = urllib.request.Request(shared.http + path, method="HEAD")
    with urllib.request.urlopen(head, timeout=PATIENCE) as response:
        assert response.read() == b""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/metrics/", 404),
        ("POST", "/metrics", 501),
        ("PUT", "/", 501),
        ("DELETE", "/healthz", 501),
    ],
)
def test_http_refuses_everything_else(shared, method, path, status):
    data = b"x=1" if method in ("POST", "PUT") else None
    request = urllib.request.Request(shared.http + path, data=data, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=PATIENCE)
    assert caught.value.code == status
    text = caught.value.read().decode()
    assert "Traceback" not in text
    assert "Python" not in str(caught.value.headers)


def test_both_ports_may_be_on_the_loopback_of_ipv6(start):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    sidecar = start(CONFIG, "--grpc-address", "[::1]:0", "--http-address", "[::1]:0")
    assert sidecar.grpc.startswith("[::1]:")
    assert sidecar.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1
    assert sidecar.get("/healthz") == "ok\n"


# ---- the command line


@pytest.mark.parametrize("key", ["grpc_address", "http_address"])
def test_a_second_sidecar_on_the_same_port_says_so_and_ends(shared, key):
    taken = shared.grpc if key == "grpc_address" else shared.http.removeprefix("http://")
    done = serve_to_the_end(f"--{key.replace('_', '-')}", taken)
    assert done.returncode == 1
    assert f"[server] {key} = '{taken}'" in done.stderr
    assert "Choose a free port" in done.stderr
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout
    assert shared.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1


def check_command(tmp_path, text):
    path = tmp_path / "checked.toml"
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path), "--check"]


def test_a_valid_configuration_is_checked_without_serving(tmp_path):
    document = tmp_path / "scaling.json"
    document.write_text(scaling(2.0, 3.0), encoding="utf-8")
    text = CONFIG + f"[recalibration]\nrecalibrator = '{document}'\n"
    done = serve_to_the_end(*check_command(tmp_path, text))
    assert (done.returncode, done.stderr) == (0, "")
    assert "valid" in done.stdout
    assert "variance-scaling-" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\ngrpc_port = 1\n", ["server.grpc_port", "1"]),
        ("[sever]\n", ["sever"]),
        ("[statistics]\ntau = [0.9, 0.5]\n", ["statistics.tau", "ascending"]),
        ("[statistics]\nbins = 0\n", ["statistics.bins", "0"]),
        ("[recalibration]\nmode = 'improve'\n", ["recalibration.mode", "improve"]),
        ("[recalibration]\nrecalibrator = '/nowhere/r.json'\n", ["recalibrator", "/nowhere/r"]),
        ("[server\n", ["TOML"]),
    ],
)
def test_an_invalid_configuration_is_refused_by_key_value_and_remedy(tmp_path, capsys, text, words):
    assert main(["serve", *check_command(tmp_path, text)]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    for word in words:
        assert word in line


def test_an_invalid_configuration_ends_the_process_with_a_line_and_1(tmp_path):
    done = serve_to_the_end(*check_command(tmp_path, "[server]\ngrpc_port = 1\n"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "server.grpc_port" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_recalibrator_that_is_none_keeps_the_sidecar_from_starting(tmp_path):
    document = tmp_path / "broken.json"
    document.write_text("{}", encoding="utf-8")
    path = tmp_path / "sidecar.toml"
    path.write_text(f"[recalibration]\nrecalibrator = '{document}'\n", encoding="utf-8")
    done = serve_to_the_end("--config", str(path))
    assert done.returncode == 1
    assert str(document) in done.stderr
    assert "format" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
@pytest.mark.parametrize("key", ["grpc-address", "http-address"])
def test_an_address_without_a_port_is_refused_by_name(capsys, key, address):
    assert main(["serve", f"--{key}", address, "--check"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert key.replace("-", "_") in line
    assert address in line


def test_interrupting_ends_in_order(start):
    sidecar = start()
    os.kill(sidecar.process.pid, signal.SIGINT)
    assert sidecar.process.wait(PATIENCE) == 0
    assert sidecar.stopped() == (0, 0, 0)


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
            before, after = await client.promote(scaling(2.0, 2.0), "client")
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
                await client.promote("not json", "client")

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

    monkeypatch.setattr(service_module, "decode_process_request", broken)
    monkeypatch.setattr(service_module, "decode_truth_request", broken)
    service = service_module.Service(Pipeline(Config()), Events(), WireLimits(1000, 10))
    call = Call(b"anything", b"more")
    asyncio.run(getattr(service, method)(None, call))
    assert len(call.written) == 2
    text = str(response.FromString(call.written[1]))
    assert "REASON_INTERNAL" in text
    assert "secret" not in text
    assert "secret" in caplog.text
    assert service.pipeline.counters.internal_errors == 2
    assert service.open_streams == 0
