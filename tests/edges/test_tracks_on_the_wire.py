"""What the tracker adds to the messages: motion of the sensor, scores, upstream tracks, tracks.

Arbitrary messages are compared with protobuf's own reading in test_wire.py.
"""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.commands.sidecar_client import Client
from monitor.frames.detections import Reason
from monitor.frames.frame import (
    EgoMotion,
    FrameAnswer,
    Header,
    Pose,
    ReceivedFrame,
    Refusal,
    ReportedTracks,
    TrackStatus,
    Twist,
)
from monitor.frames.space import Dimension, DimensionKind, plain_space
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.answers import encode_header_answer, encode_process_response, encode_tracks
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    encode_frame,
    track_dimensions,
)
from monitor.wire.requests import decode_process_request, detection_tail
from tests.as_protobuf import LIMITS, assert_decoded_as_protobuf_does, assert_same_frame
from tests.reported import reported_tracks, track_messages
from tests.written import IDS, damaged, doubles, in_request, tagged, unknown_fields

POSE = frame_pb2.Pose(position=[1, 2, 3], orientation=[1, 0, 0, 0])
TWIST = frame_pb2.Twist(linear=[10, 0, 0], angular=[0, 0, 0.1])


def frame_of(n=3, **fields):
    """A frame of n detections of one layout."""
    frame = frame_pb2.Frame(frame_id=1, stamp_ns=-5, **fields)
    for i in range(n):
        frame.detections.add(id=i, class_index=0, mean=[i, 2], covariance=[1, 1])
    return frame


def received(frame, tail=None):
    data = in_request(frame.SerializeToString())
    found = decode_process_request(data, LIMITS, tail or detection_tail())
    assert isinstance(found, ReceivedFrame)
    assert_same_frame(found, frame)
    return found


# ---- motion of the sensor


MOTIONS: dict[str, dict[str, Any]] = {
    "pose": {"ego_pose": POSE},
    "twist": {"ego_twist": TWIST},
    "both": {"ego_pose": POSE, "ego_twist": TWIST},
    "empty pose": {"ego_pose": frame_pb2.Pose()},
    "empty twist beside a pose": {"ego_pose": POSE, "ego_twist": frame_pb2.Twist()},
    "too few values": {"ego_pose": frame_pb2.Pose(position=[1.0])},
    "too many values": {"ego_twist": frame_pb2.Twist(linear=[1.0] * 100)},
}


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_motion_comes_with_as_many_values_as_were_sent(motion):
    tail = detection_tail()
    for _ in range(2):
        assert received(frame_of(**motion), tail).fast
    assert not received(frame_of(0, **motion), tail).detections.n


def test_a_frame_without_motion_has_none():
    assert received(frame_of()).ego is None


@pytest.mark.parametrize("motion", ["pose", "twist", "both", "empty pose"])
def test_frames_with_motion_are_read_where_they_lie(motion, monkeypatch):
    tail, frame = detection_tail(), frame_of(**MOTIONS[motion])
    received(frame, tail)

    def parsed(*_):
        raise AssertionError("the whole message was parsed")

    monkeypatch.setattr("monitor.wire.requests.parse", parsed)
    received(frame, tail)
    frame.ClearField("frame_id")
    received(frame, tail)


MALFORMED = [
    b"\x0a\x07" + bytes(7),  # not whole doubles
    b"\x0a\x20" + bytes(8),  # a length beyond the submessage
    b"\x0c",  # the end of a group that did not begin
    b"\x00",
    b"\xff" * 12,
]


@pytest.mark.parametrize("body", MALFORMED)
@pytest.mark.parametrize("number", [3, 4])
def test_malformed_motion_is_refused_whether_the_layout_is_known_or_not(number, body):
    frame, tail = frame_of(), detection_tail()
    received(frame, tail)
    detections = frame_pb2.Frame(detections=frame.detections).SerializeToString()
    for data in (tagged(number, 2, body) + detections, detections + tagged(number, 2, body)):
        assert_decoded_as_protobuf_does(in_request(data), tail)
        refusal = decode_process_request(in_request(data), LIMITS, tail)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.MALFORMED


