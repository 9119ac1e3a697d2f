"""Repeated protobuf messages as columns, read from the bytes as one strided array.

Reading every field of every detection from Python costs 5 to 15 µs each. Messages
with the same fields have the same length, so a frame's detections are an array of
records: the first is walked once, the bytes that make up its structure (tags and
lengths) are compared in all others at once, and the values are views.

Columns hide whether the records are of one layout or of many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from monitor.frames.space import FloatArray, IntArray
from monitor.v1 import frame_pb2, truth_pb2

ByteArray = npt.NDArray[np.uint8]
DETECTIONS = 15  # the field number of the detections in Frame, FrameResult and FrameTruth

# Layouts of one length that are looked for in all records at once, before the rest is walked.
FEW_LAYOUTS = 16
Positions = IntArray | slice
Scalar = TypeVar("Scalar", np.uint64, np.int64, np.uint32, np.uint8, np.float64)


class Kind(Enum):
    """How a field is laid out; the value is the wire type."""

    FIXED64 = ("<u8", 1)
    DOUBLE = ("<f8", 1)
    FIXED32 = ("<u4", 5)
    DOUBLES = ("<f8", 2)  # packed
    FLAG = ("u1", 0)  # a varint below 128: bool or small enum


# A field of some records: its values, (n,) or (n, width) for DOUBLES; and how many of them each
# record has, (n,), 0 or 1 but for DOUBLES. None: all.
Field = tuple[npt.NDArray[np.generic], npt.NDArray[np.bool_] | IntArray | None]

# Field number → kind. Every field that a record may hold; others make it unreadable here.
Schema = Mapping[int, Kind]

_KINDS = {
    FieldDescriptor.TYPE_FIXED64: Kind.FIXED64,
    FieldDescriptor.TYPE_SFIXED64: Kind.FIXED64,  # the same eight bytes, with a sign
    FieldDescriptor.TYPE_FIXED32: Kind.FIXED32,
    FieldDescriptor.TYPE_DOUBLE: Kind.DOUBLE,
    FieldDescriptor.TYPE_BOOL: Kind.FLAG,
    FieldDescriptor.TYPE_ENUM: Kind.FLAG,
}


def schema_of(message: type[Message]) -> Schema:
    """Lists the fields of a message of the contract that is read and written as records."""
    return {
        # The default of a repeated field is an empty list.
        field.number: Kind.DOUBLES if field.default_value == [] else _KINDS[field.type]
        for field in message.DESCRIPTOR.fields
    }


DETECTION = schema_of(frame_pb2.Detection)
RESULT = schema_of(frame_pb2.DetectionResult)
TRACK = schema_of(frame_pb2.Track)
LABEL = schema_of(truth_pb2.DetectionTruth)
OBJECT = schema_of(truth_pb2.TruthObject)


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """Where a field's values lie in a record."""

    offset: int
    count: int
    dtype: str
    size: int  # bytes of one value


@dataclass(frozen=True, slots=True)
class Layout:
    """The structure of a record.

    length     bytes
    positions  of the bytes that are structure, and their values
    fields     by number
    """

    length: int
    positions: npt.NDArray[np.int64]
    values: ByteArray
    fields: Mapping[int, FieldPlace]


def varint(value: int) -> bytes:
    """Writes a varint: base 128, least significant group first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads the value at a position, and the position behind it; 0 where the bytes end."""
    result = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    return 0, at


def walk(record: bytes, schema: Schema, prefix: int) -> Layout | None:
    """Finds the layout of one record; None if it holds a field that the schema does not.

    record  a serialised message, after `prefix` bytes of tag and length
    """
    structure = list(range(prefix))
    fields: dict[int, FieldPlace] = {}
    at = prefix
    while at < len(record):
        begin = at
        tag, at = read_varint(record, at)
        number, wire_type = tag >> 3, tag & 7
        kind = schema.get(number)
        if kind is None or kind.value[1] != wire_type or number in fields:
            return None
        dtype = kind.value[0]
        size, count = np.dtype(dtype).itemsize, 1
        if kind is Kind.DOUBLES:
            length, at = read_varint(record, at)
            if length % size:
                return None
            count = length // size
        elif kind is Kind.FLAG and record[at] > 0x7F:
            return None
        structure.extend(range(begin, at))
        fields[number] = FieldPlace(at, count, dtype, size)
        at += size * count
    positions = np.array(structure, np.int64)
    values = np.frombuffer(record, np.uint8)[positions]
    return Layout(len(record), positions, values, fields)


@lru_cache(maxsize=256)
def _template(number: int, parts: tuple[tuple[int, Kind, int], ...]) -> tuple[bytes, Layout]:
    body = bytearray()
    for field_number, kind, count in parts:
        dtype, wire_type = kind.value
        body += varint(field_number << 3 | wire_type)
        size = np.dtype(dtype).itemsize * count
        if kind is Kind.DOUBLES:
            body += varint(size)
        body += bytes(size)
    record = framed(number, bytes(body))
    layout = walk(record, {n: kind for n, kind, _ in parts}, len(record) - len(body))
    assert layout is not None
    return record, layout


