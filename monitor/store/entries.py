"""Entries of the ledger: frames, labels and the counts that labels changed; as bytes, and back.

Entries are numbered in the order in which they changed the statistics. Those after a checkpoint,
replayed in their order, restore the statistics that the process had when it died. Where bytes are
kept is not known here, but for the queue in which they wait. All arrays are little-endian. The
checksum (`Key.crc`) tells whether bytes are as written: decoding checks lengths alone, and trusts
indices. Arrays that were read do not own their memory: they are read-only, or copies.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from monitor.frames.frame import (
    Header,
    Opinions,
    SliceKey,
    StoredEstimates,
    StoredFrame,
    TrackIds,
)
from monitor.frames.space import packed_covariances, unpacked_covariances
from monitor.frames.status import TruthAccount
from monitor.matching.objects import INLINE, LabelRecord
from monitor.store.state_definitions import (
    decode_space,
    encode_dimensions,
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


def latest(entries: Iterable[Entry]) -> Kept | None:
    """Returns the latest frame among entries of one name, with its labels; None without a frame.

    An entry may be there twice. Labels before the frame are of an earlier one of its name.
    """
    once = {entry.sequence: entry for entry in entries}
    found = None
    for sequence in sorted(once, key=lambda number: (abs(number), number)):
        entry = once[sequence]
        if isinstance(entry, FrameEntry):
            found = Kept(entry)
        elif found is not None:
            found = Kept(found.entry, (*found.labels, entry))
    return found


# ---- numbers


@dataclass(frozen=True, slots=True)
class Numbers:
    """Arrays of one kind of number as bytes, row by row.

    stored  type of the bytes
    held    type of the arrays in memory
    """

    stored: str
    held: type[np.generic]

    def write(self, array: npt.NDArray[Any]) -> bytes:
        """Returns the bytes of an array."""
        return array.astype(self.stored, copy=False).tobytes()

    def view(self, array: npt.NDArray[Any]) -> memoryview:
        """Returns these bytes without a copy, if the array has them in its memory."""
        return np.ascontiguousarray(array, self.stored).data

    def read(self, data: bytes, *shape: int) -> npt.NDArray[Any]:
        """Reads an array of this shape. Raises ValueError where the bytes are more or less.

        shape  as many numbers as there are, where none is given
        """
        array = np.frombuffer(data, self.stored)
        return array.astype(self.held, copy=False).reshape(shape or -1)


FLOATS = Numbers("<f8", np.float64)
IDS = Numbers("<u8", np.uint64)
# Positions and classes.
_NATURALS = Numbers("<u4", np.int64)
_SHORTS = Numbers("<u2", np.uint16)
_CODES = Numbers("u1", np.uint8)
_FLAGS = Numbers("u1", np.bool_)


def written(held: object, **kinds: Numbers) -> dict[str, Any]:
    """Returns the bytes of arrays that are named alike in a message."""
    return {name: numbers.write(getattr(held, name)) for name, numbers in kinds.items()}


def _tracks_message(tracks: TrackIds | None) -> pb.KeptTracks | None:
    return None if tracks is None else pb.KeptTracks(**written(tracks, id=IDS, known=_FLAGS))


def _tracks(message: pb.KeptFrame | pb.KeptLabels, name: str, n: int) -> TrackIds | None:
    """Reads the tracks of n detections; None where the message has none."""
    if not message.HasField(name):
        return None
    tracks = getattr(message, name)
    return TrackIds(IDS.read(tracks.id, n), _FLAGS.read(tracks.known, n))


_COUNTS = tuple(field.name for field in fields(TruthAccount))

# What messages and dataclasses name alike.
_OF_LABELS = ("replaces", "clock_ns", "generation", "delay_ns", "live", "objects_told")
_OF_SLICE = ("name", "overflow", "assumed")
_OF_FRAME = ("frame_id", "stamp_ns", "received", "version", "source", "epoch", "bare")


def encode_labels(record: LabelRecord) -> bytes:
    """A record as bytes; one of revision INLINE has none, it is written with its frame."""
    assert record.revision != INLINE, "use encode_frame"
    message = labels_message(record)
    message.revision = record.revision
    return message.SerializeToString()


def labels_message(record: LabelRecord) -> pb.KeptLabels:
    """All but the revision."""
    triangles, gate = b"", record.gate
    if record.truth_covariance is not None:
        k = record.truth_covariance.shape[1]
        form = k * (k + 1) // 2
        triangles = FLOATS.write(packed_covariances(record.truth_covariance, form))
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
    """The inverse of encode_labels, bit for bit.

    Without rows, what is there of each of them is not known: truth is (0, 0), and neither
    truth_covariance nor gate is there.
    """
    message = pb.KeptLabels.FromString(data)
    return labels_in(message, message.revision)


def labels_in(message: pb.KeptLabels, revision: int, k: int = 0) -> LabelRecord:
    """The record of a message.

    k  width of ground truth without rows
    """
    settled = _NATURALS.read(message.settled)
    rows = _NATURALS.read(message.rows)
    m, covariance = rows.size, None
    truth = FLOATS.read(message.truth, m, -1) if m else np.zeros((0, k))
    class_rows = _NATURALS.read(message.class_rows)
    if message.truth_covariance:
        k = truth.shape[1]
        packed = FLOATS.read(message.truth_covariance, m, k * (k + 1) // 2)
        covariance = unpacked_covariances(packed, k)
    return LabelRecord(
        **read_values(message, _OF_LABELS),
        revision=revision,
        settled=settled,
        outcome=_CODES.read(message.outcome, settled.size),
        rows=rows,
        truth=truth,
        truth_covariance=covariance,
        objects=_tracks(message, "objects", m),
        class_rows=class_rows,
        true_class=_NATURALS.read(message.true_class, class_rows.size),
        stamp_ns=message.counted_stamp_ns if message.HasField("counted_stamp_ns") else None,
        # Counts that were not yet kept when it was written are 0.
        account=TruthAccount(*message.account),
        gate=_CODES.read(message.gate, m) if message.gate else None,
    )


# ---- writing


# The bytes of an entry, in pieces that lie one behind the other. Arrays are copied by nobody before
# the system takes them: who changes one that a frame holds, changes what is written.
Piece: TypeAlias = bytes | memoryview
Pieces: TypeAlias = tuple[Piece, ...]


def encode_frame(entry: FrameEntry) -> Pieces:
    """Returns a frame, with what came with it, as bytes of a KeptFrame.

    Its place in the ledger is kept beside them. Protobuf takes messages that lie one behind the
    other for one, so that each part is written in the way that is cheapest for it.
    """
    frame, inline = entry.frame, entry.inline
    assert inline is None or inline.revision == INLINE, "use encode_labels"
    small = pb.KeptFrame(
        **values_of(frame, _OF_FRAME),
        tracks=_tracks_message(frame.tracks),
        opinions=None if frame.opinions is None else _opinions_message(frame.opinions),
        inline=None if inline is None else labels_message(inline),
    ).SerializeToString()
    return (
        small + _of_stream(frame.header, frame.slices),
        *_field(_FRAME["id"], IDS.view(frame.id)),
        *_field(_FRAME["class_index"], _NATURALS.view(frame.class_index)),
        *_field(_FRAME["slice"], _SHORTS.view(frame.slice)),
        *_field(_FRAME["unusable"], IDS.view(frame.unusable)),
        *_estimates_field(_FRAME["sent"], frame.sent),
        *(() if frame.made is None else _estimates_field(_FRAME["made"], frame.made)),
    )


_FRAME = {field.name: field.number for field in pb.KeptFrame.DESCRIPTOR.fields}
_ESTIMATES = {field.name: field.number for field in pb.KeptEstimates.DESCRIPTOR.fields}


def _field(number: int, array: memoryview) -> Pieces:
    """Returns an array as a field of a message; nothing where it is empty."""
    return (_head(number, array.nbytes), array) if array.nbytes else ()


def _estimates_field(number: int, stored: StoredEstimates) -> Pieces:
    """Returns Gaussians as a field of a message, which is there without any too."""
    score = () if stored.score is None else _field(_ESTIMATES["score"], FLOATS.view(stored.score))
    within = (
        *_field(_ESTIMATES["mean"], FLOATS.view(stored.mean)),
        *_field(_ESTIMATES["packed"], FLOATS.view(stored.packed)),
        *_field(_ESTIMATES["diagonal"], _FLAGS.view(stored.diagonal)),
        *score,
    )
    return _head(number, size_of(within)), *within


def size_of(pieces: Sequence[Piece]) -> int:
    """Counts the bytes of pieces."""
    return sum(len(one) if isinstance(one, bytes) else one.nbytes for one in pieces)


@lru_cache(maxsize=1024)
def _head(number: int, size: int) -> bytes:
    """Returns what protobuf writes before a field of so many bytes: tag and length, as varints."""
    found = bytearray()
    for value in (number << 3 | 2, size):
        while value > 0x7F:
            found.append(value & 0x7F | 0x80)
            value >>= 7
        found.append(value)
    return bytes(found)


@lru_cache(maxsize=1024)
def _of_stream(header: Header, slices: tuple[SliceKey, ...]) -> bytes:
    """Returns what thousands of frames have in common, without what a connection asks for."""
    return pb.KeptFrame(
        header=frame_pb2.StreamHeader(
            stream=header.stream,
            dimensions=encode_dimensions(header.space),
            class_names=header.classes,
            coordinate_frame=header.coordinate_frame,
        ),
        slices=[pb.KeptSlice(**values_of(key, _OF_SLICE)) for key in slices],
    ).SerializeToString()


def _opinions_message(stored: Opinions) -> pb.KeptOpinions:
    key = stored.slice
    return pb.KeptOpinions(
        slice=None if key is None else pb.KeptSlice(**values_of(key, _OF_SLICE)),
        **written(stored, rows=_NATURALS, values=FLOATS),
        opinions=stored.values.shape[1],
        made=None if stored.made is None else FLOATS.write(stored.made),
    )


# ---- reading


def decode_frame(data: bytes, *, sequence: int, partition: int) -> FrameEntry:
    """The inverse of encode_frame, bit for bit.

    `angles_in_joint` is the sidecar's setting and is not kept: it is False here, and set by
    `LedgerFrames.placed`.
    """
    message = pb.KeptFrame.FromString(data)
    header = _known_header(message.header.SerializeToString())
    ids = IDS.read(message.id)
    n, k, classes = ids.size, header.space.k, len(header.classes)
    frame = StoredFrame(
        **read_values(message, _OF_FRAME),
        header=header,
        id=ids,
        class_index=_NATURALS.read(message.class_index, n),
        slices=tuple(SliceKey(**values_of(one, _OF_SLICE)) for one in message.slices),
        slice=_SHORTS.read(message.slice, n),
        sent=_estimates(message.sent, n, k),
        made=_estimates(message.made, n, k) if message.HasField("made") else None,
        unusable=IDS.read(message.unusable),
        tracks=_tracks(message, "tracks", n),
        opinions=_opinions(message.opinions, classes) if message.HasField("opinions") else None,
    )
    inline = labels_in(message.inline, INLINE, k) if message.HasField("inline") else None
    return FrameEntry(sequence, partition, frame, inline)


@lru_cache(maxsize=256)
def _known_header(data: bytes) -> Header:
    """Thousands of frames share one header: what it takes long to work out is kept with it."""
    message = frame_pb2.StreamHeader.FromString(data)
    space = decode_space(message.dimensions, angles=False, field="header")
    return Header(message.stream, space, tuple(message.class_names), message.coordinate_frame)


def _estimates(message: pb.KeptEstimates, n: int, k: int) -> StoredEstimates:
    mean, packed = FLOATS.read(message.mean, n, k), FLOATS.read(message.packed)
    # Variances or lower triangles: the length says which.
    width = k if packed.size == n * k else k * (k + 1) // 2
    score = FLOATS.read(message.score, n) if message.score else None
    return StoredEstimates(mean, packed.reshape(n, width), _FLAGS.read(message.diagonal, n), score)


def _opinions(message: pb.KeptOpinions, classes: int) -> Opinions:
    rows, key = _NATURALS.read(message.rows), message.slice
    return Opinions(
        SliceKey(**values_of(key, _OF_SLICE)) if message.HasField("slice") else None,
        rows,
        FLOATS.read(message.values, rows.size, message.opinions, classes),
        FLOATS.read(message.made, rows.size, classes) if message.HasField("made") else None,
    )


# ---- with what a ledger knows of an entry beside its bytes

# Kinds, which say how the bytes are to be read: others may be added.
FRAME, BROUGHT, LABELS = 1, 2, 3

_FIXED = struct.Struct("<qqBqq?")

# What decoding may raise for bytes that no encoder here wrote.
_UNREADABLE = (AttributeError, DecodeError, IndexError, TypeError, ValueError, struct.error)


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

    def crc(self, *pieces: Piece) -> int:
        """Returns the CRC-32 of key and body. Raises ValueError for a stream that is no text."""
        number = 0 if self.number is None else self.number
        fixed = _FIXED.pack(*self[:3], self.frame_id, number, self.number is None)
        crc = zlib.crc32(self.stream.encode(), zlib.crc32(fixed))
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        return crc


def signed(number: int) -> int:
    """Returns 64 bits without a sign as SQLite holds them: with one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """Inverts `signed`."""
    return number & ((1 << 64) - 1)


