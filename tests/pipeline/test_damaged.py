"""A sidecar that starts on damaged files: each is refused with a reason, what is left of it counts
once, and new frames are answered. All in this process, on a real folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from monitor.config import Config
from monitor.frames.frame import TruthAnswer
from monitor.pipeline.restart import begin_ledger
from monitor.pipeline.truth import Search
from monitor.sidecar import Sidecar
from monitor.statistics.observations import finished
from monitor.store.ledger import NEVER, GonePartition, Opened
from tests.ledger_oracle import HEADERS, Came, Message, Named, detections_of
from tests.piped import account_of, fateless, opened, pipeline_of
from tests.states import assert_same_state

# Frames in three partitions; the second half of the labels comes after the first checkpoint.
FRAMES = [Came("lidar", number, 4 * number, n=3, refused=1) for number in range(1, 5)]
TOLD = [Message("lidar", number, (Named(0), Named(1, "ignore"))) for number in range(1, 5)]
REVISED = Message("lidar", 2, (Named(0), Named(2)), revision=1, complete=True)


def sidecar_of(folder: Path) -> Sidecar:
    """One that has gone on from what is in a folder."""
    pending = {"partition_minutes": 0.1}
    state = {"folder": str(folder), "every_seconds": 60.0}
    config = {"state": state, "pending": pending, "tracker": {"kind": "none"}}
    sidecar = Sidecar(Config.model_validate(config))
    sidecar._resume()
    return sidecar


async def moved(sidecar: Sidecar, move: Came | Message) -> TruthAnswer | None:
    """What becomes of labels."""
    pipeline, journal = sidecar.pipeline, sidecar.journal
    if isinstance(move, Came):
        pipeline.process(opened(pipeline, HEADERS[move.stream]), move.received())
        return None
    labels = move.received()
    answer = pipeline.ledger.report(labels)
    if isinstance(answer, Search):
        found = await journal.find(answer.stream, answer.frame_id, answer.partition)
        answer = pipeline.ledger.report(labels, found) if found else pipeline.ledger.in_vain(labels)
    assert isinstance(answer, TruthAnswer)
    return answer


def statistics(sidecar: Sidecar) -> Any:
    return finished(sidecar.pipeline.live.state_in_steps())


async def end(sidecar: Sidecar) -> None:
    await sidecar.checkpoints.end()
    await sidecar.journal.close()
    assert sidecar.claim is not None
    sidecar.claim.release()


@dataclass(frozen=True)
class Left:
    """What a sidecar left that ended in order."""

    folder: Path
    statistics: Any
    detections: dict[str, int]
    waiting: dict[int, int]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Left:
    """Two generations, and all of the ledger."""
    folder = tmp_path_factory.mktemp("left") / "state"

    async def live() -> Left:
        sidecar = sidecar_of(folder)
        for move in (*FRAMES[:3], *TOLD[:2]):
            await moved(sidecar, move)
        await sidecar.checkpoints.write()
        for move in (FRAMES[3], *TOLD[2:], REVISED):
            await moved(sidecar, move)
        assert await sidecar.journal.durable(NEVER)
        await end(sidecar)
        pipeline = sidecar.pipeline
        waiting = dict(+pipeline.ledger.fates.waiting)
        return Left(folder, statistics(sidecar), detections_of(pipeline), waiting)

    return asyncio.run(live())


@pytest.fixture
def left(written, tmp_path) -> Left:
    """A copy of it, to be damaged."""
    folder = tmp_path / "state"
    shutil.copytree(written.folder, folder)
    return replace(written, folder=folder)


def started(left: Left, refused: int, ledger_refused: int, *, new: int = 0) -> Sidecar:
    """Starts on what is left: the statistics are what they were, and new frames are answered.

    new  labels of before that count again
    """

    async def go_on() -> Sidecar:
        sidecar = sidecar_of(left.folder)
        assert (sidecar.checkpoints.refused, sidecar.journal.refused) == (refused, ledger_refused)
        account = sidecar.pipeline.ledger.fates
        assert fateless(account) == account.pending
        answers = [await moved(sidecar, told) for told in (*TOLD, REVISED)]
        counts = [account_of(one.account) for one in answers if one is not None]
        assert sum(one.get("matched", 0) for one in counts) == new
        assert_same_state(statistics(sidecar), left.statistics)
        await moved(sidecar, Came("lidar", 99, 20))
        assert detections_of(sidecar.pipeline)["predicted"] == left.detections["predicted"] + 3
        assert await sidecar.journal.durable(NEVER)
        await end(sidecar)
        assert sidecar.checkpoints.failures == 0 == sidecar.pipeline.counters.internal_errors
        return sidecar

    return asyncio.run(go_on())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def changed(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    return change


LATER = changed("PRAGMA user_version = 99")


@pytest.mark.parametrize(("damage", "suffix"), [(cut, "corrupt"), (LATER, "incompatible")])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_goes_on_with_the_ledger(
    left, damage, suffix, caplog
):
    damage(left.folder / "state.db")
    sidecar = started(left, 1, 0)
    assert f"kept as state.db.{suffix}" in caplog.text
    assert "generation before is used" in caplog.text
    assert_same_state(statistics(sidecar_of(left.folder)), statistics(sidecar))


def test_without_any_checkpoint_the_statistics_are_those_of_the_whole_ledger(left, caplog):
    for name in ("state.db", "state.db.1"):
        cut(left.folder / name)
    started(left, 2, 0)
    assert "begins anew" in caplog.text


@pytest.mark.parametrize(
    ("damage", "suffix"), [(cut, "corrupt"), (LATER, "incompatible"), (Path.unlink, "")]
)
def test_of_a_ledger_that_cannot_be_used_what_waited_is_lost_and_the_rest_goes_on(
    left, damage, suffix, caplog
):
    damage(left.folder / "ledger.db")
    lost = sum(left.waiting.values())
    sidecar = started(left, 0, 1 if suffix else len(left.waiting))
    assert caplog.text.count("is not there (") == len(left.waiting) > 1
    assert sidecar.journal.drops == {suffix or "vanished": len(left.waiting)}
    found = detections_of(sidecar.pipeline)
    assert (found["dropped_corrupt"], found["waiting"]) == (lost, 3)
    if suffix:
        assert f"kept as ledger.db.{suffix}" in caplog.text


def test_a_damaged_entry_costs_itself_alone_when_it_is_done_again(left, caplog):
    for name in ("state.db", "state.db.1"):
        (left.folder / name).unlink()
    latest = "(SELECT max(sequence) FROM entries WHERE kind = 3)"
    changed(f"UPDATE entries SET crc = crc + 1 WHERE sequence = {latest}")(
        left.folder / "ledger.db"
    )
    # The revision was lost: it comes anew.
    started(left, 0, 1, new=2)
    assert "is left out: it is not as it was written" in caplog.text


# ---- what waited in a partition that is not there any more


def test_partitions_that_went_since_the_checkpoint_are_dropped_for_the_reason_they_went(caplog):
    pipeline = pipeline_of()
    ledger = pipeline.ledger
    ledger.sequence = 10
    ledger.fates.waiting.update({1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 32})
    ledger.fates.account["predicted"] = 63
    gone = {
        2: GonePartition(2, "expired", 10),
        3: GonePartition(3, "budget", 12),
        4: GonePartition(4, "budget", 9),  # it was begun anew before the checkpoint
        5: GonePartition(5, "budget", 10),  # and this one after it
    }
    frames = (("s", 7, 5, 1),)
    begin_ledger(
        ledger, ledger.journal, Opened(12, frames, frozenset((1, 4, 5)), gone, "incompatible")
    )
    assert ledger.journal.drops == {"expired": 1, "budget": 2, "incompatible": 1}
    assert +ledger.fates.waiting == {1: 1, 4: 8}
    account = ledger.fates.account
    assert (account["unlabelled"], account["dropped_budget"], account["dropped_corrupt"]) == (
        *(2, 4 + 16),
        32,
    )
    assert fateless(ledger.fates) == ledger.fates.pending == 9
    assert ledger.sequence == 12
    assert ledger.fates.store.knows(("s", 7), 5)
    assert "partition 3 is not there (budget): what waited in it, 4 detections" in caplog.text
