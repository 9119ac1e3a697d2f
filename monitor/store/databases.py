"""SQLite databases as files: how they are opened, and what their errors mean."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

# Codes of SQLite by which a file is not what it should be, and those of a full disk.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
_SHORT_READ = 522  # SQLITE_IOERR_SHORT_READ: it ends before its end
# How errors of SQL begin where the file has not the tables that it was begun with.
_OTHER_TABLES = ("no such ", "table ", "unsupported file format")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class LedgerFailed(OSError):
    """The ledger could not be read or written; `full`: for want of room. It may be later."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        remedy = "Free some of the disk." if full else "Is the folder there, ours, and writable?"
        super().__init__(f"{message} {remedy}")
        self.full = full


class UnusableFile(ValueError):
    """A file of the state cannot be used: it is damaged, not ours, or of another version.

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


def set_aside(path: Path, suffix: str) -> str:
    """Renames a database with its journals, without which it would be another one.

    suffix   "corrupt", "incompatible" where another version or configuration can use it, or
             "unreadable" where the disk does not give it
    returns  what became of it, as a sentence
    """
    aside = path.with_name(f"{path.name}.{suffix}")
    try:
        if not path.is_file():  # a folder is not ours to move
            return f"{path} is left where it is."
        for part in ("-wal", "-journal"):
            try:
                beside(path, part).replace(beside(aside, part))
            except FileNotFoundError:
                beside(aside, part).unlink(missing_ok=True)
        path.replace(aside)
        beside(path, "-shm").unlink(missing_ok=True)
    except OSError as error:
        return f"It cannot be kept as {aside.name} ({error.strerror})."
    return f"It is kept as {aside.name}."


def _code(error: sqlite3.Error) -> int:
    """Returns the code of SQLite: the lowest byte is the kind, the rest the details."""
    return getattr(error, "sqlite_errorcode", None) or 0


def is_damage(error: sqlite3.Error) -> bool:
    """Tells whether the file is not what it should be; else the disk or another process is."""
    code = _code(error)
    other = code & 0xFF == sqlite3.SQLITE_ERROR and str(error).startswith(_OTHER_TABLES)
    return code & 0xFF in _DAMAGED or code == _SHORT_READ or other


@contextlib.contextmanager
def failures(path: Path) -> Iterator[None]:
    """Raises errors of SQLite and of the system as UnusableFile or LedgerFailed."""
    try:
        yield
    except sqlite3.Error as error:
        said = f"{path}: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
        if is_damage(error):
            raise UnusableFile(f"{said}.") from error
        raise LedgerFailed(f"{said}.", full=_code(error) & 0xFF == sqlite3.SQLITE_FULL) from error
    except LedgerFailed:
        raise
    except OSError as error:
        full = error.errno in _NO_ROOM
        raise LedgerFailed(f"{path}: {error.strerror or error}.", full=full) from error


def connected(path: Path, mode: str, patience: float = 1.0) -> sqlite3.Connection:
    """Opens a file that is there; what a killed writer has begun is rolled back.

    mode  "rw" to write; "ro" to read; "alone" to read on a disk that takes nothing, while nobody
          else has the file open: the index of the WAL is then in memory
    patience  s that a lock of another process is waited for
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if mode == 'ro' else 'rw'}",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
    )
    # What is no text does not fit its CRC, which says it better.
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    if mode == "alone":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    return connection