class Body(NamedTuple):
    """All of an entry, ready to be written; size: bytes of all pieces."""

    key: Key
    crc: int
    size: int
    pieces: Pieces

    @classmethod
    def of(cls, key: Key, pieces: Pieces) -> Body:
        """Adds size and checksum. Raises ValueError for a stream that is no text."""
        return cls(key, key.crc(*pieces), size_of(pieces), pieces)

    @property
    def data(self) -> bytes:
        """Returns the bytes in one piece."""
        return b"".join(self.pieces)


# The rows of one entry, or of all that one commit writes.
Bodies: TypeAlias = list[Body]


def bodies_of(entry: Entry) -> Bodies:
    """Returns all that one entry writes.

    raises  ValueError, OverflowError, struct.error where it has no bytes
    """
    if isinstance(entry, FrameEntry):
        frame, kind = entry.frame, FRAME if entry.sequence > 0 else BROUGHT
        name, number = (frame.header.stream, signed(frame.frame_id)), frame.stamp_ns
        before, pieces = Bodies(), encode_frame(entry)
    else:
        kind, name, number = LABELS, (entry.stream, signed(entry.frame_id)), entry.record.revision
        before = Bodies() if entry.frame is None else bodies_of(entry.frame)
        pieces = (encode_labels(entry.record),)
    return [*before, Body.of(Key(entry.sequence, entry.partition, kind, *name, number), pieces)]


