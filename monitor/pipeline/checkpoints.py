"""Checkpoints of a running sidecar: its statistics and its watch over drift, on disk.

A file is claimed against other sidecars, read at start, and written again and again. What goes
wrong is logged and counted, and stops nothing. Only the making of the value is done on the loop;
bytes and disk belong to a thread. A restart neither forgets an alarm nor raises it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from monitor.config import DriftConfig, InvalidConfiguration, SnapshotConfig
from monitor.drift.alarms import AlarmChange, AlarmReason, change_sentence
from monitor.drift.bets import Severity
from monitor.drift.state import family_state, restored_family
from monitor.pipeline.drift_watch import NOT_WATCHED
from monitor.pipeline.fits.rounds import DriftRefits, FitRounds, ended_since
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained, in_steps, set_within
from monitor.pipeline.restart import IN_PARTITION, progress_of, restore_progress, with_clusters
from monitor.statistics.observations import finished
from monitor.store.codec import InvalidDocument
from monitor.store.codec import OtherFormat as OtherDocument
from monitor.store.drift_documents import (
    family_text,
    prepare_writing,
    read_family,
    read_references,
)
from monitor.store.ledger.journal import Journal
from monitor.store.progress import Progress
from monitor.store.snapshot import STATISTICS, Kind, OtherFormat, SnapshotFile
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import NewerFields, PaneBytes, StoredState, parsed, serialised

log = logging.getLogger(__name__)

# Seconds between two looks at what has come.
_PERIOD = 0.25

# Seconds that somebody who has acknowledged an alarm waits for the disk, at most.
_SETTLED = 2.0

DRIFT = Kind(
    b"caldrift",
    "drift",
    "drift",
    "Name one that a sidecar wrote as its [drift] path.",
)

# s between two snapshots that are asked for, at least.
_APART = 1.0
_PARTITION = re.compile(r"-?[0-9]{1,19}")


@dataclass(slots=True)
class CheckpointFile:
    """One file, or none at all.

    path        '': nothing is kept
    what        is in it, for the log
    written_at  monotonic seconds of the last write; None before the first
    failures    writes that came to nothing; the next one tries again, unless another sidecar has
                the file
    refused     files that could not be used at the start
    """

    path: str
    kind: Kind
    what: str
    written_at: float | None = None
    failures: int = 0
    refused: int = 0
    _file: SnapshotFile | None = field(init=False)
    _lock: BinaryIO | None = None
    _of_another: bool = False
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._file = SnapshotFile(Path(self.path).absolute(), self.kind) if self.path else None

    def load(self, taken: Callable[[bytes], str]) -> None:
        """Loads what was there at start, if there is a file, and it is ours.

        taken  returns what it has taken, for the log; raises as SnapshotFile.load() has it. What
               else it raises is said too
        """
        if self._file is None:
            return
        topic, path = self.kind.topic, self._file.path
        try:
            if not self._claimed(self._file):
                return
            loaded = self._file.load(taken)
        except Exception as error:
            log.warning("%s: %s cannot be used, %s begin anew: %s", topic, path, self.what, error)
            return
        self.refused += loaded.refused
        if loaded.value is not None:
            log.info("%s: %s from %s", topic, loaded.value, loaded.source)

    def _claimed(self, file: SnapshotFile) -> bool:
        """Claims the file; False, from now on, where another sidecar has it.

        Raises OSError where that cannot be told.
        """
        if self._lock is None and not self._of_another:
            self._lock = file.lock()
            self._of_another = self._lock is None
            if self._of_another:
                topic, what = self.kind.topic, self.what
                log.warning(
                    "%s: another sidecar keeps its %s in %s: this one keeps none. "
                    "Give it a [%s] path of its own, or none.",
                    *(topic, what, file.path, topic),
                )
        return not self._of_another

    async def write(self, made: Callable[[], Awaitable[Iterable[bytes]]]) -> None:
        """Writes the parts of a value, which is made once earlier writes are done."""
        # Who waits for it may be cancelled; a thread cannot be, and the next one must wait for it.
        task = asyncio.create_task(self._write(made))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def _write(self, made: Callable[[], Awaitable[Iterable[bytes]]]) -> None:
        async with self._one_at_a_time:
            file = self._file
            if file is None:
                return
            try:
                if not self._claimed(file):
                    self.failures += 1
                    return
                await asyncio.to_thread(file.write, await made())
            except Exception as error:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                    log.warning("%s: %s not written: %s", self.kind.topic, file.path, error)
                return
            self.written_at = time.monotonic()

    def close(self) -> None:
        """Lets another sidecar have the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._file = None


