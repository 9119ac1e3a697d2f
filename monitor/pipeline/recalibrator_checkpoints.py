"""Checkpoints of the recalibrators of a sidecar: loaded at start, written when they change.

A sidecar begins with those that its configuration names, or those that were active and on trial
when the last run ended. They are handed over on the loop; text and disk belong to one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from monitor.config import Config, InvalidConfiguration
from monitor.pipeline.housekeeping import contained, set_within
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import Recalibrators
from monitor.promotion.records import SWAPS, Record
from monitor.recalibration.classes.class_selection import AnySelection, ClassSelection
from monitor.recalibration.documents import InvalidRecalibrator
from monitor.recalibration.selection import Selection
from monitor.store.recalibrator_folder import ConfiguredVersions, RecalibratorFolder, RegisterState

log = logging.getLogger(__name__)

# Records that are given back at start.
MOST_RECORDS = 1000

# Records that wait for a disk which does not take them.
MOST_WAITING = 10_000

# Seconds that somebody who has decided waits for the disk, at most.
_SETTLED = 2.0

_KINDS: Mapping[str, type[AnySelection]] = {
    "recalibrator": Selection,
    "class_recalibrator": ClassSelection,
}

_TAKEN = (
    "another sidecar keeps its recalibrators in {}: this one keeps none. Give it a [promotion] "
    "folder of its own, or none."
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Holds what the last run left.

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
    """Holds what is not on the disk yet.

    selections  those that the state names
    """

    state: RegisterState | None = None
    selections: tuple[AnySelection, ...] = ()
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class RecalibratorWriter:
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
        """Loads what the last run left; to be called before anything is kept.

        What cannot be used is said, and never stops the start. Where another sidecar keeps its
        recalibrators in the folder, it is left alone from now on.
        """
        complaints: list[str] = []
        later: list[str] = []
        documents: Mapping[str, AnySelection] = {}
        records: tuple[Record, ...] = ()
        state: RegisterState | None = None
        folder = self._claimed(complaints)
        if folder is None:
            _tell(complaints)
            return Kept(None, documents, records, 0, tuple(complaints))
        try:
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
            loaded = folder.read_state()
            state = loaded.value
            complaints += loaded.complaints  # they are in the log already
        except Exception as error:
            later.append(f"{self.folder}: nothing is known of what was in force: {error}")
        if state is not None:
            later += _ahead_of(state, records)
            sequence = max(sequence, state.sequence)
            state = replace(state, sequence=sequence)
        _tell(later)
        return Kept(state, documents, records[-MOST_RECORDS:], sequence, (*complaints, *later))

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
        """Has all of it written soon; of states only the latest one matters.

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
        """Returns when all that was handed over is on the disk, or could not be written."""
        if self._folder is None:
            return
        # The thread does one thing after another.
        done: Future[None] = self._writer.submit(self._write)
        await asyncio.shield(asyncio.wrap_future(done))

    def close(self) -> None:
        """Lets another sidecar have the folder, when the write that runs is done."""
        self._writer.shutdown(wait=True)
        if self._folder is not None:
            self._folder.release()
            self._folder = None

    # ---- in the thread

    def _write(self) -> None:
        """Writes what waits: first what is named, then what names it."""
        with self._guard:
            waiting, self._waiting = self._waiting, _Waiting()
            self._scheduled = False
        folder = self._folder
        try:
            if folder is None or not folder.claim():
                raise BlockingIOError(_TAKEN.format(self.folder))
            for selection in waiting.selections:
                # One without a text must not stand in the way of those after it.
                try:
                    folder.add(selection)
                except (TypeError, ValueError) as error:
                    self._failed(error)
            if waiting.records:
                folder.append(waiting.records)
                waiting.records = []
            if waiting.state is not None:
                folder.write(waiting.state)
                waiting.state = None
            folder.prune()
        except Exception as error:
            with self._guard:
                later = self._waiting
                later.records[:0] = waiting.records
                if later.state is None:
                    later.state, later.selections = waiting.state, waiting.selections
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning("recalibrators: not kept in %s: %s", self.folder, error)


def _ahead_of(state: RegisterState, records: Sequence[Record]) -> list[str]:
    """Says what the history knows and the state does not: the last run died between the two."""
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


def configured(recalibrators: Recalibrators, config: Config) -> dict[str, str]:
    """Versions that the configuration names, by its key; '' where it names none.

    They are known from now on. Raises InvalidConfiguration where a file cannot be used.
    """
    return {key: _learnt(recalibrators, key, getattr(config.recalibration, key)) for key in _KINDS}


