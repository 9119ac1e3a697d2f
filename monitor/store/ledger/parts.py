"""Rows, names and errors of the ledger's files."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

_FIXED = struct.Struct("<qqq?")


class StoreFailed(OSError):
    """Nothing of it could be written now. It may be later.

    reason  "full", "taken", or "failed"
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DamagedPartition(ValueError):
    """A file is no partition, or not as it was written."""


class OtherPartition(ValueError):
    """A file that a later version of the monitor wrote."""


@dataclass(frozen=True, slots=True)
class Row:
    """A frame, or labels of one.

    number  a stamp (None where there is none) of a frame, a revision of labels
    """

    stream: str
    frame_id: int
    sequence: int
    number: int | None
    body: bytes

    @property
    def crc(self) -> int:
        """Over all of it."""
        number = 0 if self.number is None else self.number
        fixed = _FIXED.pack(signed(self.frame_id), self.sequence, number, self.number is None)
        return zlib.crc32(self.body, zlib.crc32(self.stream.encode(), zlib.crc32(fixed)))


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that one transaction writes.

    absent  frames that are written only where there is none with their name
    """

    frames: list[Row] = field(default_factory=list)
    labels: list[Row] = field(default_factory=list)
    absent: list[Row] = field(default_factory=list)


def mark_of(path: Path) -> tuple[int, int] | None:
    """Identifies a file among others of the same name; None where there is none."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if path.is_file() and not path.is_symlink() else None


def beside(path: Path, suffix: str) -> Path:
    """A file that SQLite keeps beside its own: "-wal" or "-shm"."""
    return path.with_name(f"{path.name}{suffix}")


def signed(number: int) -> int:
    """64 bits without a sign as SQLite holds them: with one."""
    return number - (1 << 64) if number >= 1 << 63 else number
