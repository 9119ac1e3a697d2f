"""The learning of a running sidecar: what is fitted when, and what goes wrong without harm."""

import asyncio

import pytest

import monitor.pipeline.fits.rounds
from monitor.pipeline.learning import LabelledTracks
from monitor.promotion.fits import CannotFit, FitFailed, NoTracksYet
from monitor.promotion.records import Happened
from monitor.recalibration.selection import IDENTITY
from tests.learnt import begin, document, happened, known, teach
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks
from tests.told_fits import Clock, faulty, learning, rounds_of, some_looks, until, until_failed


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    """Moved by the test alone; looks come at once."""
    found = Clock()
    monkeypatch.setattr(monitor.pipeline.fits.rounds, "time", found)
    monkeypatch.setattr(monitor.pipeline.fits.rounds, "_ROUNDS_PERIOD", 0.001)
    return found


# ---- by themselves


def test_a_slice_with_enough_new_tracks_is_fitted_and_put_on_trial():
    rounds, promotions, fits = rounds_of("car", "bus", fit_timeout_seconds=7.0)
    teach(promotions, [*faulty(0, 12), *faulty(1, 9, slice=1)])

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: Happened.BEGAN in happened(promotions))

    asyncio.run(run())
    (job,) = fits.jobs
    assert list(job.slices) == ["car"]
    assert job.settings == promotions.learning.settings.fits
    assert fits.timeouts == [7.0]
    (record,) = promotions.records(10)
    assert (record.what, record.actor) == (Happened.BEGAN, "schedule")


def test_slices_that_look_healthy_are_not_fitted_by_themselves_and_are_when_asked_for():
    rounds, promotions, fits = rounds_of("car", "bus")
    teach(promotions, [*tracks(0, 40), *faulty(1, 40, slice=1)])

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: bool(promotions.records(1)))

    asyncio.run(run())
    assert [list(job.slices) for job in fits.jobs] == [["bus"]]
    assert promotions.counters.fits["nothing"] == 1
    asyncio.run(rounds.asked(["car"], "", "anna"))
    assert list(fits.jobs[-1].slices) == ["car"]


def test_what_was_promoted_while_its_slice_was_fitted_is_not_tried_against():
    rounds, promotions, fits = rounds_of("car")
    teach(promotions, faulty(0, 10))
    (version,) = known(promotions, document(car=3.0))

    async def run() -> None:
        fits.held = asyncio.Event()
        async with learning(rounds):
            await until(lambda: len(fits.jobs) == 1)
            promotions.promote(version, "anna")
            fits.held.set()
            await until(lambda: promotions.counters.fits["superseded"] == 1)

    asyncio.run(run())
    assert happened(promotions) == [Happened.PROMOTED]
    assert promotions.trials() == ()


def test_whole_tracks_decide_of_those_on_trial(monkeypatch):
    rounds, promotions, fits = rounds_of("car", mode="automatic")
    begin(promotions, scaled(4.0))
    coming = [tracks(0, 60, scale=4.0)]

    def whole(_):
        yield
        return {0: coming.pop()} if coming else {}

    monkeypatch.setattr(LabelledTracks, "whole", whole)

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: Happened.PROMOTED in happened(promotions))

    asyncio.run(run())
    assert fits.jobs == []
    assert promotions.recalibrators.selection.by_slice == {"car": scaled(4.0)}


def test_between_two_fits_there_is_a_pause(clock):
    rounds, promotions, fits = rounds_of("car", "bus", fit_every_seconds=30.0)
    teach(promotions, faulty(0, 10))

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: len(fits.jobs) == 1)
            await some_looks()
            teach(promotions, faulty(1, 10, slice=1))
            clock.now += 29.9
            await some_looks()
            assert len(fits.jobs) == 1
            clock.now += 0.1
            await until(lambda: len(fits.jobs) == 2)

    asyncio.run(run())


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


def test_a_fit_that_fails_is_recorded_and_the_champion_stays():
    rounds, promotions, fits = rounds_of("car")
    fits.wrong = [FitFailed("it hung for 120 s")]
    teach(promotions, faulty(0, 10))

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: bool(promotions.records(1)))

    asyncio.run(run())
    (record,) = promotions.records(10)
    assert (record.what, record.reason) == (Happened.FIT_FAILED, "it hung for 120 s")
    assert (record.slice, record.actor) == ("car", "schedule")
    assert promotions.recalibrators.selection is IDENTITY
    assert promotions.pipeline.counters.internal_errors == 0


