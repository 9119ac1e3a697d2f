"""The partitions of the ledger on disk: one file for each stretch of event time.

So expiry, the byte budget and damage all mean the same: one file goes. A file that cannot be used
is set aside and reported, and stops nothing. Calls come from one thread at a time, but those of
`partitions` and `take_dropped`.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from monitor.store.ledger.codec import Codec
from monitor.store.ledger.entries import Entry
from monitor.store.ledger.file import PartitionFile
from monitor.store.ledger.folder import PartitionFolder
from monitor.store.ledger.open import OpenPartitions
from monitor.store.ledger.parts import Changes, OtherPartition, StoreFailed, mark_of
from monitor.store.ledger.replay import Replay

log = logging.getLogger(__name__)


# Frames whose names are given back at start.
MOST_KEYS = 65536


# Partitions that are written to stay open: late labels go to older ones.
_MOST_OPEN = 4


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
    _place: dict[int, int] = field(default_factory=dict)  # in partitions
    _events: int = 0
    _there: dict[int, Partition] = field(default_factory=dict)
    _open: OpenPartitions = field(init=False)
    _unsynced: set[int] = field(default_factory=set)
    _dropped: deque[Dropped] = field(default_factory=deque)
    _aside: int = 0  # bytes
    # Whether a partition was dropped for a full disk, and there was no room all the same.
    _in_vain: bool = False

    def __post_init__(self) -> None:
        self._open = OpenPartitions(self.folder, _MOST_OPEN, self._closing)

    def take_dropped(self) -> list[Dropped]:
        """Those that went since the last call."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    # ---- at start

    def open(self) -> list[RecentFrame]:
        """Claim the folder, and see what is there: the latest frames, the newest last.

        raises  StoreFailed where nothing can be written there
        """
        self.uncertain = True  # until all is seen
        self.folder.claim()
        keys: list[tuple[int, RecentFrame]] = []
        try:
            numbers = self.folder.numbers()
        except OSError as error:
            raise StoreFailed("failed", f"{self.folder.path} cannot be read: {error}") from error
        whole = True
        for number in numbers:
            try:
                file = PartitionFile.open(self.folder.file(number), number)
                try:
                    one = self._seen(file)
                    rows = file.keys(MOST_KEYS)
                finally:
                    file.close()
            except StoreFailed as error:
                self.leave(number, error)
                whole = False
                continue
            except ValueError as error:
                self.refuse(number, error)
                whole = False
                continue
            self._there[number] = one
            keys += [(row[0], RecentFrame(*row[1:], number)) for row in rows]
            if len(keys) > 2 * MOST_KEYS:
                keys = heapq.nlargest(MOST_KEYS, keys, key=lambda key: key[0])
        self.uncertain = not whole
        self._arrange()
        self._aside = self.folder.size_aside()
        self._count_bytes()
        keys.sort(key=lambda key: key[0])
        return [frame for _, frame in keys[-MOST_KEYS:]]

    def replay(self, after: int) -> Iterator[Entry]:
        """All entries with a higher sequence, in order, over all partitions.

        A partition that is damaged anywhere behind it gives none.
        """
        numbers = [one.number for one in self._there.values() if one.last > after]
        return Replay(self.folder, self.codec, after, self.refuse, self.leave).entries(numbers)

    def leave(self, number: int, error: StoreFailed) -> None:
        """Take note of a partition that cannot be read now, and may be later."""
        log.warning("pending: %s It is left where it is.", error)
        self.unread.add(number)

    def _seen(self, file: PartitionFile) -> Partition:
        """Reads what is in a file. Raises DamagedPartition, StoreFailed."""
        frame, labels = file.last()
        self._events += 1
        size = self.folder.size(file.number)
        return Partition(
            file.number, file.mark, frame, labels, size, self._events, named=self._events
        )

    def _put(self, one: Partition) -> None:
        """As it is now."""
        number = one.number
        before = self._there.get(number)
        self._there[number] = one
        place = self._place.get(number)
        if before is None or place is None or (before.frame != one.frame and place != 0):
            self._arrange()
            return
        # Most commits are to the latest one: nothing changes places.
        self.partitions = (*self.partitions[:place], one, *self.partitions[place + 1 :])

    def _arrange(self) -> None:
        there = sorted(self._there.values(), key=lambda one: (-one.frame, -one.number))
        self._place = {one.number: place for place, one in enumerate(there)}
        self.partitions = tuple(there)

    # ---- while it runs

    def commit(self, entries: Sequence[Entry], durable: bool) -> set[int]:
        """Write entries, in the order of their sequence, then see to expiry and budget.

        durable  all that was ever committed is on the disk when it returns
        returns  sequences of those that are not written, and never will be
        raises   StoreFailed: some partitions may have theirs, and to commit again does no harm
        """
        if self.folder.claim():
            self._find_vanished()
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
        """Set a partition aside that is not as it was written."""
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
        """Copy what is in WAL files into the files, and let another process have the folder."""
        self._open.close_all()
        self.folder.release()

    def _find_vanished(self) -> None:
        """The folder is another one: what was in the one before is gone."""
        for number, one in list(self._there.items()):
            if mark_of(self.folder.file(number)) != one.mark:
                self._vanished(number)

    def _vanished(self, number: int) -> None:
        path = self.folder.file(number)
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
        file = self._opened(number)
        # One that could not be read at start has more than we know of.
        before = self._there.get(number) or self._seen(file)
        lost = file.write(changes, durable)
        frames = max((row.sequence for row in changes.frames), default=0)
        labels = max((row.sequence for row in changes.labels), default=0)
        self._events += 1
        self._put(
            replace(
                before,
                frame=max(before.frame, frames),
                labels=max(before.labels, labels),
                bytes=self.folder.size(number),
                named=self._events if changes.frames or changes.absent else before.named,
            )
        )
        if lost:
            log.warning(
                "pending: entries %s are not written: %s has no frame that they are of, or "
                "another entry with their number",
                *(", ".join(map(str, lost[:8])), file.path),
            )
        (self._unsynced.discard if durable else self._unsynced.add)(number)
        self._in_vain = False
        return lost

    def _opened(self, number: int) -> PartitionFile:
        """A partition to write to, made where there is none."""
        known, path = self._there.get(number), self.folder.file(number)
        if known is not None and mark_of(path) != known.mark:
            self._vanished(number)
        return self._open.file(number, create=True)

    def _closing(self, number: int) -> None:
        """Syncs a file before it is closed, if something in it is not on the disk yet."""
        if number in self._unsynced:
            self._sync(number)

    def _sync(self, number: int) -> None:
        file = self._open.get(number)
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
        why = "[pending] disk_bytes is used up"
        lost: list[int] = []
        while self.bytes > self.disk_bytes and self._remove_aside():
            pass
        while self.bytes > self.disk_bytes and len(self._there) > 1:
            if self._spared(self._oldest()):
                return lost
            oldest = self._oldest().number
            self._drop(oldest, "budget", why)
            if oldest in written:
                lost += [row.sequence for row in written[oldest].labels]
        if self.bytes > self.disk_bytes and self._there:
            # It alone is too large: it begins anew, with what has just been promised.
            (number,) = self._there
            if self._spared(self._there[number]):
                return lost
            self._drop(number, "budget", f"{why}: have [pending] partition_minutes smaller")
            if number in written:
                lost += self._write_once(number, written[number], durable)
                self._count_bytes()
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
        """Remove what is oldest and in a checkpoint; whether there was something."""
        if self._remove_aside():
            return True
        # What no checkpoint has is in no other place: rather nothing new is taken.
        there = self._there.values()
        others = [one.number for one in there if one.number != writing and one.last <= self.covered]
        if not others:
            return False
        oldest = min(others, key=lambda number: self._there[number].last)
        self._drop(oldest, "budget", "the disk is full")
        return True

    def _remove_aside(self) -> bool:
        """Remove something that was set aside; whether there was something."""
        found = self._aside > 0 and self.folder.remove_aside()
        self._aside = self.folder.size_aside()
        self._count_bytes()
        return found

    def _oldest(self) -> Partition:
        return min(self._there.values(), key=lambda one: (one.last, one.number))

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
