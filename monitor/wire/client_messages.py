"""Messages at the client's end of the wire: its arrays to bytes, answers to arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import IdArray
from monitor.frames.frame import EgoMotion, Header, TrackIds
from monitor.frames.space import (
    MOST_CLASSES,
    BoolArray,
    Dimension,
    FloatArray,
    IntArray,
    square_from_triangle,
    triangle,
)
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.records import (
    DETECTIONS,
    Field,
    Kind,
    RecordColumns,
    Schema,
    TailReader,
    build,
    build_partial,
    columns_by_layout,
    framed,
    record_columns,
)

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

TRACK: Schema = {
    1: Kind.FIXED64,
    2: Kind.FIXED32,
    3: Kind.FLAG,
    4: Kind.FIXED32,
    5: Kind.FIXED64,
    6: Kind.DOUBLE,
    7: Kind.DOUBLES,
    8: Kind.DOUBLES,
}

_RESULT_TAIL = TailReader(DETECTIONS, _RESULT)


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame to send.

    covariance           (N, K, K), or (N, K) variances
    truth                (N, K) inline truth, or None
    upstream_track       (N,) from a tracker of the detector's own, or None
    ego                  motion of the sensor, where known
    class_probabilities  (N, C), or (N, M, C) of M opinions, or None
    true_class           (N,) known at once: index into the header's class names, or None
    class_logits         in place of class_probabilities, in the same shapes, or None
    """

    frame_id: int
    stamp_ns: int
    id: IdArray
    class_index: IntArray
    mean: FloatArray
    covariance: FloatArray
    score: FloatArray | None = None
    truth: FloatArray | None = None
    upstream_track: IdArray | None = None
    ego: EgoMotion | None = None
    class_probabilities: FloatArray | None = None
    true_class: IntArray | None = None
    class_logits: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class AnsweredTracks:
    """M tracks after a frame, in the S dimensions that the header's answer names.

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


def encode_header(header: Header) -> bytes:
    """Encodes a ProcessRequest with a header."""
    return perception_monitor_pb2.ProcessRequest(header=stream_header(header)).SerializeToString()


def stream_header(header: Header) -> frame_pb2.StreamHeader:
    """Makes the message of a header."""
    return frame_pb2.StreamHeader(
        stream=header.stream,
        dimensions=map(dimension_message, header.space.dimensions),
        class_names=header.classes,
        coordinate_frame=header.coordinate_frame,
        return_tracks=header.return_tracks,
        quantile_levels=header.quantile_levels,
    )


def dimension_message(dimension: Dimension) -> frame_pb2.Dimension:
    """Makes the message of a dimension."""
    kind = cast("frame_pb2.DimensionKind", int(dimension.kind))
    return frame_pb2.Dimension(name=dimension.name, unit=dimension.unit, kind=kind)


def encode_frame(frame: OutgoingFrame) -> bytes:
    """Encodes a ProcessRequest with a frame; full covariances go out as lower triangles."""
    body = frame_head(frame.frame_id, frame.stamp_ns, frame.ego) + _detections(frame)
    return framed(2, body)


def frame_head(frame_id: int | None, stamp_ns: int | None, ego: EgoMotion | None) -> bytes:
    """Encodes a Frame without its detections."""
    head = frame_pb2.Frame(frame_id=frame_id, stamp_ns=stamp_ns)
    ego = ego or EgoMotion()
    if (pose := ego.pose) is not None:
        told = frame_pb2.Pose(position=pose.position, orientation=pose.orientation)
        head.ego_pose.CopyFrom(told)
    if (twist := ego.twist) is not None:
        head.ego_twist.CopyFrom(frame_pb2.Twist(linear=twist.linear, angular=twist.angular))
    return head.SerializeToString()


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
    if frame.upstream_track is not None:
        fields[7] = (Kind.FIXED64, frame.upstream_track)
    if frame.class_probabilities is not None:
        fields[8] = (Kind.DOUBLES, frame.class_probabilities.reshape(n, -1))
    if frame.true_class is not None:
        fields[9] = (Kind.FIXED32, frame.true_class)
    if frame.class_logits is not None:
        fields[10] = (Kind.DOUBLES, frame.class_logits.reshape(n, -1))
    return build(DETECTIONS, fields, n).tobytes()


def encode_truth(
    stream: str,
    frame_id: int,
    ids: IdArray,
    truth: FloatArray | None,
    *,
    class_index: IntArray | None = None,
    objects: TrackIds | None = None,
    complete: bool = False,
) -> bytes:
    """Encodes a ReportGroundTruthRequest for n detections by their ids.

    truth        (n, K), or None where only classes are labelled
    class_index  (n,) true classes, or None
    objects      (n,) the labeller's own ids, or None
    """
    head = truth_pb2.FrameTruth(stream=stream, frame_id=frame_id, complete=complete)
    body = head.SerializeToString()
    if ids.size:
        labels: dict[int, Field] = {1: (Kind.FIXED64, ids, None)}
        if truth is not None:
            labels[2] = (Kind.DOUBLES, truth, None)
        if class_index is not None:
            labels[4] = (Kind.FIXED32, class_index, None)
        if objects is not None:
            labels[5] = (Kind.FIXED64, objects.id, objects.known)
        body += build_partial(DETECTIONS, labels, ids.size)
    return framed(1, body)


def decode_answer(data: bytes, k: int) -> Answered:
    """Decodes a ProcessResponse to a frame. Raises ValueError if it is anything else."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") != "frame":
        raise ValueError("the message is not the answer to a frame")
    result = response.frame
    tracks = _tracks(result)
    result.ClearField("tracks")  # or they would be written once more
    columns, _ = record_columns(result, _RESULT_TAIL)
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
    """Reads the tracks; NaN where one has another number of dimensions than the first."""
    s = len(result.tracks[0].state) if result.tracks else 0
    columns = columns_by_layout([track.SerializeToString() for track in result.tracks], TRACK)
    _, length = columns.doubles(7, s)
    covariance = _matrices(columns, 8, s)
    covariance[length != s] = np.nan
    return AnsweredTracks(
        id=columns.scalar(1, np.uint64),
        class_index=columns.scalar(2, np.int64),
        status=columns.scalar(3, np.uint8),
        detections=columns.scalar(4, np.int64),
        detection_id=columns.scalar(5, np.uint64),
        has_detection=columns.present(5),
        nis=columns.scalar(6, np.float64, np.nan),
        state=_vectors(columns, 7, s),
        covariance=covariance,
    )


