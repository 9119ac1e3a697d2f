"""Recalibrators kept on disks that fail, in folders that others have been at, and by sidecars that
are killed: whatever is left fits together, and never stops a start."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from monitor.pipeline.recalibrator_checkpoints import MOST_RECORDS
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY
from monitor.store.recalibrator_folder import REGISTER_CODEC, RegisterState
from tests.kept_recalibrators import Keepers, flush, keep, promoted, sequences, warnings
from tests.promotion.random_records import record
from tests.promotion.random_states import scaled, state

ROOT = Path(__file__).parents[1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recalibrators"


@pytest.fixture
def start(path):
    """Starts keepers of that folder, which end with the test."""
    keepers = Keepers(path)
    yield keepers
    keepers.close()


# ---- kills

# One process a line of its input, each of them a fork: importing takes longer than the rest.
WRITERS = """
import asyncio, itertools, os, sys
from monitor.pipeline.recalibrator_checkpoints import RecalibratorWriter
from tests.kept_recalibrators import keep

async def main() -> None:
    keeper = RecalibratorWriter(sys.argv[1])
    for number in itertools.count(keeper.load().sequence + 1):
        keep(keeper, number)
        if number % 3 == 0:
            await keeper.flush()
            print(os.getpid(), number, flush=True)

for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        asyncio.run(main())
    os.waitpid(pid, 0)
    print("gone", flush=True)
"""


@pytest.fixture
def killed_at(path):
    """Runs a writer and kills it some time after its first word; the last number it said."""
    command = [sys.executable, "-c", WRITERS, str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        commands, words = writers.stdin, writers.stdout

        def killed(after_s: float) -> int:
            commands.write("\n")
            commands.flush()
            pid, number = words.readline().split()
            time.sleep(after_s)
            os.kill(int(pid), signal.SIGKILL)
            while (line := words.readline()) != "gone\n":
                _, number = line.split()
            return int(number)

        yield killed


def test_whenever_a_sidecar_is_killed_what_is_left_fits_together(start, path, killed_at):
    random = np.random.default_rng(0)
    last = 0
    for _ in range(20):
        acknowledged = killed_at(random.uniform(0, 0.05))
        keeper, kept = start()
        keeper.close()
        assert kept.state is not None
        # All that was said to be on the disk is there, and no number twice or never.
        assert kept.sequence >= acknowledged > last
        first = max(1, kept.sequence - MOST_RECORDS + 1)
        assert sequences(kept) == list(range(first, kept.sequence + 1))
        # What is in force is there, whole, and no older than what was said.
        assert kept.state.named <= {*kept.documents, CLASS_IDENTITY.version}
        number = next(n for n in range(kept.sequence, 0, -1) if is_of(kept.state, n))
        assert number >= acknowledged
        assert REGISTER_CODEC.write(kept.state) == REGISTER_CODEC.write(
            state(number, scaled(number).version, CLASS_IDENTITY.version, sequence=kept.sequence)
        )
        assert all(one.version == version for version, one in kept.documents.items())
        assert not list(path.rglob("*.tmp"))
        last = kept.sequence


def is_of(found: RegisterState, number: int) -> bool:
    return found.selection == scaled(number).version


# ---- what does not stop the start


@pytest.mark.parametrize("name", ["state", "state.1", "versions", "history.jsonl", "state.lock"])
@pytest.mark.parametrize("wrong", ["garbage", "a folder", "a link to nowhere"])
def test_whatever_stands_in_the_place_of_a_file_the_start_goes_on(start, path, name, wrong):
    first, _ = start()
    for number in (1, 2):
        keep(first, number)
        flush(first)
    first.close()
    spoilt = path / name
    spoilt.rename(path / "elsewhere")
    if wrong == "garbage":
        spoilt.write_bytes(b"\0garbage")
    elif wrong == "a folder":
        spoilt.mkdir()
    else:
        spoilt.symlink_to(path / "nowhere")
    keeper, kept = start()
    if name == "state":
        assert kept.state is not None
        assert kept.state.selection == scaled(1).version
    if name in ("state.1", "history.jsonl"):
        assert kept.state is not None
        assert kept.state.selection == scaled(2).version
    if name == "versions":
        assert kept.state is None
    keep(keeper, 3)
    flush(keeper)


def test_a_folder_that_is_a_file_is_counted_and_nothing_else(start, path, caplog):
    path.write_text("a file")
    keeper, kept = start()
    assert "is read, and nothing is kept until it can be" in kept.complaints[0]
    for number in range(1, 9):
        keep(keeper, number)
        flush(keeper)
    assert keeper.failures >= 8
    # The 1st, 2nd, 4th, 8th … failure is told, beside the start's complaint.
    told = [line for line in warnings(caplog) if "not kept" in line]
    assert len(told) == keeper.failures.bit_length()
    # When it can be written, all that waited is.
    path.unlink()
    flush(keeper)
    keeper.close()
    assert sequences(start()[1]) == list(range(1, 9))


def test_from_a_folder_that_cannot_be_written_all_is_read(start, path, monkeypatch):
    first, _ = start()
    keep(first, 1)
    first.close()

    def read_only(name: str, flags: int) -> int:
        raise OSError(30, "Read-only file system", name)

    with monkeypatch.context() as patched:
        patched.setattr("monitor.store.snapshot.private", read_only)
        keeper, kept = start()
        assert kept.state is not None
        assert REGISTER_CODEC.write(kept.state) == REGISTER_CODEC.write(promoted(1))
        assert sequences(kept) == [1]
        (complaint,) = kept.complaints
        assert "Read-only file system" in complaint
        keep(keeper, 2)
        flush(keeper)
        assert keeper.failures >= 1
    keep(keeper, 3)
    keeper.close()
    assert sequences(start()[1]) == [1, 2, 3]


def test_a_disk_that_is_full_costs_nothing_once_there_is_room(start, path):
    keeper, _ = start()
    keep(keeper, 1)
    flush(keeper)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file of this process may grow beyond that: a version does, the state does not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for number in (2, 3, 4):
            keep(keeper, number)
            flush(keeper)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert keeper.failures >= 3
    assert keeper.refused == 0
    assert not list(path.rglob("*.tmp"))
    assert [file.name for file in (path / "versions").iterdir()] == [f"{scaled(1).version}.json"]
    flush(keeper)
    keeper.close()
    _, kept = start()
    assert kept.state is not None
    assert (kept.state.sequence, sequences(kept)) == (4, [1, 2, 3, 4])
    assert {*kept.documents} == {scaled(n).version for n in (1, 4)}


def test_a_recalibrator_without_a_text_stands_in_nobodys_way(start):
    keeper, _ = start()
    broken = scaled(1)
    broken.fitted_on["rows"] = {1, 2}
    keeper.keep(promoted(2), [broken, scaled(2)], [record(1), record(2)])
    flush(keeper)
    assert keeper.failures == 1
    keeper.close()
    _, kept = start()
    assert kept.state is not None
    assert (kept.state.sequence, list(kept.documents)) == (2, [scaled(2).version])
