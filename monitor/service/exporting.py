"""The text of /metrics with the status page, made again every few seconds.

It is made off the frame path, in steps that let frames pass in between.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from dataclasses import dataclass, field, replace

from monitor.pipeline.checkpoints import Checkpoints
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.service.exposition import process
from monitor.service.http import Published, page
from monitor.service.metrics import Snapshot, render
from monitor.service.readings import FactorReader, stamp_lag
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import ClassReadingCache, ReadingCache, WindowReading

log = logging.getLogger(__name__)

# How often the windows are read, seconds: they are made of panes of some 50 s and more.
WINDOW_SECONDS = 10.0

# A text that somebody waits for is made within the second number of seconds, and after the first.
_SOONEST_SECONDS, _LOOK_SECONDS = 0.5, 0.1


@dataclass(slots=True)
class Exporting:
    """Keeps the exported text of one sidecar fresh.

    live       the live parts; each refresh adds what it has read
    published  what the HTTP endpoint serves
    """

    live: Snapshot
    checkpoints: Checkpoints
    published: Published
    pipeline: Pipeline = field(init=False)
    _cache: ReadingCache = field(init=False)
    _window_caches: dict[str, ReadingCache] = field(init=False)
    _class_cache: ClassReadingCache = field(default_factory=ClassReadingCache)
    _factors: FactorReader = field(init=False)
    _windows: tuple[WindowReading, ...] = ()
    _windows_read: float = float("-inf")

    def __post_init__(self) -> None:
        self.pipeline = self.live.pipeline
        self._factors = FactorReader(self.pipeline)
        settings = self.pipeline.config.statistics
        cut = BinCut(settings.bins)
        self._cache = ReadingCache(cut)
        self._window_caches = {name: ReadingCache(cut) for name in settings.windows}

    async def keep_fresh(self) -> None:
        """Makes the text again and again, until cancelled."""
        while True:
            seconds = self.pipeline.config.metrics.refresh_seconds
            due = time.monotonic() + seconds
            await asyncio.sleep(min(seconds, _SOONEST_SECONDS))
            while not self.published.wanted and (left := due - time.monotonic()) > 0:
                await asyncio.sleep(min(left, _LOOK_SECONDS))
            self.published.wanted = False
            await self.refresh_if_possible()

    async def refresh_if_possible(self) -> None:
        """Refreshes; neither the start nor the last checkpoint may fail for want of metrics."""
        with contained(self.pipeline.counters, log, "the metrics were not refreshed"):
            await self.refresh()

    async def refresh(self) -> None:
        """Makes the exposition text, in steps that let frames pass in between."""
        pipeline = self.pipeline
        pipeline.remember_answered()
        statistics = await in_steps(pipeline.live.in_steps())
        pipeline.remember_answered()
        counters = copy.deepcopy(pipeline.counters)
        readings = await in_steps(self._cache.read(statistics))
        if time.monotonic() - self._windows_read >= WINDOW_SECONDS:
            self._windows = await self._read_windows()
            self._windows_read = time.monotonic()
        class_statistics = await in_steps(pipeline.live.classes_in_steps())
        checkpoints = self.checkpoints
        drift = None
        if pipeline.config.drift.watch:
            drift = await in_steps(pipeline.drift.reading())
        snapshot = replace(
            self.live,
            counters=counters,
            readings=readings,
            bins=tuple(pipeline.live.export_bins()),
            windows=self._windows,
            classes=await in_steps(self._class_cache.read(class_statistics)),
            checkpoint_age=checkpoints.age_seconds,
            checkpoint_failures=checkpoints.failures,
            factors=await in_steps(self._factors.read()),
            drift=drift,
            refused={"state": checkpoints.refused, "ledger": self.live.journal.refused},
            lag=stamp_lag(pipeline.streams.values(), time.time_ns(), time.monotonic_ns()),
        )
        text = await in_steps(render(snapshot))
        self.published.metrics = text + process()
        self.published.page = page(snapshot)
        pipeline.counters.loop_lag_seconds = 0.0

    async def _read_windows(self) -> tuple[WindowReading, ...]:
        found: list[WindowReading] = []
        for level, (name, cache) in enumerate(self._window_caches.items()):
            statistics = await in_steps(self.pipeline.live.in_steps(level))
            readings = await in_steps(cache.read(statistics))
            found += [WindowReading(name, reading) for reading in readings]
        return tuple(found)
