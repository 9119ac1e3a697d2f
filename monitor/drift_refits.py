"""What a page may lead to: a fit of what has drifted, as soon as there are tracks to fit it on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from monitor.calibration.drift.alarm import Alarm
from monitor.calibration.slices import TOTAL
from monitor.fit_rounds import FitRounds
from monitor.promotion.fit_job import CannotFit, FitFailed, NoTracksYet

log = logging.getLogger(__name__)

# Who asks for the fit.
ACTOR = "drift"
# Seconds between two looks at the tracks.
_PERIOD = 1.0


@dataclass(slots=True)
class DriftRefits:
    """Of one sidecar."""

    fits: FitRounds
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def ask(self, alarm: Alarm) -> None:
        """Have the slice of an alarm fitted, if the alarm stays for so long."""
        task = asyncio.get_running_loop().create_task(self._refit(alarm))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Ask for nothing more."""
        for task in self._running:
            task.cancel()

    async def _refit(self, alarm: Alarm) -> None:
        """An alarm comes before any track of the fault has ended; a fit has to wait for some."""
        wanted = self.fits.promotions.learning.settings.fits.tracks
        while self._stays(alarm):
            await asyncio.sleep(_PERIOD)
            if self._tracks(alarm) < wanted:
                continue
            if await self._fitted(alarm):
                return
            # Of the fault there are too few among them yet.
            wanted *= 2

    def _stays(self, alarm: Alarm) -> bool:
        latched = self.fits.promotions.pipeline.drift.family.alarms.latched
        known = latched.get((alarm.slice, alarm.severity))
        return known is not None and known.alarm == alarm

    def _tracks(self, alarm: Alarm) -> int:
        """Whole tracks that have ended since it began."""
        learning = self.fits.promotions.learning
        names = learning.slices.names
        return sum(
            track.ended_ns >= alarm.since_ns
            for slice in learning.reservoir.slices()
            if alarm.slice in (TOTAL, names[slice])
            for track in learning.reservoir.tracks(slice)
        )

    async def _fitted(self, alarm: Alarm) -> bool:
        """Whether anything is on trial now; a fit that fails is recorded there already."""
        slices = () if alarm.slice == TOTAL else (alarm.slice,)
        try:
            found = await self.fits.asked(slices, "", ACTOR)
        except (CannotFit, NoTracksYet) as error:
            log.warning("after a page, %s is not fitted: %s", alarm.slice, error)
            return False
        except FitFailed:
            return False
        return any(one.version for one in found)
