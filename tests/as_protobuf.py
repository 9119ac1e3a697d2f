"""Decoded arrays against protobuf's own reading of the same bytes; functions, not tests."""

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from monitor.frames.detections import Reason
from monitor.frames.frame import Header, ReceivedFrame, Refusal
from monitor.v1 import perception_monitor_pb2
from monitor.wire.requests import WireLimits, decode_process_request, detection_tail
from tests.written import packed

LIMITS = WireLimits(max_message_bytes=2**20, max_detections=64)
WIDE = WireLimits(max_message_bytes=2**20, max_detections=10_000)
TAIL = detection_tail()  # remembers the layout of whatever it read before


def on_wire(value) -> Any:
    """The number of an enum; the stubs ask for the generated type."""
    return int(value)


def parsed(kind, data):
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def layout_of(detection):
    """Which fields there are, and how many values in each."""
    return tuple(
        (field.number, len(value) if field.number in (4, 5, 6, 8, 10) else 1)
        for field, value in detection.ListFields()
    )


def without_unknown_fields(message):
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.SerializeToString() == message.SerializeToString()


def assert_padded(values, lengths, sent):
    """The arrays hold the values sent, and NaN beyond them."""
    assert lengths.tolist() == [len(row) for row in sent]
    assert values.shape[0] == len(sent)
    for found, row in zip(values, sent, strict=True):
        kept = min(len(row), values.shape[1])
        assert found[:kept].tobytes() == packed(row[:kept])
        assert np.isnan(found[kept:]).all()


def assert_same_frame(received, frame):
    assert isinstance(received, ReceivedFrame)
    assert received.frame_id == (frame.frame_id if frame.HasField("frame_id") else None)
    assert received.stamp_ns == (frame.stamp_ns if frame.HasField("stamp_ns") else None)
    found, sent = received.detections, list(frame.detections)
    assert found.n == len(sent)
    assert found.id.tolist() == [d.id for d in sent]
    assert found.has_id.tolist() == [d.HasField("id") for d in sent]
    classes = [d.class_index if d.HasField("class_index") else -1 for d in sent]
    assert found.class_index.tolist() == classes
    assert_padded(found.mean, found.mean_length, [d.mean for d in sent])
    assert_padded(found.covariance, found.covariance_length, [d.covariance for d in sent])
    assert_padded(found.truth, found.truth_length, [d.ground_truth for d in sent])
    scores = [[d.score] if d.HasField("score") else [] for d in sent]
    lengths = np.array([len(row) for row in scores])
    assert_same_rows(None if found.score is None else (found.score[:, None], lengths), scores)
    assert_same_rows(found.class_probabilities, [d.class_probabilities for d in sent])
    assert_same_rows(received.class_logits, [d.class_logits for d in sent])
    assert_same_scalars(found.upstream_track, sent, "upstream_track_id")
    assert_same_scalars(found.ground_truth_class, sent, "ground_truth_class")
    assert_same_ego(received.ego, frame)
    if len({layout_of(d) for d in sent}) > 1:
        assert not received.fast
    elif without_unknown_fields(frame):
        assert received.fast


def assert_same_rows(found, sent):
    """Optional values, row by row: None where no row has any."""
    if not any(sent):
        assert found is None
    else:
        values, lengths = found
        assert_padded(values, lengths, sent)


def assert_same_scalars(found, sent, field):
    """Optional numbers and which rows have them: None where no row has any."""
    has = [d.HasField(field) for d in sent]
    if not any(has):
        assert found is None
        return
    assert found[1].dtype == np.bool_
    assert found[1].tolist() == has
    assert found[0][has].tolist() == [getattr(d, field) for d in sent if d.HasField(field)]


def assert_same_ego(ego, frame):
    sent = [frame.HasField(name) for name in ("ego_pose", "ego_twist")]
    assert (ego is not None) == any(sent)
    if ego is None:
        return
    assert [ego.pose is not None, ego.twist is not None] == sent
    if ego.pose is not None:
        assert_same_values(ego.pose.position, frame.ego_pose.position)
        assert_same_values(ego.pose.orientation, frame.ego_pose.orientation)
    if ego.twist is not None:
        assert_same_values(ego.twist.linear, frame.ego_twist.linear)
        assert_same_values(ego.twist.angular, frame.ego_twist.angular)


def assert_same_values(found, sent):
    assert (found.dtype, found.shape) == (np.float64, (len(sent),))
    assert found.tobytes() == packed(sent)


def assert_same_header(found, header):
    assert isinstance(found, Header)
    assert found.stream == header.stream
    assert found.classes == tuple(header.class_names)
    assert found.coordinate_frame == header.coordinate_frame
    assert found.return_tracks == header.return_tracks
    assert packed(found.quantile_levels) == packed(header.quantile_levels)
    assert [(d.name, d.unit) for d in found.space.dimensions] == [
        (d.name, d.unit) for d in header.dimensions
    ]
    kinds = [d.kind if d.kind in (1, 2, 3) else 1 for d in header.dimensions]
    assert [int(d.kind) for d in found.space.dimensions] == kinds


def assert_decoded_as_protobuf_does(data, *tails):
    """With any reader: one that knows another layout, one that knows none, one that knows this."""
    unused = detection_tail()
    for tail in (*tails, TAIL, unused, unused):
        decoded = decode_process_request(data, WIDE, tail)
        request = parsed(perception_monitor_pb2.ProcessRequest, data)
        if request is None or request.WhichOneof("message") is None:
            assert isinstance(decoded, Refusal)
            assert decoded.reason is Reason.MALFORMED
        elif request.WhichOneof("message") == "header":
            assert_same_header(decoded, request.header)
        else:
            assert_same_frame(decoded, request.frame)
