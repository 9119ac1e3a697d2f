"""Messages that the sidecar gets: protobuf bytes to arrays.

Detectors send frames, then labels. Decoding these never raises: what cannot be read becomes a
Refusal, which is answered like any other message. A tracker elsewhere sends tracks: every value of
its answer is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from monitor.frames.classes import MOST_VALUES
from monitor.frames.detections import Reason, ReceivedDetections
from monitor.frames.frame import (
    FOREIGN_TRACKS,
    EgoMotion,
    Header,
    Pose,
    ReceivedFrame,
    ReceivedObjects,
    ReceivedRegion,
    ReceivedTruth,
    Refusal,
    ReportedTracks,
    TrackIds,
    TrackStatus,
    Twist,
)
from monitor.frames.space import (
    MOST_CLASSES,
    BoolArray,
    Dimension,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
    unpacked_covariances,
)
from monitor.v1 import frame_pb2, perception_monitor_pb2, tracker_pb2, truth_pb2
from monitor.wire.records import (
    DETECTION,
    DETECTIONS,
    LABEL,
    OBJECT,
    TRACK,
    RecordColumns,
    TailReader,
    columns_by_layout,
    read_varint,
    record_columns,
)

# Widest arrays kept for detections of differing layouts: 32 dimensions, their full covariance.
WIDEST = 32
WIDEST_COVARIANCE = 32 * 32

# A dimension without a kind is a length.
_KINDS = {0: DimensionKind.LENGTH, **{kind.value: kind for kind in DimensionKind}}

# Most regions of one message: each is compared with every detection of the frame.
MOST_REGIONS = 256

# It remembers the last layout only to save a walk; what it reads does not depend on that.
_TAIL = TailReader(DETECTIONS, LABEL)


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits above which nothing is decoded."""

    max_message_bytes: int
    max_detections: int


def detection_tail() -> TailReader:
    """Makes a reader for the frames of one stream, which remembers their layout alone."""
    return TailReader(DETECTIONS, DETECTION)


def decode_process_request(
    data: bytes, limits: WireLimits, tail: TailReader
) -> Header | ReceivedFrame | Refusal:
    """Decodes a message of the Process stream."""
    frame = _direct_frame(data, limits, tail)
    if frame is not None:
        return frame
    request = perception_monitor_pb2.ProcessRequest()
    if refusal := parse(request, data, limits):
        return refusal
    match request.WhichOneof("message"):
        case "frame":
            return too_many(request.frame, limits) or _frame(request.frame, tail)
        case "header":
            return _header(request.header)
        case _:
            return Refusal(
                Reason.MALFORMED, "message", "neither header nor frame is set: set one of them."
            )


def _direct_frame(data: bytes, limits: WireLimits, tail: TailReader) -> ReceivedFrame | None:
    """Reads a frame where it lies, if it is written just as protobuf would write it again.

    None for everything else: the first frame, other layouts, headers, malformed messages.
    """
    if data[:1] != b"\x12" or len(data) > limits.max_message_bytes:  # field 2: frame
        return None
    length, at = read_varint(data, 1)
    if at + length != len(data):
        return None
    frame_id = stamp_ns = None
    if data[at : at + 1] == b"\x09" and length >= 9:  # field 1: frame_id
        frame_id = int.from_bytes(data[at + 1 : at + 9], "little")
        at += 9
    if data[at : at + 1] == b"\x11" and len(data) >= at + 9:  # field 2: stamp_ns
        stamp_ns = int.from_bytes(data[at + 1 : at + 9], "little", signed=True)
        at += 9
    pose, at = _submessage(data, at, b"\x1a")  # field 3: ego_pose
    twist, at = _submessage(data, at, b"\x22")  # field 4: ego_twist
    records = tail.read_again(data, at)
    if records is None or records.n > limits.max_detections:
        return None
    try:
        ego = _ego(
            None if pose is None else frame_pb2.Pose.FromString(pose),
            None if twist is None else frame_pb2.Twist.FromString(twist),
        )
    except DecodeError:
        return None
    columns = RecordColumns(records.n, ((slice(None), records),))
    return _received(frame_id, stamp_ns, ego, columns, [])


def _submessage(data: bytes, at: int, tag: bytes) -> tuple[bytes | None, int]:
    """Returns the bytes of a field of less than 128, and its end; else None and `at`."""
    if data[at : at + 1] != tag or len(data) < at + 2:
        return None, at
    length, begin = data[at + 1], at + 2
    if length > 0x7F or len(data) < begin + length:
        return None, at
    return data[begin : begin + length], begin + length


