"""The folder of the ledger, which one sidecar at a time holds.

    p<number>.sqlite   one partition; -wal and -shm beside it belong to it
    p….sqlite.corrupt  one that cannot be used; `.incompatible` where a later version can
    pending.lock       held by the one sidecar that writes here

All of it is private to its owner.
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from monitor.store.files import sync_path
from monitor.store.ledger.file import PartitionFile, StoreFailed, beside

_NAME = re.compile(r"p(-?[0-9]{1,19})\.sqlite")
_ASIDE = (".corrupt", ".incompatible")
_BESIDE = ("-wal", "-shm")


@dataclass(slots=True)
class PartitionFolder:
    """One folder, of one process from `claim` to `release`."""

    path: Path

    def claim(self) -> bool:
        """Makes the folder; True where it was not there. Raises StoreFailed."""
        try:
            is_new = not self.path.is_dir()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_path(self.path.parent)
        except OSError as error:
            raise StoreFailed("failed", f"{self.path} cannot be written ({error}).") from error
        return is_new

    def release(self) -> None:
        """Does nothing."""

    def file(self, number: int) -> Path:
        """Where a partition is."""
        return self.path / f"p{number}.sqlite"

    def numbers(self) -> list[int]:
        """Partitions that have a file. Raises OSError."""
        found = (_NAME.fullmatch(path.name) for path in self.path.iterdir())
        return sorted({int(name[1]) for name in found if name and name[1] == str(int(name[1]))})

    def size(self, number: int) -> int:
        """Bytes of a partition, with what is not in its file yet."""
        return _size(self.file(number))

    def set_aside(self, number: int, suffix: str) -> str:
        """Renames a partition that cannot be used; returns what became of it, as a sentence."""
        path = self.file(number)
        aside = path.with_name(f"{path.name}.{suffix}")
        try:
            for part in ("-wal", ""):  # without its WAL it would be another one
                with contextlib.suppress(FileNotFoundError):
                    beside(path, part).replace(beside(aside, part))
            beside(path, "-shm").unlink(missing_ok=True)
        except OSError as error:
            return f"It cannot be kept as {aside.name} ({error.strerror})."
        return f"It is kept as {aside.name}."

    def remove(self, number: int) -> None:
        """Removes a partition. Raises OSError."""
        _remove(self.file(number))

    def size_aside(self) -> int:
        """Bytes of what was set aside."""
        return sum(map(_size, self._aside()))

    def remove_aside(self) -> bool:
        """Removes what was set aside first of all; tells whether there was something."""
        with contextlib.suppress(OSError):
            oldest = min(self._aside(), key=lambda path: path.stat().st_mtime_ns, default=None)
            if oldest is not None:
                _remove(oldest)
                return True
        return False

    def _aside(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            for path in self.path.iterdir():
                if path.name.endswith(_ASIDE) and _NAME.fullmatch(path.stem):
                    yield path


def _size(path: Path) -> int:
    total = 0
    for part in ("", *_BESIDE):
        with contextlib.suppress(OSError):
            total += beside(path, part).stat().st_size
    return total


def _remove(path: Path) -> None:
    for part in ("", *_BESIDE):  # first what names the others
        beside(path, part).unlink(missing_ok=True)


@dataclass(slots=True)
class OpenPartitions:
    """Files of one folder that stay open for a while, for one thread at a time.

    Opening a file takes longer than a look into it.

    most     that are open at once; the one that was used the longest time ago goes
    closing  told of one that goes for want of room, before it does; what it raises, `file` raises
    """

    folder: PartitionFolder
    most: int
    closing: Callable[[int], None] | None = None
    _files: OrderedDict[int, PartitionFile] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._files)

    def get(self, number: int) -> PartitionFile | None:
        """One, if it is open: it can be read to its end, though it may have been removed."""
        return self._files.get(number)

    def file(
        self, number: int, *, create: bool = False, removed_too: bool = False
    ) -> PartitionFile:
        """One that is open from now on. Raises DamagedPartition, OtherPartition, StoreFailed.

        create       begin it where there is none
        removed_too  one that is open is good, though it was removed or renamed
        """
        file = self._files.get(number)
        if file is not None and not removed_too and not file.is_there:
            self.close(number)
            file = None
        if file is None:
            file = PartitionFile.open(self.folder.file(number), number, create=create)
            self._files[number] = file
        self._files.move_to_end(number)
        while len(self._files) > self.most:
            oldest = next(iter(self._files))
            if self.closing is not None:
                self.closing(oldest)
            self.close(oldest)
        return file

    def close(self, number: int) -> None:
        """Closes a partition, if it is open."""
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def close_removed(self) -> None:
        """Closes files that were removed: as long as one is open, the disk has not got it back."""
        for number, file in list(self._files.items()):
            if not file.is_there:
                self.close(number)

    def close_all(self) -> None:
        """Closes all partitions."""
        for number in list(self._files):
            self.close(number)
