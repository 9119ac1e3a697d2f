"""The history of recalibrators on disk: one record a line, each with the CRC-32 of its own text.

Lines are appended and synced, and never changed. What a killed writer left of a line is cut off;
a line that has been damaged since is left out, and said, and harms no other one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monitor.edges.snapshot import is_regular, private, sync_folder
from monitor.promotion.record_json import InvalidRecord, from_line, to_line
from monitor.promotion.records import Record

# Bytes of one of the two files: 5,000 records with evidence and the factors of three dimensions,
# 12,000 of a few words. So much is kept at least, and up to twice as much.
LARGEST = 4 * 2**20

# What ends the object of a line: the CRC-32, in hexadecimal digits, of all that stands before.
_MARK = b',"crc32":"'
# Lines that are named in a message.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class History:
    """What was found at start.

    records     in order
    complaints  what was left out, and why
    """

    records: tuple[Record, ...]
    complaints: tuple[str, ...]


@dataclass(slots=True)
class AuditLog:
    """A file of one process, and the older one that it took the place of when it was full.

    largest  bytes of either
    """

    path: Path
    largest: int = LARGEST
    # Where the last whole line ends; None where that is not known.
    _end: int | None = field(default=None, init=False)

    @property
    def older(self) -> Path:
        """What came before."""
        return self.path.with_name(f"{self.path.name}.1")

    def read(self) -> History:
        """All that is there; to be called by who has the lock. Raises OSError."""
        records: list[Record] = []
        complaints: list[str] = []
        for path in (self.older, self.path):
            if is_regular(path):
                found = _read(path.read_bytes(), path)
                records += found.records
                complaints += found.complaints
        return History(tuple(records), tuple(complaints))

    def append(self, records: Sequence[Record]) -> None:
        """Write at the end, and sync. Raises OSError: then they are to be appended again."""
        lines = b"".join(_line(record) for record in records)
        if self._end is None:
            self._end = self._whole_lines()
        if self._end and self._end + len(lines) > self.largest:
            os.truncate(self.path, self._end)
            self.path.replace(self.older)
            self._end = 0
        is_new = not is_regular(self.path)
        with open(self.path, "ab", opener=private) as file:
            # What a writer began and did not finish, this one or one before, is no part of it.
            file.truncate(self._end)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path.parent)
        self._end += len(lines)

    def _whole_lines(self) -> int:
        if not is_regular(self.path):
            return 0
        return self.path.read_bytes().rfind(b"\n") + 1


def _line(record: Record) -> bytes:
    text = to_line(record).encode("ascii").removesuffix(b"}")
    return b'%b%b%08x"}\n' % (text, _MARK, zlib.crc32(text))


def _record(line: bytes) -> Record:
    """Raises InvalidRecord."""
    text, mark, crc = line.rpartition(_MARK)
    if not mark or crc != b'%08x"}' % zlib.crc32(text):
        raise InvalidRecord("its text is not what its crc32 was made of.")
    return from_line(line)


def _read(data: bytes, path: Path) -> History:
    *lines, rest = data.split(b"\n")
    records: list[Record] = []
    damaged: list[tuple[int, InvalidRecord]] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_record(line))
        except InvalidRecord as error:
            damaged.append((number, error))
    complaints = []
    if damaged:
        numbers = ", ".join(str(number) for number, _ in damaged[:_MOST_NAMED])
        more = f" and {len(damaged) - _MOST_NAMED} more" if len(damaged) > _MOST_NAMED else ""
        complaints.append(
            f"{path}: {len(damaged)} of {len(lines)} lines are left out (line {numbers}{more}): "
            f"{damaged[0][1]} They stay in the file; nothing else is lost."
        )
    if rest:
        complaints.append(
            f"{path}: {len(rest)} bytes of a line that was never finished are no record, and "
            f"are cut off by the next one: {rest[:80]!r}."
        )
    return History(tuple(records), tuple(complaints))