def is_frame(bodies: Bodies) -> bool:
    """Tells whether an entry is a frame, and not labels."""
    return bodies[-1].key.kind != LABELS


class NoEntry(ValueError):
    """The bytes are no entry of the ledger, though their checksum may be right."""


def unkeyed(key: Key, body: bytes) -> Entry:
    """Returns the entry of a key and a body. Raises NoEntry."""
    try:
        if key.kind == LABELS:
            name = key.stream, unsigned(key.frame_id)
            return LabelEntry(key.sequence, key.partition, *name, decode_labels(body))
        if key.kind in (FRAME, BROUGHT):
            return decode_frame(body, sequence=key.sequence, partition=key.partition)
        raise ValueError(f"kind: {key.kind}, where {FRAME} to {LABELS} are known.")
    except _UNREADABLE as error:
        # What it says to do is for those who hold a state.
        raise NoEntry(str(error).partition(". The state")[0]) from error


# ---- on their way to the disk

# Bytes of labels in waiting, where the disk takes nothing for long: memory has an end too.
MOST_LABEL_BYTES = 64 * 2**20

# Bytes of frames in waiting: at the end of the process they are still to be written.
MOST_FRAME_BYTES = 64 * 2**20
_ENTRY = 512  # bytes of Python, about
FrameName = tuple[str, int]


