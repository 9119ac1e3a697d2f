"""Answers to detectors: arrays to protobuf bytes, the very bytes that protobuf would write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import PASSED_THROUGH, Estimates, IdArray, Reason
from monitor.frames.frame import FrameAnswer, Refusal, ReportedTracks, TruthAnswer
from monitor.frames.reasons import Notice
from monitor.frames.space import BoolArray, Dimension, FloatArray, IntArray, triangle_in_square
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.client_messages import dimension_message
from monitor.wire.records import (
    DETECTIONS,
    ByteArray,
    Kind,
    build,
    build_partial,
    framed,
    interleave,
    varint,
)

_TRACKS = 8  # the field number of the tracks in FrameResult
_STATUS = np.full(max(Reason) + 1, frame_pb2.STATUS_REFUSED, np.uint8)
_STATUS[Reason.NONE] = frame_pb2.STATUS_RECALIBRATED
_STATUS[[int(reason) for reason in PASSED_THROUGH]] = frame_pb2.STATUS_PASSED_THROUGH


@dataclass(frozen=True, slots=True)
class _Values:
    """Mean and covariance of some rows as they go out: one form for all."""

    rows: IntArray
    mean: FloatArray
    covariance: FloatArray
    shadow: _Values | None = None

    def at(self, which: IntArray) -> _Values:
        """Takes some rows by their positions among these."""
        return _Values(
            self.rows[which],
            self.mean[which],
            self.covariance[which],
            None if self.shadow is None else self.shadow.at(which),
        )


@dataclass(frozen=True, slots=True)
class _ResultField:
    """A field of DetectionResult that goes with the estimate.

    values   (N,), or (N, count) for DOUBLES
    present  (N,) which detections have it; None: all
    """

    number: int
    kind: Kind
    values: npt.NDArray[np.generic]
    present: BoolArray | None = None


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
    fields: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {
        1: (Kind.FIXED64, tracks.id),
        2: (Kind.FIXED32, tracks.class_index),
        3: (Kind.FLAG, tracks.status),
        4: (Kind.FIXED32, tracks.detections),
        5: (Kind.FIXED64, updated_by),
        6: (Kind.DOUBLE, tracks.nis),
        7: (Kind.DOUBLES, tracks.state),
        8: (Kind.DOUBLES, tracks.covariance.reshape(m, s * s)[:, triangle_in_square(s)]),
    }
    present = {5: updated, 6: ~np.isnan(tracks.nis)}
    return build_partial(_TRACKS, fields, present, np.argsort(~updated, kind="stable"))


def encode_header_answer(
    stream: str, refusal: Refusal | None, track_dimensions: tuple[Dimension, ...] = ()
) -> bytes:
    """Encodes a ProcessResponse for a header, with the dimensions of tracks to be returned."""
    result = perception_monitor_pb2.HeaderResult(
        stream=stream,
        accepted=refusal is None,
        notice=None if refusal is None else _notice(refusal.notice()),
        track_dimensions=map(dimension_message, track_dimensions),
    )
    return perception_monitor_pb2.ProcessResponse(header=result).SerializeToString()


def encode_process_response(answer: FrameAnswer | Refusal, message_index: int) -> bytes:
    """Encodes a ProcessResponse for a frame, or for a message that could not be used."""
    return _framed(b"\x12", _frame_result(answer, message_index))  # field 2, length-delimited


def encode_process_frame_response(answer: FrameAnswer | Refusal) -> bytes:
    """Encodes a ProcessFrameResponse."""
    return _framed(b"\x0a", _frame_result(answer, 0))  # field 1, length-delimited


def _framed(tag: bytes, parts: tuple[bytes, ...]) -> bytes:
    return b"".join((tag, varint(sum(map(len, parts))), *parts))


def _frame_result(answer: FrameAnswer | Refusal, message_index: int) -> tuple[bytes, ...]:
    """Encodes a FrameResult in pieces: its own fields, its tracks, its detections."""
    result = frame_pb2.FrameResult(message_index=message_index)
    if isinstance(answer, Refusal):
        result.status = frame_pb2.STATUS_REFUSED
        result.reason = _wire_reason(answer.reason)
        result.notices.append(_notice(answer.notice()))
        return (result.SerializeToString(),)
    received = answer.received
    if received.frame_id is not None:
        result.frame_id = received.frame_id
    if received.stamp_ns is not None:
        result.stamp_ns = received.stamp_ns
    result.status = frame_pb2.STATUS_RECALIBRATED
    result.reason = frame_pb2.REASON_NONE
    result.recalibrator_versions.extend(answer.versions)
    result.notices.extend(_notice(notice) for notice in answer.notices)
    tracks = classes = b""
    if answer.tracks is not None:
        tracks = encode_tracks(answer.tracks, received.detections.id)
    if answer.extras is not None and answer.extras.class_version:
        version = answer.extras.class_version
        classes = frame_pb2.FrameResult(class_recalibrator_version=version).SerializeToString()
    # By ascending number: 1 to 7, 8, 9, 15.
    return result.SerializeToString(), tracks, classes, _detection_results(answer)


def encode_truth_response(stream: str, frame_id: int | None, answer: TruthAnswer) -> bytes:
    """Encodes a ReportGroundTruthResponse."""
    account = answer.account
    response = perception_monitor_pb2.ReportGroundTruthResponse(
        stream=stream,
        account=truth_pb2.TruthAccount(
            **{name: getattr(account, name) for name in account.__dataclass_fields__}
        ),
        notices=[_notice(notice) for notice in answer.notices],
        durable=answer.durable,
        retracted=answer.retracted,
    )
    if frame_id is not None:
        response.frame_id = frame_id
    return response.SerializeToString()


def _wire_reason(reason: Reason) -> frame_pb2.Reason:
    """Casts a number to the type that the generated code asks for."""
    return cast("frame_pb2.Reason", int(reason))


def _notice(notice: Notice) -> frame_pb2.Notice:
    return frame_pb2.Notice(
        reason=_wire_reason(notice.reason),
        count=notice.count,
        first_index=notice.first_index,
        field=notice.field,
        message=notice.message,
    )


def _detection_results(answer: FrameAnswer) -> bytes:
    """Encodes all DetectionResult records, in the order the detections came."""
    n = answer.received.detections.n
    if n == 0:
        return b""
    found: list[_Values] = []
    if answer.forwarded is not None and answer.rows.size:
        found += _by_form(answer, answer.rows, answer.forwarded)
    returned = np.ones(n, bool)
    returned[answer.rows] = False
    if answer.shadow is not None and answer.shadow_rows.size:
        for shadow in _by_form(answer, answer.shadow_rows, answer.shadow):
            for raw in _as_sent(answer, shadow.rows):
                where = np.searchsorted(shadow.rows, raw.rows)
                found.append(replace(raw, shadow=shadow.at(where)))
        returned[answer.shadow_rows] = False
    overlong = answer.received.overlong
    returned[list(overlong)] = False
    if returned.any():
        found += _as_sent(answer, np.flatnonzero(returned))
    extras = _extra_fields(answer, n)
    for field in extras:
        if field.present is not None:
            found = [part for values in found for part in _apart(values, field.present)]
    pieces = [(values.rows, _records(answer, values, extras)) for values in found]
    pieces.extend(
        (np.array([row]), _overlong(answer, row, record)) for row, record in overlong.items()
    )
    return interleave(n, pieces)


def _extra_fields(answer: FrameAnswer, n: int) -> list[_ResultField]:
    """Lists the fields beside the estimate, by ascending number."""
    found = []
    if answer.tracks is not None:
        track = answer.tracks.of_detections(n)
        found.append(_ResultField(9, Kind.FIXED64, track, track != 0))
    extras = answer.extras
    # Every detection has its flag, also a 0: else most frames would have two layouts.
    output = np.zeros(n, np.uint8) if extras is None else extras.output
    found.append(_ResultField(10, Kind.FLAG, output))
    if extras is None:
        return found
    if extras.quantiles is not None:
        found.append(_rows_of_doubles(11, extras.quantiles))
    if extras.class_probabilities is not None:
        found.append(_rows_of_doubles(12, extras.class_probabilities))
    if extras.rejected_by is not None:
        found.append(_ResultField(13, Kind.FLAG, extras.rejected_by))
    return found


def _rows_of_doubles(number: int, values: FloatArray) -> _ResultField:
    """Makes a field of rows (n, count), present where one does not begin with NaN."""
    return _ResultField(number, Kind.DOUBLES, values, ~np.isnan(values[:, 0]))


def _apart(values: _Values, present: BoolArray) -> list[_Values]:
    """Parts rows that have a field from those that have not: their records differ in length."""
    here = present[values.rows]
    if here.all() or not here.any():
        return [values]
    return [values.at(np.flatnonzero(here)), values.at(np.flatnonzero(~here))]


def _by_form(answer: FrameAnswer, rows: IntArray, made: Estimates) -> list[_Values]:
    """Groups recalibrated rows by the form that goes out: the one sent, if it still fits."""
    form = covariance_forms(made, answer.received.detections.covariance_length[rows])
    if (form == form[0]).all():
        return [_Values(rows, made.mean, packed_covariances(made.covariance, int(form[0])))]
    found = []
    for wanted in np.unique(form).tolist():
        here = np.flatnonzero(form == wanted)
        covariance = packed_covariances(made.covariance[here], wanted)
        found.append(_Values(rows[here], made.mean[here], covariance))
    return found


def covariance_forms(made: Estimates, sent: IntArray) -> IntArray:
    """Counts the values with which each covariance goes out, (m,).

    sent  (m,) how many it came with
    """
    k = made.mean.shape[1]
    full = np.where(sent == k * k, k * k, k * (k + 1) // 2)
    forms: IntArray = np.where(made.diagonal, k, full)
    return forms


def packed_covariances(covariance: FloatArray, form: int) -> FloatArray:
    """Packs (n, K, K) into (n, form): the diagonal, the lower triangle or all of it."""
    k = covariance.shape[1]
    if form == k * k:
        return covariance.reshape(-1, form)
    if form == k:
        step = np.arange(k)
        return covariance[:, step, step]
    return covariance.reshape(-1, k * k)[:, triangle_in_square(k)]


def _as_sent(answer: FrameAnswer, rows: IntArray) -> list[_Values]:
    """Groups rows as they came, by the lengths they came with."""
    detections = answer.received.detections
    if answer.received.fast and rows.size == detections.n:
        return [_Values(rows, detections.mean, detections.covariance)]
    sent = np.stack(
        [detections.mean_length[rows], detections.covariance_length[rows], detections.has_id[rows]]
    )
    found = []
    kinds, kind_of = np.unique(sent, axis=1, return_inverse=True)
    for kind, (mean_length, covariance_length, _) in enumerate(kinds.T.tolist()):
        here = rows[kind_of.ravel() == kind]
        found.append(
            _Values(
                here,
                detections.mean[here, :mean_length],
                detections.covariance[here, :covariance_length],
            )
        )
    return found


def _records(answer: FrameAnswer, values: _Values, extras: list[_ResultField]) -> ByteArray:
    """Encodes DetectionResult records of one layout."""
    rows = values.rows
    reason = answer.reason[rows]
    fields: dict[int, tuple[Kind, npt.NDArray[np.generic] | None]] = {}
    if answer.received.detections.has_id[rows[0]]:
        fields[1] = (Kind.FIXED64, answer.received.detections.id[rows])
    fields[2] = (Kind.FLAG, _STATUS[reason])
    fields[3] = (Kind.FLAG, reason)
    fields[4] = (Kind.FIXED32, None)
    fields[5] = (Kind.DOUBLES, values.mean)
    fields[6] = (Kind.DOUBLES, values.covariance)
    if values.shadow is not None:
        fields[7] = (Kind.DOUBLES, values.shadow.mean)
        fields[8] = (Kind.DOUBLES, values.shadow.covariance)
    for field in extras:
        if field.present is None or field.present[rows[0]]:
            fields[field.number] = (field.kind, field.values[rows])
    return build(DETECTIONS, fields, rows.size)


def _overlong(answer: FrameAnswer, row: int, record: bytes) -> ByteArray:
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
    encoded = framed(DETECTIONS, result.SerializeToString())
    return np.frombuffer(encoded, np.uint8).reshape(1, -1)
