"""Drives the demo in cycles, through a sidecar that may come and go meanwhile.

The configuration with which a sidecar can show the demo's story stands at the end, as text.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.client import PLAIN, Access
from monitor.commands.demo.connection import Connection
from monitor.commands.demo.cycles import Cycles
from monitor.commands.demo.pace import Pace
from monitor.commands.demo.plan import Plan
from monitor.commands.demo.scene import SimulatedFrame, simulate, with_variance_factor
from monitor.commands.demo.simulated_streams import first
from monitor.commands.demo.told import Tale
from monitor.commands.sidecar_client import AdminClient, SidecarRefused

_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0


_HELD_S = 10.0  # that a connection must have held for another to be tried soon


_SOON_S = 2.0  # s without a sidecar after which whoever waits for it says so


_AGAIN_S = 60.0  # s between two lines about one that stays away


_IDS_PER_FRAME = np.uint64(2**16)  # of the simulation


@dataclass(frozen=True, slots=True)
class Journey:
    """A drive in cycles, with the sidecar it goes through.

    cycles      after which it is over; inf: never
    patience_s  for which a sidecar that is away, or refuses, is waited for
    """

    plan: Plan
    address: str
    access: Access = PLAIN
    cycles: float = math.inf
    patience_s: float = math.inf


def drive_in_cycles(journey: Journey, say: Callable[[str], None]) -> None:
    """Until SIGTERM, or until the last cycle is over.

    say  prints a line

    Raises InvalidAccess; SidecarUnavailable and SidecarRefused when patience is at its end.
    """
    drive = _Drive(journey, Tale(Cycles(journey.plan), say))
    asyncio.run(_until_terminated(drive))
    drive.tale.end()


async def _until_terminated(drive: _Drive) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    driving, waiting = loop.create_task(drive.run()), loop.create_task(told.wait())
    # The first process of a container is not ended by a signal that it has no handler for.
    loop.add_signal_handler(signal.SIGTERM, told.set)
    try:
        await asyncio.wait((driving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if driving.done():
            await driving
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        for task in (driving, waiting):
            task.cancel()
        await asyncio.gather(driving, waiting, return_exceptions=True)


@dataclass(slots=True)
class _Drive:
    """there_s, told_s: when the sidecar was last there, and its absence last told of."""

    journey: Journey
    tale: Tale
    pace: Pace = field(default_factory=lambda: Pace(0, 0.0))
    connection: Connection | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    there_s: float = field(default_factory=time.monotonic)
    told_s: float = -math.inf

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_connected())
                group.create_task(self._keep_driving())
        except ExceptionGroup as errors:
            raise first(errors) from None

    # ---- the sidecar

    async def _keep_connected(self) -> None:
        pause_s, tried_s = _RETRY_S, time.monotonic()
        while (trouble := await self._conversed()) is not None:
            if time.monotonic() - self.there_s >= self.journey.patience_s:
                raise trouble
            self._tell_of(str(trouble))
            # Who takes us in and throws us out again and again is not asked every second.
            held = time.monotonic() - tried_s >= _HELD_S
            pause_s = _RETRY_S if held else min(2 * pause_s, _LONGEST_RETRY_S)
            await asyncio.sleep(pause_s)
            tried_s = time.monotonic()

    async def _conversed(self) -> Exception | None:
        """Talks to the sidecar; returns why that failed or ended, None when the drive is over."""
        where = self.journey.address
        soon = asyncio.get_running_loop().call_later(
            _SOON_S, self._tell_of, f"waits for a sidecar at {where}"
        )
        try:
            client = AdminClient(where, self.journey.access)
            async with client:
                soon.cancel()
                connection = await Connection.opened(client, self.tale, self._until_due)
                self._begin(connection)
                await connection.run()
            return None
        except ExceptionGroup as errors:
            trouble = first(errors)
            if not isinstance(trouble, OSError | SidecarRefused):
                raise
            # It was there until now: that it has gone is news.
            self.there_s, self.told_s = time.monotonic(), -math.inf
            return trouble
        except (OSError, SidecarRefused) as trouble:
            return trouble
        finally:
            soon.cancel()
            self.connection = None

    def _begin(self, connection: Connection) -> None:
        again = "again, " if self.began.is_set() else ""
        self.tale.tell(f"connected {again}to the sidecar at {self.journey.address}")
        self.connection, self.told_s = connection, -math.inf
        self.began.set()

    def _tell_of(self, text: str) -> None:
        """Not more than once a minute, while it stays away."""
        now_s = time.monotonic()
        if now_s - self.told_s >= _AGAIN_S:
            self.told_s = now_s
            self.tale.tell(f"{text}; frames are left out" if self.began.is_set() else text)

    # ---- the drive

    def _until_due(self, stamp_ns: int) -> float:
        return self.pace.wait_s(stamp_ns, time.monotonic())

    async def _keep_driving(self) -> None:
        await self.began.wait()
        plan, tale = self.journey.plan, self.tale
        self.pace = Pace(time.time_ns(), time.monotonic(), plan.speed)
        settings = replace(plan.settings, start_ns=self.pace.start_ns)
        # Numbers begin at the clock as well: an earlier run has used none of them.
        first_id = round(self.pace.start_ns / 1e9 * settings.rate_hz)
        tale.begin()
        for frame in simulate(settings, plan.seed, math.inf):
            stamp_ns = frame.stamp_ns + self.pace.shift_ns
            self.pace = self.pace.kept_up(stamp_ns, time.time_ns(), time.monotonic())
            stamp_ns = frame.stamp_ns + self.pace.shift_ns
            moment = tale.cycles.at(self.pace.event_s(stamp_ns))
            if moment.cycle > self.journey.cycles:
                break
            await asyncio.sleep(max(0.0, self._until_due(stamp_ns)))
            tale.reach(moment)
            if moment.fault and frame.sensor == plan.faulty:
                frame = with_variance_factor(frame, plan.variance_factor)
            self._offer(_numbered(frame, stamp_ns, first_id))
        if self.connection is not None:
            await self.connection.finish()

    def _offer(self, frame: SimulatedFrame) -> None:
        if self.connection is None or not self.connection.offer(frame):
            self.tale.counts.left_out += 1


def _numbered(frame: SimulatedFrame, stamp_ns: int, first_id: int) -> SimulatedFrame:
    """With another stamp and with ids that count up from another one."""
    return replace(
        frame,
        stamp_ns=stamp_ns,
        frame_id=frame.frame_id + first_id,
        ids=frame.ids + np.uint64(first_id) * _IDS_PER_FRAME,
    )


# alpha is of one sensor: of six together it is the default again. The band is wider than the
# default: with errors as heavy-tailed as these, a few tracks of a healthy sensor read 2, too. The
# rest makes the story short, as the drive is: fits of enough tracks to be right at once, no second
# step for a few tenths, tracks that are whole soon, and a quick way back. Alarms of drift end soon
# after what they are of; and a computer that is busy with other things, too, counts everything,
# however late.
_CONFIG = """
[server]
shed_lag_seconds = 0.0

[statistics]
slice_by = ["stream"]

[tracker]
kind = "embedded"

[promotion]
mode = "automatic"
alpha = 0.003
band = [0.5, 3.0]
fit_every_seconds = {fit_every_s}
fit_tracks = 20
hysteresis = 1.5
rollback_tracks = 1000.0
track_seconds = 4.0

[drift]
calm_hours = 0.01

[metrics]
refresh_seconds = 1.0
"""


_FIT_EVERY_S = 1.0  # s of the drive


def config_text(speed: float) -> str:
    """TOML for `serve`; speed is the seconds of the drive in a second."""
    return _CONFIG.format(fit_every_s=_FIT_EVERY_S / speed)
