"""Files that are either whole or not there, private to their owner, and the folder that one sidecar
at a time holds.

A checked file is a magic number, the version of this format, the length and the CRC-32 of what
follows, and then the bytes themselves. Their meaning is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO

_FORMAT = 1

# Magic, format, length, CRC-32 of the body; little-endian.
_HEAD = struct.Struct("<8sIQI")

# No two writers of a process share a temporary file, even where one was given up.
_writes = count(1)


class CorruptFile(ValueError):
    """A file is not of the kind that is asked for, or not a whole one."""


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


def write_body(file: BinaryIO, parts: Iterable[bytes], kind: Kind = STATISTICS) -> int:
    """Writes the parts into a file that can be sought, and syncs it; returns the bytes written."""
    file.write(bytes(_HEAD.size))
    length = crc = 0
    for part in parts:
        file.write(part)
        crc = zlib.crc32(part, crc)
        length += len(part)
    # Last of all: until here, the file says of itself that it is none.
    file.seek(0)
    file.write(_HEAD.pack(kind.magic, _FORMAT, length, crc))
    file.flush()
    os.fsync(file.fileno())
    return _HEAD.size + length


def read_body(path: Path, kind: Kind = STATISTICS) -> bytes:
    """Returns the bytes that were written. Raises CorruptFile, OSError."""
    is_regular(path)
    with path.open("rb") as file:
        head, body = file.read(_HEAD.size), file.read()
    if len(head) < _HEAD.size or not head.startswith(kind.magic):
        raise CorruptFile(
            f"{path}: {len(head) + len(body)} bytes, and no file of {kind.of}. {kind.remedy}"
        )
    _, version, length, crc = _HEAD.unpack(head)
    if version != _FORMAT:
        raise CorruptFile(
            f"{path}: format {version}, but this monitor reads {_FORMAT}. Update the monitor."
        )
    if len(body) != length or zlib.crc32(body) != crc:
        raise CorruptFile(
            f"{path}: {len(body)} bytes of {length}, or other ones than were written: it is torn "
            "or damaged. Use an older one."
        )
    return body


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
        with self._guard:
            if self._lock is not None and not self._still_there(self._lock):
                self.release()
            if self._lock is None:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_path(self.folder.parent)
                self._lock = self._claimed()
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

    # The lock file stays: who removed it could remove one that somebody else has just locked.
    @property
    def _path(self) -> Path:
        return self.folder / "lock"

    def _claimed(self) -> BinaryIO | None:
        with contextlib.ExitStack() as held:
            lock = held.enter_context(open(self._path, "ab", opener=private))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            held.pop_all()
            return lock

    def _still_there(self, lock: BinaryIO) -> bool:
        try:
            there = self._path.stat(follow_symlinks=False)
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