def test_an_error_in_a_fit_is_counted_and_does_not_end_the_learning(clock):
    rounds, promotions, fits = rounds_of("car", "bus")
    fits.wrong = [RuntimeError("nobody thought of that")]
    teach(promotions, faulty(0, 10))

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: promotions.pipeline.counters.internal_errors == 1)
            clock.now += 1000
            teach(promotions, faulty(1, 10, slice=1))
            await until(lambda: Happened.BEGAN in happened(promotions))

    asyncio.run(run())
    assert happened(promotions) == [Happened.BEGAN]


def test_an_error_in_what_is_learned_is_counted_and_does_not_end_the_learning(monkeypatch):
    rounds, promotions, _ = rounds_of("car")
    whole, wrong = LabelledTracks.whole, [RuntimeError("nobody thought of that")] * 3

    def failing(learning):
        if wrong:
            raise wrong.pop()
        return whole(learning)

    monkeypatch.setattr(LabelledTracks, "whole", failing)
    teach(promotions, faulty(0, 10))

    async def run() -> None:
        async with learning(rounds):
            await until(lambda: Happened.BEGAN in happened(promotions))

    asyncio.run(run())
    assert promotions.pipeline.counters.internal_errors == 3


def test_who_ends_the_learning_ends_the_fit():
    rounds, promotions, fits = rounds_of("car")
    teach(promotions, faulty(0, 10))

    async def run() -> None:
        fits.held = asyncio.Event()
        async with learning(rounds):
            await until(lambda: len(fits.jobs) == 1)
        assert fits.cancelled == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert promotions.records(10) == ()


# ---- asked for


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


@pytest.mark.parametrize(
    ("slices", "method", "words"),
    [
        (["car"], "magic", "method 'magic': it must be one of identity, variance-scaling"),
        (["car", "nonesuch"], "", "slices: there is no 'nonesuch'.* There are: car, bus"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_words(slices, method, words):
    rounds, promotions, fits = rounds_of("car", "bus")
    teach(promotions, faulty(0, 3))
    with pytest.raises(CannotFit, match=words):
        asyncio.run(rounds.asked(slices, method, "anna"))
    assert fits.jobs == []
    assert promotions.records(10) == ()


def test_nothing_can_be_fitted_before_there_are_slices():
    with pytest.raises(CannotFit, match="There are: none yet"):
        asyncio.run(rounds_of()[0].asked(["car"], "", "anna"))
    for names in ([], ["car"]):
        with pytest.raises(NoTracksYet, match="no slice has a whole track"):
            asyncio.run(rounds_of("car")[0].asked(names, "", "anna"))


def test_who_asks_is_told_that_a_fit_failed_and_it_is_recorded():
    rounds, promotions, fits = rounds_of("car", "bus")
    fits.wrong = [FitFailed("it crashed")]
    teach(promotions, [*faulty(0, 3), *faulty(1, 3, slice=1)])
    with pytest.raises(FitFailed, match="it crashed"):
        asyncio.run(rounds.asked([], "", "anna"))
    (record,) = promotions.records(10)
    assert (record.what, record.slice, record.actor) == (Happened.FIT_FAILED, "", "anna")
    assert promotions.counters.fits["failed"] == 2


def test_who_asks_while_a_fit_runs_waits_for_it():
    rounds, promotions, fits = rounds_of("car", "bus")
    teach(promotions, [*faulty(0, 10), *faulty(1, 3, slice=1)])

    async def run() -> None:
        fits.held = asyncio.Event()
        async with learning(rounds):
            await until(lambda: len(fits.jobs) == 1)
            asked = asyncio.create_task(rounds.asked(["bus"], "", "anna"))
            await some_looks()
            assert not asked.done()
            assert len(fits.jobs) == 1
            fits.held.set()
            (found,) = await asked
            assert found.slice == "bus"

    asyncio.run(run())
    assert [list(job.slices) for job in fits.jobs] == [["car"], ["bus"]]
    assert [record.actor for record in promotions.records(10)] == ["schedule", "anna"]
