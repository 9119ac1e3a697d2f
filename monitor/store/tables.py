"""Tables as named columns of text or numbers, and when and of what each of their rows is.

Errors say in which file, row and column they are. The meaning of other columns lives in
recordings.py and labels.py.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Protocol, TextIO, TypeVar, cast
from zipfile import BadZipFile

import numpy as np

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.store.column_names import listed, nearest, offered
from monitor.store.stored_arrays import (
    AnyArray,
    ArchiveArray,
    StoredArray,
    rows_of,
    values_and_places,
    whole_of,
)

T = TypeVar("T")


# Number of a track in a row that has none.
NO_TRACK = -1


class RecordingError(ValueError):
    """A recorded file, or what was asked of it, makes no sense; the message says what to do."""


# A box seen from above where the format does not say otherwise: centre, length, width, heading.
BOX: tuple[str, ...] = ("x", "y", "l", "w", "yaw")


class Columns(Protocol):
    """The columns of a file; rows are chosen by their number in the file, (M,), ascending.

    path   for messages
    count  rows in the file
    names  columns there are, in file order
    box    names of a box seen from above: centre, length, width, heading, as bev-iou takes them
    dimensions  what a detection of the format measures; empty where columns do not tell
    """

    path: Path
    count: int
    names: tuple[str, ...]
    box: tuple[str, ...]
    dimensions: tuple[str, ...]

    def values(self, name: str) -> AnyArray:
        """The whole column, (count,): text, or whatever the file holds."""

    def coded(self, name: str) -> tuple[AnyArray, IntArray]:
        """The different values of the whole column, ascending, and which each row has."""

    def floats(self, name: str, rows: IntArray, blank: float | None = None) -> FloatArray:
        """(M,); `blank` stands in for an empty cell, None refuses it."""

    def integers(self, name: str, rows: IntArray, blank: int | None = None) -> IntArray:
        """(M,); `blank` stands in for an empty cell or NaN, None refuses it."""

    def flags(self, name: str, rows: IntArray) -> BoolArray:
        """(M,) of 0 or 1, false or true; an empty cell is false."""

    def blank(self, name: str, rows: IntArray) -> BoolArray:
        """(M,) which cells hold nothing: empty text, NaN."""


def require(columns: Columns, name: str) -> None:
    """Raises RecordingError unless the column is there."""
    if name not in columns.names:
        raise no_column(columns.path, name, columns.names)


def no_column(path: Path, name: str, there: Sequence[str]) -> RecordingError:
    """Makes the error for a column that is not there, with the name that may be meant."""
    guess = offered(there)
    near = nearest(name, [one for one in there if not one.startswith(_PARTS)])
    instead = f" Did you mean {near!r}?" if near else ""
    meant = f"{instead} Give {guess}." if guess else instead
    return RecordingError(
        f"{path}: there is no column {name!r}.{meant} Columns there are: {listed(there)}."
    )


# Begins of the names of columns that are parts of a dimension.
_PARTS = ("var_", "std_", "cov_", "gt_")


def renamed(path: Path, columns: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Gives columns the names that are used here.

    names   of this project → of the file
    raises  RecordingError where the file has no such column, or has both
    """
    for ours, theirs in names.items():
        if theirs not in columns:
            raise RecordingError(
                f"{path}: --map {ours}={theirs}: there is no column {theirs!r}. "
                f"Columns there are: {listed(tuple(columns))}."
            )
        if ours in columns and ours not in names.values():
            raise RecordingError(
                f"{path}: --map {ours}={theirs}: the file has a column {ours!r} too. Map that to "
                f"another name, or leave this out."
            )
    ours_of = {theirs: ours for ours, theirs in names.items()}
    return {ours_of.get(name, name): values for name, values in columns.items()}


def check_shape(
    path: Path, name: str, array: AnyArray | StoredArray, shape: tuple[int, ...], but: str
) -> None:
    """Raises RecordingError unless an array has the shape that others ask for, which `but` says."""
    if array.shape != shape:
        raise RecordingError(
            f"{path}: {name} has shape {array.shape}, but {but}. Save {name} as {list(shape)}."
        )


