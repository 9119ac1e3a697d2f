"""Entries of the ledger: frames, labels and the counts that labels changed; as bytes, and back.

Entries are numbered in the order in which they changed the statistics. Those after a checkpoint,
replayed in their order, restore the statistics that the process had when it died. Where bytes are
kept is not known here. All arrays are little-endian, and every length and number read is checked.
Arrays that were read do not own their memory: they are read-only, or copies. How many detections a
frame has, and in how many dimensions, is known by the frame alone: labels are checked against it by
`of_frame`.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from monitor.frames.classes import MOST_VALUES
from monitor.frames.counters import TruthAccount
from monitor.frames.frame import Header, TrackIds
from monitor.frames.space import (
    MOST_DIMENSIONS,
    FloatArray,
    square_from_triangle,
    triangle_in_square,
)
from monitor.frames.stored import SliceKey, StoredEstimates, StoredFrame, StoredOpinions
from monitor.matching.record import INLINE, GateVerdict, LabelRecord, Outcome
from monitor.store.state_definitions import (
    InvalidState,
    checked_class_names,
    checked_slice_name,
    decode_space,
    encode_dimensions,
    invalid,
    read_values,
    values_of,
)
from monitor.v1 import frame_pb2
from monitor.v1 import ledger_pb2 as pb


@dataclass(frozen=True, eq=False, slots=True)
class FrameEntry:
    """A frame, with what came with it.

    sequence   its negative where it is written only because labels of it are: of two frames with
               one name, the later one is still the one that is farther from 0
    partition  of event time
    """

    sequence: int
    partition: int
    frame: StoredFrame
    inline: LabelRecord | None = None


@dataclass(frozen=True, eq=False, slots=True)
class LabelEntry:
    """Labels of a frame.

    frame  to be written with them if it is not there: it was left out when it came
    """

    sequence: int
    partition: int
    stream: str
    frame_id: int
    record: LabelRecord
    frame: FrameEntry | None = None


Entry = FrameEntry | LabelEntry


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """A frame as it is found again, with all that labels told of it, in order."""

    entry: FrameEntry
    labels: tuple[LabelEntry, ...] = ()


def kept(frame: FrameEntry | None, labels: Sequence[LabelEntry]) -> Kept | None:
    """A frame with the labels that are of it: those of an earlier frame of its name are not."""
    if frame is None:
        return None
    ours = {entry.sequence: entry for entry in labels if entry.sequence > abs(frame.sequence)}
    return Kept(frame, tuple(ours[sequence] for sequence in sorted(ours)))


class Journal(Protocol):
    """Where entries are kept."""

    @property
    def keeps(self) -> bool:
        """Says whether anything is kept at all."""
        ...

    @property
    def full(self) -> bool:
        """True while labels cannot be taken."""
        ...

    def note(self, entry: Entry) -> bool:
        """Has an entry written soon; tells whether it will be."""
        ...


@dataclass(frozen=True, slots=True)
class NoJournal:
    """Nothing is kept."""

    keeps: bool = False
    full: bool = False

    def note(self, entry: Entry) -> bool:
        """Never."""
        return False


# ---- numbers


class CorruptEntry(ValueError):
    """The bytes are no entry of the ledger, or cannot belong to the frame they name."""


def corrupt(field: str, came: str, expected: str) -> CorruptEntry:
    """For a field that cannot be what one of our encoders wrote."""
    return CorruptEntry(
        f"{field}: {came}, where {expected}. The entry is damaged or forged, and left out."
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """Arrays of one kind of number as bytes, row by row.

    stored  type of the bytes
    held    type of the arrays in memory
    below   bound of all numbers, where a reader names no other
    """

    stored: str
    held: type[np.generic]
    below: int | None = None

    def write(self, array: npt.NDArray[Any]) -> bytes:
        """Returns the bytes of an array."""
        return array.astype(self.stored, copy=False).tobytes()

    def read(
        self, data: bytes, field: str, *shape: int, below: int | None = None
    ) -> npt.NDArray[Any]:
        """Reads an array of this shape, all below a bound. Raises CorruptEntry.

        shape  as many numbers as there are, where none is given
        """
        count = self.count(data, field)
        if shape and count != math.prod(shape):
            said = " x ".join(map(str, shape))
            raise corrupt(field, f"{count} numbers", f"{said} are expected")
        array = np.frombuffer(data, self.stored)
        bound = self.below if below is None else below
        if bound is not None:
            check_below(array, bound, field)
        return array.astype(self.held, copy=False).reshape(shape or -1)

    def count(self, data: bytes, field: str) -> int:
        """Counts the numbers. Raises CorruptEntry."""
        size = np.dtype(self.stored).itemsize
        count, rest = divmod(len(data), size)
        if rest:
            raise corrupt(field, f"{len(data)} bytes", f"each number has {size}")
        return count


FLOATS = Numbers("<f8", np.float64)
IDS = Numbers("<u8", np.uint64)
LONGS = Numbers("<i8", np.int64)
# Positions and classes.
_NATURALS = Numbers("<u4", np.int64)
_SHORTS = Numbers("<u2", np.uint16)
_CODES = Numbers("u1", np.uint8)
_FLAGS = Numbers("u1", np.bool_, below=2)


def written(held: object, **kinds: Numbers) -> dict[str, Any]:
    """Returns the bytes of arrays that are named alike in a message."""
    return {name: numbers.write(getattr(held, name)) for name, numbers in kinds.items()}


def check_below(array: npt.NDArray[Any], below: int, field: str) -> None:
    """Refuses what is no index into so many."""
    if array.size and array.max() >= below:
        raise corrupt(field, f"{array.max()}", f"the bound is {below}")


def _tracks_message(tracks: TrackIds | None) -> pb.KeptTracks | None:
    if tracks is None:
        return None
    return pb.KeptTracks(**written(tracks, id=IDS, known=_FLAGS))


def _tracks(
    message: pb.KeptFrame | pb.KeptLabels, name: str, n: int, where: str
) -> TrackIds | None:
    """Reads the tracks of n detections; None where the message has none."""
    if not message.HasField(name):
        return None
    tracks, field = getattr(message, name), f"{where}{name}"
    return TrackIds(
        IDS.read(tracks.id, f"{field}.id", n), _FLAGS.read(tracks.known, f"{field}.known", n)
    )


_COUNTS = tuple(field.name for field in fields(TruthAccount))

# What messages and dataclasses name alike.
_OF_LABELS = ("replaces", "clock_ns", "generation", "delay_ns", "live", "objects_told")
_OF_FRAME = ("frame_id", "stamp_ns", "received", "version", "source", "epoch", "bare")


def encode_labels(record: LabelRecord) -> bytes:
    """A record as bytes.

    raises  ValueError for one of revision INLINE: what came with a frame is written with it
    """
    if record.revision == INLINE:
        raise ValueError("revision: INLINE is written with its frame: use encode_frame.")
    message = labels_message(record)
    message.revision = record.revision
    return message.SerializeToString()


def labels_message(record: LabelRecord) -> pb.KeptLabels:
    """All but the revision."""
    triangles, gate = b"", record.gate
    if record.truth_covariance is not None:
        m, k = record.truth_covariance.shape[:2]
        squares = record.truth_covariance.reshape(m, k * k)
        triangles = FLOATS.write(squares[:, triangle_in_square(k)])
    return pb.KeptLabels(
        **values_of(record, _OF_LABELS),
        **written(record, settled=_NATURALS, outcome=_CODES, rows=_NATURALS, truth=FLOATS),
        **written(record, class_rows=_NATURALS, true_class=_NATURALS),
        truth_covariance=triangles,
        objects=_tracks_message(record.objects),
        counted_stamp_ns=record.stamp_ns,
        account=[getattr(record.account, name) for name in _COUNTS],
        gate=b"" if gate is None else gate.tobytes(),
    )


def decode_labels(data: bytes) -> LabelRecord:
    """The inverse of encode_labels, bit for bit; `of_frame` gives it to its frame.

    Without rows, what is there of each of them is not known: truth is (0, 0), and neither
    truth_covariance nor gate is there.

    Raises CorruptEntry.
    """
    try:
        message = pb.KeptLabels.FromString(data)
    except DecodeError:
        raise corrupt("labels", f"{len(data)} bytes", "a KeptLabels is expected") from None
    return labels_in(message, message.revision)


def labels_in(message: pb.KeptLabels, revision: int, where: str = "") -> LabelRecord:
    """The record of a message.

    where   before the name of each field
    raises  CorruptEntry
    """
    settled = _NATURALS.read(message.settled, f"{where}settled")
    rows = _NATURALS.read(message.rows, f"{where}rows")
    m = rows.size
    truth = _truth(message.truth, m, f"{where}truth")
    class_rows = _NATURALS.read(message.class_rows, f"{where}class_rows")
    covariance = None
    if message.truth_covariance:
        k = truth.shape[1]
        field, size = f"{where}truth_covariance", k * (k + 1) // 2
        packed = FLOATS.read(message.truth_covariance, field, m, size)
        covariance = packed[:, square_from_triangle(k)].reshape(m, k, k)
    if len(message.account) > len(_COUNTS):
        came = f"{len(message.account)} counts"
        raise corrupt(f"{where}account", came, f"up to {len(_COUNTS)} are known")
    return LabelRecord(
        **read_values(message, _OF_LABELS),
        revision=revision,
        settled=settled,
        outcome=_CODES.read(message.outcome, f"{where}outcome", settled.size, below=len(Outcome)),
        rows=rows,
        truth=truth,
        truth_covariance=covariance,
        objects=_tracks(message, "objects", m, where),
        class_rows=class_rows,
        true_class=_NATURALS.read(message.true_class, f"{where}true_class", class_rows.size),
        stamp_ns=message.counted_stamp_ns if message.HasField("counted_stamp_ns") else None,
        # Counts that were not yet kept when it was written are 0.
        account=TruthAccount(*message.account),
        gate=_CODES.read(message.gate, f"{where}gate", m, below=len(GateVerdict))
        if message.gate
        else None,
    )


def of_frame(record: LabelRecord, frame: StoredFrame, where: str = "") -> LabelRecord:
    """The record, where it can be of this frame.

    where   before the name of each field
    raises  CorruptEntry
    """
    for name in ("settled", "rows", "class_rows"):
        check_below(getattr(record, name), frame.n, where + name)
    check_below(record.true_class, len(frame.header.classes), f"{where}true_class")
    m, width = record.truth.shape
    k = frame.header.space.k
    if m == 0:
        return replace(record, truth=np.zeros((0, k)))
    if width != k:
        raise corrupt(f"{where}truth", f"{width} dimensions", f"the frame has {k}")
    return record


def _truth(data: bytes, m: int, field: str) -> FloatArray:
    """(m, K), K as wide as there are numbers for."""
    count = FLOATS.count(data, field)
    k, rest = divmod(count, m) if m else (0, count)
    if rest or (m and not 1 <= k <= MOST_DIMENSIONS):
        raise corrupt(field, f"{count} numbers", f"{m} rows of 1 to {MOST_DIMENSIONS} are expected")
    return FLOATS.read(data, field, m, k)


_STREAM = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


# ---- writing


def encode_frame(entry: FrameEntry) -> bytes:
    """A frame, with what came with it, as bytes; its place in the ledger is kept beside them.

    raises  ValueError where what came with it has another revision than INLINE
    """
    frame, inline = entry.frame, entry.inline
    if inline is not None and inline.revision != INLINE:
        raise ValueError(
            f"inline.revision: {inline.revision}, but of what came with a frame it is {INLINE}: "
            "use encode_labels."
        )
    return pb.KeptFrame(
        **values_of(frame, _OF_FRAME),
        header=encode_header(frame.header),
        **written(frame, id=IDS, class_index=_NATURALS, slice=_SHORTS, unusable=IDS),
        slices=[encode_slice_key(key) for key in frame.slices],
        sent=_estimates_message(frame.sent),
        made=None if frame.made is None else _estimates_message(frame.made),
        tracks=_tracks_message(frame.tracks),
        opinions=None if frame.opinions is None else _opinions_message(frame.opinions),
        inline=None if inline is None else labels_message(inline),
    ).SerializeToString()


def encode_header(header: Header) -> frame_pb2.StreamHeader:
    """The message of a header, without what its connection asks for."""
    return frame_pb2.StreamHeader(
        stream=header.stream,
        dimensions=encode_dimensions(header.space),
        class_names=header.classes,
        coordinate_frame=header.coordinate_frame,
    )


def encode_slice_key(key: SliceKey) -> pb.KeptSlice:
    """The message of what makes up a slice."""
    return pb.KeptSlice(name=key.name, overflow=key.overflow)


def _estimates_message(stored: StoredEstimates) -> pb.KeptEstimates:
    arrays = written(stored, mean=FLOATS, packed=FLOATS, diagonal=_FLAGS)
    return pb.KeptEstimates(**arrays)


def _opinions_message(stored: StoredOpinions) -> pb.KeptOpinions:
    return pb.KeptOpinions(
        slice=None if stored.slice is None else encode_slice_key(stored.slice),
        **written(stored, rows=_NATURALS, values=FLOATS),
        opinions=stored.values.shape[1],
    )


# ---- reading


def decode_frame(
    data: bytes, *, sequence: int, partition: int, angles_in_joint: bool = False
) -> FrameEntry:
    """The inverse of encode_frame, bit for bit.

    angles_in_joint  of the space: a setting of the sidecar, and so no part of what is kept
    raises           CorruptEntry
    """
    try:
        message = pb.KeptFrame.FromString(data)
        frame = _frame(message, angles_in_joint)
    except DecodeError:
        raise corrupt("frame", f"{len(data)} bytes", "a KeptFrame is expected") from None
    except InvalidState as error:
        # What it says to do is for those who hold a state.
        problem = str(error).partition(". The state")[0]
        raise corrupt("frame", problem, "one that was written is expected") from None
    inline = None
    if message.HasField("inline"):
        inline = of_frame(labels_in(message.inline, INLINE, "inline."), frame, "inline.")
    return FrameEntry(sequence, partition, frame, inline)


def _frame(message: pb.KeptFrame, angles_in_joint: bool) -> StoredFrame:
    for name in ("header", "sent"):
        if not message.HasField(name):
            raise corrupt(name, "absent", "every frame has one")
    header = _known_header(message.header.SerializeToString(), angles_in_joint)
    ids = IDS.read(message.id, "id")
    n, k, classes = ids.size, header.space.k, len(header.classes)
    slices = tuple(decode_slice_key(key, "slices") for key in message.slices)
    return StoredFrame(
        **read_values(message, _OF_FRAME),
        header=header,
        id=ids,
        class_index=_NATURALS.read(message.class_index, "class_index", n, below=classes),
        slices=slices,
        slice=_SHORTS.read(message.slice, "slice", n, below=len(slices)),
        sent=_estimates(message.sent, n, k, "sent"),
        made=_estimates(message.made, n, k, "made") if message.HasField("made") else None,
        unusable=IDS.read(message.unusable, "unusable"),
        tracks=_tracks(message, "tracks", n, ""),
        opinions=(
            _opinions(message.opinions, n, classes) if message.HasField("opinions") else None
        ),
    )


@lru_cache(maxsize=256)
def _known_header(data: bytes, angles_in_joint: bool) -> Header:
    """Thousands of frames share one header: what it takes long to work out is kept with it."""
    message = frame_pb2.StreamHeader.FromString(data)
    return decode_header(message, "header", angles_in_joint=angles_in_joint)


def decode_header(
    message: frame_pb2.StreamHeader, field: str, *, angles_in_joint: bool = False
) -> Header:
    """The header of a message. Raises InvalidState."""
    if not _STREAM.fullmatch(message.stream):
        raise invalid(f"{field}.stream", f"'{message.stream[:80]}' is no name of a stream")
    frame = message.coordinate_frame
    if len(frame) > 64 or not frame.isprintable():
        raise invalid(f"{field}.coordinate_frame", f"'{frame[:80]}' is not 64 printable characters")
    return Header(
        message.stream,
        decode_space(message.dimensions, angles_in_joint, field),
        checked_class_names(message.class_names, field),
        frame,
    )


def decode_slice_key(message: pb.KeptSlice, field: str) -> SliceKey:
    """Reads the values that make up a slice. Raises InvalidState."""
    return SliceKey(checked_slice_name(message.name, field), message.overflow)


def _estimates(message: pb.KeptEstimates, n: int, k: int, field: str) -> StoredEstimates:
    mean = FLOATS.read(message.mean, f"{field}.mean", n, k)
    # Variances or lower triangles: the length says which.
    triangle, packed = k * (k + 1) // 2, f"{field}.packed"
    count = FLOATS.count(message.packed, packed)
    if count not in (n * k, n * triangle):
        expected = f"{n} x {k} or {n} x {triangle} are expected"
        raise corrupt(packed, f"{count} numbers", expected)
    width = k if count == n * k else triangle
    return StoredEstimates(
        mean,
        FLOATS.read(message.packed, packed, n, width),
        _FLAGS.read(message.diagonal, f"{field}.diagonal", n),
    )


def _opinions(message: pb.KeptOpinions, n: int, classes: int) -> StoredOpinions:
    rows = _NATURALS.read(message.rows, "opinions.rows", below=n)
    if message.opinions > MOST_VALUES:
        raise corrupt(
            "opinions.opinions", f"{message.opinions}", f"up to {MOST_VALUES} are possible"
        )
    if (rows[1:] <= rows[:-1]).any():
        raise corrupt("opinions.rows", "a row that is not above the last", "all ascend")
    return StoredOpinions(
        decode_slice_key(message.slice, "opinions.slice") if message.HasField("slice") else None,
        rows,
        FLOATS.read(message.values, "opinions.values", rows.size, message.opinions, classes),
    )


# ---- with what a ledger knows of an entry beside its bytes

# Kinds, which say how the bytes are to be read: others may be added.
FRAME, BROUGHT, LABELS = 1, 2, 3

_FIXED = struct.Struct("<qqBqq?")


class Key(NamedTuple):
    """All of an entry that is known without its body.

    frame_id  with a sign, as SQLite has it
    number    stamp of a frame, revision of labels
    """

    sequence: int
    partition: int
    kind: int
    stream: str
    frame_id: int
    number: int | None

    def crc(self, body: bytes) -> int:
        """Returns the CRC-32 of key and body. Raises ValueError for a stream that is no text."""
        number = 0 if self.number is None else self.number
        fixed = _FIXED.pack(*self[:3], self.frame_id, number, self.number is None)
        return zlib.crc32(body, zlib.crc32(self.stream.encode(), zlib.crc32(fixed)))


def signed(number: int) -> int:
    """Returns 64 bits without a sign as SQLite holds them: with one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """Inverts `signed`."""
    return number & ((1 << 64) - 1)


def keyed(entry: Entry) -> list[tuple[Key, bytes]]:
    """Returns key and body of all that one entry writes. Raises ValueError where it has none."""
    if isinstance(entry, FrameEntry):
        frame, kind = entry.frame, FRAME if entry.sequence > 0 else BROUGHT
        name = frame.header.stream, signed(frame.frame_id)
        return [
            (Key(entry.sequence, entry.partition, kind, *name, frame.stamp_ns), encode_frame(entry))
        ]
    record, brought = entry.record, [] if entry.frame is None else keyed(entry.frame)
    name = entry.stream, signed(entry.frame_id)
    key = Key(entry.sequence, entry.partition, LABELS, *name, record.revision)
    return [*brought, (key, encode_labels(record))]


def unkeyed(key: Key, body: bytes) -> Entry:
    """Returns the entry of a key and a body. Raises CorruptEntry."""
    if key.kind == LABELS:
        name = key.stream, unsigned(key.frame_id)
        return LabelEntry(key.sequence, key.partition, *name, decode_labels(body))
    if key.kind not in (FRAME, BROUGHT):
        raise corrupt("kind", f"{key.kind}", f"{FRAME} to {LABELS} are known")
    return decode_frame(body, sequence=key.sequence, partition=key.partition)
