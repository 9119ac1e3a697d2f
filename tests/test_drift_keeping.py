"""What is known of drift on disk, without a process: read at start, written now and then, and at
once where an alarm has changed; whatever is wrong with the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.config import Config, DriftConfig, InvalidConfiguration
from monitor.drift.alarms import Latched, key_of
from monitor.drift.bets import Stage
from monitor.drift.reference import Origin
from monitor.drift.usual import ReferenceLearner
from monitor.pipeline import checkpoints
from monitor.pipeline.checkpoints import DRIFT, DriftCheckpoints
from monitor.pipeline.fits.rounds import FitRounds
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.promotions import Promotions
from monitor.store.drift_documents import reference_text
from monitor.store.snapshot import SnapshotFile, read_body
from tests.alarmed import RAISED, alarm
from tests.foreign_client import scaling

K = 2


@pytest.fixture
def path(tmp_path) -> Path:
    """Where drift is kept."""
    found: Path = tmp_path / "kept.drift"
    return found


def keeping(path: Path | str, **drift: Any) -> DriftCheckpoints:
    """Of a sidecar that has just begun."""
    config = Config(drift=DriftConfig(path=str(path), **drift))
    pipeline = Pipeline(config)
    return DriftCheckpoints(pipeline, config.drift, FitRounds(Promotions(pipeline)))


def alarmed(keeping: DriftCheckpoints) -> DriftCheckpoints:
    """There is an alarm, and a slice."""
    family = keeping.pipeline.drift.family
    family.grow("car", K)
    family.labelled[0] = 300
    family.alarms.latched[key_of(alarm())] = Latched(alarm(), 0.0)
    return keeping


def latched(keeping: DriftCheckpoints) -> list[str]:
    return sorted(keeping.pipeline.drift.family.alarms.slices())


def written(keeping: DriftCheckpoints) -> DriftCheckpoints:
    """It begins, writes once and is gone, as if killed."""

    async def run() -> None:
        keeping.begin()
        alarmed(keeping)
        await keeping.write()

    asyncio.run(run())
    gone(keeping)
    return keeping


def gone(keeping: DriftCheckpoints) -> None:
    keeping.file.close()


def said(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def on_disk(path: Path) -> dict[str, Any]:
    """What is kept as of now; nothing where there is no file yet."""
    # As a file is replaced, there is only the one before for a moment.
    for source in (path, path.with_name(f"{path.name}.1")):
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads(read_body(source, DRIFT))
            return found
    return {}


@contextlib.asynccontextmanager
async def watching(keeping: DriftCheckpoints) -> AsyncIterator[None]:
    task = asyncio.create_task(keeping.keep_watching())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def eventually(check) -> bool:
    for _ in range(500):
        if check():
            return True
        await asyncio.sleep(0.01)
    return False


# ---- at start


def test_it_begins_where_the_last_run_ended(path):
    written(keeping(path))
    again = keeping(path)
    again.begin()
    assert latched(again) == ["car"]
    again.pipeline.drift.family.grow("car", K)
    assert again.pipeline.drift.family.labelled.tolist() == [300]


def test_slices_that_are_there_already_go_on_too(path):
    written(keeping(path))
    again = keeping(path)
    family = again.pipeline.drift.family
    family.grow("van", K)
    family.grow("car", K)
    again.begin()
    assert again.pipeline.drift.family.names == ["van", "car"]
    assert again.pipeline.drift.family.labelled.tolist() == [0, 300]


@pytest.mark.parametrize(
    ("damage", "aside"),
    [
        (lambda body: body[: len(body) // 2], "corrupt"),
        (lambda _: b"", "corrupt"),
        (lambda body: body[:8] + (9).to_bytes(4, "little") + body[12:], "incompatible"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_and_kept_aside(path, caplog, damage, aside):
    written(keeping(path))
    path.write_bytes(damage(path.read_bytes()))
    again = keeping(path)
    again.begin()
    assert latched(again) == []
    assert f"kept as kept.drift.{aside}, drift begin anew" in said(caplog)
    assert path.with_name(f"kept.drift.{aside}").exists()


@pytest.mark.parametrize(
    ("text", "aside", "sentence"),
    [
        ('{"format": "calibration-monitor/drift/9"}', "incompatible", "use the monitor that"),
        ('{"format": "calibration-monitor/drift/1"}', "corrupt", "remove it"),
    ],
)
def test_a_whole_file_with_another_text_is_said_and_kept_aside(path, caplog, text, aside, sentence):
    SnapshotFile(path, DRIFT).write([text.encode()])
    again = keeping(path)
    again.begin()
    assert latched(again) == []
    assert sentence in said(caplog)
    assert str(path) in said(caplog)
    assert path.with_name(f"kept.drift.{aside}").exists()


def test_the_generation_before_is_used_where_the_last_one_is_torn(path, caplog):
    written(keeping(path))
    written(keeping(path))
    path.write_bytes(path.read_bytes()[:-1])
    again = keeping(path)
    again.begin()
    assert latched(again) == ["car"]
    assert "the generation before is used" in said(caplog)


def test_under_another_recalibrator_a_new_epoch_begins_and_that_is_told(path, caplog):
    written(keeping(path))
    again = keeping(path)
    again.pipeline.activate(again.pipeline.recalibrators.learn(scaling(2.0, 2.0)).version)
    again.begin()
    assert latched(again) == []
    assert "car" in said(caplog)
    again.pipeline.drift.family.grow("car", K)
    assert again.pipeline.drift.family.epochs == [1]


def test_where_another_sidecar_keeps_its_own_nothing_is_read_or_written(path, caplog):
    first = keeping(path)
    first.begin()
    alarmed(first)
    second = keeping(path)
    second.begin()
    assert "another sidecar keeps its evidence and alarms" in said(caplog)
    asyncio.run(second.write())
    assert not path.exists()
    asyncio.run(second.write())
    assert (first.file.failures, second.file.failures) == (0, 2)
    assert said(caplog).count("another sidecar") == 1
    asyncio.run(first.end())
    assert len(on_disk(path)["latched"]) == 1
    third = keeping(path)
    third.begin()
    assert latched(third) == ["car"]


@pytest.mark.parametrize(("path", "watch"), [("", True), ("kept.drift", False)])
def test_without_a_path_or_a_watch_nothing_is_kept(tmp_path, monkeypatch, path, watch):
    monkeypatch.chdir(tmp_path)
    only = keeping(path, watch=watch)
    only.begin()
    asyncio.run(only.write())
    asyncio.run(only.end())
    assert list(tmp_path.iterdir()) == []


# ---- references


def test_a_reference_is_given_to_the_watch_before_any_slice_is(path, tmp_path):
    learner = ReferenceLearner(K)
    nees = np.random.default_rng(1).chisquare(K, 500)
    learner.add(nees, np.zeros(500, np.uint64), np.arange(500))
    reference = learner.learned(Origin.FILE, 10)
    file = tmp_path / "usual.json"
    file.write_text(reference_text({"car": {Stage.RAW: reference}}), encoding="utf-8")
    written(keeping(path))
    for folder in ("", path):
        only = keeping(folder, reference=str(file))
        only.begin()
        family = only.pipeline.drift.family
        family.grow("car", K)
        assert family.usual.references[0][Stage.RAW].origin is Origin.FILE
        assert family.usual.learners[0][Stage.RAW] is None
        assert family.usual.learners[0][Stage.RECALIBRATED] is not None
        gone(only)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_reference_that_cannot_be_used_stops_the_start_by_its_name(tmp_path, text):
    file = tmp_path / "usual.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match=r"\[drift\] reference = .*usual\.json"):
        keeping("", reference=str(file))


# ---- while it runs


def test_an_alarm_is_on_disk_at_once_and_so_is_another_recalibrator(path):
    only = keeping(path, every_seconds=3600)

    async def run() -> None:
        only.begin()
        async with watching(only):
            assert not path.exists()
            alarmed(only)
            only.pipeline.drift.announce(RAISED)
            assert await eventually(lambda: on_disk(path).get("latched"))
            version = only.pipeline.recalibrators.learn(scaling(2.0, 2.0)).version
            only.pipeline.activate(version)
            assert await eventually(lambda: on_disk(path)["gathered"]["selection"] == version)

    asyncio.run(run())


def test_slices_that_have_not_come_back_begin_another_epoch_with_another_recalibrator(path, caplog):
    written(keeping(path))
    again = keeping(path, every_seconds=3600)

    async def run() -> None:
        again.begin()
        recalibrators = again.pipeline.recalibrators
        async with watching(again):
            again.pipeline.activate(recalibrators.learn(scaling(2.0, 2.0)).version)
            assert await eventually(lambda: on_disk(path)["slices"][0]["epoch"] == 1)

    asyncio.run(run())
    assert latched(again) == []
    assert "car" in said(caplog)


def test_slices_that_have_not_come_back_stay_as_they_are_where_their_recalibrator_goes_on(path):
    written(keeping(path))
    again = keeping(path, every_seconds=3600)

    async def run() -> None:
        again.begin()
        pipeline = again.pipeline
        async with watching(again):
            version = pipeline.recalibrators.learn(scaling(2.0, 2.0)).version
            pipeline.activate(version, follows=True)
            # It is kept at once: after a restart an epoch would begin else.
            assert await eventually(lambda: on_disk(path)["gathered"]["selection"] == version)

    asyncio.run(run())
    assert on_disk(path)["slices"][0]["epoch"] == 0
    assert latched(again) == ["car"]


def test_all_is_written_every_so_often(path):
    only = keeping(path, every_seconds=0.1)

    async def run() -> None:
        only.begin()
        async with watching(only):
            assert await eventually(path.exists)
            alarmed(only)
            assert await eventually(lambda: on_disk(path)["latched"])

    asyncio.run(run())


def test_where_nothing_can_be_written_that_is_said_and_counted_and_tried_again(tmp_path, caplog):
    (tmp_path / "folder").touch()
    path = tmp_path / "folder" / "kept.drift"
    only = alarmed(keeping(path))

    async def run() -> None:
        only.begin()
        assert "evidence and alarms begin anew" in said(caplog)
        await only.write()
        await only.settle()
        assert only.file.failures == 2
        (tmp_path / "folder").unlink()
        (tmp_path / "folder").mkdir()
        await only.settle()
        assert only.file.failures == 2
        await only.end()

    asyncio.run(run())
    assert len(on_disk(path)["latched"]) == 1
    assert "not written" in said(caplog)


def test_a_disk_that_hangs_holds_up_neither_the_watch_nor_who_waits_for_it(path, monkeypatch):
    only = keeping(path, every_seconds=0.1)
    hanging, writing = threading.Event(), threading.Event()
    write = SnapshotFile.write
    looks: list[None] = []

    def hang(self: SnapshotFile, parts) -> int:
        writing.set()
        hanging.wait()
        return write(self, parts)

    def catch_up(self):
        looks.append(None)
        yield

    monkeypatch.setattr(SnapshotFile, "write", hang)
    monkeypatch.setattr(checkpoints, "_SETTLED", 0.05)
    monkeypatch.setattr(checkpoints, "_PERIOD", 0.01)
    monkeypatch.setattr(type(only.pipeline.drift), "catch_up", catch_up)

    async def run() -> None:
        only.begin()
        async with watching(only):
            assert await eventually(writing.is_set)
            await only.settle()
            assert not path.exists()
            seen = len(looks)
            assert await eventually(lambda: len(looks) > seen + 3)
            alarmed(only)
        hanging.set()
        await only.end()

    asyncio.run(run())
    assert len(on_disk(path)["latched"]) == 1


def test_a_fault_in_the_watch_costs_that_look_and_nothing_else(path, monkeypatch):
    only = keeping(path, every_seconds=0.1)
    looks: list[None] = []

    def catch_up(self):
        looks.append(None)
        if len(looks) == 1:
            raise RuntimeError("a fault")
        yield

    monkeypatch.setattr(checkpoints, "_PERIOD", 0.01)
    monkeypatch.setattr(type(only.pipeline.drift), "catch_up", catch_up)

    async def run() -> None:
        only.begin()
        async with watching(only):
            assert await eventually(lambda: len(looks) > 3)

    asyncio.run(run())
    assert only.pipeline.counters.internal_errors == 1
