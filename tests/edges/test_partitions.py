"""The pending store on disk: what is committed is there again, in order, until its file goes."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.store.ledger.entries import Entry, kept
from monitor.store.ledger.file import PartitionFile
from monitor.store.ledger.folder import PartitionFolder
from monitor.store.ledger.partitions import PartitionStore
from monitor.store.ledger.reader import KnownNames, PartitionReader
from tests.journalled import PLAIN, all_told, frame, gone, labels, labels_alone, store, told


@contextmanager
def opened(path, **settings):
    """A store of that folder; what it found is thrown away."""
    one = store(path, **settings)
    one.open()
    yield one
    one.close()


def find(one, path, stream, frame_id):
    reader = PartitionReader(one.folder, PLAIN)
    found = reader.find(stream, frame_id, one.partitions)
    reader.close()
    return kept(found.frame, found.labels)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pending"


# ---- what is there again


def test_entries_come_back_in_their_order_over_all_partitions(path):
    entries: list[Entry] = [
        frame(1, 5),
        frame(2, 4),
        labels(3, 1, 5),
        frame(4, 6),
        labels(5, 2, 4),
        frame(6, 4),
    ]
    with opened(path) as one:
        one.commit(entries[:4], durable=False)
        one.commit(entries[4:], durable=True)
    with opened(path) as again:
        assert all_told(again.replay(0)) == all_told(entries)
        assert all_told(again.replay(3)) == all_told(entries[3:])
        assert list(again.replay(6)) == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    st.integers(0, 40),
    st.integers(1, 7),
)
def test_any_mixture_comes_back_as_it_was_and_what_comes_twice_is_there_once(
    tmp_path_factory, kinds, after, batch
):
    path = tmp_path_factory.mktemp("store") / "pending"
    entries = [
        frame(n, number) if whole else labels_alone(n, n % 5, number)
        for n, (number, whole) in enumerate(kinds, 1)
    ]
    with opened(path) as one:
        for at in range(0, len(entries), batch):
            one.commit(entries[max(0, at - 3) : at + batch], durable=False)
        assert all_told(one.replay(after)) == all_told(entries[after:])


def test_the_latest_frames_are_named_at_start_the_newest_last(path):
    with opened(path) as one:
        one.commit([frame(n, n % 3, frame_id=2**64 - n) for n in range(1, 9)], durable=True)
    again = store(path)
    names = [(one.stream, one.frame_id, one.stamp_ns, one.partition) for one in again.open()]
    again.close()
    assert names == [("s", 2**64 - n, n * 1000, n % 3) for n in range(1, 9)]


def test_a_frame_is_found_with_its_labels_while_it_is_written_to(path):
    with opened(path) as one:
        one.commit([frame(1, 3, frame_id=7), labels(2, 7, 3), labels(3, 7, 3)], durable=False)
        found = find(one, path, "s", 7)
        assert found is not None
        assert told(found.entry) == told(frame(1, 3, frame_id=7))
        assert [entry.sequence for entry in found.labels] == [2, 3]
        assert find(one, path, "s", 8) is None
        assert find(one, path, "other", 7) is None


def test_entries_come_back_from_the_bytes_of_the_ledger(path):
    brought = frame(0, 6, frame_id=9)
    entries: list[Entry] = [frame(1, 5, size=30), labels(2, 1, 5), labels(3, 9, 6, brought=brought)]
    for _ in range(2):
        one = PartitionStore(PartitionFolder(path), 1 << 30, 1000)
        one.open()
        one.commit(entries, durable=True)
        assert all_told(one.replay(0)) == all_told(entries)
        one.close()


def test_a_frame_sent_anew_is_the_one_that_is_found_and_old_labels_are_not_of_it(path):
    with opened(path) as one:
        one.commit([frame(1, 3, frame_id=7), labels(2, 7, 3)], durable=False)
        one.commit([frame(3, 2, frame_id=7)], durable=False)
        found = find(one, path, "s", 7)
        assert found is not None
        assert (found.entry.sequence, found.entry.partition, found.labels) == (3, 2, ())
        # What was counted with the first one is done again all the same.
        assert [entry.sequence for entry in one.replay(0)] == [1, 2, 3]


def test_a_frame_that_labels_bring_is_written_where_it_is_not_there(path):
    brought = frame(0, 1, frame_id=9)
    with opened(path) as one:
        one.commit([labels(5, 9, 1, brought=brought), labels(6, 9, 1, brought=brought)], True)
        found = find(one, path, "s", 9)
        assert found is not None
        assert (found.entry.sequence, len(found.labels)) == (0, 2)
        first, second = one.replay(0)
        assert told(first.frame) == told(second.frame) == told(brought)


def test_a_frame_that_labels_bring_does_not_replace_one_that_is_there(path):
    with opened(path) as one:
        one.commit([frame(4, 1, frame_id=9)], durable=False)
        one.commit([labels(5, 9, 1, brought=frame(0, 1, frame_id=9))], durable=False)
        found = find(one, path, "s", 9)
        assert found is not None
        assert found.entry.sequence == 4
        (_, entry) = one.replay(0)
        assert entry.frame is None


def test_files_are_of_their_owner_alone(path):
    with opened(path) as one:
        one.commit([frame(1)], durable=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {"p0.sqlite", "p0.sqlite-wal", "pending.lock"} <= set(modes)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=25, deadline=None)
def test_the_partition_with_the_latest_frame_is_named_first_after_every_commit(
    tmp_path_factory, kinds
):
    with opened(tmp_path_factory.mktemp("store") / "pending") as one:
        for n, (number, whole) in enumerate(kinds, 1):
            one.commit([frame(n, number) if whole else labels_alone(n, 0, number)], durable=False)
            there = one._there.values()
            assert list(one.partitions) == sorted(there, key=lambda p: (-p.frame, -p.number))


def test_partitions_are_not_sorted_again_where_none_changes_its_place(path, monkeypatch):
    with opened(path) as one:
        one.commit([frame(1, 1), frame(2, 2)], durable=False)
        monkeypatch.setattr(PartitionStore, "_arrange", lambda _: pytest.fail("sorted"))
        one.commit([frame(3, 2), labels(4, 1, 1)], durable=False)
        assert [(p.number, p.last) for p in one.partitions] == [(2, 3), (1, 4)]
        monkeypatch.undo()


# ---- what is not written


def test_labels_whose_frame_went_are_not_written_and_the_caller_knows(path, caplog):
    with opened(path) as one:
        one.commit([frame(1, 0), frame(2, 0)], durable=True)
        one._drop(0, "budget", "for a test")
        assert one.commit([labels(3, 1, 0), frame(4, 0), labels(5, 4, 0)], durable=True) == {3}
        assert [entry.sequence for entry in one.replay(0)] == [4, 5]
    assert "entries 3 are not written" in caplog.text


def test_labels_are_not_of_a_frame_that_took_the_name_after_them(path):
    with opened(path) as one:
        assert one.commit([labels(3, 7, 0), frame(4, 0, frame_id=7)], durable=True) == {3}


def test_labels_that_go_in_the_commit_that_writes_them_are_told(path):
    with opened(path, disk_bytes=1_000_000) as one:
        one.covered = 1 << 60
        one.commit([frame(1, 1, size=30_000)], durable=True)
        assert one.commit([labels(2, 1, 1), frame(3, 2, size=70_000)], durable=True) == {2}


def test_what_was_promised_is_never_replaced_by_what_has_its_number(path):
    first: list[Entry] = [frame(1), labels(2, 1, revision=5), frame(3)]
    with opened(path) as one:
        one.commit(first, durable=True)
        assert one.commit(first, durable=True) == set()
        other = [labels(2, 3, revision=9), frame(3, frame_id=3, size=4)]
        assert one.commit(other, durable=True) == {2, 3}
        assert all_told(one.replay(0)) == all_told(first)


# ---- what is found


def test_a_later_frame_that_labels_brought_is_found_behind_partitions_without_it(path):
    with opened(path) as one:
        one.commit([frame(5, 3, frame_id=1), frame(10, 1, frame_id=9)], durable=True)
        brought = replace(frame(12, 2, frame_id=9), sequence=-12)
        one.commit([labels(20, 9, 2, brought=brought)], durable=True)
        found = find(one, path, "s", 9)
        assert found is not None
        assert found.entry.sequence == -12
    again = store(path)
    names = [(one.frame_id, one.partition) for one in again.open()]
    assert names == [(1, 3), (9, 1), (9, 2)]
    assert {p.number: p.frame for p in again.partitions} == {3: 5, 1: 10, 2: 0}
    again.close()


def test_a_name_that_is_nowhere_touches_no_file_once_the_names_are_known(path, monkeypatch):
    with opened(path) as one:
        one.commit([frame(n, n % 40) for n in range(1, 81)], durable=True)
        reader = PartitionReader(one.folder, PLAIN)
        assert reader.find("s", 999, one.partitions).frame is None
        with monkeypatch.context() as patch:
            for name in ("open", "find", "names"):
                patch.setattr(PartitionFile, name, lambda *_: pytest.fail("touched"))
            assert reader.find("s", 999, one.partitions).frame is None
            assert reader.find("other", 5, one.partitions).frame is None
        one.commit([frame(81, 3, frame_id=999), labels_alone(82, 998, 4)], durable=True)
        for number, sequence in ((999, 81), (998, 0), (5, 5)):
            found = reader.find("s", number, one.partitions).frame
            assert found is not None
            assert found.sequence == sequence
        reader.close()


def test_names_are_those_of_the_file_that_is_there_now(path):
    with opened(path) as one:
        reader = PartitionReader(one.folder, PLAIN)
        for n in range(1, 4):
            one.commit([frame(n, 0)], durable=True)
            found = [reader.find("s", name, one.partitions).frame for name in range(1, 4)]
            assert [frame is not None for frame in found] == [name == n for name in range(1, 4)]
            one._drop(0, "budget", "for a test")
        reader.close()


def test_names_beyond_what_memory_may_hold_are_looked_for_in_their_files(path):
    with opened(path) as one:
        one.commit([frame(n, n % 5) for n in range(1, 51)], durable=True)
        reader = PartitionReader(one.folder, PLAIN, KnownNames(most=15))
        assert [reader.find("s", n, one.partitions).frame is None for n in (0, 1, 50, 51)] == [
            True,
            False,
            False,
            True,
        ]
        assert reader._names._count == 20
        reader.let_go(one.partitions[:1])
        assert reader._names._count <= 10
        reader.close()


# ---- what goes


def test_the_partition_whose_last_entry_is_the_oldest_goes_over_the_budget(path):
    with opened(path, disk_bytes=700_000) as one:
        one.covered = 1 << 60
        one.commit([frame(1, 9, size=20_000)], durable=False)
        one.commit([frame(2, 3, size=20_000)], durable=False)
        one.commit([labels(3, 1, 9)], durable=False)
        assert gone(one) == []
        one.commit([frame(4, 4, size=20_000)], durable=False)
        assert gone(one) == [(3, "budget")]
        assert sorted(part.number for part in one.partitions) == [4, 9]
        assert one.bytes <= 700_000
        assert not list(path.glob("p3.*"))


def test_a_single_partition_over_the_budget_begins_anew_with_what_was_just_written(path):
    with opened(path, disk_bytes=1_000_000) as one:
        one.covered = 1 << 60
        for n in range(1, 12):
            one.commit([frame(n, 1, size=10_000)], durable=True)
            assert n in [entry.sequence for entry in one.replay(0)]
        assert (1, "budget") in gone(one)
        assert one.bytes <= 1_000_000


def test_bytes_are_those_of_the_files_with_what_is_not_in_them_yet(path):
    with opened(path) as one:
        one.commit([frame(n, n % 2, size=1000) for n in range(1, 30)], durable=False)
        assert one.bytes == sum(file.stat().st_size for file in path.glob("p*"))


def test_what_is_older_than_it_is_kept_goes_once_a_checkpoint_has_it(path):
    with opened(path, keep=2) as one:
        one.commit([frame(1, 1), frame(2, 2), frame(3, 4)], durable=False)
        one.covered = 1
        one.commit([frame(4, 5)], durable=False)
        assert gone(one) == [(1, "expired")]
        one.covered = 4
        one.commit([frame(5, 5)], durable=False)
        assert gone(one) == [(2, "expired")]


def test_one_wild_stamp_does_not_make_all_the_others_old_where_time_is_told(path):
    with opened(path, keep=2) as one:
        one.commit([frame(1, 1), frame(2, 2)], durable=False)
        one.covered, one.now = 3, 2
        one.commit([frame(3, 10**9)], durable=False)
        assert gone(one) == []


def test_what_was_set_aside_goes_first(path):
    path.mkdir()
    aside = path / "p1.sqlite.corrupt"
    aside.write_bytes(bytes(500_000))
    with opened(path, disk_bytes=600_000) as one:
        one.covered = 1 << 60
        assert one.bytes >= 500_000
        one.commit([frame(1, 2, size=20_000)], durable=False)
        assert (gone(one), aside.exists()) == ([], False)


def test_late_labels_to_many_partitions_leave_few_files_open(path):
    with opened(path) as one:
        one.commit([frame(n, n) for n in range(1, 30)], durable=False)
        one.commit([labels(30 + n, n, n) for n in range(1, 30)], durable=True)
        assert len(one._open) <= 4
        assert len(list(one.replay(0))) == 58


def test_an_entry_without_bytes_is_lost_alone(path, caplog):
    with opened(path) as one:
        assert one.commit([frame(1), frame(2, stream="\ud800"), frame(3)], durable=True) == {2}
        assert [entry.sequence for entry in one.replay(0)] == [1, 3]
    assert "entry 2 cannot be written" in caplog.text


def test_others_may_read_a_file_while_it_is_written_to(path):
    with opened(path) as one:
        one.commit([frame(1)], durable=False)
        other = sqlite3.connect(path / "p0.sqlite")
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM frames").fetchone() == (1,)
        one.commit([frame(2)], durable=True)
        other.close()


def test_what_no_checkpoint_has_stays_until_there_is_one_or_twice_the_budget_is_used(path):
    with opened(path, disk_bytes=1_000_000) as one:
        number = 0
        while one.bytes <= one.disk_bytes:
            number += 1
            one.commit([frame(number, number, size=20_000)], durable=True)
        assert one.pressed
        assert gone(one) == []
        one.covered = number - 1
        number += 1
        one.commit([frame(number, number, size=20_000)], durable=True)
        assert one.bytes <= one.disk_bytes
        assert (1, "budget") in gone(one)
        for _ in range(20):
            number += 1
            one.commit([frame(number, number, size=20_000)], durable=True)
            assert one.bytes <= 2 * one.disk_bytes
        assert gone(one)
