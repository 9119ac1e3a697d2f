"""SQLite databases as files: how they are opened, and what their errors mean."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

# Codes of SQLite by which a file is not what it should be, and those of a whole disk.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
_SHORT_READ = 522  # SQLITE_IOERR_SHORT_READ: it ends before its end
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class LedgerFailed(OSError):
    """The ledger could not be read or written; `full`: for want of room. It may be later."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        remedy = "Free some of the disk." if full else "Is the folder there, ours, and writable?"
        super().__init__(f"{message} {remedy}")
        self.full = full


class UnusableLedger(ValueError):
    """A file is no ledger, not as it was written, or of a later version.

    suffix  that it is set aside with
    """

    def __init__(self, message: str, suffix: str = "corrupt") -> None:
        super().__init__(message)
        self.suffix = suffix


def mark_of(path: Path) -> tuple[int, int] | None:
    """Identifies a file among others of the same name; None where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def beside(path: Path, suffix: str) -> Path:
    """Returns a file that SQLite keeps beside its own: "-wal" or "-shm"."""
    return path.with_name(f"{path.name}{suffix}")


def size_of(path: Path, *parts: str) -> int:
    """Returns the bytes of some files of a database; of all where none is named."""
    total = 0
    for part in parts or ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            total += beside(path, part).stat().st_size
    return total


@contextlib.contextmanager
def failures(path: Path) -> Iterator[None]:
    """Raises errors of SQLite and of the system as UnusableLedger or LedgerFailed."""
    try:
        yield
    except sqlite3.Error as error:
        # The lowest byte is the kind, the rest the details.
        extended = getattr(error, "sqlite_errorcode", None) or 0
        code = extended & 0xFF
        said = f"{path}: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
        absent = code == sqlite3.SQLITE_ERROR and str(error).startswith("no such ")
        if code in _DAMAGED or extended == _SHORT_READ or absent:
            raise UnusableLedger(f"{said}.") from error
        raise LedgerFailed(f"{said}.", full=code == sqlite3.SQLITE_FULL) from error
    except LedgerFailed:
        raise
    except OSError as error:
        full = error.errno in _NO_ROOM
        raise LedgerFailed(f"{path}: {error.strerror or error}.", full=full) from error


def connected(path: Path, mode: str) -> sqlite3.Connection:
    """Opens a file that is there.

    mode  "rw" to write; "ro" to read; "alone" to read on a disk that takes nothing, while nobody
          else has the file open: the index of the WAL is then in memory
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if mode == 'ro' else 'rw'}",
        uri=True,
        timeout=1.0,
        isolation_level=None,
        check_same_thread=False,
    )
    # What is no text does not fit its CRC, which says it better.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    if mode == "alone":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    return connection
