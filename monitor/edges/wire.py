"""Requests: protobuf bytes to arrays. Never raises: what cannot be read becomes a
Refusal, which is answered like any other message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from monitor.calibration.detections import Reason, ReceivedDetections
from monitor.calibration.space import (
    Dimension,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
)
from monitor.edges.records import (
    Kind,
    Records,
    Schema,
    TailReader,
    read_varint,
    sorted_by_layout,
)
from monitor.frames import (
    Header,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
)
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2

_DETECTIONS = 15  # the field number of the detections in Frame, FrameResult and FrameTruth
_DETECTION: Schema = {
    1: Kind.FIXED64,
    2: Kind.FIXED32,
    3: Kind.DOUBLE,
    4: Kind.DOUBLES,
    5: Kind.DOUBLES,
    6: Kind.DOUBLES,
}
_TRUTH: Schema = {1: Kind.FIXED64, 2: Kind.DOUBLES, 3: Kind.FLAG}
# It remembers the last layout only to save a walk; what it reads does not depend on that.
_TRUTH_TAIL = TailReader(_DETECTIONS, _TRUTH)
# Widest arrays kept for detections of differing layouts: 32 dimensions, their full covariance.
_WIDEST = {4: 32, 5: 32 * 32, 6: 32, 2: 32}


# What is not said is a length.
_KINDS = {0: DimensionKind.LENGTH, **{kind.value: kind for kind in DimensionKind}}


@dataclass(frozen=True, slots=True)
class WireLimits:
    """What is decoded at all."""

    max_message_bytes: int
    max_detections: int


@dataclass(frozen=True, slots=True)
class UnaryFrame:
    """A ProcessFrame request: the stream it names, its header if one came, the frame."""

    stream: str
    header: Header | None
    frame: ReceivedFrame


def detection_tail() -> TailReader:
    """For the frames of one stream: it remembers their layout, and nothing else."""
    return TailReader(_DETECTIONS, _DETECTION)


def decode_process_request(
    data: bytes, limits: WireLimits, tail: TailReader
) -> Header | ReceivedFrame | Refusal:
    """A message of the Process stream."""
    frame = _direct_frame(data, limits, tail)
    if frame is not None:
        return frame
    request = perception_monitor_pb2.ProcessRequest()
    refusal = _parse(request, data, limits)
    if refusal is not None:
        return refusal
    match request.WhichOneof("message"):
        case "frame":
            return _too_many(request.frame, limits) or _frame(request.frame, tail)
        case "header":
            return _header(request.header)
        case _:
            return Refusal(
                Reason.MALFORMED, "message", "neither header nor frame is set: set one of them."
            )


def _direct_frame(data: bytes, limits: WireLimits, tail: TailReader) -> ReceivedFrame | None:
    """A frame that is written just as protobuf would write it again, read where it lies.

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
    records = tail.read_again(data, at)
    if records is None or records.n > limits.max_detections:
        return None
    columns = _Columns(records.n, ((slice(None), records),))
    return _received(frame_id, stamp_ns, columns, [])


def decode_process_frame_request(data: bytes, limits: WireLimits) -> UnaryFrame | Refusal:
    """A message of ProcessFrame."""
    request = perception_monitor_pb2.ProcessFrameRequest()
    refusal = _parse(request, data, limits)
    if refusal is not None:
        return refusal
    refusal = _too_many(request.frame, limits)
    if refusal is not None:
        return refusal
    if not request.HasField("frame"):
        return Refusal(Reason.MALFORMED, "frame", "absent: set it, an empty one if need be.")
    header = _header(request.header) if request.HasField("header") else None
    if isinstance(header, Refusal):
        return header
    return UnaryFrame(request.stream, header, _frame(request.frame, detection_tail()))


def decode_truth_request(data: bytes, limits: WireLimits) -> ReceivedTruth | Refusal:
    """A message of ReportGroundTruth."""
    request = perception_monitor_pb2.ReportGroundTruthRequest()
    refusal = _parse(request, data, limits)
    if refusal is not None:
        return refusal
    truth = request.truth
    refusal = _too_many(truth, limits)
    if refusal is not None:
        return refusal
    fields = truth_pb2.FrameTruth(stream=truth.stream, complete=truth.complete)
    if truth.HasField("frame_id"):
        fields.frame_id = truth.frame_id
    columns, _ = _columns(truth, fields.ByteSize(), _TRUTH_TAIL)
    values, lengths = columns.doubles(2)
    return ReceivedTruth(
        stream=truth.stream,
        frame_id=truth.frame_id if truth.HasField("frame_id") else None,
        complete=truth.complete,
        id=columns.scalar(1, np.uint64),
        has_id=columns.present(1),
        truth=values,
        truth_length=lengths,
        ignore=columns.scalar(3, np.uint8).astype(bool),
    )


def _too_many(
    message: frame_pb2.Frame | truth_pb2.FrameTruth, limits: WireLimits
) -> Refusal | None:
    n = len(message.detections)
    if n <= limits.max_detections:
        return None
    return Refusal(
        Reason.TOO_MANY_DETECTIONS,
        "detections",
        f"{n} of them: at most {limits.max_detections} in a frame ([limits] max_detections).",
    )


