"""Frames as they leave the sidecar: arrays to protobuf bytes, the very bytes that protobuf would
write.

They go back to detectors as answers, and to a tracker elsewhere as its input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import (
    ACTED_ON,
    PASSED_THROUGH,
    Estimates,
    IdArray,
    Reason,
)
from monitor.frames.frame import FrameAnswer, Header, Refusal, ReportedTracks, TruthAnswer
from monitor.frames.reasons import Notice
from monitor.frames.space import Dimension, FloatArray, IntArray, packed_covariances
from monitor.v1 import frame_pb2, perception_monitor_pb2, tracker_pb2, truth_pb2
from monitor.wire.client_messages import frame_head, stream_header
from monitor.wire.records import DETECTION, DETECTIONS, RESULT, TRACK, Field, build_partial, framed
from monitor.wire.values import message_of

_TRACKS = 8  # the field number of the tracks in FrameResult
_FRAME = 5  # the field number of the frame in UpdateRequest
_NONE, _ESTIMATED = int(Reason.NONE), int(Reason.COVARIANCE_ESTIMATED)
_RECALIBRATED, _PASSED_THROUGH = frame_pb2.STATUS_RECALIBRATED, frame_pb2.STATUS_PASSED_THROUGH
_STATUS = np.full(max(Reason) + 1, frame_pb2.STATUS_REFUSED, np.uint8)
_STATUS[[int(reason) for reason in ACTED_ON]] = _RECALIBRATED
_STATUS[[int(reason) for reason in PASSED_THROUGH]] = _PASSED_THROUGH

# Values (n, width), and how many of them each row has, (n,); None: all.
Doubles = tuple[FloatArray, IntArray | None]


def encode_tracks(tracks: ReportedTracks, detection_id: IdArray) -> bytes:
    """Encodes tracks: those with a detection in the frame first, each part in its order.

    detection_id  (N,) of all detections of the frame
    """
    m, s = tracks.state.shape
    if m == 0:
        return b""
    updated = tracks.updated
    updated_by = np.zeros(m, np.uint64)
    updated_by[updated] = detection_id[tracks.detection[updated]]
    fields: dict[int, Field] = {
        1: (tracks.id, None),
        2: (tracks.class_index, None),
        3: (tracks.status, None),
        4: (tracks.detections, None),
        5: (updated_by, updated),
        6: (tracks.nis, ~np.isnan(tracks.nis)),
        7: (tracks.state, None),
        8: (packed_covariances(tracks.covariance, s * (s + 1) // 2), None),
    }
    order = np.argsort(~updated, kind="stable")
    ordered: dict[int, Field] = {
        number: (values[order], None if present is None else present[order])
        for number, (values, present) in fields.items()
    }
    return build_partial(_TRACKS, TRACK, ordered, m)


def encode_header_answer(
    stream: str, notice: Notice | None, track_dimensions: tuple[Dimension, ...] = ()
) -> bytes:
    """Encodes a ProcessResponse for a header, with the dimensions of tracks to be returned.

    notice  a Refusal refuses the header, another notice is beside its acceptance
    """
    result = perception_monitor_pb2.HeaderResult(
        stream=stream,
        accepted=not isinstance(notice, Refusal),
        notice=None if notice is None else _notice(notice),
        track_dimensions=[message_of(frame_pb2.Dimension, one) for one in track_dimensions],
    )
    return perception_monitor_pb2.ProcessResponse(header=result).SerializeToString()


def encode_process_response(answer: FrameAnswer | Refusal, message_index: int) -> bytes:
    """Encodes a ProcessResponse for a frame, or for a message that could not be used."""
    return framed(2, *_frame_result(answer, message_index))


def encode_process_frame_response(answer: FrameAnswer | Refusal) -> bytes:
    """Encodes a ProcessFrameResponse."""
    return framed(1, *_frame_result(answer, 0))


def _frame_result(answer: FrameAnswer | Refusal, message_index: int) -> tuple[bytes, ...]:
    """Encodes a FrameResult in pieces: its own fields, its tracks, its detections."""
    if isinstance(answer, Refusal):
        refused = frame_pb2.FrameResult(
            message_index=message_index,
            status=frame_pb2.STATUS_REFUSED,
            reason=_wire_reason(answer.reason),
            notices=[_notice(answer)],
        )
        return (refused.SerializeToString(),)
    received = answer.received
    reason = _reason_of_frame(answer.reason)
    result = frame_pb2.FrameResult(
        frame_id=received.frame_id,
        stamp_ns=received.stamp_ns,
        message_index=message_index,
        status=_RECALIBRATED if reason in ACTED_ON else _PASSED_THROUGH,
        reason=_wire_reason(reason),
        recalibrator_versions=answer.versions,
        notices=map(_notice, answer.notices),
    )
    tracks = classes = b""
    if answer.tracks is not None:
        tracks = encode_tracks(answer.tracks, received.detections.id)
    if answer.extras is not None and answer.extras.class_version:
        version = answer.extras.class_version
        classes = frame_pb2.FrameResult(class_recalibrator_version=version).SerializeToString()
    # By ascending number: 1 to 7, 8, 9, 15.
    return result.SerializeToString(), tracks, classes, _detection_results(answer)


def _reason_of_frame(reason: npt.NDArray[np.uint8]) -> Reason:
    """Returns the reason most of the detections share, (N,); one of ACTED_ON if any has it."""
    counts = np.bincount(reason, minlength=_STATUS.size)
    if not reason.size or counts[_NONE]:
        return Reason.NONE
    if counts[_ESTIMATED]:
        return Reason.COVARIANCE_ESTIMATED
    return Reason(int(counts.argmax()))


def encode_truth_response(stream: str, frame_id: int | None, answer: TruthAnswer) -> bytes:
    """Encodes a ReportGroundTruthResponse."""
    return perception_monitor_pb2.ReportGroundTruthResponse(
        stream=stream,
        frame_id=frame_id,
        account=message_of(truth_pb2.TruthAccount, answer.account),
        notices=map(_notice, answer.notices),
        durable=answer.durable,
        retracted=answer.retracted,
    ).SerializeToString()


def _wire_reason(reason: Reason) -> frame_pb2.Reason:
    """Casts a number to the type that the generated code asks for."""
    return cast("frame_pb2.Reason", int(reason))


def _notice(notice: Notice) -> frame_pb2.Notice:
    # In the way of a frame's answer: message_of() would take four times as long.
    return frame_pb2.Notice(
        reason=_wire_reason(notice.reason),
        count=notice.count,
        first_index=notice.first_index,
        field=notice.field,
        message=notice.message,
    )


def _detection_results(answer: FrameAnswer) -> bytes:
    """Encodes all DetectionResult records, in the order the detections came."""
    received, extras = answer.received.detections, answer.extras
    n = received.n
    if n == 0:
        return b""
    mean, covariance = outgoing_estimates(answer)
    fields: dict[int, Field] = {
        1: (received.id, None if received.uniform and received.has_id[0] else received.has_id),
        2: (_STATUS[answer.reason], None),
        3: (answer.reason, None),
        4: (np.zeros(n, np.uint32), None),
        5: mean,
        6: covariance,
    }
    if answer.shadow is not None and answer.shadow_rows.size:
        none = np.zeros((n, 0)), np.zeros(n, np.int64)
        fields[7], fields[8] = _with_made(answer, answer.shadow_rows, answer.shadow, none, none)
    if answer.tracks is not None:
        track = answer.tracks.of_detections(n)
        fields[9] = (track, track != 0)
    # Every detection has its flag, also a 0: else most frames would have two layouts.
    output = np.zeros(n, np.uint8) if extras is None else extras.output
    fields[10] = (output, None)
    if extras is not None:
        for number, rows in ((11, extras.quantiles), (12, extras.class_probabilities)):
            if rows is not None:
                fields[number] = (rows, ~np.isnan(rows[:, 0]) * rows.shape[1])
        if extras.rejected_by is not None:
            fields[13] = (extras.rejected_by, None)
    overlong = answer.received.overlong.items()
    apart = {row: _overlong(answer, row, record) for row, record in overlong}
    return build_partial(DETECTIONS, RESULT, fields, n, apart)


def outgoing_estimates(answer: FrameAnswer) -> tuple[Doubles, Doubles]:
    """Returns means and covariances as they go out: recalibrated where they were, else as sent."""
    received = answer.received.detections
    mean: Doubles = received.mean, None if received.uniform else received.mean_length
    covariance: Doubles = received.covariance, received.covariance_length
    if received.uniform:
        covariance = received.covariance, None
    if answer.forwarded is None or answer.rows.size == 0:
        return mean, covariance
    return _with_made(answer, answer.rows, answer.forwarded, mean, covariance)


def _with_made(
    answer: FrameAnswer, rows: IntArray, made: Estimates, mean: Doubles, covariance: Doubles
) -> tuple[Doubles, Doubles]:
    """Puts in what was made of some rows, in the form that was sent, if it still fits."""
    k, received = made.mean.shape[1], answer.received.detections
    sent = received.covariance_length
    alone = np.count_nonzero(made.diagonal)
    if received.uniform and rows.size == received.n and alone in (0, received.n):
        whole = k * k if sent[0] == k * k else k * (k + 1) // 2
        return (made.mean, None), (made.in_form(k if alone else whole), None)
    # How many values each covariance goes out with.
    full = np.where(sent[rows] == k * k, k * k, k * (k + 1) // 2)
    form = np.where(made.diagonal, k, full)
    forms = np.flatnonzero(np.bincount(form)).tolist()
    for wanted in forms:
        here = np.flatnonzero(form == wanted) if len(forms) > 1 else slice(None)
        packed = made.in_form(wanted)[here]
        covariance = with_rows(covariance, rows[here], packed)
    return with_rows(mean, rows, made.mean), covariance


def with_rows(doubles: Doubles, rows: IntArray, made: FloatArray) -> Doubles:
    """Puts values (m, width) in place of those of m rows, which ascend."""
    values, counts = doubles
    n, width = values.shape[0], made.shape[1]
    if rows.size == n:
        return made, None
    if counts is None:
        counts = np.full(n, values.shape[1])
    wider = np.full((n, max(values.shape[1], width)), np.nan)
    wider[:, : values.shape[1]] = values
    wider[rows, :width] = made
    counts = counts.copy()
    counts[rows] = width
    return wider, counts


def _overlong(answer: FrameAnswer, row: int, record: bytes) -> bytes:
    """Encodes the result of a detection that fits no array, field by field."""
    sent = frame_pb2.Detection.FromString(record)
    flags = None if answer.extras is None else answer.extras.rejected_by
    reason = int(answer.reason[row])
    result = frame_pb2.DetectionResult(
        id=sent.id if sent.HasField("id") else None,
        status=cast("frame_pb2.Status", int(_STATUS[reason])),
        reason=_wire_reason(Reason(reason)),
        recalibrator_index=0,
        mean=sent.mean,
        covariance=sent.covariance,
        output=frame_pb2.OUTPUT_UNSPECIFIED,
        rejected_by=None if flags is None else cast("frame_pb2.RejectedBy", int(flags[row])),
    )
    return result.SerializeToString()


# ---- to a tracker elsewhere


def encode_header_update(header: Header) -> bytes:
    """Encodes an UpdateRequest with a header, without what it asks of answers to the detector."""
    told = stream_header(replace(header, return_tracks=False, quantile_levels=()))
    return tracker_pb2.UpdateRequest(stream=header.stream, header=told).SerializeToString()


def encode_frame_update(
    stream: str, answer: FrameAnswer, sequence: int, left_ns: int | None
) -> bytes:
    """Encodes an UpdateRequest with the frame as it goes back to the detector.

    Detections go out recalibrated where they were, else as they came. Ground truth that came with
    them stays here; logits go out as the probabilities they stand for.

    left_ns  time left of the detector's call, ns; None: it has no deadline
    """
    head = tracker_pb2.UpdateRequest(stream=stream, sequence=sequence)
    if left_ns is not None:
        head.deadline_ns = max(0, left_ns)
    received = answer.received
    frame = frame_head(received.frame_id, received.stamp_ns, received.ego) + _updates(answer)
    return head.SerializeToString() + framed(_FRAME, frame)


def _updates(answer: FrameAnswer) -> bytes:
    """Encodes all Detection records, in the order the detections came."""
    received = answer.received.detections
    if received.n == 0:
        return b""
    fields: dict[int, Field] = {
        1: (received.id, received.has_id),
        2: (received.class_index, received.class_index >= 0),
    }
    if received.score is not None:
        fields[3] = (received.score, ~np.isnan(received.score))
    fields[4], fields[5] = outgoing_estimates(answer)
    if received.upstream_track is not None:
        fields[7] = received.upstream_track
    probabilities = _probabilities(answer)
    if probabilities is not None:
        fields[8] = probabilities
    overlong = answer.received.overlong.items()
    apart = {row: _unlabelled(record) for row, record in overlong}
    return build_partial(DETECTIONS, DETECTION, fields, received.n, apart)


def _probabilities(answer: FrameAnswer) -> Doubles | None:
    """Returns them recalibrated where they were, else as they came; None where none came."""
    sent, extras = answer.received.detections.class_probabilities, answer.extras
    made = None if extras is None else extras.class_probabilities
    if made is None or sent is None:
        return sent
    rows = np.flatnonzero(~np.isnan(made[:, 0]))
    return with_rows(sent, rows, made[rows])


def _unlabelled(record: bytes) -> bytes:
    """Encodes a detection that fits no array, as it came."""
    sent = frame_pb2.Detection.FromString(record)
    sent.ClearField("ground_truth")
    sent.ClearField("ground_truth_class")
    return sent.SerializeToString()