def test_a_length_of_two_bytes_is_not_read_as_one():
    frame, tail = frame_of(), detection_tail()
    received(frame, tail)
    # 128 bytes that could be a pose, if the length were the first byte; it is 1280.
    pose = b"\x1a\x80" + tagged(1, 2, bytes(120)) + tagged(3, 0, b"\x00") * 3
    detections = frame_pb2.Frame(detections=frame.detections).SerializeToString()
    assert_decoded_as_protobuf_does(in_request(pose + detections), tail)


@st.composite
def frames_with_motion(draw):
    """As protobuf writes them, and in other orders."""
    frame = frame_of(draw(st.integers(1, 3)), **draw(st.sampled_from(list(MOTIONS.values()))))
    if draw(st.booleans()):
        frame.ClearField("stamp_ns")
    head, tail = frame_pb2.Frame(), frame_pb2.Frame(detections=frame.detections)
    head.CopyFrom(frame)
    head.ClearField("detections")
    pieces = [field_alone(head, field.name) for field, _ in head.ListFields()]
    pieces += draw(st.lists(st.sampled_from(pieces), max_size=1)) if draw(st.booleans()) else []
    if draw(st.booleans()):
        pieces = draw(st.permutations(pieces))
    return b"".join(pieces) + tail.SerializeToString()


def field_alone(frame, name):
    alone = frame_pb2.Frame()
    alone.CopyFrom(frame)
    for field, _ in frame.ListFields():
        if field.name != name:
            alone.ClearField(field.name)
    return alone.SerializeToString()


@given(frames_with_motion() | damaged(frames_with_motion()))
def test_motion_is_read_as_protobuf_does_by_a_reader_that_knows_the_layout(frame):
    tail = detection_tail()
    received(frame_of(), tail)
    assert_decoded_as_protobuf_does(in_request(frame), tail)


@given(st.sampled_from([3, 4]), unknown_fields(2))
def test_fields_of_a_newer_client_in_the_motion_are_passed_over(number, newer):
    detections = frame_pb2.Frame(detections=frame_of().detections).SerializeToString()
    tail = detection_tail()
    received(frame_of(), tail)
    assert_decoded_as_protobuf_does(in_request(tagged(number, 2, newer) + detections), tail)


# ---- scores and upstream tracks


def test_what_no_detection_has_is_not_there():
    found = received(frame_of()).detections
    assert found.score is None
    assert found.upstream_track is None
    empty = received(frame_of(0)).detections
    assert (empty.score, empty.upstream_track) == (None, None)


def test_what_every_detection_has_is_read_the_fast_way():
    frame, tail = frame_of(), detection_tail()
    for i, detection in enumerate(frame.detections):
        detection.score, detection.upstream_track_id = i / 8, 2**64 - 1 - i
    for _ in range(2):
        found = received(frame, tail)
        assert found.fast
        assert found.detections.uniform
        score, upstream = found.detections.score, found.detections.upstream_track
        assert score is not None
        assert upstream is not None
        assert score.tolist() == [0, 1 / 8, 2 / 8]
        assert upstream[0].tolist() == [2**64 - 1, 2**64 - 2, 2**64 - 3]
        assert upstream[1].all()


def test_what_some_detections_have_is_marked_where_it_is_absent():
    frame = frame_of(4)
    frame.detections[1].upstream_track_id = 0
    frame.detections[3].upstream_track_id = 7
    frame.detections[3].score = 0.5
    found = received(frame)
    assert not found.fast
    upstream, score = found.detections.upstream_track, found.detections.score
    assert upstream is not None
    assert score is not None
    assert upstream[0].tolist() == [0, 0, 0, 7]
    assert upstream[1].tolist() == [False, True, False, True]
    assert np.isnan(score).tolist() == [True, True, True, False]


