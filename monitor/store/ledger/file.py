"""One file of the ledger: frames of one stretch of event time, with their labels.

A file is an SQLite database in WAL mode. SQLite does not check what it reads, so every row has a
CRC-32 of all that is in it. The meaning of the bodies is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import struct
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from monitor.store.files import private, sync_path

FORMAT = 1

# Small labels are synced one by one, large frames are chained over pages: between the two.
_PAGE = 8192  # bytes

# Pages in the WAL until they are copied into the file, and bytes it keeps afterwards.
_WAL_PAGES = 1024
_WAL_BYTES = _WAL_PAGES * _PAGE
_BLOCK = 16  # rows held at once
_UNSIGNED = (1 << 64) - 1

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID",
    # With a rowid: bodies in the leaves of a table are read and written twice as fast.
    "CREATE TABLE frames (stream TEXT, frame_id INTEGER, sequence INTEGER, stamp_ns INTEGER,"
    " crc INTEGER, body BLOB, UNIQUE (stream, frame_id, sequence))",
    "CREATE INDEX frames_by_sequence ON frames (sequence, stream, frame_id, stamp_ns)",
    "CREATE TABLE labels (sequence INTEGER PRIMARY KEY, stream TEXT, frame_id INTEGER,"
    " revision INTEGER, crc INTEGER, body BLOB)",
    "CREATE INDEX labels_by_frame ON labels (stream, frame_id, sequence)",
)

_FRAME = "frame_id, sequence, stamp_ns, crc, body, stream"
_LABELS = "frame_id, sequence, revision, crc, body, stream"
_BEHIND = "WHERE sequence > ? ORDER BY sequence"

# A frame that labels brought has its own sequence, below 0.
_OF_NAME = "WHERE stream = ? AND frame_id = ? AND abs(sequence) < ? ORDER BY abs(sequence)"

# Codes of SQLite by which a file is not what it should be, and those of a whole disk.
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # a table is not there
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}

_SHORT_READ = 522  # SQLITE_IOERR_SHORT_READ: it ends before its end
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FIXED = struct.Struct("<qqq?")


class StoreFailed(OSError):
    """Nothing of it could be written now. It may be later.

    reason  "full", "taken", or "failed"
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DamagedPartition(ValueError):
    """A file is no partition, or not as it was written."""


class OtherPartition(ValueError):
    """A file that a later version of the monitor wrote."""


@dataclass(frozen=True, slots=True)
class Row:
    """A frame, or labels of one.

    number  a stamp (None where there is none) of a frame, a revision of labels
    """

    stream: str
    frame_id: int
    sequence: int
    number: int | None
    body: bytes

    @property
    def crc(self) -> int:
        """Over all of it."""
        number = 0 if self.number is None else self.number
        fixed = _FIXED.pack(signed(self.frame_id), self.sequence, number, self.number is None)
        return zlib.crc32(self.body, zlib.crc32(self.stream.encode(), zlib.crc32(fixed)))


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that one transaction writes.

    absent  frames that are written only where there is none with their name
    """

    frames: list[Row] = field(default_factory=list)
    labels: list[Row] = field(default_factory=list)
    absent: list[Row] = field(default_factory=list)


def mark_of(path: Path) -> tuple[int, int] | None:
    """Identifies a file among others of the same name; None where there is none."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if path.is_file() and not path.is_symlink() else None


def beside(path: Path, suffix: str) -> Path:
    """A file that SQLite keeps beside its own: "-wal" or "-shm"."""
    return path.with_name(f"{path.name}{suffix}")


def signed(number: int) -> int:
    """64 bits without a sign as SQLite holds them: with one."""
    return number - (1 << 64) if number >= 1 << 63 else number


Rows = Generator[Row, None, None]


