"""Reader of frames on the disk, a thread beside the writer with connections of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monitor.store.ledger.entries import FrameEntry, LabelEntry
from monitor.store.ledger.entry_bytes import Codec
from monitor.store.ledger.file import PartitionFile, StoreFailed, mark_of
from monitor.store.ledger.folder import OpenPartitions, PartitionFolder
from monitor.store.ledger.partitions import Partition

# To open a file takes longer than to look.
_MOST_OPEN = 32

# A sequence that no entry ever has.
NEVER = (1 << 63) - 1
FrameName = tuple[str, int]

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

    @property
    def _count(self) -> int:
        return sum(known.hashes.size for known in self._known.values())

    def may_have(self, partition: Partition, name: FrameName, opened: OpenPartitions) -> bool:
        """False where it has no frame of that name for sure.

        Raises DamagedPartition, OtherPartition, StoreFailed.
        """
        known = self._known.get(partition.number)
        if known is None or (known.born, known.named) != (partition.born, partition.named):
            known = self._read(partition, opened.file(partition.number))
        if known is None:
            return True
        wanted = np.int64(hash(name))
        at = int(known.hashes.searchsorted(wanted))
        return at < known.hashes.size and bool(known.hashes[at] == wanted)

    def _read(self, partition: Partition, file: PartitionFile) -> _Known | None:
        """Takes in the names that came; None where there is no room for them."""
        known = self._known.get(partition.number)
        if known is None or known.born != partition.born:
            self._known.pop(partition.number, None)
            if self._count >= self.most:
                return None
            known = _Known(partition.born, partition.named, 0, np.zeros(0, np.int64))
        names, known.rows = file.names(known.rows)
        came = np.fromiter(map(hash, names), np.int64, len(names))
        known.hashes = np.union1d(known.hashes, came)
        known.named = partition.named
        self._known[partition.number] = known
        return known

    def keep(self, numbers: set[int]) -> None:
        """Forgets all other partitions."""
        self._known = {number: known for number, known in self._known.items() if number in numbers}


@dataclass(frozen=True, slots=True)
class Found:
    """Rows on the disk that have one name.

    frame    the latest one
    labels   of all frames of that name, in order
    damaged  partitions that are not as they were written, and why
    failed   those that are there, but could not be read now, in words
    """

    frame: FrameEntry | None
    labels: tuple[LabelEntry, ...]
    damaged: tuple[tuple[Partition, Exception], ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(slots=True)
class PartitionReader:
    """Reads what the writer has committed; nothing is changed. Any thread may ask."""

    folder: PartitionFolder
    codec: Codec = field(default_factory=Codec)
    _names: KnownNames = field(default_factory=KnownNames)
    _open: OpenPartitions = field(init=False)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._open = OpenPartitions(self.folder, _MOST_OPEN)

    def find(
        self, stream: str, frame_id: int, partitions: Sequence[Partition], before: int = NEVER
    ) -> Found:
        """Looks in some partitions, the one with the latest frame first.

        What is removed meanwhile is not there.

        before  entries with this sequence or a higher one are not there either
        """
        with self._turn:
            frame: FrameEntry | None = None
            labels: list[LabelEntry] = []
            damaged: list[tuple[Partition, Exception]] = []
            failed: list[str] = []
            for partition in partitions:
                if frame is not None and abs(frame.sequence) > partition.last:
                    continue  # nor do labels of it lie elsewhere: they are where their frame is
                try:
                    if not self._names.may_have(partition, (stream, frame_id), self._open):
                        continue
                    row, rows = self._open.file(partition.number).find(stream, frame_id, before)
                    if row is not None and (
                        frame is None or abs(row.sequence) > abs(frame.sequence)
                    ):
                        frame = self.codec.frame(row, partition.number)
                        labels = [self.codec.labels(one, partition.number) for one in rows]
                except ValueError as error:
                    self._open.close(partition.number)
                    damaged.append((partition, error))
                except StoreFailed as error:
                    self._open.close(partition.number)
                    if mark_of(self.folder.file(partition.number)) == partition.mark:
                        failed.append(str(error))
            return Found(frame, tuple(labels), tuple(damaged), tuple(failed))

    def let_go(self, there: Sequence[Partition] = ()) -> None:
        """Closes files that were removed: as long as one is open, the disk has not got it back.

        there  partitions whose names stay in memory
        """
        with self._turn:
            self._names.keep({one.number for one in there})
            self._open.close_removed()

    def close(self) -> None:
        """Closes all files."""
        with self._turn:
            self._open.close_all()
