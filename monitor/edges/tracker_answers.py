"""What a tracker elsewhere answers: bytes to arrays. Nothing of it is believed unseen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from monitor.calibration.detections import ReceivedDetections
from monitor.calibration.space import BoolArray, FloatArray, IntArray, square_from_triangle
from monitor.edges.record_columns import RecordColumns, columns_by_layout
from monitor.edges.records import Kind, Schema, TailReader
from monitor.tracking.reported import FOREIGN_TRACKS, ReportedTracks, TrackStatus
from monitor.v1 import tracker_pb2

_SEQUENCE, _TRACKS = b"\x09", 2  # the tag of the one, the field number of the others
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
# Dimensions of a track's state that are taken.
MOST_STATE = 64


class UnusableAnswer(ValueError):
    """What a tracker said is no answer to a frame."""


@dataclass(frozen=True, slots=True)
class TrackerAnswer:
    """The answer to a frame of a call, beside its bytes; the tracks are not looked at yet."""

    sequence: int
    data: bytes
    response: tracker_pb2.UpdateResponse


def decode_update(data: bytes) -> TrackerAnswer:
    """An UpdateResponse. Raises UnusableAnswer."""
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
    """At most so many tracks, as of the frame with these detections. Raises UnusableAnswer.

    state_length  that was promised; None: any, the same for all tracks of the frame
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
        detections=columns.scalar(4, np.uint32).astype(np.int64),
        detection=row,
        nis=columns.scalar(6, np.float64, np.nan),
        state=state,
        covariance=covariance,
    )


def _columns(answer: TrackerAnswer, m: int) -> RecordColumns:
    """Of the tracks: at once where all are of one layout, and end the bytes."""
    tracks = answer.response.tracks
    if m == 0:
        return RecordColumns(0, ())
    head = 9 if answer.data[:1] == _SEQUENCE else 0
    reader = TailReader(_TRACKS, _TRACK)
    records = reader.read(answer.data, head, m, tracks[0].SerializeToString)
    if records is not None:
        return RecordColumns(m, ((slice(None), records),))
    answer.response.DiscardUnknownFields()  # of a newer tracker
    return columns_by_layout([track.SerializeToString() for track in tracks], _TRACK)


def _state(columns: RecordColumns, wanted: int | None) -> tuple[FloatArray, FloatArray]:
    """(M, S) and (M, S, S). Raises UnusableAnswer unless all tracks have the same S."""
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
    """(M,) row of the detection that each names, −1 for none; and whether it is known."""
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
    """(M,) whether a value was there before."""
    _, first = np.unique(values, return_index=True)
    again = np.ones(values.size, bool)
    again[first] = False
    return again
