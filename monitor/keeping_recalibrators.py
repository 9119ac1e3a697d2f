"""The recalibrators of a running sidecar, kept on disk: loaded at start, written when they change.

What is kept is handed over on the loop; text and disk belong to one thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from monitor.edges.recalibrator_folder import RecalibratorFolder
from monitor.promotion.records import SWAPS, Record
from monitor.promotion.register_state import RegisterState
from monitor.recalibration.any_selection import AnySelection

log = logging.getLogger(__name__)

# Records that are given back at start.
MOST_RECORDS = 1000
# Records that wait for a disk which does not take them.
MOST_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class Kept:
    """What the last run left.

    state       None where there is nothing that could be used
    documents   recalibrators by version, the oldest first; those that the state names among them
    records     the latest, in order
    sequence    of the latest record that there ever was, whether the state knows it or not
    complaints  what could not be used, and what became of it; they are in the log already
    """

    state: RegisterState | None
    documents: Mapping[str, AnySelection]
    records: tuple[Record, ...]
    sequence: int
    complaints: tuple[str, ...]


@dataclass(slots=True)
class _Waiting:
    """What is not on the disk yet.

    selections  those that the state names
    """

    state: RegisterState | None = None
    selections: tuple[AnySelection, ...] = ()
    records: list[Record] = field(default_factory=list)

    def before(self, later: _Waiting) -> _Waiting:
        """Both, in order; of the states the later one."""
        latest = self if later.state is None else later
        return _Waiting(latest.state, latest.selections, [*self.records, *later.records])


@dataclass(slots=True)
class RecalibratorKeeper:
    """Keeps recalibrators in a folder; '' keeps none.

    failures  writes that came to nothing; what they were to write is tried with the next one
    refused   records that were given up, since too many waited
    """

    folder: str
    failures: int = 0
    refused: int = 0
    _folder: RecalibratorFolder | None = field(init=False)
    _waiting: _Waiting = field(default_factory=_Waiting, init=False)
    _scheduled: bool = field(default=False, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)
    _writer: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        path = Path(self.folder).absolute() if self.folder else None
        self._folder = None if path is None else RecalibratorFolder(path)
        self._writer = ThreadPoolExecutor(1, "recalibrators")

    # ---- at start

    def load(self) -> Kept:
        """What the last run left; to be called before anything is kept.

        What cannot be used is said, and never stops the start. Where another sidecar keeps its
        recalibrators in the folder, it is left alone from now on.
        """
        complaints: list[str] = []
        documents: Mapping[str, AnySelection] = {}
        records: tuple[Record, ...] = ()
        state: RegisterState | None = None
        folder = self._claimed(complaints)
        try:
            if folder is not None:
                versions = folder.read_versions()
                documents = versions.documents
                complaints += versions.complaints
                history = folder.read_history()
                records = history.records
                complaints += history.complaints
        except Exception as error:
            complaints.append(f"{self.folder} cannot be read: {error}")
        _tell(complaints)
        sequence = max((record.sequence for record in records), default=0)
        try:
            if folder is not None:
                loaded = folder.read_state()
                state = loaded.value
                complaints += loaded.complaints
        except Exception as error:
            complaints.append(f"{self.folder}: nothing is known of what was in force: {error}")
            _tell(complaints[-1:])
        if state is not None:
            lost = _ahead_of(state, records)
            complaints += lost
            _tell(lost)
            sequence = max(sequence, state.sequence)
            state = replace(state, sequence=sequence)
        return Kept(state, documents, records[-MOST_RECORDS:], sequence, tuple(complaints))

    def _claimed(self, complaints: list[str]) -> RecalibratorFolder | None:
        """The folder to read: None where there is none, or none of ours."""
        folder = self._folder
        if folder is None:
            return None
        try:
            if folder.claim():
                return folder
        except OSError as error:
            complaints.append(
                f"{folder.path} cannot be written ({error}): what is there is read, and nothing "
                "is kept until it can be. Make it writable, or name another [promotion] folder."
            )
            return folder
        complaints.append(_TAKEN.format(folder.path))
        self._folder = None
        return None

    # ---- while it runs

    def keep(
        self, state: RegisterState, selections: Collection[AnySelection], records: Sequence[Record]
    ) -> None:
        """Have all of it written, soon; of states only the latest one matters.

        selections  all that the state names; what is there is not written again
        records     new ones, in order
        """
        if self._folder is None:
            return
        with self._guard:
            waiting = self._waiting
            waiting.state, waiting.selections = state, tuple(selections)
            room = max(0, MOST_WAITING - len(waiting.records))
            waiting.records += records[:room]
            self.refused += len(records[room:])
            if self._scheduled:
                return
            self._scheduled = True
        self._writer.submit(self._write)

    async def flush(self) -> None:
        """Return when all that was handed over is on the disk, or could not be written."""
        if self._folder is None:
            return
        # The thread does one thing after another.
        done: Future[None] = self._writer.submit(self._write)
        await asyncio.shield(asyncio.wrap_future(done))

    def close(self) -> None:
        """Let another sidecar have the folder, when the write that runs is done."""
        self._writer.shutdown(wait=True)
        if self._folder is not None:
            self._folder.release()
            self._folder = None

    # ---- in the thread

    def _write(self) -> None:
        """Write what waits: first what is named, then what names it."""
        with self._guard:
            waiting, self._waiting = self._waiting, _Waiting()
            self._scheduled = False
        folder = self._folder
        try:
            if folder is None or not folder.claim():
                raise BlockingIOError(_TAKEN.format(self.folder))
            for selection in waiting.selections:
                self._add(folder, selection)
            if waiting.records:
                folder.append(waiting.records)
                waiting.records = []
            if waiting.state is not None:
                folder.write(waiting.state)
                waiting.state = None
            folder.prune()
        except Exception as error:
            with self._guard:
                self._waiting = waiting.before(self._waiting)
            self._failed(error)

    def _add(self, folder: RecalibratorFolder, selection: AnySelection) -> None:
        """What has no text would stand in the way of all that comes after it."""
        try:
            folder.add(selection)
        except (TypeError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning("recalibrators: not kept in %s: %s", self.folder, error)


_TAKEN = (
    "another sidecar keeps its recalibrators in {}: this one keeps none. Give it a [promotion] "
    "folder of its own, or none."
)


def _ahead_of(state: RegisterState, records: Sequence[Record]) -> list[str]:
    """What the history knows and the state does not: the last run died between the two."""
    lost = [record for record in records if record.sequence > state.sequence]
    swaps = [record for record in lost if record.what in SWAPS]
    if not swaps:
        return []
    return [
        f"the last run died as it put '{swaps[-1].after}' in force: in force are "
        f"'{state.selection}' and '{state.class_selection}', as before record "
        f"{swaps[0].sequence}."
    ]


def _tell(complaints: Sequence[str]) -> None:
    for complaint in complaints:
        log.warning("recalibrators: %s", complaint)
