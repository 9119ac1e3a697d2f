"""What a page may lead to: a fit of what has drifted, as soon as there are tracks to fit it on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from monitor.calibration.drift.alarm import Alarm
from monitor.calibration.slices import TOTAL
from monitor.learning import Learning
from monitor.promotion.fit_job import CannotFit, FitFailed, NoTracksYet
from monitor.promotion.standing import SliceFitted

log = logging.getLogger(__name__)

# Who asks for the fit.
ACTOR = "drift"
# Seconds between two looks at the tracks.
_PERIOD = 1.0


@dataclass(slots=True)
class DriftRefits:
    """Of one sidecar. A page that was raised before a restart asks for nothing after it: the tracks
    to fit on are gone, and those to come are fitted in their turn.

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
        wanted = self.enough
        try:
            while self.stays(alarm):
                await asyncio.sleep(_PERIOD)
                if self.tracks(alarm) < wanted:
                    continue
                if await self._fitted(alarm):
                    return
                # Of the fault there are too few among them yet.
                wanted *= 2
        except Exception:
            log.exception("after a page, %s is not fitted", alarm.slice)

    async def _fitted(self, alarm: Alarm) -> bool:
        """Whether anything is on trial now; a fit that fails is recorded there already."""
        slices = () if alarm.slice == TOTAL else (alarm.slice,)
        try:
            found = await self.fit(slices, "", ACTOR)
        except (CannotFit, NoTracksYet) as error:
            log.warning("after a page, %s is not fitted: %s", alarm.slice, error)
            return False
        except FitFailed:
            return False
        return any(one.version for one in found)


def ended_since(learning: Learning, alarm: Alarm) -> int:
    """Whole tracks of its slice that have ended since an alarm began."""
    names = learning.slices.names
    return sum(
        track.ended_ns >= alarm.since_ns
        for slice in learning.reservoir.slices()
        if alarm.slice in (TOTAL, names[slice])
        for track in learning.reservoir.tracks(slice)
    )
