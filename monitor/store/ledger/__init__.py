"""The ledger on disk: one SQLite database of entries, with a budget and an age at which they go.

SQLite does not check what it reads, so each entry has a CRC-32. The bytes of frames are in files of
their own. What the bytes of an entry mean is known in `store/entries.py` alone, and which thread
does what in `store/journal.py`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import sqlite3
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from monitor.store.entries import LABELS, Bodies, Key, Piece, unsigned
from monitor.store.files import (
    Claim,
    LedgerFailed,
    Run,
    UnusableFile,
    begin,
    beside,
    connected,
    failures,
    identity,
    mark_of,
    newer,
    set_aside,
    size_of,
    sync_path,
)
from monitor.store.ledger.frame_files import (
    FrameFile,
    FrameFiles,
    folder_of,
    set_files_aside,
    size_on_disk,
)
from monitor.store.ledger.schema import (
    APPLICATION,
    FILES,
    FORMAT,
    INSERT,
    LATEST,
    MOST_RECENT,
    NOT_OURS,
    PAGE,
    RECENT,
    SCHEMA,
    TAKEN,
    WAL_PAGES,
    WITHOUT_FRAME,
    Row,
)

log = logging.getLogger(__name__)

# Commits of frames alone after which the size of the database is looked at.
_COUNTED = 16

# A body is read together with its blob; what is deleted is deleted in portions, and so is what the
# disk gets back: the writer is never busy for long.
_BLOB = 1 << 20  # bytes from which on there is another one
_PORTION = 256  # blobs
_PORTION_BYTES = 4 << 20
_PORTION_PAGES = 128


@dataclass(frozen=True, slots=True)
class GonePartition:
    """A partition that is no longer there.

    reason    "budget", "expired", "corrupt", "incompatible", "unread" or "vanished"
    sequence  of the last entry that was written before it went
    """

    number: int
    reason: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Opened:
    """State of the ledger at start.

    sequence    of the last entry; 0 where there is none
    frames      stream, frame id, stamp and partition of those that are on the disk, the newest
                last, at most 65536
    partitions  numbers of those that have anything
    dropped     partitions that went, by number, until a checkpoint knows of it
    unknown     reason that is given for any other partition that is missing
    failed      why nothing can be written now; '' where all is well
    """

    sequence: int = 0
    frames: tuple[tuple[str, int, int | None, int], ...] = ()
    partitions: frozenset[int] = frozenset()
    dropped: Mapping[int, GonePartition] = field(default_factory=dict)
    unknown: str = "vanished"
    failed: str = ""


@dataclass(slots=True)
class Partition:
    """One that is there.

    last   sequence of the last entry
    bytes  of all bodies in the database
    """

    last: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Stretch:
    """Bodies that one commit puts one behind the other.

    blob   number of the blob, or of the file
    start  where they begin in it
    size   bytes of all pieces
    """

    blob: int
    partition: int
    file: FrameFile | None = None
    start: int = 0
    size: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def row(self) -> Row:
        """Returns the row of `blobs`."""
        body = None if self.file is not None else b"".join(self.pieces)
        return self.blob, self.partition, body


@dataclass(slots=True)
class LedgerWriter:
    """Writes the database; one thread calls, but for what the loop reads and sets by field.

    This connection alone writes and copies the WAL into the file. From 3.7.0 to 3.51.2 (Debian
    has 3.40.1) SQLite can corrupt a database when two connections do so at once, as the WAL is
    begun anew (fixed in 3.51.3).

    disk_bytes   of all files; the partition whose last entry is the oldest goes first
    keep         partitions of event time that one is kept
    claim        of the folder, without which nothing is written; None: the caller has it
    covered      sequence of the last entry that a checkpoint has: what is beyond it is replayed,
                 and does not expire
    now          partition that event time is in; None: that of the latest entry
    in_files     whether bodies of frames go to files of their own
    told         last entry by the time that others knew of a partition that went
    refused      files that were set aside
    """

    path: Path
    disk_bytes: int
    keep: int = 0
    claim: Claim | None = None
    covered: int = 0
    # Whether the budget waits for a checkpoint.
    pressed: bool = False
    now: int | None = None
    in_files: bool = True
    told: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    partitions: dict[int, Partition] = field(default_factory=dict)
    dropped: deque[GonePartition] = field(default_factory=deque)
    said: deque[str] = field(default_factory=deque)
    mark: tuple[int, int] | None = None
    _connection: sqlite3.Connection | None = None
    _last: int = 0  # entry
    _blob: int = 0  # the last one: numbers are not given again
    _gone: dict[int, GonePartition] = field(default_factory=dict)  # as of the start
    # Partitions whose blobs are being deleted: the last blob, and bytes.
    _dying: dict[int, tuple[int, int]] = field(default_factory=dict)
    _files: FrameFiles = field(init=False)
    _wal_pages: int = field(init=False)
    _page: int = PAGE
    _unsynced: bool = False
    # How commits are synced at present.
    _durable: bool | None = None
    # Whether rows were deleted: there may be something to give back to the disk.
    _freed: bool = True
    # On the disk when that was counted last, and how many commits ago that was.
    _wal_bytes: int = 0
    _other_bytes: int = 0
    _aside_bytes: int = 0
    _commits: int = 0
    # Whether a partition was dropped for a full disk, and there was no room all the same.
    _in_vain: bool = False

    def __post_init__(self) -> None:
        self._wal_pages = max(16, min(WAL_PAGES, self.disk_bytes // PAGE // 16))
        self._files = FrameFiles(folder_of(self.path))

    # ---- the file

    def open(self) -> Opened:
        """Reads what is there at start; an unusable file is set aside. Raises LedgerFailed."""
        unknown, failed = "vanished", ""
        try:
            run = self._ready(at_start=True).execute
            with failures(self.path):
                rows = run(RECENT, (MOST_RECENT,)).fetchall()
        except UnusableFile as error:
            self.set_aside(error)
            unknown, rows = error.suffix, []
            self._ready()
        except LedgerFailed as error:
            # A disk that takes nothing has all the same what is to be done again.
            failed, rows = str(error), self._read_alone(error)
        self._count_aside()
        self._count()
        frames = ((row[1], unsigned(row[2]), row[3], row[4]) for row in reversed(rows))
        there, gone = frozenset(self.partitions), self._gone
        self.told = dict.fromkeys(gone, self._last)
        return Opened(self._last, tuple(frames), there, gone, unknown, failed)

    def _read_alone(self, failed: LedgerFailed) -> list[Row]:
        """Reads the file where nothing can be written. Raises what failed if that fails too."""
        try:
            with failures(self.path), contextlib.closing(connected(self.path, "alone")) as run:
                self._read(run, at_start=True)
                rows = run.execute(RECENT, (MOST_RECENT,)).fetchall()
        except (LedgerFailed, UnusableFile):
            raise failed from None
        self.mark = mark_of(self.path)
        return rows

    def _ready(self, *, at_start: bool = False) -> sqlite3.Connection:
        """Returns the connection to the file that is there, which is begun where there is none."""
        if self.mark is not None and mark_of(self.path) != self.mark:
            self._forget("vanished", f"{self.path} is gone: somebody has removed it.")
        if self._connection is not None:
            return self._connection
        with failures(self.path):
            if self.claim is not None and not self.claim.take():
                raise LedgerFailed(f"{self.path.parent}: another sidecar holds this folder.")
            emptied = self.path.exists() and not size_of(self.path, "")
            if emptied or (not self.path.exists() and beside(self.path, "-wal").exists()):
                log.warning("pending: %s was emptied or removed: what it had is lost", self.path)
            if not self.path.exists():
                for stale in ("-wal", "-shm"):  # else SQLite took them for those of the new file
                    beside(self.path, stale).unlink(missing_ok=True)
                begin(self.path)
                sync_path(self.path.parent)
            mark = mark_of(self.path)
            if mark is None:
                raise FileNotFoundError("it is gone, or no regular file")
            connection = connected(self.path, "rw")
            try:
                self._prepare(connection)
                if mark != self.mark:
                    if at_start:  # a file that comes later is set aside as it is
                        self._remove_rows_not_ours(connection)
                        self._remove_torn(connection)
                    self._read(connection, at_start=at_start)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
                raise
        self.mark, self._connection = mark, connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Looks at what the file says of itself, and begins an empty one."""
        run = connection.execute
        application, version = identity(run)
        is_new = not (application or run("SELECT 1 FROM sqlite_master LIMIT 1").fetchone())
        if not is_new and application != APPLICATION:
            raise UnusableFile(f"{self.path}: application_id {application}, and so no ledger.")
        if version > FORMAT:
            raise newer(self.path, version, FORMAT)
        for pragma in (
            f"page_size = {PAGE}",
            "auto_vacuum = INCREMENTAL",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            f"wal_autocheckpoint = {self._wal_pages}",
            f"journal_size_limit = {self._wal_pages * PAGE}",
            "cache_size = -4096",
        ):
            run(f"PRAGMA {pragma}").fetchall()
        (self._page,) = run("PRAGMA page_size").fetchone()
        self._durable = None
        if is_new:
            with self._transaction(connection, durable=True):
                for statement in SCHEMA:
                    run(statement)
        elif version < FORMAT:  # what is there stays as it is, and is read as it was
            run(f"PRAGMA user_version = {FORMAT}")

    def _remove_rows_not_ours(self, connection: sqlite3.Connection) -> None:
        removed = sum(connection.execute(statement).rowcount for statement in NOT_OURS)
        if removed:
            message = f"{removed} rows of {self.path} are not as they were written, and left out"
            log.warning("pending: %s", message)
            self.said.append(message)
            self.refused += removed

    def _remove_torn(self, connection: sqlite3.Connection) -> None:
        """Removes rows of frames that the power took: those of the latest, and of whole files."""
        files = connection.execute(FILES).fetchall()
        sizes, run = self._files.take_in(files), connection.executemany
        empty = [row for row in files if not sizes[row[0]]]
        of_files = run("DELETE FROM entries WHERE blob = ? AND partition = ?", empty).rowcount
        run("DELETE FROM blobs WHERE id = ? AND partition = ?", empty)
        latest = connection.execute(LATEST).fetchall()
        torn = [(row[0],) for row in latest if row[2] > sizes.get(row[1], row[2])]
        run("DELETE FROM entries WHERE sequence = ?", torn)
        if removed := max(0, of_files) + len(torn):
            log.warning("pending: %d frames were lost when the power failed", removed)

    def _read(self, connection: sqlite3.Connection, *, at_start: bool) -> None:
        """Takes in which partitions there are."""
        run = connection.execute
        there = "SELECT partition, max(0, max(sequence)) FROM entries GROUP BY partition"
        rows = run(there).fetchall()
        if rows and not at_start:
            # Its entries were not done again, and their numbers may have been given since.
            raise UnusableFile(f"{self.path}: it could not be read at start.", "unread")
        self.partitions = {number: Partition(last) for number, last in rows}
        self._files.take_in(run(FILES).fetchall())
        gone = run("SELECT partition, reason, sequence, blob FROM gone").fetchall()
        self._gone = {row[0]: GonePartition(*row[:3]) for row in gone}
        (blob,) = run("SELECT max(id) FROM blobs").fetchone()
        self._blob = max([self._blob, blob or 0, *(row[3] for row in gone)])
        lasts = [one.last for one in self.partitions.values()]
        self._last = max([self._last, *lasts, *(row[2] for row in gone)])
        for number, _, _, blob in gone:
            bytes_of = "SELECT sum(length(body)) FROM blobs WHERE partition = ? AND id <= ?"
            if (size := run(bytes_of, (number, blob)).fetchone()[0]) is not None:
                self._dying[number] = blob, size
        bytes_of = "SELECT sum(length(body)) FROM blobs WHERE partition = ? AND id > ?"
        for number, one in self.partitions.items():
            (size,) = run(bytes_of, (number, self._dying.get(number, (0, 0))[0])).fetchone()
            one.bytes = size or 0

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection, durable: bool = False) -> Iterator[None]:
        # Synced when it is committed, or not.
        self._sync_commits(connection, durable)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def _sync_commits(self, connection: sqlite3.Connection, durable: bool) -> None:
        if durable != self._durable:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable

    def refuse(self, mark: tuple[int, int] | None, error: UnusableFile) -> None:
        """Sets the file aside that somebody could not read, if it is still there."""
        if mark is not None and mark == self.mark:
            self.set_aside(error)

    def set_aside(self, error: UnusableFile) -> None:
        """Renames the file, which cannot be used; another one is begun when it is needed."""
        self.disconnect()
        said = set_aside(self.path, error.suffix)
        set_files_aside(self.path, self.path.with_name(f"{self.path.name}.{error.suffix}"))
        self._count_aside()
        self.refused += 1
        self._forget(
            error.suffix, f"{error} {said} Frames and labels in it are not known any more."
        )

    def _forget(self, reason: str, message: str) -> None:
        """Takes the whole file for gone."""
        self.disconnect()
        log.warning("pending: %s", message)
        self.said.append(message)
        self.dropped.extend(GonePartition(number, reason, self._last) for number in self.partitions)
        self.mark = None
        self._files.forget()
        for known in (self.partitions, self._dying, self.told):
            known.clear()

    def disconnect(self) -> None:
        """Closes the database."""
        self._files.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # ---- entries

    def commit(self, bodies: Bodies, durable: bool) -> set[int]:
        """Applies expiry and budget, then writes all bodies or none.

        durable  all that was ever committed is on the disk when it returns, not only in the hands
                 of the system
        returns  sequences of those that are not written, and never will be: labels whose frame is
                 not there, and entries whose number is taken
        raises   LedgerFailed; to commit again does no harm
        """
        lost = set[int]()
        for again in (False, True):
            try:
                lost = self.write(bodies, durable)
                break
            except UnusableFile as error:
                self.set_aside(error)
                if again:
                    raise LedgerFailed(str(error)) from error
            except LedgerFailed as error:
                # What a failed write leaves in SQLite's memory is not to be trusted.
                self.disconnect()
                # Where others fill the disk, dropping more does not help.
                self._in_vain |= again and error.full
                if not error.full or self._in_vain or not self._make_room(bodies):
                    raise
        self._in_vain = False
        return lost

    def write(self, bodies: Bodies, durable: bool) -> set[int]:
        """Commits bodies, once. Raises UnusableFile, LedgerFailed."""
        connection = self._ready()
        run = connection.execute
        with failures(self.path):
            self._expire({key.partition for key, *_ in bodies})
            self._keep_budget()
            lost = self._without_frame(run, [body.key for body in bodies])
            rows, stretches = self._laid_out(
                [body for body in bodies if body.key.sequence not in lost]
            )
            blobs = [one.row for one in stretches if one.file is None or not one.file.known]
            for one in stretches:
                if one.file is not None:
                    self._files.write(one.file, one.pieces)
            if durable:
                # Before the rows, which promise that it is there.
                self._files.sync()
            if bodies:
                # A checkpoint that came later knows that they are gone.
                known = [
                    number
                    for number, entry in self.told.items()
                    if entry < self.covered and number not in self._dying
                ]
                several = self._transaction(connection, durable)
                # One statement is a transaction by itself.
                with several if blobs or known else contextlib.nullcontext():
                    self._sync_commits(connection, durable)
                    for blob in blobs:
                        run("INSERT INTO blobs VALUES (?, ?, ?)", blob)
                    numbered = (json.dumps(rows),)
                    if run(INSERT, numbered).rowcount < len(rows):
                        lost |= {sequence for (sequence,) in run(TAKEN, numbered)}
                    for number in known:
                        run("DELETE FROM gone WHERE partition = ?", (number,))
                for number in known:
                    del self.told[number]
                for one in stretches:
                    if one.file is not None:
                        self._files.written(one.file, one.size)
                if durable and mark_of(self.path) != self.mark:
                    raise FileNotFoundError(errno.ENOENT, "it was removed while it was written")
            for row in rows:
                there = self.partitions.setdefault(row[1], Partition())
                there.last = max(there.last, row[0])
            grown = sum(len(row[2] or b"") for row in blobs)
            for _, number, body in blobs:
                self.partitions[number].bytes += len(body or b"")
            self._commits += 1
            if grown or self._commits >= _COUNTED:
                self._count()
            self._last = max([self._last, *(row[0] for row in rows)])
            if durable and not rows and self._unsynced:
                # Such a commit syncs nothing: what is in the WAL, which no lock of SQLite is on.
                sync_path(beside(self.path, "-wal"), os.O_NOFOLLOW)
            self._unsynced = not durable and (self._unsynced or bool(rows))
        if lost:
            said = ", ".join(map(str, sorted(lost)[:8]))
            log.warning(
                "pending: entries %s are not written: the frame that they are of is not there, or "
                "another entry has their number",
                said,
            )
        return lost

    def _without_frame(self, run: Run, keys: list[Key]) -> set[int]:
        """Finds labels of frames that are not there: what they are of is unknown.

        keys  in the order in which they are written: a frame before its labels
        """
        seen, asked = set[tuple[int, str, int]](), list[Key]()
        for key in keys:
            name = key.partition, key.stream, key.frame_id
            if key.kind != LABELS:
                seen.add(name)
            elif name not in seen:
                asked.append(key)
        if not asked:
            return set()
        return {sequence for (sequence,) in run(WITHOUT_FRAME, (json.dumps(asked),))}

    def _laid_out(self, bodies: Bodies) -> tuple[list[Row], list[_Stretch]]:
        """Returns rows of `entries`, and what lies where."""
        rows, found = list[Row](), list[_Stretch]()
        latest: dict[tuple[int, bool], _Stretch] = {}
        for key, crc, size, pieces in bodies:
            kind = key.partition, self.in_files and key.kind != LABELS
            one = latest.get(kind)
            if one is None or (one.file is None and one.size >= _BLOB):
                one = latest[kind] = self._stretch(*kind)
                found.append(one)
            rows.append((*key, one.blob, one.start + one.size, size, crc))
            one.pieces += pieces
            one.size += size
        return rows, found

    def _stretch(self, partition: int, in_file: bool) -> _Stretch:
        """Begins a blob, or goes on where the file of a partition ends."""
        file = self._files.for_partition(partition) if in_file else None
        if file is None:
            self._blob += 1
            if in_file:
                file = self._files.begin(self._blob, partition)
        if file is None:
            return _Stretch(self._blob, partition)
        return _Stretch(file.number, partition, file, file.size)

    # ---- what goes

    def _expire(self, writing: set[int]) -> None:
        """Drops partitions that every checkpoint has, when they are older than keep_hours."""
        if not self.partitions:
            return
        now = max(self.partitions, key=lambda number: self.partitions[number].last)
        now = now if self.now is None else self.now
        for number, one in list(self.partitions.items()):
            if number < now - self.keep and one.last <= self.covered and number not in writing:
                self._drop(number, "expired")

    def _keep_budget(self) -> None:
        if self.bytes + 2 * self._wal_pages * self._page <= self.disk_bytes:
            return  # without asking SQLite what is free
        while self._in_use() > self.disk_bytes:
            if self._remove_aside():
                continue
            if not self.partitions:
                break
            oldest, one = min(self.partitions.items(), key=lambda item: (item[1].last, item[0]))
            if one.last > self.covered and self._in_use() <= 2 * self.disk_bytes:
                # What is in no checkpoint stays until there is one, which is asked for.
                self.pressed = True
                break
            self._drop(oldest, "budget")

    def _make_room(self, bodies: Bodies) -> bool:
        """Removes what is oldest and in a checkpoint; tells whether there was something."""
        if self._remove_aside():
            return True
        writing = {key.partition for key, *_ in bodies}
        # What no checkpoint has is in no other place: rather nothing new is taken.
        there = [
            (one.last, number)
            for number, one in self.partitions.items()
            if number not in writing and one.last <= self.covered
        ]
        if not there:
            return False
        _, oldest = min(there)
        with failures(self.path):
            self._drop(oldest, "budget")
        while oldest in self._dying:
            self.tidy()
        return True

    def _drop(self, number: int, reason: str) -> None:
        """Lets a partition go: it is not found any more, and its blobs are deleted by `tidy`."""
        connection = self._ready()
        with self._transaction(connection):
            connection.execute("DELETE FROM entries WHERE partition = ?", (number,))
            connection.execute("DELETE FROM blobs WHERE partition = ? AND body IS NULL", (number,))
            connection.execute(
                "INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?)",
                (number, reason, self._last, self._blob),
            )
        self._files.drop(number)
        self._freed = True
        size = self.partitions.pop(number).bytes + self._dying.get(number, (0, 0))[1]
        self._dying[number] = self._blob, size
        self.told.pop(number, None)
        self.dropped.append(GonePartition(number, reason, self._last))

    @property
    def untidy(self) -> bool:
        """Tells whether there may be something for `tidy` to do."""
        return bool(self._dying or self._freed or self._wal_is_long)

    @property
    def _wal_is_long(self) -> bool:
        return self._wal_bytes > 2 * self._wal_pages * self._page

    def tidy(self) -> bool:
        """Deletes a portion of what went, or gives one back to the disk; False at the end.

        raises  UnusableFile, LedgerFailed
        """
        if self._connection is None:
            return False
        run = self._connection.execute
        with failures(self.path):
            self._sync_commits(self._connection, False)
            for number, (last, left) in self._dying.items():
                found = run(
                    "SELECT id, length(body) FROM blobs WHERE partition = ? AND id <= ?"
                    " ORDER BY id LIMIT ?",
                    (number, last, _PORTION),
                ).fetchall()
                if not found:
                    del self._dying[number]
                    return True
                sizes = list(accumulate(length or 0 for _, length in found))
                at = min(bisect_left(sizes, _PORTION_BYTES), len(found) - 1)
                run("DELETE FROM blobs WHERE partition = ? AND id <= ?", (number, found[at][0]))
                self._dying[number] = last, max(0, left - sizes[at])
                return True
            pages, free = self._pages()
            # A file within the budget keeps some room for what comes next.
            over = pages * self._page + size_of(self.path, "-wal") > self.disk_bytes
            if free > max(_PORTION_PAGES, pages // 8) or (over and free):
                # Each page is a row without columns: only a script goes on to the last one.
                self._connection.executescript(f"PRAGMA incremental_vacuum({_PORTION_PAGES})")
                return True
            # What was deleted is in the WAL too, which else grows smaller with the next commits.
            self._wal_bytes = size_of(self.path, "-wal")
            if self._wal_is_long:
                run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._freed = False
        self._count()
        return False

    def _pages(self) -> tuple[int, int]:
        """Counts the pages of the database, and those of them that are free."""
        run = self._ready().execute
        (pages,), (free,) = (
            run(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count")
        )
        return pages, free

    def _in_use(self) -> int:
        """Returns the bytes that would be on the disk if all that went were deleted."""
        pages, free = self._pages()
        dying = sum(size for _, size in self._dying.values())
        ours = max(0, (pages - free) * self._page - dying) + size_of(self.path, "-wal")
        return ours + self._files.bytes + self._aside_bytes

    @property
    def bytes(self) -> int:
        """Returns the bytes on the disk; what the database has grown by lately may be missing."""
        return self._wal_bytes + self._other_bytes + self._files.bytes + self._aside_bytes

    def _count(self) -> None:
        """Asks the system for sizes, which costs more than to write a row."""
        self._wal_bytes = size_of(self.path, "-wal")
        self._other_bytes = size_of(self.path, "", "-shm")
        self._commits = 0

    def _count_aside(self) -> None:
        self._aside_bytes = sum(
            size_of(one) + size_on_disk(folder_of(one)) for one in self._aside()
        )

    def _aside(self) -> list[Path]:
        """Returns the files that were set aside."""
        names = (f"{self.path.name}.{suffix}" for suffix in ("corrupt", "incompatible", "unread"))
        return [path for path in map(self.path.with_name, names) if path.is_file()]

    def _remove_aside(self) -> bool:
        """Removes what was set aside first of all; tells whether there was something."""
        with contextlib.suppress(OSError):
            if found := self._aside():
                oldest = min(found, key=lambda path: path.stat().st_mtime_ns)
                for part in ("-wal", ""):
                    beside(oldest, part).unlink(missing_ok=True)
                shutil.rmtree(folder_of(oldest), ignore_errors=True)
                self._count_aside()
                return True
        return False
