"""The HTTP endpoint, which serves /metrics, /healthz, /readyz and the status page.

The endpoint is read-only, has threads of its own and touches no live state: it serves bytes that
were made before, and pages that are drawn from a view of one moment. Requests are bounded in size,
in time and in number, so that no client can hold it up.

Bytes and view are made off the frame path, in steps that let frames pass in between.

A value that its owner has at hand is read by the family that shows it, in `metrics`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import numpy as np

from monitor.drift.alarms import DriftReading
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.pipeline.streams import Stream
from monitor.promotion.records import Factor
from monitor.promotion.scored import factors
from monitor.service.exposition import process
from monitor.service.history import EVERY_SECONDS, History
from monitor.service.metrics import CONTENT_TYPE, Snapshot, render
from monitor.service.pages import POLICY, Pages
from monitor.service.server import Server
from monitor.service.view import view_of, window_of
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import (
    ClassReadingCache,
    PredictedReading,
    ReadingCache,
    WindowReading,
)

# ns after which a silent stream says nothing of clocks any more.
log = logging.getLogger(__name__)

_RECENT_NS = 60 * 10**9


def stamp_lag(streams: Iterable[Stream], wall_ns: int, monotonic_ns: int) -> dict[str, float]:
    """Returns the least and the most lag of the streams of the last minute, in s; empty without.

    A lag is the wall clock at arrival minus the capture stamp: the time that a frame travels plus
    the difference of the two clocks. Both clocks are given as they are now, in ns.
    """
    lags = [
        (wall_ns - (monotonic_ns - seen.stamped_ns) - seen.stamp_ns) / 1e9
        for seen in (stream.seen for stream in streams)
        if seen.stamp_ns is not None and monotonic_ns - seen.stamped_ns < _RECENT_NS
    ]
    return {"least": min(lags), "most": max(lags)} if lags else {}


@dataclass(slots=True)
class FactorReader:
    """Reads what recalibration makes of variances; remembers slices that fell silent."""

    pipeline: Pipeline
    # The version whose factors are remembered: the factors of another version are unknown.
    _version: str = ""
    _known: dict[str, tuple[Factor, ...]] = field(default_factory=dict)

    def read(self) -> Generator[None, None, Mapping[str, tuple[Factor, ...]]]:
        """Reads the factors of now by slice, one a dimension, in steps of one stream each.

        A factor is the variance as last forwarded over the variance as sent; slices whose
        detections come without a covariance have none.
        """
        pipeline, version = self.pipeline, self.pipeline.recalibrators.selection.version
        if version != self._version:
            self._version, self._known = version, {}
        for recalibrated in list(pipeline.latest.values()):
            # A stream that has ended was served by the version that was active then.
            if recalibrated.selection.version != version:
                continue
            for slice in np.unique(recalibrated.slices).tolist():
                rows = np.flatnonzero(recalibrated.slices == slice)
                entry = pipeline.slices.slices[slice]
                if entry.space.assumed:
                    continue
                made, sent = recalibrated.forwarded.take(rows), recalibrated.sent.take(rows)
                self._known[entry.name] = factors(made, sent, entry.space.names)
            yield
        return dict(self._known)


# How often the windows are read, seconds: they are made of panes of some 50 s and more. Each
# reading is a point of the history.
WINDOW_SECONDS = EVERY_SECONDS

# A text that somebody waits for is made within the second number of seconds, and after the first.
_SOONEST_SECONDS, _LOOK_SECONDS = 0.5, 0.1

# s that a reader waits for a newer text; if the loop does not turn, the last one has to do.
_PATIENCE_SECONDS = 3.0


class Exporting:
    """Makes what one sidecar exports where somebody asks for it, and what must be made anyway.

    live       the live parts; each refresh adds what it has read
    published  what the HTTP endpoint serves
    server     the gRPC server, whose address people are told
    """

    def __init__(self, live: Snapshot, published: Published, server: Server) -> None:
        self.live, self.published, self.pipeline = live, published, live.pipeline
        self.server = server
        settings = self.pipeline.config.statistics
        cut = BinCut(settings.bins)
        self._cache, self._class_cache = ReadingCache(cut), ClassReadingCache()
        self._window_caches = {name: ReadingCache(cut) for name in settings.windows}
        self._factors = FactorReader(self.pipeline)
        self.history = History(self.pipeline.events)
        self._windows: dict[str, tuple[WindowReading, ...]] = {}
        self._predicted: tuple[PredictedReading, ...] = ()
        self._windows_read = self._point_taken = float("-inf")

    async def keep_fresh(self) -> None:
        """Makes the text whenever somebody asks for a newer one, until cancelled."""
        published = self.published
        try:
            while True:
                seconds = published.most_age = self.pipeline.config.metrics.refresh_seconds
                due = time.monotonic() + seconds
                await asyncio.sleep(min(seconds, _SOONEST_SECONDS))
                while not published.wanted and (left := due - time.monotonic()) > 0:
                    await asyncio.sleep(min(left, _LOOK_SECONDS))
                if published.wanted:
                    published.wanted = False
                    await self.refresh_if_possible()
                else:
                    with contained(self.pipeline.counters, log, "statistics were not kept up"):
                        await self._keep_up()
        finally:
            published.most_age = math.inf  # nobody makes one any more

    async def refresh_if_possible(self) -> None:
        """Refreshes; neither the start nor the last checkpoint may fail for want of metrics."""
        with contained(self.pipeline.counters, log, "the metrics were not refreshed"):
            await self.refresh()

    async def refresh(self) -> None:
        """Makes the exposition text, in steps that let frames pass in between."""
        pipeline = self.pipeline
        drift = await self._keep_up()
        statistics = await in_steps(pipeline.live.in_steps())
        pipeline.remember_answered()
        counters = copy.deepcopy(pipeline.counters)
        readings = await in_steps(self._cache.read(statistics))
        if time.monotonic() - self._windows_read >= WINDOW_SECONDS:
            for name in self._window_caches:
                if name != window_of(self.live):  # that one was read for the history
                    await self._read_window(name)
            self._predicted = await in_steps(pipeline.live.predicted_readings(0))
            self._windows_read = time.monotonic()
        class_statistics = await in_steps(pipeline.live.classes_in_steps())
        snapshot = replace(
            self.live,
            counters=counters,
            readings=readings,
            bins=tuple(pipeline.live.export_bins()),
            windows=tuple(
                one for name in self._window_caches for one in self._windows.get(name, ())
            ),
            classes=await in_steps(self._class_cache.read(class_statistics)),
            predicted=self._predicted,
            factors=await in_steps(self._factors.read()),
            drift=drift,
            lag=stamp_lag(pipeline.streams.values(), time.time_ns(), time.monotonic_ns()),
        )
        text = await in_steps(render(snapshot))
        self.published.publish(text + process(), self._pages(snapshot))
        pipeline.counters.loop_lag_seconds = 0.0

    async def _keep_up(self) -> DriftReading | None:
        """Does what nobody need ask for: folds what waits, finds alarms, takes points.

        returns  the reading of drift; None where nothing is watched
        """
        pipeline, history = self.pipeline, self.history
        pipeline.remember_answered()
        point_is_due = time.monotonic() - self._point_taken >= WINDOW_SECONDS
        await in_steps(pipeline.live.catch_up(everything=point_is_due))
        drift = await in_steps(pipeline.drift.reading()) if pipeline.config.drift.watch else None
        if history.began is None and pipeline.counters.frames:
            history.began = time.monotonic()
        if point_is_due:
            self._point_taken = time.monotonic()
            await self._read_window(window := window_of(self.live))
            readings = {one.reading.name: one.reading for one in self._windows[window]}
            standings = () if drift is None else drift.standings
            await in_steps(history.add(readings, standings, pipeline.streams))
        return drift

    def _pages(self, snapshot: Snapshot) -> Pages:
        """Makes the view that the status page is drawn from."""
        # Counts that the page shows side by side are of one moment.
        self.pipeline.remember_answered()
        snapshot = replace(snapshot, counters=copy.deepcopy(self.pipeline.counters))
        clocks = time.monotonic(), time.monotonic_ns(), time.time_ns()
        return Pages(view_of(snapshot, clocks, self.history, self.server.address))

    async def _read_window(self, name: str) -> None:
        level = list(self._window_caches).index(name)
        statistics = await in_steps(self.pipeline.live.in_steps(level))
        readings = await in_steps(self._window_caches[name].read(statistics))
        self._windows[name] = tuple(WindowReading(name, reading) for reading in readings)


# s of one request, from the end of the request before to the last byte of its answer.
REQUEST_SECONDS = 10.0

# Bytes of the request line and the headers together.
LARGEST_REQUEST = 16 * 2**10

# Connections at a time; each has a thread.
MOST_CONNECTIONS = 32

# s; a loop that has not turned for so long answers no frame: only a restart helps.
STANDS_SECONDS = 30.0

# Before the name of a slice, percent-encoded.
_SLICE = "/slice/"

# s between two looks for requests that take too long.
_STOP_SECONDS = 0.25


@dataclass(slots=True)
class Published:
    """The bytes that the endpoint serves; each attribute is replaced whole.

    wanted    somebody waits for a newer text of the metrics, or a newer page
    made      monotonic s at which they were made last
    most_age  s; older ones are not given to anybody before a newer one was waited for
    """

    metrics: bytes = b""
    wanted: bool = False
    pages: Pages | None = None
    made: float = -math.inf
    most_age: float = math.inf
    ready: bool = False
    turned: float | None = None  # monotonic s at which the loop turned last; None: not running
    _newer: threading.Condition = field(default_factory=threading.Condition)

    def publish(self, metrics: bytes, pages: Pages) -> None:
        """Replaces what is served."""
        with self._newer:
            self.metrics, self.pages, self.made = metrics, pages, time.monotonic()
            self._newer.notify_all()

    def wait_for_newer(self) -> None:
        """Returns once what is served is new enough, or the loop does not make it; any thread."""
        with self._newer:
            seen = self.made
            if time.monotonic() - seen > self.most_age:
                self.wanted = True
                self._newer.wait_for(lambda: self.made > seen, _PATIENCE_SECONDS)


class _Bounded:
    """Reads the lines of requests. Raises HTTPException for a request that is too long."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = LARGEST_REQUEST

    def readline(self, size: int) -> bytes:
        if self.left <= 0:
            raise HTTPException(f"a request has at most {LARGEST_REQUEST} bytes")
        line = self._file.readline(min(size, self.left))
        self.left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    published: Published
    timeout = REQUEST_SECONDS
    server_version = "calibration-monitor"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._bounded = _Bounded(cast("BinaryIO", self.rfile))
        self.rfile = cast("Any", self._bounded)

    def handle_one_request(self) -> None:
        self._bounded.left = LARGEST_REQUEST
        cast("_Server", self.server).began(self.connection)
        with contextlib.suppress(ConnectionError):  # the client has gone, or was cut off
            super().handle_one_request()

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # A body that is not read would be taken for the next request.
            self.close_connection = True
            self._send(413, b"a request has no body here\n")
            return
        published = self.published
        path, _, query = self.path.partition("?")
        match path:
            case "/metrics":
                if query == "fresh":
                    published.wanted = True  # and is looked for again
                else:
                    published.wait_for_newer()
                self._send(200, published.metrics, CONTENT_TYPE)
            case "/healthz":
                turned = published.turned
                stands = turned is not None and time.monotonic() - turned > STANDS_SECONDS
                self._send(503 if stands else 200, b"the loop stands\n" if stands else b"ok\n")
            case "/readyz":
                ready = published.ready
                self._send(200 if ready else 503, b"ready\n" if ready else b"not ready\n")
            case "/":
                self._send_page(None, part=query == "main")
            case _ if path.startswith(_SLICE):
                self._send_page(unquote(path.removeprefix(_SLICE)), part=query == "main")
            case _:
                self._send(404, b"there are /metrics, /healthz, /readyz, / and /slice/NAME\n")

    def _send_page(self, slice: str | None, *, part: bool) -> None:
        self.published.wait_for_newer()
        pages = self.published.pages
        if pages is None:
            self._send(503, b"not ready\n")
            return
        found = pages.get(slice, part=part)
        if found is None:
            self._send(404, b"there is no such slice\n")
        else:
            self._send(200, found, "text/html; charset=utf-8", policy=POLICY)

    def _send(
        self,
        status: int,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        policy: str = "default-src 'none'",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: scrapes are not worth a line each."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        # When the request of each open connection began, in monotonic seconds.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def began(self, connection: socket.socket) -> None:
        """Notes that a connection waits for its next request from now on."""
        with self._lock:
            self._open[connection] = time.monotonic()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= MOST_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic()
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cuts off clients whose request takes too long, however steadily its bytes drip."""
        now = time.monotonic()
        with self._lock:
            slow = [one for one, since in self._open.items() if now - since > REQUEST_SECONDS]
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that break."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@dataclass(slots=True)
class Endpoint:
    """A running HTTP endpoint."""

    published: Published = field(default_factory=Published)
    _server: _Server | None = None

    def start(self, host: str, port: int) -> int:
        """Listens, and returns the port. Raises OSError if the address cannot be used."""
        handler = type("Handler", (_Handler,), {"published": self.published})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        self._server = server((host, port), handler)
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(_STOP_SECONDS,), name="http", daemon=True).start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
