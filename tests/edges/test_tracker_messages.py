"""What a tracker elsewhere is sent is what the detector gets; what it answers is looked at."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.frame import EgoMotion, FrameAnswer, Header, Pose, ReceivedFrame, Twist
from monitor.frames.space import square_from_triangle
from monitor.v1 import frame_pb2, perception_monitor_pb2, tracker_pb2
from monitor.wire.answers import encode_process_response
from monitor.wire.requests import WireLimits, decode_process_request, detection_tail
from monitor.wire.tracker import (
    MOST_STATE,
    UnusableAnswer,
    decode_update,
    encode_frame_update,
    encode_header_update,
    reported_tracks,
)
from tests.piped import (
    BAD,
    CLASSES,
    GOOD_TRUTH,
    HEADER,
    MISSING,
    SELECTIONS,
    XYZ,
    opened,
    pipeline_of,
    sent,
)
from tests.received import FORMS, FULL, Sent, detections, frame
from tests.trackers import track_of


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


def same(one, other) -> bool:
    return np.array_equal(np.array(one), np.array(other), equal_nan=True)


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
@settings(max_examples=60)
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
    assert len(request.frame.detections) == len(rows)
    for row, detection, back in zip(rows, request.frame.detections, result.detections, strict=True):
        assert same(detection.mean, back.mean)
        assert same(detection.covariance, back.covariance)
        assert detection.HasField("id") == (row.id is not None)
        assert detection.id == (row.id or 0)
        assert detection.HasField("class_index") == (row.class_index is not None)
        assert detection.class_index == (row.class_index or 0)
        assert detection.HasField("score") == (row.score is not None)
        assert detection.HasField("upstream_track_id") == (row.upstream_track is not None)
        assert not detection.ground_truth
        assert not detection.HasField("ground_truth_class")


def test_recalibrated_values_are_forwarded_and_not_those_that_came():
    row = sent(1)
    detection = told(processed([row], "double")).frame.detections[0]
    assert same(detection.mean, row.mean)
    assert np.allclose(detection.covariance, 4 * np.array(row.covariance))


def test_class_probabilities_are_those_that_came_or_the_softmax_of_the_logits():
    row = replace(sent(1), class_probabilities=(0.5, 0.25, 0.125, 0.125))
    logits = replace(sent(2), class_logits=(0.0, 0.0, 0.0, 0.0))
    first, second = told(processed([row, logits])).frame.detections
    assert list(first.class_probabilities) == [0.5, 0.25, 0.125, 0.125]
    assert np.allclose(second.class_probabilities, 0.25)
    assert not second.class_logits


def test_a_detection_that_fits_no_array_is_forwarded_as_it_came_without_its_truth():
    message = frame_pb2.Frame(frame_id=1, stamp_ns=1)
    message.detections.add(id=1, class_index=0, mean=[0.0] * 3, covariance=[9.0] * 3)
    message.detections.add(id=2, mean=[0.5] * 40, covariance=[1.0], ground_truth=[3.0])
    data = perception_monitor_pb2.ProcessRequest(frame=message).SerializeToString()
    received = decode_process_request(data, WireLimits(2**20, 100), detection_tail())
    assert isinstance(received, ReceivedFrame)
    pipeline = pipeline_of()
    request = told(pipeline.process(opened(pipeline), received))
    message.detections[1].ClearField("ground_truth")
    assert list(request.frame.detections) == list(message.detections)


def test_a_frame_without_detections_id_or_stamp_is_forwarded_too():
    request = told(processed([], frame_id=None, stamp_ns=None))
    assert request.WhichOneof("message") == "frame"
    assert not request.frame.ListFields()


def test_motion_of_the_sensor_goes_along():
    pose = Pose(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 0.0, 0.0]))
    twist = Twist(np.array([4.0, 5.0, 6.0]), np.zeros(3))
    found = told(processed([sent(1)], ego=EgoMotion(pose, twist))).frame
    assert list(found.ego_pose.position) == [1.0, 2.0, 3.0]
    assert list(found.ego_twist.linear) == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(("left", "told_ns"), [(5_000_000, 5_000_000), (-3, 0)])
def test_what_is_left_of_the_call_is_told_and_never_below_zero(left, told_ns):
    assert told(processed([sent(1)]), left).deadline_ns == told_ns
    assert not told(processed([sent(1)])).HasField("deadline_ns")


def test_a_header_goes_without_what_its_client_wants_for_itself():
    header = Header("lidar", XYZ, CLASSES, "base", return_tracks=True, quantile_levels=(0.5,))
    request = tracker_pb2.UpdateRequest.FromString(encode_header_update(header))
    assert request.stream == request.header.stream == "lidar"
    assert [d.name for d in request.header.dimensions] == ["x", "y", "z"]
    assert tuple(request.header.class_names) == CLASSES
    assert request.header.coordinate_frame == "base"
    assert not request.header.return_tracks
    assert not request.header.quantile_levels


# ---- answers


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


def read(tracks, most=10, state_length=None):
    response = tracker_pb2.UpdateResponse(sequence=3, tracks=tracks)
    answer = decode_update(response.SerializeToString())
    assert answer.sequence == 3
    return reported_tracks(answer, detections(ROWS), len(CLASSES), most, state_length)


def test_tracks_are_read_with_the_rows_of_their_detections():
    found = read(TRACKS)
    assert found.id.tolist() == [11, 12]
    assert found.detection.tolist() == [1, -1]
    assert found.of_detections(3).tolist() == [0, 11, 0]
    assert found.nis[0] == 0.5
    assert np.isnan(found.nis[1])
    assert found.state.tolist() == [[1.0, 2.0]] * 2
    assert found.covariance.tolist() == [[[1.0, 0.5], [0.5, 2.0]]] * 2


def test_the_largest_id_that_a_tracker_elsewhere_may_give_is_taken():
    assert read([changed(id=2**62)]).id.tolist() == [2**62]


def test_no_tracks_are_no_tracks():
    assert read([]).id.size == 0


def test_tracks_reach_the_detector_as_the_tracker_told_them():
    answer = replace(processed(ROWS), tracks=read(TRACKS))
    assert list(returned(answer).tracks) == TRACKS


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


@pytest.mark.parametrize(
    ("track", "field"),
    [
        (changed(class_index=None), "class_index"),
        (changed(class_index=4), "class_index"),
        (changed(status=9), "status"),
        (changed(detection_id=3), "detection_id"),
        (changed(state=[np.nan, 1.0]), "state"),
        (changed(covariance=[1.0, np.inf, 1.0]), "covariance"),
        (changed(state=[]), "state"),
        (changed(state=[1.0]), "state|covariance"),
        (changed(covariance=[1.0]), "covariance"),
        (changed(state=[1.0] * (MOST_STATE + 1)), "state"),
        (changed(id=12), "id"),
        (changed(id=2**62 + 1), "id: must be at most 2.62"),
    ],
)
def test_tracks_that_cannot_be_are_refused_with_the_field(track, field):
    with pytest.raises(UnusableAnswer, match=field):
        read([TRACKS[1], track])
    with pytest.raises(UnusableAnswer):
        read([track, TRACKS[1]])


def test_more_tracks_than_there_may_be_are_refused():
    with pytest.raises(UnusableAnswer, match="max_tracks"):
        read(TRACKS, most=1)


def test_states_of_another_length_than_promised_are_refused():
    assert read(TRACKS, state_length=2).id.size == 2
    with pytest.raises(UnusableAnswer, match="as was promised"):
        read(TRACKS, state_length=6)


def test_fields_of_a_newer_tracker_are_passed_over():
    response = tracker_pb2.UpdateResponse(sequence=3, tracks=TRACKS[:1])
    inner = response.tracks[0].SerializeToString() + b"\xf8\x07\x01"  # field 127
    data = b"\x09" + (3).to_bytes(8, "little") + b"\x12" + bytes([len(inner)]) + inner
    answer = decode_update(data)
    assert reported_tracks(answer, detections(ROWS), len(CLASSES), 10).id.size == 1


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_bytes_of_any_kind_are_an_answer_or_are_refused(data):
    with contextlib.suppress(UnusableAnswer):
        reported_tracks(decode_update(data), detections(ROWS), len(CLASSES), 10)


@given(st.data())
@settings(max_examples=300)
def test_an_answer_with_a_byte_changed_is_an_answer_or_is_refused(data):
    whole = bytearray(tracker_pb2.UpdateResponse(sequence=3, tracks=TRACKS).SerializeToString())
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        tracks = reported_tracks(decode_update(bytes(whole)), detections(ROWS), len(CLASSES), 10)
    except UnusableAnswer:
        return
    returned(replace(processed(ROWS), tracks=tracks))


def test_the_example_tracker_of_the_tests_is_understood():
    request = told(processed([sent(4), sent(2), sent(1, form=FULL)]))
    tracks = [track_of(detection) for detection in request.frame.detections[:2]]
    assert read(tracks).detection.tolist() == [0, 1]
    assert square_from_triangle(3).size == 9
    assert HEADER.stream == request.stream
