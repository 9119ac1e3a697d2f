"""The sidecar's answers as a client's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.space import BoolArray, FloatArray, IntArray, triangle
from monitor.counters import TruthAccount
from monitor.edges.records import Kind, Records, Schema, TailReader, sorted_by_layout
from monitor.v1 import frame_pb2, perception_monitor_pb2

_DETECTIONS = 15  # the field number of the detections in FrameResult
_RESULT: Schema = {
    1: Kind.FIXED64,
    2: Kind.FLAG,
    3: Kind.FLAG,
    4: Kind.FIXED32,
    5: Kind.DOUBLES,
    6: Kind.DOUBLES,
    7: Kind.DOUBLES,
    8: Kind.DOUBLES,
    9: Kind.FIXED64,
}
_TRACK: Schema = {
    1: Kind.FIXED64,
    2: Kind.FIXED32,
    3: Kind.FLAG,
    4: Kind.FIXED32,
    5: Kind.FIXED64,
    6: Kind.DOUBLE,
    7: Kind.DOUBLES,
    8: Kind.DOUBLES,
}

_RESULT_TAIL = TailReader(_DETECTIONS, _RESULT)


@dataclass(frozen=True, slots=True)
class AnsweredTracks:
    """M tracks as of a frame, in the S dimensions that the header's answer names.

    status         (M,) of TrackStatus
    detections     (M,) how many each has had
    detection_id   (M,) of the detection that updated or began it in this frame,
                   and has_detection (M,) whether there is one
    nis            (M,) normalised innovation squared of that update, NaN for none
    state          (M, S) and covariance (M, S, S); (0, 0) and (0, 0, 0) where none came
    """

    id: IdArray
    class_index: IntArray
    status: npt.NDArray[np.uint8]
    detections: IntArray
    detection_id: IdArray
    has_detection: BoolArray
    nis: FloatArray
    state: FloatArray
    covariance: FloatArray


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a frame, as arrays in the order the detections were sent.

    covariance  (N, K, K); NaN where none came back
    shadow      (N, K, K) of mode = observe, or None
    track_id    (N,) the track that a detection updated or began, 0 for none
    """

    status: npt.NDArray[np.uint8]
    reason: npt.NDArray[np.uint8]
    mean: FloatArray
    covariance: FloatArray
    shadow: FloatArray | None
    versions: tuple[str, ...]
    track_id: IdArray
    tracks: AnsweredTracks


def decode_answer(data: bytes, k: int) -> Answered:
    """A ProcessResponse to a frame. Raises ValueError if it is anything else."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") != "frame":
        raise ValueError("the message is not the answer to a frame")
    result = response.frame
    tracks = _tracks(result)
    result.ClearField("tracks")  # or they would be copied and written once more
    n = len(result.detections)
    track_id = np.zeros(n, np.uint64)
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
        _set(track_id, positions, records.column(9))
    versions = tuple(result.recalibrator_versions)
    return Answered(status, reason, mean, covariance, shadow, versions, track_id, tracks)


def _tracks(result: frame_pb2.FrameResult) -> AnsweredTracks:
    """All values of a track that has another number of dimensions than the first are NaN."""
    m = len(result.tracks)
    s = len(result.tracks[0].state) if m else 0
    tracks = AnsweredTracks(
        id=np.zeros(m, np.uint64),
        class_index=np.zeros(m, np.int64),
        status=np.zeros(m, np.uint8),
        detections=np.zeros(m, np.int64),
        detection_id=np.zeros(m, np.uint64),
        has_detection=np.zeros(m, bool),
        nis=np.full(m, np.nan),
        state=np.full((m, s), np.nan),
        covariance=np.full((m, s, s), np.nan),
    )
    single = [track.SerializeToString() for track in result.tracks]
    for positions, records in sorted_by_layout(single, _TRACK):
        if records is None:
            continue
        _set(tracks.id, positions, records.column(1))
        _set(tracks.class_index, positions, records.column(2))
        _set(tracks.status, positions, records.column(3))
        _set(tracks.detections, positions, records.column(4))
        _set(tracks.detection_id, positions, records.column(5))
        tracks.has_detection[positions] = 5 in records.layout.fields
        _set(tracks.nis, positions, records.column(6))
        state = records.column(7)
        if state is not None and state.shape[1] == s:
            tracks.state[positions] = state
            tracks.covariance[positions] = _matrices(records.column(8), s)
    return tracks


def decode_truth_answer(data: bytes) -> tuple[TruthAccount, str]:
    """What became of the labels of a message, and what was wrong with any, in words."""
    response = perception_monitor_pb2.ReportGroundTruthResponse.FromString(data)
    counts = {name: getattr(response.account, name) for name in TruthAccount.__dataclass_fields__}
    words = "; ".join(f"{notice.field}: {notice.message}" for notice in response.notices)
    return TruthAccount(**counts), words


def track_dimensions(data: bytes) -> tuple[str, ...]:
    """Names of the dimensions of the tracks that a ProcessResponse to a header promises."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    return tuple(dimension.name for dimension in response.header.track_dimensions)


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
    out: npt.NDArray[np.generic],
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
