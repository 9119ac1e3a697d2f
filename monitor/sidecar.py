"""The running sidecar: its parts, built in order, and its life from start to end on one loop.

The process that it runs in is known to its service manager, by systemd's protocol, and to its C
library.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from monitor.config import Config, InvalidConfiguration, Reloads, TrackerKind, reloaded
from monitor.fleet.uploads import Uploader, store_of
from monitor.pipeline.checkpoints import Checkpoints, claimed
from monitor.pipeline.external_tracker import ExternalTracker, TrackerCalls, dial
from monitor.pipeline.fit_rounds import FitRounds
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import Collections, Events, WallClock, contained, in_steps
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import configured
from monitor.pipeline.restart import Resumption, begin_ledger
from monitor.pipeline.shown import ShownState
from monitor.service.admin import AdminService, StateService
from monitor.service.exposition import build
from monitor.service.handlers import Service
from monitor.service.http import Endpoint, Exporting
from monitor.service.log import LogCounts
from monitor.service.metrics import Snapshot
from monitor.service.server import CannotListen, Server
from monitor.statistics.state import StatisticsState
from monitor.store.journal import Journal
from monitor.store.previous import previous_paths, take_over
from monitor.wire.access import split_address
from monitor.wire.requests import WireLimits
from monitor.wire.values import Health

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

# systemd drops a datagram above PIPE_BUF, 4,096 bytes; a character has up to four bytes.
MOST_CHARACTERS = 900

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

# Bytes; blocks up to this size come from the heap, not from the system one by one.
_LARGEST_BLOCK = 2**25

# Bytes; the heap gives back free memory at its end only beyond this size.
_KEPT = 2**26

# s to read a file; one that takes longer is on a disk that does not answer.
READ_SECONDS = 10.0
T = TypeVar("T")
Housekeeping = Callable[[], Coroutine[object, object, None]]


@dataclass(slots=True, eq=False)
class ServiceManager:
    """Tells the service manager that started the process in which state the sidecar is.

    Speaks systemd's notification protocol: datagrams to a socket, none without a manager. No
    method raises or blocks: a sidecar serves whether or not it is watched. A failure to send is
    logged once, and a change of state (ready, reloading, stopping) is sent again before the next
    `alive`, since without READY the manager would end the process as one that never began.

    watchdog_seconds  s between two calls of `alive`, half of what is allowed; None: there is no
                      watchdog
    source            sd_notify(3) and sd_watchdog_enabled(3)
    """

    _address: bytes | None
    watchdog_seconds: float | None
    _owed: str = ""
    _well: bool = True
    _socket: socket.socket | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> ServiceManager:
        """Reads the variables NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.

        pid  of this process; another one in WATCHDOG_PID means that another process is watched
        """
        # A path, or @ with an abstract name of Linux; `vsock:` and others are for virtual machines.
        text = environment.get("NOTIFY_SOCKET", "")
        if not re.match("[/@].", text, re.DOTALL):
            return cls(None, None)
        microseconds = environment.get("WATCHDOG_USEC", "")
        watched = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        # 2^64 - 1, systemd's infinity, has 20 digits: a number so long is no time.
        limited = watched and re.fullmatch("[0-9]{1,19}", microseconds)
        seconds = int(microseconds) / 2e6 if limited else 0.0
        return cls(os.fsencode(re.sub("^@", "\0", text)), seconds or None)

    def ready(self, status: str) -> None:
        """Tells that the start, or a reload, is over, with a line for operators."""
        # Line ends would each begin an assignment of its own.
        self._change(f"READY=1\nSTATUS={' '.join(status.split())[:MOST_CHARACTERS]}")

    def reloading(self, monotonic_us: int) -> None:
        """Tells that a reload began at that moment of CLOCK_MONOTONIC, in µs."""
        self._change(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us:d}\nSTATUS=reloading")

    def stopping(self) -> None:
        """Tells that the end has begun."""
        self._change("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Tells that the loop still turns; a message that cannot be sent is lost."""
        if self._owed and self._send(self._owed):
            self._owed = ""
        if not self._owed:
            self._send("WATCHDOG=1")

    def _change(self, message: str) -> None:
        # Only the newest state counts: an older one that was not sent is forgotten.
        self._owed = "" if self._send(message) else message

    def _send(self, message: str) -> bool:
        """Returns False if somebody listens and the message could not be sent."""
        if self._address is None:
            return True
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            # Not connected once: a manager that restarts binds the same path anew.
            self._socket.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            if self._well:
                log.warning(
                    "the service manager at NOTIFY_SOCKET = '%s' was not told of our state (%s); "
                    "it is told as soon as it listens",
                    *(os.fsdecode(self._address).replace("\0", "@"), error.strerror or error),
                )
            self._well = False
            return False
        self._well = True
        return True