def decode_process_frame_request(
    data: bytes, limits: WireLimits
) -> tuple[str, Header | None, ReceivedFrame] | Refusal:
    """Decodes a message of ProcessFrame: the stream it names, its header if one came, the frame."""
    request = perception_monitor_pb2.ProcessFrameRequest()
    if refusal := parse(request, data, limits) or too_many(request.frame, limits):
        return refusal
    if not request.HasField("frame"):
        return Refusal(Reason.MALFORMED, "frame", "absent: set it, an empty one if need be.")
    header = _header(request.header) if request.HasField("header") else None
    if isinstance(header, Refusal):
        return header
    return request.stream, header, _frame(request.frame, detection_tail())


def too_many(message: frame_pb2.Frame | truth_pb2.FrameTruth, limits: WireLimits) -> Refusal | None:
    """Refuses more detections than are decoded; None: there are not more."""
    n = len(message.detections)
    if n <= limits.max_detections:
        return None
    return Refusal(
        Reason.TOO_MANY_DETECTIONS,
        "detections",
        f"{n} of them: at most {limits.max_detections} in a frame ([limits] max_detections).",
    )


def parse(message: Message, data: bytes, limits: WireLimits) -> Refusal | None:
    """Fills a message; returns why it cannot be filled, or None."""
    if len(data) > limits.max_message_bytes:
        return Refusal(
            Reason.TOO_LARGE,
            "message",
            f"{len(data)} bytes: at most {limits.max_message_bytes} ([server] max_message_bytes).",
        )
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError):
        name = message.DESCRIPTOR.full_name
        return Refusal(Reason.MALFORMED, "message", f"{len(data)} bytes are not a {name}.")
    return None


def _header(header: frame_pb2.StreamHeader) -> Header | Refusal:
    for dimension in header.dimensions:
        if dimension.kind not in _KINDS:
            return Refusal(
                Reason.INVALID_HEADER,
                "dimensions.kind",
                f"{dimension.kind} of '{dimension.name[:64]}': known are "
                f"{', '.join(f'{kind.value} ({kind.name.lower()})' for kind in DimensionKind)}.",
            )
    dimensions = (Dimension(one.name, one.unit, _KINDS[one.kind]) for one in header.dimensions)
    return Header(
        stream=header.stream,
        space=Space(tuple(dimensions)),
        classes=tuple(header.class_names),
        coordinate_frame=header.coordinate_frame,
        return_tracks=header.return_tracks,
        quantile_levels=tuple(header.quantile_levels),
    )


def _frame(frame: frame_pb2.Frame, tail: TailReader) -> ReceivedFrame:
    ego = _ego(_given(frame, "ego_pose"), _given(frame, "ego_twist"))
    columns, single = record_columns(frame, tail)
    return _received(_given(frame, "frame_id"), _given(frame, "stamp_ns"), ego, columns, single)


def _given(message: Message, field: str) -> Any:
    """Returns an optional field; None where it was not sent."""
    return getattr(message, field) if message.HasField(field) else None


def _ego(pose: frame_pb2.Pose | None, twist: frame_pb2.Twist | None) -> EgoMotion | None:
    """Makes the motion of as many values as were sent."""
    if pose is None and twist is None:
        return None
    return EgoMotion(
        None if pose is None else Pose(_array(pose.position), _array(pose.orientation)),
        None if twist is None else Twist(_array(twist.linear), _array(twist.angular)),
    )


def _array(values: Sequence[float]) -> FloatArray:
    # A slice is a list, which NumPy reads much quicker than protobuf's own sequence.
    return np.array(values[:], np.float64)


def _received(
    frame_id: int | None,
    stamp_ns: int | None,
    ego: EgoMotion | None,
    columns: RecordColumns,
    single: list[bytes],
) -> ReceivedFrame:
    """Makes the frame of its columns.

    single  the bytes of each detection, where layouts differ; else empty
    """
    mean, mean_length = columns.doubles(4, WIDEST)
    covariance, covariance_length = columns.doubles(5, WIDEST_COVARIANCE)
    truth, truth_length = columns.doubles(6, WIDEST)
    overlong = {}
    if single:
        fits = (mean_length <= mean.shape[1]) & (covariance_length <= covariance.shape[1])
        overlong = {row: single[row] for row in np.flatnonzero(~fits).tolist()}
    return ReceivedFrame(
        frame_id=frame_id,
        stamp_ns=stamp_ns,
        detections=ReceivedDetections(
            id=columns.scalar(1, np.uint64),
            has_id=columns.present(1),
            class_index=columns.index(2),
            mean=mean,
            mean_length=mean_length,
            covariance=covariance,
            covariance_length=covariance_length,
            truth=truth,
            truth_length=truth_length,
            uniform=not single and mean.shape[0] > 0,
            score=columns.scalar(3, np.float64, np.nan) if columns.sent(3) else None,
            upstream_track=columns.ids(7),
            class_probabilities=columns.doubles(8, MOST_VALUES) if columns.sent(8) else None,
            ground_truth_class=(
                (columns.index(9), columns.present(9)) if columns.sent(9) else None
            ),
        ),
        fast=not single,
        overlong=overlong,
        ego=ego,
        class_logits=columns.doubles(10, MOST_VALUES) if columns.sent(10) else None,
    )


