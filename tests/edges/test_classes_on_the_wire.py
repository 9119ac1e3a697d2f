"""Class probabilities and true classes there and back: fast way, slow way, and what is no good."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.classes import MOST_VALUES
from monitor.frames.detections import Examined, Limits, Reason, examine
from monitor.frames.frame import Header, ReceivedFrame, ReceivedTruth, Refusal
from monitor.frames.space import plain_space
from monitor.pipeline.streams import Stream
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.answers import encode_process_response
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_truth
from monitor.wire.requests import decode_process_request, decode_truth_request, detection_tail
from tests import laws
from tests.as_protobuf import (
    LIMITS,
    TAIL,
    assert_decoded_as_protobuf_does,
    assert_same_frame,
    on_wire,
)
from tests.piped import pipeline_of
from tests.written import doubles, in_request, tagged, varint

XY = plain_space(("x", "y"), "m")
CLASSES = ("car", "truck", "person")


def frame_of(count=3, **fields: Any):
    """A frame of good detections; fields of all of them, by row."""
    detections = [
        frame_pb2.Detection(
            id=i,
            class_index=0,
            mean=[1, i],
            covariance=[1, 1],
            **{name: values[i] for name, values in fields.items()},
        )
        for i in range(count)
    ]
    return frame_pb2.Frame(frame_id=1, stamp_ns=2, detections=detections)


def received(frame, tail=TAIL) -> ReceivedFrame:
    found = decode_process_request(in_request(frame.SerializeToString()), LIMITS, tail)
    assert isinstance(found, ReceivedFrame)
    assert_same_frame(found, frame)
    return found


def looked_at(frame, tail=TAIL) -> Examined:
    return examine(received(frame, tail).detections, XY, len(CLASSES), Limits())


def eighths(n, m=1, classes=3):
    """(n, m, C) opinions that nothing rounds."""
    parts = np.random.default_rng(n).integers(0, 8 // classes + 1, (n, m, classes)) / 8.0
    parts[:, :, 0] += 1 - parts.sum(axis=2)
    return parts


# ---- decoding


def test_what_no_detection_has_is_not_there():
    for frame in (frame_of(), frame_of(0)):
        found = received(frame).detections
        assert (found.class_probabilities, found.ground_truth_class) == (None, None)


@pytest.mark.parametrize("m", [1, 2, 7])
def test_what_every_detection_has_is_read_the_fast_way(m):
    opinions, tail = eighths(3, m), detection_tail()
    flat = opinions.reshape(3, -1)
    frame = frame_of(class_probabilities=flat, ground_truth_class=[0, 2, 2**32 - 1])
    for _ in range(2):
        found = received(frame, tail)
        assert found.fast
        assert found.detections.uniform
        assert found.detections.class_probabilities is not None
        values, length = found.detections.class_probabilities
        assert values.tolist() == flat.tolist()
        assert length.tolist() == [3 * m] * 3
        assert found.detections.ground_truth_class is not None
        assert found.detections.ground_truth_class[0].tolist() == [0, 2, 2**32 - 1]
        assert found.detections.ground_truth_class[1].all()


@pytest.mark.parametrize("m", [1, 4])
def test_logits_of_every_detection_are_read_the_fast_way(m):
    logits, tail = 20 * eighths(3, m).reshape(3, -1) - 10, detection_tail()
    frame = frame_of(class_logits=logits, ground_truth_class=[0, 1, 2])
    for _ in range(2):
        found = received(frame, tail)
        assert found.fast
        assert found.detections.class_probabilities is None
        assert found.class_logits is not None
        assert found.class_logits[0].tolist() == logits.tolist()
        assert found.class_logits[1].tolist() == [3 * m] * 3


def test_logits_of_some_detections_are_marked_where_they_are_absent():
    frame = frame_of(3)
    frame.detections[1].class_logits.extend([5.0, 0.25, -float("inf")])
    frame.detections[2].class_probabilities.extend([0.5, 0.25, 0.25])
    found = received(frame)
    assert found.class_logits is not None
    assert found.class_logits[1].tolist() == [0, 3, 0]
    assert found.detections.class_probabilities is not None
    assert found.detections.class_probabilities[1].tolist() == [0, 0, 3]


def test_what_some_detections_have_is_marked_where_it_is_absent():
    frame = frame_of(4)
    frame.detections[1].class_probabilities.extend([0.5, 0.25, 0.25])
    frame.detections[3].class_probabilities.extend([1.0])
    frame.detections[3].ground_truth_class = 0
    found = received(frame)
    assert not found.fast
    assert found.detections.class_probabilities is not None
    assert found.detections.class_probabilities[1].tolist() == [0, 3, 0, 1]
    assert found.detections.ground_truth_class is not None
    assert found.detections.ground_truth_class[1].tolist() == [False, False, False, True]
    assert found.detections.ground_truth_class[0][3] == 0


@given(
    st.integers(1, 5),
    st.sampled_from([0, 3, 6, 4, 1]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_the_slow_way_reads_and_finds_what_the_fast_way_does(n, width, true, sound, data):
    fields: dict[str, Any] = {}
    if width:
        usable = sound and width % 3 == 0
        fields["class_probabilities"] = (
            eighths(n, width // 3).reshape(n, -1)
            if usable
            else [data.draw(doubles(width)) for _ in range(n)]
        )
    if true:
        fields["ground_truth_class"] = [data.draw(st.integers(0, 3)) for _ in range(n)]
    frame = frame_of(n, **fields)
    mixed = frame_pb2.Frame()
    mixed.CopyFrom(frame)
    mixed.detections.add(id=n, class_index=0, mean=[0, 0])  # no covariance: not in the batch
    fast, slow = received(frame), received(mixed)
    assert fast.fast
    assert not slow.fast
    with np.errstate(all="raise"):
        one, other = looked_at(frame), looked_at(mixed)
    laws.assert_same(one.batch, other.batch)
    assert one.probabilities_invalid.tolist() == other.probabilities_invalid[:-1].tolist()
    assert one.true_class_invalid.tolist() == other.true_class_invalid[:-1].tolist()


def test_more_values_than_are_kept_are_counted_and_set_aside():
    long = np.tile([1.0, 0.0, 0.0], MOST_VALUES // 3 + 1)
    for frame in (frame_of(2, class_probabilities=[long, long]), frame_of(2)):
        if not frame.detections[0].class_probabilities:
            frame.detections[1].class_probabilities.extend(long)
        found = received(frame)
        assert found.overlong == {}
        assert found.detections.class_probabilities is not None
        assert found.detections.class_probabilities[1][1] == long.size
        examined = looked_at(frame)
        assert (examined.reason == Reason.NONE).all()
        assert examined.probabilities_invalid[1]
        assert examined.batch.probabilities is None


@pytest.mark.parametrize(
    "field",
    [
        b"\x42\x07" + bytes(7),  # not whole doubles
        b"\x42\x40" + bytes(8),  # a length beyond the detection
        b"\x42" + varint(2**63) + bytes(8),
        b"\x4d\x00\x00",  # half a fixed32
        b"\x52\x07" + bytes(7),  # logits that are not whole doubles
    ],
)
def test_malformed_values_are_answered_whether_the_layout_is_known_or_not(field):
    frame, tail = frame_of(class_probabilities=eighths(3)[:, 0]), detection_tail()
    received(frame, tail)
    good = frame.detections[0].SerializeToString()
    data = in_request(tagged(15, 2, good) + tagged(15, 2, good + field))
    assert_decoded_as_protobuf_does(data, tail)
    refusal = decode_process_request(data, LIMITS, tail)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.MALFORMED


def test_values_one_by_one_and_in_pieces_are_read_as_protobuf_reads_them():
    single = b"".join(tagged(8, 1, struct.pack("<d", p)) for p in (0.5, 0.25))
    rest = tagged(8, 2, struct.pack("<d", 0.25)) + tagged(9, 5, struct.pack("<I", 2))
    detection = tagged(1, 1, bytes(8)) + single + rest
    assert_decoded_as_protobuf_does(in_request(tagged(15, 2, detection) * 2))


# ---- there and back


def outgoing(opinions, true_class) -> OutgoingFrame:
    n = len(opinions)
    return OutgoingFrame(
        frame_id=5,
        stamp_ns=6,
        id=np.arange(n, dtype=np.uint64),
        class_index=np.zeros(n, np.int64),
        mean=np.zeros((n, 2)),
        covariance=np.ones((n, 2)),
        class_probabilities=opinions,
        true_class=true_class,
    )


@given(st.integers(1, 6), st.integers(1, 4), st.booleans(), st.data())
def test_what_the_client_says_of_classes_is_what_the_batch_holds(n, m, several, data):
    opinions = eighths(n, m if several else 1)
    true = np.array([data.draw(st.integers(0, 2)) for _ in range(n)], np.int64)
    sent = outgoing(opinions if several else opinions[:, 0], true)
    found = decode_process_request(encode_frame(sent), LIMITS, TAIL)
    assert isinstance(found, ReceivedFrame)
    assert found.fast
    examined = examine(found.detections, XY, len(CLASSES), Limits())
    assert examined.clean
    laws.assert_same(examined.batch.probabilities, opinions)
    laws.assert_same(examined.batch.true_class, true)


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_logits_come_out_as_the_client_put_them_in(n, m, data):
    logits = np.array(data.draw(doubles(3 * n * m))).reshape(n, m, 3)
    sent = replace(outgoing(eighths(n), None), class_probabilities=None, class_logits=logits)
    found = decode_process_request(encode_frame(sent), LIMITS, TAIL)
    assert isinstance(found, ReceivedFrame)
    assert found.class_logits is not None
    assert found.class_logits[0].tobytes() == logits.tobytes()
    assert found.detections.class_probabilities is None


@given(st.lists(st.integers(0, 2**32 - 1), max_size=5), st.booleans())
def test_classes_of_late_truth_come_out_as_the_client_put_them_in(classes, placed):
    n = len(classes)
    ids, index = np.arange(n, dtype=np.uint64), np.array(classes, np.int64)
    truth = np.full((n, 2), 0.5) if placed else None
    found = decode_truth_request(encode_truth("lidar", 1, ids, truth, class_index=index), LIMITS)
    assert isinstance(found, ReceivedTruth)
    laws.assert_same(found.class_index, index)
    assert found.truth_length.tolist() == [2 if placed else 0] * n
    without = decode_truth_request(encode_truth("lidar", 1, ids, truth), LIMITS)
    assert isinstance(without, ReceivedTruth)
    laws.assert_same(without, replace(found, class_index=np.full(n, -1)))


# ---- through the pipeline


def test_unusable_probabilities_are_answered_with_words_and_their_detection_as_ever():
    pipeline = pipeline_of()
    stream = pipeline.register(Header("lidar", XY, CLASSES))
    assert isinstance(stream, Stream)
    opinions = eighths(3)[:, 0]
    opinions[1, 0] = np.nan
    true_class = np.array([0, 1, 7])
    answers = []
    for frame in (
        outgoing(opinions, true_class),
        replace(outgoing(opinions, None), class_probabilities=None, frame_id=6),
    ):
        found = decode_process_request(encode_frame(frame), LIMITS, TAIL)
        assert isinstance(found, ReceivedFrame)
        data = encode_process_response(pipeline.process(stream, found), 1)
        answers.append(perception_monitor_pb2.ProcessResponse.FromString(data).frame)
    classified, plain = answers
    assert pipeline.counters.internal_errors == 0
    assert list(classified.detections) == list(plain.detections)
    (notice,) = classified.notices
    assert notice.reason == on_wire(Reason.CLASS_PROBABILITIES_INVALID)
    assert notice.reason == frame_pb2.REASON_CLASS_PROBABILITIES_INVALID
    assert (notice.field, notice.count, notice.first_index) == ("class_probabilities", 2, 1)
    assert notice.message.startswith("value 0 is nan: send 3 values")
    assert not plain.notices
