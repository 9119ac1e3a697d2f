"""Frames as a detector gives them to the client, beside the detections that it gets back.

Arrays are checked before they are sent. Where no answer can be used, the raw detections come back.
No connection lives here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from monitor.frames.detections import Reason
from monitor.frames.space import FloatArray
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.client_messages import (
    Answered,
    AnsweredTracks,
    OutgoingFrame,
    decode_answer,
    refused,
    track_dimensions,
)
from monitor.wire.records import read_varint

_LENGTH_DELIMITED = 2
_MESSAGE_INDEX = 3  # its field number in FrameResult

# Bytes of a value of fixed size, by wire type.
_FIXED = {1: 8, 5: 4}


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
    covariance  (N, K, K); variances that were given come back as diagonal matrices
    status      (N,) of Status; what is not recalibrated is exactly as it was given
    reason      (N,) of Reason, 0 where raw
    raw         no answer could be used: all is as it was given, and nothing was monitored
    why         None unless raw
    text        in words, '' unless raw
    answer      all that came back; None where raw
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


# ---- what is given


def checked(frame: OutgoingFrame, k: int) -> OutgoingFrame:
    """Converts the arrays of a frame to those that are encoded. Raises ValueError.

    Values are the sidecar's to judge: a NaN is answered, and comes back marked.
    """
    id = _whole("id", frame.id, 64)
    n = id.size
    mean = _reals("mean", frame.mean)
    if mean.shape != (n, k):
        raise ValueError(f"mean: shape {mean.shape}, not {(n, k)}: a row of K for each id.")
    covariance = _reals("covariance", frame.covariance)
    if covariance.shape not in ((n, k), (n, k, k)):
        raise ValueError(
            f"covariance: shape {covariance.shape}, neither {(n, k, k)} nor, of variances, "
            f"{(n, k)}."
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


# ---- what goes back


def as_given(frame: OutgoingFrame, why: Why, text: str) -> Processed:
    """Returns the detections of a checked frame as raw."""
    return Processed(
        mean=frame.mean,
        covariance=_matrices(frame.covariance),
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
        if answer.status.size == 0:
            _refuse_if_refused(data)
        covariance = _matrices(frame.covariance)
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
    return Processed(mean, covariance, answer.status, answer.reason, answer=answer)


def read_header_answer(data: bytes) -> tuple[str, ...]:
    """Reads the names of the dimensions of tracks, if they will come. Raises Unusable."""
    try:
        complaint = refused(data)
        if complaint is None and index_of(data) is None:
            return track_dimensions(data)
    except DecodeError as error:
        raise Unusable(Why.MALFORMED, f"the answer to the header cannot be read: {error}") from None
    if complaint is None:
        raise Unusable(Why.MALFORMED, "the header was answered as if it were a frame")
    raise Unusable(Why.REFUSED, complaint)


def _refuse_if_refused(data: bytes) -> None:
    complaint = refused(data)
    if complaint is None:
        return
    response = perception_monitor_pb2.ProcessResponse.FromString(data)
    broken = response.frame.reason == frame_pb2.REASON_INTERNAL
    raise Unusable(Why.INTERNAL if broken else Why.REFUSED, complaint or "without a reason")


def _matrices(covariance: FloatArray) -> FloatArray:
    """Returns covariances, or variances as diagonal matrices, (N, K, K)."""
    if covariance.ndim == 3:
        return covariance
    n, k = covariance.shape
    out = np.zeros((n, k, k))
    step = np.arange(k)
    out[:, step, step] = covariance
    return out


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
