"""Checkpoint files, which are either whole or not there.

A file is a magic number, the version of this format, the length and the CRC-32 of what
follows, and then the bytes themselves. Their meaning is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from monitor.statistics.bins import IncompatibleStatistics

log = logging.getLogger(__name__)
_FORMAT = 1

# Magic, format, length, CRC-32 of the body; little-endian.
_HEAD = struct.Struct("<8sIQI")

# No two writers of a process share a temporary file, even where one was given up.
_writes = count(1)
Value = TypeVar("Value")


class CorruptFile(ValueError):
    """A file is not of the kind that is asked for, or not a whole one."""


class OtherFormat(CorruptFile):
    """A file that another version of the monitor wrote."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The subject of a family of files.

    magic   eight bytes
    of      in a word, for messages
    topic   before what the log says of them
    remedy  where a file is of another kind
    """

    magic: bytes
    of: str
    topic: str
    remedy: str


STATISTICS = Kind(
    b"calstate",
    "statistics",
    "snapshot",
    "Name one that `export`, `merge` or a sidecar wrote.",
)


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
        raise OtherFormat(
            f"{path}: format {version}, but this monitor reads {_FORMAT}. Update the monitor."
        )
    if len(body) != length or zlib.crc32(body) != crc:
        raise CorruptFile(
            f"{path}: {len(body)} bytes of {length}, or other ones than were written: it is torn "
            "or damaged. Use an older one."
        )
    return body


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Value]):
    """The newest usable file found at start.

    value       None where there was nothing that could be used
    source      the file it came from
    complaints  what could not be used, and what became of it
    refused     files that could not be used
    """

    value: Value | None
    source: Path | None
    complaints: tuple[str, ...]
    refused: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file that is written again and again by one process, and the generation before it."""

    path: Path
    kind: Kind = STATISTICS

    @property
    def previous(self) -> Path:
        """The generation before."""
        return self.path.with_name(f"{self.path.name}.1")

    def lock(self) -> BinaryIO | None:
        """Claims the file for one process, as long as what is returned stays open.

        returns  None where another one has it
        raises   OSError
        """
        # A file of its own, since the file itself is another one after each write. It stays: who
        # removed it could remove one that somebody else has just locked.
        with contextlib.ExitStack() as held:
            lock = held.enter_context(open(self._lock_path, "ab", opener=private))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            held.pop_all()
            return lock

    def locked_by(self, lock: BinaryIO) -> bool:
        """Tells whether others would still lock the file that lock() returned. Raises OSError."""
        try:
            there = self._lock_path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(lock.fileno()))

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    def write(self, parts: Iterable[bytes]) -> int:
        """Replaces the file by the joined parts; returns the bytes written. Raises OSError.

        Whenever the process or the machine dies, a whole file is left: this one or the last.
        """
        with temporary_beside(self.path) as temporary:
            with open(temporary, "wb", opener=private) as file:
                size = write_body(file, parts, self.kind)
            if is_regular(self.path):
                self.path.replace(self.previous)
            temporary.replace(self.path)
        sync_path(self.path.parent)
        return size

    def load(self, decode: Callable[[bytes], Value]) -> Loaded[Value]:
        """The latest generation that can be used; to be called before the first write.

        Who calls it has the lock: temporary files are of processes that are gone. A file that
        cannot be used is kept aside for whoever wants to know why: as `.incompatible` where
        another version or configuration can use it, then nothing older is looked at; as
        `.corrupt` where nobody can; as `.unreadable` where the disk does not give it.

        decode  raises ValueError for bytes it cannot use, IncompatibleStatistics where others can
        """
        remove_temporaries(self.path.parent, glob.escape(self.path.name))
        complaints: list[str] = []
        value, used = None, None
        for source in (self.path, self.previous):
            try:
                value = decode(read_body(source, self.kind))
            except FileNotFoundError:
                continue
            except (IncompatibleStatistics, ValueError, OSError) as error:
                complaints.append(f"{error} {_set_aside(source, error)}")
                if isinstance(error, IncompatibleStatistics):
                    break
            else:
                used = source
                break
        refused = len(complaints)
        if used == self.previous:
            complaints.append(f"{used}: the generation before is used.")
        elif used is None and complaints:
            complaints[-1] = f"{complaints[-1].rstrip('.')}, {self.kind.of} begin anew."
        for complaint in complaints:
            log.warning("%s: %s", self.kind.topic, complaint)
        return Loaded(value, used, tuple(complaints), refused)


@dataclass(slots=True)
class Claim:
    """A folder of one process, from `take` to `release`.

    file  whose lock says so
    """

    file: SnapshotFile
    _lock: BinaryIO | None = field(default=None, init=False)

    @property
    def held(self) -> bool:
        """True from `take` on, unless another process has it."""
        return self._lock is not None

    def take(self, *folders: Path) -> bool:
        """Makes the folders, and claims the first; again where somebody has removed it.

        returns  whether it was not ours before, or is not now
        raises   OSError
        """
        before = self._lock
        if before is not None and not self.file.locked_by(before):
            self.release()
        if self._lock is None:
            for folder in folders:
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_path(folder.parent)
            self._lock = self.file.lock()
        return self._lock is not before

    def release(self) -> None:
        """Lets another process have it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


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


def remove_temporaries(folder: Path, pattern: str) -> None:
    """Removes what dead writers left behind of files whose name fits a pattern."""
    for stale in folder.glob(f"{pattern}.*.tmp"):
        with contextlib.suppress(OSError):
            stale.unlink()


def is_regular(path: Path) -> bool:
    """Tells whether there is a file.

    Raises OSError where a folder, a pipe or a device is in its place: they are not ours to read,
    which may never end, nor to move.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{path} is no regular file: name another path")
    return path.is_file()


def _set_aside(source: Path, error: Exception) -> str:
    """Renames a file that cannot be used; returns what became of it, as a sentence."""
    suffix = "unreadable" if isinstance(error, OSError) else "corrupt"
    if isinstance(error, IncompatibleStatistics | OtherFormat):
        suffix = "incompatible"
    aside = source.with_name(f"{source.name}.{suffix}")
    try:
        if not source.is_file():  # a folder is not ours to move
            return f"{source} is left where it is."
        source.replace(aside)
    except OSError as error:
        return f"It cannot be kept as {aside.name} ({error.strerror})."
    return f"It is kept as {aside.name}."


def private(path: str, flags: int) -> int:
    """Mode 0600, whatever the umask is and the file was; never through a link that somebody has
    put there.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
