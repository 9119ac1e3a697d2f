"""The pending store on disk: frames and labels, one file for each stretch of event time.

So expiry, the byte budget and damage all mean the same: one file goes. What cannot be used is set
aside and said, and stops nothing. Calls come from one thread at a time, but those of `partitions`
and `take_dropped`.
"""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from monitor.edges.partition_codec import Codec
from monitor.edges.partition_file import PartitionFile
from monitor.edges.partition_folder import PartitionFolder
from monitor.edges.partition_parts import (
    Changes,
    DamagedPartition,
    OtherPartition,
    StoreFailed,
    mark_of,
)
from monitor.edges.partition_replay import Replay
from monitor.ledger import Entry

log = logging.getLogger(__name__)

# Frames whose names are given back at start.
MOST_KEYS = 65536
# Partitions that are written to stay open: late labels go to older ones.
_MOST_OPEN = 4


def partition_of(stamp_ns: int, length_ns: int) -> int:
    """The number of the partition that a time in ns lies in, each length_ns long."""
    return stamp_ns // length_ns


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

    reason   "budget", "expired", "corrupt", "incompatible", "unreadable" or "vanished"
    message  in words
    """

    number: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One that is there.

    frame, labels  sequence of the last of either; 0 where there is none
    """

    number: int
    mark: tuple[int, int]
    frame: int = 0
    labels: int = 0
    bytes: int = 0

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
    unwritable   entries that have no bytes, and are lost
    """

    folder: PartitionFolder
    disk_bytes: int
    keep: int
    codec: Codec = field(default_factory=Codec)
    covered: int = 0
    now: int | None = None
    unwritable: int = 0
    bytes: int = 0
    _there: dict[int, Partition] = field(default_factory=dict)
    _open: OrderedDict[int, PartitionFile] = field(default_factory=OrderedDict)
    _unsynced: set[int] = field(default_factory=set)
    _dropped: deque[Dropped] = field(default_factory=deque)
    _aside: int = 0  # bytes
    # Whether a partition was dropped for a full disk, and there was no room all the same.
    _in_vain: bool = False

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Those that are there, the one with the latest frame first."""
        there = list(self._there.values())  # at once: the writer may be at it
        return tuple(sorted(there, key=lambda one: (-one.frame, -one.number)))

    def take_dropped(self) -> list[Dropped]:
        """Those that went since the last call."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    # ---- at start

    def open(self) -> list[RecentFrame]:
        """Claim the folder, and see what is there: the latest frames, the newest last.

        raises  StoreFailed where nothing can be written there
        """
        self.folder.claim()
        keys: list[tuple[int, RecentFrame]] = []
        try:
            numbers = self.folder.numbers()
        except OSError as error:
            raise StoreFailed("failed", f"{self.folder.path} cannot be read: {error}") from error
        for number in numbers:
            try:
                file = PartitionFile.open(self.folder.file(number), number)
            except StoreFailed as error:
                log.warning("pending: %s It is left where it is.", error)
                continue
            except ValueError as error:
                self.refuse(number, error)
                continue
            try:
                frame, labels = file.last()
                rows = file.keys(MOST_KEYS)
            except (StoreFailed, DamagedPartition) as error:
                self.refuse(number, error)
                continue
            finally:
                file.close()
            size = self.folder.size(number)
            self._there[number] = Partition(number, file.mark, frame, labels, size)
            keys += [(row[0], RecentFrame(*row[1:], number)) for row in rows]
            if len(keys) > 2 * MOST_KEYS:
                keys = heapq.nlargest(MOST_KEYS, keys, key=lambda key: key[0])
        self._aside = self.folder.size_aside()
        self._count_bytes()
        keys.sort(key=lambda key: key[0])
        return [frame for _, frame in keys[-MOST_KEYS:]]

    def replay(self, after: int) -> Iterator[Entry]:
        """All entries with a higher sequence, in order, over all partitions.

        A partition that is damaged anywhere behind it gives none.
        """
        numbers = [one.number for one in self._there.values() if one.last > after]
        return Replay(self.folder, self.codec, after, self.refuse).entries(numbers)

    # ---- while it runs

    def commit(self, entries: Sequence[Entry], durable: bool) -> None:
        """Write entries, in the order of their sequence, then see to expiry and budget.

        durable  all that was ever committed is on the disk when it returns
        raises   StoreFailed: some partitions may have theirs, and to commit again does no harm
        """
        if self.folder.claim():
            self._find_vanished()
        changes = self._changes(entries)
        for number, ours in changes.items():
            self._write(number, ours, durable)
        if durable:
            for number in list(self._unsynced):
                self._sync(number)
        self._count_bytes()
        self._expire(changes)
        self._keep_budget(changes, durable)

    def refuse(self, number: int, error: Exception) -> None:
        """Set a partition aside that cannot be used."""
        suffix = "incompatible" if isinstance(error, OtherPartition) else "corrupt"
        suffix = "unreadable" if isinstance(error, OSError) else suffix
        aside = self.folder.set_aside(number, suffix)
        message = f"{error} {aside} What it had is not known any more."
        log.warning("pending: %s", message)
        self._aside = self.folder.size_aside()
        self._forget(number, suffix, message)

    def refuse_found(self, partition: Partition, error: Exception) -> None:
        """The same of one that somebody could not read, if it still is that one."""
        there = self._there.get(partition.number)
        if there is not None and there.mark == partition.mark:
            self.refuse(partition.number, error)

    def close(self) -> None:
        """Copy what is in WAL files into the files, and let another process have the folder."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self.folder.release()

    def _find_vanished(self) -> None:
        """The folder is another one: what was in the one before is gone."""
        for number, one in list(self._there.items()):
            if mark_of(self.folder.file(number)) != one.mark:
                self._vanished(number)

    def _vanished(self, number: int) -> None:
        path = self.folder.file(number)
        self._forget(number, "vanished", f"{path} is gone: somebody has removed it.")

    def _changes(self, entries: Sequence[Entry]) -> dict[int, Changes]:
        changes: dict[int, Changes] = {}
        for entry in entries:
            try:
                rows = self.codec.rows_of(entry)
            except Exception as error:  # one entry must not stand in the way of all others
                self.unwritable += 1
                log.warning("pending: entry %d cannot be written: %s", entry.sequence, error)
                continue
            ours = changes.setdefault(entry.partition, Changes())
            ours.frames.extend(rows.frames)
            ours.labels.extend(rows.labels)
            ours.absent.extend(rows.absent)
        return changes

    def _write(self, number: int, changes: Changes, durable: bool) -> None:
        try:
            self._write_once(number, changes, durable)
            return
        except ValueError as error:
            self.refuse(number, error)
        except StoreFailed as error:
            # What a failed write leaves in SQLite's memory is not to be trusted.
            self._close(number)
            # Where others fill the disk, dropping more helps nobody.
            if error.reason != "full" or self._in_vain or not self._make_room(number):
                raise
        try:
            self._write_once(number, changes, durable)
        except StoreFailed as error:
            self._close(number)
            self._in_vain = error.reason == "full"
            raise
        except ValueError as error:
            self.refuse(number, error)
            raise StoreFailed("failed", str(error)) from error

    def _write_once(self, number: int, changes: Changes, durable: bool) -> None:
        file = self._opened(number)
        file.write(changes, durable)
        before = self._there.get(number) or Partition(number, file.mark)
        frames = max((row.sequence for row in changes.frames), default=0)
        labels = max((row.sequence for row in changes.labels), default=0)
        self._there[number] = replace(
            before,
            frame=max(before.frame, frames),
            labels=max(before.labels, labels),
            bytes=self.folder.size(number),
        )
        (self._unsynced.discard if durable else self._unsynced.add)(number)
        self._in_vain = False

    def _opened(self, number: int) -> PartitionFile:
        """A partition to write to, made where there is none."""
        known, path = self._there.get(number), self.folder.file(number)
        if known is not None and mark_of(path) != known.mark:
            self._vanished(number)
        file = self._open.get(number)
        if file is None:
            file = PartitionFile.open(path, number, create=True)
            self._open[number] = file
        self._open.move_to_end(number)
        while len(self._open) > _MOST_OPEN:
            oldest = next(iter(self._open))
            if oldest in self._unsynced:
                self._sync(oldest)
            self._close(oldest)
        return file

    def _sync(self, number: int) -> None:
        file = self._open.get(number)
        if file is not None and file.is_there:
            file.sync()
        self._unsynced.discard(number)

    def _close(self, number: int) -> None:
        file = self._open.pop(number, None)
        if file is not None:
            file.close()

    # ---- what goes

    def _expire(self, written: dict[int, Changes]) -> None:
        """Of what every checkpoint has, what is older than it is to be kept."""
        if not self._there:
            return
        now = max(self._there.values(), key=lambda one: one.last).number
        now = now if self.now is None else self.now
        for number, one in list(self._there.items()):
            if number < now - self.keep and one.last <= self.covered and number not in written:
                self._drop(number, "expired", "it is older than [pending] keep_hours")

    def _keep_budget(self, written: dict[int, Changes], durable: bool) -> None:
        why = "[pending] disk_bytes is used up"
        while self.bytes > self.disk_bytes and self._remove_aside():
            pass
        while self.bytes > self.disk_bytes and len(self._there) > 1:
            self._drop(self._oldest().number, "budget", why)
        if self.bytes > self.disk_bytes and self._there:
            # It alone is too large: it begins anew, with what has just been promised.
            (number,) = self._there
            self._drop(number, "budget", f"{why}: have [pending] partition_minutes smaller")
            if number in written:
                self._write_once(number, written[number], durable)
                self._count_bytes()

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
        self._close(number)
        try:
            self.folder.remove(number)
        except OSError as error:
            raise StoreFailed("failed", f"{path}: not removed ({error.strerror}).") from error
        self._forget(number, reason, f"{path} is dropped: {why}.")

    def _forget(self, number: int, reason: str, message: str) -> None:
        self._close(number)
        self._there.pop(number, None)
        self._unsynced.discard(number)
        self._dropped.append(Dropped(number, reason, message))
        self._count_bytes()

    def _count_bytes(self) -> None:
        self.bytes = self._aside + sum(one.bytes for one in self._there.values())
