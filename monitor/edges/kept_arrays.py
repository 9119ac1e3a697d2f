"""Arrays as little-endian bytes, and back: what was written is looked at before it is believed.

What is read does not own its memory: the arrays are read-only, or copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.matched import TrackIds
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.v1 import ledger_pb2 as pb


class CorruptEntry(ValueError):
    """What came as an entry of the ledger is none, or cannot be of the frame it names."""


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
    """Of this shape, or in one row where that is not known."""
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