# ---- the client's frames


@st.composite
def motions(draw):
    """Motion of a sensor; now and then with a value too many or too few."""

    def values(count):
        return np.array(draw(doubles(draw(st.sampled_from([count, count, 0, count + 1])))))

    pose = Pose(values(3), values(4)) if draw(st.booleans()) else None
    twist = Twist(values(3), values(3)) if draw(st.booleans()) else None
    return EgoMotion(pose, twist)


@given(motions(), st.integers(0, 2))
def test_the_client_sends_motion_as_protobuf_would_write_it(ego, n):
    message = frame_of(n)
    if ego.pose is not None:
        message.ego_pose.CopyFrom(
            frame_pb2.Pose(position=ego.pose.position, orientation=ego.pose.orientation)
        )
    if ego.twist is not None:
        message.ego_twist.CopyFrom(
            frame_pb2.Twist(linear=ego.twist.linear, angular=ego.twist.angular)
        )
    outgoing = OutgoingFrame(
        frame_id=message.frame_id,
        stamp_ns=message.stamp_ns,
        id=np.arange(n, dtype=np.uint64),
        class_index=np.zeros(n, np.int64),
        mean=np.array([[i, 2.0] for i in range(n)]).reshape(n, 2),
        covariance=np.ones((n, 2)),
        ego=ego,
    )
    data = encode_frame(outgoing)
    assert data == in_request(message.SerializeToString())
    assert_decoded_as_protobuf_does(data)


# ---- tracks


@st.composite
def tracked_frames(draw):
    """Ids of the detections of a frame, and tracks of some of them."""
    ids = draw(st.lists(IDS, max_size=6))
    tracks = draw(reported_tracks(range(len(ids))))
    return np.array(ids, np.uint64), tracks


@given(tracked_frames())
def test_tracks_are_what_protobuf_would_write(made):
    ids, tracks = made
    expected = frame_pb2.FrameResult(tracks=track_messages(tracks, ids))
    assert encode_tracks(tracks, ids) == expected.SerializeToString()


@given(tracked_frames())
def test_a_detection_in_a_track_has_its_id_and_all_others_have_0(made):
    ids, tracks = made
    found = tracks.of_detections(ids.size)
    track_of = dict(zip(tracks.detection.tolist(), tracks.id.tolist(), strict=True))
    assert found.tolist() == [track_of.get(row, 0) for row in range(ids.size)]


def some_tracks():
    """Of rows 2 and 0 of a frame, and one without a detection between them."""
    return ReportedTracks(
        id=np.array([11, 12, 13], np.uint64),
        class_index=np.array([0, 1, 0]),
        status=np.array(
            [TrackStatus.TENTATIVE, TrackStatus.COASTING, TrackStatus.CONFIRMED], np.uint8
        ),
        detections=np.array([1, 5, 9]),
        detection=np.array([2, -1, 0]),
        nis=np.array([np.nan, np.nan, 1.5]),
        state=np.arange(9.0).reshape(3, 3),
        covariance=np.arange(27.0).reshape(3, 3, 3),
    )


def answer_of(tracks, n=3, index=1):
    frame = received(frame_of(n))
    reason = np.full(n, Reason.OBSERVE_MODE, np.uint8)
    return encode_process_response(FrameAnswer(frame, reason, tracks=tracks), index)


def test_tracks_with_a_detection_come_first_and_otherwise_in_their_order():
    found = decode_answer(answer_of(some_tracks()), 2)
    assert found.tracks.id.tolist() == [11, 13, 12]
    assert found.tracks.detection_id.tolist() == [2, 0, 0]
    assert found.tracks.has_detection.tolist() == [True, True, False]
    assert np.array_equal(found.tracks.nis, [np.nan, 1.5, np.nan], equal_nan=True)
    assert found.track_id.tolist() == [13, 0, 11]
    lower = np.tril(some_tracks().covariance[0])
    assert np.array_equal(found.tracks.covariance[0], lower + np.tril(lower, -1).T)


