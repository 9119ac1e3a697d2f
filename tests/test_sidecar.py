"""The sidecar without its ports: what of its parts reaches the metrics."""

import asyncio

from monitor.config import Config, ServerConfig, SnapshotConfig
from monitor.config_promotion import PromotionConfig
from monitor.events import Health
from monitor.sidecar import Sidecar


def test_what_was_given_up_counts_as_a_failure_of_the_store_and_what_was_not_learned_is_told():
    nowhere = PromotionConfig(folder="")
    sidecar = Sidecar(Config(snapshot=SnapshotConfig(path=""), promotion=nowhere))
    store, learning = sidecar.kept.keeper, sidecar.pipeline.learning
    store.failures, store.refused = 2, 3
    learning._open.left_out = 7
    asyncio.run(sidecar._refresh_if_possible())
    assert sidecar.pipeline.counters.internal_errors == 0
    lines = sidecar.endpoint.published.metrics.decode().splitlines()
    assert "calibration_recalibrator_store_failures_total 5.0" in lines
    assert "calibration_learning_left_out_total 7.0" in lines


def looked_at(sidecar: Sidecar, *samples: tuple[float, float, int]) -> list[Health]:
    """What is told of (s now, s late, ns the wall clock is ahead)."""
    told: list[Health] = []

    async def look() -> None:
        watch = sidecar.server.service.events.watch(0)
        await anext(watch)
        for now, lag, ahead in samples:
            monotonic = round(now * 1e9)
            sidecar._look(now, lag, monotonic + ahead, monotonic)
        sidecar.server.service.events.close()
        told.extend([event.what async for event in watch if isinstance(event.what, Health)])

    asyncio.run(look())
    return told


def quiet() -> Sidecar:
    return Sidecar(Config(snapshot=SnapshotConfig(path=""), promotion=PromotionConfig(folder="")))


def test_an_overload_is_told_when_it_begins_and_when_it_ends_and_counted():
    sidecar = quiet()
    told = looked_at(sidecar, (0.0, 0.3, 0), (0.1, 0.3, 0), (0.2, 0.0, 0), (1.3, 0.0, 0))
    assert [health.message.partition(":")[0] for health in told] == ["overload", "serving"]
    assert all(health.serving for health in told)
    counters = sidecar.pipeline.counters
    assert (counters.overloads, counters.shedding, counters.loop_lag_seconds) == (1, False, 0.3)


def test_frames_that_wait_long_for_their_turn_are_an_overload_of_a_punctual_loop():
    sidecar = quiet()
    turns = sidecar.server.service.turns

    async def wait(*seconds: float) -> list[bool]:
        found = []
        for now, waited in enumerate(seconds):
            turns._longest = waited
            sidecar._look(float(now), 0.0, 0, 0)
            found.append(sidecar.overload.shedding)
        return found

    assert asyncio.run(wait(0.05, 0.3, 0.3, 0.3)) == [False, False, True, True]


def test_a_wall_clock_that_is_set_is_told_and_the_ledger_learns_the_epoch():
    sidecar = quiet()
    told = looked_at(sidecar, (0.0, 0.0, 0), (0.05, 0.0, -3 * 10**9), (0.1, 0.0, -3 * 10**9))
    assert [health.message for health in told] == [
        "the wall clock was set by -3.000 s: clock epoch 1"
    ]
    assert sidecar.pipeline.ledger.epoch == 1
    counters = sidecar.pipeline.counters
    assert (counters.clock_epoch, counters.clock_steps) == (1, 1)
    assert sidecar.server.service.events.health == Health(False, "starting")


def test_the_limits_are_those_of_the_configuration():
    server = ServerConfig(shed_lag_seconds=3.0, shed_rows=7, clock_step_seconds=9.0)
    sidecar = Sidecar(
        Config(
            server=server,
            snapshot=SnapshotConfig(path=""),
            promotion=PromotionConfig(folder=""),
        )
    )
    assert (sidecar.overload.lag_seconds, sidecar.overload.waiting_rows) == (3.0, 7)
    assert sidecar.wall_clock.step_seconds == 9.0
