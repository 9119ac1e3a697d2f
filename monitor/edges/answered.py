"""The sidecar's answers as a client's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.limits import MOST_CLASSES
from monitor.calibration.space import BoolArray, FloatArray, IntArray, square_from_triangle
from monitor.counters import TruthAccount
from monitor.edges.record_columns import RecordColumns, columns_by_layout, record_columns
from monitor.edges.records import Kind, Schema, TailReader
from monitor.v1 import frame_pb2, perception_monitor_pb2

_DETECTIONS = 15  # the field number of the detections in FrameResult
# Widest rows of doubles that are kept: as many as there may be classes.
_MOST_VALUES = MOST_CLASSES
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
    10: Kind.FLAG,
    11: Kind.DOUBLES,
    12: Kind.DOUBLES,
    13: Kind.FLAG,
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

    covariance           (N, K, K); NaN where none came back
    shadow               (N, K, K) of mode = observe, or None
    track_id             (N,) the track that a detection updated or began, 0 for none
    output               (N,) of Output
    quantiles            (N, K, T) at the levels asked for, NaN where none came; or None
    class_probabilities  (N, C) recalibrated, NaN where none came; or None
    class_version        of the recalibrator that made these, empty without
    rejected_by          (N,) of RejectedBy, 0 where nothing is
    """

    status: npt.NDArray[np.uint8]
    reason: npt.NDArray[np.uint8]
    mean: FloatArray
    covariance: FloatArray
    shadow: FloatArray | None
    versions: tuple[str, ...]
    track_id: IdArray
    tracks: AnsweredTracks
    output: npt.NDArray[np.uint8]
    quantiles: FloatArray | None
    class_probabilities: FloatArray | None
    class_version: str
    rejected_by: npt.NDArray[np.uint8]


def decode_answer(data: bytes, k: int) -> Answered:
    """A ProcessResponse to a frame. Raises ValueError if it is anything else."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") != "frame":
        raise ValueError("the message is not the answer to a frame")
    result = response.frame
    tracks = _tracks(result)
    result.ClearField("tracks")  # or they would be written once more
    others = {f.name: value for f, value in result.ListFields() if f.name != "detections"}
    head = frame_pb2.FrameResult(**others).ByteSize()
    columns, _ = record_columns(result, head, _RESULT_TAIL)
    return Answered(
        status=columns.scalar(2, np.uint8),
        reason=columns.scalar(3, np.uint8),
        mean=_vectors(columns, 5, k),
        covariance=_matrices(columns, 6, k),
        shadow=_matrices(columns, 8, k) if columns.sent(8) else None,
        versions=tuple(result.recalibrator_versions),
        track_id=columns.scalar(9, np.uint64),
        tracks=tracks,
        output=columns.scalar(10, np.uint8),
        quantiles=_quantiles(columns, 11, k),
        class_probabilities=_rows(columns, 12),
        class_version=result.class_recalibrator_version,
        rejected_by=columns.scalar(13, np.uint8),
    )


def _tracks(result: frame_pb2.FrameResult) -> AnsweredTracks:
    """State and covariance are NaN where a track has other dimensions than the first."""
    s = len(result.tracks[0].state) if result.tracks else 0
    columns = columns_by_layout([track.SerializeToString() for track in result.tracks], _TRACK)
    _, length = columns.doubles(7, s)
    covariance = _matrices(columns, 8, s)
    covariance[length != s] = np.nan
    return AnsweredTracks(
        id=columns.scalar(1, np.uint64),
        class_index=columns.scalar(2, np.uint32).astype(np.int64),
        status=columns.scalar(3, np.uint8),
        detections=columns.scalar(4, np.uint32).astype(np.int64),
        detection_id=columns.scalar(5, np.uint64),
        has_detection=columns.present(5),
        nis=columns.scalar(6, np.float64, np.nan),
        state=_vectors(columns, 7, s),
        covariance=covariance,
    )


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


def _vectors(columns: RecordColumns, number: int, k: int) -> FloatArray:
    """(n, K); NaN where any other number of values was sent."""
    values, length = columns.doubles(number, k)
    out = np.full((columns.n, k), np.nan)
    fits = length == k
    if fits.any():
        out[fits] = values[fits]
    return out


def _rows(columns: RecordColumns, number: int) -> FloatArray | None:
    """(n, count), as many as most; NaN where none came, None where that is so for all."""
    return columns.doubles(number, _MOST_VALUES)[0] if columns.sent(number) else None


def _quantiles(columns: RecordColumns, number: int, k: int) -> FloatArray | None:
    """(n, K, T); what is no whole number of levels is left out."""
    values = _rows(columns, number)
    if values is None:
        return None
    levels = values.shape[1] // k
    return values[:, : k * levels].reshape(columns.n, k, levels)


def _matrices(columns: RecordColumns, number: int, k: int) -> FloatArray:
    """(n, K, K) of any of the three forms; NaN for any other length."""
    values, length = columns.doubles(number, k * k)
    out = np.full((columns.n, k, k), np.nan)
    for form in np.unique(length).tolist():
        rows = np.flatnonzero(length == form)
        sent = values[rows]
        if form == k:
            step = np.arange(k)
            out[rows] = 0.0
            out[rows[:, None], step, step] = sent[:, :k]
        elif form == k * k:
            out[rows] = sent.reshape(-1, k, k)
        elif form == k * (k + 1) // 2:
            out[rows] = sent[:, square_from_triangle(k)].reshape(-1, k, k)
    return out
