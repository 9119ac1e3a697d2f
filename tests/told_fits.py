"""Rounds of fits without a process and without a clock of their own; no tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from monitor.pipeline.fits.rounds import FitRounds
from monitor.pipeline.promotions import Promotions
from monitor.promotion.fits import FitJob, FitOutcome
from monitor.promotion.tracks import WholeTrack
from tests.learnt import promotions_of
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks


@dataclass
class Fits:
    """Stands for the process that fits: all slices by 4, or what goes wrong.

    held       fits wait until it is set
    cancelled  how many were, while they waited
    """

    wrong: list[Exception] = field(default_factory=list)
    jobs: list[FitJob] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    held: asyncio.Event | None = None
    cancelled: int = 0

    async def __call__(self, job: FitJob, timeout: float) -> FitOutcome:
        self.jobs.append(job)
        self.timeouts.append(timeout)
        if self.held is not None:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.wrong:
            raise self.wrong.pop(0)
        return FitOutcome({name: scaled(4.0) for name in job.slices}, {})


@dataclass
class Clock:
    """What a round takes for the time, in s."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def learning(rounds: FitRounds) -> AsyncIterator[None]:
    task = asyncio.create_task(rounds.keep_learning())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.001)


async def until_failed(promotions: Promotions, fits: int) -> None:
    await until(lambda: promotions.counters.fits["failed"] == fits)


async def some_looks() -> None:
    await asyncio.sleep(0.02)


def faulty(seed: int, count: int, *, begin_ns: int = 0, slice: int = 0) -> list[WholeTrack]:
    """Tracks that a fit is worth while for."""
    return tracks(seed, count, scale=4.0, begin_ns=begin_ns, slice=slice)


def rounds_of(*slices: str, **promotion: Any) -> tuple[FitRounds, Promotions, Fits]:
    promotions, fits = promotions_of(*slices, **promotion), Fits()
    return FitRounds(promotions, fits), promotions, fits