@dataclass(slots=True)
class PartitionFile:
    """An open file; used by one thread at a time.

    mark  tells it from another file of the same name
    """

    path: Path
    number: int
    mark: tuple[int, int]
    _connection: sqlite3.Connection

    @staticmethod
    def open(path: Path, number: int, create: bool = False) -> PartitionFile:
        """Opens or begins a partition. Raises DamagedPartition, OtherPartition, StoreFailed."""
        with _failures(path):
            if create and not path.exists():
                for stale in ("-wal", "-shm"):  # else SQLite took them for those of the new file
                    beside(path, stale).unlink(missing_ok=True)
                # Never opened but here: to close a file that SQLite has open frees its locks.
                os.close(private(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))
            mark = mark_of(path)
            if mark is None:
                raise FileNotFoundError("it is gone, or no regular file")
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=1.0,
                isolation_level=None,
                check_same_thread=False,
            )
            # What is no text does not fit its CRC, which says it better.
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
        opened = PartitionFile(path, number, mark, connection)
        try:
            with _failures(path):
                opened._prepare()
        except BaseException:
            opened.close()
            raise
        return opened

    def _prepare(self) -> None:
        run = self._connection.execute
        for pragma in (
            f"page_size = {_PAGE}",
            "trusted_schema = OFF",
            "journal_mode = WAL",
            "synchronous = FULL",
            f"wal_autocheckpoint = {_WAL_PAGES}",
            f"journal_size_limit = {_WAL_BYTES}",
            "cache_size = -1024",
        ):
            run(f"PRAGMA {pragma}").fetchall()
        if not run("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            run("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                run(statement)
            rows = [("format", FORMAT), ("partition", self.number)]
            self._connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
            run("COMMIT")
            sync_path(self.path.parent)
            return
        meta = dict(run("SELECT key, value FROM meta").fetchall())
        written = meta.get("format")
        if isinstance(written, int) and written > FORMAT:
            raise OtherPartition(
                f"{self.path}: format {written}, but this monitor reads {FORMAT}. "
                "Update the monitor."
            )
        if written != FORMAT or meta.get("partition") != self.number:
            raise DamagedPartition(f"{self.path}: it says of itself that it is {meta}.")

    def close(self) -> None:
        """Closes the file; its WAL is copied into it where nobody else has it open."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @property
    def is_there(self) -> bool:
        """True while the path still leads to this file."""
        return mark_of(self.path) == self.mark

    # ---- writing

    def write(self, changes: Changes, durable: bool) -> list[int]:
        """All that can be written, or nothing; what is there already is as before.

        durable  on the disk when the call returns, not only in the hands of the system
        returns  sequences of what is not written, and never will be: labels of a frame that is
                 not there, and what has the number of something else
        raises   DamagedPartition, StoreFailed
        """
        with _failures(self.path):
            run, many = self._connection.execute, self._connection.executemany
            run(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            try:
                run("BEGIN IMMEDIATE")
                lost = self._insert("frames", _FRAME, changes.frames)
                many(
                    f"INSERT INTO frames ({_FRAME}) SELECT ?1,?2,?3,?4,?5,?6 WHERE NOT EXISTS"
                    " (SELECT 1 FROM frames WHERE stream = ?6 AND frame_id = ?1"
                    " AND abs(sequence) = abs(?2))",
                    map(_columns, changes.absent),
                )
                # Without its frame, nobody could say what the labels are of.
                labels = []
                for row in changes.labels:
                    if self._has_frame_of(row):
                        labels.append(row)
                    else:
                        lost.append(row.sequence)
                lost += self._insert("labels", _LABELS, labels)
                run("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        run("ROLLBACK")
                raise
            if not self.is_there:
                raise FileNotFoundError(errno.ENOENT, "it was removed while it was written")
        return lost

    def _insert(self, table: str, columns: str, rows: list[Row]) -> list[int]:
        """Sequences of those whose place something else has."""
        # Never replaced: what is there was promised.
        insert = f"INSERT INTO {table} ({columns}) VALUES (?,?,?,?,?,?) ON CONFLICT DO NOTHING"
        done = self._connection.executemany(insert, map(_columns, rows))
        if not rows or done.rowcount == len(rows):
            return []
        same = (
            f"SELECT 1 FROM {table} WHERE sequence = ? AND stream = ? AND frame_id = ? AND crc = ?"
        )
        run = self._connection.execute
        return [
            row.sequence
            for row in rows
            if not run(same, (row.sequence, row.stream, signed(row.frame_id), row.crc)).fetchone()
        ]

    def _has_frame_of(self, labels: Row) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM frames WHERE stream = ? AND frame_id = ? AND abs(sequence) < ? LIMIT 1",
            (labels.stream, signed(labels.frame_id), labels.sequence),
        )
        return found.fetchone() is not None

    def sync(self) -> None:
        """Brings to the disk what was written without syncing. Raises StoreFailed."""
        # A commit without sync leaves it in the WAL, which no lock of SQLite is on.
        with _failures(self.path):
            sync_path(beside(self.path, "-wal"), os.O_NOFOLLOW)

    # ---- reading

    def last(self) -> tuple[int, int]:
        """Sequence of the last frame and of the last labels; 0 where there are none."""
        with _failures(self.path):
            run = self._connection.execute
            (frame,) = run("SELECT max(sequence) FROM frames").fetchone()
            (labels,) = run("SELECT max(sequence) FROM labels").fetchone()
        # Where all frames are there for their labels alone, the last of them is below 0.
        return max(frame or 0, 0), labels or 0

    def keys(self, limit: int) -> list[tuple[int, str, int, int | None]]:
        """Sequence, stream, frame_id and stamp of the latest frames, the newest first.

        A frame that labels brought has here the sequence that it was entered with.
        """
        with _failures(self.path):
            rows = self._connection.execute(
                "SELECT abs(sequence), stream, frame_id, stamp_ns FROM frames"
                " ORDER BY abs(sequence) DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [(sequence, stream, id_ & _UNSIGNED, stamp) for sequence, stream, id_, stamp in rows]

    def names(self, after: int) -> tuple[list[tuple[str, int]], int]:
        """Stream and frame_id of the frames that were written after so many; how many there are.

        Nothing of their bodies is read.
        """
        # Rows are never removed: their numbers ascend in the order in which they were written.
        query = "SELECT stream, frame_id, rowid FROM frames"
        query += " WHERE rowid > ?" if after else " INDEXED BY frames_by_sequence WHERE ?1 = 0"
        with _failures(self.path):
            rows = self._connection.execute(query, (after,)).fetchall()
        last = max((rowid for _, _, rowid in rows), default=after)
        return [(stream, id_ & _UNSIGNED) for stream, id_, _ in rows], last

    def frames(self, after: int) -> Rows:
        """Frames with a higher sequence, in order. Raises DamagedPartition."""
        return self._rows(f"SELECT {_FRAME} FROM frames {_BEHIND}", after)

    def labels(self, after: int) -> Rows:
        """Labels with a higher sequence, in order. Raises DamagedPartition."""
        return self._rows(f"SELECT {_LABELS} FROM labels {_BEHIND}", after)

    def find(self, stream: str, frame_id: int, before: int) -> tuple[Row | None, list[Row]]:
        """The latest frame of that name before a sequence, and all labels of that name, in order.

        raises  DamagedPartition, StoreFailed
        """
        query = f"SELECT {_LABELS} FROM labels {_OF_NAME}"
        frame = self.frame(stream, frame_id, before)
        return frame, list(self._rows(query, stream, signed(frame_id), before))

    def frame(self, stream: str, frame_id: int, before: int) -> Row | None:
        """The latest frame of that name before a sequence. Raises as `find`."""
        query = f"SELECT {_FRAME} FROM frames {_OF_NAME} DESC LIMIT 1"
        return next(self._rows(query, stream, signed(frame_id), before), None)

    def _rows(self, query: str, *values: int | str) -> Rows:
        with _failures(self.path):
            cursor = self._connection.execute(query, values)
        try:
            while True:
                with _failures(self.path):
                    block = cursor.fetchmany(_BLOCK)
                if not block:
                    return
                for row in block:
                    yield self._checked(*row)
        finally:
            with contextlib.suppress(sqlite3.Error):  # with the file it is closed already
                cursor.close()

    def _checked(
        self, id_: int, sequence: int, number: int | None, crc: int, body: bytes, stream: str
    ) -> Row:
        try:
            row = Row(stream, id_ & _UNSIGNED, sequence, number, body)
            same = row.crc == crc
        except (TypeError, ValueError, AttributeError, struct.error):
            same = False
        if not same:
            raise DamagedPartition(
                f"{self.path}: entry {sequence} is not as it was written: the file is damaged."
            )
        return row


def _columns(row: Row) -> tuple[int, int, int | None, int, bytes, str]:
    return (signed(row.frame_id), row.sequence, row.number, row.crc, row.body, row.stream)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Raises errors of SQLite and of the system as errors of the store."""
    try:
        yield
    except sqlite3.Error as error:
        # The lowest byte is the kind, the rest the details.
        extended = getattr(error, "sqlite_errorcode", None) or 0
        code = extended & 0xFF
        said = f"{path}: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
        if code in _DAMAGED or extended == _SHORT_READ:
            raise DamagedPartition(f"{said}.") from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFailed("full", f"{said}. Free some of the disk.") from error
        raise StoreFailed("failed", f"{said}. Is the folder there, ours, and writable?") from error
    except OSError as error:
        if isinstance(error, StoreFailed):
            raise
        reason = "full" if error.errno in _NO_ROOM else "failed"
        raise StoreFailed(reason, f"{path}: {error.strerror or error}.") from error