def decode_truth_answer(data: bytes) -> tuple[TruthAccount, str]:
    """Reads the account of the labels of a message, and what was wrong with any, in words."""
    response = perception_monitor_pb2.ReportGroundTruthResponse.FromString(data)
    counts = {name: getattr(response.account, name) for name in TruthAccount.__dataclass_fields__}
    words = "; ".join(f"{notice.field}: {notice.message}" for notice in response.notices)
    return TruthAccount(**counts), words


def track_dimensions(data: bytes) -> tuple[str, ...]:
    """Reads the dimensions of tracks that a ProcessResponse to a header promises."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    return tuple(dimension.name for dimension in response.header.track_dimensions)


def refused(data: bytes) -> str | None:
    """Says why a ProcessResponse refuses a whole message; None if it does not."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") == "header":
        notice = response.header.notice
        return None if response.header.accepted else f"{notice.field}: {notice.message}"
    if response.frame.status != frame_pb2.STATUS_REFUSED:
        return None
    return "; ".join(f"{notice.field}: {notice.message}" for notice in response.frame.notices)


def _vectors(columns: RecordColumns, number: int, k: int) -> FloatArray:
    """Returns (n, K) values; NaN where another number of values was sent."""
    values, length = columns.doubles(number, k)
    out = np.full((columns.n, k), np.nan)
    fits = length == k
    if fits.any():
        out[fits] = values[fits]
    return out


def _rows(columns: RecordColumns, number: int) -> FloatArray | None:
    """Returns (n, count) values, as many as the most; NaN where none came, None: nowhere."""
    return columns.doubles(number, _MOST_VALUES)[0] if columns.sent(number) else None


def _quantiles(columns: RecordColumns, number: int, k: int) -> FloatArray | None:
    """Returns (n, K, T) quantiles; the rest of a broken level is left out."""
    values = _rows(columns, number)
    if values is None:
        return None
    levels = values.shape[1] // k
    return values[:, : k * levels].reshape(columns.n, k, levels)


def _matrices(columns: RecordColumns, number: int, k: int) -> FloatArray:
    """Unpacks (n, K, K) from any of the three forms; NaN for any other length."""
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
