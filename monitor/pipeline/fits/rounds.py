"""Rounds of fitting in a running sidecar.

Whole tracks are taken in, in short steps; slices that have enough new tracks are fitted in a
process of its own, and the candidates go on trial. A page asks for a fit of the slice that has
drifted, as soon as there are tracks of the fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from monitor.drift.alarms import Alarm
from monitor.frames.counters import Counters
from monitor.frames.slices import TOTAL
from monitor.pipeline.fits.process import fit
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.pipeline.learning import LabelledTracks, TracksToFit, job_of
from monitor.pipeline.promotions import SCHEDULE, Promotions
from monitor.promotion.fits import CannotFit, FitFailed, FitJob, FitOutcome, NoTracksYet
from monitor.promotion.records import FitSettings, SliceFitted
from monitor.recalibration.selection import METHODS

log = logging.getLogger(__name__)

# Who asks for the fit.
ACTOR = "drift"

# Seconds between two looks at the tracks.
_REFITS_PERIOD = 1.0

# Seconds between two looks at what has come.
_ROUNDS_PERIOD = 0.25

# A fit that fails again and again is tried less and less often, down to this share.
_MOST_PATIENCE = 32
Fit = Callable[[FitJob, float], Awaitable[FitOutcome]]


@dataclass(slots=True)
class DriftRefits:
    """Asks for fits after pages.

    A page that was raised before a restart asks for nothing after it: the tracks to fit on are
    gone, and those to come are fitted in their turn.

    fit     slices (none: all) by a method ("": the configured one), asked for by an actor
    stays   whether an alarm is not over yet
    tracks  how many whole tracks have ended since an alarm began
    enough  of them for the first fit
    """

    fit: Callable[[Sequence[str], str, str], Awaitable[Sequence[SliceFitted]]]
    stays: Callable[[Alarm], bool]
    tracks: Callable[[Alarm], int]
    enough: int
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def ask(self, alarm: Alarm) -> None:
        """Has the slice of an alarm fitted, if the alarm stays for so long."""
        task = asyncio.get_running_loop().create_task(self._refit(alarm))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Asks for no further fit."""
        for task in self._running:
            task.cancel()

    async def _refit(self, alarm: Alarm) -> None:
        """An alarm comes before any track of the fault has ended; a fit has to wait for some."""
        wanted = self.enough
        try:
            while self.stays(alarm):
                await asyncio.sleep(_REFITS_PERIOD)
                if self.tracks(alarm) < wanted:
                    continue
                if await self._fitted(alarm):
                    return
                # Of the fault there are too few among them yet.
                wanted *= 2
        except Exception:
            log.exception("after a page, %s is not fitted", alarm.slice)

    async def _fitted(self, alarm: Alarm) -> bool:
        """Says whether anything is on trial now; a fit that fails is recorded there already."""
        slices = () if alarm.slice == TOTAL else (alarm.slice,)
        try:
            found = await self.fit(slices, "", ACTOR)
        except (CannotFit, NoTracksYet) as error:
            log.warning("after a page, %s is not fitted: %s", alarm.slice, error)
            return False
        except FitFailed:
            return False
        return any(one.version for one in found)


@dataclass(slots=True)
class FitRounds:
    """Fits slices of one sidecar, one round after another.

    fit  the process, or what stands for it in a test
    """

    promotions: Promotions
    fit: Fit = fit
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: asyncio.Task[None] | None = None
    _last: float = float("-inf")
    _failures: int = 0

    @property
    def _counters(self) -> Counters:
        return self.promotions.pipeline.counters

    async def keep_learning(self) -> None:
        """Fits what is due, for ever; when cancelled, leaves no process behind."""
        try:
            while True:
                await asyncio.sleep(_ROUNDS_PERIOD)
                with contained(self._counters, log, "whole tracks were not taken in"):
                    await self._learn()
        finally:
            if self._running is not None:
                self._running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._running

    async def _learn(self) -> None:
        promotions = self.promotions
        tracks = await in_steps(promotions.learning.whole())
        while tracks:
            # Of the slice that fails its tracks are taken already; the others go on.
            with contained(self._counters, log, "the whole tracks of one slice decided nothing"):
                promotions.carry_out(await in_steps(promotions.learning.decide(tracks)))
        if self._running is not None and self._running.done():
            self._running = None
        patience = min(2**self._failures, _MOST_PATIENCE)
        pause = promotions.pipeline.config.promotion.fit_every_seconds * patience
        rested = time.monotonic() - self._last >= pause
        if self._running is None and rested and promotions.learning.is_due():
            self._running = asyncio.create_task(self._round())

    async def _round(self) -> None:
        """Fits what is due; a failure is recorded already."""
        learning = self.promotions.learning
        settings = learning.settings
        with contained(self._counters, log, "a fit came to nothing"):
            try:
                async with self._one_at_a_time:
                    due = learning.due()
                    try:
                        await self._fitted(due, settings.fits, SCHEDULE, settings.policy.band)
                    finally:
                        self._last = time.monotonic()
                self._failures = 0
            except FitFailed:
                self._failures += 1

    async def asked(
        self, slices: Sequence[str], method: str, actor: str
    ) -> tuple[SliceFitted, ...]:
        """Fits candidates now, after the fit that runs, and puts them on trial.

        slices  by name; none: all that have tracks
        method  of METHODS; '': that of the configuration
        raises  CannotFit, NoTracksYet, FitFailed
        """
        learning = self.promotions.learning
        method = method or learning.settings.fits.method
        if method not in METHODS:
            raise CannotFit(f"method '{method[:80]}': it must be one of {', '.join(METHODS)}.")
        async with self._one_at_a_time:
            known = learning.chains()
            for name in slices:
                if name not in known:
                    raise CannotFit(
                        f"slices: there is no '{name[:80]}' that can have a recalibrator of its "
                        f"own. There are: {', '.join(known) or 'none yet'}."
                    )
            asked = learning.asked(slices)
            if not asked:
                raise NoTracksYet(
                    "no slice has a whole track with truth yet: report ground truth for frames "
                    "with stamp_ns, and wait until its tracks have ended."
                )
            settings = replace(learning.settings.fits, method=method)
            fitted = await self._fitted(asked, settings, actor)
        without = [name for name in slices if all(name != entry.chain[0] for entry in asked)]
        reason = "no whole track with truth yet"
        return *fitted, *(SliceFitted(name, "", reason, 0, 0) for name in without)

    async def _fitted(
        self,
        asked: Sequence[TracksToFit],
        settings: FitSettings,
        actor: str,
        band: tuple[float, float] | None = None,
    ) -> tuple[SliceFitted, ...]:
        """Fits slices, without those that look healthy by a band; candidates go on trial."""
        promotions = self.promotions
        timeout = promotions.pipeline.config.promotion.fit_timeout_seconds
        limits = promotions.learning.limits
        job, entries = await asyncio.to_thread(job_of, asked, settings, limits, band)
        promotions.counters.fits["nothing"] += len(asked) - len(entries)
        if not entries:
            return ()
        try:
            outcome = await self.fit(job, timeout)
        except FitFailed as error:
            promotions.fit_failed(str(error), entries, actor)
            raise
        return await in_steps(promotions.begin(entries, outcome, actor))


def ended_since(learning: LabelledTracks, alarm: Alarm) -> int:
    """Whole tracks of its slice that have ended since an alarm began."""
    names = learning.slices.names
    return sum(
        track.ended_ns >= alarm.since_ns
        for slice in learning.reservoir.slices()
        if alarm.slice in (TOTAL, names[slice])
        for track in learning.reservoir.tracks(slice)
    )
