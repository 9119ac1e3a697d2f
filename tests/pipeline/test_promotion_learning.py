"""What ground truth teaches: what is due to be fitted, which tracks have a say, and what goes wrong
without harm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import monitor.pipeline.fit_rounds
from monitor.frames.detections import Estimates
from monitor.frames.frame import TrackIds
from monitor.pipeline.fit_process import FitProcess
from monitor.pipeline.fit_rounds import FitRounds
from monitor.pipeline.learning import job_of
from monitor.pipeline.promotions import Promotions
from monitor.promotion.fits import CannotFit, FitFailed, FitJob, FitOutcome, NoTracksYet
from monitor.promotion.records import Happened
from monitor.promotion.tracks import LabelledRows, WholeTrack
from monitor.recalibration.fit_rows import FitRows
from monitor.statistics.observations import finished
from tests.learnt import XYZ, begin, happened, promotions_of, teach, to_fit
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks

# ---- what is due


def test_a_slice_is_due_when_it_has_enough_new_tracks():
    promotions = promotions_of("car", "bus")
    learning = promotions.learning
    teach(promotions, [*tracks(0, 9), *tracks(1, 10, slice=1)])
    (due,) = learning.due()
    assert due.chain == ("bus",)
    assert len(due.tracks) == 10
    assert due.until == {0: due.tracks[-1].ended_ns}
    assert learning.due() == []
    teach(promotions, [*tracks(2, 1), *tracks(3, 9, slice=1)])
    (due,) = learning.due()
    assert (due.chain, len(due.tracks)) == (("car",), 10)


def test_nothing_is_due_where_it_would_lead_to_nothing():
    manual = promotions_of("car", mode="manual")
    teach(manual, tracks(0, 50))
    assert manual.learning.due() == []
    promotions = promotions_of("car")
    begin(promotions, scaled(4.0))
    teach(promotions, tracks(0, 20, scale=1.8))
    assert promotions.learning.due() == []
    promotions.pin(pinned=True, actor="anna")
    assert promotions.learning.due() == []


def test_a_job_has_the_newest_tracks_that_are_alike_of_every_slice():
    promotions = promotions_of("car", "bus")
    scale = np.repeat([1.0, 16.0], 100)[:, None] * np.ones(3)
    teach(promotions, [*tracks(0, 200, scale=scale), *tracks(1, 40, slice=1)])
    settings, limits = promotions.learning.settings.fits, promotions.learning.limits
    job, entries = job_of(promotions.learning.asked(()), settings, limits)
    assert job.settings is settings
    assert list(job.slices) == ["car", "bus"]
    assert [len(entry.tracks) for entry in entries] == [pytest.approx(100, abs=5), 40]
    for entry in entries:
        rows = job.slices[entry.chain[0]]
        assert isinstance(rows, FitRows)
        assert rows.error.shape[0] == sum(track.n for track in entry.tracks)
        assert len(np.unique(rows.track)) == len(entry.tracks)


# ---- what has a say


def outcome_of(**by_slice: float) -> FitOutcome:
    return FitOutcome({name: scaled(factor) for name, factor in by_slice.items()}, {})


def say(promotions) -> dict[str, int]:
    return {one.slice: one.evidence.tracks for one in promotions.trials()}


def test_what_the_fit_knew_has_no_say_in_its_trial_whole_or_in_part():
    some = tracks(0, 30, scale=1.8)
    for until, count in ((some[9].ended_ns, 20), (int(some[9].stamp_ns[30]), 21)):
        promotions = promotions_of("car")
        entry = replace(to_fit(promotions), until={0: until})
        finished(promotions.begin([entry], outcome_of(car=4.0), "schedule"))
        teach(promotions, some)
        assert say(promotions) == {"car": count}


def test_a_source_that_is_behind_the_others_is_not_taken_for_known():
    promotions = promotions_of("car")
    ahead = [replace(track, source=1) for track in tracks(0, 10, begin_ns=10**13)]
    teach(promotions, ahead)
    (entry,) = promotions.learning.asked(())
    assert entry.until == {1: ahead[-1].ended_ns}
    finished(promotions.begin([entry], outcome_of(car=4.0), "schedule"))
    teach(promotions, [replace(track, source=2) for track in tracks(1, 12, scale=1.8)])
    assert say(promotions) == {"car": 12}


# ---- rounds of fits


@dataclass
class Fits(FitProcess):
    """Stands for the process that fits: all slices by 4, or what goes wrong.

    held       fits wait until it is set
    cancelled  how many were, while they waited
    urgent     of each job
    """

    wrong: list[Exception] = field(default_factory=list)
    jobs: list[FitJob] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    held: asyncio.Event | None = None
    cancelled: int = 0
    urgent: list[bool] = field(default_factory=list)

    async def prepare(self) -> None: ...

    async def end(self) -> None: ...

    async def fit(self, job: FitJob, timeout_s: float, *, urgent: bool = False) -> FitOutcome:
        self.jobs.append(job)
        self.urgent.append(urgent)
        self.timeouts.append(timeout_s)
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


async def some_looks() -> None:
    await asyncio.sleep(0.02)


def faulty(seed: int, count: int, *, begin_ns: int = 0, slice: int = 0) -> list[WholeTrack]:
    """Tracks that a fit is worth while for."""
    return tracks(seed, count, scale=4.0, begin_ns=begin_ns, slice=slice)


def rounds_of(*slices: str, **promotion: Any) -> tuple[FitRounds, Promotions, Fits]:
    promotions, fits = promotions_of(*slices, **promotion), Fits()
    return FitRounds(promotions, fits), promotions, fits


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    """Moved by the test alone; looks come at once."""
    found = Clock()
    monkeypatch.setattr(monitor.pipeline.fit_rounds, "time", found)
    monkeypatch.setattr(monitor.pipeline.fit_rounds, "_PERIOD", 0.001)
    return found


def learned(rounds: FitRounds, *holds: Callable[[], bool]) -> None:
    """A sidecar learns until this is so, one after the other."""

    async def run() -> None:
        async with learning(rounds):
            for one in holds:
                await until(one)

    asyncio.run(run())


def test_a_slice_with_enough_new_tracks_is_fitted_and_put_on_trial_unless_it_looks_healthy():
    rounds, promotions, fits = rounds_of("car", "bus", "tram", fit_timeout_seconds=7.0)
    teach(promotions, [*faulty(0, 12), *faulty(1, 9, slice=1), *tracks(2, 40, slice=2)])
    learned(rounds, lambda: Happened.BEGAN in happened(promotions))
    (job,) = fits.jobs
    assert list(job.slices) == ["car"]
    assert job.settings == promotions.learning.settings.fits
    assert fits.timeouts == [7.0]
    assert fits.urgent == [False]
    (record,) = promotions.records(10)
    assert (record.what, record.actor) == (Happened.BEGAN, "schedule")
    assert promotions.counters.fits["nothing"] == 1
    asyncio.run(rounds.asked(["tram"], "", "anna"))
    assert list(fits.jobs[-1].slices) == ["tram"]


def test_fits_that_fail_are_tried_less_and_less_often_until_one_succeeds(clock):
    rounds, promotions, fits = rounds_of("car", fit_every_seconds=10.0)
    fits.wrong = [FitFailed("it crashed") for _ in range(7)]

    async def run() -> None:
        async with learning(rounds):
            for failure, pause in enumerate([20, 40, 80, 160, 320, 320, 320], 1):
                teach(promotions, faulty(failure, 10, begin_ns=failure * 10**12))
                await until_failed(promotions, failure)
                clock.now += pause - 0.5
                teach(promotions, faulty(50 + failure, 10, begin_ns=failure * 10**12))
                await some_looks()
                assert len(fits.jobs) == failure
                clock.now += 0.5
            await until(lambda: Happened.BEGAN in happened(promotions))
            promotions.learning.register.on_trial.clear()
            teach(promotions, faulty(99, 10, begin_ns=10**14))

            def tried_again() -> bool:
                clock.now += 10  # whenever the round before came to its end
                return len(fits.jobs) == 9

            await until(tried_again)

    asyncio.run(run())
    assert happened(promotions) == [Happened.FIT_FAILED] * 7 + [Happened.BEGAN] * 2
    # What failed may have starved: it has more of the machine until it succeeds.
    assert fits.urgent == [False, *[True] * 7, False]


async def until_failed(promotions: Promotions, fits: int) -> None:
    await until(lambda: promotions.counters.fits["failed"] == fits)


def test_frames_become_whole_tracks_by_slice_at_the_next_look():
    rounds, promotions, _ = rounds_of("car", "bus", "tram")

    def seen(number: int, *slices: int) -> LabelledRows:
        n, index, stamp_ns = len(slices), np.array(slices), number * 10**9 // 2
        sent = Estimates(np.ones((n, 3)), np.tile(np.eye(3), (n, 1, 1)), np.ones(n, bool))
        ids = TrackIds(index.astype(np.uint64), np.ones(n, bool))
        return LabelledRows(XYZ, index, sent, np.ones((n, 3)), stamp_ns, 0, ids, 0)

    for number in range(14):
        promotions.learning.take(seen(number, *((0, 1) if number < 8 else (2,))))
    learned(rounds, lambda: promotions.learning.latest_ns is not None)
    kept = map(promotions.learning.reservoir.tracks, range(3))
    assert [[track.n for track in of_slice] for of_slice in kept] == [[8], [8], []]
    assert promotions.learning.latest_ns == 3_500_000_000


def test_what_is_asked_for_is_fitted_at_once_by_the_method_that_is_named():
    rounds, promotions, fits = rounds_of("car", "bus", mode="manual")
    teach(promotions, [*faulty(0, 3), *faulty(1, 3, slice=1)])
    (found,) = asyncio.run(rounds.asked(["bus"], "covariance-scaling", "anna"))
    assert (found.slice, found.tracks, found.detections) == ("bus", 3, 120)
    (job,) = fits.jobs
    assert job.settings.method == "covariance-scaling"
    (record,) = promotions.records(10)
    assert (record.what, record.slice, record.actor) == (Happened.BEGAN, "bus", "anna")
    both = asyncio.run(rounds.asked([], "", "anna"))
    assert [one.slice for one in both] == ["car", "bus"]
    assert fits.jobs[-1].settings.method == "variance-scaling"
    assert fits.urgent == [True, True]


@pytest.mark.parametrize(
    ("slices", "method", "words"),
    [
        (["car"], "magic", "method 'magic': it must be one of identity, variance-scaling"),
        (["car", "nonesuch"], "", "slices: there is no 'nonesuch'.* There are: car, bus"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_words(slices, method, words):
    rounds, promotions, fits = rounds_of("car", "bus")
    with pytest.raises(NoTracksYet, match="no slice has a whole track"):
        asyncio.run(rounds.asked([], "", "anna"))
    teach(promotions, faulty(0, 3))
    with pytest.raises(CannotFit, match=words):
        asyncio.run(rounds.asked(slices, method, "anna"))
    assert fits.jobs == []
    assert promotions.records(10) == ()
