"""Recalibrators kept on disk while a sidecar runs: over restarts, beside a second sidecar, and
beside the frames."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from monitor.pipeline.recalibrator_checkpoints import MOST_RECORDS, MOST_WAITING, Kept
from monitor.promotion.records import Happened
from monitor.store.recalibrator_folder import REGISTER_CODEC, RecalibratorFolder, RegisterState
from tests.kept_recalibrators import Keepers, flush, keep, promoted, sequences, warnings
from tests.promotion.random_records import record
from tests.promotion.random_states import scaled

NOTHING = Kept(None, {}, (), 0, ())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recalibrators"


@pytest.fixture
def start(path):
    """Starts keepers of that folder, which end with the test."""
    keepers = Keepers(path)
    yield keepers
    keepers.close()


# ---- over restarts


def test_a_first_start_finds_nothing_and_has_nothing_to_complain_of(start, caplog):
    assert start()[1] == NOTHING
    assert warnings(caplog) == []


def test_all_of_it_survives_a_restart(start):
    first, _ = start()
    for number in (1, 2, 3):
        keep(first, number)
        flush(first)
    first.close()
    _, kept = start()
    assert kept.state is not None
    assert REGISTER_CODEC.write(kept.state) == REGISTER_CODEC.write(promoted(3))
    # Those that either generation of the state names.
    assert kept.documents == {scaled(n).version: scaled(n) for n in (2, 3)}
    assert sequences(kept) == [1, 2, 3]
    assert kept.sequence == 3
    assert kept.complaints == ()


def test_what_is_handed_over_before_the_end_is_written_by_then(start):
    first, _ = start()
    for number in range(1, 51):
        keep(first, number)
    first.close()
    _, kept = start()
    assert kept.state is not None
    assert (kept.state.sequence, sequences(kept)) == (50, list(range(1, 51)))
    assert scaled(50).version in kept.documents


def test_the_latest_thousand_records_are_given_back_and_numbers_go_on(start):
    first, _ = start()
    many = [record(n) for n in range(1, MOST_RECORDS + 101)]
    first.keep(promoted(1), [scaled(1)], many)
    first.close()
    _, kept = start()
    assert sequences(kept) == list(range(101, MOST_RECORDS + 101))
    assert kept.sequence == MOST_RECORDS + 100
    assert kept.state is not None
    assert kept.state.sequence == kept.sequence


def test_without_a_folder_nothing_is_kept_and_nothing_said(start, caplog):
    keeper, kept = start("")
    assert kept == NOTHING
    keep(keeper, 1)
    flush(keeper)
    assert keeper.failures == 0
    assert warnings(caplog) == []


def test_a_keeper_that_is_closed_keeps_nothing_more(start):
    keeper, _ = start()
    keep(keeper, 1)
    keeper.close()
    keep(keeper, 2)
    flush(keeper)
    keeper.close()
    assert sequences(start()[1]) == [1]


def test_a_run_that_died_between_the_history_and_the_state_is_told_of(start, path):
    first, _ = start()
    keep(first, 1)
    first.close()
    folder = RecalibratorFolder(path)
    folder.claim()
    folder.add(scaled(2))
    folder.append([record(2, Happened.PROMOTED, scaled(2).version), record(3)])
    folder.release()
    _, kept = start()
    assert kept.state is not None
    assert kept.state.selection == scaled(1).version
    assert kept.state.sequence == kept.sequence == 3
    (complaint,) = kept.complaints
    assert f"put '{scaled(2).version}' in force" in complaint
    assert f"'{scaled(1).version}'" in complaint


# ---- another sidecar


def test_a_second_sidecar_says_so_and_keeps_nothing(start, caplog, path):
    first, _ = start()
    keep(first, 1)
    second, kept = start()
    assert (kept.state, kept.documents, kept.records) == (None, {}, ())
    (complaint,) = kept.complaints
    assert f"another sidecar keeps its recalibrators in {path}" in complaint
    assert [complaint in line for line in warnings(caplog)] == [True]
    keep(second, 2)
    flush(second)
    assert second.failures == 0
    first.close()
    assert sequences(start()[1]) == [1]


# ---- while it runs


def test_a_slow_disk_holds_nobody_and_gets_only_the_latest_state(start, monkeypatch):
    keeper, _ = start()
    free, wrote = threading.Event(), []
    write = RecalibratorFolder.write

    def slow(folder: RecalibratorFolder, found: RegisterState) -> None:
        assert free.wait(30)
        wrote.append(found.sequence)
        write(folder, found)

    monkeypatch.setattr(RecalibratorFolder, "write", slow)
    keep(keeper, 1)
    while keeper._waiting.state is not None:  # until the thread has it
        time.sleep(0.001)
    for number in range(2, 101):
        keep(keeper, number)
    free.set()
    flush(keeper)
    assert wrote == [1, 100]
    keeper.close()
    _, kept = start()
    assert sequences(kept) == list(range(1, 101))
    assert list(kept.documents) == [scaled(1).version, scaled(100).version]


def test_nothing_names_what_is_not_there_at_any_moment(start, path, monkeypatch):
    """Whatever call to the disk is the last one: versions come before records before the state."""
    order = []
    for name in ("add", "append", "write"):
        method = getattr(RecalibratorFolder, name)

        def noted(folder, argument, name=name, method=method):
            order.append(name)
            method(folder, argument)

        monkeypatch.setattr(RecalibratorFolder, name, noted)
    keeper, _ = start()
    keep(keeper, 1)
    flush(keeper)
    assert [name for i, name in enumerate(order) if name not in order[:i]] == [
        "add",
        "append",
        "write",
    ]


def test_too_many_records_are_refused_and_counted_while_nothing_is_lost_before(start, path):
    path.write_text("a file")
    keeper, _ = start()
    for begin in range(1, MOST_WAITING + 101, 101):
        many = [record(n) for n in range(begin, begin + 101)]
        keeper.keep(promoted(1), [scaled(1)], many)
        flush(keeper)
    handed = begin + 100
    assert keeper.refused == handed - MOST_WAITING
    path.unlink()
    flush(keeper)
    keeper.close()
    assert start()[1].sequence == MOST_WAITING


def test_a_recalibrator_that_was_removed_is_written_again_when_it_comes_in_force(start, path):
    keeper, _ = start()
    for number in (1, 2, 3):
        keep(keeper, number)
        flush(keeper)
    assert not (path / "versions" / f"{scaled(1).version}.json").exists()
    keep(keeper, 1)
    flush(keeper)
    assert keeper.failures == 0
    keeper.close()
    _, kept = start()
    assert kept.state is not None
    assert kept.state.selection == scaled(1).version


def test_whatever_comes_in_force_in_a_row_the_folder_does_not_grow(start, path):
    keeper, _ = start()
    for number in range(1, 30):
        keep(keeper, number)
        flush(keeper)
        assert len(list((path / "versions").iterdir())) <= 2


def test_one_who_waits_may_be_cancelled_and_the_write_is_done_all_the_same(start):
    keeper, _ = start()

    async def impatient() -> None:
        keep(keeper, 1)
        task = asyncio.create_task(keeper.flush())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    keeper.close()
    assert sequences(start()[1]) == [1]
