"""What a configuration that is read again may change while the sidecar runs."""

import asyncio
import threading
from pathlib import Path

import pytest

from monitor.config import (
    RELOADABLE,
    Config,
    InvalidConfiguration,
    Outcome,
    Reloads,
    checked,
    load,
    reloaded,
)
from monitor.service.admin import status
from monitor.sidecar import read_again

ROOT = Path(__file__).parents[2]


def config(**sections: dict[str, object]) -> Config:
    return checked(dict(sections), "test")


def test_a_key_that_may_change_is_active_and_one_that_may_not_waits_and_is_named():
    read = config(
        recalibration={"mode": "observe"},
        statistics={"bins": 7, "tau": [0.5]},
        server={"grace_seconds": 1.0, "grpc_address": "127.0.0.1:1"},
    )
    found, changed, waiting = reloaded(Config(), read)
    assert changed == ["server.grace_seconds", "recalibration.mode"]
    assert waiting == ["server.grpc_address", "statistics.tau", "statistics.bins"]
    assert (found.recalibration.mode, found.server.grace_seconds) == ("observe", 1.0)
    assert found.statistics == Config().statistics
    assert found.server.grpc_address == Config().server.grpc_address
    same = config(state={"folder": "a"})
    assert reloaded(same, config(state={"folder": "a"})) == (same, [], [])


def test_a_value_that_is_taken_must_go_with_those_that_stay():
    # In the new file both are fine together; the running sidecar only keeps 50 tracks.
    running = config(promotion={"kept_tracks": 50})
    read = config(promotion={"kept_tracks": 500, "fit_tracks": 200})
    with pytest.raises(InvalidConfiguration, match="fit_tracks 200"):
        reloaded(running, read)


def test_the_defaults_file_marks_each_key_that_a_reload_takes():
    text = (ROOT / "deploy" / "sidecar.toml").read_text("utf-8")
    marked: dict[str, set[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line[1 : line.index("]")]
        elif " = " in line and "↻" in line:
            marked.setdefault(section, set()).add(line.lstrip("# ").partition(" = ")[0].strip())
    assert marked == {name: set(keys) for name, keys in RELOADABLE.items()}
    for name, keys in RELOADABLE.items():
        assert set(keys) <= set(type(getattr(Config(), name)).model_fields)


def test_what_was_read_is_returned_and_what_was_wrong_is_raised():
    wanted = Config()
    assert asyncio.run(read_again(lambda: wanted)) is wanted
    with pytest.raises(InvalidConfiguration, match="nowhere"):
        asyncio.run(read_again(lambda: load(Path("/nowhere"))))


def test_a_disk_that_does_not_answer_is_given_up_and_the_loop_ends_all_the_same():
    answers = threading.Event()

    def stuck() -> Config:
        answers.wait(60)
        return Config()

    # Returns before the thread does, which a thread of the executor would not let it.
    with pytest.raises(InvalidConfiguration, match=r"within 0\.05 s"):
        asyncio.run(read_again(stuck, 0.05))
    answers.set()


def test_reloads_are_counted_and_the_last_refusal_stands_until_the_next_success():
    reloads = Reloads("/etc/\udcff.toml")
    reloads.refuse("below 0")
    told = status((), None, reloads, 0, 0, 0)
    assert (told.configuration, told.configuration_refused) == ("/etc/?.toml", "below 0")
    reloads.take([], ["statistics.bins"])
    assert (reloads.refused, reloads.waiting) == ("", ("statistics.bins",))
    reloads.take(["metrics.refresh_seconds"], [])
    assert reloads.outcomes == dict.fromkeys(Outcome, 1) and reloads.waiting == ()
