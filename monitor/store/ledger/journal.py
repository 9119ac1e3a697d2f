"""The ledger on disk as a running sidecar uses it, without holding up its loop.

Entries wait, bounded, for a thread that writes them; another thread finds frames again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from monitor.store.ledger.entries import Entry, Kept, LabelEntry, kept
from monitor.store.ledger.entry_bytes import Codec
from monitor.store.ledger.file import StoreFailed
from monitor.store.ledger.folder import PartitionFolder
from monitor.store.ledger.journal_writer import JournalQueue, JournalWriter
from monitor.store.ledger.partitions import Dropped, Partition, PartitionStore, RecentFrame
from monitor.store.ledger.reader import NEVER, Found, PartitionReader

log = logging.getLogger(__name__)

# Why partitions go where nothing is wrong.
_AS_CONFIGURED = ("budget", "expired")


class JournalSettings(Protocol):
    """Reads what the [pending] section says of the disk."""

    disk_bytes: int
    keep_hours: float
    partition_minutes: float
    queue_frames: int
    sync_frames: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """State of the ledger at start.

    sequence    of the last entry; 0 where there is none
    frames      those that are on the disk, the newest last, at most 65536
    partitions  numbers of those that have anything, or cannot be read now
    dropped     why partitions went as it was opened, by number
    uncertain   not all was seen: there may be entries with higher numbers
    """

    sequence: int = 0
    frames: tuple[RecentFrame, ...] = ()
    partitions: tuple[int, ...] = ()
    dropped: Mapping[int, str] = field(default_factory=dict)
    uncertain: bool = False


@dataclass(slots=True)
class Journal:
    """Keeps entries in the folder of [pending]; '' keeps none.

    open, then replay, are called first of all; the rest on the loop.

    tell     told in words when the disk takes no entries, when it does again, and of damage
    pressed  set when a checkpoint is needed, without which the budget cannot be kept
    drops    partitions that went, by reason
    bytes    on the disk, as of the last commit
    """

    folder: Path | None
    config: JournalSettings
    tell: Callable[[str], None]
    codec: Codec = field(default_factory=Codec)
    pressed: asyncio.Event = field(default_factory=asyncio.Event)
    drops: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    _dropped: Callable[[int, str], None] | None = None
    _store: PartitionStore | None = field(init=False)
    _reader: PartitionReader = field(init=False)
    _queue: JournalQueue = field(init=False)
    _writer: JournalWriter | None = field(init=False)
    _partitions: tuple[Partition, ...] = ()
    _failed: int = 0
    _keep: int = 0  # partitions of event time
    _unread: int = 0
    _closed: bool = False
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        folder = PartitionFolder(self.folder or Path())
        keep = self._keep = math.ceil(config.keep_hours * 60 / config.partition_minutes)
        self._reader = PartitionReader(folder, self.codec)
        self._queue = JournalQueue(config.queue_frames)
        self._store = self._writer = None
        if self.folder is not None and config.disk_bytes:
            self._store = PartitionStore(folder, config.disk_bytes, keep, self.codec)
            self._writer = JournalWriter(
                self._store, self._queue, config.sync_frames, self._after, self._say
            )
        self._thread = ThreadPoolExecutor(1, "pending-reader")

    # ---- at start

    def open(self, dropped: Callable[[int, str], None]) -> Opened:
        """Claims the folder and sees what is there. What cannot be used stops nothing.

        Where another sidecar has the folder, it is left alone from now on.

        dropped  told of each partition that goes from now on, and why
        """
        store, writer = self._store, self._writer
        if store is None or writer is None:
            return Opened()
        frames: list[RecentFrame] = []
        try:
            frames = store.open()
        except StoreFailed as error:
            log.warning("pending: %s", error)
            if error.reason == "taken":
                self._store = self._writer = None
                return Opened()
            writer.in_trouble()
        except Exception:
            log.exception("pending: %s cannot be read", self.folder)
        gone = {one.number: one.reason for one in self._take_in()}
        self._dropped = dropped
        written = {one.number for one in self._partitions if one.last}
        numbers = tuple(sorted(written | store.unread))
        last = max((one.last for one in self._partitions), default=0)
        writer.noted = writer.synced = last
        return Opened(last, tuple(frames), numbers, gone, store.uncertain)

    def missing(self, partition: int, now: int) -> str:
        """Counts a partition that went after the last checkpoint; why it did, as far as is known.

        now  partition that event time is in
        """
        # The one that has the oldest entries goes first: mostly it is that of the oldest time. And
        # what is left when one has gone for the budget is much of it.
        there = [one.number for one in self._partitions]
        oldest = bool(there) and partition < min(there)
        why = "budget" if oldest and 2 * self.bytes > self.config.disk_bytes else "vanished"
        if partition < now - self._keep:
            why = "expired"
        self.drops[why] += 1
        return why

    def replay(self, after: int) -> Iterator[Entry]:
        """Yields all entries with a higher sequence, in order."""
        store = self._store
        if store is None:
            return
        try:
            yield from store.replay(after)
        except Exception as error:
            log.exception(
                "pending: the ledger in %s is not replayed",
                self.folder,
            )
            self._say(f"what is in {self.folder} is not replayed: {error}")
        finally:
            self._after()

    def look_up(
        self, stream: str, frame_id: int, partition: int | None, before: int = NEVER
    ) -> Kept | None:
        """Finds a frame as `find` does, at start, where nothing waits. Blocks.

        before  it is told as it was before the entry of that sequence
        """
        store = self._store
        if store is None:
            return None
        found = self._reader.find(stream, frame_id, self._where(partition), before)
        self._see_failed(found)
        for damaged, error in found.damaged:
            store.refuse_found(damaged, error)
        self._after()
        return kept(found.frame, found.labels)

    # ---- while it runs

    def note(self, entry: Entry) -> bool:
        """Has an entry written soon; False where there is no room, and the caller keeps it.

        Frames are refused where many wait; labels where the disk takes none for so long that
        memory runs out.
        """
        return self._writer is not None and self._writer.note(entry)

    @property
    def full(self) -> bool:
        """True while no labels are taken, since the disk has taken none for long."""
        return self._writer is not None and self._queue.full

    async def durable(self, sequence: int) -> bool:
        """Tells whether all entries up to a sequence survive a power failure.

        False where they cannot be written now: writing is tried again, but not waited for. False
        too for labels whose frame was dropped before they were written.
        """
        return self._writer is not None and await self._writer.durable(sequence)

    async def settled(self, sequence: int) -> bool:
        """Returns as `durable`, but for entries that never will be written: these are counted."""
        return self._writer is not None and await self._writer.settled(sequence)

    async def reach(self, sequence: int) -> None:
        """Returns when the disk has all entries up to one, or nothing is kept.

        raises  OSError where the disk does not take them
        """
        if self.keeps and not await self.settled(sequence):
            raise OSError(
                f"the ledger is not on the disk up to entry {sequence}: see [state] folder"
            )

    async def find(self, stream: str, frame_id: int, partition: int | None) -> Kept | None:
        """The latest frame of that name, with its labels, be they written or not."""
        writer = self._writer
        if writer is None:
            return None
        # First what waits: it goes only when it is on the disk.
        frames, labels = self._queue.of((stream, frame_id), partition)
        where, loop = self._where(partition), asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, self._reader.find, stream, frame_id, where)
        self._see_failed(found)
        for damaged, error in found.damaged:
            await writer.refuse(damaged, error)
        if found.frame is not None:
            frames.append(found.frame)
        latest = max(frames, key=lambda frame: abs(frame.sequence), default=None)
        both: list[LabelEntry] = [*found.labels, *labels]
        return kept(latest, both)

    def covered(self, sequence: int, now: int | None = None) -> None:
        """A checkpoint has all up to a sequence: it is not replayed any more, and may expire.

        now  partition that event time is in, as it is believed; None: that of the latest entry
        """
        if self._store is not None:
            self._store.covered, self._store.now = sequence, now

    def covered_always(self) -> None:
        """There are no checkpoints to wait for."""
        self.covered(NEVER)

    async def close(self) -> None:
        """Writes what waits, if the disk takes it, and lets another sidecar have the folder."""
        if self._closed:
            return
        self._closed = True
        writer, self._writer, self._store = self._writer, None, None
        if writer is not None:
            await writer.close()
            self._failed += writer.failures
        await asyncio.get_running_loop().run_in_executor(self._thread, self._reader.close)
        self._thread.shutdown()

    @property
    def failures(self) -> int:
        """Counts failed writes and reads; what was to be written is tried again."""
        return self._failed + (0 if self._writer is None else self._writer.failures)

    @property
    def keeps(self) -> bool:
        """True where there is a ledger at all."""
        return self._store is not None

    @property
    def waiting(self) -> int:
        """Counts entries that are not on the disk yet."""
        return len(self._queue)

    @property
    def partitions(self) -> int:
        """Counts the partitions."""
        return len(self._partitions)

    @property
    def refused(self) -> int:
        """Counts partitions that could not be used, or not be read at start."""
        wrong = sum(count for why, count in self.drops.items() if why not in _AS_CONFIGURED)
        return wrong + self._unread

    # ---- what is seen of the store

    def _where(self, partition: int | None) -> tuple[Partition, ...]:
        """Where to look for a frame."""
        if partition is None:
            return self._partitions
        return tuple(one for one in self._partitions if one.number == partition)

    def _after(self) -> None:
        """Takes in what the store did, and logs it."""
        for dropped in self._take_in():
            if dropped.reason not in _AS_CONFIGURED:
                self._say(dropped.message)

    def _take_in(self) -> list[Dropped]:
        store = self._store
        if store is None:
            return []
        gone = store.take_dropped()
        if store.pressed:
            store.pressed = False
            self.pressed.set()
        self._partitions, self.bytes = store.partitions, store.bytes
        self._unread = len(store.unread)
        if gone:
            self._thread.submit(self._reader.let_go, self._partitions)
        for dropped in gone:
            self.drops[dropped.reason] += 1
            # What others make of it must not end the writing.
            try:
                if self._dropped is not None:
                    self._dropped(dropped.number, dropped.reason)
            except Exception:
                log.exception("pending: not counted as dropped: %s", dropped.message)
        return gone

    def _see_failed(self, found: Found) -> None:
        self._failed += len(found.failed)
        for message in found.failed:
            log.warning("pending: %s", message)

    def _say(self, message: str) -> None:
        try:
            self.tell(message)
        except Exception:
            log.exception("pending: watchers were not told: %s", message)