def check_numbers(path: Path, name: str, array: AnyArray | ArchiveArray) -> None:
    """Raises RecordingError unless an array holds numbers."""
    if array.dtype.kind not in "fiu":
        raise RecordingError(
            f"{path}: array {name!r} holds {array.dtype}, not numbers. Save it as floats."
        )


def asked_rows(rows: slice) -> str:
    """Names the rows asked for, for messages."""
    return f"rows {rows.start or 0}:{'' if rows.stop is None else rows.stop}"


def coded(columns: Columns, name: str, otherwise: str) -> tuple[tuple[str, ...], IntArray]:
    """Different values of a column, sorted, as text; and which of them each row of the file has.

    A file without the column has one value, `otherwise`.
    """
    if name not in columns.names:
        return (otherwise,), all_of_one(columns.count)
    values, index = columns.coded(name)
    return tuple(values.astype(np.str_).tolist()), index


def all_of_one(rows: int) -> IntArray:
    """(n,) of 0, read-only and without memory: the position of each row where there is but one."""
    return np.broadcast_to(np.int64(0), rows)


class TextColumns:
    """Cells of a CSV file, parsed only when asked for.

    cells  those of each column
    lines  line of the file on which each row ends, for messages
    """

    def __init__(self, path: Path, cells: dict[str, list[str]], lines: list[int]) -> None:
        self.path = path
        self.count = len(lines)
        self.names = tuple(cells)
        self.box = BOX
        self.dimensions: tuple[str, ...] = ()
        self._all = cells
        self._lines = lines

    def place(self, row: int) -> str:
        """File and line of a row, to begin a message with."""
        return f"{self.path}, line {self._lines[row]}"

    def values(self, name: str) -> AnyArray:
        require(self, name)
        return np.array(self._all[name], dtype=np.str_)

    def coded(self, name: str) -> tuple[AnyArray, IntArray]:
        require(self, name)
        names = sorted(set(self._all[name]))
        place = {value: i for i, value in enumerate(names)}
        return np.array(names, np.str_), np.array([place[one] for one in self._all[name]], np.int64)

    def floats(self, name: str, rows: IntArray, blank: float | None = None) -> FloatArray:
        return np.array(self._parsed(name, rows, float, blank, "a number"), np.float64)

    def integers(self, name: str, rows: IntArray, blank: int | None = None) -> IntArray:
        wanted = "a whole number of 64 bits"
        return np.array(self._parsed(name, rows, _integer, blank, wanted), np.int64)

    def flags(self, name: str, rows: IntArray) -> BoolArray:
        return np.array(self._parsed(name, rows, _flag, False, "0 or 1"), np.bool_)

    def blank(self, name: str, rows: IntArray) -> BoolArray:
        return np.array([not cell for cell in self._cells(name, rows)], bool)

    def _cells(self, name: str, rows: IntArray) -> list[str]:
        require(self, name)
        cells = self._all[name]
        if rows.size == self.count:
            return cells
        if rows.size and rows[-1] - rows[0] == rows.size - 1:
            return cells[rows[0] : rows[-1] + 1]
        return [cells[row] for row in rows.tolist()]

    def _parsed(
        self, name: str, rows: IntArray, parse: Callable[[str], T], blank: T | None, wanted: str
    ) -> list[T]:
        cells = self._cells(name, rows)
        parsed: list[T] = []
        try:
            for cell in cells:
                parsed.append(blank if blank is not None and not cell else parse(cell))
            return parsed
        except (ValueError, OverflowError):
            at = len(parsed)
        remedy = "Correct the cell, empty it where there is no ground truth, or leave the row out."
        if name == "track":
            remedy = "Name the column gt_id, which may hold any text."
        if re.fullmatch(r"-?\d+,\d+", cells[at]):
            remedy = "Write decimal points in place of commas."
        raise RecordingError(
            f"{self.place(int(rows[at]))}: {name} is {cells[at][:60]!r}, not {wanted}. {remedy}"
        )


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