@dataclass(frozen=True, slots=True)
class Host:
    """The process as the sidecar uses it.

    reread    reads the configuration as it is now; raises InvalidConfiguration
    path      of the configuration file; empty: there is none
    logs      counts of the lines logged
    adjusted  is called with the settings that hold after a reload, if anybody asks for them
    manager   the service manager
    """

    reread: Callable[[], Config] = Config
    path: str = ""
    logs: LogCounts = field(default_factory=LogCounts)
    adjusted: Callable[[Config], None] | None = None
    manager: ServiceManager = field(default_factory=lambda: ServiceManager(None, None))


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory: without it half the time of array work goes into new pages.

    returns  False if the C library is not glibc; another library is left alone
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))


# Collections of younger objects after which the collector would look at older ones.
_NEVER = 2**31 - 1

# How OpenBLAS is called, by how NumPy and SciPy were built.
_BLAS_NAMES = [
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "")
]


def one_blas_thread() -> int:
    """Lets OpenBLAS work in the thread that calls it: its own would take processors from others.

    Processes that fit recalibrators are not concerned.

    returns  the libraries that were told; 0 where there is no OpenBLAS, or the system does not say
             what is loaded
    """
    told = 0
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        for path in sorted({line.split(maxsplit=5)[-1] for line in maps if "openblas" in line}):
            library = ctypes.CDLL(path)
            name = next((one for one in _BLAS_NAMES if hasattr(library, one)), "")
            if name:
                library[name](1)
                told += 1
    return told


