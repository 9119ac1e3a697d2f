"""Answers as protobuf would write them, what the client reads in them, and what it sends itself."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import AnswerExtras, FrameAnswer, ReceivedFrame, TruthAnswer
from monitor.frames.reasons import Notice
from monitor.frames.status import TruthAccount
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.answers import (
    encode_process_frame_response,
    encode_process_response,
    encode_truth_response,
)
from monitor.wire.client_messages import decode_answer, decode_truth_answer
from monitor.wire.requests import decode_process_request
from tests.as_protobuf import LIMITS, TAIL, on_wire
from tests.reported import reported_tracks, track_messages
from tests.written import IDS, doubles, in_request, names, packed

PASSED_THROUGH = {2, 3, 4, 5, 6}  # the numbers of frame.proto


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
    reasons = answer.reason.tolist()
    reason = min(set(reasons), key=lambda one: (-reasons.count(one), one), default=1)
    if 1 in reasons:
        reason = 1
    result = frame_pb2.FrameResult(status=on_wire(1 if reason == 1 else 2), reason=on_wire(reason))
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
def test_the_answer_to_a_frame_is_what_protobuf_would_write_and_the_client_reads(made, index):
    k, result = made.k, result_of(made)
    unary = perception_monitor_pb2.ProcessFrameResponse(frame=result)
    assert encode_process_frame_response(made.answer) == unary.SerializeToString()
    result.message_index = index
    data = perception_monitor_pb2.ProcessResponse(frame=result).SerializeToString()
    assert encode_process_response(made.answer, index) == data

    found = decode_answer(data, k)
    for name in ("status", "reason", "track_id", "output", "rejected_by"):
        assert getattr(found, name).tolist() == [getattr(d, name) for d in result.detections]
    assert found.versions == tuple(result.recalibrator_versions)
    assert found.class_version == result.class_recalibrator_version
    assert (found.shadow is not None) == any(d.shadow_covariance for d in result.detections)
    for row, detection in enumerate(result.detections):
        if len(detection.mean) == k:
            assert found.mean[row].tobytes() == packed(detection.mean)
        assert found.covariance[row].tobytes() == as_matrix(detection.covariance, k).tobytes()
        if found.shadow is not None:
            shadow = as_matrix(detection.shadow_covariance, k)
            assert found.shadow[row].tobytes() == shadow.tobytes()
    quantiles = found.quantiles
    if quantiles is not None:
        quantiles = quantiles.reshape(len(result.detections), -1)
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


@given(
    st.lists(st.integers(0, 2**40), min_size=9, max_size=9),
    st.none() | IDS,
    st.lists(notices, max_size=2),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_the_answer_to_labels_is_what_protobuf_would_write(
    counts, frame_id, findings, durable, retracted
):
    account = TruthAccount(*counts)
    names = TruthAccount.__dataclass_fields__
    response = perception_monitor_pb2.ReportGroundTruthResponse(
        stream="lidar",
        frame_id=frame_id,
        account=truth_pb2.TruthAccount(**dict(zip(names, counts, strict=True))),
        notices=[wire_notice(notice) for notice in findings],
        durable=durable,
        retracted=retracted,
    )
    answer = TruthAnswer(account, tuple(findings), retracted=retracted, durable=durable)
    data = encode_truth_response("lidar", frame_id, answer)
    assert data == response.SerializeToString()
    assert decode_truth_answer(data)[0] == account
