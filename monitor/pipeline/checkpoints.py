"""Checkpoints of a running sidecar: all its live state of one moment, in one transaction on disk.

Statistics, evidence of drift, the register of recalibrators and the audit log are read together at
start, and written together again and again, with the one position in the ledger that they have
reached. What goes wrong is logged and counted, and stops nothing. Only the taking of the state is
done on the loop; bytes and disk belong to a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from monitor.config import Config, InvalidConfiguration
from monitor.drift.alarms import AlarmChange
from monitor.drift.family import FamilyState
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.pipeline.promotions import REMEMBERED, Promotions
from monitor.pipeline.restart import (
    RUN_STATE,
    RunState,
    drift_of,
    register_of,
    restore_drift,
    restore_register,
    restore_run,
    run_state_of,
    with_tracks,
)
from monitor.promotion.records import Record
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, AnySelection
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.store.documents import (
    RECORD_CODEC,
    REGISTER_CODEC,
    InvalidDocument,
    RegisterState,
    any_selection_from_json,
    family_text,
    prepare_writing,
    read_family,
)
from monitor.store.files import Claim, UnusableFile
from monitor.store.journal import Journal, set_within
from monitor.store.previous import PreviousPaths, mark_taken_over, previous_contents
from monitor.store.state import Checkpoint, Contents, StateFile, state_folder
from monitor.store.statistics_state import PaneBytes, StoredState, parsed, serialised

log = logging.getLogger(__name__)
Value = TypeVar("Value")

# Seconds that somebody who has decided something waits for the disk, at most.
_SETTLED = 2.0

# s between two checkpoints that are asked for, at least.
_APART = 1.0

# Records that wait for a disk which does not take them.
MOST_WAITING = 10_000

_STATISTICS, _RUN, _DRIFT, _REGISTER = "statistics", "run", "drift", "register"

# They are known without a document.
_ALWAYS_THERE = frozenset((IDENTITY.version, CLASS_IDENTITY.version))


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """Holds the decoded parts of one generation; None for a part that could not be used.

    position   in the ledger; None where it is not known
    documents  recalibrators by version, the oldest first
    """

    position: int | None
    statistics: StoredState | None
    run: RunState | None
    drift: FamilyState | None
    register: RegisterState | None
    documents: Mapping[str, AnySelection]
    records: Sequence[Record]


def configured_folder(config: Config, environment: Mapping[str, str]) -> Path | None:
    """Returns the folder of a sidecar; None: nothing is kept. Raises InvalidConfiguration."""
    try:
        return state_folder(config.state.folder, config.state_name, environment)
    except ValueError as error:
        raise InvalidConfiguration(str(error)) from None


def claimed(config: Config, environment: Mapping[str, str]) -> Claim | None:
    """Claims the folder of a sidecar; None where it keeps nothing, which is said."""
    folder = configured_folder(config, environment)
    if folder is None:
        if config.state.folder is None:
            log.warning(
                "state: nothing is kept: with port 0 the folder has no name. Set [state] folder or "
                "name."
            )
        return None
    claim = Claim(folder)
    try:
        if claim.take():
            return claim
    except OSError as error:
        log.warning(
            "state: %s cannot be written (%s). It is tried again at every checkpoint; nothing is "
            "kept until then. Make it writable, or name another [state] folder.",
            *(folder, error.strerror or error),
        )
        return claim
    log.warning(
        "state: another sidecar keeps its state in %s: this one keeps none. Give it a [state] "
        "folder or name of its own.",
        folder,
    )
    return None


def _documents(stored: Mapping[str, bytes]) -> dict[str, AnySelection]:
    """Reads the recalibrators that can be used, by version."""
    documents = {}
    for version, document in stored.items():
        try:
            selection = any_selection_from_json(document)
            if selection.version != version:
                raise InvalidRecalibrator(f"its content has the version {selection.version}.")
            documents[version] = selection
        except ValueError as error:
            log.warning("state: recalibrator %s is left out: %s", version, error)
    return documents


def _register(documents: Mapping[str, AnySelection], body: bytes) -> RegisterState:
    """Reads the register.

    raises  UnusableFile where a recalibrator is lost that is active; those that only a rollback
            would need are left out, and must not stop a start
    """
    state, there = REGISTER_CODEC.read(body), _ALWAYS_THERE.union(documents)
    if lost := sorted(state.active - there):
        raise UnusableFile(f"recalibrator {lost[0]} is active, and its document cannot be used.")
    if lost := sorted(state.named - there):
        log.warning(
            "state: a rollback leaves out %s, whose documents cannot be used", ", ".join(lost)
        )
    return state.without(frozenset(lost))


@dataclass(slots=True)
class Checkpoints:
    """Keeps the state of one sidecar in a folder that it has claimed; without one, nothing.

    promotions     decide about the recalibrators of the pipeline
    named          versions that the configuration names, by its key
    journal        a checkpoint is never ahead of the ledger: entries that the disk lacks would have
                   their numbers given again
    previous       files of the version before, which are taken over where there is no state yet
    soon           set by whoever cannot wait for the next one
    position       of what was loaded; 0: nothing was, None: it is not known
    written_at     monotonic seconds of the last checkpoint; None before the first
    failures       checkpoints that came to nothing; the next one tries again
    refused        generations that could not be used at the start
    restored       whether the statistics of the last run are gone on with
    """

    promotions: Promotions
    named: Mapping[str, str]
    claim: Claim | None
    journal: Journal
    previous: PreviousPaths
    soon: asyncio.Event = field(default_factory=asyncio.Event)
    position: int | None = field(default=0, init=False)
    written_at: float | None = field(default=None, init=False)
    failures: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    restored: bool = field(default=False, init=False)
    _file: StateFile | None = field(init=False)
    _records: list[Record] = field(default_factory=list)
    _trouble: int = 0  # failed attempts in a row
    _took_over: bool = False  # what no checkpoint has yet
    _encoded: PaneBytes = field(default_factory=PaneBytes)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._file = None if self.claim is None else StateFile(self.claim.folder)
        events = self.promotions.pipeline.events
        events.listen(AlarmChange, lambda _: self.soon.set())
        events.listen(Record, self._note)

    @property
    def age_seconds(self) -> float:
        """Seconds since the last checkpoint; NaN where there is none."""
        return float("nan") if self.written_at is None else time.monotonic() - self.written_at

    # ---- at start

    def load(self) -> None:
        """Goes on where the last run ended. What cannot be used is said, and the start goes on.

        A recalibrator of the configuration is promoted only if the configuration has changed since
        the last run.
        """
        found = None
        if self._file is not None:
            for codec in (RUN_STATE, REGISTER_CODEC, RECORD_CODEC):
                codec.prepare()
            prepare_writing()
            try:
                found = self._loaded(self._file)
            except Exception:
                log.exception("state: %s cannot be used, and all begins anew", self._file.path)
        restored: set[str] = set()
        if found is not None:
            restored = self._continue(found)
        for key, version in self.named.items():
            if version and key not in restored:
                self.promotions.promote(version, "configuration")

    def _loaded(self, file: StateFile) -> _Found | None:
        loaded = file.load(self._decoded)
        for complaint in loaded.complaints:
            log.warning("state: %s", complaint)
        self.refused += loaded.refused
        found, source = loaded.value, str(loaded.source)
        if found is None and not loaded.refused:
            # The first start of this version: once written, state.db is what is gone on with.
            found, source = self._taken_over(), "the files of the version before"
        if found is not None:
            known = [] if found.statistics is None else found.statistics.state.slices
            log.info(
                "state: continues from %s: %d matched detections of %d slices, %d recalibrators, "
                "%d records, %d alarms that stay",
                *(source, sum(one.n for one in known), len(known), len(found.documents)),
                *(len(found.records), 0 if found.drift is None else len(found.drift.latched)),
            )
        return found

    def _taken_over(self) -> _Found | None:
        """Reads the files of the version before; None where there are none that can be used."""
        try:
            contents = previous_contents(self.previous)
            if contents is None:
                return None
            found = self._decoded(contents, apart=True)
        except (ValueError, OSError) as error:
            log.warning(
                "state: the files of the version before cannot be taken over: %s All begins anew. "
                "To try again, stop the sidecar, mend them, and remove state.db and state.db.1.",
                error,
            )
            return None
        self._records += found.records
        self._took_over = True
        self.soon.set()
        return found

    def _decoded(self, contents: Contents, *, apart: bool = False) -> _Found:
        """Reads a generation; its statistics are added once all else can be used.

        apart   its parts were written apart: one that cannot be used is left out alone
        raises  ValueError; nothing is added then
        """

        def part(name: str, read: Callable[[bytes], Value]) -> Value | None:
            try:
                return read(contents.parts[name]) if name in contents.parts else None
            except ValueError as error:
                if not apart or isinstance(error, IncompatibleStatistics):
                    raise
                log.warning("state: the %s of the version before is left out: %s", name, error)
                self.refused += 1
                return None

        pipeline, documents = self.promotions.pipeline, _documents(contents.recalibrators)
        register = part(_REGISTER, partial(_register, documents))
        drift = part(_DRIFT, read_family) if pipeline.drift.watching else None
        records = []
        for record in contents.records:
            # It is as it was written: another version has written what it does not understand.
            with contextlib.suppress(InvalidDocument):
                records.append(RECORD_CODEC.read(record))
        run = part(_RUN, RUN_STATE.read)
        if run is not None and run.sequence != contents.position:
            raise UnusableFile("its parts are not of its position in the ledger: it is damaged.")
        statistics = None
        try:
            statistics = part(_STATISTICS, parsed)
            if statistics is not None:
                finished(pipeline.live.import_in_steps(statistics.state))
        except IncompatibleStatistics as error:
            # Other bins are no reason to forget recalibrators and alarms.
            file = self._file
            ours = file is not None and contents.source in file.generations
            kept = file.keep_copy(contents.source) if file is not None and ours else ""
            log.warning("state: %s Statistics begin anew. %s", error, kept)
            self.refused += 1
            statistics = run = None
        return _Found(contents.position, statistics, run, drift, register, documents, records)

    def _continue(self, found: _Found) -> set[str]:
        """Puts what was found where it belongs; returns the kinds of recalibrators as they were."""
        pipeline = self.promotions.pipeline
        self.position = found.position
        if found.statistics is not None:
            self.restored = True
            pipeline.newer = found.statistics.unknown
        if found.run is not None:
            with contained(pipeline.counters, log, "streams of the last run cannot be used"):
                restore_run(pipeline, found.run)
        else:
            # Frames of before are in no account, and no stream has the number of one of before.
            pipeline.numbered = pipeline.ledger.sequence = found.position or 0
            pipeline.ledger.begins = pipeline.numbered + 1
        register = found.register, found.documents, found.records[-REMEMBERED:]
        restored: set[str] = set()
        with contained(pipeline.counters, log, "recalibrators of the last run cannot be used"):
            restored = restore_register(self.promotions, self.named, *register)
        if found.drift is not None:
            with contained(pipeline.counters, log, "evidence of the last run cannot be used"):
                restore_drift(pipeline, found.drift)
        return restored

    # ---- while it runs

    def _note(self, record: Record) -> None:
        if self._file is not None:
            if len(self._records) < MOST_WAITING:
                self._records.append(record)
            else:
                log.warning(
                    "state: %d records wait for a checkpoint: this one is not kept", MOST_WAITING
                )
            self.soon.set()

    async def keep(self) -> None:
        """Writes checkpoints, for ever."""
        while True:
            every_seconds = self.promotions.pipeline.config.state.every_seconds
            await set_within(self.soon, every_seconds)
            await self.write()
            # At most one a second, however often one is asked for.
            await asyncio.sleep(min(_APART, every_seconds))

    async def write(self) -> None:
        """Writes a checkpoint now, after the one that is being written.

        A failure is said and counted, and the next one tries again.
        """
        # Who waits for it may be cancelled; a thread cannot be, and the next one must wait for it.
        task = asyncio.create_task(self._write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def settle(self) -> None:
        """Returns when what has happened is on the disk, or after two seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.write(), _SETTLED)

    async def _write(self) -> None:
        async with self._one_at_a_time:
            self.soon.clear()
            file = self._file
            if file is None:
                return
            try:
                checkpoint = await self._taken()
                # Entries that the disk lacks would have their numbers given again.
                await self.journal.reach(checkpoint.position)
                covered = await asyncio.to_thread(self._to_disk, file, checkpoint)
            except Exception as error:
                self.failures += 1
                self._trouble += 1
                if self._trouble & (self._trouble - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                    expected = isinstance(error, OSError | sqlite3.Error | UnusableFile)
                    log.warning(
                        "state: %s not written: %s", file.path, error, exc_info=not expected
                    )
                return
            if self._trouble:
                log.warning("state: written again, after %d failed attempts", self._trouble)
                self._trouble = 0
            del self._records[: len(checkpoint.records)]
            self.written_at = time.monotonic()
            if self._took_over:
                self._took_over = False
                mark_taken_over(self.previous, file.folder)
            # The generation before may be what the next start goes on from.
            now = self.promotions.pipeline.ledger.partition_of(None)
            self.journal.covered(covered, now)

    async def _taken(self) -> Checkpoint:
        """Takes the whole state of one moment."""
        pipeline, promotions = self.promotions.pipeline, self.promotions
        watch, live = pipeline.drift, pipeline.live
        await in_steps(watch.catch_up())
        pipeline.remember_answered()
        with live.held(), watch.held():
            # No step in between: position, counts, register and evidence are of one moment.
            run = run_state_of(pipeline)
            records = list(self._records)
            register, known = register_of(promotions, self.named), promotions.recalibrators.known
            documents = {
                version: known[version].to_json
                for version in sorted(register.named)
                if version in known and version not in _ALWAYS_THERE
            }
            drift = drift_of(pipeline) if watch.watching else None
            statistics = await in_steps(live.state_in_steps(holder=True))
            run = with_tracks(run, pipeline)
            # While drift is not watched, its stored part stays for a later run that watches.
            parts = {} if drift is None else {_DRIFT: await in_steps(family_text(drift))}
        stored = StoredState(statistics, pipeline.newer)
        return Checkpoint(
            position=run.sequence,
            parts={
                **parts,
                _STATISTICS: serialised(stored, self._encoded),
                _RUN: [RUN_STATE.write(run)],
                _REGISTER: [REGISTER_CODEC.write(register)],
            },
            recalibrators=documents,
            records=[(record.sequence, RECORD_CODEC.write(record)) for record in records],
        )

    def _to_disk(self, file: StateFile, checkpoint: Checkpoint) -> int:
        assert self.claim is not None
        if not self.claim.take():
            raise BlockingIOError(f"another sidecar holds {self.claim.folder}")
        return file.write(checkpoint)

    async def end(self) -> None:
        """Writes all that has come; nothing is kept from then on."""
        await self.write()
        self._file = None
