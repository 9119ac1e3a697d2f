"""The running sidecar: pipeline, gRPC server, HTTP endpoint and housekeeping on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import html
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor import __version__
from monitor.config import Config, TrackerKind, split_address
from monitor.drift_keeping import DriftKeeping
from monitor.edges.allocator import keep_freed_memory
from monitor.edges.exporter import CONTENT_TYPE, Snapshot, render
from monitor.edges.page import Endpoint
from monitor.edges.server import CannotListen, Server
from monitor.edges.service import Service
from monitor.edges.tracker_client import TrackerClient
from monitor.edges.wire import WireLimits
from monitor.events import Events, Health
from monitor.external_tracker import ExternalTracker
from monitor.fit_rounds import FitRounds
from monitor.journal import Journal
from monitor.keeping import Keeper
from monitor.keeping_recalibrators import RecalibratorKeeper
from monitor.kept_promotions import KeptPromotions, configured
from monitor.ledger_reading import DiskReading, ledger_reading
from monitor.overload import Overload
from monitor.pipeline import Pipeline
from monitor.promotion.records import Record
from monitor.promotions import Promotions
from monitor.readings import ClassReadingCache, ReadingCache, WindowReading
from monitor.recalibration_readings import RecalibrationReadings
from monitor.resuming import Resumption
from monitor.steps import in_steps
from monitor.tracker_calls import TrackerCalls
from monitor.wall_clock import WallClock

log = logging.getLogger(__name__)

# How often the loop's punctuality is looked at, seconds.
LAG_PROBE = 0.05
# What those who watch are told.
OVERLOADED = (
    "overload: frames are answered and forwarded, but neither remembered nor counted; see [server] "
    "shed_lag_seconds and shed_rows"
)
CALM = "serving: the overload is over, frames are monitored again"
# How often the windows are read, seconds: they are made of panes of some 50 s and more.
WINDOW_SECONDS = 10.0
# Numbers of the ledger that are left out where it is not known which were given.
_BEYOND = 1 << 32


@dataclass(slots=True)
class Sidecar:
    """All parts together."""

    config: Config
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
    _cache: ReadingCache = field(init=False)
    _window_caches: dict[str, ReadingCache] = field(init=False)
    _class_cache: ClassReadingCache = field(default_factory=ClassReadingCache)
    _recalibration: RecalibrationReadings = field(init=False)
    _windows: tuple[WindowReading, ...] = ()
    _windows_read: float = float("-inf")
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
        self._recalibration = RecalibrationReadings(self.promotions)
        bins = self.config.statistics.bins
        self._cache = ReadingCache(bins)
        self._window_caches = {name: ReadingCache(bins) for name in self.config.statistics.windows}

    async def run(self, listening: Callable[[Sidecar], None]) -> None:
        """Serve until SIGTERM or SIGINT; `listening` is called once the ports are open.

        Raises CannotListen.
        """
        host, port = split_address(self.config.server.http_address, "http_address")
        keep_freed_memory()
        self._resume()
        await self._refresh_if_possible()
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
        self.endpoint.published.ready = True
        housekeeping = [
            asyncio.create_task(task())
            for task in (
                self._keep_fresh,
                self._watch_the_loop,
                self._drop_stuck,
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
        await self._stopping.wait()
        self.endpoint.published.ready = False
        await self.server.stop()
        for task in housekeeping:
            task.cancel()
        await asyncio.gather(*housekeeping, return_exceptions=True)
        await self._refresh_if_possible()
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

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.config.metrics.refresh_seconds)
            await self._refresh_if_possible()

    async def _refresh_if_possible(self) -> None:
        """Neither the start nor the last snapshot may fail for want of metrics."""
        try:
            await self._refresh()
        except Exception:
            log.exception("the metrics were not refreshed")
            self.pipeline.counters.internal_errors += 1

    async def _refresh(self) -> None:
        """Make the exposition text, in steps that let frames pass in between."""
        pipeline = self.pipeline
        statistics = await in_steps(pipeline.live.in_steps())
        counters = copy.deepcopy(pipeline.counters)
        readings = await in_steps(self._cache.read(statistics))
        if time.monotonic() - self._windows_read >= WINDOW_SECONDS:
            self._windows = await self._read_windows()
            self._windows_read = time.monotonic()
        class_statistics = await in_steps(pipeline.live.classes_in_steps())
        store = self.kept.keeper
        store_failures = store.failures + store.refused
        drift = None
        if self.config.drift.watch:
            drift = await in_steps(pipeline.drift.reading(self.drift.failures))
        snapshot = Snapshot(
            counters=counters,
            readings=readings,
            pending_bytes=pipeline.ledger.store.bytes,
            pending_detections=pipeline.ledger.pending,
            streams=len(pipeline.streams),
            recalibrators=pipeline.recalibrators.in_force(),
            mode=str(self.config.recalibration.mode),
            tracks=pipeline.tracks(),
            bins=tuple(pipeline.live.export_bins()),
            edges=pipeline.live.accumulator.edges,
            windows=self._windows,
            classes=await in_steps(self._class_cache.read(class_statistics)),
            time_jumps=pipeline.live.clock.jumps,
            checkpoint_age=self.keeper.age_seconds,
            checkpoint_failures=self.keeper.failures,
            recalibration=await in_steps(self._recalibration.read(store_failures)),
            drift=drift,
            forwarding=None if self.tracker is None else self.tracker.reading(),
            ledger=ledger_reading(pipeline.ledger, self._disk()),
        )
        text = await in_steps(render(snapshot))
        published = self.endpoint.published
        published.content_type = CONTENT_TYPE
        published.metrics = text
        published.page = _page(snapshot).encode()
        pipeline.counters.loop_lag_seconds = 0.0

    def _disk(self) -> DiskReading:
        journal = self.journal
        return DiskReading(
            bytes=journal.bytes,
            partitions=journal.partitions,
            waiting=journal.waiting,
            failures=journal.failures,
            replayed=self.resumed.entries,
            not_replayed=self.resumed.failed,
            refused={
                "statistics": self.keeper.refused,
                "drift": self.drift.refused,
                "partition": journal.refused,
            },
        )

    async def _read_windows(self) -> tuple[WindowReading, ...]:
        found: list[WindowReading] = []
        for level, (name, cache) in enumerate(self._window_caches.items()):
            statistics = await in_steps(self.pipeline.live.in_steps(level))
            readings = await in_steps(cache.read(statistics))
            found += [WindowReading(name, reading) for reading in readings]
        return tuple(found)

    async def _drop_stuck(self) -> None:
        timeout = self.config.server.write_timeout_seconds
        while True:
            await asyncio.sleep(timeout / 4)
            self.server.service.drop_stuck(timeout)

    async def _watch_the_loop(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_PROBE)
            now = time.monotonic()
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


def _page(snapshot: Snapshot) -> str:
    """A plain table of the state, for a person with a browser."""
    rows = "".join(
        f"<tr><td>{html.escape(reading.name)}<td>{reading.raw.rows}"
        f"<td>{reading.raw.joint.nees_over_k:.3f}<td>{reading.recalibrated.joint.nees_over_k:.3f}"
        f"<td>{reading.raw.joint.qce:.3f}<td>{reading.recalibrated.joint.qce:.3f}"
        for reading in snapshot.readings
    )
    counters = snapshot.counters
    versions = ", ".join(f"recalibrator {entry.version}" for entry in snapshot.recalibrators)
    return (
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=5>"
        "<title>calibration monitor</title><style>body{font:14px sans-serif;margin:2em}"
        "td,th{padding:.2em 1em;text-align:right}td:first-child{text-align:left}</style>"
        f"<h1>calibration monitor {__version__}</h1>"
        f"<p>{counters.frames} frames, {counters.detections} detections, "
        f"{counters.truth.matched} with ground truth; mode {html.escape(snapshot.mode)}, "
        f"{html.escape(versions)}; <a href=/metrics>metrics</a></p>"
        "<table><tr><th>slice<th>n<th>NEES/K raw<th>recalibrated<th>QCE raw<th>recalibrated"
        f"{rows}</table>"
    )


def serve(config: Config, listening: Callable[[Sidecar], None]) -> Sidecar:
    """Run a sidecar until it is told to stop; returns it for a last look.

    Raises InvalidConfiguration, CannotListen.
    """
    sidecar = Sidecar(config)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(sidecar.run(listening))
    return sidecar
