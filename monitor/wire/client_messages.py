"""The detector's end of the wire: its arrays to bytes, and answers to arrays.

Arrays are checked before they are sent. Where no answer can be used, the raw detections come back.
No connection lives here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from monitor.frames.detections import IdArray, Reason
from monitor.frames.frame import EgoMotion, Header, TrackIds
from monitor.frames.reasons import Notice
from monitor.frames.space import (
    MOST_CLASSES,
    BoolArray,
    FloatArray,
    IntArray,
    packed_covariances,
    unpacked_covariances,
)
from monitor.frames.status import TruthAccount
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.records import (
    DETECTION,
    DETECTIONS,
    LABEL,
    RESULT,
    TRACK,
    Field,
    RecordColumns,
    TailReader,
    build,
    build_partial,
    columns_by_layout,
    framed,
    read_varint,
    record_columns,
)
from monitor.wire.values import message_of

_LENGTH_DELIMITED = 2
_MESSAGE_INDEX = 3  # its field number in FrameResult

# Bytes of a value of fixed size, by wire type.
_FIXED = {1: 8, 5: 4}

_RESULT_TAIL = TailReader(DETECTIONS, RESULT)


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame to send.

    covariance           (N, K, K), or (N, K) variances; None where the detector has none, and zeros
                         for a single detection without one
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
    covariance: FloatArray | None = None
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
    notices              what was wrong in the frame, or with the sidecar, reason by reason
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
    notices: tuple[Notice, ...] = ()


class Why(StrEnum):
    """Reasons for which detections come back raw."""

    DOWN = "down"  # there is no open stream: the sidecar is not there, or was lost
    SLOW = "slow"  # no answer before the deadline
    FULL = "full"  # as many frames as may be are unanswered: this one was not sent
    REFUSED = "refused"  # the sidecar refused the header or the frame
    MALFORMED = "malformed"  # the answer does not fit this frame
    INTERNAL = "internal"  # a fault of the sidecar
    BUSY = "busy"  # another thread was waiting for its frame all the time


class Unusable(Exception):
    """There is no answer that can be used; the detector goes on with its raw detections."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(frozen=True, eq=False, slots=True)
class Processed:
    """N detections to go on with, in the order they were given.

    mean        (N, K)
    covariance  (N, K, K); variances that were given come back as diagonal matrices; NaN where
                None was given and the sidecar has estimated none
    status      (N,) of Status; what is not recalibrated is exactly as it was given
    reason      (N,) of Reason, 0 where raw
    raw         no answer could be used: all is as it was given, and nothing was monitored
    why         None unless raw
    text        in words: why raw, else what the sidecar says of the frame; '' if nothing
    answer      all that came back, its notices too; None where raw
    """

    mean: FloatArray
    covariance: FloatArray
    status: npt.NDArray[np.uint8]
    reason: npt.NDArray[np.uint8]
    raw: bool = False
    why: Why | None = None
    text: str = ""
    answer: Answered | None = None

    @property
    def tracks(self) -> AnsweredTracks | None:
        """Tracks after this frame, where the header asked for them; None where raw."""
        return None if self.answer is None else self.answer.tracks


# ---- frames as they are given


def checked(frame: OutgoingFrame, k: int) -> OutgoingFrame:
    """Converts the arrays of a frame to those that are encoded. Raises ValueError.

    Values are the sidecar's to judge: a NaN is answered, and comes back marked.
    """
    id = _whole("id", frame.id, 64)
    n = id.size
    mean = _reals("mean", frame.mean)
    if mean.shape != (n, k):
        raise ValueError(f"mean: shape {mean.shape}, not {(n, k)}: a row of K for each id.")
    covariance = None if frame.covariance is None else _reals("covariance", frame.covariance)
    if covariance is not None and covariance.shape not in ((n, k), (n, k, k)):
        raise ValueError(
            f"covariance: shape {covariance.shape}, neither {(n, k, k)} nor, of variances, "
            f"{(n, k)}. Leave it out if the detector has none."
        )
    _in_range("frame_id", int(frame.frame_id), 0, 2**64)
    _in_range("stamp_ns", int(frame.stamp_ns), -(2**63), 2**63)
    found = replace(
        frame,
        frame_id=int(frame.frame_id),
        stamp_ns=int(frame.stamp_ns),
        id=id.astype(np.uint64),
        class_index=_whole("class_index", frame.class_index, 32).astype(np.int64),
        mean=mean,
        covariance=covariance,
    )
    for entry in fields(found):
        value = getattr(found, entry.name)
        if value is None or entry.name in ("frame_id", "stamp_ns", "ego"):
            continue
        rows = np.asarray(value).shape[:1]
        if rows != (n,):
            raise ValueError(f"{entry.name}: {rows} rows, but there are {n} ids. Send one each.")
    return found


def _reals(name: str, values: object) -> FloatArray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: no array of numbers. Give float64.") from None


def _whole(name: str, values: object, bits: int) -> npt.NDArray[np.integer]:
    found = np.asarray(values)
    if found.size == 0:
        found = found.astype(np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"{name}: {found.dtype} of shape {found.shape}, not (N,) integers.")
    if found.size:
        _in_range(name, int(found.min()), 0, 2**bits)
        _in_range(name, int(found.max()), 0, 2**bits)
    return found


