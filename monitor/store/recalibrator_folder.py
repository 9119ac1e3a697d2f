"""The folder in which a sidecar stores its recalibrators.

    versions/<version>.json  a recalibrator that the state names, as `fit --output` writes it;
                             written once, removed when no generation of the state names it
    history.jsonl            the audit log, and history.jsonl.1 before it
    state                    what is active and on trial, and state.1 before it
    state.lock               held by the one sidecar that writes here

What is written is whole and on the disk when the call returns, and private to its owner.

The audit log holds one record a line, each with the CRC-32 of its own text. Lines are appended and
synced, and never changed. What a killed writer left of a line is cut off; a line that has been
damaged since is left out and reported, and the others stay readable.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from monitor.frames.marks import Count
from monitor.promotion.records import Record
from monitor.promotion.register import Follower
from monitor.promotion.trial import AwaitingGuard, Candidate, Guard
from monitor.recalibration.classes.class_selection import (
    CLASS_IDENTITY,
    AnySelection,
)
from monitor.recalibration.documents import InvalidRecalibrator
from monitor.recalibration.selection import IDENTITY
from monitor.store.codec import Codec, Content, InvalidDocument
from monitor.store.codec import OtherFormat as OtherRegister
from monitor.store.recalibrator_documents import any_selection_from_json
from monitor.store.snapshot import (
    Claim,
    Kind,
    Loaded,
    OtherFormat,
    SnapshotFile,
    is_regular,
    private,
    remove_temporaries,
    sync_path,
    temporary_beside,
)


@dataclass(frozen=True, slots=True)
class ConfiguredVersions:
    """Versions that the configuration named when this was written; '' where it named none."""

    recalibrator: str = ""
    class_recalibrator: str = ""


@dataclass(frozen=True, slots=True)
class RegisterState:
    """Recalibrators that are active and on trial at one moment.

    selection, class_selection
               active versions
    previous, class_previous
               versions that a rollback goes back through, the latest last
    sent       versions of documents that people have sent
    pinned     nothing acts by itself
    sequence   of the latest record
    spent      trials begun since the last change, by slice name
    befores    recalibrators of before, where no track has come since
    followers  of adaptive champions, by slice name
    """

    selection: str
    class_selection: str
    previous: tuple[str, ...] = ()
    class_previous: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    configured: ConfiguredVersions = ConfiguredVersions()
    pinned: bool = False
    sequence: Count = 0
    spent: Mapping[str, Count] = field(default_factory=dict)
    trials: tuple[Candidate, ...] = ()
    guards: tuple[Guard, ...] = ()
    befores: tuple[AwaitingGuard, ...] = ()
    followers: Mapping[str, Follower] = field(default_factory=dict)

    @property
    def active(self) -> frozenset[str]:
        """Versions without which the state cannot be used."""
        return frozenset((self.selection, self.class_selection))

    @property
    def named(self) -> frozenset[str]:
        """All versions that somebody may ask for because of it."""
        return self.active.union(self.previous, self.class_previous, self.sent)


# Fields of a trial that stood beside those of its candidate in a register/1.
_OF_TRIAL = ("slice", "recalibrator", "number", "clip", "bets", "unsound")


def _register_1(state: Content) -> Content:
    """Turns the content of a register/1 into that of a register/3."""
    followers = state.get("followers", {})
    return {
        **_register_2(state),
        "trials": [_nested(one, "trial", _OF_TRIAL) for one in state.get("trials", ())],
        "guards": [_nested(one, "watch", ("runs",)) for one in state.get("guards", ())],
        "followers": {name: _renamed(one) for name, one in followers.items()},
    }


def _register_2(state: Content) -> Content:
    """Drops the position in the ledger: it is the one of all that is stored."""
    return {name: value for name, value in state.items() if name != "entry"}


def _nested(content: Content, name: str, fields: Sequence[str]) -> Content:
    inner = {field: content.pop(field) for field in fields if field in content}
    return {**content, name: inner}


def _renamed(follower: Content) -> Content:
    return {"active" if name == "in_force" else name: one for name, one in follower.items()}


REGISTER_CODEC = Codec(
    RegisterState,
    "register",
    "Use the state of before, or promote anew.",
    "calibration-monitor/register/3",
    {
        "calibration-monitor/register/1": _register_1,
        "calibration-monitor/register/2": _register_2,
    },
)
RECORD_CODEC = Codec(Record, "record", "The record is left out.", lenient=True)

# Bytes of one of the two files: 5,000 records with evidence and the factors of three dimensions,
# 12,000 of a few words. So much is kept at least, and up to twice as much.
LARGEST = 4 * 2**20

# What ends the object of a line: the CRC-32, in hexadecimal digits, of all that stands before.
_MARK = b',"crc32":"'

# Lines that are named in a message.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class History:
    """Records found at start.

    records     in order
    complaints  what was left out, and why
    """

    records: tuple[Record, ...]
    complaints: tuple[str, ...]


@dataclass(slots=True)
class AuditLog:
    """A file of one process, and the older one that it took the place of when it was full.

    largest  bytes of either
    """

    path: Path
    largest: int = LARGEST
    # Where the last whole line ends; None where that is not known.
    _end: int | None = field(default=None, init=False)

    @property
    def older(self) -> Path:
        """Path of the file with the records before those of `path`."""
        return self.path.with_name(f"{self.path.name}.1")

    def read(self) -> History:
        """All that is there; to be called by who has the lock. Raises OSError."""
        records: list[Record] = []
        complaints: list[str] = []
        for path in (self.older, self.path):
            if is_regular(path):
                found = _read_history(path.read_bytes(), path)
                records += found.records
                complaints += found.complaints
        return History(tuple(records), tuple(complaints))

    def append(self, records: Sequence[Record]) -> None:
        """Write at the end, and sync. Raises OSError: then they are to be appended again."""
        lines = b"".join(_line(record) for record in records)
        is_new = not is_regular(self.path)
        if self._end is None:
            self._end = 0 if is_new else self.path.read_bytes().rfind(b"\n") + 1
        if self._end and self._end + len(lines) > self.largest:
            os.truncate(self.path, self._end)
            self.path.replace(self.older)
            self._end, is_new = 0, True
        with open(self.path, "ab", opener=private) as file:
            # What a writer began and did not finish, this one or one before, is no part of it.
            file.truncate(self._end)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_path(self.path.parent)
        self._end += len(lines)


def _line(record: Record) -> bytes:
    text = RECORD_CODEC.write(record).removesuffix(b"}")
    return b'%b%b%08x"}\n' % (text, _MARK, zlib.crc32(text))


def _read_history(data: bytes, path: Path) -> History:
    *lines, rest = data.split(b"\n")
    records: list[Record] = []
    damaged: dict[int, InvalidDocument] = {}
    for number, line in enumerate(lines, 1):
        try:
            text, mark, crc = line.rpartition(_MARK)
            if not mark or crc != b'%08x"}' % zlib.crc32(text):
                raise InvalidDocument("its text is not what its crc32 was made of.")
            records.append(RECORD_CODEC.read(line))
        except InvalidDocument as error:
            damaged[number] = error
    complaints = []
    if damaged:
        first, *_ = damaged.values()
        numbers = ", ".join(map(str, list(damaged)[:_MOST_NAMED]))
        more = f" and {len(damaged) - _MOST_NAMED} more" if len(damaged) > _MOST_NAMED else ""
        complaints.append(
            f"{path}: {len(damaged)} of {len(lines)} lines are left out (line {numbers}{more}): "
            f"{first} They stay in the file; nothing else is lost."
        )
    if rest:
        complaints.append(
            f"{path}: {len(rest)} bytes of a line that was never finished are no record, and "
            f"are cut off by the next one: {rest[:80]!r}."
        )
    return History(tuple(records), tuple(complaints))


REGISTER = Kind(
    b"calrecal", "recalibrators", "recalibrators", "It is no `state` of a [promotion] folder."
)

# They are known without a file.
_ALWAYS_THERE = frozenset((IDENTITY.version, CLASS_IDENTITY.version))


class NotKept(ValueError):
    """A state names a recalibrator that is not in the folder."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Documents found at start.

    documents   by version, the oldest file first
    complaints  what could not be used, and why
    """

    documents: dict[str, AnySelection]
    complaints: tuple[str, ...]


@dataclass(slots=True)
class RecalibratorFolder:
    """One folder, of one process from `claim` to `release`."""

    path: Path
    _state: SnapshotFile = field(init=False)
    _history: AuditLog = field(init=False)
    _claim: Claim = field(init=False)
    # Versions that have a file.
    _there: set[str] = field(default_factory=set, init=False)
    # What the state and the generation before it name.
    _named: tuple[frozenset[str], frozenset[str]] = field(
        default=(frozenset(), frozenset()), init=False
    )

    def __post_init__(self) -> None:
        self._state = SnapshotFile(self.path / "state", REGISTER)
        self._claim = Claim(self._state)
        self._history = AuditLog(self.path / "history.jsonl")

    # ---- whose it is

    def claim(self) -> bool:
        """Make the folder, and claim it; False where another process has it. Raises OSError.

        Where somebody has removed the folder, or put another in its place, it is made and claimed
        anew: what is locked then is no longer what is written to.
        """
        if self._claim.take(self.path, self._versions):
            self._there = set()
        return self._claim.held

    def release(self) -> None:
        """Let another process have it."""
        self._claim.release()

    # ---- what is there: first versions, then history, then the state

    def read_versions(self) -> Versions:
        """Every recalibrator that can be used. Raises OSError where the folder cannot be read."""
        documents: dict[str, AnySelection] = {}
        complaints = []
        found = []
        for path in self._versions.glob("*.json"):
            with contextlib.suppress(OSError):  # it is gone, or never was more than a name
                found.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(found):  # the oldest first; of one moment by name
            try:
                is_regular(path)
                selection = any_selection_from_json(path.read_bytes())
                if selection.version != path.stem:
                    raise InvalidRecalibrator(
                        f"what is in it has the version '{selection.version}'."
                    )
                documents[path.stem] = selection
            except (ValueError, OSError) as error:
                complaints.append(f"{path}: {error} It is left where it is.")
        self._there = set(documents)
        remove_temporaries(self._versions, "*.json")
        return Versions(documents, tuple(complaints))

    def read_history(self) -> History:
        """All records that are kept. Raises OSError."""
        return self._history.read()

    def read_state(self) -> Loaded[RegisterState]:
        """The latest generation that can be used: all that it puts in force is there."""
        loaded = self._state.load(self._decoded)
        if loaded.value is None:
            return loaded
        state, complaints = self._without_lost(loaded.value)
        self._named = (state.named, self._named[0])
        return Loaded(state, loaded.source, (*loaded.complaints, *complaints))

    def _decoded(self, body: bytes) -> RegisterState:
        try:
            state = REGISTER_CODEC.read(body)
        except OtherRegister as error:
            raise OtherFormat(f"{self._state.path}: {error}") from None
        except InvalidDocument as error:
            raise InvalidDocument(f"{self._state.path}: {error}") from None
        self._check_there(state.active)
        return state

    def _without_lost(self, state: RegisterState) -> tuple[RegisterState, list[str]]:
        """Leaves out lost versions that only a rollback would need: they must not stop a start."""
        try:
            self._check_there(state.named)
        except NotKept as error:
            left = replace(
                state,
                previous=self._there_of(state.previous),
                class_previous=self._there_of(state.class_previous),
                sent=self._there_of(state.sent),
            )
            return left, [f"{error} Until then nobody can go back to it."]
        return state, []

    def _there_of(self, versions: Sequence[str]) -> tuple[str, ...]:
        return tuple(v for v in versions if v in self._there or v in _ALWAYS_THERE)

    # ---- what is written: in the same order, so that nothing names what is not there

    def add(self, selection: AnySelection) -> None:
        """Keep a recalibrator, unless it is there. Raises OSError."""
        version = selection.version
        if version in self._there or version in _ALWAYS_THERE:
            return
        path = self._versions / f"{version}.json"
        with temporary_beside(path) as temporary:
            with open(temporary, "wb", opener=private) as file:
                file.write(selection.to_json().encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        sync_path(self._versions)
        self._there.add(version)

    def append(self, records: Sequence[Record]) -> None:
        """Add to the audit log. Raises OSError."""
        self._history.append(records)

    def write(self, state: RegisterState) -> None:
        """Replace the state. Raises NotKept, OSError."""
        self._check_there(state.named)
        self._state.write([REGISTER_CODEC.write(state)])
        self._named = (state.named, self._named[0])

    def prune(self) -> None:
        """Remove the recalibrators that no generation of the state names. Raises OSError."""
        for version in self._there.difference(*self._named):
            (self._versions / f"{version}.json").unlink(missing_ok=True)
            self._there.discard(version)

    @property
    def _versions(self) -> Path:
        return self.path / "versions"

    def _check_there(self, versions: Collection[str]) -> None:
        missing = sorted(set(versions).difference(self._there, _ALWAYS_THERE))
        if missing:
            raise NotKept(
                f"{self._state.path} names '{missing[0][:80]}', but there is no such file in "
                f"{self._versions}. Put it back, or promote its document again."
            )