@dataclass(slots=True)
class DriftCheckpoints:
    """Keeps evidence and alarms of one sidecar on disk, and acts on alarms.

    ledger  that a checkpoint must not be ahead of: labels that only a checkpoint knew of would be
            counted again; None: there is none
    """

    pipeline: Pipeline
    config: DriftConfig
    fits: FitRounds
    ledger: Journal | None = None
    _refits: DriftRefits = field(init=False)
    file: CheckpointFile = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration where [drift] reference cannot be used."""
        watch, learning = self.pipeline.drift, self.pipeline.learning
        self.pipeline.events.listen(AlarmChange, self._react)
        self._refits = DriftRefits(
            fit=self.fits.asked,
            stays=watch.stays,
            tracks=partial(ended_since, learning),
            enough=learning.settings.fits.tracks,
        )
        path = self.config.path if watch.watching else ""
        self.file = CheckpointFile(path, DRIFT, "evidence and alarms")
        if self.config.reference:
            try:
                watch.give(read_references(self.config.reference))
            except InvalidDocument as error:
                raise InvalidConfiguration(
                    f"[drift] reference = '{self.config.reference}': {error}"
                ) from None

    def adjust(self, config: DriftConfig, fit_tracks: int) -> None:
        """Applies other settings from the next write or alarm on.

        fit_tracks  of a slice, before it is fitted
        """
        self.config = config
        self._refits.enough = fit_tracks

    # ---- at start

    def begin(self) -> None:
        """Begins where the last run ended, once the active recalibrator is known.

        What cannot be used is said, and never stops the start. Where another sidecar keeps its own
        in the file, it is left alone from now on.
        """
        if self.file.path:
            prepare_writing()
        self.file.load(self._taken)

    def _taken(self, body: bytes) -> str:
        path = self.config.path
        try:
            state = read_family(body)
        except OtherDocument as error:
            raise OtherFormat(f"{path}: {error}") from None
        except InvalidDocument as error:
            raise InvalidDocument(f"{path}: {error}") from None
        watch = self.pipeline.drift
        known = watch.family
        given, selection = known.usual.given, self._active()
        watch.epochs.restore(state.numbers, state.begins, watch.slices.names)
        family, changes = restored_family(state, watch.settings, given, selection)
        for name, k in zip(known.names, known.degrees, strict=True):
            family.grow(name, k)
        watch.family = family
        for change in changes:
            watch.announce(change)
        return f"{len(state.latched)} alarms that stay and {len(state.slices)} slices"

    # ---- while it runs

    async def keep_watching(self) -> None:
        """Takes in what comes and writes checkpoints, for ever."""
        # A disk that hangs holds up nobody but itself.
        await asyncio.gather(self._watch(), self._keep())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD)
            with contained(self.pipeline.counters, log, NOT_WATCHED):
                await in_steps(self.pipeline.drift.catch_up())

    def _active(self) -> str:
        return self.pipeline.recalibrators.selection.version

    async def _keep(self) -> None:
        while True:
            await set_within(self.pipeline.drift.urgent, self.config.every_seconds)
            await self.write()

    async def write(self) -> None:
        """Writes a checkpoint now, after the one that is being written.

        A failure is said and counted, and the next one tries again.
        """
        self.pipeline.drift.urgent.clear()
        await self.file.write(self._made)

    async def _made(self) -> Iterable[bytes]:
        watch, ledger = self.pipeline.drift, self.pipeline.ledger
        self.pipeline.remember_answered()
        # The open portion stays open: else the moment of the write decides where the portion
        # ends.
        await in_steps(watch.catch_up())
        with watch.held():
            sequence = ledger.sequence
            state = family_state(watch.family, self._active())
            numbers, begins = watch.epochs.state(watch.slices.names)
            text = await in_steps(family_text(replace(state, numbers=numbers, begins=begins)))
        if self.ledger is not None:
            await self.ledger.reach(sequence)
        return text

    async def settle(self) -> None:
        """Returns when what has happened is on the disk, or after two seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.write(), _SETTLED)

    async def end(self) -> None:
        """Writes all that has come, and lets another sidecar have the file."""
        self._refits.stop()
        with contained(self.pipeline.counters, log, NOT_WATCHED):
            self.pipeline.drift.begin_anew()
            await in_steps(self.pipeline.drift.catch_up(everything=True))
        await self.write()
        self.file.close()

    # ---- what is told

    def _react(self, change: AlarmChange) -> None:
        # Of each slice its own kind: many may be alarmed at once, and none goes unsaid.
        log.warning("%s", change_sentence(change), extra={"of": change.alarm.slice})
        self.pipeline.drift.urgent.set()
        page = change.why is AlarmReason.RAISED and change.alarm.severity is Severity.PAGE
        if page and self.config.refit_on_page:
            self._refits.ask(change.alarm)


