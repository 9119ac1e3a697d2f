"""The ledger on disk as a sidecar uses it: what is durable is there when it starts again."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from monitor.store import journal as journals
from monitor.store.entries import Entry, bodies_of
from monitor.store.files import Claim
from monitor.store.journal import MOST_LABEL_BYTES, Journal
from monitor.store.ledger import FILE, NEVER, LedgerWriter
from tests.journalled import (
    all_told,
    frame,
    labels,
    labels_alone,
    settings,
    told,
)

PATIENCE = 30.0  # s


class Heard(list[object]):
    """What journals of one process tell, which claims a folder once."""

    claims: ClassVar[dict[Path, Claim]] = {}

    def journal(self, path, **others):
        claim = None if path is None else self.claims.setdefault(path, Claim(path))
        return Journal(claim, settings(**others), self.append)

    def opened(self, journal):
        """What it finds; partitions that go later are told."""
        return journal.open(lambda number, reason: self.append((number, reason)))


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pending"


def run(work):
    """Do it on a loop, within patience."""
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def begin(heard, path, **others):
    """A journal that has been opened."""
    journal = heard.journal(path, **others)
    heard.opened(journal)
    return journal


def left(path):
    """What the next run finds."""

    async def entries():
        journal = begin(Heard(), path)
        found = list(journal.replay(0))
        await journal.close()
        return found

    return asyncio.run(entries())


# ---- what is durable


def test_what_was_noted_is_there_at_the_next_start(heard, path):
    entries: list[Entry] = [frame(1, 1), labels(2, 1, 1), frame(3, 2)]

    async def work():
        journal = begin(heard, path)
        assert all(journal.note(entry) for entry in entries)
        assert journal.waiting == 3
        assert await journal.durable(2)
        assert await journal.durable(NEVER)
        assert journal.waiting == 0
        assert journal.bytes > 0
        assert journal.partitions == 2
        await journal.close()
        again = begin(heard, path)
        assert heard.opened(again).sequence == 3
        assert all_told(again.replay(0)) == all_told(entries)
        assert await again.durable(3)
        await again.close()

    run(work())
    assert heard == []


def test_closing_writes_what_waits(heard, path):
    async def work():
        journal = begin(heard, path)
        for n in range(1, 601):
            assert journal.note(frame(n, n % 2))
        await journal.close()
        assert not journal.note(frame(601))
        assert not await journal.durable(1)
        assert await journal.find("s", 1, None) is None
        await journal.close()

    run(work())
    assert [entry.sequence for entry in left(path)] == list(range(1, 601))


def test_frames_reach_the_disk_though_nobody_waits(heard, path):
    async def work():
        journal = begin(heard, path)
        journal.note(frame(1))
        while journal.waiting:
            await asyncio.sleep(0.01)
        assert journal.bytes > 0
        await journal.close()

    run(work())


def test_those_who_wait_at_once_share_one_commit(heard, path, monkeypatch):
    commits = []
    commit = LedgerWriter.commit

    def counted(self, entries, durable):
        commits.append((len(entries), durable))
        commit(self, entries, durable)

    monkeypatch.setattr(LedgerWriter, "commit", counted)

    async def work():
        journal = begin(heard, path)
        for n in range(1, 21):
            journal.note(labels(n, n))
        assert all(await asyncio.gather(*(journal.durable(n) for n in range(1, 21))))
        await journal.close()

    run(work())
    assert commits == [(20, True)]


def test_without_a_folder_nothing_is_kept(heard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def work():
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
        assert journal.partitions == 0
        await journal.close()

    run(work())
    assert list(tmp_path.iterdir()) == []


# ---- what is found again


def test_a_frame_is_found_whether_it_is_written_or_waits(heard, path):
    async def work():
        journal = begin(heard, path)
        journal.note(frame(1, 3, frame_id=7))
        waiting = await journal.find("s", 7, None)
        await journal.durable(NEVER)
        written = await journal.find("s", 7, 3)
        assert waiting is not None
        assert written is not None
        assert told(waiting.entry) == told(written.entry) == told(frame(1, 3, frame_id=7))
        journal.note(labels(2, 7, 3))
        mixed = await journal.find("s", 7, 3)
        assert mixed is not None
        assert [entry.sequence for entry in mixed.labels] == [2]
        assert await journal.find("s", 7, 4) is None
        assert await journal.find("s", 8, None) is None
        await journal.close()

    run(work())


def test_a_frame_is_found_at_start_as_it_was_before_an_entry(heard, path):
    entries = [frame(1, 3, 7), labels(2, 7, 3), labels(3, 7, 3), frame(4, 3, 7)]

    async def work():
        journal = begin(heard, path)
        for entry in entries:
            journal.note(entry)
        await journal.close()
        again = begin(heard, path)
        found = again.look_up("s", 7, 3, before=3)
        assert found is not None
        assert (found.entry.sequence, [one.sequence for one in found.labels]) == (1, [2])
        latest = again.look_up("s", 7, None)
        assert latest is not None
        assert (latest.entry.sequence, latest.labels) == (4, ())
        await again.close()

    run(work())


def test_a_frame_is_found_while_many_others_are_written(heard, path):
    async def work():
        journal = begin(heard, path)
        for n in range(1, 301):
            journal.note(frame(n, n % 3))
            if n % 10 == 0:
                found = await journal.find("s", n, None)
                assert found is not None
                assert found.entry.sequence == n
            if n % 3 == 0:
                await asyncio.sleep(0)
        await journal.close()

    run(work())


def test_damage_of_one_entry_is_told_once_and_counted(heard, path):
    async def work():
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

    run(work())
    assert ["entry 28" in str(one) for one in heard] == [True, True]


def test_damage_of_the_file_that_is_found_later_costs_it_and_is_told(heard, path):
    async def work():
        journal = begin(heard, path)
        for n in range(1, 31):
            journal.note(frame(n, n % 3, size=400))
        await journal.close()
        again = begin(heard, path)
        os.truncate(path / FILE, 30_000)
        assert await again.find("s", 28, 1) is None
        assert (again.drops, again.partitions, again.refused) == ({"corrupt": 3}, 0, 1)
        assert again.note(frame(31, 1))
        assert await again.durable(31)
        assert await again.find("s", 31, 1) is not None
        await again.close()

    run(work())
    assert heard[:3] == [(0, "corrupt"), (1, "corrupt"), (2, "corrupt")]
    assert "kept as ledger.db.corrupt" in str(heard[3])
    assert len(heard) == 4


def test_a_file_damaged_at_start_is_told_and_what_was_in_it_is_unknown(heard, path):
    async def work():
        journal = begin(heard, path)
        journal.note(frame(1, 1))
        await journal.close()
        (path / FILE).write_bytes(b"a note to myself, of some length" * 100)
        again = heard.journal(path)
        opened = heard.opened(again)
        assert (opened.unknown, opened.partitions, again.refused) == ("corrupt", set(), 1)
        assert list(again.replay(0)) == []
        await again.close()

    run(work())
    assert len(heard) == 1


# ---- bounds


def test_frames_are_refused_where_many_wait_and_labels_are_not(heard, path, monkeypatch):
    gate = threading.Event()
    commit = LedgerWriter.commit

    def gated(self, entries, durable):
        gate.wait(PATIENCE)
        commit(self, entries, durable)

    monkeypatch.setattr(LedgerWriter, "commit", gated)

    async def work():
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

    run(work())


def test_labels_too_are_refused_before_memory_runs_out(heard, tmp_path):
    (tmp_path / "file").touch()
    large = frame(-1, frame_id=1, size=1_000_000)
    size = len(bodies_of(large)[0][2])

    async def work():
        journal = heard.journal(tmp_path / "file" / "pending")
        assert heard.opened(journal).sequence == 0
        taken = [journal.note(labels(n, n, brought=large)) for n in range(1, 10)]
        assert 0 < sum(taken) <= MOST_LABEL_BYTES / size + 1
        assert not taken[-1]
        await journal.close()

    run(work())


def test_what_is_over_the_budget_goes_and_is_told_and_so_do_its_bytes(heard, path):
    async def work():
        journal = begin(heard, path, disk_bytes=2_000_000)
        journal.covered(NEVER)
        for n in range(1, 13):
            journal.note(frame(n, n, size=10_000))
            await journal.durable(NEVER)
        assert journal.drops["budget"] == len(heard) == 12 - journal.partitions
        while journal.bytes > 2_600_000:
            await asyncio.sleep(0.01)
        await journal.close()

    run(work())
    assert heard[:2] == [(1, "budget"), (2, "budget")]


def test_partitions_expire_by_event_time(heard, path):
    async def work():
        journal = begin(heard, path, keep_hours=1, partition_minutes=30)
        for n in range(1, 6):
            journal.note(frame(n, n))
        await journal.durable(NEVER)
        assert heard == []
        journal.covered(5, 5)
        journal.note(frame(6, 5))
        await journal.durable(NEVER)
        await journal.close()

    run(work())
    assert heard == [(1, "expired"), (2, "expired")]


# ---- trouble


def test_what_cannot_be_written_waits_and_is_told_once_and_so_is_that_it_can_be_again(
    heard, path, tmp_path
):
    async def work():
        journal = begin(heard, path)
        shutil.rmtree(path)
        path.touch()  # in the way of a folder
        for n in range(1, 4):
            assert journal.note(labels_alone(n, n))
            assert not await journal.durable(n)
        assert journal.failures == 3
        assert journal.waiting == 3
        assert len(heard) == 2
        path.unlink()
        assert await journal.durable(NEVER)
        assert (journal.waiting, len(heard)) == (0, 3)
        await journal.close()

    run(work())
    failed, gone, recovered = map(str, heard)
    assert "is gone" in gone
    assert "not written" in failed
    assert "written again, after 3" in recovered
    assert [entry.sequence for entry in left(path)] == [1, 2, 3]


def test_a_folder_that_never_could_be_written_is_taken_when_it_can_be(heard, tmp_path, caplog):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "pending"

    async def work():
        journal = heard.journal(path)
        assert heard.opened(journal).sequence == 0
        assert "Is the folder there" in caplog.text
        assert journal.note(labels_alone(1, 1))
        assert not await journal.durable(NEVER)
        (tmp_path / "file").unlink()
        (tmp_path / "file").mkdir()
        assert await journal.durable(NEVER)
        await journal.close()

    run(work())
    assert [entry.sequence for entry in left(path)] == [1]


def test_a_folder_removed_while_it_runs_is_made_again(heard, path):
    async def work():
        journal = begin(heard, path)
        journal.note(frame(1, 1))
        assert await journal.durable(NEVER)
        shutil.rmtree(path)
        journal.note(frame(2, 1))
        assert await journal.durable(NEVER)
        await journal.close()

    run(work())
    assert heard[0] == (1, "vanished")
    assert "somebody has removed it" in str(heard[1])
    assert [entry.sequence for entry in left(path)] == [2]


def test_nothing_that_others_make_of_it_ends_the_writing(path):
    def fails(*_):
        raise RuntimeError("nobody thought of that")

    async def work():
        journal = Journal(Claim(path), settings(), fails)
        journal.open(fails)
        journal.note(frame(1, 1))
        assert await journal.durable(NEVER)
        shutil.rmtree(path)
        journal.note(frame(2, 1))
        assert await journal.durable(NEVER)
        await journal.close()

    run(work())


def test_what_no_one_thought_of_is_a_failure_like_others(heard, path, monkeypatch):
    async def work():
        journal = begin(heard, path)
        with monkeypatch.context() as patch:
            patch.setattr(LedgerWriter, "commit", lambda *_: 1 / 0)
            journal.note(labels_alone(1, 1))
            assert not await journal.durable(1)
        assert await journal.durable(1)
        await journal.close()

    run(work())
    assert len(heard) == 2


def test_a_frame_without_bytes_is_lost_alone(heard, path, caplog):
    async def work():
        journal = begin(heard, path)
        entries = [frame(1), frame(2, stream="\ud800"), frame(3)]
        assert [journal.note(entry) for entry in entries] == [True, False, True]
        assert [await journal.durable(n) for n in (1, 2, 3)] == [True, False, True]
        assert journal.failures == 1
        await journal.close()

    run(work())
    assert [entry.sequence for entry in left(path)] == [1, 3]
    assert "entry 2 cannot be written" in caplog.text


def test_labels_without_bytes_are_not_durable_and_stop_nothing(heard, path):
    async def work():
        journal = begin(heard, path)
        journal.note(labels(1, 1, stream="\ud800"))
        assert not await journal.durable(1)
        journal.note(labels_alone(2, 1))
        assert await journal.durable(2)
        await journal.close()

    run(work())
    assert [entry.sequence for entry in left(path)] == [2]


# ---- what goes while labels wait


def test_labels_that_wait_while_their_partition_goes_are_not_durable(heard, path):
    async def work():
        journal = begin(heard, path)
        journal.note(frame(1, 0))
        assert await journal.durable(1)
        journal.note(labels(2, 1, 0))
        journal.note(frame(3, 1))
        journal.note(labels(4, 3, 1))
        journal._writer._drop(0, "budget")
        # Others that waited with them are.
        both = await asyncio.gather(journal.durable(2), journal.durable(4))
        assert list(both) == [False, True]
        # Nor are they later, and nobody waits for them in vain.
        assert not await journal.durable(2)
        assert await journal.settled(2)
        assert journal.failures == 1
        await journal.close()

    run(work())
    assert "1 entries of the ledger are not written" in str(heard)
    assert [entry.sequence for entry in left(path)] == [3, 4]


# ---- when


def test_frames_that_were_written_wait_for_their_sync_no_longer_than_is_promised(path, monkeypatch):
    waits: list[float | None] = []

    async def noticed(_event, seconds):
        waits.append(seconds)

    monkeypatch.setattr(journals, "set_within", noticed)
    monkeypatch.setattr(journals, "time", SimpleNamespace(monotonic=lambda: 104.0))

    async def work():
        journal = Journal(Claim(path), settings(), list[object]().append)
        for since in (None, 100.0, 90.0):
            journal._unsynced_since = since
            await journal._due()
        await journal.close()

    run(work())
    assert waits[::3] == [None, 1.0, 0.0]
