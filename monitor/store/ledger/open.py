"""Open partitions, which stay open for a while: opening a file takes longer than a look into it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.store.ledger.file import PartitionFile
from monitor.store.ledger.folder import PartitionFolder


def _nothing(_: int) -> None:
    """Where a file may be closed at any time."""


@dataclass(slots=True)
class OpenPartitions:
    """Files of one folder, for one thread at a time.

    most     that are open at once; the one that was used the longest time ago goes
    closing  told of one that goes for want of room, before it does; what it raises, `file` raises
    """

    folder: PartitionFolder
    most: int
    closing: Callable[[int], None] = _nothing
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
            self.closing(oldest)
            self.close(oldest)
        return file

    def close(self, number: int) -> None:
        """Close one, if it is open."""
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def close_removed(self) -> None:
        """Close those that were removed: as long as one is open, the disk has not got it back."""
        for number, file in list(self._files.items()):
            if not file.is_there:
                self.close(number)

    def close_all(self) -> None:
        """Close all of them."""
        for number in list(self._files):
            self.close(number)
