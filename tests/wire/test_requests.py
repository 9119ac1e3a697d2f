"""Requests of detectors and labellers, decoded to arrays: what protobuf itself reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.classes import MOST_VALUES
from monitor.frames.detections import Examined, Limits, Reason, examine
from monitor.frames.frame import ReceivedFrame, ReceivedTruth, Refusal
from monitor.frames.space import MOST_CLASSES, plain_space
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.requests import (
    MOST_REGIONS,
    decode_process_frame_request,
    decode_process_request,
    decode_truth_request,
    detection_tail,
)
from tests.as_protobuf import (
    LIMITS,
    TAIL,
    WIDE,
    assert_decoded_as_protobuf_does,
    assert_padded,
    assert_same_frame,
    assert_same_header,
    parsed,
)
from tests.mutations import PROCESS_REQUEST, TRUTH_REQUEST, Mutations
from tests.written import IDS, doubles, in_request, names, tagged, varint

XY = plain_space(("x", "y"), "m")


def received(frame, tail=TAIL) -> ReceivedFrame:
    found = decode_process_request(in_request(frame.SerializeToString()), LIMITS, tail)
    assert isinstance(found, ReceivedFrame)
    assert_same_frame(found, frame)
    return found


UINT32, INT64 = st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1)


def messages(kind, **fields):
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


@st.composite
def gone_wrong(draw, valid, shape):
    """Bytes of a message as another client may write them, or an enemy."""
    data = draw(valid).SerializeToString()
    made = Mutations([data], shape, random.Random(draw(st.integers(0, 2**32))))
    return made.next() if draw(st.integers(0, 4)) else data


# ---- frames and headers


def some(*counts):
    return st.sampled_from(counts).flatmap(doubles)


MOTIONS = {
    "ego_pose": messages(frame_pb2.Pose, position=some(3, 3, 0, 20), orientation=some(4, 3)),
    "ego_twist": messages(frame_pb2.Twist, linear=some(3, 3, 1), angular=some(3, 0)),
}


def detections(k):
    return messages(
        frame_pb2.Detection,
        id=IDS,
        class_index=UINT32,
        score=st.floats(),
        mean=some(k, k, 0, k + 1),
        covariance=some(k, k * (k + 1) // 2, k * k, 1),
        ground_truth=some(k, k - 1),
        upstream_track_id=IDS,
        class_probabilities=some(k, 3 * k),
        ground_truth_class=UINT32,
        class_logits=some(k, 2 * k),
    )


frames = st.integers(1, 8).flatmap(
    lambda k: messages(
        frame_pb2.Frame,
        frame_id=IDS,
        stamp_ns=INT64,
        detections=st.lists(detections(k), max_size=5),
        **MOTIONS,
    )
)
REQUESTS = gone_wrong(
    frames.map(lambda frame: perception_monitor_pb2.ProcessRequest(frame=frame)), PROCESS_REQUEST
)


@given(REQUESTS, REQUESTS)
def test_a_request_is_refused_or_is_what_protobuf_reads_however_it_is_written(first, second):
    assert_decoded_as_protobuf_does(first)
    assert_decoded_as_protobuf_does(first + second)  # protobuf merges the two pieces


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_what_protobuf_reads(data):
    assert_decoded_as_protobuf_does(data)
    assert_decoded_as_protobuf_does(in_request(data))
    assert_truth_decoded_as_protobuf_does(data)
    decode_process_frame_request(data, LIMITS)


@given(
    frames.map(lambda frame: frame.SerializeToString()),
    st.sampled_from([None, b"", tagged(1, 2, b"camera")]),
    st.booleans(),
)
def test_a_unary_frame_is_decoded_as_protobuf_reads_it(frame, header, framed):
    data = tagged(1, 2, b"lidar") + (b"" if header is None else tagged(2, 2, header))
    data += tagged(15, 2, frame) if framed else b""
    decoded = decode_process_frame_request(data, LIMITS)
    request = perception_monitor_pb2.ProcessFrameRequest.FromString(data)
    if not framed:
        assert isinstance(decoded, Refusal)
        assert (decoded.reason, decoded.field) == (Reason.MALFORMED, "frame")
        return
    assert not isinstance(decoded, Refusal)
    stream, found_header, found = decoded
    assert stream == request.stream
    assert_same_frame(found, request.frame)
    assert (found_header is not None) == (header is not None)
    if found_header is not None:
        assert_same_header(found_header, request.header)


headers = st.builds(
    frame_pb2.StreamHeader,
    stream=names,
    dimensions=st.lists(
        st.builds(frame_pb2.Dimension, name=names, unit=names, kind=st.sampled_from([0, 1, 2, 3])),
        max_size=4,
    ),
    class_names=st.lists(names, max_size=4),
    coordinate_frame=names,
    return_tracks=st.booleans(),
    quantile_levels=st.integers(0, 20).flatmap(doubles),
)


@given(headers)
def test_a_header_is_decoded_as_protobuf_reads_it(header):
    request = perception_monitor_pb2.ProcessRequest(header=header)
    assert_decoded_as_protobuf_does(request.SerializeToString())


def test_an_unknown_kind_of_dimension_is_refused_rather_than_measured_wrongly():
    data = tagged(1, 2, tagged(2, 2, tagged(1, 2, b"x") + tagged(3, 0, varint(99))))
    decoded = decode_process_request(data, LIMITS, TAIL)
    assert isinstance(decoded, Refusal)
    assert (decoded.reason, decoded.field) == (Reason.INVALID_HEADER, "dimensions.kind")
    assert "99 of 'x'" in decoded.message


def test_detections_too_long_for_the_arrays_keep_their_length_and_their_bytes():
    long_mean = frame_pb2.Detection(id=1, mean=np.arange(33.0), covariance=[1.0])
    long_covariance = frame_pb2.Detection(id=2, mean=[1.0], covariance=np.arange(1025.0))
    short = frame_pb2.Detection(id=3, mean=[1.0])
    decoded = received(frame_pb2.Frame(detections=[long_mean, short, long_covariance]))
    assert decoded.detections.mean.shape == (3, 32)
    assert decoded.detections.covariance.shape == (3, 1024)
    assert dict(decoded.overlong) == {
        0: long_mean.SerializeToString(),
        2: long_covariance.SerializeToString(),
    }


# ---- limits


def decode_frame(data, limits):
    """Decodes with a reader that has seen nothing, as the other decoders do."""
    return decode_process_request(data, limits, detection_tail())


DECODERS = [
    (decode_frame, in_request),
    (decode_process_frame_request, lambda frame: tagged(15, 2, frame)),
    (decode_truth_request, lambda frame: tagged(1, 2, frame)),
]


@pytest.mark.parametrize(("decode", "wrap"), DECODERS)
def test_as_many_detections_and_bytes_as_allowed_pass_and_one_more_is_refused(decode, wrap):
    one = tagged(15, 2, tagged(1, 1, bytes(8)))
    assert not isinstance(decode(wrap(one * 64), LIMITS), Refusal)
    refusal = decode(wrap(one * 65), LIMITS)
    assert refusal.reason is Reason.TOO_MANY_DETECTIONS
    assert "65 of them: at most 64 in a frame" in refusal.message
    data = wrap(tagged(15, 2, b""))
    data += tagged(1000, 2, bytes(2**20 - len(data) - 5))
    assert len(data) == 2**20
    assert not isinstance(decode(data, LIMITS), Refusal)
    refusal = decode(data + b"\x00", LIMITS)
    assert refusal.reason is Reason.TOO_LARGE
    assert f"{2**20 + 1} bytes" in refusal.message


@pytest.mark.parametrize(("decode", "wrap"), DECODERS)
@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_a_length_beyond_the_message_is_refused(decode, wrap, length):
    outer = b"\x12" + varint(length) + b"\x7a\x00"
    inner = wrap(b"\x7a" + varint(length) + bytes(20))
    values = wrap(tagged(15, 2, b"\x22" + varint(length) + bytes(24)))
    for data in (outer, inner, values):
        assert decode(data, LIMITS).reason is Reason.MALFORMED


# ---- class probabilities, logits and true classes


def frame_of(count=3, **fields: Any):
    frame = frame_pb2.Frame(frame_id=1, stamp_ns=2)
    for i in range(count):
        own = {name: values[i] for name, values in fields.items()}
        frame.detections.add(id=i, class_index=0, mean=[1, i], covariance=[1, 1], **own)
    return frame


def looked_at(frame) -> Examined:
    return examine(received(frame).detections, XY, 3, Limits())


@pytest.mark.parametrize("first", [True, False])
def test_more_class_values_than_are_kept_are_counted_and_set_aside(first):
    long = np.tile([1.0, 0.0, 0.0], MOST_VALUES // 3 + 1)
    frame = frame_of(2)
    for row in (0, 1) if first else (1,):
        frame.detections[row].class_probabilities.extend(long)
    found = received(frame)
    assert found.overlong == {}
    assert found.detections.class_probabilities is not None
    assert found.detections.class_probabilities[1][1] == long.size
    examined = looked_at(frame)
    assert (examined.reason == Reason.NONE).all()
    assert examined.probabilities_invalid[1]
    assert examined.batch.probabilities is None


# ---- labels, by detection id and as objects with regions

few = st.lists(st.floats(width=64), max_size=4)
told_objects = messages(
    truth_pb2.TruthObject,
    object_id=IDS,
    class_index=UINT32,
    ground_truth=few,
    covariance=few,
    ignore=st.booleans(),
    stamp_ns=INT64,
)
regions = messages(
    truth_pb2.IgnoreRegion,
    class_index=UINT32,
    dimensions=st.lists(st.text(max_size=3), max_size=3),
    lower=few,
    upper=few,
)
by_id = messages(
    truth_pb2.DetectionTruth,
    detection_id=IDS,
    ground_truth=few,
    ignore=st.booleans(),
    class_index=UINT32,
)
truths = messages(
    truth_pb2.FrameTruth,
    stream=st.text(max_size=4),
    frame_id=IDS,
    stamp_ns=INT64,
    complete=st.booleans(),
    revision=UINT32,
    coordinate_frame=st.text(max_size=4),
    class_names=st.lists(st.text(max_size=4), max_size=3),
    objects=st.lists(told_objects, max_size=5),
    ignore_regions=st.lists(regions, max_size=3),
    detections=st.lists(by_id, max_size=3),
)


def request_of(truth: truth_pb2.FrameTruth) -> bytes:
    return perception_monitor_pb2.ReportGroundTruthRequest(truth=truth).SerializeToString()


def decoded_truth(data: bytes) -> ReceivedTruth:
    found = decode_truth_request(data, WIDE)
    assert isinstance(found, ReceivedTruth)
    return found


def given_or(message, field: str, absent: Any) -> Any:
    return getattr(message, field) if message.HasField(field) else absent


def assert_truth_decoded_as_protobuf_does(data: bytes) -> None:
    request = parsed(perception_monitor_pb2.ReportGroundTruthRequest, data)
    if request is None:
        refusal = decode_truth_request(data, WIDE)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.MALFORMED
        return
    found, truth = decoded_truth(data), request.truth
    labels = list(truth.detections)
    for name in ("stream", "complete", "revision", "coordinate_frame"):
        assert getattr(found, name) == getattr(truth, name)
    assert found.frame_id == given_or(truth, "frame_id", None)
    assert found.stamp_ns == given_or(truth, "stamp_ns", None)
    assert found.class_names == tuple(truth.class_names)
    assert found.id.tolist() == [label.detection_id for label in labels]
    assert found.has_id.tolist() == [label.HasField("detection_id") for label in labels]
    assert found.ignore.tolist() == [label.ignore for label in labels]
    assert_padded(found.truth, found.truth_length, [label.ground_truth for label in labels])
    assert found.class_index.dtype == np.int64
    classes = [given_or(label, "class_index", -1) for label in labels]
    assert found.class_index.tolist() == classes
    assert found.n == len(labels) + len(truth.objects)
    assert (found.foreign is not None) == bool(truth.objects)
    if found.foreign is not None:
        assert_same_objects(found.foreign, list(truth.objects))
    for region, sent in zip(found.regions, truth.ignore_regions, strict=True):
        assert region.class_index == given_or(sent, "class_index", -1)
        assert region.dimensions == tuple(sent.dimensions)
        np.testing.assert_array_equal(region.lower, sent.lower)
        np.testing.assert_array_equal(region.upper, sent.upper)


def assert_same_objects(found, sent: list[truth_pb2.TruthObject]) -> None:
    assert found.id.tolist() == [one.object_id for one in sent]
    assert found.has_id.tolist() == [one.HasField("object_id") for one in sent]
    assert found.class_index.dtype == found.stamp_ns.dtype == np.int64
    assert found.class_index.tolist() == [given_or(one, "class_index", -1) for one in sent]
    assert_padded(found.truth, found.truth_length, [one.ground_truth for one in sent])
    assert_padded(found.covariance, found.covariance_length, [one.covariance for one in sent])
    assert found.ignore.tolist() == [one.ignore for one in sent]
    assert found.stamp_ns.tolist() == [one.stamp_ns for one in sent]
    assert found.has_stamp.tolist() == [one.HasField("stamp_ns") for one in sent]


TRUTHS = gone_wrong(
    truths.map(lambda truth: perception_monitor_pb2.ReportGroundTruthRequest(truth=truth)),
    TRUTH_REQUEST,
)


@given(TRUTHS, TRUTHS)
def test_labels_are_refused_or_are_what_protobuf_reads_however_they_are_written(first, second):
    assert_truth_decoded_as_protobuf_does(first)
    assert_truth_decoded_as_protobuf_does(first + second)


@pytest.mark.parametrize(
    ("field", "one", "most"),
    [
        ("objects", lambda truth: truth.objects.add(object_id=1), LIMITS.max_detections),
        ("ignore_regions", lambda truth: truth.ignore_regions.add(), MOST_REGIONS),
        ("class_names", lambda truth: truth.class_names.append("car"), MOST_CLASSES),
    ],
)
def test_as_many_parts_of_labels_as_allowed_pass_and_one_more_is_refused(field, one, most):
    truth = truth_pb2.FrameTruth(stream="lidar")
    for _ in range(most):
        one(truth)
    assert isinstance(decode_truth_request(request_of(truth), LIMITS), ReceivedTruth)
    one(truth)
    refusal = decode_truth_request(request_of(truth), LIMITS)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (Reason.TOO_MANY_DETECTIONS, field)
    assert f"{most + 1} of them: at most {most}" in refusal.message
