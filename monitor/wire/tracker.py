"""Messages to and from a tracker elsewhere: frames out as bytes, tracks in as arrays.

Every value of an answer is checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from google.protobuf.message import DecodeError

from monitor.frames.detections import ReceivedDetections
from monitor.frames.frame import (
    FOREIGN_TRACKS,
    FrameAnswer,
    Header,
    ReportedTracks,
    TrackStatus,
)
from monitor.frames.space import BoolArray, FloatArray, IntArray, square_from_triangle
from monitor.v1 import frame_pb2, tracker_pb2
from monitor.wire.answers import Doubles, outgoing_estimates, with_rows
from monitor.wire.client_messages import frame_head, stream_header
from monitor.wire.records import (
    DETECTION,
    DETECTIONS,
    TRACK,
    Field,
    RecordColumns,
    TailReader,
    build_partial,
    columns_by_layout,
    framed,
)

_FRAME = 5  # the field number of the frame in UpdateRequest
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
    frame = frame_head(received.frame_id, received.stamp_ns, received.ego) + _detections(answer)
    return head.SerializeToString() + framed(_FRAME, frame)


def _detections(answer: FrameAnswer) -> bytes:
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
    apart = {row: _overlong(record) for row, record in overlong}
    return build_partial(DETECTIONS, DETECTION, fields, received.n, apart)


def _probabilities(answer: FrameAnswer) -> Doubles | None:
    """Returns them recalibrated where they were, else as they came; None where none came."""
    sent, extras = answer.received.detections.class_probabilities, answer.extras
    made = None if extras is None else extras.class_probabilities
    if made is None or sent is None:
        return sent
    rows = np.flatnonzero(~np.isnan(made[:, 0]))
    return with_rows(sent, rows, made[rows])


def _overlong(record: bytes) -> bytes:
    """Encodes a detection that fits no array, as it came."""
    sent = frame_pb2.Detection.FromString(record)
    sent.ClearField("ground_truth")
    sent.ClearField("ground_truth_class")
    return sent.SerializeToString()


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
    for field, wrong, remedy in (
        ("id", _repeated(track_id), "each track once"),
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
    return state, packed[:, square_from_triangle(s)].reshape(-1, s, s)


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


def _repeated(values: np.ndarray) -> BoolArray:
    """Tells of each value whether it was there before, (M,)."""
    _, first = np.unique(values, return_index=True)
    again = np.ones(values.size, bool)
    again[first] = False
    return again
