"""Repeated protobuf messages as columns, read from the bytes as one strided array.

Reading every field of every detection from Python costs 5 to 15 µs each. Messages
with the same fields have the same length, so a frame's detections are an array of
records: the first is walked once, the bytes that make up its structure (tags and
lengths) are compared in all others at once, and the values are copied column by column.

Columns hide whether the records are of one layout or of many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from monitor.frames.space import FloatArray, IntArray, read_only
from monitor.native import kernels
from monitor.v1 import frame_pb2, truth_pb2

ByteArray = npt.NDArray[np.uint8]
DETECTIONS = 15  # the field number of the detections in Frame, FrameResult and FrameTruth

# Layouts of one length that are looked for in all records at once, before the rest is walked.
FEW_LAYOUTS = 16

# Layouts that a stream may change between without a walk: with ground truth and without, say.
MOST_REMEMBERED = 4
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

    mask    (length,) 255 where a byte is structure, 0 where it belongs to a value
    values  (length,) the bytes of structure, 0 elsewhere
    fields  by number
    places  (fields, 2) where the values of each field begin, and how many bytes they take
    """

    mask: ByteArray
    values: ByteArray
    fields: Mapping[int, FieldPlace]
    places: IntArray

    @property
    def length(self) -> int:
        """Counts the bytes."""
        return self.mask.size

    def fits(self, rows: ByteArray) -> npt.NDArray[np.bool_]:
        """Tells which records (n, length) have this structure, (n,)."""
        return np.asarray(~((rows & self.mask) ^ self.values).any(axis=1))


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
    mask = np.zeros(len(record), np.uint8)
    mask[:prefix] = 255
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
        mask[begin:at] = 255
        fields[number] = FieldPlace(at, count, dtype, size)
        at += size * count
    values = np.frombuffer(record, np.uint8) & mask
    places = [(place.offset, place.size * place.count) for place in fields.values()]
    return Layout(mask, values, fields, np.array(places, np.int64).reshape(-1, 2))


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
) -> bytes:
    """Writes n records of field `number` of the enclosing message, all of one length.

    fields  by number, ascending: values (n,), or (n, count) for DOUBLES
    """
    parts = tuple(
        (field_number, schema[field_number], 1 if values.ndim == 1 else values.shape[1])
        for field_number, values in fields.items()
        if values.ndim == 1 or values.shape[1]
    )
    record, layout = _template(number, parts)
    columns = [
        np.ascontiguousarray(fields[field_number], kind.value[0]) for field_number, kind, _ in parts
    ]
    if kernels is not None:
        return kernels.write_records(record, layout.places, columns, n)
    out = np.empty((n, layout.length), np.uint8)
    out[:] = np.frombuffer(record, np.uint8)
    for (offset, size), column in zip(layout.places.tolist(), columns, strict=True):
        out[:, offset : offset + size] = column.view(np.uint8).reshape(n, size)
    return out.tobytes()


def framed(number: int, *parts: bytes) -> bytes:
    """Writes a length-delimited field of the parts joined."""
    return b"".join((varint(number << 3 | 2), varint(sum(map(len, parts))), *parts))


