"""Rounds of fitting in a running sidecar: on schedule, asked for, or after a page of drift.

Whole tracks are taken in, in short steps; slices that have enough new tracks are fitted in a
process of its own, and the candidates go on trial. Evidence of drift is taken in again and again,
alarms are logged, and a page asks for a fit where that is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from monitor.config import InvalidConfiguration
from monitor.drift.alarms import Alarm, AlarmChange, AlarmReason, change_sentence
from monitor.drift.charts import Severity
from monitor.frames.slices import TOTAL, Chain, is_bare_chain, is_of_classes
from monitor.pipeline.drift_watch import NOT_WATCHED
from monitor.pipeline.fit_process import FitProcess
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.pipeline.learning import (
    CLASS_CHAIN,
    CLASS_SLICE,
    LabelledTracks,
    TracksToFit,
    job_of,
)
from monitor.pipeline.promotions import SCHEDULE, Promotions
from monitor.promotion.fits import CannotFit, FitFailed, NoTracksYet
from monitor.promotion.records import FitSettings, PolicySettings, SliceFitted
from monitor.recalibration.selection import CLASS_METHODS, ESTIMATING, METHODS
from monitor.store.documents import InvalidDocument, read_references

log = logging.getLogger(__name__)

# Seconds between two looks at what has come, and at the tracks since a page.
_PERIOD, _REFITS_PERIOD = 0.25, 1.0

# A fit that fails again and again is tried less and less often, down to this share.
_MOST_PATIENCE = 32


@dataclass(slots=True)
class FitRounds:
    """Fits slices of one sidecar, one round after another; watches over drift, whose pages ask too.

    A page that was raised before a restart asks for no fit after it: the tracks to fit on are gone,
    and those to come are fitted in their turn.

    fits  the process, or what stands for it in a test
    """

    promotions: Promotions
    fits: FitProcess = field(default_factory=FitProcess)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: asyncio.Task[None] | None = None
    _last: float = float("-inf")
    _failures: int = 0
    _refits: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration where [drift] reference cannot be used."""
        pipeline = self.promotions.pipeline
        pipeline.events.listen(AlarmChange, self._react)
        if reference := pipeline.config.drift.reference:
            try:
                pipeline.drift.give(read_references(reference))
            except InvalidDocument as error:
                raise InvalidConfiguration(f"[drift] reference = '{reference}': {error}") from None

    async def keep_learning(self) -> None:
        """Fits what is due, for ever; when cancelled, leaves no process behind."""
        counters = self.promotions.pipeline.counters
        try:
            while True:
                await asyncio.sleep(_PERIOD)
                with contained(counters, log, "whole tracks were not taken in"):
                    await self._learn()
        finally:
            if self._running is not None:
                self._running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._running
            await self.fits.end()

    async def _learn(self) -> None:
        promotions = self.promotions
        tracks = await in_steps(promotions.learning.whole())
        if tracks and self._running is None and promotions.learning.may_be_due():
            with contextlib.suppress(FitFailed):  # it is told when there is a job
                await self.fits.prepare()
        while tracks:
            # Of the slice that fails its tracks are taken already; the others go on.
            fault = "the whole tracks of one slice decided nothing"
            with contained(promotions.pipeline.counters, log, fault):
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
        with contained(self.promotions.pipeline.counters, log, "a fit came to nothing"):
            try:
                async with self._one_at_a_time:
                    due = learning.due()
                    try:
                        await self._fitted(due, settings.fits, SCHEDULE, settings.policy)
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
        method  of METHODS for slices, of CLASS_METHODS for class probabilities; '': those of the
                configuration
        raises  CannotFit, NoTracksYet, FitFailed
        """
        learning = self.promotions.learning
        settings = learning.settings.fits
        # Of estimates: False, of class probabilities: True.
        kinds = {False} if settings.leaves_classes else {False, True}
        if method in METHODS:
            settings = replace(settings, method=method, missing_method=method)
            kinds = {False}
        elif method in CLASS_METHODS:
            settings, kinds = replace(settings, class_method=method), {True}
        elif method:
            known_methods = ", ".join((*METHODS, *CLASS_METHODS))
            raise CannotFit(f"method '{method[:80]}': it must be one of {known_methods}.")
        async with self._one_at_a_time:
            known = learning.chains()
            for name in slices:
                if name not in known:
                    raise CannotFit(
                        f"slices: there is no '{name[:80]}' that can have a recalibrator of its "
                        f"own. There are: {', '.join(known) or 'none yet'}."
                    )
                if method and (name == CLASS_CHAIN[0]) not in kinds:
                    of, others = "estimates", "class probabilities"
                    if method in CLASS_METHODS:
                        of, others = others, of
                    raise CannotFit(f"method '{method}' is of {of}, and '{name}' of {others}.")
                if method in METHODS and is_bare_chain(known[name]) and method not in ESTIMATING:
                    raise CannotFit(
                        f"method '{method}' corrects covariances that are sent, and those of "
                        f"'{name}' are missing: name {' or '.join(ESTIMATING)}."
                    )
                if (name == CLASS_CHAIN[0]) not in kinds:
                    raise CannotFit(
                        "class probabilities are not fitted, since [promotion] class_method is "
                        "class-identity: name a method, such as temperature."
                    )
            # Without names, all that the method is for.
            wanted = slices or [
                name
                for name, chain in known.items()
                if (name == CLASS_CHAIN[0]) in kinds and _is_for(method, chain)
            ]
            asked = learning.asked(wanted) if wanted else []
            left_out = settings.leaves_classes and CLASS_CHAIN[0] in known
            if not (asked or method or slices) and left_out:
                raise NoTracksYet(
                    "no slice of estimates has a whole track with truth yet, and [promotion] "
                    "class_method is class-identity: name a method, such as temperature, to fit "
                    "class probabilities."
                )
            if not asked:
                raise NoTracksYet(
                    "no slice has a whole track with truth yet: report ground truth for frames "
                    "with stamp_ns, and wait until its tracks have ended."
                )
            fitted = await self._fitted(asked, settings, actor)
        without = [name for name in slices if all(name != entry.chain[0] for entry in asked)]
        reason = "no whole track with truth yet"
        return *fitted, *(SliceFitted(name, "", reason, 0, 0) for name in without)

    async def _fitted(
        self,
        asked: Sequence[TracksToFit],
        settings: FitSettings,
        actor: str,
        policy: PolicySettings | None = None,
    ) -> tuple[SliceFitted, ...]:
        """Fits slices, without those that look healthy by a policy; candidates go on trial."""
        promotions = self.promotions
        timeout = promotions.pipeline.config.promotion.fit_timeout_seconds
        limits = promotions.learning.limits
        job, entries = await asyncio.to_thread(job_of, asked, settings, limits, policy)
        promotions.counters.fits["nothing"] += len(asked) - len(entries)
        if not entries:
            return ()
        try:
            # Somebody has asked, a page is open, or the last fit failed: perhaps for want of time.
            hurry = promotions.pipeline.drift.is_paged or self._failures > 0
            urgent = actor != SCHEDULE or hurry
            outcome = await self.fits.fit(job, timeout, urgent=urgent)
        except FitFailed as error:
            promotions.fit_failed(str(error), entries, actor)
            raise
        return await in_steps(promotions.begin(entries, outcome, actor))

    # ---- drift

    async def keep_watching(self) -> None:
        """Takes in what comes, for ever."""
        pipeline = self.promotions.pipeline
        while True:
            await asyncio.sleep(_PERIOD)
            with contained(pipeline.counters, log, NOT_WATCHED):
                await in_steps(pipeline.drift.catch_up())

    async def end_watching(self) -> None:
        """Takes in all that has come, and asks for no further fit."""
        pipeline = self.promotions.pipeline
        for task in self._refits:
            task.cancel()
        with contained(pipeline.counters, log, NOT_WATCHED):
            pipeline.drift.begin_anew()
            await in_steps(pipeline.drift.catch_up(everything=True))

    def _react(self, change: AlarmChange) -> None:
        # Of each slice its own kind: many may be alarmed at once, and none goes unsaid.
        log.warning("%s", change_sentence(change), extra={"of": change.alarm.slice})
        page = change.why is AlarmReason.RAISED and change.alarm.severity is Severity.PAGE
        if page and self.promotions.pipeline.config.drift.refit_on_page:
            task = asyncio.get_running_loop().create_task(self._refit(change.alarm))
            self._refits.add(task)
            task.add_done_callback(self._refits.discard)

    async def _refit(self, alarm: Alarm) -> None:
        """Fits the slice of an alarm, once tracks of the fault have ended and while it stays."""
        pipeline = self.promotions.pipeline
        learning = pipeline.learning
        slice = fitted_slice(alarm)
        chain = learning.chains().get(slice, (slice,))
        wanted = learning.settings.fewest(chain)
        with contained(pipeline.counters, log, "after a page, %s is not fitted", alarm.slice):
            while pipeline.drift.stays(alarm):
                await asyncio.sleep(_REFITS_PERIOD)
                if ended_since(learning, alarm) < wanted:
                    continue
                if await self._on_trial(alarm):
                    return
                # Of the fault there are too few among them yet.
                wanted *= 2

    async def _on_trial(self, alarm: Alarm) -> bool:
        """Says whether anything is on trial now; a fit that fails is recorded there already."""
        slice = fitted_slice(alarm)
        slices = () if slice == TOTAL else (slice,)
        try:
            found = await self.asked(slices, "", "drift")
        except (CannotFit, NoTracksYet) as error:
            log.warning("after a page, %s is not fitted: %s", alarm.slice, error)
            return False
        except FitFailed:
            return False
        whole = [one for one in found if slices or one.slice != CLASS_CHAIN[0]]
        return any(one.version for one in whole)


def fitted_slice(alarm: Alarm) -> str:
    """Names the slice that is fitted after an alarm: of class probabilities there is one alone."""
    return CLASS_CHAIN[0] if is_of_classes(alarm.slice) else alarm.slice


def ended_since(learning: LabelledTracks, alarm: Alarm) -> int:
    """Counts the whole tracks of its slice that have ended since an alarm began."""
    names, of = learning.slices.names, fitted_slice(alarm)
    return sum(
        track.ended_ns >= alarm.since_ns
        for slice in learning.reservoir.slices()
        if of == (CLASS_CHAIN[0] if slice == CLASS_SLICE else names[slice])
        or (of == TOTAL and slice != CLASS_SLICE)
        for track in learning.reservoir.tracks(slice)
    )


def _is_for(method: str, chain: Chain) -> bool:
    """Says whether a method is meant for a slice: those that estimate covariances, where none come.

    method  '': that of the configuration, which is for the slice
    """
    if method not in METHODS:
        return True
    return (method in ESTIMATING) == (is_bare_chain(chain))
