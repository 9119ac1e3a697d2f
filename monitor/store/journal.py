"""The ledger as a running sidecar uses it, without holding up its loop.

Entries wait, bounded, for a thread that writes them; another thread finds them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from monitor.store.entries import (
    LABELS,
    Entry,
    FrameEntry,
    JournalQueue,
    Kept,
    Key,
    LabelEntry,
    bodies_of,
    is_frame,
    latest,
    signed,
    unkeyed,
)
from monitor.store.files import (
    Claim,
    LedgerFailed,
    UnusableFile,
    connected,
    failures,
    mark_of,
)
from monitor.store.ledger import LedgerWriter, Opened
from monitor.store.ledger.frame_files import folder_of, read_part
from monitor.store.ledger.schema import COLUMNS, FILE, NEVER, REPLAYED, Row

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_GATHER = 0.05  # s that frames gather before they are written together, while no caller waits
_RETRY = 1.0  # s after a write that failed, while no caller waits
_SYNC = 5.0  # s after which frames are synced, whether labels have come or not
_AT_ONCE = 256  # entries written at once where somebody waits
_AT_EASE = 64  # likewise while none does: the interpreter is not held for a millisecond
_MOST_LOST = 65536  # of the latest entries that are never written, the numbers are known

# After a write the thread rests so many times the processor time that it took, unless somebody
# waits: frames that find no room meanwhile stay in memory. A slow disk costs no processor time.
_REST = 10.0


# ---- the thread that reads


@dataclass(slots=True)
class LedgerReader:
    """Finds what was committed; nothing is changed, and no transaction outlives a call.

    alone    whether no other process has the file open, as on a disk that takes nothing at start
    damaged  entries that are not as they were written, in words by sequence
    """

    path: Path
    alone: bool = False
    mark: tuple[int, int] | None = None
    damaged: dict[int, str] = field(default_factory=dict)
    _connection: sqlite3.Connection | None = None
    _blobs: OrderedDict[int, bytes | None] = field(default_factory=OrderedDict)

    def find(self, stream: str, frame_id: int, partition: int | None, before: int) -> Kept | None:
        """Finds the latest frame of a name before an entry, with its labels.

        None too where one of them is damaged: without it, labels would be counted a second time.

        partition  that it is in; None: any
        raises     UnusableFile, LedgerFailed
        """
        rows = self._rows(
            f"SELECT {COLUMNS} FROM entries WHERE stream = ? AND frame_id = ?"
            " AND abs(sequence) < ? AND (?4 IS NULL OR partition = ?4)"
            " ORDER BY abs(sequence), sequence",
            *(stream, signed(frame_id), before, partition),
        )
        at = max((at for at, row in enumerate(rows) if row[2] != LABELS), default=len(rows))
        entries = [self._entry(row) for row in rows[at:] if row[1] == rows[at][1]]
        sound = [entry for entry in entries if entry is not None]
        return latest(sound) if len(sound) == len(entries) else None

    def after(self, sequence: int) -> Iterator[Entry]:
        """Yields all entries with a higher sequence, in order, but for the damaged ones.

        raises  UnusableFile, LedgerFailed
        """
        while rows := self._rows(REPLAYED, sequence):
            for *row, brought in rows:
                entry = self._entry(tuple(row))
                if isinstance(entry, LabelEntry) and brought is not None and brought <= 0:
                    query = f"SELECT {COLUMNS} FROM entries WHERE sequence = ?"
                    frame = self._entry(self._rows(query, brought)[0])
                    entry = replace(entry, frame=frame if isinstance(frame, FrameEntry) else None)
                if entry is not None:
                    yield entry
            sequence = rows[-1][0]

    def _rows(self, query: str, *values: int | str | None) -> list[Row]:
        with failures(self.path):
            mark = mark_of(self.path)
            if self._connection is None or mark != self.mark:
                self.close()
                mode = "alone" if self.alone else "ro"
                self._connection, self.mark = connected(self.path, mode), mark
            return self._connection.execute(query, values).fetchall()

    def _entry(self, row: Row) -> Entry | None:
        """Decodes an entry; None for one that is not as it was written, which is noted."""
        *fields, blob, start, size, crc = row
        try:
            key, body = Key(*fields), self._body(blob, start, size)
            if key.crc(body) == crc:
                return unkeyed(key, body)
            problem = "it is not as it was written"
        except UnusableFile:
            raise
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            problem = str(error)
        self.damaged.setdefault(row[0], f"entry {row[0]} of {self.path} is left out: {problem}")
        return None

    def _body(self, number: int, start: int, size: int) -> bytes:
        blob = self._blob(number)
        if blob is not None:
            return blob[start : start + size]
        with failures(self.path):
            return read_part(folder_of(self.path), number, start, size)

    def _blob(self, number: int) -> bytes | None:
        """Reads a blob; the last few stay at hand, for the entries that lie beside one.

        returns  None where it is a file
        """
        if number not in self._blobs:
            found = self._rows("SELECT body FROM blobs WHERE id = ?", number)
            self._blobs[number] = found[0][0] if found else b""
            if len(self._blobs) > 4:
                self._blobs.popitem(last=False)
        return self._blobs[number]

    def close(self) -> None:
        """Closes the database."""
        self._blobs.clear()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


# ---- the loop


class LedgerSettings(Protocol):
    """Reads what the [pending] section says of the disk."""

    disk_bytes: int
    keep_hours: float
    partition_minutes: float
    queue_frames: int
    sync_frames: bool


@dataclass(slots=True)
class Journal:
    """Keeps entries in a claimed folder, without holding up the loop; without one it keeps none.

    open, then replay, are called first of all; the rest on the loop.

    tell      told in words when the disk takes no entries, when it does again, and of damage
    pressed   set when a checkpoint is needed, without which the budget cannot be kept
    drops     partitions that went, by reason
    failures  writes and reads that came to nothing, and entries that are never written
    keeps     whether there is a ledger at all
    """

    claim: Claim | None
    settings: LedgerSettings
    tell: Callable[[str], None]
    pressed: asyncio.Event = field(default_factory=asyncio.Event)
    drops: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    keeps: bool = field(init=False)
    _dropped: Callable[[int, str], None] = field(init=False)
    _writer: LedgerWriter = field(init=False)
    _reader: LedgerReader = field(init=False)
    _queue: JournalQueue = field(init=False)
    _noted: int = 0  # sequence of the last entry that was taken
    _synced: int = 0  # and of the last one that is on the disk for good
    _trouble: int = 0  # failed attempts in a row
    _damaged: int = 0  # entries
    _untidy: bool = False
    _unsynced_since: float | None = None
    _lost: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _waiters: list[tuple[int, asyncio.Future[bool]]] = field(default_factory=list)
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _rested_at: float = 0.0
    _busy: float = 0.0  # s of processor that the writer took since it rested
    _task: asyncio.Task[None] | None = None
    _writing: ThreadPoolExecutor = field(init=False)
    _reading: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        settings, path = self.settings, (self.folder or Path()).absolute() / FILE
        keep = math.ceil(settings.keep_hours * 60 / settings.partition_minutes)
        self.keeps = self.claim is not None
        self._writer = LedgerWriter(path, settings.disk_bytes, keep, self.claim)
        self._reader, self._queue = LedgerReader(path), JournalQueue(settings.queue_frames)
        self._writing = ThreadPoolExecutor(1, "pending-writer")
        self._reading = ThreadPoolExecutor(1, "pending-reader")

    @property
    def folder(self) -> Path | None:
        """Returns the folder; None where nothing is kept."""
        return None if self.claim is None else self.claim.folder

    # ---- at start

    def open(self, dropped: Callable[[int, str], None]) -> Opened:
        """Sees what is there. What cannot be used, or written, stops nothing.

        dropped  told of each partition that goes from now on, and why
        """
        opened, self._dropped = Opened(), lambda number, reason: None
        if self.keeps:
            try:
                opened = self._writer.open()
                failed = opened.failed
            except Exception as error:
                failed = str(error)
                self._writer.disconnect()  # a connection would lock out who reads
            if failed:
                log.warning("pending: %s", failed)
                self._trouble = 1  # the disk takes nothing from the start, and that has been said
            self._reader.alone = bool(failed)
            self._take_in()
        self._dropped = dropped
        self._noted = self._synced = opened.sequence
        return opened

    def started(self) -> None:
        """Says that all is done again: the file is no longer read alone."""
        if self._reader.alone:
            self._reader.close()
            self._reader.alone = False

    def replay(self, after: int) -> Iterator[Entry]:
        """Yields all entries with a higher sequence, in order."""
        if not self._writer.partitions:
            return
        try:
            yield from self._reader.after(after)
        except UnusableFile as error:
            self._writer.refuse(self._reader.mark, error)
        except Exception as error:
            log.exception("pending: the ledger in %s is not replayed", self.folder)
            self._say(f"what is in {self.folder} is not replayed: {error}")
        finally:
            self._take_in()

    def look_up(
        self, stream: str, frame_id: int, partition: int | None, before: int = NEVER
    ) -> Kept | None:
        """Finds a frame as `find` does, at start, where nothing waits. Blocks.

        before  it is told as it was before the entry of that sequence
        """
        found = None
        if self._writer.partitions:
            try:
                found = self._reader.find(stream, frame_id, partition, before)
            except UnusableFile as error:
                self._writer.refuse(self._reader.mark, error)
            except LedgerFailed as error:
                self._not_read(error)
            self._take_in()
        return found

    # ---- while it runs

    def note(self, entry: Entry) -> bool:
        """Has an entry written soon; False where it will not be, and the caller keeps it.

        There may be no room: for frames where many wait, for labels where the disk takes none for
        so long that memory runs out. And an entry may have no bytes: it is never durable.
        """
        frame = isinstance(entry, FrameEntry)
        if not self.keeps or (self._queue.crowded(1.0) if frame else self._queue.full):
            return False
        try:
            # Encoded on the loop: an encoding thread would take the interpreter lock from it, and
            # each time the loop waits until the system wakes it.
            self._queue.put(bodies_of(entry))
        except (ValueError, OverflowError, struct.error) as error:
            # One entry must not stand in the way of all others.
            log.warning("pending: entry %d cannot be written: %s", entry.sequence, error)
            self._lose({entry.sequence})
            return False
        self._noted = max(self._noted, entry.sequence)
        self._wake()
        if self._queue.crowded(0.5) and not self._trouble:
            self._hurry.set()
        return True

    @property
    def full(self) -> bool:
        """True while no labels are taken, since the disk has taken none for long."""
        return self._queue.full

    async def durable(self, sequence: int) -> bool:
        """Tells whether all entries up to a sequence survive a power failure.

        False where they cannot be written now: writing is tried again, but not waited for. False
        too for an entry that is never written, such as labels whose frame was dropped before.
        """
        return await self.settled(sequence) and sequence not in self._lost

    async def settled(self, sequence: int) -> bool:
        """Returns as `durable`, but for entries that never will be written: these are counted."""
        if not self.keeps:
            return False
        wanted = min(sequence, self._noted)
        if wanted <= self._synced:
            return True
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append((wanted, written))
        self._wake()
        self._hurry.set()
        self._asked.set()
        return await written

    async def reach(self, sequence: int) -> None:
        """Returns when the disk has all entries up to one, or nothing is kept.

        raises  OSError where the disk does not take them
        """
        if self.keeps and not await self.settled(sequence):
            raise OSError(
                f"the ledger is not on the disk up to entry {sequence}: see [state] folder"
            )

    async def find(self, stream: str, frame_id: int, partition: int | None) -> Kept | None:
        """Finds the latest frame of a name, with its labels, be they written or not."""
        loop = asyncio.get_running_loop()
        # First what waits: it goes only when it is on the disk.
        entries = self._queue.of((stream, signed(frame_id)), partition)
        if self.keeps and self._writer.partitions:
            where = stream, frame_id, partition, NEVER
            try:
                found = await loop.run_in_executor(self._reading, self._reader.find, *where)
                if found is not None:
                    entries += [found.entry, *found.labels]
            except UnusableFile as error:
                refused = self._reader.mark, error
                await loop.run_in_executor(self._writing, self._writer.refuse, *refused)
            except LedgerFailed as error:
                self._not_read(error)
            self._take_in()
        return latest(entries)

    def covered(self, sequence: int, now: int | None = None) -> None:
        """Notes that a checkpoint has all up to a sequence: it may expire, and is not replayed.

        now  partition that event time is in, as it is believed; None: that of the latest entry
        """
        self._writer.covered, self._writer.now = sequence, now

    async def close(self) -> None:
        """Writes what waits, if the disk takes it, and closes the file."""
        loop = asyncio.get_running_loop()
        if not self.keeps:
            return
        while self._queue or self._noted > self._synced:
            if not await self.settled(self._noted):
                break
        self.keeps = False
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        _answer(self._waiters, False)
        if self._queue:
            log.warning("pending: %d entries are lost: the disk takes none", len(self._queue))
        await loop.run_in_executor(self._reading, self._reader.close)
        await loop.run_in_executor(self._writing, self._writer.disconnect)
        self._reading.shutdown()
        self._writing.shutdown()

    # ---- what metrics read

    @property
    def waiting(self) -> int:
        """Counts entries that are not on the disk yet."""
        return len(self._queue)

    @property
    def bytes(self) -> int:
        """Returns the bytes on the disk, about."""
        return self._writer.bytes

    @property
    def partitions(self) -> int:
        """Counts the stretches of event time that have entries."""
        return len(self._writer.partitions)

    @property
    def refused(self) -> int:
        """Counts files and entries that could not be used, and partitions that vanished."""
        return self._writer.refused + self._damaged + self.drops["vanished"]

    # ---- the task that writes

    def _wake(self) -> None:
        self._work.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._due()
            if self._queue or self._waiters or self._unsynced_since is not None:
                await self._attempt()
            if self._untidy and not self._trouble:
                await self._tidy()
            self._rested_at = time.monotonic() + _REST * self._busy
            self._busy = 0.0

    async def _due(self) -> None:
        """Returns when there is something to do, and it is time."""
        if not (self._queue or self._waiters or self._untidy):
            since = self._unsynced_since
            due = None if since is None else max(0.0, since + _SYNC - time.monotonic())
            await set_within(self._work, due)
        self._work.clear()
        if not self._waiters and (self._trouble or len(self._queue) < _AT_EASE):
            await set_within(self._hurry, _RETRY if self._trouble else _GATHER)
        self._hurry.clear()
        if not self._waiters:
            # What writes takes from what answers: the interpreter, and the processor.
            await set_within(self._asked, max(0.0, self._rested_at - time.monotonic()))
        self._asked.clear()

    async def _attempt(self) -> None:
        writer, loop = self._writer, asyncio.get_running_loop()
        batch = self._queue.first(_AT_ONCE if self._waiters else _AT_EASE)
        through = max((bodies[-1].key.sequence for bodies in batch), default=self._noted)
        # Those who come while it is written wait for the next one.
        waiters, self._waiters = self._waiters, []
        since = self._unsynced_since
        durable = (
            self.settings.sync_frames
            or bool(waiters)
            or not all(map(is_frame, batch))
            or (since is not None and time.monotonic() - since >= _SYNC)
        )
        try:
            commit = partial(writer.commit, list(chain(*batch)), durable)
            lost = await loop.run_in_executor(self._writing, self._timed, commit)
        except Exception as error:
            self._failed(error)
            _answer(waiters, False)
        else:
            self._queue.remove_first(len(batch))
            if durable:
                self._unsynced_since = None
                self._synced = max(self._synced, through)
            elif since is None:
                self._unsynced_since = time.monotonic()
            self._recovered()
            self._lose(lost)
            self._untidy = writer.untidy
            there = [one for one in waiters if one[0] <= self._synced]
            _answer(there, True)
            self._waiters[:0] = [one for one in waiters if one[0] > self._synced]
        self._take_in()

    def _timed(self, work: Callable[[], Result]) -> Result:
        """Adds the processor time of some work of the writer's thread."""
        began = time.thread_time()
        try:
            return work()
        finally:
            self._busy += time.thread_time() - began

    async def _tidy(self) -> None:
        writer, loop = self._writer, asyncio.get_running_loop()
        self._untidy = False
        try:
            self._untidy = await loop.run_in_executor(self._writing, self._timed, writer.tidy)
        except UnusableFile as error:
            await loop.run_in_executor(self._writing, writer.refuse, writer.mark, error)
        except Exception as error:  # the next commit tries again
            self.failures += 1
            log.warning("pending: what went is not deleted: %s", error)
        self._take_in()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._trouble += 1
        if self._trouble & (self._trouble - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning("pending: frames and labels are not written: %s", error)
        if self._trouble == 1:
            self._say(f"frames and labels are not written: {error} They wait in memory.")

    def _lose(self, sequences: set[int]) -> None:
        """Notes entries that are never written, lest who waits takes them for written."""
        if not sequences:
            return
        self.failures += len(sequences)
        self._lost.update(dict.fromkeys(sorted(sequences)))
        while len(self._lost) > _MOST_LOST:
            self._lost.popitem(last=False)
        self._say(f"{len(sequences)} entries of the ledger are not written (see the log)")

    def _recovered(self) -> None:
        failed, self._trouble = self._trouble, 0
        if failed:
            message = f"frames and labels are written again, after {failed} failed attempts"
            log.warning("pending: %s", message)
            self._say(message)

    # ---- what the threads have seen

    def _take_in(self) -> None:
        """Takes in what went, and what could not be used, and says so."""
        writer = self._writer
        if writer.pressed:
            writer.pressed = False
            self.pressed.set()
        while writer.dropped:
            gone = writer.dropped.popleft()
            self.drops[gone.reason] += 1
            writer.told[gone.number] = self._noted
            # What others make of it must not end the writing.
            try:
                self._dropped(gone.number, gone.reason)
            except Exception:
                log.exception("pending: partition %d is not counted as dropped", gone.number)
        while writer.said:
            self._say(writer.said.popleft())
        for message in list(self._reader.damaged.values())[self._damaged :]:
            self._damaged += 1
            log.warning("pending: %s", message)
            self._say(message)

    def _not_read(self, error: LedgerFailed) -> None:
        self.failures += 1
        log.warning("pending: %s", error)

    def _say(self, message: str) -> None:
        try:
            self.tell(message)
        except Exception:
            log.exception("pending: watchers were not told: %s", message)


async def set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until an event is set, or for so many seconds; None: for ever."""
    # Not wait_for, which forgets that it was cancelled where both come at once.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _answer(waiters: list[tuple[int, asyncio.Future[bool]]], written: bool) -> None:
    for _, waiter in waiters:
        if not waiter.done():
            waiter.set_result(written)
