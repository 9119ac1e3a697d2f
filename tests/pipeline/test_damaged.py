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
from monitor.store.ledger import GonePartition, Opened
from monitor.store.ledger.schema import NEVER
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
    """What the ledger can bring back: not what is predicted of detections without labels."""
    return replace(finished(sidecar.pipeline.live.state_in_steps()), predicted=())


async def end(sidecar: Sidecar) -> None:
    await sidecar.checkpoints.end()
    await sidecar.journal.close()
    assert sidecar.claim is not None
    sidecar.claim.release()


@dataclass(frozen=True)
class Left:
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
        first: list[Came | Message] = [*FRAMES[:3], *TOLD[:2]]
        for move in first:
            await moved(sidecar, move)
        await sidecar.checkpoints.write()
        second: list[Came | Message] = [FRAMES[3], *TOLD[2:], REVISED]
        for move in second:
            await moved(sidecar, move)
        assert await sidecar.journal.durable(NEVER)
        await end(sidecar)
        pipeline = sidecar.pipeline
        waiting = dict(+pipeline.ledger.fates.waiting)
        return Left(folder, statistics(sidecar), detections_of(pipeline), waiting)

    return asyncio.run(live())


@pytest.fixture
def left(written: Left, tmp_path: Path) -> Left:
    """A copy of it, to be damaged."""
    folder = tmp_path / "state"
    shutil.copytree(written.folder, folder)
    return replace(written, folder=folder)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def changed(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    return change


LATER = changed("PRAGMA user_version = 99")
LAST = "(SELECT max(sequence) FROM entries WHERE kind = 3)"
LAST_DAMAGED = changed(f"UPDATE entries SET crc = crc + 1 WHERE sequence = {LAST}")
Damages = dict[str, Callable[[Path], None]]


@pytest.mark.parametrize(
    ("damages", "refused", "said"),
    [
        ({"state.db": LATER}, (1, 0), "state.db.incompatible."),
        # Without any checkpoint, the statistics are those of the whole ledger.
        ({"state.db": cut, "state.db.1": cut}, (2, 0), "all begins anew"),
        # Of a ledger that cannot be used, what waited is lost.
        ({"ledger.db": cut}, (0, 1), "ledger.db.corrupt."),
        ({"ledger.db": Path.unlink}, (0, 2), "is not there (vanished)"),
        # A revision that is damaged costs itself alone, and comes anew.
        (
            {"state.db": Path.unlink, "state.db.1": Path.unlink, "ledger.db": LAST_DAMAGED},
            *((0, 1), "is left out: it is not as it was written"),
        ),
    ],
)
def test_a_sidecar_that_starts_on_damaged_files_says_so_and_goes_on_with_all_else(
    left, caplog, damages: Damages, refused, said
):
    for name, damage in damages.items():
        damage(left.folder / name)
    told_again = damages.get("ledger.db") is LAST_DAMAGED
    lost = sum(left.waiting.values()) if "ledger.db" in damages and not told_again else 0

    async def go_on() -> Sidecar:
        sidecar = sidecar_of(left.folder)
        assert (sidecar.checkpoints.refused, sidecar.journal.refused) == refused
        answers = [await moved(sidecar, told) for told in (*TOLD, REVISED)]
        counts = [account_of(one.account) for one in answers if one is not None]
        assert sum(one.get("matched", 0) for one in counts) == 2 * told_again
        assert_same_state(statistics(sidecar), left.statistics)
        await moved(sidecar, Came("lidar", 99, 20))
        assert await sidecar.journal.durable(NEVER)
        await end(sidecar)
        assert sidecar.checkpoints.failures == 0 == sidecar.pipeline.counters.internal_errors
        return sidecar

    sidecar = asyncio.run(go_on())
    fates = sidecar.pipeline.ledger.fates
    assert fateless(fates) == fates.pending
    expected = left.detections["waiting"] + 3 - lost
    assert (fates.pending, fates.account["dropped_corrupt"]) == (expected, lost)
    assert detections_of(sidecar.pipeline)["predicted"] == left.detections["predicted"] + 3
    assert said in caplog.text
    assert caplog.text.count("is not there (") == (len(left.waiting) if lost else 0)
    # And the next one goes on where it ended.
    assert_same_state(statistics(sidecar_of(left.folder)), statistics(sidecar))


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
