"""The watch over drift, kept going: what waits is taken in, what comes of it is told, and all of it
is on disk, so that a restart neither forgets an alarm nor raises it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from monitor.calibration.drift.alarm import AlarmChange, Why
from monitor.calibration.drift.alarm_words import change_sentence
from monitor.calibration.drift.charts import Severity
from monitor.calibration.drift.family_json import (
    InvalidFamily,
    OtherFamily,
    family_from_json,
    family_text,
    family_to_json,
)
from monitor.calibration.drift.family_state import (
    FamilyState,
    family_state,
    restored_family,
)
from monitor.calibration.drift.reference_fields import NotAReference
from monitor.config import InvalidConfiguration
from monitor.config_drift import DriftConfig
from monitor.drift_refits import DriftRefits, ended_since
from monitor.drift_watch import Position
from monitor.edges.reference_file import read_references
from monitor.edges.snapshot import Kind, OtherFormat
from monitor.events import Events
from monitor.fit_rounds import FitRounds
from monitor.kept_file import KeptFile
from monitor.pipeline import Pipeline
from monitor.steps import in_steps

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


async def nothing_to_cover(_: int) -> None:
    """Where there is no ledger."""


@dataclass(slots=True)
class DriftKeeping:
    """Of one sidecar."""

    pipeline: Pipeline
    config: DriftConfig
    events: Events
    fits: FitRounds
    # Returns when the ledger has so many entries on disk: what it has not would be told again.
    covered: Callable[[int], Awaitable[None]] = field(default=nothing_to_cover)
    # Of the ledger, the last entry in what the last run left; None: not known.
    entry: int | None = field(default=None, init=False)
    _refits: DriftRefits = field(init=False)
    _file: KeptFile = field(init=False)
    _soon: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration where [drift] reference cannot be used."""
        watch, learning = self.pipeline.drift, self.pipeline.learning
        watch.announce, watch.swapped = self._announce, self._soon.set
        self._refits = DriftRefits(
            fit=self.fits.asked,
            stays=watch.stays,
            tracks=partial(ended_since, learning),
            enough=learning.settings.fits.tracks,
        )
        path = self.config.path if watch.watching else ""
        self._file = KeptFile(path, DRIFT, "evidence and alarms")
        if self.config.reference:
            try:
                watch.give(read_references(self.config.reference))
            except NotAReference as error:
                raise InvalidConfiguration(
                    f"[drift] reference = '{self.config.reference}': {error}"
                ) from None

    @property
    def failures(self) -> int:
        """Writes that came to nothing."""
        return self._file.failures

    @property
    def refused(self) -> int:
        """Files that could not be used at the start."""
        return self._file.refused

    def adjust(self, config: DriftConfig, fit_tracks: int) -> None:
        """Write as often, and ask for fits as other settings say.

        fit_tracks  of a slice, before it is fitted
        """
        self.config = config
        self._refits.enough = fit_tracks

    # ---- at start

    def begin(self) -> None:
        """Begin where the last run ended, when it is known which recalibrator is in force.

        What cannot be used is said, and never stops the start. Where another sidecar keeps its own
        in the file, it is left alone from now on.
        """
        loaded = self._file.load(self._taken)
        if loaded is not None and loaded.value is not None:
            log.info(
                "drift: %d alarms that stay and %d slices from %s",
                len(loaded.value.latched),
                len(loaded.value.slices),
                loaded.source,
            )

    def _taken(self, body: bytes) -> FamilyState:
        state = self._decoded(body)
        self._go_on(state)
        return state

    def _decoded(self, body: bytes) -> FamilyState:
        path = self.config.path
        try:
            return family_from_json(body)
        except OtherFamily as error:
            raise OtherFormat(f"{path}: {error}") from None
        except InvalidFamily as error:
            raise InvalidFamily(f"{path}: {error}") from None

    def _go_on(self, state: FamilyState) -> None:
        watch = self.pipeline.drift
        known = watch.family
        given, selection = known.usual.given, self._in_force()
        self.entry = state.entry
        if state.entry is not None:
            position = Position(state.entry, frozenset(state.beyond), state.waits)
            watch.has(position, state.order)
            watch.epochs.restore(state.numbers, state.begins, watch.slices.names)
        family, changes = restored_family(state, watch.settings, given, selection)
        for name, k in zip(known.names, known.degrees, strict=True):
            family.grow(name, k)
        watch.family = family
        for change in changes:
            self._announce(change)

    # ---- while it runs

    async def keep_watching(self) -> None:
        """Take in what comes and keep it, for ever."""
        # A disk that hangs holds up nobody but itself.
        await asyncio.gather(self._watch(), self._keep())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD)
            try:
                await in_steps(self.pipeline.drift.catch_up())
            except Exception:
                log.exception("what the truth says of drift was not taken in")
                self.pipeline.counters.internal_errors += 1

    def _in_force(self) -> str:
        return self.pipeline.recalibrators.selection.version

    async def _keep(self) -> None:
        while True:
            # Not wait_for, which forgets that it was cancelled where both come at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.every_seconds):
                    await self._soon.wait()
            await self.write()

    async def write(self) -> None:
        """Write all of it now, after what is being written.

        A failure is said and counted, and the next one tries again.
        """
        self._soon.clear()
        await self._file.write(self._made)

    async def _made(self) -> Iterable[bytes]:
        watch, ledger = self.pipeline.drift, self.pipeline.ledger
        # The open portion stays open: else the moment of the write decides where the portion
        # ends. The frames of the portion come again from the ledger.
        await in_steps(watch.catch_up())
        with watch.held():
            position = watch.position(ledger.sequence)
            state = family_state(watch.family, self._in_force())
            numbers, begins = watch.epochs.state(watch.slices.names)
            state = replace(
                state,
                entry=position.entry,
                beyond=tuple(sorted(position.beyond)),
                waits=position.waits,
                order=watch.order(),
                numbers=numbers,
                begins=begins,
            )
            document = await in_steps(family_to_json(state))
        await self.covered(max(position.beyond, default=position.entry))
        return family_text(document)

    async def settle(self) -> None:
        """Return when what has happened is on the disk; a disk that hangs is not waited for."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.write(), _SETTLED)

    async def end(self) -> None:
        """Keep all that has come, and let another sidecar have the file."""
        self._refits.stop()
        try:
            await in_steps(self.pipeline.drift.catch_up(everything=True))
        except Exception:
            log.exception("what the truth said last of drift was not taken in")
        await self.write()
        self._file.close()

    # ---- what is told

    def _announce(self, change: AlarmChange) -> None:
        # Of each slice its own kind: many may be alarmed at once, and none goes unsaid.
        log.warning("%s", change_sentence(change), extra={"of": change.alarm.slice})
        self.events.publish(change, time.time_ns())
        self._soon.set()
        page = change.why is Why.RAISED and change.alarm.severity is Severity.PAGE
        if page and self.config.refit_on_page:
            self._refits.ask(change.alarm)