def build(
    number: int, schema: Schema, fields: Mapping[int, npt.NDArray[np.generic]], n: int
) -> ByteArray:
    """Writes n records of field `number` of the enclosing message, (n, length) bytes.

    fields  by number, ascending: values (n,), or (n, count) for DOUBLES
    """
    parts = tuple(
        (field_number, schema[field_number], 1 if values.ndim == 1 else values.shape[1])
        for field_number, values in fields.items()
        if values.ndim == 1 or values.shape[1]
    )
    record, layout = _template(number, parts)
    out = np.empty((n, layout.length), np.uint8)
    out[:] = np.frombuffer(record, np.uint8)
    for field_number, _, count in parts:
        place, values = layout.fields[field_number], fields[field_number]
        view = np.ndarray(
            (n, count), place.dtype, out, offset=place.offset, strides=(layout.length, place.size)
        )
        view[:] = values.reshape(n, count)
    return out


def framed(number: int, *parts: bytes) -> bytes:
    """Writes a length-delimited field of the parts joined."""
    return b"".join((varint(number << 3 | 2), varint(sum(map(len, parts))), *parts))


def interleave(n: int, pieces: Sequence[tuple[npt.NDArray[np.int64], ByteArray]]) -> bytes:
    """Joins the records of n rows in their order; each row is in one piece, its rows ascend."""
    if len(pieces) == 1:
        return pieces[0][1].tobytes()
    piece, place = np.empty(n, np.int64), np.empty(n, np.int64)
    for i, (rows, _) in enumerate(pieces):
        piece[rows], place[rows] = i, np.arange(rows.size)
    # A run of rows of one piece is a slice of its bytes: there are few runs, each is copied whole.
    begin = np.concatenate([[0], np.flatnonzero(piece[1:] != piece[:-1]) + 1])
    end = np.append(begin[1:], n) - 1
    length = np.array([data.shape[1] for _, data in pieces])[piece[begin]]
    first, last = place[begin] * length, (place[end] + 1) * length
    views = [data.data.cast("B") for _, data in pieces]
    runs = zip(piece[begin].tolist(), first.tolist(), last.tolist(), strict=True)
    return b"".join([views[i][at:stop] for i, at, stop in runs])


def build_partial(
    number: int,
    schema: Schema,
    fields: Mapping[int, Field],
    n: int,
    apart: Mapping[int, bytes] | None = None,
) -> bytes:
    """Writes n records of field `number`, some fields of which are not in every record.

    fields  by number, ascending
    apart   records that are given as bytes, by their place among the n
    """
    given = [counts for _, counts in fields.values() if counts is not None]
    differing = [counts for counts in given if (counts != counts[0]).any()]
    if not differing and not apart:
        return build(number, schema, _written(fields, slice(None), 0), n).tobytes()
    apart = apart or {}
    pieces = [
        (np.array([row]), np.frombuffer(framed(number, record), np.uint8).reshape(1, -1))
        for row, record in apart.items()
    ]
    left = np.delete(np.arange(n), list(apart))
    while left.size:
        alike = np.ones(left.size, bool)
        for counts in differing:
            alike &= counts[left] == counts[left[0]]
        rows, left = left[alike], left[~alike]
        written = _written(fields, rows, int(rows[0]))
        pieces.append((rows, build(number, schema, written, rows.size)))
    return interleave(n, pieces)


def _written(
    fields: Mapping[int, Field], rows: Positions, first: int
) -> dict[int, npt.NDArray[np.generic]]:
    """Takes the fields of rows that all have as many values of each as the first of them."""
    return {
        number: (values if counts is None or values.ndim == 1 else values[:, : counts[first]])[rows]
        for number, (values, counts) in fields.items()
        if counts is None or counts[first]
    }


@dataclass(frozen=True, slots=True)
class Records:
    """n records of one layout, in one buffer."""

    data: ByteArray
    layout: Layout

    @property
    def n(self) -> int:
        """Number of records."""
        return int(self.data.shape[0])

    def column(self, number: int) -> npt.NDArray[np.generic] | None:
        """Returns the values of a field, (n, count), aligned and contiguous; None where absent."""
        place = self.layout.fields.get(number)
        if place is None:
            return None
        part = self.data[:, place.offset : place.offset + place.size * place.count]
        return np.ascontiguousarray(part).view(place.dtype).reshape(self.n, place.count)


@dataclass(slots=True)
class TailReader:
    """Finds repeated records at the end of messages; remembers the layout it saw last."""

    number: int
    schema: Schema
    _last: Layout | None = None

    def read(self, data: bytes, start: int, n: int, first: Callable[[], bytes]) -> Records | None:
        """Reads the last n records of a message, if they all have one structure.

        data   a serialised message whose last field is `number`, n times
        start  bytes of the fields before them
        first  gives the first of these, serialised by itself
        returns None if their layouts differ, or one is not in the schema
        """
        if self._last is not None:
            records = _matching(data, start, n, self._last)
            if records is not None:
                return records
        body = first()
        record = framed(self.number, body)
        layout = walk(record, self.schema, len(record) - len(body))
        if layout is None:
            return None
        records = _matching(data, start, n, layout)
        if records is not None:
            self._last = layout
        return records

    def read_again(self, data: bytes, start: int) -> Records | None:
        """Reads all records from `start` on, if they have the structure of the last message's."""
        if self._last is None or len(data) == start:
            return None
        n, rest = divmod(len(data) - start, self._last.length)
        return None if rest else _matching(data, start, n, self._last)