def decode_truth_request(data: bytes, limits: WireLimits) -> ReceivedTruth | Refusal:
    """Decodes a message of ReportGroundTruth."""
    request = perception_monitor_pb2.ReportGroundTruthRequest()
    if refusal := parse(request, data, limits) or _beyond_limits(request.truth, limits):
        return refusal
    truth = request.truth
    foreign = _objects(truth) if truth.objects else None
    regions = tuple(_region(region) for region in truth.ignore_regions)
    # What is read is left out: the rest, but for the detections, is small.
    truth.ClearField("objects")
    truth.ClearField("ignore_regions")
    columns, _ = record_columns(truth, _TAIL)
    values, lengths = columns.doubles(2, WIDEST)
    objects = columns.ids(5)
    return ReceivedTruth(
        stream=truth.stream,
        frame_id=_given(truth, "frame_id"),
        complete=truth.complete,
        id=columns.scalar(1, np.uint64),
        has_id=columns.present(1),
        truth=values,
        truth_length=lengths,
        ignore=columns.scalar(3, np.uint8).astype(bool),
        class_index=columns.index(4),
        objects=None if objects is None else TrackIds(*objects),
        revision=truth.revision,
        coordinate_frame=truth.coordinate_frame,
        class_names=tuple(truth.class_names),
        foreign=foreign,
        regions=regions,
        stamp_ns=_given(truth, "stamp_ns"),
    )


def _beyond_limits(truth: truth_pb2.FrameTruth, limits: WireLimits) -> Refusal | None:
    if refusal := too_many(truth, limits):
        return refusal
    for field, sent, most, of in (
        ("objects", len(truth.objects), limits.max_detections, " ([limits] max_detections)"),
        ("ignore_regions", len(truth.ignore_regions), MOST_REGIONS, ""),
        ("class_names", len(truth.class_names), MOST_CLASSES, ""),
    ):
        if sent > most:
            message = f"{sent} of them: at most {most} in a message{of}."
            return Refusal(Reason.TOO_MANY_DETECTIONS, field, message)
    return None


def _objects(truth: truth_pb2.FrameTruth) -> ReceivedObjects:
    # Fields of a newer client end up behind the known ones, where no layout expects them.
    for sent in truth.objects:
        sent.DiscardUnknownFields()
    columns = columns_by_layout([sent.SerializeToString() for sent in truth.objects], OBJECT)
    values, lengths = columns.doubles(3, WIDEST)
    covariance, covariance_lengths = columns.doubles(4, WIDEST_COVARIANCE)
    return ReceivedObjects(
        id=columns.scalar(1, np.uint64),
        has_id=columns.present(1),
        class_index=columns.index(2),
        truth=values,
        truth_length=lengths,
        covariance=covariance,
        covariance_length=covariance_lengths,
        ignore=columns.scalar(5, np.uint8).astype(bool),
        stamp_ns=columns.scalar(6, np.uint64).view(np.int64),
        has_stamp=columns.present(6),
    )


def _region(region: truth_pb2.IgnoreRegion) -> ReceivedRegion:
    class_index = region.class_index if region.HasField("class_index") else -1
    dimensions = tuple(region.dimensions)
    return ReceivedRegion(class_index, dimensions, _array(region.lower), _array(region.upper))


# ---- of a tracker elsewhere

_SEQUENCE = b"\x09"  # the tag of the sequence in UpdateResponse
_TRACKS = 2  # the field number of the tracks in UpdateResponse

# The most dimensions of a track's state.
MOST_STATE = 64


class UnusableAnswer(ValueError):
    """The bytes of a tracker are no answer to a frame."""


@dataclass(frozen=True, slots=True)
class TrackerAnswer:
    """The answer to a frame of a call, beside its bytes; its tracks are not checked yet."""

    sequence: int
    data: bytes
    response: tracker_pb2.UpdateResponse


