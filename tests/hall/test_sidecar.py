"""The sidecar without its ports: which of its parts learn what."""

import asyncio
import gc
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

from monitor.config import RELOADABLE, Config, StateConfig, checked, reloaded
from monitor.sidecar import Host, Sidecar, collect_young_alone
from monitor.wire.values import Health
from tests.served import ROOT


def looked_at(sidecar: Sidecar, *samples: tuple[float, float, int]) -> list[Health]:
    """What is told of (s now, s late, ns the wall clock is ahead)."""
    told: list[Health] = []

    async def look() -> None:
        watch = sidecar.pipeline.events.watch(0)
        await anext(watch)
        for now, lag, ahead in samples:
            monotonic = round(now * 1e9)
            sidecar._look(now, lag, monotonic + ahead, monotonic)
        sidecar.pipeline.events.close()
        told.extend([event.what async for event in watch if isinstance(event.what, Health)])

    asyncio.run(look())
    return told


def quiet() -> Sidecar:
    return Sidecar(Config(state=StateConfig(folder="")))


def test_an_overload_is_told_when_it_begins_and_when_it_ends_and_counted():
    sidecar = quiet()
    # Without a frame there is nothing to leave out.
    assert looked_at(sidecar, (-9.0, 0.3, 0), (-8.9, 0.3, 0)) == []
    sidecar.pipeline.counters.frames += 1
    told = looked_at(sidecar, (0.0, 0.3, 0), (0.1, 0.3, 0), (0.2, 0.0, 0), (1.3, 0.0, 0))
    assert [health.message.partition(":")[0] for health in told] == ["overload", "serving"]
    assert all(health.serving for health in told)
    counters = sidecar.pipeline.counters
    assert (counters.overloads, counters.shedding, counters.loop_lag_seconds) == (1, False, 0.3)


def test_all_objects_are_looked_at_while_no_frames_come_and_seldom_while_they_do(monkeypatch):
    collected = Mock()
    monkeypatch.setattr("monitor.sidecar.gc.collect", collected)
    sidecar, calls = quiet(), []
    for now in range(0, 2000, 5):
        if 100 < now < 1500:
            sidecar.pipeline.counters.frames += 1
        before = collected.call_count
        looked_at(sidecar, (float(now), 0.0, 0))
        if collected.call_count > before:
            calls.append(now)
    assert calls == [60, 960, *range(1500, 2000, 60)]


def test_what_exists_is_kept_and_young_objects_alone_are_looked_at():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        collect_young_alone()
        assert gc.get_threshold()[0] == before[0] and min(gc.get_threshold()[1:]) > 2**30
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_openblas_works_in_the_thread_that_calls_it():
    code = """
import ctypes, numpy
from monitor.sidecar import one_blas_thread
found = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
assert one_blas_thread() == len(found) > 0
for path in found:
    library = ctypes.CDLL(path)
    names = ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads",
             "openblas_get_num_threads64_", "openblas_get_num_threads")
    asked = next(getattr(library, name) for name in names if hasattr(library, name))
    assert asked() == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_wall_clock_that_is_set_is_told_and_the_ledger_learns_the_epoch():
    sidecar = quiet()
    told = looked_at(sidecar, (0.0, 0.0, 0), (0.05, 0.0, -3 * 10**9), (0.1, 0.0, -3 * 10**9))
    assert [health.message for health in told] == [
        "the wall clock was set by -3.000 s: clock epoch 1"
    ]
    assert sidecar.pipeline.ledger.epoch == 1
    counters = sidecar.pipeline.counters
    assert (counters.clock_epoch, counters.clock_steps) == (1, 1)
    assert sidecar.pipeline.events.health == Health(False, "starting")


# Every key that a reload takes, at another value than the default.
TAKEN: dict[str, dict[str, Any]] = {
    "server": {"max_streams": 3, "max_messages_per_second": 7.0, "write_timeout_seconds": 3.0}
    | {"grace_seconds": 1.0, "shed_lag_seconds": 0.7, "shed_rows": 77}
    | {"stale_seconds": 7.0, "clock_step_seconds": 0.7},
    "security": {"reload_seconds": 7.0},
    "recalibration": {"mode": "observe"},
    "promotion": {"mode": "automatic", "allow_shrinking": True, "method": "adaptive-scaling"}
    | {"objective": None, "time_constant_seconds": 70.0, "band": [0.7, 1.7], "hysteresis": 1.7}
    | {"prior_tracks": 7.0, "fit_tracks": 17, "fit_every_seconds": 7.0}
    | {"fit_timeout_seconds": 70.0, "class_method": "class-identity", "class_band": [0.6, 1.6]}
    | {"missing_method": "residual-covariance"},
    "drift": {"refit_on_page": True},
    "state": {"every_seconds": 8.0},
    "metrics": {"refresh_seconds": 7.0},
    "log": {"level": "debug", "format": "json", "lines_a_minute": 7, "burst": 7},
}


def test_every_key_that_a_reload_takes_is_in_force_in_the_part_that_holds_it():
    sidecar = quiet()
    heard: list[Config] = []
    sidecar.host = Host(adjusted=heard.append)
    settings = {section: dict(values) for section, values in TAKEN.items()}
    settings["state"]["folder"] = ""
    config, changed, waiting = reloaded(sidecar.config, checked(settings, "test"))
    assert set(changed) == {
        f"{section}.{key}" for section, keys in RELOADABLE.items() for key in keys
    } - {"promotion.objective", "promotion.correct_mean"}  # not of adaptive-scaling
    assert waiting == []
    sidecar._adjust(config)
    assert sidecar.config is sidecar.pipeline.config is config
    # A sidecar that starts with them has them from the start.
    started = Sidecar(config)
    assert started.pipeline.overload == sidecar.pipeline.overload
    assert started.wall_clock.step_seconds == 0.7
    assert heard == [config]
    overload = sidecar.pipeline.overload
    assert (overload.lag_seconds, overload.waiting_rows) == (0.7, 77)
    assert sidecar.wall_clock.step_seconds == 0.7
    learning, wanted = sidecar.pipeline.learning, config.promotion.settings()
    assert (learning.settings.fits, learning.settings.policy) == (wanted.fits, wanted.policy)
    assert learning.register.settings == learning.settings
