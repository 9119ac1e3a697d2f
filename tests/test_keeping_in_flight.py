"""Snapshots that are on their way while something else happens, in this process: a writer that
is cancelled, a second sidecar on the same file, a start with a file that cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from monitor.config import Config, SnapshotConfig
from monitor.pipeline import checkpoints
from monitor.pipeline.checkpoints import StatisticsCheckpoints
from monitor.pipeline.frame_path import Pipeline
from monitor.store.snapshot import SnapshotFile, read_body
from monitor.store.statistics_state import NewerFields, StoredState, parsed, serialised
from tests.piped import statistics_of
from tests.served import PATIENCE, ROOT
from tests.states import counted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.state"


@pytest.fixture
def keeper_of(path):
    """Makes keepers that let go of their file after the test."""
    with contextlib.ExitStack() as made:

        def keeper(file: Path = path) -> StatisticsCheckpoints:
            pipeline = Pipeline(Config())
            one = StatisticsCheckpoints(pipeline, NewerFields(), SnapshotConfig(path=str(file)))
            made.callback(one.file.close)
            return one

        yield keeper


class Parts:
    """What writers write, in their turn; the first one waits in the middle until it is let go."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = iter(bodies)
        self.begun: list[bytes] = []
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_):
        body = next(self.bodies)
        self.begun.append(body)
        yield body[:2]
        if len(self.begun) == 1:
            self.reached.set()
            assert self.go_on.wait(10)
        yield body[2:]


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def test_the_last_snapshot_waits_for_one_whose_writer_was_cancelled(keeper_of, path, monkeypatch):
    parts = Parts(b"first", b"last")
    monkeypatch.setattr(checkpoints, "serialised", parts)
    keeper = keeper_of()

    async def stopped_while_it_writes() -> None:
        writer = asyncio.create_task(keeper.write())
        await asyncio.to_thread(parts.reached.wait, 10)
        writer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writer
        last = asyncio.create_task(keeper.write())
        for _ in range(100):  # turns of the loop
            await asyncio.sleep(0)
        assert parts.begun == [b"first"]
        parts.go_on.set()
        await last

    asyncio.run(stopped_while_it_writes())
    assert [read_body(file) for file in (path, path.with_name("kept.state.1"))] == [
        b"last",
        b"first",
    ]
    assert names(path) == ["kept.state", "kept.state.1", "kept.state.lock"]
    assert keeper.file.failures == 0


def test_two_snapshots_at_once_are_written_one_after_the_other(keeper_of, path, monkeypatch):
    parts = Parts(b"first", b"last")
    parts.go_on.set()
    monkeypatch.setattr(checkpoints, "serialised", parts)
    keeper = keeper_of()

    async def both() -> None:
        await asyncio.gather(keeper.write(), keeper.write())

    asyncio.run(both())
    assert read_body(path) == b"last"
    assert read_body(path.with_name("kept.state.1")) == b"first"


# ---- two sidecars


def test_a_file_that_another_sidecar_keeps_is_left_alone(keeper_of, path, caplog):
    first, second = keeper_of(), keeper_of()
    first.load()
    asyncio.run(first.write())
    half = path.with_name("kept.state.77.1.tmp")
    half.write_bytes(b"half")
    before = path.read_bytes()
    second.load()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"snapshot: another sidecar keeps its statistics in {path}: this one")
    asyncio.run(second.write())
    assert (second.file.failures, second.file.written_at) == (1, None)
    assert path.read_bytes() == before
    assert half.exists()
    first.file.close()
    keeper_of().load()
    assert not half.exists()


def test_a_keeper_without_a_path_locks_and_writes_nothing(tmp_path):
    keeper = StatisticsCheckpoints(Pipeline(Config()), NewerFields(), SnapshotConfig(path=""))
    keeper.load()
    asyncio.run(keeper.write())
    assert (keeper.file.failures, list(tmp_path.iterdir())) == (0, [])


def test_a_folder_that_comes_later_is_written_to_then(keeper_of, tmp_path):
    path = tmp_path / "later" / "kept.state"
    keeper = keeper_of(path)
    keeper.load()
    asyncio.run(keeper.write())
    assert keeper.file.failures == 1
    path.parent.mkdir()
    asyncio.run(keeper.write())
    assert keeper.file.failures == 1
    assert names(path) == ["kept.state", "kept.state.lock"]


# ---- a file that cannot be used


def test_a_state_on_other_bins_is_kept_aside_and_not_a_bit_of_it_comes_in(keeper_of, path, caplog):
    SnapshotFile(path).write([*serialised(StoredState(counted([]))), b"\xc2\x3e\x05newer"])
    keeper = keeper_of()
    keeper.load()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "the bins differ" in said
    assert said.endswith("It is kept as kept.state.incompatible, statistics begin anew.")
    assert names(path) == ["kept.state.incompatible", "kept.state.lock"]
    assert keeper.newer.data == b""
    assert not statistics_of(keeper.pipeline)


def test_what_newer_code_had_added_is_shared_with_who_exports(keeper_of, path):
    keeper = keeper_of()
    keeper.newer.data = b"\xc2\x3e\x05newer"
    asyncio.run(keeper.write())
    keeper.file.close()
    again = keeper_of()
    again.load()
    assert again.newer.data == b"\xc2\x3e\x05newer"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a mistake"), OSError(5, "no")])
def test_whatever_is_wrong_the_start_goes_on(keeper_of, path, monkeypatch, caplog, error):
    keeper = keeper_of()
    asyncio.run(keeper.write())

    def failing(_: bytes) -> StoredState:
        raise error

    monkeypatch.setattr(checkpoints, "parsed", failing)
    keeper.load()
    assert caplog.records


# A sidecar whose metrics cannot be made, which is what a state of unheard-of sums might do.
WITHOUT_METRICS = """
import sys
from monitor import cli
from monitor.service import exporting
async def failing(self):
    raise ValueError("no metrics")
exporting.Exporting.refresh = failing
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""


def test_a_sidecar_whose_metrics_fail_starts_and_writes_its_last_snapshot(path, tmp_path):
    config = tmp_path / "sidecar.toml"
    config.write_text(f'[snapshot]\npath = "{path}"\n[pending]\nfolder = ""\n', "utf-8")
    ports = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_METRICS, "--config", str(config), *ports],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as sidecar:
        assert sidecar.stdout is not None
        assert sidecar.stdout.readline().startswith(b"listening ")
        sidecar.terminate()
        assert sidecar.wait(PATIENCE) == 0
    assert parsed(read_body(path)).state.slices == ()
