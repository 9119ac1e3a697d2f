"""Entries of the ledger on their way to the disk: a bounded queue with its writer.

The writer takes all that waits at once and tells when it is on the disk. Everything is decided on
the loop; a thread does what blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from monitor.store.ledger.entries import Entry, FrameEntry, LabelEntry
from monitor.store.ledger.partitions import Partition, PartitionStore

log = logging.getLogger(__name__)

# Bytes of labels in waiting, where the disk takes nothing for long: memory has an end too.
MOST_LABEL_BYTES = 64 * 2**20
_ENTRY = 512  # bytes of Python, about
FrameKey = tuple[str, int]

# s that frames gather before they are written together, where nobody waits for it.
_GATHER = 0.05

# s after a write that failed, where nobody waits for it.
_RETRY = 1.0

# s after which frames are synced, whether labels have come or not.
_SYNC = 5.0

# Of the latest entries that are never written, the numbers are known.
_MOST_LOST = 65536

# Entries written at once: where that fails, so many are made into bytes again.
_AT_ONCE = 256

# So many times as long as a write took, none follows, unless somebody waits for it: frames that
# find no room meanwhile stay in memory.
_REST = 3.0


@dataclass(slots=True)
class JournalQueue:
    """Entries in their order, and by their frame.

    most_frames  that may wait
    """

    most_frames: int
    frames: int = 0
    label_bytes: int = 0
    _entries: deque[Entry] = field(default_factory=deque)
    _by_key: dict[FrameKey, list[Entry]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """True while there is no room for labels."""
        return self.label_bytes >= MOST_LABEL_BYTES

    def put(self, entry: Entry) -> bool:
        """Lets an entry wait; False where there is no room."""
        is_frame = isinstance(entry, FrameEntry)
        if (self.frames >= self.most_frames) if is_frame else self.full:
            return False
        self._count(entry, 1)
        self._entries.append(entry)
        self._by_key.setdefault(_key(entry), []).append(entry)
        return True

    def first(self, count: int) -> list[Entry]:
        """The first ones; they stay."""
        return list(islice(self._entries, count))

    def remove_first(self, count: int) -> None:
        """They need not wait any more."""
        for _ in range(count):
            entry = self._entries.popleft()
            self._count(entry, -1)
            key = _key(entry)
            ours = self._by_key[key]
            ours.pop(0)
            if not ours:
                del self._by_key[key]

    def _count(self, entry: Entry, sign: int) -> None:
        if isinstance(entry, FrameEntry):
            self.frames += sign
        else:
            self.label_bytes += sign * _size(entry)

    def of(self, key: FrameKey, partition: int | None) -> tuple[list[FrameEntry], list[LabelEntry]]:
        """Lists what waits of one frame: frames, those that labels bring among them, and labels."""
        frames, labels = [], []
        for entry in self._by_key.get(key, ()):
            if partition is not None and entry.partition != partition:
                continue
            if isinstance(entry, FrameEntry):
                frames.append(entry)
            else:
                labels.append(entry)
                if entry.frame is not None:
                    frames.append(entry.frame)
        return frames, labels


def _key(entry: Entry) -> FrameKey:
    if isinstance(entry, FrameEntry):
        return (entry.frame.header.stream, entry.frame.frame_id)
    return (entry.stream, entry.frame_id)


def _size(entry: LabelEntry) -> int:
    record = entry.record
    arrays = (record.settled, record.outcome, record.rows, record.truth, record.class_rows)
    truth = 0 if record.truth_covariance is None else record.truth_covariance.nbytes
    frame = 0 if entry.frame is None else entry.frame.frame.nbytes + _ENTRY
    return _ENTRY + truth + frame + sum(array.nbytes for array in arrays)


@dataclass(slots=True)
class JournalWriter:
    """The writing half of a journal.

    after     called on the loop when something was written, or could not be
    tell      told in words when the disk takes nothing, and when it does again
    noted     sequence of the last entry that was taken
    synced    and of the last one that is on the disk for good
    failures  writes that came to nothing, and entries that are never written
    """

    store: PartitionStore
    queue: JournalQueue
    sync_frames: bool
    after: Callable[[], None]
    tell: Callable[[str], None]
    noted: int = 0
    synced: int = 0
    failures: int = 0
    _trouble: int = 0  # failed attempts in a row
    _unsynced_since: float | None = None
    _lost: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _waiters: list[tuple[int, asyncio.Future[bool]]] = field(default_factory=list)
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _rested_at: float = 0.0
    _task: asyncio.Task[None] | None = None
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "pending-writer")
    )

    def note(self, entry: Entry) -> bool:
        """Has an entry written soon; False where there is no room for it."""
        if not self.queue.put(entry):
            return False
        self.noted = max(self.noted, entry.sequence)
        self._wake()
        if self.queue.frames * 2 > self.queue.most_frames and not self._trouble:
            self._hurry.set()
        return True

    async def durable(self, sequence: int) -> bool:
        """Waits as `settled` does; False for an entry that is never written, though others are."""
        return await self.settled(sequence) and sequence not in self._lost

    async def settled(self, sequence: int) -> bool:
        """Tells whether all entries up to a sequence are on the disk, or never will be.

        False after an attempt that failed.
        """
        wanted = min(sequence, self.noted)
        if wanted <= self.synced:
            return True
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append((wanted, written))
        self._wake()
        self._hurry.set()
        self._asked.set()
        return await written

    async def refuse(self, partition: Partition, error: Exception) -> None:
        """Sets a partition aside that somebody could not read."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self.store.refuse_found, partition, error)
        self.after()

    async def close(self) -> None:
        """Writes what waits, if the disk takes it, and lets another sidecar have the folder."""
        while self.queue or self.noted > self.synced:
            if not await self.settled(self.noted):
                break
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        _answer(self._waiters, False)
        if self.queue:
            log.warning(
                "pending: %d entries are lost: the disk takes none",
                len(self.queue),
            )
        await asyncio.get_running_loop().run_in_executor(self._thread, self.store.close)
        self._thread.shutdown()

    # ---- the task

    def _wake(self) -> None:
        self._work.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._due()
            if self.queue or self._waiters or self._unsynced_since is not None:
                began = time.monotonic()
                await self._attempt()
                ended = time.monotonic()
                self._rested_at = ended + _REST * (ended - began)

    async def _due(self) -> None:
        """Returns when there is something to do, and it is time."""
        if not (self.queue or self._waiters):
            since = self._unsynced_since
            due = None if since is None else max(0.0, since + _SYNC - time.monotonic())
            await _set_within(self._work, due)
        self._work.clear()
        if not self._waiters and (self._trouble or len(self.queue) < _AT_ONCE):
            await _set_within(self._hurry, _RETRY if self._trouble else _GATHER)
        self._hurry.clear()
        if not self._waiters:
            # What writes takes from what answers: the interpreter, and the processor.
            await _set_within(self._asked, max(0.0, self._rested_at - time.monotonic()))
        self._asked.clear()

    async def _attempt(self) -> None:
        batch = self.queue.first(_AT_ONCE)
        through = max((entry.sequence for entry in batch), default=self.noted)
        # Those who come while it is written wait for the next one.
        waiters, self._waiters = self._waiters, []
        since = self._unsynced_since
        durable = (
            self.sync_frames
            or bool(waiters)
            or any(isinstance(entry, LabelEntry) for entry in batch)
            or (since is not None and time.monotonic() - since >= _SYNC)
        )
        try:
            loop = asyncio.get_running_loop()
            lost = await loop.run_in_executor(self._thread, self.store.commit, batch, durable)
        except Exception as error:
            self._failed(error)
            _answer(waiters, False)
        else:
            self.queue.remove_first(len(batch))
            if durable:
                self._unsynced_since = None
                self.synced = max(self.synced, through)
            elif since is None:
                self._unsynced_since = time.monotonic()
            self._recovered()
            self._lose(lost)
            there = [one for one in waiters if one[0] <= self.synced]
            _answer(there, True)
            self._waiters[:0] = [one for one in waiters if one[0] > self.synced]
        self.after()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._trouble += 1
        if self._trouble & (self._trouble - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning("pending: frames and labels are not written: %s", error)
        if self._trouble == 1:
            self.tell(f"frames and labels are not written: {error} They wait in memory.")

    def _lose(self, sequences: set[int]) -> None:
        """Notes entries that are never written, lest who waits takes them for written."""
        if not sequences:
            return
        self.failures += len(sequences)
        self._lost.update(dict.fromkeys(sorted(sequences)))
        while len(self._lost) > _MOST_LOST:
            self._lost.popitem(last=False)
        self.tell(f"{len(sequences)} entries of the ledger are not written (see the log)")

    def _recovered(self) -> None:
        failed, self._trouble = self._trouble, 0
        if failed:
            message = f"frames and labels are written again, after {failed} failed attempts"
            log.warning("pending: %s", message)
            self.tell(message)

    def in_trouble(self) -> None:
        """The disk takes nothing from the start, and that has been said."""
        self._trouble = 1


async def _set_within(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _answer(waiters: list[tuple[int, asyncio.Future[bool]]], written: bool) -> None:
    for _, waiter in waiters:
        if not waiter.done():
            waiter.set_result(written)
