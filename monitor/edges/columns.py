"""Named columns of a recorded file, as text or numbers, and the errors that say where they fail.

Opening files lives in tables.py and files.py; what the columns mean, in files.py and labels.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from monitor.calibration.space import BoolArray, FloatArray, IntArray

AnyArray = npt.NDArray[Any]
T = TypeVar("T")


class RecordingError(ValueError):
    """A recorded file, or what was asked of it, makes no sense; the message says what to do."""


class Columns(Protocol):
    """The columns of a file; rows are chosen by their number in the file, (M,).

    path   for messages
    count  rows in the file
    names  columns there are, in file order
    """

    path: Path
    count: int
    names: tuple[str, ...]

    def values(self, name: str) -> AnyArray:
        """The whole column, (count,): text, or whatever the file holds."""

    def floats(self, name: str, rows: IntArray, blank: float | None = None) -> FloatArray:
        """(M,); `blank` stands in for an empty cell, None refuses it."""

    def integers(self, name: str, rows: IntArray, blank: int | None = None) -> IntArray:
        """(M,); `blank` stands in for an empty cell or NaN, None refuses it."""

    def flags(self, name: str, rows: IntArray) -> BoolArray:
        """(M,) of 0 or 1, false or true; an empty cell is false."""


def require(columns: Columns, name: str) -> None:
    """Raise RecordingError unless the column is there."""
    if name not in columns.names:
        raise RecordingError(
            f"{columns.path}: there is no column {name!r}. "
            f"Columns there are: {', '.join(columns.names) or 'none'}."
        )


def coded(columns: Columns, name: str, otherwise: str) -> tuple[tuple[str, ...], IntArray]:
    """Different values of a column, sorted, as text; and which of them each row of the file has.

    A file without the column has one value, `otherwise`.
    """
    if name not in columns.names:
        return (otherwise,), np.zeros(columns.count, np.int64)
    values, index = np.unique(columns.values(name), return_inverse=True)
    return tuple(values.astype(np.str_).tolist()), index.astype(np.int64)


class TextColumns:
    """Cells of a CSV file, parsed only when asked for.

    cells  those of each column
    lines  line of the file on which each row ends, for messages
    """

    def __init__(self, path: Path, cells: dict[str, list[str]], lines: list[int]) -> None:
        self.path = path
        self.count = len(lines)
        self.names = tuple(cells)
        self._all = cells
        self._lines = lines

    def place(self, row: int) -> str:
        """File and line of a row, to begin a message with."""
        return f"{self.path}, line {self._lines[row]}"

    def _cells(self, name: str, rows: IntArray) -> list[str]:
        require(self, name)
        cells = self._all[name]
        return cells if rows.size == self.count else [cells[row] for row in rows.tolist()]

    def values(self, name: str) -> AnyArray:
        require(self, name)
        return np.array(self._all[name], dtype=np.str_)

    def floats(self, name: str, rows: IntArray, blank: float | None = None) -> FloatArray:
        cells = self._cells(name, rows)
        return np.array(self._parsed(cells, rows, name, float, blank, "a number"), np.float64)

    def integers(self, name: str, rows: IntArray, blank: int | None = None) -> IntArray:
        cells = self._cells(name, rows)
        wanted = "a whole number of 64 bits"
        return np.array(self._parsed(cells, rows, name, _integer, blank, wanted), np.int64)

    def flags(self, name: str, rows: IntArray) -> BoolArray:
        cells = self._cells(name, rows)
        return np.array(self._parsed(cells, rows, name, _flag, False, "0 or 1"), np.bool_)

    def _parsed(
        self,
        cells: list[str],
        rows: IntArray,
        name: str,
        parse: Callable[[str], T],
        blank: T | None,
        wanted: str,
    ) -> list[T]:
        try:
            if blank is None:
                return [parse(cell) for cell in cells]
            return [parse(cell) if cell else blank for cell in cells]
        except (ValueError, OverflowError):
            # Only now look for the culprit: nearly all files are sound.
            row, cell = next(
                (row, cell)
                for row, cell in zip(rows.tolist(), cells, strict=True)
                if not (_parses(parse, cell) or (blank is not None and not cell))
            )
        raise RecordingError(
            f"{self.place(row)}: {name} is {cell!r}, not {wanted}. "
            "Correct the cell or leave the row out."
        )


def _parses(parse: Callable[[str], T], cell: str) -> bool:
    try:
        parse(cell)
    except (ValueError, OverflowError):
        return False
    return True


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
    if word in ("0", "0.0", "false"):
        return False
    if word in ("1", "1.0", "true"):
        return True
    raise ValueError


class ArrayColumns:
    """Arrays of one value a row from a NumPy archive."""

    def __init__(self, path: Path, count: int, arrays: dict[str, AnyArray]) -> None:
        self.path = path
        self.count = count
        self.names = tuple(arrays)
        self._arrays = arrays

    def values(self, name: str) -> AnyArray:
        require(self, name)
        return self._arrays[name]

    def floats(self, name: str, rows: IntArray, blank: float | None = None) -> FloatArray:
        values = self._numbers(name)[rows]
        return values.astype(np.float64)

    def integers(self, name: str, rows: IntArray, blank: int | None = None) -> IntArray:
        values = self._numbers(name)[rows]
        if values.dtype.kind == "f":
            if blank is not None:
                values = np.where(np.isnan(values), blank, values)
            bad = np.flatnonzero(~(np.abs(values) < 2.0**63) | (np.trunc(values) != values))
        else:
            bad = np.flatnonzero(values > np.iinfo(np.int64).max)
        if bad.size:
            raise RecordingError(
                f"{self.path}: {name}[{rows[bad[0]]}] is {values[bad[0]]}, not a whole number of "
                "64 bits. Correct the array."
            )
        return values.astype(np.int64)

    def flags(self, name: str, rows: IntArray) -> BoolArray:
        values = self._numbers(name)[rows]
        bad = np.flatnonzero((values != 0) & (values != 1))
        if bad.size:
            raise RecordingError(
                f"{self.path}: {name}[{rows[bad[0]]}] is {values[bad[0]]}, not 0 or 1. "
                "Correct the array."
            )
        return values.astype(np.bool_)

    def _numbers(self, name: str) -> AnyArray:
        values = self.values(name)
        if values.dtype.kind not in "fiub":
            raise RecordingError(
                f"{self.path}: array {name!r} holds {values.dtype}, not numbers. "
                "Save it as integers or floats."
            )
        return values