@dataclass(slots=True)
class JournalQueue:
    """Entries as bytes, in their order and by the name of their frame.

    most_frames  that may wait
    """

    most_frames: int
    frames: int = 0
    frame_bytes: int = 0
    label_bytes: int = 0
    _waiting: deque[Bodies] = field(default_factory=deque)
    _by_name: dict[FrameName, list[Bodies]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True while there is no room for labels."""
        return self.label_bytes >= MOST_LABEL_BYTES

    def crowded(self, share: float) -> bool:
        """Tells whether frames take a share of the room that there is for them."""
        many = self.frames >= share * self.most_frames
        return many or self.frame_bytes >= share * MOST_FRAME_BYTES

    def put(self, bodies: Bodies) -> None:
        """Lets an entry wait."""
        self._count(bodies, 1)
        self._waiting.append(bodies)
        self._by_name.setdefault(_name(bodies), []).append(bodies)

    def first(self, count: int) -> list[Bodies]:
        """Returns the first entries; they stay."""
        return list(islice(self._waiting, count))

    def remove_first(self, count: int) -> None:
        """Lets the first entries wait no more."""
        for _ in range(count):
            bodies = self._waiting.popleft()
            self._count(bodies, -1)
            name = _name(bodies)
            ours = self._by_name[name]
            ours.pop(0)
            if not ours:
                del self._by_name[name]

    def _count(self, bodies: Bodies, sign: int) -> None:
        size = sign * sum(_ENTRY + body.size for body in bodies)
        if is_frame(bodies):
            self.frames += sign
            self.frame_bytes += size
        else:
            self.label_bytes += size

    def of(self, name: FrameName, partition: int | None) -> list[Entry]:
        """Decodes what waits of one frame: frames, also those that labels bring, and labels."""
        ours = [one for bodies in self._by_name.get(name, ()) for one in bodies]
        there = (one for one in ours if partition in (None, one.key.partition))
        return [unkeyed(one.key, one.data) for one in there]


def _name(bodies: Bodies) -> FrameName:
    key = bodies[-1].key
    return key.stream, key.frame_id
