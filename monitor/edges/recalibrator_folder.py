"""The folder in which a sidecar keeps its recalibrators, their history, and what is in force.

    versions/<version>.json  a recalibrator that the state names, as `fit --output` writes it;
                             written once, removed when no generation of the state names it
    history.jsonl            the audit log, and history.jsonl.1 before it
    state                    what is in force and on trial, and state.1 before it
    state.lock               held by the one sidecar that writes here

What is written is whole and on the disk when the call returns, and private to its owner.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from monitor.edges.audit_log import AuditLog, History
from monitor.edges.snapshot import (
    Kind,
    Loaded,
    OtherFormat,
    SnapshotFile,
    is_regular,
    private,
    remove_temporaries,
    sync_folder,
    temporary_beside,
)
from monitor.promotion.records import Record
from monitor.promotion.register_json import (
    InvalidRegister,
    OtherRegister,
    register_from_json,
    register_to_json,
)
from monitor.promotion.register_state import RegisterState
from monitor.recalibration.any_selection import AnySelection, any_selection_from_json
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import IDENTITY

REGISTER = Kind(
    b"calrecal", "recalibrators", "recalibrators", "It is no `state` of a [promotion] folder."
)

# They are known without a file.
_ALWAYS_THERE = frozenset((IDENTITY.version, CLASS_IDENTITY.version))


class NotKept(ValueError):
    """A state names a recalibrator that is not in the folder."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What was found at start.

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
    _lock: BinaryIO | None = field(default=None, init=False)
    # Versions that have a file.
    _there: set[str] = field(default_factory=set, init=False)
    # What the state and the generation before it name.
    _named: tuple[frozenset[str], frozenset[str]] = field(
        default=(frozenset(), frozenset()), init=False
    )

    def __post_init__(self) -> None:
        self._state = SnapshotFile(self.path / "state", REGISTER)
        self._history = AuditLog(self.path / "history.jsonl")

    # ---- whose it is

    def claim(self) -> bool:
        """Make the folder, and claim it; False where another process has it. Raises OSError.

        Where somebody has removed the folder, or put another in its place, it is made and claimed
        anew: what is locked then is no longer what is written to.
        """
        if self._lock is not None and not self._state.locked_by(self._lock):
            self.release()
            self._there = set()
        if self._lock is None:
            for folder in (self.path, self._versions):
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(folder.parent)
            self._lock = self._state.lock()
        return self._lock is not None

    def release(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ---- what is there: first versions, then history, then the state

    def read_versions(self) -> Versions:
        """Every recalibrator that can be used. Raises OSError where the folder cannot be read."""
        documents: dict[str, AnySelection] = {}
        complaints = []
        for path in self._files():
            try:
                documents[path.stem] = _read(path)
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
            state = register_from_json(body)
        except OtherRegister as error:
            raise OtherFormat(f"{self._state.path}: {error}") from None
        except InvalidRegister as error:
            raise InvalidRegister(f"{self._state.path}: {error}") from None
        self._check_there(state.in_force)
        return state

    def _without_lost(self, state: RegisterState) -> tuple[RegisterState, list[str]]:
        """What served before, or was sent, is needed by nobody but who goes back to it."""
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
        sync_folder(self._versions)
        self._there.add(version)

    def append(self, records: Sequence[Record]) -> None:
        """Add to the audit log. Raises OSError."""
        self._history.append(records)

    def write(self, state: RegisterState) -> None:
        """Replace the state. Raises NotKept, OSError."""
        self._check_there(state.named)
        self._state.write([register_to_json(state).encode()])
        self._named = (state.named, self._named[0])

    def prune(self) -> None:
        """Remove the recalibrators that no generation of the state names. Raises OSError."""
        for version in self._there.difference(*self._named):
            (self._versions / f"{version}.json").unlink(missing_ok=True)
            self._there.discard(version)

    @property
    def _versions(self) -> Path:
        return self.path / "versions"

    def _files(self) -> list[Path]:
        """The oldest first; of one moment by name."""
        found = []
        for path in self._versions.glob("*.json"):
            with contextlib.suppress(OSError):  # it is gone, or never was more than a name
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def _check_there(self, versions: Collection[str]) -> None:
        missing = sorted(set(versions).difference(self._there, _ALWAYS_THERE))
        if missing:
            raise NotKept(
                f"{self._state.path} names '{missing[0][:80]}', but there is no such file in "
                f"{self._versions}. Put it back, or promote its document again."
            )


def _read(path: Path) -> AnySelection:
    """Raises ValueError, OSError."""
    is_regular(path)
    selection = any_selection_from_json(path.read_bytes())
    if selection.version != path.stem:
        raise InvalidRecalibrator(f"what is in it has the version '{selection.version}'.")
    return selection
