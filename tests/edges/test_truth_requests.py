"""Objects, regions and what else a labeller says of a frame, against protobuf's own reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Reason
from monitor.frames.frame import ReceivedTruth, Refusal, TruthAnswer
from monitor.frames.space import MOST_CLASSES
from monitor.v1 import perception_monitor_pb2, truth_pb2
from monitor.wire.answers import encode_truth_response
from monitor.wire.requests import MOST_REGIONS, WIDEST, WIDEST_COVARIANCE, decode_truth_request
from tests.as_protobuf import LIMITS, assert_padded
from tests.written import IDS, damaged, tagged

doubles = st.lists(st.floats(width=64), max_size=4)
told_objects = st.fixed_dictionaries(
    {},
    optional={
        "object_id": IDS,
        "class_index": st.integers(0, 2**32 - 1),
        "ground_truth": doubles,
        "covariance": doubles,
        "ignore": st.booleans(),
        "stamp_ns": st.integers(-(2**63), 2**63 - 1),
    },
)
regions = st.fixed_dictionaries(
    {},
    optional={
        "class_index": st.integers(0, 2**32 - 1),
        "dimensions": st.lists(st.text(max_size=3), max_size=3),
        "lower": doubles,
        "upper": doubles,
    },
)


def built(fields: dict[str, Any]) -> truth_pb2.FrameTruth:
    return truth_pb2.FrameTruth(**fields)


truths = st.fixed_dictionaries(
    {"stream": st.text(max_size=4)},
    optional={
        "frame_id": IDS,
        "complete": st.booleans(),
        "revision": st.integers(0, 2**32 - 1),
        "coordinate_frame": st.text(max_size=4),
        "class_names": st.lists(st.text(max_size=4), max_size=3),
        "objects": st.lists(
            st.builds(lambda fields: truth_pb2.TruthObject(**fields), told_objects), max_size=5
        ),
        "ignore_regions": st.lists(
            st.builds(lambda fields: truth_pb2.IgnoreRegion(**fields), regions), max_size=3
        ),
        "detections": st.lists(
            st.builds(
                lambda id, truth: truth_pb2.DetectionTruth(detection_id=id, ground_truth=truth),
                IDS,
                doubles,
            ),
            max_size=3,
        ),
    },
).map(built)


def request_of(truth: truth_pb2.FrameTruth) -> bytes:
    return perception_monitor_pb2.ReportGroundTruthRequest(truth=truth).SerializeToString()


def decoded(data: bytes) -> ReceivedTruth:
    found = decode_truth_request(data, LIMITS)
    assert isinstance(found, ReceivedTruth)
    return found


def assert_same(found: ReceivedTruth, truth: truth_pb2.FrameTruth) -> None:
    assert found.stream == truth.stream
    assert found.frame_id == (truth.frame_id if truth.HasField("frame_id") else None)
    assert found.complete == truth.complete
    assert found.revision == truth.revision
    assert found.coordinate_frame == truth.coordinate_frame
    assert found.class_names == tuple(truth.class_names)
    assert found.id.tolist() == [label.detection_id for label in truth.detections]
    assert_padded(
        found.truth, found.truth_length, [label.ground_truth for label in truth.detections]
    )
    assert found.n == len(truth.detections) + len(truth.objects)
    assert_same_objects(found, list(truth.objects))
    assert len(found.regions) == len(truth.ignore_regions)
    for region, sent in zip(found.regions, truth.ignore_regions, strict=True):
        assert region.class_index == (sent.class_index if sent.HasField("class_index") else -1)
        assert region.dimensions == tuple(sent.dimensions)
        np.testing.assert_array_equal(region.lower, sent.lower)
        np.testing.assert_array_equal(region.upper, sent.upper)


def assert_same_objects(found: ReceivedTruth, sent: list[truth_pb2.TruthObject]) -> None:
    objects = found.foreign
    if objects is None:
        assert not sent
        return
    assert objects.id.tolist() == [one.object_id for one in sent]
    assert objects.has_id.tolist() == [one.HasField("object_id") for one in sent]
    assert objects.class_index.dtype == objects.stamp_ns.dtype == np.int64
    assert objects.class_index.tolist() == [
        one.class_index if one.HasField("class_index") else -1 for one in sent
    ]
    assert_padded(objects.truth, objects.truth_length, [one.ground_truth for one in sent])
    assert_padded(objects.covariance, objects.covariance_length, [one.covariance for one in sent])
    assert objects.ignore.tolist() == [one.ignore for one in sent]
    assert objects.stamp_ns.tolist() == [one.stamp_ns for one in sent]
    assert objects.has_stamp.tolist() == [one.HasField("stamp_ns") for one in sent]


@given(truths)
def test_all_that_a_labeller_says_is_decoded_as_protobuf_reads_it(truth):
    assert_same(decoded(request_of(truth)), truth)


@given(truths, truths)
def test_labels_in_two_pieces_are_decoded_as_protobuf_merges_them(first, second):
    data = request_of(first) + request_of(second)
    merged = perception_monitor_pb2.ReportGroundTruthRequest.FromString(data)
    assert_same(decoded(data), merged.truth)


@given(damaged(truths.map(request_of)))
def test_damaged_labels_are_refused_or_are_what_protobuf_reads(data):
    found = decode_truth_request(data, LIMITS)
    if isinstance(found, Refusal):
        assert found.reason is Reason.MALFORMED
    else:
        message = perception_monitor_pb2.ReportGroundTruthRequest.FromString(data)
        assert_same(found, message.truth)


def test_fields_of_a_newer_client_are_passed_over():
    newer = tagged(1000, 2, b"more")
    body = tagged(1, 2, b"lidar") + newer
    body += tagged(7, 2, tagged(1, 1, (9).to_bytes(8, "little")) + newer)
    body += tagged(8, 2, tagged(2, 2, b"x") + newer)
    found = decoded(tagged(1, 2, body))
    assert found.foreign is not None
    assert found.foreign.id.tolist() == [9]
    assert found.regions[0].dimensions == ("x",)


def test_values_too_many_for_the_arrays_keep_their_number():
    truth = truth_pb2.FrameTruth(stream="lidar")
    truth.objects.add(ground_truth=np.arange(WIDEST + 1.0), covariance=[1.0])
    truth.objects.add(ground_truth=[1.0], covariance=np.arange(WIDEST_COVARIANCE + 1.0))
    objects = decoded(request_of(truth)).foreign
    assert objects is not None
    assert objects.truth_length.tolist() == [WIDEST + 1, 1]
    assert objects.covariance_length.tolist() == [1, WIDEST_COVARIANCE + 1]
    assert objects.covariance.shape[1] <= WIDEST_COVARIANCE


@pytest.mark.parametrize(
    ("field", "one", "most"),
    [
        ("objects", lambda truth: truth.objects.add(object_id=1), LIMITS.max_detections),
        ("ignore_regions", lambda truth: truth.ignore_regions.add(), MOST_REGIONS),
        ("class_names", lambda truth: truth.class_names.append("car"), MOST_CLASSES),
    ],
)
def test_as_many_as_allowed_pass_and_one_more_is_refused(field, one, most):
    truth = truth_pb2.FrameTruth(stream="lidar")
    for _ in range(most):
        one(truth)
    assert isinstance(decode_truth_request(request_of(truth), LIMITS), ReceivedTruth)
    one(truth)
    refusal = decode_truth_request(request_of(truth), LIMITS)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (Reason.TOO_MANY_DETECTIONS, field)
    assert f"{most + 1} of them: at most {most}" in refusal.message


counts = st.lists(st.integers(0, 2**40), min_size=9, max_size=9)


@given(counts, st.none() | IDS, st.booleans(), st.integers(0, 2**40))
def test_the_answer_says_what_became_of_objects_and_whether_it_lasts(
    values, frame_id, durable, retracted
):
    account = TruthAccount(*values)
    names = list(TruthAccount.__dataclass_fields__)
    response = perception_monitor_pb2.ReportGroundTruthResponse(
        stream="lidar",
        account=truth_pb2.TruthAccount(**dict(zip(names, values, strict=True))),
        durable=durable,
        retracted=retracted,
    )
    if frame_id is not None:
        response.frame_id = frame_id
    answer = TruthAnswer(account, retracted=retracted, durable=durable)
    assert encode_truth_response("lidar", frame_id, answer) == response.SerializeToString()