def _matching(data: bytes, start: int, n: int, layout: Layout) -> Records | None:
    # Where the first record begins and every one has the structure, each begins where the one
    # before it ends: nothing that is written into the values can shift them.
    if len(data) != start + n * layout.length:
        return None
    rows = np.frombuffer(data, np.uint8, offset=start).reshape(n, layout.length)
    if not (rows[:, layout.positions] == layout.values).all():
        return None
    return Records(rows, layout)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The fields of n records, in groups of one layout each."""

    n: int
    groups: tuple[tuple[Positions, Records], ...]

    def sent(self, number: int) -> bool:
        """Tells whether any record has the field."""
        return any(number in records.layout.fields for _, records in self.groups)

    def scalar(self, number: int, dtype: type[Scalar], absent: float = 0) -> npt.NDArray[Scalar]:
        """Returns (n,) values, `absent` where the field was not sent."""
        if len(self.groups) == 1 and isinstance(self.groups[0][0], slice):
            column = self.groups[0][1].column(number)
            if column is not None:
                return column[:, 0].astype(dtype, copy=False)
        out = np.full(self.n, absent, dtype)
        for positions, records in self.groups:
            column = records.column(number)
            if column is not None:
                out[positions] = column[:, 0]
        return out

    def index(self, number: int) -> IntArray:
        """Returns (n,) values of a FIXED32 that counts from 0; −1 where it was not sent."""
        return self.scalar(number, np.int64, -1)

    def ids(self, number: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]] | None:
        """Returns (n,) values of a FIXED64, and which were sent; None where none was."""
        return (self.scalar(number, np.uint64), self.present(number)) if self.sent(number) else None

    def present(self, number: int) -> npt.NDArray[np.bool_]:
        """Tells of each record whether it has the field, (n,)."""
        out = np.zeros(self.n, bool)
        for positions, records in self.groups:
            out[positions] = number in records.layout.fields
        return out

    def doubles(self, number: int, widest: int) -> tuple[FloatArray, IntArray]:
        """Returns values (n, width) padded with NaN, and how many were sent, (n,).

        widest  most values that are kept where layouts differ
        """
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
        width = min(int(lengths.max(initial=0)), widest)
        values = np.full((self.n, width), np.nan)
        for positions, column in columns:
            if column is not None:
                kept = min(width, column.shape[1])
                values[positions, :kept] = column[:, :kept]
        return values, lengths


def record_columns(
    message: frame_pb2.Frame | frame_pb2.FrameResult | truth_pb2.FrameTruth, reader: TailReader
) -> tuple[RecordColumns, list[bytes]]:
    """Reads the detections of a message; and the bytes of each, where layouts differ."""
    detections = message.detections
    n = len(detections)
    if n == 0:
        return RecordColumns(0, ()), []
    others = {field.name: value for field, value in message.ListFields()}
    del others["detections"]
    head = type(message)(**others).ByteSize()
    data = message.SerializeToString()
    records = reader.read(data, head, n, detections[0].SerializeToString)
    if records is not None:
        return RecordColumns(n, ((slice(None), records),)), []
    # Fields of a newer client end up behind the known ones and break the pattern.
    message.DiscardUnknownFields()
    single = [detection.SerializeToString() for detection in detections]
    return columns_by_layout(single, reader.schema), single


def columns_by_layout(single: list[bytes], schema: Schema) -> RecordColumns:
    """Reads records given one by one; those that the schema does not cover have no field."""
    by_length: dict[int, list[int]] = {}
    for position, record in enumerate(single):
        by_length.setdefault(len(record), []).append(position)
    groups: list[tuple[Positions, Records]] = []
    for length, members in by_length.items():
        positions = np.array(members, np.int64)
        rows = np.frombuffer(b"".join(single[i] for i in members), np.uint8)
        rows = rows.reshape(len(members), length)
        for _ in range(FEW_LAYOUTS):
            if positions.size == 0:
                break
            alike = np.arange(positions.size) == 0
            if (layout := walk(rows[0].tobytes(), schema, 0)) is not None:
                alike = (rows[:, layout.positions] == layout.values).all(axis=1)
                groups.append((positions[alike], Records(rows[alike], layout)))
            positions, rows = positions[~alike], rows[~alike]
        # The rest one by one: the cost of very many layouts stays linear.
        for i in range(positions.size):
            if (layout := walk(rows[i].tobytes(), schema, 0)) is not None:
                groups.append((positions[i : i + 1], Records(rows[i : i + 1], layout)))
    return RecordColumns(len(single), tuple(groups))
