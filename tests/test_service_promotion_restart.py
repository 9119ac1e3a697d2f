"""Recalibrators over restarts of a real sidecar: what was in force is in force again, trials go on,
and the history has no hole, wherever it was killed.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from monitor.recalibration.selection import IDENTITY
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.v1.recalibration_record_pb2 import RecalibrationRecord as Record
from tests.foreign_client import promote, scaling
from tests.promoted import (
    BEGAN,
    PINNED,
    PROMOTED,
    PROVEN,
    ROLLED_BACK,
    SWAPS,
    Traffic,
    Watcher,
    active_version,
    drive,
    listed,
    pin,
    rollback,
    series,
    settings,
    trials,
)
from tests.served import PATIENCE, Sidecar, eventually, starting

FAULT = 0.2  # of the variance that is sent


@pytest.fixture
def start(tmp_path):
    """Starts sidecars that end with the test."""
    with starting(tmp_path, settings()) as begin:
        yield begin


@pytest.fixture
def folder(tmp_path) -> Path:
    """Where the state is kept."""
    found: Path = tmp_path / "kept"
    return found


def kill(sidecar: Sidecar) -> None:
    sidecar.process.kill()
    sidecar.process.wait(PATIENCE)


def is_kept(folder: Path) -> None:
    """Wait until all that the sidecar knows by now is on the disk."""
    state = folder / "state.db"
    for _ in range(2):
        before = state.stat().st_mtime_ns if state.exists() else 0
        assert eventually(lambda b=before: state.exists() and state.stat().st_mtime_ns != b)


def history(sidecar: Sidecar) -> list[Record]:
    """All of it, which has no hole."""
    found = list(listed(sidecar, records=1000).records)
    assert [record.sequence for record in found] == list(range(1, len(found) + 1))
    return found


# ---- killed


@pytest.mark.campaign
def test_wherever_it_is_killed_what_is_active_is_what_its_audit_log_says(start, folder):
    chance = random.Random(6)
    config = settings(folder, mode="automatic", allow_shrinking=True)
    sidecar = start(config)
    traffic, told = Traffic(sidecar), list[Record]()
    for _ in range(5):
        watcher = Watcher(sidecar)
        # What is in force is wrong: sooner or later it must change.
        traffic.variance["car"] = FAULT if active_version(sidecar) == IDENTITY.version else 1.0
        until = chance.choice([(BEGAN, *SWAPS), SWAPS])
        drive(traffic, until=partial(watcher.of, *until), tracks=4000)
        time.sleep(chance.choice([0, 0, 0.02, 0.1]))
        kill(sidecar)
        watcher.close()
        told += watcher.records
        sidecar = start(config)
        records = history(sidecar)
        swaps = [record.after for record in records if record.what in SWAPS]
        assert active_version(sidecar) == (swaps[-1] if swaps else IDENTITY.version)
        # What was told in the very last moments may not have come to the disk, nothing else.
        sure = briefly(told)[:-3]
        assert briefly(records)[: len(sure)] == sure
        told = records
        traffic.connect(sidecar)


def briefly(records: list[Record]) -> list[tuple[int, int, str, int]]:
    """What tells one from another."""
    return [(r.sequence, r.what, r.version, r.time.ToNanoseconds()) for r in records]


def test_a_trial_a_guard_and_a_pin_live_on_and_who_rolls_back_finds_what_was_before(start, folder):
    config = settings(folder)
    sidecar = start(config)
    traffic, watcher = Traffic(sidecar), Watcher(sidecar)
    traffic.variance["car"] = FAULT
    drive(traffic, until=lambda: watcher.of(PROVEN), tracks=4000)
    proven = trials(sidecar)["car", admin_pb.TRIAL_STATE_PROVEN]
    is_kept(folder)
    kill(sidecar)

    sidecar = start(config)
    traffic.connect(sidecar)
    traffic.send(1)
    again = trials(sidecar)["car", admin_pb.TRIAL_STATE_PROVEN]
    assert again.version == proven.version
    assert again.evidence.tracks >= proven.evidence.tracks
    assert again.evidence.log10_better >= again.evidence.log10_threshold
    assert active_version(sidecar) == IDENTITY.version
    drive(traffic, until=lambda: tracks_of(sidecar) > again.evidence.tracks, tracks=500)
    got = sidecar.admin.Get(admin_pb.GetRequest(version=again.version), timeout=PATIENCE)
    assert [record.what for record in got.records] == [BEGAN, PROVEN]
    assert promote(sidecar, version=again.version).after == again.version
    pin(sidecar, True)
    drive(traffic, until=lambda: guards(sidecar), tracks=500)
    is_kept(folder)
    kill(sidecar)

    sidecar = start(config)
    traffic.connect(sidecar)
    traffic.variance.clear()
    traffic.send(1)
    assert traffic.versions == (again.version,)
    assert np.all(traffic.factors() > 2)
    assert listed(sidecar).pinned
    assert guards(sidecar)
    records = history(sidecar)
    assert [record.what for record in records] == [BEGAN, PROVEN, PROMOTED, PINNED]
    assert briefly(records)[:2] == briefly(watcher.records)[:2]
    assert rollback(sidecar, "car").after == IDENTITY.version
    is_kept(folder)
    kill(sidecar)

    sidecar = start(config)
    assert active_version(sidecar) == IDENTITY.version
    assert [record.what for record in history(sidecar)][-1] == ROLLED_BACK


def tracks_of(sidecar: Sidecar) -> int:
    """That had a say in the trial of cars."""
    found: int = trials(sidecar)["car", admin_pb.TRIAL_STATE_PROVEN].evidence.tracks
    return found


def guards(sidecar: Sidecar) -> bool:
    return ("car", admin_pb.TRIAL_STATE_GUARD) in trials(sidecar)


# ---- what the configuration names


def test_what_the_configuration_names_comes_in_force_when_it_names_something_new(
    start, folder, tmp_path
):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(scaling(2.0, 2.0), encoding="utf-8")
    other.write_text(scaling(3.0, 3.0), encoding="utf-8")
    config = settings(folder) + f"[recalibration]\nrecalibrator = '{one}'\n"
    sidecar = start(config)
    first = active_version(sidecar)
    assert first.startswith("variance-scaling-")
    promoted = promote(sidecar, document=scaling(4.0, 4.0)).after
    sidecar.stop()

    sidecar = start(config)
    assert active_version(sidecar) == promoted
    assert {first, promoted} <= {entry.version for entry in listed(sidecar).recalibrators}
    sidecar.stop()

    sidecar = start(config.replace(str(one), str(other)))
    assert active_version(sidecar) not in (first, promoted, IDENTITY.version)
    (*_, last) = history(sidecar)
    assert (last.what, last.actor, last.before) == (PROMOTED, "configuration", promoted)
    sidecar.stop()


# ---- folders


def test_a_second_sidecar_on_a_folder_says_so_and_keeps_nothing(start, folder):
    config = settings(folder)
    first = start(config)
    second = start(config)
    assert "another sidecar keeps its state" in second.log.read_text("utf-8")
    promote(second, document=scaling(5.0, 5.0))
    kept = promote(first, document=scaling(2.0, 2.0)).after
    is_kept(folder)
    second.stop()
    first.stop()
    third = start(config)
    assert active_version(third) == kept
    assert [record.after for record in history(third)] == [kept]


def test_where_nothing_can_be_written_it_serves_and_says_so(start, tmp_path):
    (tmp_path / "file").touch()
    sidecar = start(settings(tmp_path / "file" / "kept"))
    assert "cannot be written" in sidecar.log.read_text("utf-8")
    version = promote(sidecar, document=scaling(2.0, 2.0)).after
    traffic = Traffic(sidecar)
    traffic.send(1)
    assert traffic.versions == (version,)
    assert eventually(lambda: series(sidecar, "checkpoint_failures_total")[""] >= 1)
    sidecar.stop()
