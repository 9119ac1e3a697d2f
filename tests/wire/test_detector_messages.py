"""Messages of a detector's client: what it sends, and which answers it can use."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.frame import EgoMotion, Header, Pose, ReceivedTruth, TrackIds, Twist
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.v1 import frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import (
    OutgoingFrame,
    Unusable,
    checked,
    encode_frame,
    encode_frames,
    encode_header,
    encode_truth,
    encode_truths,
    index_of,
    read_answer,
)
from monitor.wire.requests import decode_process_request, decode_truth_request
from tests import laws
from tests.as_protobuf import LIMITS, TAIL
from tests.scripted_monitor import frame
from tests.written import IDS, doubles

CLASS = st.integers(0, 2**32 - 1)


@given(st.data())
def test_the_client_sends_what_protobuf_would_write(data):
    draw = data.draw
    n, k = draw(st.integers(0, 4)), draw(st.integers(1, 5))

    def array(*shape):
        return np.array(draw(doubles(int(np.prod(shape))))).reshape(shape)

    def numbers(each, kind):
        return np.array([draw(each) for _ in range(n)], kind)

    def perhaps(made):
        return made if draw(st.booleans()) else None

    full, none = draw(st.booleans()), draw(st.booleans())
    opinions = st.sampled_from([None, array(n, k), array(n, 3, k), array(n, 1, k)])
    sent = OutgoingFrame(
        frame_id=draw(IDS),
        stamp_ns=draw(st.integers(-(2**63), 2**63 - 1)),
        id=numbers(IDS, np.uint64),
        class_index=numbers(CLASS, np.int64),
        mean=array(n, k),
        covariance=None if none else array(n, k, k) if full else array(n, k),
        score=perhaps(array(n)),
        truth=perhaps(array(n, k)),
        upstream_track=perhaps(numbers(IDS, np.uint64)),
        class_probabilities=draw(opinions),
        class_logits=draw(opinions),
        true_class=perhaps(numbers(CLASS, np.int64)),
        ego=perhaps(EgoMotion(Pose(array(3), array(4)), Twist(array(3), array(0)))),
    )
    message = frame_pb2.Frame(frame_id=sent.frame_id, stamp_ns=sent.stamp_ns)
    if sent.ego is not None and sent.ego.pose is not None and sent.ego.twist is not None:
        pose, twist = sent.ego.pose, sent.ego.twist
        message.ego_pose.CopyFrom(
            frame_pb2.Pose(position=pose.position, orientation=pose.orientation)
        )
        message.ego_twist.CopyFrom(frame_pb2.Twist(linear=twist.linear, angular=twist.angular))
    for i in range(n):
        detection = message.detections.add(
            id=int(sent.id[i]), class_index=int(sent.class_index[i]), mean=sent.mean[i]
        )
        if sent.covariance is not None:
            matrix = sent.covariance[i]
            detection.covariance.extend(matrix[np.tril_indices(k)] if full else matrix)
        if sent.score is not None:
            detection.score = sent.score[i]
        if sent.truth is not None:
            detection.ground_truth.extend(sent.truth[i])
        if sent.upstream_track is not None:
            detection.upstream_track_id = int(sent.upstream_track[i])
        if sent.class_probabilities is not None:
            detection.class_probabilities.extend(sent.class_probabilities[i].ravel())
        if sent.class_logits is not None:
            detection.class_logits.extend(sent.class_logits[i].ravel())
        if sent.true_class is not None:
            detection.ground_truth_class = int(sent.true_class[i])
    assert encode_frame(sent) == pb.ProcessRequest(frame=message).SerializeToString()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_frames_and_labels_encoded_at_once_are_those_encoded_one_by_one(sizes, scored, known):
    n, ends = sum(sizes), np.cumsum(sizes).tolist()
    random = np.random.default_rng(sizes)
    ids, numbers, stamps = np.arange(n).astype(np.uint64), range(len(sizes)), [5] * len(sizes)
    mean, covariance = random.normal(size=(n, 2)), random.normal(size=(n, 2, 2))
    score = random.uniform(size=n) if scored else None
    rows = OutgoingFrame(0, 0, ids, np.arange(n), mean, covariance, score)
    objects = TrackIds(ids + np.uint64(7), np.full(n, known) | (ids % 2 == 0))
    messages = encode_frames(numbers, stamps, ends, rows)
    labels = encode_truths("front", numbers, ends, ids, mean, objects)
    for i, (begin, end) in enumerate(pairwise([0, *ends])):
        part = slice(begin, end)
        some = None if score is None else score[part]
        parts = ids[part], np.arange(n)[part], mean[part], covariance[part], some
        assert messages[i] == encode_frame(OutgoingFrame(i, 5, *parts))
        of_part = TrackIds(objects.id[part], objects.known[part])
        assert labels[i] == encode_truth("front", i, ids[part], mean[part], objects=of_part)


@given(st.integers(0, 4), st.integers(1, 5), st.booleans(), st.data())
def test_the_client_sends_labels_as_protobuf_would_write_them(n, k, complete, data):
    draw = data.draw
    ids = np.array([draw(IDS) for _ in range(n)], np.uint64)
    truth = np.array(draw(doubles(n * k))).reshape(n, k) if draw(st.booleans()) else None
    classes = draw(st.none() | st.lists(CLASS, min_size=n, max_size=n))
    index = None if classes is None else np.array(classes, np.int64)
    objects = draw(st.none() | st.lists(st.none() | IDS, min_size=n, max_size=n))
    known = None
    if objects is not None:
        has = np.array([one is not None for one in objects], bool)
        known = TrackIds(np.array([one or 0 for one in objects], np.uint64), has)
    message = truth_pb2.FrameTruth(stream="lidar", frame_id=2**64 - 1, complete=complete)
    for i in range(n):
        label = message.detections.add(detection_id=int(ids[i]))
        if truth is not None:
            label.ground_truth.extend(truth[i])
        if classes is not None:
            label.class_index = classes[i]
        if objects is not None and objects[i] is not None:
            label.object_id = objects[i]
    found = encode_truth(
        *("lidar", 2**64 - 1, ids, truth), class_index=index, complete=complete, objects=known
    )
    assert found == pb.ReportGroundTruthRequest(truth=message).SerializeToString()
    received = decode_truth_request(found, LIMITS)
    assert isinstance(received, ReceivedTruth)
    assert received.class_index.tolist() == ([-1] * n if classes is None else classes)


def test_a_header_comes_out_of_the_wire_as_the_client_put_it_in():
    dimensions = tuple(Dimension(f"d{int(kind)}", "m", kind) for kind in DimensionKind)
    header = Header("lidar", Space(dimensions), ("car", "person"), "base", True, (0.05, 0.95))
    laws.assert_same(decode_process_request(encode_header(header), LIMITS, TAIL), header)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mean", np.zeros((3, 3))),
        ("mean", np.zeros(6)),
        ("covariance", np.zeros((3, 3))),
        ("covariance", np.zeros((2, 2, 2))),
        ("id", np.array([0, 1, -1])),
        ("id", np.array([0.0, 1.0, 2.0])),
        ("class_index", np.zeros(2, int)),
        ("score", np.zeros(2)),
        ("truth", np.zeros((4, 2))),
        ("frame_id", -1),
        ("frame_id", 2**64),
        ("stamp_ns", 2**63),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused_by_name(field, value):
    given_frame: Any = frame()
    object.__setattr__(given_frame, field, value)
    with pytest.raises(ValueError, match=f"^{field}: "):
        checked(given_frame, 2)


@given(st.binary(max_size=200))
@example(b"\x12\x01\x0b")  # a group, which no answer has
@example(b"\x12\x05\x19\x01")
def test_no_bytes_break_the_reading_of_an_answer(data):
    given_frame = checked(frame(), 2)
    for read in (index_of, lambda data: read_answer(data, given_frame)):
        try:
            read(data)
        except Unusable as error:
            assert str(error)
