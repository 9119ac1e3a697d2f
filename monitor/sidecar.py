"""The running sidecar: its parts, built in order, and its life from start to end on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial

from monitor.config import Config, InvalidConfiguration, TrackerKind, split_address
from monitor.pipeline.alarms import DriftAlarms
from monitor.pipeline.checkpoints import Checkpoints, claimed
from monitor.pipeline.events import Events
from monitor.pipeline.external_tracker import ExternalTracker, TrackerCalls, dial
from monitor.pipeline.fit_rounds import FitRounds
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import WallClock, contained
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import configured
from monitor.pipeline.restart import Resumption, begin_ledger
from monitor.service.admin import AdminService, StateService
from monitor.service.exposition import build
from monitor.service.handlers import Service
from monitor.service.host import Host, keep_freed_memory
from monitor.service.http import Endpoint, Exporting
from monitor.service.metrics import Snapshot
from monitor.service.reload import Reloads, read_again, reloaded
from monitor.service.server import CannotListen, Server
from monitor.store.journal import Journal
from monitor.store.previous import previous_paths, take_over
from monitor.wire.messages import Health
from monitor.wire.requests import WireLimits

log = logging.getLogger(__name__)

# How often the loop's punctuality is looked at, seconds.
LAG_PROBE = 0.05
# Without a frame for so long, a late loop is no overload, seconds.
IDLE_SECONDS = 1.0
# How often a service manager that keeps no watch over us hears that we live, seconds.
ALIVE_SECONDS = 5.0

# What those who watch are told.
OVERLOADED = (
    "overload: frames are answered and forwarded, but neither remembered nor counted; see [server] "
    "shed_lag_seconds and shed_rows"
)
CALM = "serving: the overload is over, frames are monitored again"
# What the service manager shows.
SERVING = "serving"
Housekeeping = Callable[[], Coroutine[object, object, None]]


class Sidecar:
    """All parts together.

    config  active; a reload puts another one there
    host    the process that it runs in
    """

    def __init__(self, config: Config, host: Host | None = None) -> None:
        """Builds all parts. Raises InvalidConfiguration."""
        self.config = config
        self.host = host or Host()
        self.reloads = Reloads(self.host.path)
        self.wall_clock = WallClock(config.server.clock_step_seconds)
        self.endpoint = Endpoint()
        self.http_port = 0
        self._read_again = asyncio.Event()
        self._stopping = asyncio.Event()
        self._frames_seen, self._frame_came = 0, -math.inf
        events = Events()
        soon = asyncio.Event()
        self.claim = claimed(config, os.environ)
        self.journal = Journal(
            self.claim if config.pending.disk_bytes else None,
            config.pending,
            lambda text: events.announce(Health(True, text)),
            pressed=soon,
        )
        self.pipeline = pipeline = Pipeline(config, self.journal, events=events)
        named = configured(pipeline.recalibrators, config)
        self.promotions = Promotions(pipeline)
        self.fits = FitRounds(self.promotions)
        self.alarms = DriftAlarms(pipeline, self.fits)
        self.checkpoints = Checkpoints(
            promotions=self.promotions,
            named=named,
            claim=self.claim,
            journal=self.journal,
            previous=previous_paths(config.old_keys),
            soon=soon,
        )
        self.tracker: ExternalTracker | None = None
        if config.tracker.kind is TrackerKind.GRPC:
            self.tracker = ExternalTracker(
                config.tracker, pipeline.counters, pipeline.track_elsewhere, pipeline.track_instead
            )
        service = Service(
            pipeline,
            events,
            WireLimits(config.server.max_message_bytes, config.limits.max_detections),
            self.checkpoints.settle,
            self.tracker,
            self.reloads,
        )
        admin = AdminService(self.promotions, self.fits.asked, self.checkpoints.settle)
        self.server = Server(service, admin, StateService(pipeline))
        self.resumed = Resumption(pipeline)
        live = Snapshot(
            promotions=self.promotions,
            counters=pipeline.counters,
            edges=pipeline.live.accumulator.edges,
            journal=self.journal,
            resumed=self.resumed,
            reloads=self.reloads,
            logs=self.host.logs,
            tracker=self.tracker,
            build=build(),
        )
        self.exporting = Exporting(live, self.checkpoints, self.endpoint.published)

    async def run(self, listening: Callable[[Sidecar], None]) -> None:
        """Serves until SIGTERM or SIGINT; calls `listening` once the ports are open.

        Raises CannotListen.
        """
        host, port = split_address(self.config.server.http_address, "http_address")
        keep_freed_memory()
        self._resume()
        await self.exporting.refresh_if_possible()
        await self.server.start()
        try:
            self.http_port = self.endpoint.start(host, port)
        except OSError as error:
            await self.server.stop()
            raise CannotListen(
                f"[server] http_address = '{self.config.server.http_address}': "
                f"{error.strerror}. Choose a free port, or 0 for any."
            ) from None
        # Threads hand over sooner: a scrape never holds the loop for long.
        sys.setswitchinterval(0.0005)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        # Not the loop's own handler: after the end of the loop a SIGHUP would kill the process.
        signal.signal(signal.SIGHUP, lambda *_: self._asked_to_read_again(loop))
        self.endpoint.published.ready = True
        listening(self)
        async with asyncio.TaskGroup() as group:
            housekeeping = [group.create_task(self._keep(task)) for task in self._housekeeping()]
            manager = self.host.manager
            manager.ready(SERVING)
            await self._stopping.wait()
            manager.stopping()
            self.endpoint.published.ready = False
            await self.server.stop()
            for task in housekeeping:
                task.cancel()
        self.endpoint.published.turned = None
        await self.exporting.refresh_if_possible()
        await self.alarms.end()
        await self.checkpoints.end()
        await self.journal.close()
        if self.claim is not None:
            self.claim.release()
        self.endpoint.stop()

    def _housekeeping(self) -> list[Housekeeping]:
        """Lists what goes on beside the answers, until it is cancelled."""
        found: list[Housekeeping] = [
            self.exporting.keep_fresh,
            self._watch_the_loop,
            self._drop_stuck,
            self._keep_configured,
            self._tell_that_we_live,
            self.checkpoints.keep,
            self.fits.keep_learning,
            self.alarms.keep_watching,
        ]
        if self.tracker is not None:
            found.append(TrackerCalls(self.tracker, partial(dial, self.config.tracker)).run)
        return found

    async def _keep(self, housekeeping: Housekeeping) -> None:
        """Runs one task; a fault that it does not contain itself ends it alone."""
        with contained(self.pipeline.counters, log, "housekeeping has ended: %r", housekeeping):
            await housekeeping()

    def _resume(self) -> None:
        """Goes on where the last run ended: from its checkpoints, and the ledger after them."""
        ledger, journal = self.pipeline.ledger, self.journal
        if journal.claim is not None and journal.claim.held:
            take_over(self.checkpoints.previous, journal.claim.folder)
        opened = journal.open(ledger.dropped)
        self.checkpoints.load()
        begin_ledger(ledger, journal, opened)
        position = self.checkpoints.position
        if position is None:
            # Statistics without a position count as up to date; no frame before is in the account.
            position = opened.sequence
            ledger.begins = ledger.sequence + 1
        self.resumed.run(journal, position)
        journal.started()
        self.wall_clock.epoch = ledger.epoch

    async def _drop_stuck(self) -> None:
        while True:
            timeout = self.config.server.write_timeout_seconds
            await asyncio.sleep(timeout / 4)
            self.server.service.drop_stuck(timeout)

    # ---- the process we are in

    async def _tell_that_we_live(self) -> None:
        """Tells the service manager that the loop turns; repeats a state that it did not get."""
        manager = self.host.manager
        while True:
            manager.alive()
            await asyncio.sleep(manager.watchdog_seconds or ALIVE_SECONDS)

    def _asked_to_read_again(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(self._read_again.set)

    async def _keep_configured(self) -> None:
        """Reads the configuration again whenever SIGHUP asks for it."""
        while True:
            await self._read_again.wait()
            self._read_again.clear()
            self.host.manager.reloading(time.monotonic_ns() // 1000)
            with contained(self.pipeline.counters, log, "the configuration was not read again"):
                await self._reconfigure()
            if not self._stopping.is_set():  # "stopping" stays the last word
                self.host.manager.ready(SERVING)

    async def _reconfigure(self) -> None:
        """Applies what may change in a running sidecar; a refused file changes nothing."""
        try:
            read = await read_again(self.host.reread)
            config, changed, waiting = reloaded(self.config, read)
        except InvalidConfiguration as error:
            self.reloads.refuse(str(error))
            log.error("configuration: refused, all stays as it is: %s", error)
            return
        self._adjust(config)
        self.reloads.take(changed, waiting)
        log.info(
            "configuration: read again; new: %s; for a restart: %s",
            ", ".join(changed) or "nothing",
            ", ".join(waiting) or "nothing",
        )

    def _adjust(self, config: Config) -> None:
        """Applies a configuration that differs in reloadable keys alone."""
        self.config = config
        self.pipeline.adjust(config)
        self.wall_clock.step_seconds = config.server.clock_step_seconds
        if self.host.adjusted is not None:
            self.host.adjusted(config)

    async def _watch_the_loop(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_PROBE)
            now = self.endpoint.published.turned = time.monotonic()
            with contained(self.pipeline.counters, log, "overload was not checked"):
                self._look(now, now - began - LAG_PROBE, time.time_ns(), time.monotonic_ns())

    def _look(self, now: float, lag: float, wall_ns: int, monotonic_ns: int) -> None:
        """Notes how late the loop was (s), and what the clocks say."""
        counters = self.pipeline.counters
        counters.loop_lag_seconds = max(counters.loop_lag_seconds, lag)
        if self._stopping.is_set():
            return  # "stopping" stays the last word
        events, overload, clock = self.pipeline.events, self.pipeline.overload, self.wall_clock
        if counters.frames > self._frames_seen:
            self._frames_seen, self._frame_came = counters.frames, now
        # Without frames there is nothing to leave out, however late the loop is for other work.
        idle = now - self._frame_came > IDLE_SECONDS
        waited = max(0.0 if idle else lag, self.server.service.turns.longest_wait())
        if overload.look(now, waited, self.pipeline.live.waiting):
            events.announce(Health(True, OVERLOADED if overload.shedding else CALM))
        counters.shedding, counters.overloads = overload.shedding, overload.episodes
        step = clock.look(wall_ns, monotonic_ns)
        counters.clock_epoch, counters.clock_steps = clock.epoch, clock.steps
        if step is not None:
            text = f"the wall clock was set by {step:+.3f} s: clock epoch {clock.epoch}"
            events.announce(Health(True, text), lasts=False)
            self.pipeline.clock_stepped(clock.epoch)


def serve(config: Config, listening: Callable[[Sidecar], None], host: Host) -> Sidecar:
    """Runs a sidecar until it is told to stop; returns it for a last look.

    Raises InvalidConfiguration, CannotListen.
    """
    sidecar = Sidecar(config, host)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(sidecar.run(listening))
    return sidecar