def test_no_tracks_are_answered_where_none_were_asked_for_or_there_are_none():
    none = some_tracks()
    empty = ReportedTracks(
        **{name: getattr(none, name)[:0] for name in ReportedTracks.__dataclass_fields__}
    )
    assert answer_of(None) == answer_of(empty)
    found = decode_answer(answer_of(None), 2)
    assert found.tracks.id.size == 0
    assert (found.tracks.state.shape, found.tracks.covariance.shape) == ((0, 0), (0, 0, 0))
    assert found.track_id.tolist() == [0, 0, 0]


def test_tracks_of_a_frame_without_detections_are_answered():
    coasting = ReportedTracks(
        **{name: getattr(some_tracks(), name)[1:2] for name in ReportedTracks.__dataclass_fields__}
    )
    found = decode_answer(answer_of(coasting, n=0), 2)
    assert found.tracks.id.tolist() == [12]
    assert found.track_id.size == 0


def test_a_track_of_other_dimensions_or_an_unknown_layout_leaves_its_neighbours_alone():
    result = frame_pb2.FrameResult(
        tracks=[
            frame_pb2.Track(id=1, state=[1, 2], covariance=[1, 0, 1]),
            frame_pb2.Track(id=2, state=[1, 2, 3], covariance=[1] * 6),
            frame_pb2.Track(id=3, state=[3, 4]),
        ]
    )
    newer = b"\x42\x09" + b"\x11" + bytes(8)  # a track whose field 2 is a fixed64
    data = tagged(2, 2, result.SerializeToString() + newer)
    found = decode_answer(data, 2).tracks
    assert found.id.tolist() == [1, 2, 3, 0]
    assert np.array_equal(found.state[[0, 2]], [[1, 2], [3, 4]])
    assert np.isnan(found.state[[1, 3]]).all()
    assert np.array_equal(found.covariance[0], np.eye(2))
    assert np.isnan(found.covariance[1:]).all()


# ---- the answer to a header


DIMENSIONS = (
    Dimension("x", "m"),
    Dimension("yaw", "rad", DimensionKind.ANGLE),
    Dimension("vx", "m/s"),
)


def test_the_answer_to_a_header_names_the_dimensions_of_the_tracks():
    result = perception_monitor_pb2.HeaderResult(stream="lidar", accepted=True)
    result.track_dimensions.add(name="x", unit="m", kind=frame_pb2.DIMENSION_KIND_LENGTH)
    result.track_dimensions.add(name="yaw", unit="rad", kind=frame_pb2.DIMENSION_KIND_ANGLE)
    result.track_dimensions.add(name="vx", unit="m/s", kind=frame_pb2.DIMENSION_KIND_LENGTH)
    data = encode_header_answer("lidar", None, DIMENSIONS)
    expected = perception_monitor_pb2.ProcessResponse(header=result)
    assert data == expected.SerializeToString()
    assert track_dimensions(data) == ("x", "yaw", "vx")
    assert track_dimensions(encode_header_answer("lidar", None)) == ()
    assert track_dimensions(answer_of(None)) == ()


class OneAnswer:
    """A channel on which every message gets the same answer."""

    def __init__(self, answer):
        self.answer = answer

    def stream_stream(self, _):
        return lambda metadata: self

    async def write(self, _):
        pass

    async def read(self):
        return self.answer


@pytest.mark.parametrize("dimensions", [(), DIMENSIONS])
def test_a_conversation_knows_the_dimensions_of_its_tracks(dimensions):
    client = Client("nowhere")
    client._channel = OneAnswer(encode_header_answer("lidar", None, dimensions))
    header = Header("lidar", plain_space(("x",)), ("car",), return_tracks=True)
    conversation = asyncio.run(client.open(header))
    assert conversation.track_dimensions == tuple(d.name for d in dimensions)
