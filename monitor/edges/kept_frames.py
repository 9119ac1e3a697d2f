"""Entries of the ledger as bytes, and back: frames, and the headers of their streams. What labels
told is in kept_labels.
"""

from __future__ import annotations

import re
from functools import lru_cache

from google.protobuf.message import DecodeError

from monitor.calibration.class_opinions import MOST_VALUES
from monitor.calibration.space import FloatArray
from monitor.edges.kept_arrays import (
    CorruptEntry,
    corrupt,
    count_in,
    flags_in,
    flags_of,
    floats_in,
    floats_of,
    ids_in,
    ids_of,
    naturals_in,
    naturals_of,
    shorts_in,
    shorts_of,
    tracks_in,
    tracks_of,
)
from monitor.edges.kept_labels import (
    decode_labels,
    encode_labels,
    labels_in,
    labels_message,
    of_frame,
)
from monitor.edges.state_definitions import (
    checked_class_names,
    checked_slice_name,
    decode_space,
    encode_dimensions,
)
from monitor.edges.state_sums import InvalidState, invalid
from monitor.frames import Header
from monitor.ledger import INLINE, FrameEntry
from monitor.stored_frame import SliceKey, StoredEstimates, StoredFrame, StoredOpinions
from monitor.v1 import frame_pb2
from monitor.v1 import ledger_pb2 as pb

__all__ = (
    "CorruptEntry",
    "decode_frame",
    "decode_labels",
    "encode_frame",
    "encode_labels",
    "of_frame",
)

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
    """What makes up a slice. Raises InvalidState."""
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
