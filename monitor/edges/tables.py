"""Tables in `.csv` and `.csv.gz` files: the cells as named columns of text.

What the columns mean lives in files.py and labels.py.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

from monitor.edges.columns import RecordingError, TextColumns

# How the name of a table ends.
SUFFIXES = (".csv", ".csv.gz")
# Rows of a file that are turned into columns at a time.
_PIECE = 512


def read_table(path: Path) -> TextColumns:
    """The columns of a file that begins with their names. Raises RecordingError."""
    try:
        return _read(path)
    except RecordingError:
        raise
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise RecordingError(
            f"{path}: cannot be read ({error}). Give a readable file of comma-separated values."
        ) from error


def _read(path: Path) -> TextColumns:
    packed = path.name.endswith(".gz")
    lines: list[int] = []
    with (
        gzip.open(path, "rb") if packed else path.open("rb") as data,
        io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text,
    ):
        rows = _rows(path, text, lines)
        names = next(rows, [])
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RecordingError(f"{path}: column {twice[0]!r} appears twice. Rename one of them.")
        cells: list[list[str]] = [[] for _ in names]
        # Turned from rows into columns a piece at a time, while the piece is in the cache.
        while piece := list(islice(rows, _PIECE)):
            for column, part in zip(cells, zip(*piece, strict=True), strict=True):
                column.extend(part)
    return TextColumns(path, dict(zip(names, cells, strict=True)), lines)


def _rows(path: Path, text: TextIO, lines: list[int]) -> Iterator[list[str]]:
    """The header, then the rows; notes on which line each of the rows ends."""
    reader = csv.reader(text)
    names = next(reader, [])
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
