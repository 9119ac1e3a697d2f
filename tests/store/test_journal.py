"""The ledger on disk as a sidecar uses it: what is durable is there when it starts again."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from monitor.config import PendingConfig
from monitor.store.entries import MOST_LABEL_BYTES, Entry, bodies_of
from monitor.store.files import Claim
from monitor.store.journal import Journal
from monitor.store.ledger import LedgerWriter
from monitor.store.ledger.schema import FILE, NEVER
from tests.journalled import all_told, frame, labels, labels_alone, told

PATIENCE = 30.0  # s


class Heard(list[object]):
    """What journals of one process tell, which claims a folder once."""

    claims: ClassVar[dict[Path, Claim]] = {}

    def journal(self, path, **others):
        claim = None if path is None else self.claims.setdefault(path, Claim(path))
        return Journal(claim, PendingConfig(**others), self.append)

    def opened(self, journal):
        """What it finds; partitions that go later are told."""
        return journal.open(lambda number, reason: self.append((number, reason)))


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pending"


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:

    @functools.wraps(test)
    def run(*fixtures: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*fixtures, **named), PATIENCE))

    return run


def begin(heard, path, **others):
    journal = heard.journal(path, **others)
    heard.opened(journal)
    return journal


async def left(path) -> list[int]:
    """Sequences of what the next run finds."""
    journal = begin(Heard(), path)
    found = [entry.sequence for entry in journal.replay(0)]
    await journal.close()
    return found


@on_a_loop
async def test_what_was_noted_is_there_at_the_next_start(heard, path):
    entries: list[Entry] = [frame(1, 1), labels(2, 1, 1), frame(3, 2)]

    journal = begin(heard, path)
    assert all(journal.note(entry) for entry in entries)
    assert journal.waiting == 3
    assert await journal.durable(2) and await journal.durable(NEVER)
    assert journal.waiting == 0 < journal.bytes
    assert journal.partitions == 2
    await journal.close()
    again = begin(heard, path)
    assert heard.opened(again).sequence == 3
    assert all_told(again.replay(0)) == all_told(entries)
    assert await again.durable(3)
    await again.close()
    assert heard == []


@on_a_loop
async def test_closing_writes_what_waits(heard, path):
    journal = begin(heard, path)
    for n in range(1, 601):
        assert journal.note(frame(n, n % 2))
    await journal.close()
    assert not journal.note(frame(601))
    assert not await journal.durable(1)
    assert await journal.find("s", 1, None) is None
    await journal.close()
    assert await left(path) == list(range(1, 601))


@on_a_loop
async def test_without_a_folder_nothing_is_kept(heard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = heard.journal(None)
    assert heard.opened(journal).sequence == 0
    assert list(journal.replay(0)) == []
    assert not journal.note(frame(1))
    assert not await journal.durable(0)
    assert not await journal.durable(NEVER)
    assert await journal.find("s", 1, None) is None
    assert journal.look_up("s", 1, None) is None
    journal.covered(3)
    assert (journal.bytes, journal.waiting, journal.partitions) == (0, 0, 0)
    await journal.close()
    assert list(tmp_path.iterdir()) == []


@on_a_loop
async def test_a_frame_is_found_whether_it_is_written_or_waits(heard, path):
    journal = begin(heard, path)
    journal.note(frame(1, 3, frame_id=7))
    waiting = await journal.find("s", 7, None)
    await journal.durable(NEVER)
    written = await journal.find("s", 7, 3)
    assert waiting is not None and written is not None
    assert told(waiting.entry) == told(written.entry) == told(frame(1, 3, frame_id=7))
    journal.note(labels(2, 7, 3))
    mixed = await journal.find("s", 7, 3)
    assert mixed is not None
    assert [entry.sequence for entry in mixed.labels] == [2]
    assert await journal.find("s", 7, 4) is None
    assert await journal.find("s", 8, None) is None
    await journal.close()


@on_a_loop
async def test_damage_of_one_entry_is_told_once_and_counted(heard, path):
    journal = begin(heard, path)
    for n in range(1, 31):
        journal.note(frame(n, n % 3))
    await journal.durable(NEVER)
    with sqlite3.connect(path / FILE) as other:
        other.execute("UPDATE entries SET crc = crc + 1 WHERE sequence = 28")
    other.close()
    for _ in range(2):
        assert await journal.find("s", 28, 1) is None
        found = await journal.find("s", 29, None)
        assert found is not None
    assert (journal.refused, journal.drops) == (1, {})
    await journal.close()
    again = begin(heard, path)
    assert [entry.sequence for entry in again.replay(25)] == [26, 27, 29, 30]
    assert (again.refused, again.look_up("s", 28, None)) == (1, None)
    await again.close()
    assert ["entry 28" in str(one) for one in heard] == [True, True]


@on_a_loop
async def test_frames_are_refused_where_many_wait_and_labels_are_not(heard, path, monkeypatch):
    gate = threading.Event()
    commit = LedgerWriter.commit

    def gated(self, entries, durable):
        gate.wait(PATIENCE)
        commit(self, entries, durable)

    monkeypatch.setattr(LedgerWriter, "commit", gated)

    journal = begin(heard, path, queue_frames=10)
    taken = [journal.note(frame(n)) for n in range(1, 13)]
    assert taken == [True] * 10 + [False] * 2
    assert all(journal.note(labels(n, 1)) for n in range(13, 113))
    waiting = asyncio.create_task(journal.durable(112))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.set()
    assert await waiting
    assert journal.note(frame(113))
    await journal.close()


@on_a_loop
async def test_labels_too_are_refused_before_memory_runs_out(heard, tmp_path):
    (tmp_path / "file").touch()
    large = frame(-1, frame_id=1, size=1_000_000)
    size = bodies_of(large)[0].size

    journal = heard.journal(tmp_path / "file" / "pending")
    assert heard.opened(journal).sequence == 0
    taken = [journal.note(labels(n, n, brought=large)) for n in range(1, 10)]
    assert 0 < sum(taken) <= MOST_LABEL_BYTES / size + 1
    assert not taken[-1]
    await journal.close()


@on_a_loop
async def test_what_cannot_be_written_waits_and_is_told_once(heard, path, monkeypatch):
    journal = begin(heard, path)
    with monkeypatch.context() as patch:  # what no one thought of is a failure like others
        patch.setattr(LedgerWriter, "commit", lambda *_: 1 / 0)
        journal.note(labels_alone(1, 1))
        assert not await journal.durable(1)
    shutil.rmtree(path)
    path.touch()  # in the way of a folder
    for n in (2, 3):
        assert journal.note(labels_alone(n, n))
        assert not await journal.durable(n)
    assert (journal.failures, journal.waiting, len(heard)) == (3, 3, 2)
    path.unlink()
    assert await journal.durable(NEVER)
    assert (journal.waiting, len(heard)) == (0, 3)
    await journal.close()
    failed, gone, recovered = map(str, heard)
    assert "is gone" in gone and "not written" in failed
    assert "written again, after 3" in recovered
    assert await left(path) == [1, 2, 3]


@on_a_loop
async def test_labels_that_wait_while_their_partition_goes_are_not_durable(heard, path):
    journal = begin(heard, path)
    journal.note(frame(1, 0))
    assert await journal.durable(1)
    journal.note(labels(2, 1, 0))
    journal.note(frame(3, 1))
    journal.note(labels(4, 3, 1))
    # The writer has a thread of its own, which may be tidying.
    journal._writing.submit(journal._writer._drop, 0, "budget").result()
    # Others that waited with them are.
    both = await asyncio.gather(journal.durable(2), journal.durable(4))
    assert list(both) == [False, True]
    # Nor are they later, and nobody waits for them in vain.
    assert not await journal.durable(2)
    assert await journal.settled(2)
    assert journal.failures == 1
    await journal.close()
    assert "1 entries of the ledger are not written" in str(heard)
    assert await left(path) == [3, 4]


@on_a_loop
async def test_later_damage_costs_the_file_and_entries_without_bytes_are_lost_alone(heard, path):
    journal = begin(heard, path)
    for n in range(1, 31):
        journal.note(frame(n, n % 3, size=400))
    await journal.close()
    again = begin(heard, path)
    os.truncate(path / FILE, 10_000)
    assert await again.find("s", 28, 1) is None
    assert (again.drops, again.partitions, again.refused) == ({"corrupt": 3}, 0, 1)
    entries = [frame(31), frame(32, stream="\ud800"), labels(33, 31, stream="\ud800"), frame(34)]
    assert [again.note(entry) for entry in entries] == [True, False, False, True]
    assert [await again.durable(n) for n in range(31, 35)] == [True, False, False, True]
    await again.close()
    assert heard[2] == (2, "corrupt") and "kept as ledger.db.corrupt" in str(heard[3])
    assert await left(path) == [31, 34]


@on_a_loop
async def test_frames_reach_the_disk_whatever_others_make_of_it(path, monkeypatch, caplog):
    monkeypatch.setattr("monitor.store.journal._SYNC", 0.3)
    journal = Journal(Claim(path), PendingConfig(), Mock(side_effect=RuntimeError))
    journal.open(Mock(side_effect=RuntimeError))
    for n in range(1, 101):
        journal.note(frame(n, n % 3))
        found = await journal.find("s", n, None)
        assert found is not None and found.entry.sequence == n
    while journal._synced < 100:
        await asyncio.sleep(0.01)
    shutil.rmtree(path)
    assert journal.note(frame(101)) and await journal.durable(101)
    await journal.close()
    assert await left(path) == [101]
    assert "1 is not counted as dropped" in caplog.text and "were not told" in caplog.text