def interleave(n: int, pieces: Sequence[tuple[npt.NDArray[np.int64], bytes]]) -> bytes:
    """Joins the records of n rows in their order; each row is in one piece, its rows ascend."""
    if len(pieces) == 1:
        return pieces[0][1]
    piece, place = np.empty(n, np.int64), np.empty(n, np.int64)
    for i, (rows, _) in enumerate(pieces):
        piece[rows], place[rows] = i, np.arange(rows.size)
    # A run of rows of one piece is a slice of its bytes: there are few runs, each is copied whole.
    begin = np.concatenate([[0], np.flatnonzero(piece[1:] != piece[:-1]) + 1])
    end = np.append(begin[1:], n) - 1
    length = np.array([len(data) // rows.size for rows, data in pieces])[piece[begin]]
    first, last = place[begin] * length, (place[end] + 1) * length
    runs = zip(piece[begin].tolist(), first.tolist(), last.tolist(), strict=True)
    return b"".join([memoryview(pieces[i][1])[at:stop] for i, at, stop in runs])


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
        return build(number, schema, _written(fields, slice(None), 0), n)
    apart = apart or {}
    pieces = [(np.array([row]), framed(number, record)) for row, record in apart.items()]
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
    """n records of one layout, by the number of a field: its values, (n, count), contiguous."""

    n: int
    columns: Mapping[int, npt.NDArray[np.generic]]


@dataclass(slots=True)
class TailReader:
    """Finds repeated records at the end of messages; remembers the layouts it saw last."""

    number: int
    schema: Schema
    # The latest first.
    _known: list[Layout] = field(default_factory=list)

    def read(self, data: bytes, start: int, n: int, first: Callable[[], bytes]) -> Records | None:
        """Reads the last n records of a message, if they all have one structure.

        data   a serialised message whose last field is `number`, n times
        start  bytes of the fields before them
        first  gives the first of these, serialised by itself
        returns None if their layouts differ, or one is not in the schema
        """
        records = self.read_again(data, start, n)
        if records is not None:
            return records
        body = first()
        record = framed(self.number, body)
        layout = walk(record, self.schema, len(record) - len(body))
        if layout is None or len(data) != start + n * layout.length:
            return None
        records = _columns(data, start, n, layout)
        if records is not None:
            self._known = [layout, *self._known[: MOST_REMEMBERED - 1]]
        return records

    def read_again(self, data: bytes, start: int, n: int | None = None) -> Records | None:
        """Reads all records from `start` on, if they have the structure of a message of before.

        n  how many they are; None: any number but 0
        """
        # Where the first record begins and every one has the structure, each begins where the one
        # before it ends: nothing that is written into the values can shift them.
        for place, layout in enumerate(self._known):
            found, rest = divmod(len(data) - start, layout.length)
            if rest or not found or n not in (None, found):
                continue
            records = _columns(data, start, found, layout)
            if records is not None:
                self._known.insert(0, self._known.pop(place))
                return records
        return None


def _columns(data: bytes, start: int, n: int, layout: Layout) -> Records | None:
    """Reads n records, which end the data; None if not all have the layout."""
    places = layout.fields.items()
    if kernels is not None:
        columns = {number: np.empty((n, place.count), place.dtype) for number, place in places}
        into = list(columns.values())
        alike = kernels.read_records(data, start, layout.mask, layout.values, layout.places, into)
        return Records(n, columns) if alike else None
    rows = np.frombuffer(data, np.uint8, offset=start).reshape(n, layout.length)
    return _taken(rows, layout) if layout.fits(rows).all() else None


def _taken(rows: ByteArray, layout: Layout) -> Records:
    """Takes the values of records (n, length), which have the layout."""
    columns = {}
    for number, place in layout.fields.items():
        part = rows[:, place.offset : place.offset + place.size * place.count]
        column = np.ascontiguousarray(part).view(place.dtype)
        columns[number] = column.reshape(rows.shape[0], place.count)
    return Records(rows.shape[0], columns)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The fields of n records, in groups of one layout each."""

    n: int
    groups: tuple[tuple[Positions, Records], ...]

    def sent(self, number: int) -> bool:
        """Tells whether any record has the field."""
        return any(number in records.columns for _, records in self.groups)

    def scalar(self, number: int, dtype: type[Scalar], absent: float = 0) -> npt.NDArray[Scalar]:
        """Returns (n,) values, `absent` where the field was not sent."""
        if (only := self._only) is not None and number in only:
            return only[number][:, 0].astype(dtype, copy=False)
        out = np.full(self.n, absent, dtype)
        for positions, records in self.groups:
            column = records.columns.get(number)
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
        """Tells of each record whether it has the field, (n,); not to be written to."""
        if (only := self._only) is not None:
            return _everywhere(self.n, number in only)
        out = np.zeros(self.n, bool)
        for positions, records in self.groups:
            out[positions] = number in records.columns
        return out

    def doubles(self, number: int, widest: int) -> tuple[FloatArray, IntArray]:
        """Returns values (n, width) padded with NaN, and how many were sent, (n,).

        widest  most values that are kept where layouts differ
        """
        if (only := self._only) is not None:
            sent = only[number].astype(np.float64, copy=False) if number in only else None
            values = np.zeros((self.n, 0)) if sent is None else sent
            return values, _everywhere(self.n, values.shape[1])
        lengths = np.zeros(self.n, np.int64)
        columns = [(positions, records.columns.get(number)) for positions, records in self.groups]
        for positions, column in columns:
            lengths[positions] = 0 if column is None else column.shape[1]
        width = min(int(lengths.max(initial=0)), widest)
        values = np.full((self.n, width), np.nan)
        for positions, column in columns:
            if column is not None:
                kept = min(width, column.shape[1])
                values[positions, :kept] = column[:, :kept]
        return values, lengths

    @property
    def _only(self) -> Mapping[int, npt.NDArray[np.generic]] | None:
        """Returns the fields where all records are of one layout, else None."""
        if len(self.groups) == 1 and isinstance(self.groups[0][0], slice):
            return self.groups[0][1].columns
        return None


# Typed: 1 and True are equal, and make other arrays.
@lru_cache(maxsize=256, typed=True)
def _everywhere(n: int, value: bool | int) -> npt.NDArray[Any]:
    """Returns (n,) filled with one value; read-only, since frames share it."""
    return read_only(np.full(n, value))


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
                alike = layout.fits(rows)
                groups.append((positions[alike], _taken(rows[alike], layout)))
            positions, rows = positions[~alike], rows[~alike]
        # The rest one by one: the cost of very many layouts stays linear.
        for i in range(positions.size):
            if (layout := walk(rows[i].tobytes(), schema, 0)) is not None:
                groups.append((positions[i : i + 1], _taken(rows[i : i + 1], layout)))
    return RecordColumns(len(single), tuple(groups))