def decode_update(data: bytes) -> TrackerAnswer:
    """Parses an UpdateResponse. Raises UnusableAnswer."""
    try:
        response = tracker_pb2.UpdateResponse.FromString(data)
    except DecodeError:
        text = f"{len(data)} bytes are not a monitor.v1.UpdateResponse."
        raise UnusableAnswer(text) from None
    return TrackerAnswer(response.sequence, data, response)


def reported_tracks(
    answer: TrackerAnswer,
    detections: ReceivedDetections,
    classes: int,
    most: int,
    state_length: int | None = None,
) -> ReportedTracks:
    """Reads the tracks after the frame with these detections. Raises UnusableAnswer.

    most          tracks that are allowed
    state_length  number of dimensions promised; None: any, the same for all tracks of the frame
    """
    m = len(answer.response.tracks)
    if m > most:
        raise UnusableAnswer(f"tracks: {m} of them, at most {most} ([tracker] max_tracks).")
    columns = _columns(answer, m)
    track_id = columns.scalar(1, np.uint64)
    class_index, status = columns.index(2), columns.scalar(3, np.uint8)
    state, covariance = _state(columns, state_length)
    row, known = _rows(columns, detections)
    repeated = np.ones(m, bool)
    repeated[np.unique(track_id, return_index=True)[1]] = False
    for field, wrong, remedy in (
        ("id", repeated, "each track once"),
        ("id", track_id > FOREIGN_TRACKS, "at most 2^62: those above are the sidecar's own"),
        ("class_index", (class_index < 0) | (class_index >= classes), f"0 to {classes - 1}"),
        ("status", status > max(TrackStatus), f"at most {int(max(TrackStatus))}"),
        ("detection_id", ~known, "an id of the frame, or none"),
        ("state", ~np.isfinite(state).all(axis=1), "finite values"),
        ("covariance", ~np.isfinite(covariance).all(axis=(1, 2)), "finite values"),
    ):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise UnusableAnswer(f"tracks[{first}].{field}: must be {remedy}.")
    return ReportedTracks(
        id=track_id,
        class_index=class_index,
        status=status,
        detections=columns.scalar(4, np.int64),
        detection=row,
        nis=columns.scalar(6, np.float64, np.nan),
        state=state,
        covariance=covariance,
    )


def _columns(answer: TrackerAnswer, m: int) -> RecordColumns:
    """Reads the tracks: at once where all are of one layout, and end the bytes."""
    tracks = answer.response.tracks
    if m == 0:
        return RecordColumns(0, ())
    head = 9 if answer.data[:1] == _SEQUENCE else 0
    reader = TailReader(_TRACKS, TRACK)
    records = reader.read(answer.data, head, m, tracks[0].SerializeToString)
    if records is not None:
        return RecordColumns(m, ((slice(None), records),))
    answer.response.DiscardUnknownFields()  # of a newer tracker
    return columns_by_layout([track.SerializeToString() for track in tracks], TRACK)


def _state(columns: RecordColumns, wanted: int | None) -> tuple[FloatArray, FloatArray]:
    """Returns (M, S) and (M, S, S). Raises UnusableAnswer unless all tracks have the same S."""
    if columns.n == 0:
        return np.zeros((0, 0)), np.zeros((0, 0, 0))
    state, length = columns.doubles(7, MOST_STATE)
    s = int(length[0]) if wanted is None else wanted
    if not 0 < s <= MOST_STATE or (length != s).any():
        text = f"tracks.state: {int(length.min())} to {int(length.max())} values: must be "
        right = f"one number for all tracks of a frame, 1 to {MOST_STATE}."
        raise UnusableAnswer(text + (right if wanted is None else f"{s}, as was promised."))
    lower = s * (s + 1) // 2
    packed, length = columns.doubles(8, lower)
    if (length != lower).any():
        text = f"tracks.covariance: {int(length.min())} to {int(length.max())} values: must be"
        raise UnusableAnswer(f"{text} {lower}, the lower triangle of {s} dimensions.")
    return state, unpacked_covariances(packed, s)


def _rows(columns: RecordColumns, detections: ReceivedDetections) -> tuple[IntArray, BoolArray]:
    """Finds the row of the detection that each track names, −1: none; (M,), and if it is known."""
    named, told = columns.scalar(5, np.uint64), columns.present(5)
    row = np.full(columns.n, -1, np.int64)
    having = np.flatnonzero(detections.has_id)
    if having.size == 0:
        return row, ~told
    order = having[np.argsort(detections.id[having], kind="stable")]
    ids = detections.id[order]
    place = np.minimum(np.searchsorted(ids, named), ids.size - 1)
    found = told & (ids[place] == named)
    row[found] = order[place[found]]
    return row, found | ~told
