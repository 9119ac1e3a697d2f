"""Reader of frames on the disk, a thread beside the writer with connections of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.store.ledger.codec import Codec
from monitor.store.ledger.entries import FrameEntry, LabelEntry
from monitor.store.ledger.folder import PartitionFolder
from monitor.store.ledger.names import KnownNames
from monitor.store.ledger.open import OpenPartitions
from monitor.store.ledger.partitions import Partition
from monitor.store.ledger.parts import StoreFailed, mark_of

# To open a file takes longer than to look.
_MOST_OPEN = 32


# A sequence that no entry ever has.
NEVER = (1 << 63) - 1


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
        """Look in some partitions, the one with the latest frame first.

        What is removed meanwhile is not there.

        before  entries with this sequence or a higher one are not there either
        """
        with self._turn:
            return self._find(stream, frame_id, partitions, before)

    def let_go(self, there: Sequence[Partition] = ()) -> None:
        """Close files that were removed: as long as one is open, the disk has not got it back.

        there  partitions whose names stay in memory
        """
        with self._turn:
            self._names.keep({one.number for one in there})
            self._open.close_removed()

    def close(self) -> None:
        """Close all files."""
        with self._turn:
            self._open.close_all()

    def _find(
        self, stream: str, frame_id: int, partitions: Sequence[Partition], before: int
    ) -> Found:
        frame: FrameEntry | None = None
        labels: list[LabelEntry] = []
        damaged: list[tuple[Partition, Exception]] = []
        failed: list[str] = []
        for partition in partitions:
            if frame is not None and abs(frame.sequence) > partition.last:
                continue  # nor do labels of it lie elsewhere: they are where their frame is
            try:
                if not self._may_have(partition, stream, frame_id):
                    continue
                row, rows = self._open.file(partition.number).find(stream, frame_id, before)
                if row is not None and (frame is None or abs(row.sequence) > abs(frame.sequence)):
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

    def _may_have(self, partition: Partition, stream: str, frame_id: int) -> bool:
        """Raises DamagedPartition, OtherPartition, StoreFailed."""
        names = self._names
        if not names.up_to_date(partition):
            file = self._open.file(partition.number)
            if not names.read(partition, file):
                return True
        return names.may_have(partition, stream, frame_id)
