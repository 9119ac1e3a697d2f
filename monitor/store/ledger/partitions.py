"""The partitions of the ledger on disk: one file for each stretch of event time.

So expiry, the byte budget and damage all mean the same: one file goes. A file that cannot be used
is set aside and reported, and stops nothing. Calls come from one thread at a time, but those of
`partitions` and `take_dropped`.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter

from monitor.store.ledger.entries import Entry
from monitor.store.ledger.entry_bytes import Codec
from monitor.store.ledger.file import Changes, OtherPartition, PartitionFile, StoreFailed, mark_of
from monitor.store.ledger.folder import OpenPartitions, PartitionFolder

log = logging.getLogger(__name__)

# Frames whose names are given back at start.
MOST_KEYS = 65536

# Partitions that are written to stay open: late labels go to older ones.
_MOST_OPEN = 4

# Files that are replayed at once, however many partitions have entries between each other's.
_MOST_REPLAYED = 8

# Of a partition that is replayed, what is in memory ends with the row that is beyond either.
_BLOCK = 64  # rows
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class RecentFrame:
    """A frame that is on the disk."""

    stream: str
    frame_id: int
    stamp_ns: int | None
    partition: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A partition that is no longer there.

    reason   "budget", "expired", "corrupt", "incompatible" or "vanished"
    message  in words
    """

    number: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One that is there.

    frame, labels  sequence of the last of either; 0 where there is none
    born, named    when it was first seen, and when frames were last written to it: counted in
                   such events of the whole store, so that no two are the same
    """

    number: int
    mark: tuple[int, int]
    frame: int = 0
    labels: int = 0
    bytes: int = 0
    born: int = 0
    named: int = 0

    @property
    def last(self) -> int:
        """Sequence of the last entry."""
        return max(self.frame, self.labels)


@dataclass(slots=True)
class PartitionStore:
    """All partitions of one folder, from `open` to `close`.

    disk_bytes   of all files; the oldest partition goes first
    keep         partitions of event time that one is kept
    covered      sequence of the last entry that a checkpoint has: what is beyond it is replayed,
                 and does not expire
    now          partition that event time is in; None: that of the latest entry
    partitions   those that are there, the one with the latest frame first
    unread       those that are there, and could not be read at start
    uncertain    not all was seen at start: numbers of entries may be taken that nobody knows of
    """

    folder: PartitionFolder
    disk_bytes: int
    keep: int
    codec: Codec = field(default_factory=Codec)
    covered: int = 0
    # Whether the budget waits for a checkpoint.
    pressed: bool = False
    now: int | None = None
    bytes: int = 0
    partitions: tuple[Partition, ...] = ()
    unread: set[int] = field(default_factory=set)
    uncertain: bool = False
    _events: int = 0
    _there: dict[int, Partition] = field(default_factory=dict)
    _open: OpenPartitions = field(init=False)
    _unsynced: set[int] = field(default_factory=set)
    _dropped: deque[Dropped] = field(default_factory=deque)
    _aside: int = 0  # bytes
    # Whether a partition was dropped for a full disk, and there was no room all the same.
    _in_vain: bool = False

    def __post_init__(self) -> None:
        self._open = OpenPartitions(self.folder, _MOST_OPEN, self._sync)

    def take_dropped(self) -> list[Dropped]:
        """Those that went since the last call."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    # ---- at start

    def open(self) -> list[RecentFrame]:
        """Claims the folder, and returns the latest frames in it, the newest last.

        raises  StoreFailed where nothing can be written there
        """
        self.uncertain = True  # until all is seen
        self.folder.claim()
        keys: list[tuple[int, RecentFrame]] = []
        try:
            numbers = self.folder.numbers()
        except OSError as error:
            raise StoreFailed("failed", f"{self.folder.path} cannot be read: {error}") from error
        for number in numbers:
            with self._told(number), closing(self._file(number)) as file:
                one, rows = self._seen(file), file.keys(MOST_KEYS)
                self._there[number] = one
                keys += [(row[0], RecentFrame(*row[1:], number)) for row in rows]
            if len(keys) > 2 * MOST_KEYS:
                keys = heapq.nlargest(MOST_KEYS, keys, key=itemgetter(0))
        self.uncertain = len(self._there) < len(numbers)
        self._arrange()
        self._aside = self.folder.size_aside()
        self._count_bytes()
        keys.sort(key=itemgetter(0))
        return [frame for _, frame in keys[-MOST_KEYS:]]

    def replay(self, after: int) -> Iterator[Entry]:
        """All entries with a higher sequence, in order, over all partitions.

        A partition that is damaged anywhere behind it gives none.
        """
        opened = OpenPartitions(self.folder, _MOST_REPLAYED)
        # (sequence, number, the entry or None where its file is not open yet, and what follows)
        heap: list[tuple[int, int, Entry | None, Iterator[Entry]]] = []
        for number in [one.number for one in self._there.values() if one.last > after]:
            first = self._first(number, after)
            if first is not None:
                heap.append((first, number, None, self._entries(opened, number, after)))
        heapq.heapify(heap)
        try:
            while heap:
                _, number, entry, rest = heap[0]
                if entry is not None:
                    yield entry
                following = next(rest, None)
                if following is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, (following.sequence, number, following, rest))
        finally:
            opened.close_all()

    def _first(self, number: int, after: int) -> int | None:
        """The first sequence of a partition whose rows are all as written; None without any."""
        first = None
        with self._told(number), closing(self._file(number)) as file:
            kinds = (file.frames(after), file.labels(after))
            firsts = [next(rows, None) for rows in kinds]
            for _ in chain(*kinds):
                pass
            first = min((row.sequence for row in firsts if row is not None), default=None)
        return first

    def _entries(self, opened: OpenPartitions, number: int, after: int) -> Iterator[Entry]:
        with self._told(number):
            try:
                # One that is set aside meanwhile is good behind the sequence, and done to its end.
                while block := self._block(opened.file(number, removed_too=True), after):
                    yield from block
                    after = block[-1].sequence
            finally:
                opened.close(number)

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
                # With the frame that was written for them alone: nothing else brings it.
                latest = file.frame(row.stream, row.frame_id, row.sequence)
                brought = None
                if latest is not None and latest.sequence <= 0:
                    brought = self.codec.frame(latest, file.number)
                block.append(self.codec.labels(row, file.number, brought))
            if len(block) >= _BLOCK or size >= _BLOCK_BYTES:
                break
        frames.close()
        labels.close()
        return block

    def _file(self, number: int) -> PartitionFile:
        return PartitionFile.open(self.folder.file(number), number)

    @contextmanager
    def _told(self, number: int) -> Iterator[None]:
        """Leaves a partition that cannot be read now, and refuses one that is not as written."""
        try:
            yield
        except StoreFailed as error:
            log.warning("pending: %s It is left where it is.", error)
            self.unread.add(number)
        except ValueError as error:
            self.refuse(number, error)

    def _seen(self, file: PartitionFile) -> Partition:
        """Reads what is in a file. Raises DamagedPartition, StoreFailed."""
        frame, labels = file.last()
        self._events += 1
        size = self.folder.size(file.number)
        return Partition(
            file.number, file.mark, frame, labels, size, self._events, named=self._events
        )

    def _arrange(self) -> None:
        there = sorted(self._there.values(), key=lambda one: (-one.frame, -one.number))
        self.partitions = tuple(there)

    # ---- while it runs

    def commit(self, entries: Sequence[Entry], durable: bool) -> set[int]:
        """Writes entries in the order of their sequence, then sees to expiry and budget.

        durable  all that was ever committed is on the disk when it returns
        returns  sequences of those that are not written, and never will be
        raises   StoreFailed: some partitions may have theirs, and to commit again does no harm
        """
        if self.folder.claim():
            self._find_vanished(list(self._there))
        lost: set[int] = set()
        changes = self._changes(entries, lost)
        for number, ours in changes.items():
            lost.update(self._write(number, ours, durable))
        if durable:
            for number in list(self._unsynced):
                self._sync(number)
        self._count_bytes()
        self._expire(changes)
        lost.update(self._keep_budget(changes, durable))
        return lost

    def refuse(self, number: int, error: Exception) -> None:
        """Sets a partition aside that is not as it was written."""
        suffix = "incompatible" if isinstance(error, OtherPartition) else "corrupt"
        aside = self.folder.set_aside(number, suffix)
        message = f"{error} {aside} What it had is not known any more."
        log.warning("pending: %s", message)
        self._aside = self.folder.size_aside()
        self._forget(number, suffix, message)

    def refuse_found(self, partition: Partition, error: Exception) -> None:
        """Sets a partition aside that a reader could not read, if the file is still the same."""
        there = self._there.get(partition.number)
        if there is not None and there.mark == partition.mark:
            self.refuse(partition.number, error)

    def close(self) -> None:
        """Copies what is in WAL files into the files, and lets another process have the folder."""
        self._open.close_all()
        self.folder.release()

    def _find_vanished(self, numbers: Iterable[int]) -> None:
        """Forgets partitions whose file is gone, or another one."""
        for number in numbers:
            path, known = self.folder.file(number), self._there.get(number)
            if known is not None and mark_of(path) != known.mark:
                self._forget(number, "vanished", f"{path} is gone: somebody has removed it.")

    def _changes(self, entries: Sequence[Entry], lost: set[int]) -> dict[int, Changes]:
        changes: dict[int, Changes] = {}
        for entry in entries:
            try:
                rows = self.codec.rows_of(entry)
            except Exception as error:  # one entry must not stand in the way of all others
                lost.add(entry.sequence)
                log.warning("pending: entry %d cannot be written: %s", entry.sequence, error)
                continue
            ours = changes.setdefault(entry.partition, Changes())
            ours.frames.extend(rows.frames)
            ours.labels.extend(rows.labels)
            ours.absent.extend(rows.absent)
        return changes

    def _write(self, number: int, changes: Changes, durable: bool) -> list[int]:
        """Sequences of what is never written."""
        try:
            return self._write_once(number, changes, durable)
        except ValueError as error:
            self.refuse(number, error)
        except StoreFailed as error:
            # What a failed write leaves in SQLite's memory is not to be trusted.
            self._open.close(number)
            # Where others fill the disk, dropping more helps nobody.
            if error.reason != "full" or self._in_vain or not self._make_room(number):
                raise
        try:
            return self._write_once(number, changes, durable)
        except StoreFailed as error:
            self._open.close(number)
            self._in_vain = error.reason == "full"
            raise
        except ValueError as error:
            self.refuse(number, error)
            raise StoreFailed("failed", str(error)) from error

    def _write_once(self, number: int, changes: Changes, durable: bool) -> list[int]:
        self._find_vanished([number])
        file = self._open.file(number, create=True)
        # One that could not be read at start has more than we know of.
        known = self._there.get(number)
        before = known or self._seen(file)
        lost = file.write(changes, durable)
        frames = max((row.sequence for row in changes.frames), default=0)
        labels = max((row.sequence for row in changes.labels), default=0)
        self._events += 1
        self._there[number] = one = replace(
            before,
            frame=max(before.frame, frames),
            labels=max(before.labels, labels),
            bytes=self.folder.size(number),
            named=self._events if changes.frames or changes.absent else before.named,
        )
        if known and (known.frame == one.frame or self.partitions[0].number == number):
            # Most commits are to the latest one: nothing changes places.
            self.partitions = tuple(self._there[there.number] for there in self.partitions)
        else:
            self._arrange()
        if lost:
            log.warning(
                "pending: entries %s are not written: %s has no frame that they are of, or "
                "another entry with their number",
                *(", ".join(map(str, lost[:8])), file.path),
            )
        (self._unsynced.discard if durable else self._unsynced.add)(number)
        self._in_vain = False
        return lost

    def _sync(self, number: int) -> None:
        """Brings to the disk what of a file is not there yet."""
        file = self._open.get(number) if number in self._unsynced else None
        if file is not None and file.is_there:
            file.sync()
        self._unsynced.discard(number)

    # ---- what goes

    def _expire(self, written: dict[int, Changes]) -> None:
        """Drops partitions that every checkpoint has, when they are older than keep_hours."""
        if not self._there:
            return
        now = max(self._there.values(), key=lambda one: one.last).number
        now = now if self.now is None else self.now
        for number, one in list(self._there.items()):
            if number < now - self.keep and one.last <= self.covered and number not in written:
                self._drop(number, "expired", "it is older than [pending] keep_hours")

    def _keep_budget(self, written: dict[int, Changes], durable: bool) -> list[int]:
        """Sequences of labels that were just written, and went."""
        lost: list[int] = []
        while self.bytes > self.disk_bytes and self._remove_aside():
            pass
        while self.bytes > self.disk_bytes and self._there:
            oldest = min(self._there.values(), key=lambda one: (one.last, one.number))
            alone = len(self._there) == 1
            if self._spared(oldest):
                break
            number = oldest.number
            remedy = ": have [pending] partition_minutes smaller" if alone else ""
            self._drop(number, "budget", f"[pending] disk_bytes is used up{remedy}")
            if number in written and not alone:
                lost += [row.sequence for row in written[number].labels]
            elif number in written:
                # It alone is too large: it begins anew, with what has just been promised.
                lost += self._write_once(number, written[number], durable)
                self._count_bytes()
                break
        return lost

    def _spared(self, one: Partition) -> bool:
        """Tells whether a partition stays for now, and asks for a checkpoint if it does.

        It stays where an entry of it is in no checkpoint, up to twice the budget.
        """
        if one.last <= self.covered or self.bytes > 2 * self.disk_bytes:
            return False
        self.pressed = True
        return True

    def _make_room(self, writing: int) -> bool:
        """Removes what is oldest and in a checkpoint; tells whether there was something."""
        if self._remove_aside():
            return True
        # What no checkpoint has is in no other place: rather nothing new is taken.
        there = self._there.values()
        others = [one for one in there if one.number != writing and one.last <= self.covered]
        if others:
            oldest = min(others, key=lambda one: one.last)
            self._drop(oldest.number, "budget", "the disk is full")
        return bool(others)

    def _remove_aside(self) -> bool:
        """Removes something that was set aside; tells whether there was something."""
        found = self._aside > 0 and self.folder.remove_aside()
        self._aside = self.folder.size_aside()
        self._count_bytes()
        return found

    def _drop(self, number: int, reason: str, why: str) -> None:
        path = self.folder.file(number)
        self._open.close(number)
        try:
            self.folder.remove(number)
        except OSError as error:
            raise StoreFailed("failed", f"{path}: not removed ({error.strerror}).") from error
        self._forget(number, reason, f"{path} is dropped: {why}.")

    def _forget(self, number: int, reason: str, message: str) -> None:
        self._open.close(number)
        if self._there.pop(number, None) is not None:
            self._arrange()
        self.unread.discard(number)
        self._unsynced.discard(number)
        self._dropped.append(Dropped(number, reason, message))
        self._count_bytes()

    def _count_bytes(self) -> None:
        self.bytes = self._aside + sum(one.bytes for one in self._there.values())
