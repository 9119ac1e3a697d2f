"""The watch over drift in a running sidecar.

Evidence is taken in again and again, alarms are logged, and a page asks for a fit where that is
configured.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from monitor.config import InvalidConfiguration
from monitor.drift.alarms import Alarm, AlarmChange, AlarmReason, change_sentence
from monitor.drift.bets import Severity
from monitor.frames.slices import TOTAL
from monitor.pipeline.drift_watch import NOT_WATCHED
from monitor.pipeline.fit_rounds import FitRounds
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.pipeline.learning import LabelledTracks
from monitor.promotion.fits import CannotFit, FitFailed, NoTracksYet
from monitor.store.documents import InvalidDocument, read_references

log = logging.getLogger(__name__)

# Who asks for the fit.
ACTOR = "drift"

# Seconds between two looks at the tracks.
_REFITS_PERIOD = 1.0

# Seconds between two looks at what has come.
_PERIOD = 0.25


@dataclass(slots=True)
class DriftAlarms:
    """Watches over drift in one sidecar, and acts on its alarms.

    A page that was raised before a restart asks for no fit after it: the tracks to fit on are gone,
    and those to come are fitted in their turn.
    """

    pipeline: Pipeline
    fits: FitRounds
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration where [drift] reference cannot be used."""
        self.pipeline.events.listen(AlarmChange, self._react)
        if reference := self.pipeline.config.drift.reference:
            try:
                self.pipeline.drift.give(read_references(reference))
            except InvalidDocument as error:
                raise InvalidConfiguration(f"[drift] reference = '{reference}': {error}") from None

    async def keep_watching(self) -> None:
        """Takes in what comes, for ever."""
        while True:
            await asyncio.sleep(_PERIOD)
            with contained(self.pipeline.counters, log, NOT_WATCHED):
                await in_steps(self.pipeline.drift.catch_up())

    async def end(self) -> None:
        """Takes in all that has come, and asks for no further fit."""
        for task in self._running:
            task.cancel()
        with contained(self.pipeline.counters, log, NOT_WATCHED):
            self.pipeline.drift.begin_anew()
            await in_steps(self.pipeline.drift.catch_up(everything=True))

    def _react(self, change: AlarmChange) -> None:
        # Of each slice its own kind: many may be alarmed at once, and none goes unsaid.
        log.warning("%s", change_sentence(change), extra={"of": change.alarm.slice})
        page = change.why is AlarmReason.RAISED and change.alarm.severity is Severity.PAGE
        if page and self.pipeline.config.drift.refit_on_page:
            task = asyncio.get_running_loop().create_task(self._refit(change.alarm))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _refit(self, alarm: Alarm) -> None:
        """Fits the slice of an alarm, once tracks of the fault have ended and while it stays."""
        learning = self.pipeline.learning
        wanted = learning.settings.fits.tracks
        with contained(self.pipeline.counters, log, "after a page, %s is not fitted", alarm.slice):
            while self.pipeline.drift.stays(alarm):
                await asyncio.sleep(_REFITS_PERIOD)
                if ended_since(learning, alarm) < wanted:
                    continue
                if await self._fitted(alarm):
                    return
                # Of the fault there are too few among them yet.
                wanted *= 2

    async def _fitted(self, alarm: Alarm) -> bool:
        """Says whether anything is on trial now; a fit that fails is recorded there already."""
        slices = () if alarm.slice == TOTAL else (alarm.slice,)
        try:
            found = await self.fits.asked(slices, "", ACTOR)
        except (CannotFit, NoTracksYet) as error:
            log.warning("after a page, %s is not fitted: %s", alarm.slice, error)
            return False
        except FitFailed:
            return False
        return any(one.version for one in found)


def ended_since(learning: LabelledTracks, alarm: Alarm) -> int:
    """Counts the whole tracks of its slice that have ended since an alarm began."""
    names = learning.slices.names
    return sum(
        track.ended_ns >= alarm.since_ns
        for slice in learning.reservoir.slices()
        if alarm.slice in (TOTAL, names[slice])
        for track in learning.reservoir.tracks(slice)
    )