def _parse(message: Message, data: bytes, limits: WireLimits) -> Refusal | None:
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
    return Header(
        stream=header.stream,
        space=Space(
            tuple(
                Dimension(
                    dimension.name,
                    dimension.unit,
                    _KINDS[dimension.kind],
                )
                for dimension in header.dimensions
            )
        ),
        classes=tuple(header.class_names),
        coordinate_frame=header.coordinate_frame,
    )


def _frame(frame: frame_pb2.Frame, tail: TailReader) -> ReceivedFrame:
    has_id, has_stamp = frame.HasField("frame_id"), frame.HasField("stamp_ns")
    columns, records = _columns(frame, 9 * (has_id + has_stamp), tail)
    return _received(
        frame.frame_id if has_id else None,
        frame.stamp_ns if has_stamp else None,
        columns,
        records,
    )


def _received(
    frame_id: int | None, stamp_ns: int | None, columns: _Columns, single: list[bytes]
) -> ReceivedFrame:
    """single: the bytes of each detection, where they had to be taken apart."""
    class_index = columns.scalar(2, np.uint32).astype(np.int64)
    mean, mean_length = columns.doubles(4)
    covariance, covariance_length = columns.doubles(5)
    truth, truth_length = columns.doubles(6)
    overlong = (
        {}
        if not single
        else {
            int(row): single[row]
            for row in np.flatnonzero(
                (mean_length > mean.shape[1]) | (covariance_length > covariance.shape[1])
            )
        }
    )
    return ReceivedFrame(
        frame_id=frame_id,
        stamp_ns=stamp_ns,
        detections=ReceivedDetections(
            id=columns.scalar(1, np.uint64),
            has_id=columns.present(1),
            class_index=np.where(columns.present(2), class_index, -1),
            mean=mean,
            mean_length=mean_length,
            covariance=covariance,
            covariance_length=covariance_length,
            truth=truth,
            truth_length=truth_length,
            uniform=not single and mean.shape[0] > 0,
        ),
        fast=not single,
        overlong=overlong,
    )


Positions = IntArray | slice
Scalar = TypeVar("Scalar", np.uint64, np.uint32, np.uint8)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The fields of n records, in groups of one layout each."""

    n: int
    groups: tuple[tuple[Positions, Records], ...]

    def scalar(self, number: int, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        """(n,), zero where absent."""
        if len(self.groups) == 1 and isinstance(self.groups[0][0], slice):
            column = self.groups[0][1].column(number)
            if column is not None:
                return column[:, 0].astype(dtype, copy=False)
        out = np.zeros(self.n, dtype)
        for positions, records in self.groups:
            column = records.column(number)
            if column is not None:
                out[positions] = column[:, 0]
        return out

    def present(self, number: int) -> npt.NDArray[np.bool_]:
        """(n,) whether the field was sent."""
        if len(self.groups) == 1 and isinstance(self.groups[0][0], slice):
            sent = number in self.groups[0][1].layout.fields
            return np.ones(self.n, bool) if sent else np.zeros(self.n, bool)
        out = np.zeros(self.n, bool)
        for positions, records in self.groups:
            out[positions] = number in records.layout.fields
        return out

    def doubles(self, number: int) -> tuple[FloatArray, IntArray]:
        """(n, width) padded with NaN, and how many values were sent, (n,)."""
        lengths = np.zeros(self.n, np.int64)
        columns = [(positions, records.column(number)) for positions, records in self.groups]
        if len(columns) == 1 and isinstance(columns[0][0], slice):
            column = columns[0][1]
            if column is None:
                return np.zeros((self.n, 0)), lengths
            lengths += column.shape[1]
            return column.astype(np.float64, copy=False), lengths
        for positions, column in columns:
            lengths[positions] = 0 if column is None else column.shape[1]
        width = min(int(lengths.max(initial=0)), _WIDEST[number])
        values = np.full((self.n, width), np.nan)
        for positions, column in columns:
            if column is not None:
                kept = min(width, column.shape[1])
                values[positions, :kept] = column[:, :kept]
        return values, lengths


def _columns(
    message: frame_pb2.Frame | truth_pb2.FrameTruth, head: int, reader: TailReader
) -> tuple[_Columns, list[bytes]]:
    """The detections of a message; and each one's bytes, if they are not in one piece.

    head  bytes of the message's other fields
    """
    detections = message.detections
    n = len(detections)
    if n == 0:
        return _Columns(0, ()), []
    data = message.SerializeToString()
    records = reader.read(data, head, n, lambda: detections[0].SerializeToString())
    if records is not None:
        return _Columns(n, ((slice(None), records),)), []
    # Fields of a newer client end up behind the known ones and break the pattern.
    message.DiscardUnknownFields()
    single = [detection.SerializeToString() for detection in detections]
    groups = sorted_by_layout(single, reader.schema)
    return _Columns(n, tuple((p, r) for p, r in groups if r is not None)), single
