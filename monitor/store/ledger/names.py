"""Names of the frames of each partition, in memory: an unknown name touches no file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monitor.store.ledger.file import PartitionFile
from monitor.store.ledger.partitions import Partition

# Names that are remembered at most, 8 bytes each: 32 MB. Frames of 8 kB of that number are 33 GB
# on the disk; with more than that, those of other partitions are looked for in their files.
MOST_NAMES = 1 << 22


@dataclass(slots=True)
class _Known:
    """Hashes of names, ascending; born and named of the partition; rows of its file in them."""

    born: int
    named: int
    rows: int
    hashes: npt.NDArray[np.int64]


@dataclass(slots=True)
class KnownNames:
    """Names as they were last read from each partition. One thread at a time."""

    most: int = MOST_NAMES
    _known: dict[int, _Known] = field(default_factory=dict)
    _count: int = 0

    def up_to_date(self, partition: Partition) -> bool:
        """Tells whether no frames came since the names of a partition were read."""
        known = self._known.get(partition.number)
        return known is not None and (known.born, known.named) == (partition.born, partition.named)

    def may_have(self, partition: Partition, stream: str, frame_id: int) -> bool:
        """False where it has no frame of that name for sure."""
        known = self._known[partition.number].hashes
        name = np.int64(hash((stream, frame_id)))
        at = int(known.searchsorted(name))
        return at < known.size and bool(known[at] == name)

    def read(self, partition: Partition, file: PartitionFile) -> bool:
        """Take in the names that came; False where there is no room for them.

        Raises DamagedPartition, StoreFailed.
        """
        known = self._known.get(partition.number)
        if known is None or known.born != partition.born:
            self.forget(partition.number)
            if self._count >= self.most:
                return False
            known = _Known(partition.born, partition.named, 0, np.zeros(0, np.int64))
        names, known.rows = file.names(known.rows)
        came = np.fromiter(map(hash, names), np.int64, len(names))
        before = known.hashes.size
        known.hashes = np.union1d(known.hashes, came)
        known.named = partition.named
        self._known[partition.number] = known
        self._count += known.hashes.size - before
        return True

    def keep(self, numbers: set[int]) -> None:
        """Forget all other partitions."""
        for number in set(self._known) - numbers:
            self.forget(number)

    def forget(self, number: int) -> None:
        """Forgets the names of a partition that is gone."""
        known = self._known.pop(number, None)
        if known is not None:
            self._count -= known.hashes.size