def _integer(text: str) -> int:
    """Whole number; '3.0' is one, since tables with gaps are often written as floats."""
    try:
        value = int(text)
    except ValueError:
        number = float(text)
        value = int(number)
        if value != number:
            raise
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


def _flag(text: str) -> bool:
    """Truth value; '1.0' is one, for the same reason."""
    word = text.lower()
    if word not in ("0", "0.0", "false", "1", "1.0", "true"):
        raise ValueError
    return word in ("1", "1.0", "true")


class ArrayColumns:
    """Arrays of one value a row, in memory or in a file."""

    def __init__(
        self,
        path: Path,
        count: int,
        arrays: Mapping[str, AnyArray | StoredArray],
        box: tuple[str, ...] = BOX,
        dimensions: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.count = count
        self.names = tuple(arrays)
        self.box = box
        self.dimensions = dimensions
        self._arrays = arrays

    def values(self, name: str) -> AnyArray:
        require(self, name)
        return whole_of(self._arrays[name])

    def coded(self, name: str) -> tuple[AnyArray, IntArray]:
        require(self, name)
        found = self._arrays[name]
        return values_and_places(found) if isinstance(found, np.ndarray) else found.coded()

    def floats(self, name: str, rows: IntArray, blank: float | None = None) -> FloatArray:
        return self._numbers(name, rows).astype(np.float64)

    def integers(self, name: str, rows: IntArray, blank: int | None = None) -> IntArray:
        values = self._numbers(name, rows)
        if values.dtype.kind == "f":
            if blank is not None:
                values = np.where(np.isnan(values), blank, values)
            bad = ~(np.abs(values) < 2.0**63) | (np.trunc(values) != values)
        else:
            bad = values > np.iinfo(np.int64).max
        self._refuse(name, rows, values, bad, "a whole number of 64 bits")
        return values.astype(np.int64)

    def flags(self, name: str, rows: IntArray) -> BoolArray:
        values = self._numbers(name, rows)
        values = np.where(np.isnan(values), 0, values)
        self._refuse(name, rows, values, (values != 0) & (values != 1), "0 or 1")
        return values.astype(np.bool_)

    def blank(self, name: str, rows: IntArray) -> BoolArray:
        require(self, name)
        values = rows_of(self._arrays[name], rows)
        if values.dtype.kind == "f":
            return np.isnan(values)
        return np.asarray(values == "") if values.dtype.kind == "U" else np.zeros(rows.size, bool)

    def _refuse(
        self, name: str, rows: IntArray, values: AnyArray, bad: BoolArray, wanted: str
    ) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            raise RecordingError(
                f"{self.path}: {name}[{rows[at]}] is {values[at]}, not {wanted}. Correct the array."
            )

    def _numbers(self, name: str, rows: IntArray) -> AnyArray:
        require(self, name)
        values = rows_of(self._arrays[name], rows)
        if values.dtype.kind not in "fiub":
            raise RecordingError(
                f"{self.path}: array {name!r} holds {values.dtype}, not numbers. "
                "Save it as integers or floats."
            )
        return values


# How the name of a table ends.
SUFFIXES = (".csv", ".csv.gz")

# Rows of a file that are turned into columns at a time.
_PIECE = 512


# What libraries raise for a file that is not what its name says, in words that say what to do.
_DAMAGE: Mapping[type[Exception], str] = {
    UnicodeDecodeError: "it is no text in UTF-8, but binary or of another encoding",
    BadZipFile: "it is no archive of NumPy, or is damaged",
    gzip.BadGzipFile: "its name ends in .gz, but it is not packed by gzip, or is damaged",
    EOFError: "it is cut off: copy or write it again",
    zlib.error: "it is damaged: copy or write it again",
}


@contextlib.contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Raises RecordingError where a file cannot be read."""
    try:
        yield
    except RecordingError:
        raise
    except (
        *(OSError, EOFError, ValueError, csv.Error, zlib.error, BadZipFile),
        *(RecursionError, MemoryError, OverflowError),  # of a file that is broken, or hostile
    ) as error:
        why: object = error
        if isinstance(error, OSError) and error.strerror:
            why, remedy = error.strerror, "Check the path, and who may read it."
        for kinds, words in _DAMAGE.items():
            if isinstance(error, kinds):
                why = words
        raise RecordingError(f"{path}: cannot be read ({why}). {remedy}") from error


def open_bytes(path: Path) -> IO[bytes]:
    """Opens a file for its bytes."""
    return path.open("rb")


def read_table(
    path: Path,
    names_here: Mapping[str, str] | None = None,
    opened: Callable[[Path], IO[bytes]] = open_bytes,
) -> TextColumns:
    """Reads the columns of a file that begins with their names.

    Commas separate them; semicolons or tabs do where the header has no comma. Blanks after a
    separator are no part of a cell.

    names_here  as in renamed
    opened      opens the file for its bytes; who waits for them may be told how many there were
    raises      RecordingError
    """
    lines: list[int] = []
    with (
        reading(path, "Give a readable file of comma-separated values."),
        _unpacked(path, opened) as data,
        io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text,
    ):
        rows = _rows(path, text, lines)
        names = next(rows, [])
        if not names:
            raise RecordingError(
                f"{path}: the file is empty. Begin it with a line of column names; "
                "`calibration-monitor sample` writes an example."
            )
        if all(_is_number(name) for name in names):
            raise RecordingError(
                f"{path}: the first line is {', '.join(names[:8])}, and no header. Begin the file "
                "with a line of column names; `calibration-monitor sample` writes an example."
            )
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise RecordingError(f"{path}: column {twice[0]!r} appears twice. Rename one of them.")
        cells: list[list[str]] = [[] for _ in names]
        # Turned from rows into columns a piece at a time, while the piece is in the cache.
        while piece := list(islice(rows, _PIECE)):
            for column, part in zip(cells, zip(*piece, strict=True), strict=True):
                column.extend(part)
    columns = renamed(path, dict(zip(names, cells, strict=True)), names_here or {})
    return TextColumns(path, columns, lines)


@contextlib.contextmanager
def _unpacked(path: Path, opened: Callable[[Path], IO[bytes]]) -> Iterator[IO[bytes]]:
    """Yields the bytes of a file, unpacked if they are packed; - is standard input."""
    if path.name == "-":
        yield sys.stdin.buffer
        return
    with opened(path) as data:
        if not path.name.endswith(".gz"):
            yield data
            return
        with gzip.open(data) as unpacked:
            yield cast(IO[bytes], unpacked)


def _rows(path: Path, text: TextIO, lines: list[int]) -> Iterator[list[str]]:
    """The header, then the rows; notes on which line each of the rows ends."""
    head = text.readline()
    separator = "," if "," in head else next((one for one in ";\t" if one in head), ",")
    reader = csv.reader(chain([head], text), delimiter=separator, skipinitialspace=True)
    names = [name.strip() for name in next(reader, [])]
    yield names
    for row in reader:
        if not row:
            continue
        if len(row) != len(names):
            raise RecordingError(
                f"{path}, line {reader.line_num}: {len(row)} cells, but the header names "
                f"{len(names)} columns. Complete the row or leave it out."
            )
        lines.append(reader.line_num)
        yield row


# s; nanoseconds of a later time do not fit into 64 bits.
_MOST_SECONDS = 9e9

# Of a second, by the ending of the name of a column.
_ENDINGS = {"_ms": 10**3, "_us": 10**6, "_µs": 10**6, "_ns": 10**9}
_UNITS = {1: "s", 10**3: "ms", 10**6: "µs", 10**9: "ns"}


def seconds_of(
    columns: Columns, chosen: IntArray, names_here: Mapping[str, str]
) -> tuple[FloatArray | None, str]:
    """Reads (M,) column t in seconds, and says which unit it was converted from; None without.

    The unit is that of the ending of the column's name in the file. Without such an ending, times
    that would be later than the year 2255 are of the smaller unit that makes them earlier.

    Raises RecordingError.
    """
    if "t" not in columns.names:
        return None, ""
    times, named = columns.floats("t", chosen), names_here.get("t", "t")
    largest = float(np.abs(times[np.isfinite(times)]).max(initial=0.0))
    of_name = _ENDINGS.get(named.lower()[-3:])
    units = (of_name,) if of_name else tuple(_UNITS)
    unit = next((one for one in units if largest <= _MOST_SECONDS * one), None)
    if unit is None:
        raise RecordingError(
            f"{columns.path}: {named} is {largest:g}, which is no time in "
            f"{' or '.join(_UNITS[one] for one in units)}. Correct the column, or map another one "
            "to t."
        )
    return times / unit, _converted(named, unit, 1, largest)


def stamps_of(
    columns: Columns, chosen: IntArray, names_here: Mapping[str, str]
) -> tuple[IntArray | None, str]:
    """Reads (M,) column stamp_ns in ns, as seconds_of does; but only a name tells another unit."""
    if "stamp_ns" not in columns.names:
        return None, ""
    stamps, named = columns.integers("stamp_ns", chosen), names_here.get("stamp_ns", "stamp_ns")
    unit = _ENDINGS.get(named.lower()[-3:], 10**9)
    largest = float(np.abs(stamps.astype(np.float64)).max(initial=0.0))
    if unit != 10**9 and largest > _MOST_SECONDS * unit:
        raise RecordingError(
            f"{columns.path}: {named} is {largest:g}, which is no time in {_UNITS[unit]}. Correct "
            "the column, or map another one to stamp_ns."
        )
    return stamps * (10**9 // unit), _converted(named, unit, 10**9, largest)


def _converted(named: str, unit: int, wanted: int, largest: float) -> str:
    if unit == wanted:
        return ""
    return (
        f"{named} is up to {largest:g} and taken as {_UNITS[unit]}: it is converted to "
        f"{_UNITS[wanted]}."
    )


# An image of a sequence: the last number of its name says which.
_IMAGE = re.compile(r"(?=.*[a-zA-Z]).*?(\d+)\D*")


def frames_of(columns: Columns, chosen: IntArray) -> IntArray:
    """(M,) frame numbers; of names such as frame_0012.png the last number, if it tells them apart.

    Raises RecordingError.
    """
    try:
        return columns.integers("frame", chosen)
    except RecordingError:
        names, index = np.unique(columns.values("frame")[chosen], return_inverse=True)
        found = [_IMAGE.fullmatch(str(name)) for name in names.tolist()]
        number = [int(one[1]) if one and len(one[1]) < 18 else -1 for one in found]
        sequence = coded(columns, "seq", "")[1][chosen]
        frame = np.array(number, np.int64)[index]
        pairs = [np.unique(np.stack([sequence, of]), axis=1).shape for of in (index, frame)]
        if -1 in number or pairs[0] != pairs[1]:
            raise
        return frame


def tracks_of(columns: Columns, chosen: IntArray) -> IntArray | None:
    """(M,) id of the true object of each row, NO_TRACK where unknown; None without such a column.

    A gt_id may be any text: where one is no whole number of 64 bits, all are names, which are
    numbered from 0 as they are sorted.

    Raises RecordingError where a track, or a gt_id of an array of numbers, is no whole number.
    """
    if "gt_id" in columns.names:
        try:
            return columns.integers("gt_id", chosen, NO_TRACK)
        except RecordingError:
            names = columns.values("gt_id")
            if names.dtype.kind != "U":
                raise
        different, number = np.unique(names[chosen], return_inverse=True)
        # The empty name comes first of all.
        return number.astype(np.int64) - int(different[0] == "")
    return columns.integers("track", chosen, NO_TRACK) if "track" in columns.names else None