def _learnt(recalibrators: Recalibrators, key: str, path: str) -> str:
    if not path:
        return ""
    try:
        selection = recalibrators.learn(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfiguration(
            f"[recalibration] {key} = '{path}': {error.strerror}. Check the path."
        ) from None
    except (InvalidRecalibrator, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"[recalibration] {key} = '{path}': {error}") from None
    if not isinstance(selection, _KINDS[key]):
        other = "class_recalibrator" if key == "recalibrator" else "recalibrator"
        raise InvalidConfiguration(
            f"[recalibration] {key} = '{path}' is a {selection.method}: name it in {other}."
        )
    return selection.version


@dataclass(slots=True)
class RegisterCheckpoints:
    """Keeps what becomes of the recalibrators of one sidecar.

    named          versions that the configuration names
    every_seconds  s after which trials are written, if nothing else has happened
    """

    promotions: Promotions
    named: Mapping[str, str]
    keeper: RecalibratorWriter
    every_seconds: float
    _unkept: list[Record] = field(default_factory=list)
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.promotions.pipeline.events.listen(Record, self._note)

    # ---- at start

    def begin(self) -> None:
        """Makes active what was so in the last run, and goes on with its trials.

        What the configuration names comes in force only if it named something else when that was
        written: then somebody has decided anew. Nothing that is kept can stop the start.
        """
        kept = self.keeper.load()
        try:
            restored = self._restored(kept)
        except Exception:
            log.exception("recalibrators: those of the last run cannot be used and begin anew")
            restored = set()
        for key, version in self.named.items():
            if version and key not in restored:
                self.promotions.promote(version, "configuration")

    def _restored(self, kept: Kept) -> set[str]:
        """The kinds of which something is in force as it was."""
        recalibrators, state = self.promotions.recalibrators, kept.state
        keep = recalibrators.needed.union(self.named.values(), state.named if state else ())
        # Where no state says who needs what is there, people may.
        sent = kept.documents if state is None else state.sent
        for version, selection in kept.documents.items():
            if version in keep or version in sent:
                recalibrators.known.admit(selection, keep=keep)
            if version in sent:
                recalibrators.admit(selection.to_json(), selection)
        self.promotions.remember(kept.records, kept.sequence)
        if state is None:
            return set()
        before = recalibrators.before
        before[Selection][:], before[ClassSelection][:] = state.previous, state.class_previous
        restored = set()
        active = {"recalibrator": state.selection, "class_recalibrator": state.class_selection}
        for key, version in active.items():
            if version not in recalibrators.known:
                continue
            self.promotions.pipeline.activate(version)
            if self.named[key] in ("", getattr(state.configured, key)):
                restored.add(key)
        register = self.promotions.learning.register
        register.pinned = state.pinned
        if "recalibrator" in restored:
            register.spent.update(state.spent)
            register.on_trial.update({entry.trial.slice: entry for entry in state.trials})
            register.guards.update({guard.slice: guard for guard in state.guards})
            register.befores.update({before.slice: before for before in state.befores})
            register.followers.update(state.followers)
        return restored

    # ---- while it runs

    def _note(self, record: Record) -> None:
        self._unkept.append(record)
        self._urgent.set()

    def keep(self) -> None:
        """Has all written as it is now. A fault costs that, and nothing else."""
        counters = self.promotions.pipeline.counters
        with contained(counters, log, "recalibrators: the register was not written"):
            state, known = self._state(), self.promotions.recalibrators.known
            named = [known[version] for version in sorted(state.named) if version in known]
            self.keeper.keep(state, named, self._unkept)
            self._unkept = []

    async def keep_trials(self) -> None:
        """Keeps trials now and then, and records as soon as what made them is done, for ever."""
        while True:
            await set_within(self._urgent, self.every_seconds)
            self._urgent.clear()
            self.keep()

    async def settle(self) -> None:
        """Returns when what has happened is on the disk, or after two seconds."""
        self.keep()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.keeper.flush(), _SETTLED)

    async def end(self) -> None:
        """Writes all, and lets another sidecar have the folder."""
        self.keep()
        await self.keeper.flush()
        await asyncio.to_thread(self.keeper.close)

    def _state(self) -> RegisterState:
        register, recalibrators = self.promotions.learning.register, self.promotions.recalibrators
        before = recalibrators.before
        return RegisterState(
            selection=recalibrators.selection.version,
            class_selection=recalibrators.class_selection.version,
            previous=tuple(before[Selection]),
            class_previous=tuple(before[ClassSelection]),
            sent=tuple(sorted(recalibrators.sent)),
            configured=ConfiguredVersions(**self.named),
            pinned=register.pinned,
            sequence=self.promotions.sequence,
            spent=dict(register.spent),
            trials=tuple(register.on_trial.values()),
            guards=tuple(register.guards.values()),
            befores=tuple(register.befores.values()),
            followers=dict(register.followers),
        )
