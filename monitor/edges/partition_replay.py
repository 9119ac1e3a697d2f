"""Entries of all partitions in the order in which they were entered, to be done again at start."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from monitor.edges.partition_codec import Codec
from monitor.edges.partition_file import PartitionFile
from monitor.edges.partition_folder import PartitionFolder
from monitor.edges.partition_parts import Row, StoreFailed
from monitor.ledger import Entry, LabelEntry


@dataclass(frozen=True, slots=True)
class Replay:
    """Entries behind one sequence. Few rows are in memory at once, and few files are open.

    refuse  told of each partition that cannot be used, and why
    """

    folder: PartitionFolder
    codec: Codec
    after: int
    refuse: Callable[[int, Exception], None]

    def entries(self, numbers: Iterable[int]) -> Iterator[Entry]:
        """Those of some partitions. One that is damaged behind the sequence gives none."""
        # (sequence, number, the entry or None where its file is not open yet, and what follows)
        heap: list[tuple[int, int, Entry | None, Iterator[Entry]]] = []
        for number in numbers:
            first = self._first(number)
            if first is not None:
                heap.append((first, number, None, self._of(number)))
        heapq.heapify(heap)
        while heap:
            _, number, entry, rest = heap[0]
            if entry is not None:
                yield entry
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.sequence, number, following, rest))

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
        except (StoreFailed, ValueError) as error:
            self.refuse(number, error)
            return None
        return min((row.sequence for row in firsts if row is not None), default=None)

    def _of(self, number: int) -> Iterator[Entry]:
        try:
            file = PartitionFile.open(self.folder.file(number), number)
            try:
                frames: Iterator[Entry] = (
                    self.codec.frame(row, number) for row in file.frames(self.after)
                )
                labels: Iterator[Entry] = (
                    self._labels(file, row) for row in file.labels(self.after)
                )
                yield from heapq.merge(frames, labels, key=lambda entry: entry.sequence)
            finally:
                file.close()
        except (StoreFailed, ValueError) as error:
            self.refuse(number, error)

    def _labels(self, file: PartitionFile, row: Row) -> LabelEntry:
        """With the frame that was written for them alone: nothing else brings it."""
        brought = file.brought(row.stream, row.frame_id, row.sequence)
        frame = None if brought is None else self.codec.frame(brought, file.number)
        return self.codec.labels(row, file.number, frame)
