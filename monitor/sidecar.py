"""The running sidecar: pipeline, gRPC server, HTTP endpoint and housekeeping on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.config import Config, InvalidConfiguration, TrackerKind, split_address
from monitor.frames.status import Status
from monitor.pipeline.checkpoints import DriftKeeping, Keeper
from monitor.pipeline.events import Events
from monitor.pipeline.external_tracker import ExternalTracker, TrackerCalls
from monitor.pipeline.fits.rounds import FitRounds
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import Overload, WallClock
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrator_checkpoints import KeptPromotions, RecalibratorKeeper, configured
from monitor.pipeline.restart import Resumption
from monitor.pipeline.tracker_client import TrackerClient
from monitor.promotion.records import Record
from monitor.service.admin import status
from monitor.service.exporting import Exporting
from monitor.service.frames import Service
from monitor.service.host import Host, keep_freed_memory
from monitor.service.http import Endpoint
from monitor.service.reload import Reloads, read_again, reloaded
from monitor.service.server import CannotListen, Server
from monitor.store.ledger.journal import Journal
from monitor.wire.messages import Health
from monitor.wire.requests import WireLimits

log = logging.getLogger(__name__)


# How often the loop's punctuality is looked at, seconds.
LAG_PROBE = 0.05


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


# Numbers of the ledger that are left out where it is not known which were given.
_BEYOND = 1 << 32


@dataclass(slots=True)
class Sidecar:
    """All parts together.

    config  in force; a reload puts another one there
    host    the process that it runs in
    """

    config: Config
    host: Host = field(default_factory=Host)
    pipeline: Pipeline = field(init=False)
    promotions: Promotions = field(init=False)
    kept: KeptPromotions = field(init=False)
    fits: FitRounds = field(init=False)
    tracker: ExternalTracker | None = None
    server: Server = field(init=False)
    endpoint: Endpoint = field(default_factory=Endpoint)
    http_port: int = 0
    keeper: Keeper = field(init=False)
    journal: Journal = field(init=False)
    resumed: Resumption = field(init=False)
    drift: DriftKeeping = field(init=False)
    overload: Overload = field(init=False)
    wall_clock: WallClock = field(init=False)
    exporting: Exporting = field(init=False)
    reloads: Reloads = field(init=False)
    _started_ns: int = field(default_factory=time.time_ns)
    _read_again: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.config)
        server = self.config.server
        self.overload = Overload(server.shed_lag_seconds, server.shed_rows)
        self.wall_clock = WallClock(server.clock_step_seconds)
        named = configured(self.pipeline.recalibrators, self.config)
        self.promotions = Promotions(self.pipeline)
        keeper = RecalibratorKeeper(self.config.promotion.folder)
        every_seconds = self.config.snapshot.every_seconds
        self.kept = KeptPromotions(self.promotions, named, keeper, every_seconds)
        self.fits = FitRounds(self.promotions)
        limits = WireLimits(self.config.server.max_message_bytes, self.config.limits.max_detections)
        service = Service(self.pipeline, Events(), limits)
        if self.config.tracker.kind is TrackerKind.GRPC:
            pipeline = self.pipeline
            service.tracker = self.tracker = ExternalTracker(
                self.config.tracker,
                pipeline.counters,
                pipeline.track_elsewhere,
                pipeline.track_instead,
            )
        self.server = Server(service, self.promotions, self.fits.asked, self.kept.settle)
        self.promotions.announce = self._announce
        self.drift = DriftKeeping(self.pipeline, self.config.drift, service.events, self.fits)
        service.settle = self.drift.settle
        self.keeper = Keeper(self.pipeline, self.server.states.newer, self.config.snapshot)
        self.journal = Journal(self.config.pending)
        self.resumed = Resumption(self.pipeline, 0, 0, 0)
        self.pipeline.overload = self.overload
        self.reloads = Reloads(self.host.path)
        service.status = self._status
        self.exporting = Exporting(
            pipeline=self.pipeline,
            promotions=self.promotions,
            keeper=self.keeper,
            kept=self.kept,
            drift=self.drift,
            journal=self.journal,
            tracker=self.tracker,
            reloads=self.reloads,
            logs=self.host.logs,
            published=self.endpoint.published,
            resumed=self.resumed,
        )

    async def run(self, listening: Callable[[Sidecar], None]) -> None:
        """Serve until SIGTERM or SIGINT; `listening` is called once the ports are open.

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
        # Not the loop's own handler, which goes with the loop: one that comes after it would kill.
        signal.signal(signal.SIGHUP, lambda *_: self._asked_to_read_again(loop))
        self.endpoint.published.ready = True
        housekeeping = [
            asyncio.create_task(task())
            for task in (
                self.exporting.keep_fresh,
                self._watch_the_loop,
                self._drop_stuck,
                self._keep_configured,
                self._tell_that_we_live,
                self.keeper.keep,
                self.fits.keep_learning,
                self.kept.keep_trials,
                self.drift.keep_watching,
            )
        ]
        if self.tracker is not None:
            client = TrackerClient(self.config.tracker)
            calls = TrackerCalls(self.tracker, client.dial)
            housekeeping.append(asyncio.create_task(calls.run()))
        listening(self)
        manager = self.host.manager
        manager.ready(SERVING)
        await self._stopping.wait()
        manager.stopping()
        self.endpoint.published.ready = False
        await self.server.stop()
        for task in housekeeping:
            task.cancel()
        await asyncio.gather(*housekeeping, return_exceptions=True)
        self.endpoint.published.turned = None
        await self.exporting.refresh_if_possible()
        await self.keeper.write()
        self.keeper.close()
        await self.kept.end()
        await self.drift.end()
        await self.journal.close()
        self.endpoint.stop()

    def _resume(self) -> None:
        """Go on where the last run ended: from what it kept, and the ledger after that."""
        ledger, journal, service = self.pipeline.ledger, self.journal, self.server.service
        gone: dict[int, str] = {}
        journal.dropped = gone.__setitem__
        journal.tell = lambda text: service.announce(Health(True, text))
        opened = journal.open()
        ledger.on_disk = journal.keeps
        ledger.sequence = opened.sequence
        self.keeper.load()
        if opened.uncertain:
            # What could not be read has numbers too, which must not be given again.
            ledger.sequence += _BEYOND
        for partition in sorted(set(ledger.waiting) - set(opened.partitions)):
            why = gone.get(partition)
            if why is None:
                # It may have gone as it should, after the last snapshot.
                why = journal.missing(partition, ledger.partition_of(None))
                log.warning(
                    "pending: partition %d is not there, or empty (%s): what waited in it, %d "
                    "detections, is not known any more",
                    *(partition, why, ledger.waiting[partition]),
                )
                journal.drops[why] += 1
            ledger.dropped(partition, why)
        journal.dropped = ledger.dropped
        for frame in opened.frames:
            ledger.known(frame.stream, frame.frame_id, frame.stamp_ns, frame.partition)
        self.kept.begin()
        self.drift.begin()
        # What does not say how far it had come is as new as can be: nothing is told it twice.
        statistics = opened.sequence if self.keeper.entry is None else self.keeper.entry
        drift = statistics if self.drift.entry is None else self.drift.entry
        learning = statistics if self.kept.entry is None else self.kept.entry
        self.resumed = Resumption(self.pipeline, statistics, drift, learning)
        self.exporting.resumed = self.resumed
        self.resumed.run(journal)
        self.wall_clock.epoch = ledger.epoch
        ledger.journal = journal
        if journal.keeps:
            service.journal = journal
            self.keeper.covered = self.drift.covered = self._covered
            journal.pressed = self.keeper.soon.set
            if not self.config.snapshot.path:
                journal.covered_always()
            self.keeper.wrote = lambda entry: journal.covered(entry, ledger.partition_of(None))

    async def _covered(self, entry: int) -> None:
        """Raises OSError where the ledger is not on the disk up to an entry."""
        if not await self.journal.settled(entry):
            raise OSError(
                f"the ledger is not on the disk up to entry {entry}: see [pending] folder"
            )

    def _announce(self, record: Record) -> None:
        """Tell those who watch, and have it kept."""
        self.server.service.events.publish(record, record.time_ns)
        self.kept.note(record)

    async def _drop_stuck(self) -> None:
        while True:
            timeout = self.config.server.write_timeout_seconds
            await asyncio.sleep(timeout / 4)
            self.server.service.drop_stuck(timeout)

    def _status(self) -> Status:
        streams, clocks = self.pipeline.streams.values(), (time.time_ns(), time.monotonic_ns())
        return status(streams, self.tracker, self.reloads, self._started_ns, *clocks)

    # ---- the process we are in

    async def _tell_that_we_live(self) -> None:
        """As long as this loop turns, and no longer; what was not heard is told again with it."""
        manager = self.host.manager
        while True:
            manager.alive()
            await asyncio.sleep(manager.watchdog_seconds or ALIVE_SECONDS)

    def _asked_to_read_again(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(self._read_again.set)

    async def _keep_configured(self) -> None:
        """Read the configuration again whenever we are asked to."""
        while True:
            await self._read_again.wait()
            self._read_again.clear()
            self.host.manager.reloading(time.monotonic_ns() // 1000)
            try:
                await self._reconfigure()
            except Exception:
                log.exception("the configuration was not read again")
                self.pipeline.counters.internal_errors += 1
            if not self._stopping.is_set():  # what was said last is that we end
                self.host.manager.ready(SERVING)

    async def _reconfigure(self) -> None:
        """Take what can be taken while we run; what cannot be used changes nothing."""
        try:
            found = reloaded(self.config, await read_again(self.host.reread))
        except InvalidConfiguration as error:
            self.reloads.refuse(str(error))
            log.error("configuration: refused, all stays as it is: %s", error)
            return
        self._adjust(found.config)
        self.reloads.take(found)
        log.info(
            "configuration: read again; new: %s; for a restart: %s",
            ", ".join(found.changed) or "nothing",
            ", ".join(found.waiting) or "nothing",
        )

    def _adjust(self, config: Config) -> None:
        """Let settings be in force that have none of those that a restart must bring."""
        self.config = self.pipeline.config = config
        server = config.server
        self.overload.lag_seconds = server.shed_lag_seconds
        self.overload.waiting_rows = server.shed_rows
        self.wall_clock.step_seconds = server.clock_step_seconds
        settings = config.promotion.settings()
        self.pipeline.learning.adjust(settings.fits, settings.policy)
        self.keeper.config = config.snapshot
        self.kept.every_seconds = config.snapshot.every_seconds
        self.drift.adjust(config.drift, settings.fits.tracks)
        self.host.adjusted(config)

    async def _watch_the_loop(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_PROBE)
            now = self.endpoint.published.turned = time.monotonic()
            try:
                self._look(now, now - began - LAG_PROBE, time.time_ns(), time.monotonic_ns())
            except Exception:
                log.exception("the loop was not looked at")
                self.pipeline.counters.internal_errors += 1

    def _look(self, now: float, lag: float, wall_ns: int, monotonic_ns: int) -> None:
        """Take in how late the loop was (s), and what the clocks say."""
        counters = self.pipeline.counters
        counters.loop_lag_seconds = max(counters.loop_lag_seconds, lag)
        if self._stopping.is_set():
            return  # what was said last is that we end
        service = self.server.service
        waited = max(lag, service.turns.longest_wait())
        if self.overload.look(now, waited, self.pipeline.live.waiting):
            service.announce(Health(True, OVERLOADED if self.overload.shedding else CALM))
        counters.shedding, counters.overloads = self.overload.shedding, self.overload.episodes
        step = self.wall_clock.look(wall_ns, monotonic_ns)
        clock = self.wall_clock
        counters.clock_epoch, counters.clock_steps = clock.epoch, clock.steps
        if step is not None:
            known = service.events.health
            text = f"the wall clock was set by {step:+.3f} s: clock epoch {clock.epoch}"
            service.announce(Health(True, text))
            # It has happened; it is no state that who begins to watch later is in.
            service.events.health = known
            self.pipeline.clock_stepped(clock.epoch)


def serve(config: Config, listening: Callable[[Sidecar], None], host: Host) -> Sidecar:
    """Run a sidecar until it is told to stop; returns it for a last look.

    Raises InvalidConfiguration, CannotListen.
    """
    sidecar = Sidecar(config, host)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(sidecar.run(listening))
    return sidecar
