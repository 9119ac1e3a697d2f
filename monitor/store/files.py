"""Files and databases of one sidecar: whole or not there, and private to their owner.

A checked file is a magic number, the version of this format, the length and the CRC-32 of what
follows, and then the bytes themselves. Their meaning is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO

Run = Callable[..., sqlite3.Cursor]

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


def newer(path: Path | str, version: int, known: int) -> UnusableFile:
    """Returns what to raise for a file that a later version of the monitor wrote."""
    return UnusableFile(
        f"{path}: format {version}, but this monitor reads {known}. Update the monitor.",
        "incompatible",
    )


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


def is_damage(error: sqlite3.Error) -> bool:
    """Tells whether the file is not what it should be; else the disk or another process is."""
    code = getattr(error, "sqlite_errorcode", 0)
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
        full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        raise LedgerFailed(f"{said}.", full=full) from error
    except LedgerFailed:
        raise
    except OSError as error:
        full = error.errno in _NO_ROOM
        raise LedgerFailed(f"{path}: {error.strerror or error}.", full=full) from error


def connected(path: Path, mode: str, patience: float = 1.0) -> sqlite3.Connection:
    """Opens a file that is there; what a killed writer has begun is rolled back.

    mode  "rw" to write; "ro" to read; "alone" to read on a disk that takes nothing, while no
          other process has the file open: the index of the WAL is then in memory
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


def begin(path: Path) -> None:
    """Makes an empty file of a database, which must not be there yet."""
    # Never opened but here: to close a file that SQLite has open frees its locks.
    os.close(private(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))


def identity(run: Run) -> tuple[int, int]:
    """Reads what tells a database from others: the program that it is of, and its format."""
    application, version = (
        run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return application, version


_FORMAT = 1

# Magic, format, length, CRC-32 of the body; little-endian.
_HEAD = struct.Struct("<8sIQI")

# No two writers of a process share a temporary file, even where one was given up.
_writes = count(1)


@dataclass(frozen=True, slots=True)
class Kind:
    """Tells the checked files of one subject from others.

    magic   eight bytes
    of      the subject, in a word
    remedy  what to do where a file is of another kind
    """

    magic: bytes
    of: str
    remedy: str


STATISTICS = Kind(b"calstate", "statistics", "Name one that `export` or `merge` wrote.")


def write_body(file: BinaryIO, parts: Iterable[bytes]) -> int:
    """Writes the parts into a file that can be sought, and syncs it; returns the bytes written."""
    file.write(bytes(_HEAD.size))
    length = crc = 0
    for part in parts:
        file.write(part)
        crc = zlib.crc32(part, crc)
        length += len(part)
    # Last of all: until here, the file says of itself that it is none.
    file.seek(0)
    file.write(_HEAD.pack(STATISTICS.magic, _FORMAT, length, crc))
    file.flush()
    os.fsync(file.fileno())
    return _HEAD.size + length


def checked(parts: Iterable[bytes]) -> bytes:
    """Returns the bytes of a checked file of statistics with these parts."""
    body = b"".join(parts)
    return _HEAD.pack(STATISTICS.magic, _FORMAT, len(body), zlib.crc32(body)) + body


def read_body(path: Path, kind: Kind = STATISTICS) -> bytes:
    """Returns the bytes that were written. Raises UnusableFile, OSError."""
    is_regular(path)
    return body_of(path.read_bytes(), path, kind)


def body_of(data: bytes, path: Path | str, kind: Kind = STATISTICS) -> bytes:
    """Takes what was written out of the bytes of a checked file. Raises UnusableFile."""
    body, length, crc = beginning_of(data, path, kind)
    if len(body) != length or zlib.crc32(body) != crc:
        raise UnusableFile(
            f"{path}: {len(body)} bytes of {length}, or other ones than were written: it is torn "
            "or damaged. Use an older one."
        )
    return body


def beginning_of(data: bytes, path: Path | str, kind: Kind = STATISTICS) -> tuple[bytes, int, int]:
    """Takes what was written out of the first bytes of a checked file, which may end anywhere.

    returns  what is there of it, the length of all, and its CRC-32
    raises   UnusableFile
    """
    if len(data) < _HEAD.size or not data.startswith(kind.magic):
        raise UnusableFile(f"{path}: {len(data)} bytes, and no file of {kind.of}. {kind.remedy}")
    _, version, length, crc = _HEAD.unpack_from(data)
    if version != _FORMAT:
        raise newer(path, version, _FORMAT)
    return data[_HEAD.size :], length, crc


def is_state(file: object) -> bool:
    """Tells by its first bytes whether what a verb was given is a file of statistics."""
    if not isinstance(file, str | Path) or not Path(file).is_file():
        return False
    with Path(file).open("rb") as opened:
        return opened.read(len(STATISTICS.magic)) == STATISTICS.magic


@dataclass(slots=True)
class Claim:
    """Holds a folder for one process, from `take` to `release`; any thread may call."""

    folder: Path
    _lock: BinaryIO | None = field(default=None, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    def take(self) -> bool:
        """Makes the folder and claims it, anew where somebody has removed it meanwhile.

        returns  False where another process holds it
        raises   OSError
        """
        # The file stays: who removed it could remove one that somebody else has just locked.
        path = self.folder / "lock"
        with self._guard:
            if self._lock is not None and not self._still_there(path, self._lock):
                self.release()
            if self._lock is None:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_path(self.folder.parent)
                self._lock = self._claimed(path)
            return self._lock is not None

    @property
    def held(self) -> bool:
        """True from a `take` that said so on."""
        return self._lock is not None

    def release(self) -> None:
        """Lets another process have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claimed(self, path: Path) -> BinaryIO | None:
        with contextlib.ExitStack() as held:
            lock = held.enter_context(open(path, "ab", opener=private))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            held.pop_all()
            return lock

    def _still_there(self, path: Path, lock: BinaryIO) -> bool:
        try:
            there = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(lock.fileno()))


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A name to write under, until what is written is whole and takes the place of the file.

    Where it does not come to that, it is gone with the block.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{next(_writes)}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def is_regular(path: Path) -> bool:
    """Tells whether there is a file.

    Raises OSError where a folder, a pipe or a device is in its place: they are not ours to read,
    which may never end, nor to move.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{path} is no regular file: name another path")
    return path.is_file()


def private(path: str, flags: int) -> int:
    """Mode 0600, whatever the umask is and the file was; never through a link that somebody has
    put there.
    """
    # A pipe in its place would let us wait for ever.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    with contextlib.suppress(PermissionError):  # it is another user's, who lets us write
        os.fchmod(descriptor, 0o600)
    return descriptor


def sync_path(path: Path, flags: int = os.O_DIRECTORY) -> None:
    """Syncs the new names of a folder, or the bytes of a file."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
