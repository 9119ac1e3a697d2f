"""Files beside the ledger's database that hold the bytes of its frames, one behind the other.

In SQLite, each byte of a frame would be cut into pages and written twice. A file has frames of one
partition alone, and goes with it. Where in it an entry lies, and what its checksum is, the database
knows; what the bytes mean is not known here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monitor.store.entries import Piece, size_of
from monitor.store.files import beside, private, sync_path

# Parts that the system takes at once: IOV_MAX.
_AT_ONCE = 1024


def folder_of(database: Path) -> Path:
    """Returns the folder of the files that belong to a database."""
    return beside(database, ".frames")


log = logging.getLogger(__name__)


@dataclass(slots=True)
class FrameFile:
    """One of them.

    size   bytes of entries that the database knows; what is behind them is written over
    known  whether the database knows the file
    """

    number: int
    partition: int
    size: int = 0
    known: bool = False


@dataclass(slots=True)
class FrameFiles:
    """Writes them; one thread calls.

    bytes  of all files
    """

    folder: Path
    bytes: int = 0
    _files: dict[int, FrameFile] = field(default_factory=dict)
    # The file that a partition's next frames go to; those of earlier runs are not written to.
    _filling: dict[int, FrameFile] = field(default_factory=dict)
    _unsynced: set[int] = field(default_factory=set)
    # The number and the descriptor of the file that was written last: a name costs more than 64 kB.
    _open: tuple[int, int] | None = None

    def take_in(self, known: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Takes in the files that the database knows, by number and partition; others go.

        returns  the size of each, by number
        """
        self._files = {
            number: FrameFile(number, partition, size_on_disk(self._path(number)), known=True)
            for number, partition in known
        }
        self.bytes = sum(one.size for one in self._files.values())
        self._filling.clear()
        self._unsynced.clear()
        self.close()
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if not path.name.isdigit() or int(path.name) not in self._files:
                    path.unlink()
        return {number: one.size for number, one in self._files.items()}

    def for_partition(self, partition: int) -> FrameFile | None:
        """Returns the file that frames of a partition go to; None: `begin` one."""
        return self._filling.get(partition)

    def begin(self, number: int, partition: int) -> FrameFile:
        """Has frames of a partition go to another file."""
        self._filling[partition] = self._files[number] = FrameFile(number, partition)
        return self._filling[partition]

    def write(self, file: FrameFile, pieces: Sequence[Piece]) -> None:
        """Puts pieces behind what the database knows of. Raises OSError."""
        descriptor, at = self._opened(file.number), file.size
        self._unsynced.add(file.number)
        for begin in range(0, len(pieces), _AT_ONCE):
            some = pieces[begin : begin + _AT_ONCE]
            done, wanted = os.pwritev(descriptor, some, at), size_of(some)
            if done < wanted:  # the error that stopped it comes with the rest
                rest = b"".join(some)
                while done < wanted:
                    done += os.pwrite(descriptor, rest[done:], at + done)
            at += wanted

    def _opened(self, number: int) -> int:
        """Returns the descriptor of a file, which is begun where it is not there."""
        if self._open is not None and self._open[0] == number:
            if os.fstat(self._open[1]).st_nlink:
                return self._open[1]
            log.warning("pending: %s was removed: frames in it are lost", self._path(number))
        self.close()
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700)
            sync_path(self.folder.parent)
        descriptor = private(str(self._path(number)), os.O_WRONLY | os.O_CREAT)
        self._open = number, descriptor
        return descriptor

    def written(self, file: FrameFile, size: int) -> None:
        """Notes that the database knows of so many bytes more."""
        file.size += size
        self.bytes += size
        file.known = True

    def sync(self) -> None:
        """Has the disk take all that was written, and the names of the files. Raises OSError.

        A file that somebody has removed holds up nothing: its frames are lost, and that is logged.
        """
        if not self._unsynced:
            return
        for number in sorted(self._unsynced):
            try:
                sync_path(self._path(number), os.O_NOFOLLOW)
            except FileNotFoundError:
                log.warning("pending: %s was removed: frames in it are lost", self._path(number))
                self._unsynced.discard(number)
        if self._unsynced:
            sync_path(self.folder)
        self._unsynced.clear()

    def drop(self, partition: int) -> None:
        """Removes the files of a partition that the database does not know any more."""
        self._filling.pop(partition, None)
        self.close()
        for number in [one.number for one in self._files.values() if one.partition == partition]:
            self.bytes -= self._files.pop(number).size
            self._unsynced.discard(number)
            with contextlib.suppress(OSError):  # else at the next start
                self._path(number).unlink()

    def close(self) -> None:
        """Closes the file that is open; it is opened again when it is written to."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def forget(self) -> None:
        """Takes all files for gone."""
        self.close()
        self.bytes = 0
        for known in (self._files, self._filling, self._unsynced):
            known.clear()

    def _path(self, number: int) -> Path:
        return self.folder / str(number)


def read_part(folder: Path, number: int, start: int, size: int) -> bytes:
    """Reads a part of a file; less where it is not there, or ends before. Raises OSError."""
    try:
        descriptor = private_to_read(folder / str(number))
    except FileNotFoundError:
        return b""
    try:
        there = os.fstat(descriptor).st_size - start
        return os.pread(descriptor, min(size, there), start) if start >= 0 and there > 0 else b""
    finally:
        os.close(descriptor)


def private_to_read(path: Path) -> int:
    """Opens a file to read; never through a link that somebody has put there."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def size_on_disk(path: Path) -> int:
    """Returns the bytes of a file, or of the files of a folder; 0 where there is none."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return sum(size_on_disk(one) for one in path.iterdir())
        return path.stat().st_size
    return 0


def set_files_aside(database: Path, aside: Path) -> None:
    """Renames the folder of a database that was set aside."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder_of(aside), ignore_errors=True)
        folder_of(database).rename(folder_of(aside))