def collect_young_alone() -> None:
    """Keeps what exists now for good, and has the collector look at young objects alone.

    Hardly anything of ours refers to itself. To look at all that has come since finds next to
    nothing, and takes the longer the more frames wait for labels: `Collections` says when.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(gc.get_threshold()[0], _NEVER, _NEVER)


async def aside(work: Callable[[], T]) -> T:
    """Does what may block in a thread that nothing waits for: the end of the process neither.

    Returns or raises what the work does.
    """
    found: Future[T] = Future()
    # The thread cannot be stopped: a wait that is given up leaves it to finish.
    found.set_running_or_notify_cancel()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    # Not the executor's thread: the end of the loop would wait for it.
    threading.Thread(target=run, name="aside", daemon=True).start()
    return await asyncio.wrap_future(found)


async def read_again(read: Callable[[], Config], seconds: float = READ_SECONDS) -> Config:
    """Calls `read`, and returns the configuration.

    A disk that does not answer holds up neither the loop nor the end of the process.

    Raises what `read` raises, and InvalidConfiguration after so many seconds.
    """
    try:
        # Not wait_for, which forgets a cancellation that comes together with the result: the
        # sidecar would never end.
        async with asyncio.timeout(seconds):
            return await aside(read)
    except TimeoutError:
        raise InvalidConfiguration(
            f"the configuration could not be read within {seconds:g} s: does the disk that it "
            "is on answer?"
        ) from None


class Sidecar:
    """All parts together.

    config  active; a reload puts another one there
    host    the process that it runs in
    """

    def __init__(
        self, config: Config, host: Host | None = None, shown: ShownState | None = None
    ) -> None:
        """Builds all parts. Raises InvalidConfiguration.

        shown  is served in place of what comes; nothing is taken in then
        """
        self.config = config
        self.host, self.shown = host or Host(), shown
        self.reloads = Reloads(self.host.path)
        self.wall_clock = WallClock(config.server.clock_step_seconds)
        self.endpoint = Endpoint()
        self.http_port = 0
        self._read_again = asyncio.Event()
        self._stopping = asyncio.Event()
        self._frames_seen, self._frame_came = 0, -math.inf
        self._collections = Collections()
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
        self.checkpoints = Checkpoints(
            promotions=self.promotions,
            named=named,
            claim=self.claim,
            journal=self.journal,
            previous=previous_paths(config.old_keys),
            soon=soon,
        )
        self.uploads: Uploader | None = None
        if config.fleet.upload and shown is None:
            self.uploads = Uploader(
                config=config.fleet,
                objects=store_of(config.fleet),
                claim=self.claim,
                taken=self._statistics,
                restored=lambda: self.checkpoints.restored,
                in_steps=in_steps,
                aside=aside,
            )
        self.tracker: ExternalTracker | None = None
        if config.tracker.kind is TrackerKind.GRPC:
            self.tracker = ExternalTracker(
                config.tracker, pipeline.counters, pipeline.track_elsewhere, pipeline.track_instead
            )
        service = Service(
            pipeline,
            WireLimits(config.server.max_message_bytes, config.limits.max_detections),
            self.checkpoints.settle,
            self.tracker,
            self.reloads,
            read_only=shown is not None,
        )
        admin = AdminService(self.promotions, self.fits.asked, self.checkpoints.settle)
        self.server = Server(service, admin, StateService(pipeline, shown))
        self.resumed = Resumption(pipeline)
        live = Snapshot(
            promotions=self.promotions,
            checkpoints=self.checkpoints,
            counters=pipeline.counters,
            edges=pipeline.live.accumulator.edges,
            resumed=self.resumed,
            reloads=self.reloads,
            logs=self.host.logs,
            tracker=self.tracker,
            uploads=self.uploads,
            build=build(),
            shown=shown,
        )
        self.exporting = Exporting(live, self.endpoint.published, self.server)

    async def run(self, listening: Callable[[Sidecar], None]) -> None:
        """Serves until SIGTERM or SIGINT; calls `listening` once the ports are open.

        Raises CannotListen.
        """
        host, port = split_address(self.config.server.http_address, "http_address")
        keep_freed_memory()
        one_blas_thread()
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
        collect_young_alone()
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
        await self.fits.end_watching()
        await self.checkpoints.end()
        if self.uploads is not None:
            await self.uploads.end()
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
            self.fits.keep_watching,
        ]
        if self.tracker is not None:
            found.append(TrackerCalls(self.tracker, partial(dial, self.config.tracker)).run)
        if self.uploads is not None:
            found.append(self.uploads.keep)
        return found

    async def _statistics(self) -> StatisticsState:
        """Takes the statistics of one moment, which a restart goes on with."""
        await self.checkpoints.write()
        self.pipeline.remember_answered()
        return await in_steps(self.pipeline.live.state_in_steps())

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
        if self.shown is not None:
            self.shown.show(self.pipeline.live)

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
        if self.shown is not None:
            try:
                await self.shown.read_again(self.pipeline.live)
                log.info("state: read again: %s", self.shown.path)
            except (ValueError, OSError) as error:
                log.error("state: refused, all stays as it is: %s", error)
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
        if self._collections.due(now, idle=idle):
            gc.collect()
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


def serve(
    config: Config,
    listening: Callable[[Sidecar], None],
    host: Host,
    shown: ShownState | None = None,
) -> Sidecar:
    """Runs a sidecar until it is told to stop; returns it for a last look.

    Raises InvalidConfiguration, CannotListen.
    """
    sidecar = Sidecar(config, host, shown)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(sidecar.run(listening))
    return sidecar
