"""Messages in and out against protobuf's own field access: decoded arrays, encoded bytes.

Requests are also written by hand, as other clients may write them. Whether such bytes are
a message at all is protobuf's to say.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import (
    AnswerExtras,
    FrameAnswer,
    Header,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
    TruthAnswer,
)
from monitor.frames.reasons import Notice
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.answers import (
    encode_header_answer,
    encode_process_frame_response,
    encode_process_response,
    encode_truth_response,
)
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    decode_truth_answer,
    encode_frame,
    encode_header,
    encode_truth,
    refused,
)
from monitor.wire.requests import (
    decode_process_frame_request,
    decode_process_request,
    decode_truth_request,
    detection_tail,
)
from tests import laws
from tests.as_protobuf import (
    LIMITS,
    TAIL,
    assert_decoded_as_protobuf_does,
    assert_padded,
    assert_same_frame,
    assert_same_header,
    on_wire,
    parsed,
)
from tests.piped import pipeline_of
from tests.reported import reported_tracks, track_messages
from tests.written import (
    IDS,
    damaged,
    doubles,
    in_request,
    names,
    packed,
    tagged,
    varint,
    written_frames,
    written_truths,
)


def decode_frame(data, limits):
    """As the other decoders: with a reader that has seen nothing."""
    return decode_process_request(data, limits, detection_tail())


PASSED_THROUGH = {2, 3, 4, 5, 6}  # the numbers of frame.proto


def assert_truth_decoded_as_protobuf_does(data):
    decoded = decode_truth_request(data, LIMITS)
    request = parsed(perception_monitor_pb2.ReportGroundTruthRequest, data)
    if request is None:
        assert isinstance(decoded, Refusal)
        assert decoded.reason is Reason.MALFORMED
        return
    assert isinstance(decoded, ReceivedTruth)
    truth, labels = request.truth, list(request.truth.detections)
    assert decoded.stream == truth.stream
    assert decoded.frame_id == (truth.frame_id if truth.HasField("frame_id") else None)
    assert decoded.complete == truth.complete
    assert decoded.id.tolist() == [label.detection_id for label in labels]
    assert decoded.has_id.tolist() == [label.HasField("detection_id") for label in labels]
    assert decoded.ignore.tolist() == [label.ignore for label in labels]
    assert_padded(decoded.truth, decoded.truth_length, [label.ground_truth for label in labels])
    assert decoded.class_index.dtype == np.int64
    assert decoded.class_index.tolist() == [
        label.class_index if label.HasField("class_index") else -1 for label in labels
    ]


# ---- requests


@given(written_frames())
def test_a_frame_is_decoded_as_protobuf_reads_it_however_it_is_written(frame):
    assert_decoded_as_protobuf_does(in_request(frame))


@given(written_frames(), written_frames())
def test_a_frame_in_two_pieces_is_decoded_as_protobuf_merges_it(first, second):
    assert_decoded_as_protobuf_does(in_request(first) + in_request(second))


@given(damaged(written_frames().map(in_request)))
def test_a_damaged_request_is_refused_or_is_what_protobuf_reads(data):
    assert_decoded_as_protobuf_does(data)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_what_protobuf_reads(data):
    assert_decoded_as_protobuf_does(data)
    assert_decoded_as_protobuf_does(in_request(data))
    assert_truth_decoded_as_protobuf_does(data)
    decode_process_frame_request(data, LIMITS)


@given(written_truths().map(lambda truth: tagged(1, 2, truth)))
def test_truth_is_decoded_as_protobuf_reads_it_however_it_is_written(data):
    assert_truth_decoded_as_protobuf_does(data)


@given(damaged(written_truths().map(lambda truth: tagged(1, 2, truth))))
def test_damaged_truth_is_refused_or_is_what_protobuf_reads(data):
    assert_truth_decoded_as_protobuf_does(data)


@given(st.data())
def test_a_unary_frame_is_decoded_as_protobuf_reads_it(data):
    frame = data.draw(written_frames())
    pieces = [tagged(1, 2, b"lidar"), tagged(15, 2, frame)]
    if data.draw(st.booleans()):
        pieces.append(tagged(2, 2, data.draw(st.sampled_from([b"", tagged(1, 2, b"camera")]))))
    written = st.permutations(pieces).map(b"".join)
    bytes_ = data.draw(written | damaged(written))
    decoded = decode_process_frame_request(bytes_, LIMITS)
    request = parsed(perception_monitor_pb2.ProcessFrameRequest, bytes_)
    if request is None:
        assert isinstance(decoded, Refusal)
        assert decoded.reason is Reason.MALFORMED
        return
    if not request.HasField("frame"):
        assert isinstance(decoded, Refusal)
        assert (decoded.reason, decoded.field) == (Reason.MALFORMED, "frame")
        return
    if isinstance(decoded, Refusal):
        assert decoded.field == "dimensions.kind"
        return
    stream, header, found = decoded
    assert stream == request.stream
    assert_same_frame(found, request.frame)
    if request.HasField("header"):
        assert_same_header(header, request.header)
    else:
        assert header is None


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


def test_a_kind_of_dimension_that_is_not_known_is_refused_rather_than_measured_wrongly():
    data = tagged(1, 2, tagged(2, 2, tagged(1, 2, b"x") + tagged(3, 0, varint(99))))
    decoded = decode_process_request(data, LIMITS, TAIL)
    assert isinstance(decoded, Refusal)
    assert (decoded.reason, decoded.field) == (Reason.INVALID_HEADER, "dimensions.kind")
    assert "99 of 'x'" in decoded.message


@pytest.mark.parametrize("k", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("form", ["variances", "triangle", "full"])
def test_a_frame_of_one_layout_takes_the_fast_way(k, form):
    count = {"variances": k, "triangle": k * (k + 1) // 2, "full": k * k}[form]
    values = np.arange(5.0 * count).reshape(5, count)
    frame = frame_pb2.Frame(
        frame_id=1,
        stamp_ns=-1,
        detections=[
            frame_pb2.Detection(id=i, class_index=0, mean=values[i, :k], covariance=values[i])
            for i in range(5)
        ],
    )
    decoded = decode_process_request(in_request(frame.SerializeToString()), LIMITS, TAIL)
    assert isinstance(decoded, ReceivedFrame)
    assert decoded.fast
    assert_same_frame(decoded, frame)


def test_one_absent_field_makes_a_frame_take_the_slow_way():
    detections = [frame_pb2.Detection(id=i, mean=[1.0]) for i in range(4)]
    detections[2].ClearField("id")
    frame = frame_pb2.Frame(detections=detections)
    decoded = decode_process_request(in_request(frame.SerializeToString()), LIMITS, TAIL)
    assert isinstance(decoded, ReceivedFrame)
    assert not decoded.fast
    assert_same_frame(decoded, frame)


def test_a_detection_without_any_field_among_others_is_decoded():
    frame = frame_pb2.Frame(detections=[frame_pb2.Detection(), frame_pb2.Detection(id=1)])
    assert_decoded_as_protobuf_does(in_request(frame.SerializeToString()))


def test_frames_without_detections_are_frames():
    assert_decoded_as_protobuf_does(in_request(b""))
    assert_decoded_as_protobuf_does(in_request(tagged(1, 1, bytes(8))))


def test_detections_too_long_for_the_arrays_keep_their_length_and_their_bytes():
    long_mean = frame_pb2.Detection(id=1, mean=np.arange(33.0), covariance=[1.0])
    long_covariance = frame_pb2.Detection(id=2, mean=[1.0], covariance=np.arange(1025.0))
    frame = frame_pb2.Frame(
        detections=[long_mean, frame_pb2.Detection(id=3, mean=[1.0]), long_covariance]
    )
    decoded = decode_process_request(in_request(frame.SerializeToString()), LIMITS, TAIL)
    assert isinstance(decoded, ReceivedFrame)
    assert_same_frame(decoded, frame)
    assert decoded.detections.mean.shape == (3, 32)
    assert decoded.detections.covariance.shape == (3, 1024)
    assert dict(decoded.overlong) == {
        0: long_mean.SerializeToString(),
        2: long_covariance.SerializeToString(),
    }


DECODERS = [
    (decode_frame, lambda frame: in_request(frame)),
    (decode_process_frame_request, lambda frame: tagged(15, 2, frame)),
    (decode_truth_request, lambda frame: tagged(1, 2, frame)),
]


@pytest.mark.parametrize(("decode", "wrap"), DECODERS)
def test_as_many_detections_as_allowed_pass_and_one_more_is_refused(decode, wrap):
    one = tagged(15, 2, tagged(1, 1, bytes(8)))
    assert not isinstance(decode(wrap(one * 64), LIMITS), Refusal)
    refusal = decode(wrap(one * 65), LIMITS)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.TOO_MANY_DETECTIONS
    assert "65" in refusal.message
    assert "64" in refusal.message


@pytest.mark.parametrize(("decode", "wrap"), DECODERS)
def test_a_message_as_large_as_allowed_passes_and_one_more_byte_is_refused(decode, wrap):
    data = wrap(tagged(15, 2, b""))
    data += tagged(1000, 2, bytes(2**20 - len(data) - 5))
    assert len(data) == 2**20
    assert not isinstance(decode(data, LIMITS), Refusal)
    refusal = decode(data + b"\x00", LIMITS)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.TOO_LARGE
    assert f"{2**20 + 1} bytes" in refusal.message


@pytest.mark.parametrize(("decode", "wrap"), DECODERS)
@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_a_length_beyond_the_message_is_refused(decode, wrap, length):
    outer = b"\x12" + varint(length) + b"\x7a\x00"
    inner = wrap(b"\x7a" + varint(length) + bytes(20))
    values = wrap(tagged(15, 2, b"\x22" + varint(length) + bytes(24)))
    for data in (outer, inner, values):
        refusal = decode(data, LIMITS)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.MALFORMED


def test_a_refusal_says_what_it_is_about_and_shows_no_internals():
    refusal = decode_process_request(b"\xff\xff", LIMITS, TAIL)
    assert isinstance(refusal, Refusal)
    assert refusal.field == "message"
    assert refusal.message == "2 bytes are not a monitor.v1.ProcessRequest."


# ---- answers


notices = st.builds(
    Notice,
    reason=st.sampled_from(Reason),
    field=names,
    message=names,
    count=st.integers(0, 2**32 - 1),
    first_index=st.integers(0, 2**32 - 1),
)


def wire_notice(notice):
    return frame_pb2.Notice(
        reason=on_wire(notice.reason),
        count=notice.count,
        first_index=notice.first_index,
        field=notice.field,
        message=notice.message,
    )


@st.composite
def drawn_extras(draw, n, k):
    """What may go back with n estimates; NaN of any bits in front is nothing."""
    levels, classes = draw(st.integers(1, 3)), draw(st.integers(2, 4))

    def rows(width):
        return st.none() | doubles(n * width).map(lambda values: np.array(values).reshape(n, -1))

    def numbers(most):
        return np.array([draw(st.integers(0, most)) for _ in range(n)], np.uint8)

    return AnswerExtras(
        output=numbers(3),
        quantiles=draw(rows(k * levels)) if n else None,
        class_probabilities=draw(rows(classes)) if n else None,
        class_version=draw(names),
        rejected_by=draw(st.sampled_from([None, numbers(3)])),
    )


@st.composite
def answers(draw):
    """A frame as protobuf holds it, and an answer that the pipeline might give to it."""
    k = draw(st.integers(1, 5))
    forms = [k, k * (k + 1) // 2, k * k]
    kinds = draw(st.lists(st.sampled_from([*forms, "any"]), max_size=6))
    frame = frame_pb2.Frame()
    if draw(st.booleans()):
        frame.frame_id, frame.stamp_ns = draw(IDS), draw(st.integers(-(2**63), 2**63 - 1))
    for kind in kinds:
        detection = frame.detections.add()
        if kind == "any":
            if draw(st.booleans()):
                detection.id = draw(IDS)
            detection.mean.extend(draw(doubles(draw(st.integers(0, 3)))))
            detection.covariance.extend(draw(doubles(draw(st.integers(0, 3)))))
        else:
            detection.id = draw(IDS)
            detection.mean.extend(draw(doubles(k)))
            detection.covariance.extend(draw(doubles(kind)))
    received = decode_process_request(in_request(frame.SerializeToString()), LIMITS, TAIL)
    assert isinstance(received, ReceivedFrame)

    usable = np.array([kind != "any" for kind in kinds], bool)
    rows = np.flatnonzero(usable)
    made = Estimates(
        np.array(draw(doubles(rows.size * k))).reshape(-1, k),
        np.array(draw(doubles(rows.size * k * k))).reshape(-1, k, k),
        # Covariance scaling makes full covariances of variances.
        np.array([kind == k and k > 1 and draw(st.booleans()) for kind in kinds], bool)[rows],
    )
    others = st.sampled_from([reason for reason in Reason if 2 <= reason <= 17])
    reason = np.array([draw(others) for _ in kinds], np.uint8)
    mode = draw(st.sampled_from(["apply", "observe", "failed"]))
    if mode != "failed":
        reason[rows] = Reason.NONE if mode == "apply" else Reason.OBSERVE_MODE
    answer = FrameAnswer(
        received=received,
        reason=reason,
        rows=rows if mode == "apply" else rows[:0],
        forwarded=made if mode == "apply" else None,
        shadow_rows=rows if mode == "observe" else rows[:0],
        shadow=made if mode == "observe" else None,
        versions=tuple(draw(st.lists(names, max_size=2))),
        notices=tuple(draw(st.lists(notices, max_size=2))),
        tracks=draw(st.none() | reported_tracks(rows.tolist())),
        extras=draw(st.none() | drawn_extras(len(kinds), k)),
    )
    return SimpleNamespace(k=k, frame=frame, answer=answer)


def result_of(made):
    """The FrameResult, one field of one detection after another."""
    frame, answer, k = made.frame, made.answer, made.k
    result = frame_pb2.FrameResult(status=on_wire(1), reason=on_wire(1))
    for name in ("frame_id", "stamp_ns"):
        if frame.HasField(name):
            setattr(result, name, getattr(frame, name))
    result.recalibrator_versions.extend(answer.versions)
    result.notices.extend(wire_notice(notice) for notice in answer.notices)
    track_of = {}
    if answer.tracks is not None:
        ids = [sent.id for sent in frame.detections]
        result.tracks.extend(track_messages(answer.tracks, ids))
        track_of = dict(zip(answer.tracks.detection.tolist(), answer.tracks.id, strict=True))
    forwarded = dict(zip(answer.rows.tolist(), range(answer.rows.size), strict=True))
    shadowed = dict(zip(answer.shadow_rows.tolist(), range(answer.shadow_rows.size), strict=True))
    for row, (sent, reason) in enumerate(zip(frame.detections, answer.reason, strict=True)):
        detection = result.detections.add(recalibrator_index=0, reason=on_wire(reason), output=0)
        detection.status = on_wire(1 if reason == 1 else 2 if reason in PASSED_THROUGH else 3)
        if sent.HasField("id"):
            detection.id = sent.id
        if row in forwarded:
            detection.mean.extend(answer.forwarded.mean[forwarded[row]])
            detection.covariance.extend(in_form(answer.forwarded, forwarded[row], sent, k))
        else:
            detection.mean.extend(sent.mean)
            detection.covariance.extend(sent.covariance)
        if row in shadowed:
            detection.shadow_mean.extend(answer.shadow.mean[shadowed[row]])
            detection.shadow_covariance.extend(in_form(answer.shadow, shadowed[row], sent, k))
        if row in track_of:
            detection.track_id = int(track_of[row])
    if answer.extras is not None:
        add_extras(result, answer)
    return result


def add_extras(result, answer):
    extras = answer.extras
    result.class_recalibrator_version = extras.class_version
    for row, detection in enumerate(result.detections):
        if extras.rejected_by is not None:
            detection.rejected_by = on_wire(extras.rejected_by[row])
        if row in answer.received.overlong:
            continue
        detection.output = on_wire(extras.output[row])
        for field in ("quantiles", "class_probabilities"):
            values = getattr(extras, field)
            if values is not None and not np.isnan(values[row, 0]):
                getattr(detection, field).extend(values[row])


def in_form(made, row, sent, k):
    """Variances while that is all there is, the full matrix where one was sent, or a triangle."""
    matrix = made.covariance[row]
    if made.diagonal[row]:
        return [matrix[i, i] for i in range(k)]
    if len(sent.covariance) == k * k:
        return [matrix[i, j] for i in range(k) for j in range(k)]
    return [matrix[i, j] for i in range(k) for j in range(i + 1)]


@given(answers(), st.sampled_from([0, 1, 2**64 - 1]))
def test_the_answer_to_a_frame_is_what_protobuf_would_write(made, index):
    result = result_of(made)
    unary = perception_monitor_pb2.ProcessFrameResponse(frame=result)
    assert encode_process_frame_response(made.answer) == unary.SerializeToString()
    result.message_index = index
    stream = perception_monitor_pb2.ProcessResponse(frame=result)
    assert encode_process_response(made.answer, index) == stream.SerializeToString()


@given(answers())
def test_the_client_reads_an_answer_as_protobuf_does(made):
    k, result = made.k, result_of(made)
    found = decode_answer(encode_process_response(made.answer, 3), k)
    assert found.status.tolist() == [d.status for d in result.detections]
    assert found.reason.tolist() == [d.reason for d in result.detections]
    assert found.versions == tuple(result.recalibrator_versions)
    for row, detection in enumerate(result.detections):
        if len(detection.mean) == k:
            assert found.mean[row].tobytes() == packed(detection.mean)
        assert found.covariance[row].tobytes() == as_matrix(detection.covariance, k).tobytes()
        if found.shadow is not None:
            shadow = as_matrix(detection.shadow_covariance, k)
            assert found.shadow[row].tobytes() == shadow.tobytes()
    assert (found.shadow is not None) == any(d.shadow_covariance for d in result.detections)
    assert found.track_id.tolist() == [d.track_id for d in result.detections]
    assert found.output.tolist() == [d.output for d in result.detections]
    assert found.rejected_by.tolist() == [d.rejected_by for d in result.detections]
    assert found.class_version == result.class_recalibrator_version
    quantiles = (
        None if found.quantiles is None else found.quantiles.reshape(len(made.frame.detections), -1)
    )
    assert_same_rows(quantiles, [d.quantiles for d in result.detections])
    assert_same_rows(found.class_probabilities, [d.class_probabilities for d in result.detections])
    assert_same_tracks(found.tracks, result.tracks)


def assert_same_rows(found, sent):
    """Quantiles or class probabilities: as many of each as came, NaN where none did."""
    if found is None:
        assert not any(sent)
        return
    for values, row in zip(found, sent, strict=True):
        assert values.tobytes() == packed(row) if row else np.isnan(values).all()


def assert_same_tracks(found, sent):
    for name in ("id", "class_index", "status", "detections", "detection_id"):
        assert getattr(found, name).tolist() == [getattr(track, name) for track in sent]
    assert found.has_detection.tolist() == [track.HasField("detection_id") for track in sent]
    for j, track in enumerate(sent):
        assert found.nis[j : j + 1].tobytes() == packed(
            [track.nis if track.HasField("nis") else np.nan]
        )
        assert found.state[j].tobytes() == packed(track.state)
        expected = as_matrix(track.covariance, len(track.state))
        assert found.covariance[j].tobytes() == expected.tobytes()


def as_matrix(values, k):
    """(K, K) of whichever form, NaN of none."""
    if len(values) == k:
        return np.diag(np.array(values))
    if len(values) == k * k:
        return np.array(values).reshape(k, k)
    if len(values) != k * (k + 1) // 2:
        return np.full((k, k), np.nan)
    lower = iter(values)
    matrix = np.zeros((k, k))
    for i in range(k):
        for j in range(i + 1):
            matrix[i, j] = matrix[j, i] = next(lower)
    return matrix


@pytest.mark.parametrize("reason", list(Reason))
def test_a_refused_message_is_answered_as_protobuf_would_write_it(reason):
    refusal = Refusal(reason, "frame", "σ is too much: less.")
    result = frame_pb2.FrameResult(
        message_index=7,
        status=frame_pb2.STATUS_REFUSED,
        reason=on_wire(reason),
        notices=[wire_notice(refusal)],
    )
    response = perception_monitor_pb2.ProcessResponse(frame=result)
    data = encode_process_response(refusal, 7)
    assert data == response.SerializeToString()
    assert refused(data) == "frame: σ is too much: less."


def test_the_answer_to_a_header_is_what_protobuf_would_write():
    refusal = Refusal(Reason.INVALID_HEADER, "stream", "no name.")
    accepted = perception_monitor_pb2.HeaderResult(stream="lidar", accepted=True)
    denied = perception_monitor_pb2.HeaderResult(stream="", notice=wire_notice(refusal))
    for result, why in ((accepted, None), (denied, refusal)):
        response = perception_monitor_pb2.ProcessResponse(header=result)
        data = encode_header_answer(result.stream, why)
        assert data == response.SerializeToString()
        assert refused(data) == (None if why is None else "stream: no name.")


@given(
    st.lists(st.integers(0, 2**40), min_size=7, max_size=7),
    st.none() | IDS,
    st.lists(notices, max_size=2),
)
def test_the_answer_to_truth_is_what_protobuf_would_write(counts, frame_id, findings):
    account = TruthAccount(*counts)
    response = perception_monitor_pb2.ReportGroundTruthResponse(
        stream="lidar",
        account=truth_pb2.TruthAccount(
            matched=counts[0],
            unusable=counts[1],
            orphan=counts[2],
            duplicate=counts[3],
            too_late=counts[4],
            ignored=counts[5],
            refused=counts[6],
        ),
        notices=[wire_notice(notice) for notice in findings],
    )
    if frame_id is not None:
        response.frame_id = frame_id
    data = encode_truth_response("lidar", frame_id, TruthAnswer(account, tuple(findings)))
    assert data == response.SerializeToString()
    assert decode_truth_answer(data)[0] == account


# ---- there and back


SPACE = plain_space(("x", "y", "z"), "m")
SCALE = (2.0, 0.5, 3.0)


def scaling_stream() -> tuple[Pipeline, Stream]:
    """A pipeline that scales the deviations of x, y, z by SCALE."""
    pipeline = pipeline_of()
    document = Selection(SPACE.names, VarianceScaling(SCALE)).to_json()
    pipeline.activate(pipeline.recalibrators.learn(document).version)
    stream = pipeline.register(Header("lidar", SPACE, ("car",)))
    assert isinstance(stream, Stream)
    return pipeline, stream


def answered(frame):
    """The FrameResult of a frame that went through everything but gRPC."""
    pipeline, stream = scaling_stream()
    received = decode_process_request(in_request(frame.SerializeToString()), LIMITS, TAIL)
    assert isinstance(received, ReceivedFrame)
    data = encode_process_response(pipeline.process(stream, received), 1)
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    assert response.SerializeToString() == data
    assert pipeline.counters.internal_errors == 0
    return response.frame


def valid_covariance(draw, form):
    """Values of a positive definite matrix in that form."""
    root = np.array([draw(st.integers(-8, 8)) for _ in range(9)]).reshape(3, 3) / 4
    matrix = root @ root.T + np.eye(3)
    if form == 3:
        return np.diagonal(matrix)
    return matrix[np.tril_indices(3)] if form == 6 else matrix.ravel()


@st.composite
def plausible_frames(draw):
    """Good detections of every form among arbitrary ones."""
    frame = frame_pb2.Frame(frame_id=1)
    for i in range(draw(st.integers(1, 6))):
        good = draw(st.sampled_from([True, True, False]))
        detection = frame.detections.add(id=i, class_index=0)
        if good:
            detection.mean.extend([1.0, 2.0, i])
            detection.covariance.extend(valid_covariance(draw, draw(st.sampled_from([3, 6, 9]))))
            continue
        for name in ("id", "class_index"):
            if draw(st.integers(0, 4)) == 0:
                detection.ClearField(name)
        detection.mean.extend(draw(doubles(draw(st.sampled_from([3, 3, 0, 2])))))
        detection.covariance.extend(draw(doubles(draw(st.sampled_from([3, 6, 9, 0, 4])))))
    return frame


@given(plausible_frames())
def test_what_is_not_recalibrated_comes_back_bit_for_bit_and_the_rest_scaled(frame):
    result = answered(frame)
    assert len(result.detections) == len(frame.detections)
    for sent, found in zip(frame.detections, result.detections, strict=True):
        assert found.HasField("id") == sent.HasField("id")
        assert found.id == sent.id
        assert packed(found.mean) == packed(sent.mean)
        if found.status != frame_pb2.STATUS_RECALIBRATED:
            assert packed(found.covariance) == packed(sent.covariance)
            continue
        s = np.array(SCALE)
        expected = as_matrix(sent.covariance, 3) * s[:, None] * s
        assert len(found.covariance) == len(sent.covariance)
        assert as_matrix(found.covariance, 3) == pytest.approx(expected, rel=1e-15)


def of_reason():
    """A detection for every reason that one detection alone can have."""
    good = frame_pb2.Detection(id=1, class_index=0, mean=[1, 2, 3], covariance=[1, 1, 1])

    def but(**changes):
        detection = frame_pb2.Detection()
        detection.CopyFrom(good)
        for name, value in changes.items():
            detection.ClearField(name)
            if isinstance(value, list):
                getattr(detection, name).extend(value)
            elif value is not None:
                setattr(detection, name, value)
        return detection

    nan, inf = float("nan"), float("inf")
    return {
        "NONE": [good],
        "MISSING_COVARIANCE": [but(covariance=[]), but(covariance=[0.0] * 6)],
        "UNKNOWN_CLASS": [but(class_index=1), but(class_index=2**32 - 1), but(class_index=None)],
        "MEAN_LENGTH": [but(mean=[1.0]), but(mean=[]), but(mean=[0.0] * 200)],
        "MEAN_VALUE": [but(mean=[1, nan, 3]), but(mean=[1, 2, -inf]), but(mean=[1, 2, 1e9])],
        "COVARIANCE_LENGTH": [but(covariance=[1.0] * 4), but(covariance=[1.0] * 2000)],
        "COVARIANCE_NOT_FINITE": [but(covariance=[1, nan, 1]), but(covariance=[inf] * 9)],
        "COVARIANCE_ASYMMETRIC": [but(covariance=[2, 1, 0, 0, 2, 0, 0, 0, 2])],
        "COVARIANCE_NOT_POSITIVE_DEFINITE": [
            but(covariance=[1, -1, 1]),
            but(covariance=[1, 2, 1, 0, 0, 1]),
        ],
        "COVARIANCE_SCALE": [but(covariance=[1, 1, 1e11]), but(covariance=[1e-14, 1, 1])],
        "MISSING_ID": [but(id=None)],
    }


@pytest.mark.parametrize("name", list(of_reason()))
def test_every_reason_comes_back_marked_with_the_detection_unmodified(name):
    number = frame_pb2.Reason.Value(f"REASON_{name}")
    for detection in of_reason()[name]:
        alone = frame_pb2.Frame(frame_id=1, detections=[detection])
        among = frame_pb2.Frame(frame_id=1, detections=[detection, of_reason()["NONE"][0]])
        among.detections[1].id = 2
        for frame in (alone, among):
            found = answered(frame).detections[0]
            assert found.reason == number, frame_pb2.Reason.Name(found.reason)
            expected = 1 if name == "NONE" else 2 if name == "MISSING_COVARIANCE" else 3
            assert found.status == expected
            assert packed(found.mean) == packed(detection.mean)
            if name != "NONE":
                assert packed(found.covariance) == packed(detection.covariance)


def test_a_repeated_id_is_refused_and_its_first_occurrence_is_not():
    good = of_reason()["NONE"][0]
    result = answered(frame_pb2.Frame(frame_id=1, detections=[good, good]))
    assert [d.reason for d in result.detections] == [
        frame_pb2.REASON_NONE,
        frame_pb2.REASON_DUPLICATE_ID,
    ]


# ---- the client


@given(st.data())
def test_the_client_sends_what_protobuf_would_write(data):
    draw = data.draw
    n, k = draw(st.integers(0, 4)), draw(st.integers(1, 5))

    def array(*shape):
        count = int(np.prod(shape))
        return np.array(draw(doubles(count))).reshape(shape)

    def indices():
        return np.array([draw(st.integers(0, 2**32 - 1)) for _ in range(n)], np.int64)

    full = draw(st.booleans())
    frame = OutgoingFrame(
        frame_id=draw(IDS),
        stamp_ns=draw(st.integers(-(2**63), 2**63 - 1)),
        id=np.array([draw(IDS) for _ in range(n)], np.uint64),
        class_index=indices(),
        mean=array(n, k),
        covariance=array(n, k, k) if full else array(n, k),
        score=array(n) if draw(st.booleans()) else None,
        truth=array(n, k) if draw(st.booleans()) else None,
        upstream_track=(
            np.array([draw(IDS) for _ in range(n)], np.uint64) if draw(st.booleans()) else None
        ),
        class_probabilities=draw(
            st.sampled_from([None, array(n, k), array(n, 3, k), array(n, 1, k)])
        ),
        true_class=indices() if draw(st.booleans()) else None,
    )
    message = frame_pb2.Frame(frame_id=frame.frame_id, stamp_ns=frame.stamp_ns)
    for i in range(n):
        matrix = frame.covariance[i]
        detection = message.detections.add(
            id=int(frame.id[i]), class_index=int(frame.class_index[i]), mean=frame.mean[i]
        )
        detection.covariance.extend(matrix[np.tril_indices(k)] if full else matrix)
        if frame.score is not None:
            detection.score = frame.score[i]
        if frame.truth is not None:
            detection.ground_truth.extend(frame.truth[i])
        if frame.upstream_track is not None:
            detection.upstream_track_id = int(frame.upstream_track[i])
        if frame.class_probabilities is not None:
            detection.class_probabilities.extend(frame.class_probabilities[i].ravel())
        if frame.true_class is not None:
            detection.ground_truth_class = int(frame.true_class[i])
    request = perception_monitor_pb2.ProcessRequest(frame=message)
    assert encode_frame(frame) == request.SerializeToString()


@given(st.integers(0, 4), st.integers(1, 5), st.booleans(), st.data())
def test_the_client_sends_truth_as_protobuf_would_write_it(n, k, complete, data):
    ids = np.array([data.draw(IDS) for _ in range(n)], np.uint64)
    truth = np.array(data.draw(doubles(n * k))).reshape(n, k) if data.draw(st.booleans()) else None
    classes = data.draw(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n))
    message = truth_pb2.FrameTruth(stream="lidar", frame_id=2**64 - 1, complete=complete)
    for i in range(n):
        label = message.detections.add(detection_id=int(ids[i]))
        if truth is not None:
            label.ground_truth.extend(truth[i])
        if classes is not None:
            label.class_index = classes[i]
    request = perception_monitor_pb2.ReportGroundTruthRequest(truth=message)
    index = None if classes is None else np.array(classes, np.int64)
    found = encode_truth("lidar", 2**64 - 1, ids, truth, class_index=index, complete=complete)
    assert found == request.SerializeToString()


def test_a_header_comes_out_of_the_wire_as_the_client_put_it_in():
    dimensions = tuple(Dimension(f"d{int(kind)}", "m", kind) for kind in DimensionKind)
    header = Header("lidar", Space(dimensions), ("car", "person"), "base", True, (0.05, 0.95))
    found = decode_process_request(encode_header(header), LIMITS, TAIL)
    assert isinstance(found, Header)
    laws.assert_same(found, header)
