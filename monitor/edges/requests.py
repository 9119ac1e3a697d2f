"""The other end of the wire: a client's arrays to bytes, and the sidecar's answers to arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.space import BoolArray, FloatArray, IntArray, triangle
from monitor.counters import TruthAccount
from monitor.edges.records import (
    Kind,
    Records,
    Schema,
    TailReader,
    build,
    sorted_by_layout,
    varint,
)
from monitor.frames import Header
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2

_DETECTIONS = 15
_RESULT: Schema = {
    1: Kind.FIXED64,
    2: Kind.FLAG,
    3: Kind.FLAG,
    4: Kind.FIXED32,
    5: Kind.DOUBLES,
    6: Kind.DOUBLES,
    7: Kind.DOUBLES,
    8: Kind.DOUBLES,
}

_RESULT_TAIL = TailReader(_DETECTIONS, _RESULT)


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame to send.

    covariance  (N, K, K), or (N, K) variances
    truth       (N, K) inline truth, or None
    """

    frame_id: int
    stamp_ns: int
    id: IdArray
    class_index: IntArray
    mean: FloatArray
    covariance: FloatArray
    score: FloatArray | None = None
    truth: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a frame, as arrays in the order the detections were sent.

    covariance  (N, K, K); NaN where none came back
    shadow      (N, K, K) of mode = observe, or None
    """

    status: npt.NDArray[np.uint8]
    reason: npt.NDArray[np.uint8]
    mean: FloatArray
    covariance: FloatArray
    shadow: FloatArray | None
    versions: tuple[str, ...]


def encode_header(header: Header) -> bytes:
    """ProcessRequest with a header."""
    return perception_monitor_pb2.ProcessRequest(
        header=frame_pb2.StreamHeader(
            stream=header.stream,
            dimensions=[
                frame_pb2.Dimension(
                    name=d.name, unit=d.unit, kind=cast("frame_pb2.DimensionKind", int(d.kind))
                )
                for d in header.space.dimensions
            ],
            class_names=header.classes,
            coordinate_frame=header.coordinate_frame,
        )
    ).SerializeToString()


def encode_frame(frame: OutgoingFrame) -> bytes:
    """ProcessRequest with a frame; full covariances go out as their lower triangles."""
    head = frame_pb2.Frame(frame_id=frame.frame_id, stamp_ns=frame.stamp_ns)
    body = head.SerializeToString() + _detections(frame)
    return b"\x12" + varint(len(body)) + body  # field 2, length-delimited


def _detections(frame: OutgoingFrame) -> bytes:
    n = frame.id.size
    if n == 0:
        return b""
    covariance = frame.covariance
    if covariance.ndim == 3:
        i, j = triangle(covariance.shape[1])
        covariance = covariance[:, i, j]
    fields: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {
        1: (Kind.FIXED64, frame.id),
        2: (Kind.FIXED32, frame.class_index),
    }
    if frame.score is not None:
        fields[3] = (Kind.DOUBLE, frame.score)
    fields[4] = (Kind.DOUBLES, frame.mean)
    fields[5] = (Kind.DOUBLES, covariance)
    if frame.truth is not None:
        fields[6] = (Kind.DOUBLES, frame.truth)
    return build(_DETECTIONS, fields, n).tobytes()


def encode_truth(
    stream: str, frame_id: int, ids: IdArray, truth: FloatArray, *, complete: bool = False
) -> bytes:
    """ReportGroundTruthRequest for detections by their ids; truth (n, K)."""
    head = truth_pb2.FrameTruth(stream=stream, frame_id=frame_id, complete=complete)
    body = head.SerializeToString()
    if ids.size:
        labels = {1: (Kind.FIXED64, ids), 2: (Kind.DOUBLES, truth)}
        body += build(_DETECTIONS, labels, ids.size).tobytes()
    return b"\x0a" + varint(len(body)) + body  # field 1, length-delimited


def decode_answer(data: bytes, k: int) -> Answered:
    """A ProcessResponse to a frame. Raises ValueError if it is anything else."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") != "frame":
        raise ValueError("the message is not the answer to a frame")
    result = response.frame
    n = len(result.detections)
    status, reason = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    mean, covariance = np.full((n, k), np.nan), np.full((n, k, k), np.nan)
    shadow: FloatArray | None = None
    for positions, records in _groups(result, n):
        _set(status, positions, records.column(2))
        _set(reason, positions, records.column(3))
        values = records.column(5)
        if values is not None and values.shape[1] == k:
            mean[positions] = values
        covariance[positions] = _matrices(records.column(6), k)
        if 8 in records.layout.fields:
            shadow = np.full((n, k, k), np.nan) if shadow is None else shadow
            shadow[positions] = _matrices(records.column(8), k)
    return Answered(status, reason, mean, covariance, shadow, tuple(result.recalibrator_versions))


def decode_truth_answer(data: bytes) -> tuple[TruthAccount, str]:
    """What became of the labels of a message, and what was wrong with any, in words."""
    response = perception_monitor_pb2.ReportGroundTruthResponse.FromString(data)
    counts = {name: getattr(response.account, name) for name in TruthAccount.__dataclass_fields__}
    words = "; ".join(f"{notice.field}: {notice.message}" for notice in response.notices)
    return TruthAccount(**counts), words


def refused(data: bytes) -> str | None:
    """Why a ProcessResponse says no to a whole message, in words; None if it does not."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") == "header":
        notice = response.header.notice
        return None if response.header.accepted else f"{notice.field}: {notice.message}"
    if response.frame.status != frame_pb2.STATUS_REFUSED:
        return None
    return "; ".join(f"{notice.field}: {notice.message}" for notice in response.frame.notices)


def _groups(
    result: frame_pb2.FrameResult, n: int
) -> list[tuple[IntArray | BoolArray | slice, Records]]:
    if n == 0:
        return []
    fields = frame_pb2.FrameResult()
    fields.CopyFrom(result)
    fields.ClearField("detections")
    records = _RESULT_TAIL.read(
        result.SerializeToString(),
        fields.ByteSize(),
        n,
        lambda: result.detections[0].SerializeToString(),
    )
    if records is not None:
        return [(slice(None), records)]
    single = [detection.SerializeToString() for detection in result.detections]
    return [(p, r) for p, r in sorted_by_layout(single, _RESULT) if r is not None]


def _set(
    out: npt.NDArray[np.uint8],
    positions: IntArray | BoolArray | slice,
    column: npt.NDArray[np.generic] | None,
) -> None:
    if column is not None:
        out[positions] = column[:, 0]


def _matrices(values: npt.NDArray[np.generic] | None, k: int) -> FloatArray:
    """(n, K, K) of any of the three forms; NaN for any other length."""
    if values is None:
        return np.full((1, k, k), np.nan)
    n, length = values.shape
    out = np.zeros((n, k, k))
    if length == k:
        out[:, np.arange(k), np.arange(k)] = values
    elif length == k * k:
        out[:] = values.reshape(n, k, k)
    elif length == k * (k + 1) // 2:
        i, j = triangle(k)
        out[:, i, j] = values
        out[:, j, i] = values
    else:
        out[:] = np.nan
    return out
