"""state.db: all live state of one sidecar, written in one transaction with one position in the
ledger.

    state.db    the last checkpoint, the recalibrators that it names, and the audit log
    state.db.1  the generation before, made by VACUUM INTO
    lock        held by the one sidecar that writes here (files.Claim)

SQLite is asked whether a file is sound, and every body has a CRC-32. A file with a damaged part is
set aside and said; a damaged record of the audit log is left out alone. What the bodies mean is not
known here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from monitor.store.files import (
    Run,
    UnusableFile,
    begin,
    beside,
    connected,
    identity,
    is_damage,
    is_regular,
    set_aside,
    sync_path,
    temporary_beside,
)

log = logging.getLogger(__name__)
Value = TypeVar("Value")

# What tells a file of ours from any other database, and from one of a later version.
_APPLICATION = 0x63616C73  # "cals"
_FORMAT = 1

# Records of the audit log that are kept: some 8 MB with evidence and factors.
MOST_RECORDS = 20_000

# Damaged records that are named in a message.
_MOST_NAMED = 5

_SCHEMA = (
    # One row: the last entry of the ledger that every part holds, and a CRC of that and of which
    # parts there are.
    "CREATE TABLE checkpoint (position INTEGER NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE parts (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE recalibrators (version TEXT PRIMARY KEY, document BLOB NOT NULL)",
    "CREATE TABLE audit (number INTEGER PRIMARY KEY, crc INTEGER NOT NULL, record BLOB NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_FORMAT}",
)


@dataclass(frozen=True, eq=False, slots=True)
class Contents:
    """Holds what one generation holds.

    source         for messages
    position       of the last entry of the ledger that every part holds; None where it is not known
    parts          bodies by name
    recalibrators  documents by version, the oldest first
    records        of the audit log, the oldest first
    complaints     what could not be used, and why
    """

    source: Path
    position: int | None
    parts: Mapping[str, bytes]
    recalibrators: Mapping[str, bytes]
    records: Sequence[bytes]
    complaints: Sequence[str] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """Holds what one transaction writes.

    parts          bodies by name, each in pieces that are made when they are asked for; a part that
                   is not named stays as it was
    recalibrators  versions to keep, each with what returns its document; all others are deleted
    records        new ones by number, in order; one that is there already stays
    """

    position: int
    parts: Mapping[str, Iterable[bytes]]
    recalibrators: Mapping[str, Callable[[], str]]
    records: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Value]):
    """The newest generation that can be used.

    value       None where there is none
    source      the file it came from
    complaints  what could not be used, and what became of it
    refused     how many generations could not be used
    """

    value: Value | None
    source: Path | None
    complaints: tuple[str, ...]
    refused: int = 0


def state_folder(folder: str | None, name: str, environment: Mapping[str, str]) -> Path | None:
    """Returns the folder of a sidecar; None where nothing is kept.

    folder  as configured: None takes one of the sidecar's name in $STATE_DIRECTORY, else in the XDG
            state home
    name    '' where there is none to take
    raises  ValueError where the user has no home
    """
    if folder is not None:
        return Path(folder).expanduser().absolute() if folder else None
    if not name:
        return None
    # A service manager that gives several names the first.
    for given in environment.get("STATE_DIRECTORY", "").split(":"):
        if given:
            return Path(given).absolute() / name
    base = Path(environment.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        with contextlib.suppress(RuntimeError):
            base = Path("~/.local/state").expanduser()
    if not base.is_absolute():
        raise ValueError(
            "[state] folder: the user has no home to keep state in. Name a folder, or set it to ''."
        )
    return base / "calibration-monitor" / name


@dataclass(slots=True)
class StateFile:
    """state.db of a folder that the caller has claimed; used by one thread at a time."""

    folder: Path

    @property
    def path(self) -> Path:
        """The newer generation."""
        return self.folder / "state.db"

    @property
    def previous(self) -> Path:
        """The generation before."""
        return self.folder / "state.db.1"

    @property
    def generations(self) -> tuple[Path, Path]:
        """Both generations, the newer one first."""
        return self.path, self.previous

    # ---- at start

    def load(self, decode: Callable[[Contents], Value]) -> Loaded[Value]:
        """Decodes the newest generation that can be used, and sets aside those that cannot.

        decode  raises ValueError for contents that it cannot use
        """
        for stale in (*self.folder.glob("state.db.*.tmp"), *self.folder.glob("*.tmp-journal")):
            with contextlib.suppress(OSError):
                stale.unlink()
        complaints: list[str] = []
        for source in self.generations:
            try:
                if not is_regular(source):
                    continue
                contents = _read(source)
                value = decode(contents)
            except Exception as error:
                if not isinstance(error, ValueError | OSError | sqlite3.Error):
                    log.exception("state: %s cannot be used", source)
                said = str(error).rstrip(".")
                complaints.append(f"{source}: {said}. {set_aside(source, _suffix(error))}")
                continue
            refused = len(complaints)
            if source != self.path:
                gone = "" if refused else f"{self.path.name} is not there, and "
                complaints.append(f"{source}: {gone}the generation before is used.")
            return Loaded(value, source, (*complaints, *contents.complaints), refused)
        if complaints:
            complaints[-1] = f"{complaints[-1].rstrip('.')}, and all begins anew."
        return Loaded(None, None, tuple(complaints), len(complaints))

    def keep_copy(self, source: Path) -> str:
        """Keeps a copy of a file of which a part cannot be used here; says so, in a sentence."""
        aside = self.path.with_name("state.db.incompatible")
        try:
            with temporary_beside(aside) as temporary:
                _copy(source, temporary)
                temporary.replace(aside)
        except (OSError, sqlite3.Error) as error:
            return f"A copy of the file cannot be kept as {aside.name} ({error})."
        return f"A copy of the file is kept as {aside.name}."

    # ---- while it runs

    def write(self, checkpoint: Checkpoint) -> int:
        """Keeps what is there as the generation before, then writes a checkpoint over it.

        When it returns, the checkpoint is on the disk. Whenever the process or the machine dies,
        each of both files is whole. Raises OSError, sqlite3.Error, UnusableFile; the file is then
        as before.

        returns  the position of the generation before; 0 where there is none
        """
        with temporary_beside(self.previous) as temporary:
            if kept := self._copied(self.path, temporary):
                temporary.replace(self.previous)
                sync_path(self.folder)
        if kept:
            _commit(self.path, checkpoint)
        else:
            with temporary_beside(self.path) as temporary:
                # What a checkpoint does not bring, such as the audit log, goes on.
                if not self._copied(self.previous, temporary):
                    begin(temporary)
                _commit(temporary, checkpoint)
                # Else SQLite took it for the journal of the new file.
                beside(self.path, "-journal").unlink(missing_ok=True)
                temporary.replace(self.path)
        sync_path(self.folder)
        return _position(self.previous)

    def _copied(self, source: Path, target: Path) -> bool:
        """Copies a generation; False where there is none, or a damaged one, which is set aside."""
        if not is_regular(source):
            return False
        try:
            _copy(source, target)
            _read(target)
        except (sqlite3.DatabaseError, UnusableFile) as error:
            if _suffix(error) != "corrupt":
                raise
            target.unlink(missing_ok=True)
            log.warning("state: %s: %s %s", source, error, set_aside(source, "corrupt"))
            return False
        return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Run]:
    with contextlib.closing(connected(path, "rw", patience=10.0)) as connection:
        yield connection.execute


def _copy(source: Path, target: Path) -> None:
    """Copies a database of ours, synced and private; the target must not be there."""
    begin(target)
    with _opened(source) as run:
        _check(run)
        run("VACUUM INTO ?", (str(target),))
    # SQLite does not sync what it vacuums into.
    sync_path(target, os.O_NOFOLLOW)


def _commit(path: Path, checkpoint: Checkpoint) -> None:
    with _opened(path) as run:
        # Its journal's end, too, is on the disk when a commit returns.
        run("PRAGMA synchronous = EXTRA")
        run("BEGIN IMMEDIATE")
        if run("PRAGMA user_version").fetchone() == (0,):
            for statement in _SCHEMA:
                run(statement)
        run("DELETE FROM checkpoint")
        for name, pieces in checkpoint.parts.items():
            body = b"".join(pieces)
            run("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", (name, zlib.crc32(body), body))
        parts = run("SELECT name, crc FROM parts").fetchall()
        head = checkpoint.position, _crc(checkpoint.position, parts)
        run("INSERT INTO checkpoint VALUES (?, ?)", head)
        there = {version for (version,) in run("SELECT version FROM recalibrators")}
        for version in there.difference(checkpoint.recalibrators):
            run("DELETE FROM recalibrators WHERE version = ?", (version,))
        for version, document in checkpoint.recalibrators.items():
            if version not in there:
                run("INSERT INTO recalibrators VALUES (?, ?)", (version, document().encode()))
        for number, record in checkpoint.records:
            audited = number, zlib.crc32(record), record
            run("INSERT OR IGNORE INTO audit VALUES (?, ?, ?)", audited)
        kept = (MOST_RECORDS,)
        run("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", kept)
        run("COMMIT")


def _check(run: Run) -> None:
    """Raises UnusableFile where it is no database of ours and of this version."""
    application, version = identity(run)
    if application != _APPLICATION:
        raise UnusableFile("it is no state of a sidecar.")
    if version != _FORMAT:
        raise UnusableFile(
            f"format {version}, but this monitor reads {_FORMAT}. Use the monitor that wrote it.",
            "incompatible",
        )


def _position(path: Path) -> int:
    """Reads how far a generation has come; 0, so that all is done again, where it cannot."""
    with contextlib.suppress(OSError, sqlite3.Error), _opened(path) as run:
        for (position,) in run("SELECT position FROM checkpoint"):
            return int(position)
    return 0


def _crc(position: int, parts: Iterable[tuple[str, int]]) -> int:
    return zlib.crc32(repr((position, sorted(parts))).encode())


def _read(path: Path) -> Contents:
    """Reads a generation that is whole. Raises UnusableFile, OSError, sqlite3.Error."""
    with _opened(path) as run:
        _check(run)
        (found,) = run("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise UnusableFile(f"it is damaged ({found}).")
        heads = run("SELECT position, crc FROM checkpoint").fetchall()
        parts = run("SELECT name, crc, body FROM parts").fetchall()
        recalibrators = run("SELECT version, document FROM recalibrators ORDER BY rowid").fetchall()
        audit = run("SELECT number, crc, record FROM audit ORDER BY number").fetchall()
    names = [(str(name), crc) for name, crc, _ in parts]
    if len(heads) != 1 or heads[0][1] != _crc(heads[0][0], names):
        raise UnusableFile("its position in the ledger is not as it was written: it is damaged.")
    for version, document in recalibrators:
        if not isinstance(version, str) or not isinstance(document, bytes):
            raise UnusableFile("its recalibrators are not as they were written: it is damaged.")
    for name, crc, body in parts:
        if not isinstance(body, bytes) or zlib.crc32(body) != crc:
            raise UnusableFile(f"its {name} is not as it was written: it is damaged.")
    # A damaged record costs itself alone; a damaged recalibrator has another version than it says.
    sound = [isinstance(record, bytes) and zlib.crc32(record) == crc for _, crc, record in audit]
    lost = [number for (number, _, _), good in zip(audit, sound, strict=True) if not good]
    complaints = []
    if lost:
        numbers = ", ".join(map(str, lost[:_MOST_NAMED]))
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        complaints.append(
            f"{path}: {len(lost)} of {len(audit)} records of the audit log are damaged and left "
            f"out ({numbers}{more}); nothing else is lost."
        )
    return Contents(
        source=path,
        position=heads[0][0],
        parts={name: body for name, _, body in parts},
        recalibrators=dict(recalibrators),
        records=[record for (_, _, record), good in zip(audit, sound, strict=True) if good],
        complaints=complaints,
    )


def _suffix(error: Exception) -> str:
    """Returns what a file that cannot be used is set aside with."""
    unreadable = isinstance(error, OSError)
    if isinstance(error, sqlite3.Error):
        unreadable = not is_damage(error)
    return "unreadable" if unreadable else getattr(error, "suffix", "corrupt")
