"""Listens for alarms of drift while a replay goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from monitor.calibration.drift.alarm import Alarm, SliceStanding, Why
from monitor.edges.drift_client import DriftClient
from monitor.verbs.drift_found import DriftFound

# s that events may take longer than the answer that tells of the same alarms.
_PATIENCE = 5.0
_PERIOD = 0.01


@dataclass(slots=True)
class Hearing:
    """Alarms in the order in which they were raised, since it began.

    before  those that had been raised by then, and stayed
    """

    before: frozenset[tuple[str, ...]] = frozenset()
    raised: list[Alarm] = field(default_factory=list)

    async def listen(self, client: DriftClient) -> None:
        """As long as the sidecar serves."""
        async with contextlib.aclosing(client.alarm_changes()) as changes:
            async for heard in changes:
                if heard.change.why is Why.RAISED:
                    self.raised.append(heard.change.alarm)

    async def all_of(
        self, standings: tuple[SliceStanding, ...], patience: float = _PATIENCE
    ) -> DriftFound:
        """With the alarms that stay at the end: each of them has been heard of, or is added.

        patience  s to wait for those that have not been
        """
        end = time.monotonic() + patience
        while (missing := self._missing(standings)) and time.monotonic() < end:
            await asyncio.sleep(_PERIOD)
        missing.sort(key=lambda alarm: alarm.driven)
        return DriftFound((*self.raised, *missing), standings)

    def _missing(self, standings: tuple[SliceStanding, ...]) -> list[Alarm]:
        known = self.before | set(map(_key, self.raised))
        return [alarm for alarm in _staying(standings) if _key(alarm) not in known]


@contextlib.asynccontextmanager
async def hearing(client: DriftClient) -> AsyncIterator[Hearing]:
    """Listen as long as the context lasts."""
    heard = Hearing()
    listening = asyncio.create_task(heard.listen(client))
    try:
        # Whoever replays to a sidecar of somebody else has not raised what is there.
        standings = (await client.standings()).standings
        heard.before = frozenset(map(_key, _staying(standings)))
        yield heard
    finally:
        listening.cancel()
        # If it broke, so has all else; and alarms that stay are read at the end.
        await asyncio.gather(listening, return_exceptions=True)


def _staying(standings: Iterable[SliceStanding]) -> list[Alarm]:
    return [standing.alarm for standing in standings if standing.alarm is not None]


def _key(alarm: Alarm) -> tuple[str, ...]:
    return (alarm.slice, alarm.severity, str(alarm.event_ns), str(alarm.epoch))
