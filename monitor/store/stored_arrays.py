"""Columns of Parquet files and arrays of NumPy archives that are read when they are asked for.

Rows are read in portions from the file's beginning to its end: a file is never in memory as a whole
unless somebody asks for that. What the values mean lives in recordings.py and gaussians.py.
"""

from __future__ import annotations

import contextlib
import math
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.frames.space import IntArray
from monitor.statistics.clusters import numbered
from monitor.statistics.row_columns import PORTION

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

AnyArray: TypeAlias = npt.NDArray[Any]

# Different texts that are looked for one by one.
_FEW_NAMES = 24

# Bytes of a column that are read from the disk at a time.
_BUFFER = 65_536

# Arrays of an archive that are smaller are read at once.
_SMALL = 1 << 20


class StoredArray(Protocol):
    """An array of one value, or one block of values, a row."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def between(self, first: int, end: int) -> AnyArray:
        """Reads consecutive rows: quickly where they follow those that were read before."""
        ...

    def whole(self) -> AnyArray:
        """Reads all rows."""
        ...

    def coded(self) -> tuple[AnyArray, IntArray]:
        """Reads the different values, ascending, and which of them each row has."""
        ...


def values_and_places(values: AnyArray) -> tuple[AnyArray, IntArray]:
    """Finds the different values (n,), ascending, and which of them each row has."""
    if values.dtype.kind in "iu" and values.size:
        place = numbered(values.astype(np.int64, copy=False))
        found = np.empty(int(place.max()) + 1, values.dtype)
        found[place] = values
        return found, place
    if values.dtype.kind != "U" or not values.size:
        found, place = np.unique(values, return_inverse=True)
        return found, place.astype(np.int64)
    # Text takes long to sort: the first few values are found one after the other.
    place, left = np.zeros(values.size, np.int64), np.arange(values.size)
    names = list[str]()
    while left.size and len(names) < _FEW_NAMES:
        name = values[left[0]]
        alike = values[left] == name
        place[left[alike]] = len(names)
        names.append(str(name))
        left = left[~alike]
    if left.size:
        others, there = np.unique(values[left], return_inverse=True)
        place[left] = there + len(names)
        names += others.tolist()
    found, order = np.unique(np.array(names, values.dtype), return_inverse=True)
    return found, order.astype(np.int64)[place]


def rows_of(array: AnyArray | StoredArray, rows: IntArray) -> AnyArray:
    """Takes rows, by number and ascending, of an array in memory or in a file."""
    if isinstance(array, np.ndarray):
        return array[rows]
    if rows.size and rows[-1] - rows[0] == rows.size - 1:
        return array.between(int(rows[0]), int(rows[-1]) + 1)
    found: AnyArray = array.whole()[rows]
    return found


def whole_of(array: AnyArray | StoredArray) -> AnyArray:
    """Takes all rows of an array in memory or in a file."""
    return array if isinstance(array, np.ndarray) else array.whole()


def column_values(values: AnyArray) -> AnyArray:
    """Takes a column as numbers or text; an object that is None, NaN or NA is an empty cell."""
    if values.dtype.kind != "O":
        return values
    # Asked for by name: NA of pandas equals nothing, and is not comparable.
    empty = [
        one is None or (not isinstance(one, str) and str(one) in ("nan", "<NA>")) for one in values
    ]
    cells = list(zip(values, empty, strict=True))
    if all(blank or isinstance(one, int | float | np.number | np.bool_) for one, blank in cells):
        return np.array([np.nan if blank else float(one) for one, blank in cells], np.float64)
    return np.array(["" if blank else str(one) for one, blank in cells], np.str_)


class ParquetColumn:
    """A column of a Parquet file."""

    def __init__(self, file: parquet.ParquetFile, reading: Reading, name: str) -> None:
        self._file, self._reading, self._name = file, reading, name
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        # Rows that are decoded: where they begin, and where they end.
        self._held: list[pyarrow.Array] = []
        self._begin = self._end = 0
        self._last: tuple[tuple[int, int], AnyArray] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (int(self._file.metadata.num_rows),)

    def between(self, first: int, end: int) -> AnyArray:
        if end - first > PORTION:
            return self.whole()[first:end]
        if self._last is not None and self._last[0] == (first, end):
            return self._last[1]
        from pyarrow import chunked_array

        with self._reading():
            if first < self._begin or self._end == 0:
                self._batches = self._file.iter_batches(
                    PORTION, columns=[self._name], use_threads=False
                )
                self._held, self._begin, self._end = [], 0, 0
            while self._end < end:
                column = next(self._batches).column(0)
                self._held.append(column)
                self._end += len(column)
                while self._held and self._begin + len(self._held[0]) <= first:
                    self._begin += len(self._held.pop(0))
            held = chunked_array(self._held).slice(first - self._begin, end - first)
            found = column_values(held.to_numpy())
        self._last = (first, end), found
        return found

    def whole(self) -> AnyArray:
        with self._reading():
            table = self._file.read(columns=[self._name], use_threads=False)
            if self._is_text:
                names, place = self._text(table.column(0))
                return names[place]
            found = column_values(table.column(0).to_numpy())
        del table
        give_back()
        return found

    def coded(self) -> tuple[AnyArray, IntArray]:
        if not self._is_text:
            return values_and_places(self.whole())
        with self._reading():
            table = self._file.read(columns=[self._name], use_threads=False)
            found = self._text(table.column(0))
        del table
        give_back()
        return found

    @property
    def _is_text(self) -> bool:
        from pyarrow import types

        kind = self._file.schema_arrow.field(self._name).type
        return bool(types.is_string(kind) or types.is_large_string(kind))

    @staticmethod
    def _text(column: pyarrow.ChunkedArray) -> tuple[AnyArray, IntArray]:
        """Finds the different texts of a column and their places; without a Python text a row."""
        chunks = column.fill_null("").dictionary_encode().unify_dictionaries().chunks
        if not chunks:
            return np.zeros(0, np.str_), np.zeros(0, np.int64)
        names = np.array(chunks[0].dictionary.to_pylist(), np.str_)
        found, order = np.unique(names, return_inverse=True)
        places = [order[chunk.indices.to_numpy(zero_copy_only=False)] for chunk in chunks]
        return found, np.concatenate(places).astype(np.int64, copy=False)


def give_back() -> None:
    """Gives the system the memory that Arrow has freed, and keeps for itself otherwise."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()


