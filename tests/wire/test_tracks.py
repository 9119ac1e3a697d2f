"""Motion of the sensor, and the messages of a tracker elsewhere."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import EgoMotion, FrameAnswer, Pose, ReceivedFrame, ReportedTracks, Twist
from monitor.v1 import frame_pb2, perception_monitor_pb2, tracker_pb2
from monitor.wire.answers import encode_frame_update, encode_process_response
from monitor.wire.requests import (
    MOST_STATE,
    UnusableAnswer,
    decode_process_request,
    decode_update,
    detection_tail,
    reported_tracks,
)
from tests.as_protobuf import LIMITS, assert_same_frame
from tests.piped import BAD, CLASSES, GOOD_TRUTH, MISSING, SELECTIONS, opened, pipeline_of, sent
from tests.received import FORMS, Sent, detections, frame
from tests.written import in_request


def frame_of(n=3, **fields):
    made = frame_pb2.Frame(frame_id=1, stamp_ns=-5, **fields)
    for i in range(n):
        made.detections.add(id=i, class_index=0, mean=[i, 2], covariance=[1, 1])
    return made


def received(made, tail=None) -> ReceivedFrame:
    data = in_request(made.SerializeToString())
    found = decode_process_request(data, LIMITS, tail or detection_tail())
    assert isinstance(found, ReceivedFrame)
    assert_same_frame(found, made)
    return found


POSE = frame_pb2.Pose(position=[1, 2, 3], orientation=[1, 0, 0, 0])
TWIST = frame_pb2.Twist(linear=[10, 0, 0], angular=[0, 0, 0.1])
MOTIONS: list[tuple[bool, dict[str, Any]]] = [
    (True, {}),
    (True, {"ego_pose": POSE}),
    (True, {"ego_pose": POSE, "ego_twist": TWIST}),
    (True, {"ego_pose": frame_pb2.Pose()}),
    (False, {"ego_pose": POSE, "ego_twist": frame_pb2.Twist()}),
    (False, {"ego_pose": frame_pb2.Pose(position=[1.0])}),
    (False, {"ego_twist": frame_pb2.Twist(linear=[1.0] * 100)}),
]


@pytest.mark.parametrize(("where_it_lies", "motion"), MOTIONS)
def test_motion_is_read_where_it_lies_with_as_many_values_as_were_sent(
    where_it_lies, motion, monkeypatch
):
    tail, made = detection_tail(), frame_of(**motion)
    assert received(made, tail).fast
    assert not received(frame_of(0, **motion), tail).detections.n
    if where_it_lies:
        monkeypatch.setattr("monitor.wire.requests.parse", None)  # of the whole message
    assert received(made, tail).fast


def processed(rows, selection="by slice", **changes) -> FrameAnswer:
    pipeline = pipeline_of(SELECTIONS[selection])
    made = frame(rows)
    alike = made.detections.uniform or not rows
    return pipeline.process(opened(pipeline), replace(made, fast=alike, **changes))


def told(answer: FrameAnswer, left_ns=None) -> tracker_pb2.UpdateRequest:
    data = encode_frame_update("lidar", answer, 7, left_ns)
    request = tracker_pb2.UpdateRequest.FromString(data)
    # Byte for byte what protobuf itself would write.
    assert request.SerializeToString() == data
    return request


def returned(answer: FrameAnswer) -> frame_pb2.FrameResult:
    data = encode_process_response(answer, 1)
    return perception_monitor_pb2.ProcessResponse.FromString(data).frame


ODD = [
    Sent(None, (1.0, 2.0, 3.0), (1.0, 1.0, 1.0)),  # no id
    Sent(5, (1.0, 2.0, 3.0), (1.0, 1.0, 1.0), class_index=None),
    Sent(6, (1.0,), (1.0,)),
    Sent(7, (), ()),
    Sent(8, (1.0, np.nan, 3.0), (1.0, 1.0, 1.0)),
    Sent(9, (1.0, 2.0, 3.0, 4.0), (1.0, 1.0), score=0.5),
    BAD,
    MISSING,
]


@given(
    st.lists(st.tuples(st.sampled_from(FORMS), st.booleans(), st.booleans()), max_size=6),
    st.lists(st.sampled_from(ODD), max_size=3, unique=True),
    st.sampled_from(sorted(SELECTIONS)),
    st.randoms(use_true_random=False),
)
def test_the_tracker_gets_what_goes_back_to_the_detector_in_the_same_order(
    usual, odd, selection, shuffled
):
    rows = [
        replace(
            sent(20 + i, form=form, truth=True),
            score=0.25 if scored else None,
            upstream_track=i if tracked else None,
        )
        for i, (form, scored, tracked) in enumerate(usual)
    ] + odd
    shuffled.shuffle(rows)
    answer = processed(rows, selection)
    request, result = told(answer), returned(answer)
    assert (request.stream, request.sequence) == ("lidar", 7)
    assert (request.frame.frame_id, request.frame.stamp_ns) == (1, 0)
    fields = {
        "id": "id",
        "class_index": "class_index",
        "score": "score",
        "upstream_track_id": "upstream_track",
    }
    for row, there, back in zip(rows, request.frame.detections, result.detections, strict=True):
        for part in ("mean", "covariance"):
            ours, theirs = np.array(getattr(there, part)), np.array(getattr(back, part))
            assert np.array_equal(ours, theirs, equal_nan=True)
        for name, own in fields.items():
            value = getattr(row, own)
            assert there.HasField(name) == (value is not None)
            assert getattr(there, name) == (value or 0)
        assert not there.ground_truth
        assert not there.HasField("ground_truth_class")


def test_a_frame_is_forwarded_with_classes_motion_and_what_is_left_of_its_call():
    row = replace(sent(1), class_probabilities=(0.5, 0.25, 0.125, 0.125))
    logits = replace(sent(2), class_logits=(0.0, 0.0, 0.0, 0.0))
    pose = Pose(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 0.0, 0.0]))
    ego = EgoMotion(pose, Twist(np.array([4.0, 5.0, 6.0]), np.zeros(3)))
    answer = processed([row, logits], "double", ego=ego)
    request = told(answer)
    first, second = request.frame.detections
    assert np.allclose(first.covariance, 4 * np.array(row.covariance))
    assert list(first.class_probabilities) == [0.5, 0.25, 0.125, 0.125]
    assert np.allclose(second.class_probabilities, 0.25)
    assert not second.class_logits
    assert list(request.frame.ego_pose.position) == [1.0, 2.0, 3.0]
    assert list(request.frame.ego_twist.linear) == [4.0, 5.0, 6.0]
    assert not request.HasField("deadline_ns")
    assert told(answer, 5_000_000).deadline_ns == 5_000_000
    assert told(answer, -3).deadline_ns == 0
    nothing = told(processed([], frame_id=None, stamp_ns=None))
    assert nothing.WhichOneof("message") == "frame"
    assert not nothing.frame.ListFields()


ROWS = [sent(4), sent(2), Sent(None, GOOD_TRUTH, (1.0, 1.0, 1.0))]
TRACKS = [
    frame_pb2.Track(
        id=number,
        class_index=1,
        status=frame_pb2.TRACK_STATUS_CONFIRMED,
        detections=3,
        state=[1.0, 2.0],
        covariance=[1.0, 0.5, 2.0],
        detection_id=detection,
        nis=nis,
    )
    for number, detection, nis in ((11, 2, 0.5), (12, None, None))
]


def response_of(tracks) -> bytes:
    data: bytes = tracker_pb2.UpdateResponse(sequence=3, tracks=tracks).SerializeToString()
    return data


def read(data: bytes, most=10, state_length=None) -> ReportedTracks:
    answer = decode_update(data)
    return reported_tracks(answer, detections(ROWS), len(CLASSES), most, state_length)


def changed(**fields) -> frame_pb2.Track:
    track = frame_pb2.Track()
    track.CopyFrom(TRACKS[0])
    for name, value in fields.items():
        track.ClearField(name)
        if isinstance(value, list):
            getattr(track, name).extend(value)
        elif value is not None:
            setattr(track, name, value)
    return track


def test_tracks_are_read_with_the_rows_of_their_detections_and_passed_on_as_they_came():
    found = read(response_of(TRACKS))
    assert found.id.tolist() == [11, 12]
    assert found.detection.tolist() == [1, -1]
    assert found.of_detections(3).tolist() == [0, 11, 0]
    assert np.array_equal(found.nis, [0.5, np.nan], equal_nan=True)
    assert found.state.tolist() == [[1.0, 2.0]] * 2
    assert found.covariance.tolist() == [[[1.0, 0.5], [0.5, 2.0]]] * 2
    assert list(returned(replace(processed(ROWS), tracks=found)).tracks) == TRACKS
    assert read(response_of([changed(id=2**62)])).id.tolist() == [2**62]
    assert read(response_of([])).id.size == 0
    inner = TRACKS[0].SerializeToString() + b"\xf8\x07\x01"  # field 127, of a newer tracker
    newer = b"\x09" + (3).to_bytes(8, "little") + b"\x12" + bytes([len(inner)]) + inner
    assert read(newer).id.size == 1


@pytest.mark.parametrize(
    ("track", "named"),
    [
        (changed(class_index=4), "class_index"),
        (changed(status=9), "status"),
        (changed(detection_id=3), "detection_id"),
        (changed(state=[np.nan, 1.0]), "state"),
        (changed(state=[]), "state"),
        (changed(covariance=[1.0]), "covariance"),
        (changed(state=[1.0] * (MOST_STATE + 1)), "state"),
        (changed(id=12), "id"),
        (changed(id=2**62 + 1), "id: must be at most 2.62"),
    ],
)
def test_tracks_that_cannot_be_are_refused_with_the_field(track, named):
    with pytest.raises(UnusableAnswer, match=named):
        read(response_of([TRACKS[1], track]))
    with pytest.raises(UnusableAnswer):
        read(response_of([track, TRACKS[1]]))


def test_too_many_tracks_or_states_of_another_length_than_promised_are_refused():
    assert read(response_of(TRACKS), most=2, state_length=2).id.size == 2
    with pytest.raises(UnusableAnswer, match="max_tracks"):
        read(response_of(TRACKS), most=1)
    with pytest.raises(UnusableAnswer, match="as was promised"):
        read(response_of(TRACKS), state_length=6)


@given(st.data())
def test_bytes_of_any_kind_are_an_answer_or_are_refused(data):
    whole = bytearray(response_of(TRACKS))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for drawn in (bytes(whole), data.draw(st.binary(max_size=300))):
        with contextlib.suppress(UnusableAnswer):
            returned(replace(processed(ROWS), tracks=read(drawn)))
