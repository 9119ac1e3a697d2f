"""Partitions that cannot be used, folders that cannot be written: said, and nothing else goes."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from monitor.store.ledger.entries import Entry
from monitor.store.ledger.file import PartitionFile, StoreFailed
from monitor.store.ledger.reader import PartitionReader
from tests.journalled import PLAIN, all_told, flipped_in_a_body, frame, gone, labels, store

ENTRIES = [frame(n, n % 3, size=400) for n in range(1, 31)]
OTHERS = [entry for entry in ENTRIES if entry.partition != 1]


@pytest.fixture
def path(tmp_path):
    """A folder with three partitions, and nobody who writes there."""
    one = store(tmp_path / "pending")
    one.open()
    one.commit(ENTRIES, durable=True)
    one.close()
    return tmp_path / "pending"


def truncated(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def torn(file):
    file.write_bytes(file.read_bytes()[:-100])


def emptied_of_meaning(file):
    file.write_bytes(b"no database at all, but long enough to look like one" * 200)


def without_a_table(file):
    connection = sqlite3.connect(file)
    connection.execute("DROP TABLE labels")
    connection.commit()
    connection.close()


def of_another_number(file):
    shutil.copy(file.with_name("p2.sqlite"), file)


def with_another_sequence(file):
    connection = sqlite3.connect(file)
    connection.execute("UPDATE frames SET stamp_ns = 5 WHERE sequence = 4")
    connection.commit()
    connection.close()


DAMAGE = [
    truncated,
    torn,
    emptied_of_meaning,
    without_a_table,
    of_another_number,
    flipped_in_a_body,
    with_another_sequence,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_partition_is_set_aside_and_the_others_are_all_there(path, damage, caplog):
    damage(path / "p1.sqlite")
    one = store(path)
    one.open()
    assert all_told(one.replay(0)) == all_told(OTHERS)
    assert gone(one) == [(1, "corrupt")]
    assert (path / "p1.sqlite.corrupt").exists()
    assert "p1.sqlite" in caplog.text
    assert "kept as p1.sqlite.corrupt" in caplog.text
    # It begins anew.
    one.commit([frame(31, 1)], durable=True)
    assert [entry.sequence for entry in one.replay(30)] == [31]
    one.close()


def test_a_partition_of_a_later_version_is_set_aside_for_it(path, caplog):
    connection = sqlite3.connect(path / "p1.sqlite")
    connection.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    connection.commit()
    connection.close()
    one = store(path)
    one.open()
    assert gone(one) == [(1, "incompatible")]
    assert (path / "p1.sqlite.incompatible").exists()
    assert "format 99, but this monitor reads 1" in caplog.text
    assert all_told(one.replay(0)) == all_told(OTHERS)
    one.close()


def test_what_died_as_it_was_begun_is_begun_again(tmp_path):
    path = tmp_path / "pending"
    path.mkdir()
    (path / "p1.sqlite").touch()
    (path / "p2.sqlite-wal").write_bytes(b"of a file that is gone")
    one = store(path)
    one.open()
    one.commit([frame(1, 1), frame(2, 2)], durable=True)
    assert gone(one) == []
    assert [entry.sequence for entry in one.replay(0)] == [1, 2]
    one.close()


def test_damage_that_a_reader_finds_is_handed_to_the_writer(path):
    one = store(path)
    one.open()
    flipped_in_a_body(path / "p1.sqlite")
    reader = PartitionReader(one.folder, PLAIN)
    found = reader.find("s", 28, one.partitions)
    assert found.frame is None
    ((partition, error),) = found.damaged
    one.refuse_found(partition, error)
    one.refuse_found(partition, error)
    assert gone(one) == [(1, "corrupt")]
    assert reader.find("s", 28, one.partitions).damaged == ()
    reader.close()
    one.close()


def test_damage_that_the_writer_finds_costs_what_was_there_and_not_what_comes(path, monkeypatch):
    one = store(path)
    one.open()
    emptied_of_meaning(path / "p1.sqlite")
    one.commit([frame(31, 1), frame(32, 2)], durable=True)
    assert gone(one) == [(1, "corrupt")]
    assert [entry.sequence for entry in one.replay(30)] == [31, 32]
    one.close()


# ---- what cannot be read now


def failing(monkeypatch, number, times=1, after=0):
    """Opening that partition fails so many times, after so many that it does not."""
    real, calls = PartitionFile.open, iter(range(1000))

    def limited(path, opened, create=False):
        if opened == number and after <= next(calls) < after + times:
            raise StoreFailed("failed", f"{path}: too many open files.")
        return real(path, opened, create)

    monkeypatch.setattr(PartitionFile, "open", staticmethod(limited))


@pytest.mark.parametrize("after", [0, 1])
def test_a_partition_that_cannot_be_read_while_entries_are_replayed_stays(path, monkeypatch, after):
    one = store(path)
    one.open()
    failing(monkeypatch, 1, after=after)
    assert all_told(one.replay(0)) == all_told(OTHERS)
    assert (gone(one), one.unread, one.uncertain) == ([], {1}, False)
    assert all_told(one.replay(0)) == all_told(ENTRIES)
    one.close()


def test_a_partition_that_cannot_be_opened_at_start_is_known_as_it_is_once_it_can(
    path, monkeypatch, caplog
):
    failing(monkeypatch, 1)
    one = store(path)
    one.open()
    assert (gone(one), one.unread, one.uncertain) == ([], {1}, True)
    assert "It is left where it is" in caplog.text
    one.commit([frame(2**32, 1)], durable=True)
    assert all_told(one.replay(0)) == all_told([*ENTRIES, frame(2**32, 1)])
    one.close()


def test_where_a_partition_was_set_aside_at_start_numbers_may_be_taken(path):
    emptied_of_meaning(path / "p1.sqlite")
    one = store(path)
    one.open()
    assert one.uncertain
    one.close()
    one = store(path)
    one.open()
    assert not one.uncertain
    one.close()


def test_labels_of_all_ages_are_replayed_with_few_files_open(tmp_path, monkeypatch):
    one = store(tmp_path / "pending")
    one.open()
    count = 40
    entries: list[Entry] = [frame(n, n) for n in range(1, count + 1)]
    entries += [labels(count + n, n, n) for n in range(1, count + 1)]
    one.commit(entries, durable=True)
    one.close()
    is_open, most = set(), []
    real, close = PartitionFile.open, PartitionFile.close

    def counted(path, number, create=False):
        file = real(path, number, create)
        is_open.add(number)
        most.append(len(is_open))
        return file

    def closed(self):
        is_open.discard(self.number)
        close(self)

    monkeypatch.setattr(PartitionFile, "open", staticmethod(counted))
    monkeypatch.setattr(PartitionFile, "close", closed)
    one = store(tmp_path / "pending")
    one.open()
    assert all_told(one.replay(0)) == all_told(entries)
    assert max(most) <= 9
    assert not is_open
    one.close()


# ---- folders


def test_where_the_folder_cannot_be_a_commit_fails_and_works_once_it_can(tmp_path):
    (tmp_path / "file").touch()
    one = store(tmp_path / "file" / "pending")
    with pytest.raises(StoreFailed, match="cannot be written"):
        one.open()
    with pytest.raises(StoreFailed, match="cannot be written"):
        one.commit([frame(1)], durable=True)
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    one.commit([frame(1)], durable=True)
    assert [entry.sequence for entry in one.replay(0)] == [1]
    one.close()


def test_a_link_in_place_of_a_partition_is_not_followed(tmp_path):
    path = tmp_path / "pending"
    path.mkdir()
    (tmp_path / "elsewhere").write_bytes(b"")
    (path / "p0.sqlite").symlink_to(tmp_path / "elsewhere")
    one = store(path)
    one.open()
    with pytest.raises(StoreFailed):
        one.commit([frame(1)], durable=True)
    assert (tmp_path / "elsewhere").read_bytes() == b""
    one.close()


def test_a_folder_that_is_removed_is_made_again_and_what_was_there_is_told(path):
    one = store(path)
    one.open()
    one.commit([frame(31, 2)], durable=False)
    shutil.rmtree(path)
    one.commit([frame(32, 2)], durable=True)
    assert sorted(gone(one)) == [(0, "vanished"), (1, "vanished"), (2, "vanished")]
    assert [entry.sequence for entry in one.replay(0)] == [32]
    second = store(path)
    with pytest.raises(StoreFailed, match="another sidecar") as taken:
        second.open()
    assert taken.value.reason == "taken"
    one.close()


def test_a_file_that_is_removed_is_begun_again(path):
    one = store(path)
    one.open()
    one.commit([frame(31, 2)], durable=False)
    (path / "p2.sqlite").unlink()
    assert one.commit([labels(32, 29, 2), frame(33, 2)], durable=True) == {32}
    assert gone(one) == [(2, "vanished")]
    assert [entry.sequence for entry in one.replay(30)] == [33]
    one.close()


def test_where_the_folder_is_gone_with_the_one_above_it_a_commit_fails(path):
    one = store(path)
    one.open()
    shutil.rmtree(path.parent)
    with pytest.raises(StoreFailed, match="cannot be written"):
        one.commit([frame(31, 2)], durable=True)
    path.parent.mkdir()
    one.commit([frame(31, 2)], durable=True)
    assert [entry.sequence for entry in one.replay(0)] == [31]
    one.close()


# ---- a full disk


@pytest.fixture
def full(monkeypatch):
    """Files that have no room for more than a few pages, once its first element is set."""
    limit = [False]
    write = PartitionFile.write

    def limited(self, changes, durable):
        pages = 30 if limit[0] else 1 << 30
        self._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        return write(self, changes, durable)

    monkeypatch.setattr(PartitionFile, "write", limited)
    return limit


def test_on_a_full_disk_the_oldest_partition_goes_and_it_is_tried_again(path, full):
    one = store(path)
    one.open()
    one.covered = 30
    full[0] = True
    many = [frame(n, 2, size=3000) for n in range(31, 61)]
    with pytest.raises(StoreFailed, match="full") as failed:
        one.commit(many, durable=True)
    assert failed.value.reason == "full"
    assert gone(one) == [(1, "budget")]
    # All of it or nothing.
    assert [entry.sequence for entry in one.replay(30)] == []
    full[0] = False
    one.commit(many, durable=True)
    assert [entry.sequence for entry in one.replay(30)] == list(range(31, 61))
    assert all_told(one.replay(0)) == all_told([e for e in ENTRIES if e.partition != 1] + many)
    one.close()


def test_on_a_full_disk_what_no_checkpoint_has_stays(path, full):
    one = store(path)
    one.open()
    full[0] = True
    with pytest.raises(StoreFailed, match="full"):
        one.commit([frame(n, 2, size=3000) for n in range(31, 61)], durable=True)
    assert gone(one) == []
    assert all_told(one.replay(0)) == all_told(ENTRIES)
    one.close()


def test_a_full_disk_that_has_room_again_by_what_goes_takes_all_of_it(path, monkeypatch):
    one = store(path)
    one.open()
    one.covered = 30
    write, failures = PartitionFile.write, iter([StoreFailed("full", "no room")])

    def once(self, changes, durable):
        for failure in failures:
            raise failure
        return write(self, changes, durable)

    monkeypatch.setattr(PartitionFile, "write", once)
    one.commit([frame(31, 1)], durable=True)
    assert gone(one) == [(2, "budget")]
    assert [entry.sequence for entry in one.replay(30)] == [31]
    one.close()