def _in_range(name: str, value: int, lowest: int, beyond: int) -> None:
    if not lowest <= value < beyond:
        raise ValueError(f"{name}: {value} is not from {lowest} to {beyond - 1}.")


# ---- messages


def encode_header(header: Header) -> bytes:
    """Encodes a ProcessRequest with a header."""
    return perception_monitor_pb2.ProcessRequest(header=stream_header(header)).SerializeToString()


def stream_header(header: Header) -> frame_pb2.StreamHeader:
    """Makes the message of a header."""
    dimensions = [message_of(frame_pb2.Dimension, one) for one in header.space.dimensions]
    return message_of(
        frame_pb2.StreamHeader, header, dimensions=dimensions, class_names=header.classes
    )


def encode_frame(frame: OutgoingFrame) -> bytes:
    """Encodes a ProcessRequest with a frame; full covariances go out as lower triangles."""
    head = frame_head(frame.frame_id, frame.stamp_ns, frame.ego)
    return framed(2, head, _detections(frame))


def encode_frames(
    numbers: Sequence[int], stamps_ns: Sequence[int], ends: Sequence[int], rows: OutgoingFrame
) -> list[bytes]:
    """Encodes ProcessRequests with frames, whose detections are the rows of one, at once.

    numbers, stamps_ns  of each frame
    ends                where the rows of each frame end, and those of the next one begin
    """
    parts = _divided(_detections(rows), rows.id.size, ends)
    return [
        framed(2, frame_head(number, stamp_ns, None), part)
        for number, stamp_ns, part in zip(numbers, stamps_ns, parts, strict=True)
    ]


def _divided(records: bytes, n: int, ends: Sequence[int]) -> Iterator[bytes]:
    """Divides n records of one length."""
    length = len(records) // max(n, 1)
    for begin, end in pairwise((0, *ends)):
        yield records[begin * length : end * length]


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
    if covariance is not None and covariance.ndim == 3:
        k = covariance.shape[1]
        covariance = packed_covariances(covariance, k * (k + 1) // 2)
    values = (
        *(frame.id, frame.class_index, frame.score, frame.mean, covariance, frame.truth),
        *(frame.upstream_track, frame.class_probabilities, frame.true_class, frame.class_logits),
    )
    # Several opinions of a detection are one row.
    given = {
        number: each.reshape(n, -1) if each.ndim > 2 else each
        for number, each in enumerate(values, start=1)
        if each is not None
    }
    return build(DETECTIONS, DETECTION, given, n)


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
        given = {1: ids, 2: truth, 4: class_index}
        labels: dict[int, Field] = {n: (v, None) for n, v in given.items() if v is not None}
        if objects is not None:
            labels[5] = (objects.id, objects.known)
        body += build_partial(DETECTIONS, LABEL, labels, ids.size)
    return framed(1, body)


def encode_truths(
    stream: str,
    numbers: Sequence[int],
    ends: Sequence[int],
    ids: IdArray,
    truth: FloatArray,
    objects: TrackIds | None,
) -> list[bytes]:
    """Encodes ReportGroundTruthRequests for frames at once, as encode_frames does."""
    if objects is None or objects.known.all():
        given = {1: ids, 2: truth} | ({} if objects is None else {5: objects.id})
        records = build(DETECTIONS, LABEL, given, ids.size) if ids.size else b""
        heads = (truth_pb2.FrameTruth(stream=stream, frame_id=number) for number in numbers)
        parts = _divided(records, ids.size, ends)
        return [
            framed(1, head.SerializeToString(), part)
            for head, part in zip(heads, parts, strict=True)
        ]
    found = []
    for number, (begin, end) in zip(numbers, pairwise((0, *ends)), strict=True):
        part = slice(begin, end)
        some = TrackIds(objects.id[part], objects.known[part])
        found.append(encode_truth(stream, number, ids[part], truth[part], objects=some))
    return found


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
        notices=tuple(map(_notice, response.frame.notices)),
    )


def _notice(sent: frame_pb2.Notice) -> Notice:
    """Reads a notice; a reason that only newer sidecars have is NONE, and its words tell more."""
    known = sent.reason in Reason._value2member_map_
    reason = Reason(sent.reason) if known else Reason.NONE
    return Notice(reason, sent.field, sent.message, sent.count, sent.first_index)


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
    # A replay reads one for each frame: the names are the same on both sides.
    counts = {field.name: count for field, count in response.account.ListFields()}
    return TruthAccount(**counts), _words(response.notices)


def refused(data: bytes) -> str | None:
    """Says why a ProcessResponse refuses a whole message; None if it does not."""
    return refused_or_shed(data)[0]


def refused_or_shed(data: bytes) -> tuple[str | None, bool]:
    """Says likewise, and whether an overloaded sidecar answered a frame without counting it."""
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    if response.WhichOneof("message") == "header":
        return None if response.header.accepted else _words([response.header.notice]), False
    frame = response.frame
    shed = any(int(notice.reason) == Reason.OVERLOAD for notice in frame.notices)
    answered = frame.status != frame_pb2.STATUS_REFUSED
    return None if answered else _words(frame.notices), shed


