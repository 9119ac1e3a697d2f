"""The sidecar without its ports: which of its parts learn what, and what it finds on the disk."""

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from monitor.config import (
    Config,
    PendingConfig,
    StateConfig,
    checked,
)
from monitor.pipeline.checkpoints import Checkpoints
from monitor.pipeline.pending import Dropped
from monitor.pipeline.run_state import RunState, restore_run
from monitor.service.host import Host
from monitor.service.reload import RELOADABLE, reloaded
from monitor.sidecar import Sidecar
from monitor.store.files import Claim
from monitor.store.journal import Journal
from monitor.wire.messages import Health
from tests.journalled import frame
from tests.piped import fateless


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
    return Sidecar(Config(state=StateConfig(folder="")))


def test_an_overload_is_told_when_it_begins_and_when_it_ends_and_counted():
    sidecar = quiet()
    told = looked_at(sidecar, (0.0, 0.3, 0), (0.1, 0.3, 0), (0.2, 0.0, 0), (1.3, 0.0, 0))
    assert [health.message.partition(":")[0] for health in told] == ["overload", "serving"]
    assert all(health.serving for health in told)
    counters = sidecar.pipeline.counters
    assert (counters.overloads, counters.shedding, counters.loop_lag_seconds) == (1, False, 0.3)


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


# ---- what the disk has at start


def resumed(folder: Path, waiting: dict[int, int] | None) -> Sidecar:
    """One that found frames 2 to 4 in partitions 7 to 9; partition 6, with frame 1, has expired.

    waiting  detections that its checkpoint says wait, by partition; None: its position in the
             ledger is not known
    """
    pending = PendingConfig(keep_hours=1, partition_minutes=30)
    state = StateConfig(folder=str(folder))

    async def start() -> Sidecar:
        claim = Claim(folder)
        journal = Journal(claim, pending, list[object]().append)
        journal.open(dict[int, str]().__setitem__)
        for number in range(1, 4):
            journal.note(frame(number, number + 5))
        assert await journal.durable(3)
        journal.covered(3, 9)
        journal.note(frame(4, 9))
        await journal.close()
        claim.release()
        sidecar = Sidecar(Config(state=state, pending=pending))

        def load(checkpoints: Checkpoints) -> None:
            if waiting is None:
                checkpoints.position = None
                return
            restore_run(sidecar.pipeline, RunState(3, on_disk=tuple(waiting.items())))

        with patch.object(Checkpoints, "load", load):
            sidecar._resume()
        await sidecar.journal.close()
        assert sidecar.claim is not None
        sidecar.claim.release()
        return sidecar

    return asyncio.run(start())


def test_what_went_as_configured_since_the_last_snapshot_is_not_taken_for_damage(tmp_path):
    waiting = dict.fromkeys((5, 6, 7, 8, 9, 10), 1)
    sidecar = resumed(tmp_path / "pending", waiting)
    assert sidecar.journal.drops == {"expired": 1, "vanished": 2}
    assert sidecar.journal.refused == 2
    account = sidecar.pipeline.ledger.fates.account
    assert (account["unlabelled"], account[f"dropped_{Dropped.CORRUPT}"]) == (1, 2)
    assert sidecar.pipeline.ledger.sequence == 4


@pytest.mark.parametrize(("waiting", "begins"), [(None, 5), ({}, 0)])
def test_an_account_begins_after_the_ledger_where_the_snapshot_has_no_position(
    tmp_path, waiting, begins
):
    ledger = resumed(tmp_path / "pending", waiting).pipeline.ledger
    assert (ledger.begins, ledger.sequence) == (begins, 4)
    assert fateless(ledger.fates) == ledger.fates.pending


# Every key that a reload takes, at another value than the default.
TAKEN: dict[str, dict[str, object]] = {
    "server": {"max_streams": 3, "max_messages_per_second": 7.0, "write_timeout_seconds": 3.0}
    | {"grace_seconds": 1.0, "shed_lag_seconds": 0.7, "shed_rows": 77}
    | {"stale_seconds": 7.0, "clock_step_seconds": 0.7},
    "security": {"reload_seconds": 7.0},
    "recalibration": {"mode": "observe"},
    "promotion": {"mode": "automatic", "allow_shrinking": True, "method": "adaptive-scaling"}
    | {"objective": None, "time_constant_seconds": 70.0, "band": [0.7, 1.7], "hysteresis": 1.7}
    | {"prior_tracks": 7.0, "fit_tracks": 17, "fit_every_seconds": 7.0}
    | {"fit_timeout_seconds": 70.0},
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
    } - {"promotion.objective"}
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
