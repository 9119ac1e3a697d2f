"""Replay of the ledger at start: entries of all partitions in the order of their numbers."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from monitor.store.ledger.codec import Codec
from monitor.store.ledger.entries import Entry, LabelEntry
from monitor.store.ledger.file import PartitionFile
from monitor.store.ledger.folder import PartitionFolder
from monitor.store.ledger.open import OpenPartitions
from monitor.store.ledger.parts import Row, StoreFailed

# Files that are open at once, however many partitions have entries between each other's.
_MOST_OPEN = 8


# Of one partition, what is in memory at once ends with the row that is beyond either.
_BLOCK = 64  # rows


_BLOCK_BYTES = 1 << 16


@dataclass(slots=True)
class Replay:
    """Entries behind one sequence. Few rows are in memory at once, and few files are open.

    refuse  told of each partition that is not as it was written, and why
    leave   and of each that cannot be read now: the rest of it is not replayed
    """

    folder: PartitionFolder
    codec: Codec
    after: int
    refuse: Callable[[int, Exception], None]
    leave: Callable[[int, StoreFailed], None]
    _open: OpenPartitions = field(init=False)

    def __post_init__(self) -> None:
        self._open = OpenPartitions(self.folder, _MOST_OPEN)

    def entries(self, numbers: Iterable[int]) -> Iterator[Entry]:
        """Those of some partitions. One that is damaged behind the sequence gives none."""
        # (sequence, number, the entry or None where its file is not open yet, and what follows)
        heap: list[tuple[int, int, Entry | None, Iterator[Entry]]] = []
        for number in numbers:
            first = self._first(number)
            if first is not None:
                heap.append((first, number, None, self._of(number)))
        heapq.heapify(heap)
        try:
            while heap:
                _, number, entry, rest = heap[0]
                if entry is not None:
                    yield entry
                following = next(rest, None)
                if following is None:
                    self._open.close(number)
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, (following.sequence, number, following, rest))
        finally:
            self._open.close_all()

    def _first(self, number: int) -> int | None:
        """The first sequence of a partition whose rows are all as written; None without any."""
        try:
            file = PartitionFile.open(self.folder.file(number), number)
            try:
                kinds = (file.frames(self.after), file.labels(self.after))
                firsts = [next(rows, None) for rows in kinds]
                for rows in kinds:
                    for _ in rows:
                        pass
            finally:
                file.close()
        except StoreFailed as error:
            self.leave(number, error)
            return None
        except ValueError as error:
            self.refuse(number, error)
            return None
        return min((row.sequence for row in firsts if row is not None), default=None)

    def _of(self, number: int) -> Iterator[Entry]:
        after = self.after
        try:
            # One that is set aside meanwhile is good behind the sequence, and done to its end.
            while block := self._block(self._open.file(number, removed_too=True), after):
                yield from block
                after = block[-1].sequence
        except StoreFailed as error:
            self._open.close(number)
            self.leave(number, error)
        except ValueError as error:
            self._open.close(number)
            self.refuse(number, error)

    def _block(self, file: PartitionFile, after: int) -> list[Entry]:
        """The next ones of a partition; none at its end."""
        frames, labels = file.frames(after), file.labels(after)
        block: list[Entry] = []
        size = 0
        for row, is_frame in heapq.merge(
            ((row, True) for row in frames),
            ((row, False) for row in labels),
            key=lambda one: one[0].sequence,
        ):
            size += len(row.body)
            if is_frame:
                block.append(self.codec.frame(row, file.number))
            else:
                block.append(self._labels(file, row))
            if len(block) >= _BLOCK or size >= _BLOCK_BYTES:
                break
        frames.close()
        labels.close()
        return block

    def _labels(self, file: PartitionFile, row: Row) -> LabelEntry:
        """With the frame that was written for them alone: nothing else brings it."""
        brought = file.brought(row.stream, row.frame_id, row.sequence)
        frame = None if brought is None else self.codec.frame(brought, file.number)
        return self.codec.labels(row, file.number, frame)
