"""Entries of the ledger as bytes, and back: every length and number read is checked.

Arrays are little-endian. Arrays that were read do not own their memory: they are read-only, or
copies. How many detections a frame has, and in how many dimensions, is known by the frame alone:
labels are checked against it by `of_frame`.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from monitor.frames.classes import MOST_VALUES
from monitor.frames.counters import TruthAccount
from monitor.frames.detections import IdArray
from monitor.frames.frame import Header, TrackIds
from monitor.frames.space import (
    MOST_DIMENSIONS,
    BoolArray,
    FloatArray,
    IntArray,
    square_from_triangle,
    triangle_in_square,
)
from monitor.frames.stored import SliceKey, StoredEstimates, StoredFrame, StoredOpinions
from monitor.matching.pending import INLINE, GateVerdict, LabelRecord, Outcome
from monitor.store.ledger.entries import FrameEntry
from monitor.store.state_definitions import (
    InvalidState,
    checked_class_names,
    checked_slice_name,
    decode_space,
    encode_dimensions,
    invalid,
)
from monitor.v1 import frame_pb2
from monitor.v1 import ledger_pb2 as pb


class CorruptEntry(ValueError):
    """The bytes are no entry of the ledger, or cannot belong to the frame they name."""


def corrupt(field: str, came: str, expected: str) -> CorruptEntry:
    """For a field that cannot be what one of our encoders wrote."""
    return CorruptEntry(
        f"{field}: {came}, where {expected}. "
        "The entry is damaged or forged: set the file that it is in aside."
    )


# ---- writing


def floats_of(array: FloatArray) -> bytes:
    """float64, row by row."""
    return array.astype("<f8", copy=False).tobytes()


def ids_of(array: IdArray) -> bytes:
    """uint64."""
    return array.astype("<u8", copy=False).tobytes()


def naturals_of(array: IntArray) -> bytes:
    """uint32: positions and classes."""
    return array.astype("<u4").tobytes()


def longs_of(array: IntArray) -> bytes:
    """int64."""
    return array.astype("<i8", copy=False).tobytes()


def shorts_of(array: npt.NDArray[np.uint16]) -> bytes:
    """uint16."""
    return array.astype("<u2", copy=False).tobytes()


def flags_of(array: BoolArray) -> bytes:
    """uint8."""
    return array.tobytes()


def tracks_of(tracks: TrackIds | None) -> pb.KeptTracks | None:
    """The message of tracks, if there are any."""
    if tracks is None:
        return None
    return pb.KeptTracks(id=ids_of(tracks.id), known=flags_of(tracks.known))


# ---- reading; all raise CorruptEntry


def count_in(data: bytes, size: int, field: str) -> int:
    """How many numbers of so many bytes there are."""
    count, rest = divmod(len(data), size)
    if rest:
        raise corrupt(field, f"{len(data)} bytes", f"each number has {size}")
    return count


def floats_in(data: bytes, field: str, *shape: int) -> FloatArray:
    """float64 of this shape."""
    return _array(data, "<f8", field, *shape).astype(np.float64, copy=False)


def ids_in(data: bytes, field: str, n: int | None = None) -> IdArray:
    """uint64, (n,); None: as many as there are."""
    return _array(data, "<u8", field, n).astype(np.uint64, copy=False)


def naturals_in(
    data: bytes, field: str, n: int | None = None, below: int | None = None
) -> IntArray:
    """uint32, (n,), all below a bound; None: as many as there are, and any."""
    array: IntArray = _array(data, "<u4", field, n).astype(np.int64)
    if below is not None:
        check_below(array, below, field)
    return array


def longs_in(data: bytes, field: str, n: int) -> IntArray:
    """int64, (n,)."""
    return _array(data, "<i8", field, n).astype(np.int64, copy=False)


def shorts_in(data: bytes, field: str, n: int, below: int) -> npt.NDArray[np.uint16]:
    """uint16, (n,), all below a bound."""
    array = _array(data, "<u2", field, n).astype(np.uint16, copy=False)
    check_below(array, below, field)
    return array


def bytes_in(data: bytes, field: str, n: int, below: int) -> npt.NDArray[np.uint8]:
    """uint8, (n,), all below a bound."""
    array = _array(data, "u1", field, n)
    check_below(array, below, field)
    return array


def flags_in(data: bytes, field: str, n: int) -> BoolArray:
    """(n,) of 0 or 1."""
    return bytes_in(data, field, n, 2).view(np.bool_)


def tracks_in(message: pb.KeptTracks, field: str, n: int) -> TrackIds:
    """The tracks of n detections."""
    return TrackIds(
        ids_in(message.id, f"{field}.id", n), flags_in(message.known, f"{field}.known", n)
    )


def check_below(array: npt.NDArray[Any], below: int, field: str) -> None:
    """Refuse what is no index into so many."""
    if array.size and array.max() >= below:
        raise corrupt(field, f"{array.max()}", f"the bound is {below}")


def _array(data: bytes, dtype: str, field: str, *shape: int | None) -> npt.NDArray[Any]:
    """Reads an array of this shape; one of unknown length where the shape is (None,)."""
    kind = np.dtype(dtype)
    count = count_in(data, kind.itemsize, field)
    array = np.frombuffer(data, kind)
    if shape == (None,):
        return array
    wanted = [size for size in shape if size is not None]
    expected = 1
    for size in wanted:
        expected *= size
    if count != expected:
        said = " x ".join(map(str, wanted))
        raise corrupt(field, f"{count} numbers", f"{said} are expected")
    return array.reshape(wanted)


_COUNTS = tuple(field.name for field in fields(TruthAccount))


_OUTCOMES = len(Outcome)


_GATES = len(GateVerdict)


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
    covariance, gate = record.truth_covariance, record.gate
    return pb.KeptLabels(
        replaces=record.replaces,
        settled=naturals_of(record.settled),
        outcome=record.outcome.tobytes(),
        rows=naturals_of(record.rows),
        truth=floats_of(record.truth),
        truth_covariance=b"" if covariance is None else floats_of(_triangles(covariance)),
        objects=tracks_of(record.objects),
        class_rows=naturals_of(record.class_rows),
        true_class=naturals_of(record.true_class),
        counted_stamp_ns=record.stamp_ns,
        clock_ns=record.clock_ns,
        generation=record.generation,
        delay_ns=record.delay_ns,
        live=record.live,
        account=[getattr(record.account, name) for name in _COUNTS],
        objects_told=record.objects_told,
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
    settled = naturals_in(message.settled, f"{where}settled")
    rows = naturals_in(message.rows, f"{where}rows")
    m = rows.size
    truth = _truth(message.truth, m, f"{where}truth")
    class_rows = naturals_in(message.class_rows, f"{where}class_rows")
    covariance = None
    if message.truth_covariance:
        field = f"{where}truth_covariance"
        covariance = _squares(message.truth_covariance, m, truth.shape[1], field)
    return LabelRecord(
        revision=revision,
        replaces=message.replaces,
        settled=settled,
        outcome=bytes_in(message.outcome, f"{where}outcome", settled.size, _OUTCOMES),
        rows=rows,
        truth=truth,
        truth_covariance=covariance,
        objects=(
            tracks_in(message.objects, f"{where}objects", m)
            if message.HasField("objects")
            else None
        ),
        class_rows=class_rows,
        true_class=naturals_in(message.true_class, f"{where}true_class", class_rows.size),
        stamp_ns=message.counted_stamp_ns if message.HasField("counted_stamp_ns") else None,
        clock_ns=message.clock_ns if message.HasField("clock_ns") else None,
        generation=message.generation,
        delay_ns=message.delay_ns,
        live=message.live,
        account=_account(message, f"{where}account"),
        objects_told=message.objects_told,
        gate=bytes_in(message.gate, f"{where}gate", m, _GATES) if message.gate else None,
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


def _account(message: pb.KeptLabels, field: str) -> TruthAccount:
    """Those that were not yet counted when it was written are 0."""
    if len(message.account) > len(_COUNTS):
        raise corrupt(field, f"{len(message.account)} counts", f"up to {len(_COUNTS)} are known")
    return TruthAccount(*message.account)


def _truth(data: bytes, m: int, field: str) -> FloatArray:
    """(m, K), K as wide as there are numbers for."""
    count = count_in(data, 8, field)
    k, rest = divmod(count, m) if m else (0, count)
    if rest or (m and not 1 <= k <= MOST_DIMENSIONS):
        raise corrupt(field, f"{count} numbers", f"{m} rows of 1 to {MOST_DIMENSIONS} are expected")
    return floats_in(data, field, m, k)


def _triangles(covariance: FloatArray) -> FloatArray:
    """Lower triangles of (m, K, K)."""
    m, k = covariance.shape[:2]
    return covariance.reshape(m, k * k)[:, triangle_in_square(k)]


def _squares(data: bytes, m: int, k: int, field: str) -> FloatArray:
    """(m, K, K), symmetric."""
    packed = floats_in(data, field, m, k * (k + 1) // 2)
    return packed[:, square_from_triangle(k)].reshape(m, k, k)


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
        header=encode_header(frame.header),
        frame_id=frame.frame_id,
        stamp_ns=frame.stamp_ns,
        received=frame.received,
        id=ids_of(frame.id),
        class_index=naturals_of(frame.class_index),
        slices=[encode_slice_key(key) for key in frame.slices],
        slice=shorts_of(frame.slice),
        sent=_estimates_message(frame.sent),
        made=None if frame.made is None else _estimates_message(frame.made),
        version=frame.version,
        unusable=ids_of(frame.unusable),
        tracks=tracks_of(frame.tracks),
        source=frame.source,
        opinions=None if frame.opinions is None else _opinions_message(frame.opinions),
        inline=None if inline is None else labels_message(inline),
        epoch=frame.epoch,
        bare=frame.bare,
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
    return pb.KeptEstimates(
        mean=floats_of(stored.mean),
        packed=floats_of(stored.packed),
        diagonal=flags_of(stored.diagonal),
    )


def _opinions_message(stored: StoredOpinions) -> pb.KeptOpinions:
    return pb.KeptOpinions(
        slice=None if stored.slice is None else encode_slice_key(stored.slice),
        rows=naturals_of(stored.rows),
        values=floats_of(stored.values),
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
    ids = ids_in(message.id, "id")
    n, k, classes = ids.size, header.space.k, len(header.classes)
    slices = tuple(decode_slice_key(key, "slices") for key in message.slices)
    return StoredFrame(
        header=header,
        frame_id=message.frame_id,
        stamp_ns=message.stamp_ns if message.HasField("stamp_ns") else None,
        received=message.received,
        id=ids,
        class_index=naturals_in(message.class_index, "class_index", n, classes),
        slices=slices,
        slice=shorts_in(message.slice, "slice", n, len(slices)),
        sent=_estimates(message.sent, n, k, "sent"),
        made=_estimates(message.made, n, k, "made") if message.HasField("made") else None,
        version=message.version if message.HasField("version") else None,
        unusable=ids_in(message.unusable, "unusable"),
        tracks=tracks_in(message.tracks, "tracks", n) if message.HasField("tracks") else None,
        source=message.source,
        opinions=(
            _opinions(message.opinions, n, classes) if message.HasField("opinions") else None
        ),
        epoch=message.epoch,
        bare=message.bare,
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
    return StoredEstimates(
        floats_in(message.mean, f"{field}.mean", n, k),
        _packed(message.packed, n, k, f"{field}.packed"),
        flags_in(message.diagonal, f"{field}.diagonal", n),
    )


def _packed(data: bytes, n: int, k: int, field: str) -> FloatArray:
    """Variances or lower triangles: the length says which."""
    triangle = k * (k + 1) // 2
    count = count_in(data, 8, field)
    if count not in (n * k, n * triangle):
        raise corrupt(field, f"{count} numbers", f"{n} x {k} or {n} x {triangle} are expected")
    return floats_in(data, field, n, k if count == n * k else triangle)


def _opinions(message: pb.KeptOpinions, n: int, classes: int) -> StoredOpinions:
    rows = naturals_in(message.rows, "opinions.rows", below=n)
    if message.opinions > MOST_VALUES:
        raise corrupt(
            "opinions.opinions", f"{message.opinions}", f"up to {MOST_VALUES} are possible"
        )
    if (rows[1:] <= rows[:-1]).any():
        raise corrupt("opinions.rows", "a row that is not above the last", "all ascend")
    return StoredOpinions(
        decode_slice_key(message.slice, "opinions.slice") if message.HasField("slice") else None,
        rows,
        floats_in(message.values, "opinions.values", rows.size, message.opinions, classes),
    )