def check_progress(progress: Progress) -> None:
    """Raises InvalidState where progress cannot be restored."""
    for name, count in progress.detections.items():
        if name.startswith(IN_PARTITION):
            number = name.removeprefix(IN_PARTITION)
            if not _PARTITION.fullmatch(number) or count < 0:
                raise InvalidState(
                    f"progress.detections: '{name}' is {count}, where a partition and how many "
                    "wait in it belong. The state is damaged or forged."
                )


@dataclass(slots=True)
class StatisticsCheckpoints:
    """Writes what the pipeline has counted to a file, and reads it at start.

    newer    shared with whoever exports and imports
    ledger   that a snapshot must not be ahead of: labels that only a snapshot knew of would be
             counted again; None: there is none
    soon     set by whoever cannot wait for the next one
    entry    the last one that is in what was loaded; 0: nothing was, None: it is not known
    """

    pipeline: Pipeline
    newer: NewerFields
    config: SnapshotConfig
    ledger: Journal | None = None
    soon: asyncio.Event = field(default_factory=asyncio.Event)
    entry: int | None = field(default=0, init=False)
    _last: int = 0
    file: CheckpointFile = field(init=False)
    _encoded: PaneBytes = field(default_factory=PaneBytes)

    def __post_init__(self) -> None:
        self.file = CheckpointFile(self.config.path, STATISTICS, "statistics")

    @property
    def age_seconds(self) -> float:
        """Since the last snapshot; NaN where there is none."""
        written_at = self.file.written_at
        return float("nan") if written_at is None else time.monotonic() - written_at

    def load(self) -> None:
        """Begins where the last run ended. What cannot be used is logged, and the start goes on.

        Where another sidecar keeps its statistics in the file, it is left alone from now on.
        """
        self.file.load(self._imported)

    def _imported(self, body: bytes) -> str:
        """Adds a snapshot. Raises InvalidState, IncompatibleStatistics; nothing is added then."""
        stored = parsed(body)
        # All of it first: what is added already cannot be taken back.
        if stored.progress is not None:
            check_progress(stored.progress)
        detections, slices = finished(self.pipeline.live.import_in_steps(stored.state))
        self.newer.data = stored.unknown
        self.entry = None
        if stored.progress is not None:
            restore_progress(self.pipeline, stored.progress)
            self.entry = stored.progress.sequence
        return f"{detections} matched detections of {slices} slices"

    async def keep(self) -> None:
        """Writes snapshots, for ever."""
        while True:
            await set_within(self.soon, self.config.every_seconds)
            self.soon.clear()
            await self.write()
            # Whoever asks for more of them asks in vain.
            await asyncio.sleep(min(_APART, self.config.every_seconds))

    async def write(self) -> None:
        """Writes a snapshot now, after those that are being written.

        A failure is said and counted, and the next one tries again.
        """
        before = self.file.written_at
        await self.file.write(self._made)
        if self.ledger is not None and self.file.written_at != before:
            self.ledger.covered(self._last, self.pipeline.ledger.partition_of(None))

    async def _made(self) -> Iterable[bytes]:
        live = self.pipeline.live
        self.pipeline.remember_answered()
        with live.held():
            progress = progress_of(self.pipeline)
            state = await in_steps(live.state_in_steps(holder=True))
            progress = with_clusters(progress, self.pipeline)
        if self.ledger is not None:
            await self.ledger.reach(progress.sequence)
        self._last = progress.sequence
        stored = StoredState(state, self.newer.data, progress)
        return serialised(stored, self._encoded)