def _words(notices: Iterable[Notice | frame_pb2.Notice]) -> str:
    return "; ".join(f"{notice.field}: {notice.message}" for notice in notices)


def _vectors(columns: RecordColumns, number: int, k: int) -> FloatArray:
    """Returns (n, K) values; NaN where another number of values was sent."""
    values, length = columns.doubles(number, k)
    out = np.full((columns.n, k), np.nan)
    if values.shape[1] == k:
        out[length == k] = values[length == k]
    return out


def _rows(columns: RecordColumns, number: int) -> FloatArray | None:
    """Returns (n, count) values, as many as the most; NaN where none came, None: nowhere."""
    return columns.doubles(number, MOST_CLASSES)[0] if columns.sent(number) else None


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
    for form in {k, k * (k + 1) // 2, k * k}:
        rows = np.flatnonzero(length == form)
        if rows.size:
            out[rows] = unpacked_covariances(values[rows, :form], k)
    return out


# ---- what comes back to the detector


def as_given(frame: OutgoingFrame, why: Why, text: str) -> Processed:
    """Returns the detections of a checked frame as raw."""
    return Processed(
        mean=frame.mean,
        covariance=_full(frame),
        status=np.full(frame.id.size, frame_pb2.STATUS_PASSED_THROUGH, np.uint8),
        reason=np.zeros(frame.id.size, np.uint8),
        raw=True,
        why=why,
        text=text,
    )


def read_answer(data: bytes, frame: OutgoingFrame) -> Processed:
    """Reads the answer to a checked frame, a ProcessResponse. Raises Unusable, nothing else."""
    n, k = frame.mean.shape
    try:
        answer = decode_answer(data, k)
        if answer.status.size == 0 and (complaint := refused(data)) is not None:
            broken = any(notice.reason is Reason.INTERNAL for notice in answer.notices)
            why = Why.INTERNAL if broken else Why.REFUSED
            raise Unusable(why, complaint or "without a reason")
        covariance = _full(frame)
        made = answer.status == frame_pb2.STATUS_RECALIBRATED
        if answer.status.size != n:
            raise Unusable(
                Why.MALFORMED, f"{answer.status.size} detections in the answer to {n} of them"
            )
        if n and (answer.reason == Reason.INTERNAL).all():
            raise Unusable(Why.INTERNAL, "the sidecar failed at the frame: see its log")
        mean = np.where(made[:, None], answer.mean, frame.mean)
        covariance = np.where(made[:, None, None], answer.covariance, covariance)
        if not (np.isfinite(mean[made]).all() and np.isfinite(covariance[made]).all()):
            raise Unusable(Why.MALFORMED, "a recalibrated detection without mean or covariance")
    except Unusable:
        raise
    except Exception as error:
        # Whatever the bytes are, the detector goes on.
        raise Unusable(Why.MALFORMED, f"the answer cannot be read: {error}") from None
    text = _words(answer.notices)
    return Processed(mean, covariance, answer.status, answer.reason, text=text, answer=answer)


def read_header_answer(data: bytes) -> tuple[str, ...]:
    """Reads the names of the dimensions of tracks, if they will come. Raises Unusable."""
    try:
        complaint, response = refused(data), perception_monitor_pb2.ProcessResponse.FromString(data)
    except DecodeError as error:
        raise Unusable(Why.MALFORMED, f"the answer to the header cannot be read: {error}") from None
    if complaint is not None:
        raise Unusable(Why.REFUSED, complaint)
    if response.WhichOneof("message") != "header":
        raise Unusable(Why.MALFORMED, "the header was answered as if it were a frame")
    return tuple(dimension.name for dimension in response.header.track_dimensions)


def _full(frame: OutgoingFrame) -> FloatArray:
    """Returns covariances, or variances as diagonal matrices, (N, K, K); NaN without any."""
    n, k = frame.mean.shape
    if frame.covariance is None:
        return np.full((n, k, k), np.nan)
    if frame.covariance.ndim == 3:
        return frame.covariance
    return unpacked_covariances(frame.covariance, k)


def index_of(data: bytes) -> int | None:
    """Reads which message of the stream a ProcessResponse answers; None: a header.

    It is read without the detections, so that what came too late costs nothing. Raises Unusable.
    """
    tag, at = read_varint(data, 0)
    if tag == 1 << 3 | _LENGTH_DELIMITED:
        return None
    if tag != 2 << 3 | _LENGTH_DELIMITED:
        raise Unusable(Why.MALFORMED, f"{len(data)} bytes that are no answer")
    _, at = read_varint(data, at)
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind in _FIXED:
            if number == _MESSAGE_INDEX and kind == 1:
                return int.from_bytes(data[at : at + 8], "little")
            at += _FIXED[kind]
        elif kind in (0, _LENGTH_DELIMITED):
            value, at = read_varint(data, at)
            at += value if kind == _LENGTH_DELIMITED else 0
        else:
            raise Unusable(Why.MALFORMED, "an answer of unknown fields")
    return 0  # a 0 is not sent