class Reading(Protocol):
    """Makes a context that says of which file an error is."""

    def __call__(self) -> contextlib.AbstractContextManager[None]: ...


def parquet_columns(path: Path, reading: Reading) -> dict[str, StoredArray]:
    """Opens the columns of a Parquet file, by name; pyarrow must be there."""
    parquet = import_module("pyarrow.parquet")
    with reading():
        path.open("rb").close()  # for the words of the system where it cannot be opened
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
        return {name: ParquetColumn(file, reading, name) for name in file.schema_arrow.names}


class ArchiveArray:
    """An array of a NumPy archive, in C order and without objects."""

    def __init__(
        self,
        path: Path,
        member: str,
        reading: Reading,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._path, self._member, self._reading = path, member, reading
        self._row = dtype.itemsize * math.prod(shape[1:])
        self._archive: zipfile.ZipFile | None = None
        self._file: IO[bytes] | None = None
        self._at = 0

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._archive is not None and self._file is not None:
            self._file.close()
            self._archive.close()
        self._archive = self._file = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def between(self, first: int, end: int) -> AnyArray:
        with self._reading():
            if self._file is None or first < self._at:
                # It is closed with the last reference to it.
                archive = zipfile.ZipFile(self._path)
                self._file, self._at = archive.open(self._member), 0
                _header(self._file)
            _read(self._file, (first - self._at) * self._row)
            data = _read(self._file, (end - first) * self._row)
            self._at = end
            if end == self.shape[0]:
                self._close()
        return np.frombuffer(data, self.dtype).reshape(end - first, *self.shape[1:])

    def whole(self) -> AnyArray:
        return self.between(0, self.shape[0])

    def coded(self) -> tuple[AnyArray, IntArray]:
        return values_and_places(self.whole())


def _read(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]] | None:
    """Reads past the header: shape, whether in Fortran's order, type; None if of a new version."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file) if version == (2, 0) else None


def archive_array(
    archive: np.lib.npyio.NpzFile, members: zipfile.ZipFile, path: Path, name: str, reading: Reading
) -> AnyArray | ArchiveArray:
    """Opens an array of an archive; a small one, or one of an unusual form, is read at once."""
    member = name if name in members.namelist() else f"{name}.npy"
    if members.getinfo(member).file_size > _SMALL:
        with members.open(member) as file, contextlib.suppress(ValueError):
            header = _header(file)
            if header is not None and not header[1] and not header[2].hasobject and header[0]:
                return ArchiveArray(path, member, reading, header[0], header[2])
    found: AnyArray = archive[name]
    return found
