"""The ledger's file: what is committed is there again, in order, until it is to go, or damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.store.entries import Entry, Key, LabelEntry, size_of
from monitor.store.files import LedgerFailed, UnusableFile
from monitor.store.journal import LedgerReader
from monitor.store.ledger import LedgerWriter
from monitor.store.ledger.frame_files import folder_of, read_part
from monitor.store.ledger.schema import FILE, NEVER
from monitor.store.previous import PreviousPaths, take_over
from tests.journalled import (
    all_told,
    commit,
    found,
    frame,
    gone,
    labels,
    labels_alone,
    replayed,
    tidied,
    told,
    writer,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pending"


@contextlib.contextmanager
def opened(path: Path, **others: int) -> Iterator[LedgerWriter]:
    one = writer(path, **others)
    yield one
    one.disconnect()


def sequences(path: Path, after: int = 0) -> list[int]:
    return [entry.sequence for entry in replayed(path, after)]


@given(
    st.lists(st.tuples(st.integers(-2, 3), st.booleans()), max_size=40),
    st.integers(0, 40),
    st.integers(1, 7),
)
def test_any_mixture_comes_back_once(tmp_path_factory, kinds, after, batch):
    path = tmp_path_factory.mktemp("ledger")
    entries: list[Entry] = [
        frame(n, number, size=n) if whole else labels_alone(n, n % 5 + 100, number)
        for n, (number, whole) in enumerate(kinds, 1)
    ]
    with opened(path) as one:
        for at in range(0, len(entries), batch):
            assert commit(one, entries[max(0, at - 3) : at + batch], durable=at % 2 == 0) == set()
        assert all_told(replayed(path, after)) == all_told(entries[after:])
    again = LedgerWriter(path / FILE, 1 << 30)
    assert again.open().sequence == len(entries)
    lasts = [{number: part.last for number, part in w.partitions.items()} for w in (one, again)]
    assert lasts[0] == lasts[1]
    assert all_told(replayed(path)) == all_told(entries)
    again.disconnect()


def test_the_latest_frames_are_named_at_start_the_newest_last_and_files_are_private(path):
    with opened(path) as one:
        commit(one, [frame(n, n % 3, frame_id=2**64 - n) for n in range(1, 9)], durable=True)
        commit(one, [labels(9, 7, 1, brought=frame(-3, 1, frame_id=7))], durable=True)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    frames = modes.pop(f"{FILE}.frames")
    assert modes == dict.fromkeys((FILE, f"{FILE}-wal", f"{FILE}-shm"), 0o600)
    files = [stat.S_IMODE(file.stat().st_mode) for file in (path / f"{FILE}.frames").iterdir()]
    assert (frames, files) == (0o700, [0o600] * 3)
    there = LedgerWriter(path / FILE, 1 << 30).open()
    names = [one[1:] for one in there.frames]
    names.remove((7, 3000, 1))
    assert names == [(2**64 - n, n * 1000, n % 3) for n in range(1, 9)]
    assert (there.sequence, sorted(there.partitions), len(there.dropped)) == (9, [0, 1, 2], 0)


def test_a_frame_is_found_as_it_was_before_an_entry(path):
    entries: list[Entry] = [frame(1, 3, 7), labels(2, 7, 3), labels(3, 7, 3), frame(4, 2, 7)]
    with opened(path) as one:
        commit(one, entries, durable=False)
        first, latest = found(path, "s", 7, before=3), found(path, "s", 7)
        assert first is not None and latest is not None
        assert (told(first.entry), all_told(first.labels)) == (told(entries[0]), [told(entries[1])])
        # Labels of an earlier frame of its name are not of it.
        assert (told(latest.entry), latest.labels) == (told(entries[3]), ())
        assert found(path, "s", 8) is found(path, "other", 7) is None


def test_a_frame_that_labels_bring_is_written_where_it_is_not_there(path):
    brought = frame(-2, 1, frame_id=9)
    with opened(path) as one:
        assert not commit(one, [labels(5, 9, 1, brought=brought)], durable=True)
        assert not commit(one, [labels(6, 9, 1, brought=brought), frame(7, 1, 9)], durable=True)
        assert not commit(one, [labels(8, 9, 1, brought=replace(brought, sequence=-7))], True)
        kept, last = found(path, "s", 9, before=7), found(path, "s", 9)
        assert kept is not None and last is not None
        assert (kept.entry.sequence, len(kept.labels), last.entry.sequence) == (-2, 2, 7)
        frames = [one.frame for one in replayed(path) if isinstance(one, LabelEntry)]
        assert [one and told(one) for one in frames] == [told(brought), told(brought), None]


def test_labels_without_their_frame_are_not_written_and_the_caller_knows(path, caplog):
    with opened(path) as one:
        assert commit(one, [labels(3, 7), frame(4, frame_id=7), labels(5, 7)], True) == {3}
        assert commit(one, [labels(6, 7), labels(7, 8), labels(8, 7, partition=1)], True) == {7, 8}
        assert sequences(path) == [4, 5, 6]
    assert "entries 7, 8 are not written" in caplog.text


def test_what_was_promised_is_never_replaced_by_what_has_its_number(path):
    first: list[Entry] = [frame(1), labels(2, 1, revision=5), frame(3)]
    with opened(path) as one:
        commit(one, first, durable=True)
        assert commit(one, first, durable=True) == set()
        other: list[Entry] = [labels(2, 3, revision=9), labels(4, 1), frame(3, size=4)]
        assert commit(one, [frame(5), *other], durable=True) == {2, 3}
        assert all_told(replayed(path)) == all_told([*first, other[1], frame(5)])


def used(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_the_partition_whose_last_entry_is_the_oldest_goes_over_the_budget_and_its_bytes_too(path):
    with opened(path, disk_bytes=3_000_000) as one:
        one.covered = NEVER
        commit(one, [frame(1, 9, size=20_000)], durable=False)
        commit(one, [frame(2, 3, size=30_000)], durable=False)
        commit(one, [labels(3, 1, 9)], durable=False)
        assert gone(one) == []
        commit(one, [frame(4, 4, size=50_000)], durable=False)
        commit(one, [frame(5, 4)], durable=False)
        assert gone(one) == [(3, "budget")]
        # It is not found from now on, be its bytes deleted or not.
        assert sequences(path) == [1, 3, 4, 5]
        assert found(path, "s", 2) is None
        tidied(one)
        assert (sequences(path), sorted(one.partitions)) == ([1, 3, 4, 5], [4, 9])
        assert one.bytes == used(path)


def test_a_ledger_that_is_written_to_for_long_stays_within_its_budget(path):
    path.mkdir()
    aside = path / f"{FILE}.corrupt"
    aside.write_bytes(bytes(3_000_000))
    with opened(path, disk_bytes=4_000_000) as one:
        assert one.bytes >= 3_000_000
        for n in range(1, 200):
            one.covered = n
            commit(one, [frame(n, n // 5, size=3000)], durable=n % 3 == 0)
            tidied(one)
            # What was set aside counts, and goes first.
            assert not (aside.exists() and one.dropped)
            assert one.bytes == used(path) < 4_400_000
        there = sequences(path)
        assert there == list(range(there[0], 200))
        assert len(there) > 15


def test_what_is_older_than_it_is_kept_goes_once_a_checkpoint_has_it(path):
    with opened(path, keep=2) as one:
        commit(one, [frame(1, 1), frame(2, 2), frame(3, 5)], durable=False)
        one.covered = 1
        commit(one, [frame(4, 5)], durable=False)
        assert gone(one) == [(1, "expired")]
        one.covered, one.now = 4, 4
        commit(one, [frame(5, 10**9)], durable=False)  # a wild stamp
        assert gone(one) == []
        one.now = 5
        commit(one, [frame(6, 5)], durable=False)
        assert gone(one) == [(2, "expired")]


def test_what_no_checkpoint_has_stays_until_there_is_one_or_twice_the_budget_is_used(path):
    with opened(path, disk_bytes=1_000_000) as one:
        number = 0
        while not one.pressed:
            number += 1
            commit(one, [frame(number, number, size=10_000)], durable=True)
            assert gone(one) == []
        one.covered = number - 1
        for later in range(number + 1, number + 22):
            commit(one, [frame(later, later, size=10_000)], durable=True)
            assert (1, "budget") in gone(one) or sequences(path)[0] > 1
            tidied(one)
        assert one.bytes < 2_500_000
        assert one.partitions[later].last == later


def test_why_partitions_went_is_known_until_a_checkpoint_knows(path):
    with opened(path, keep=2) as one:
        commit(one, [frame(1, 1), frame(2, 9)], durable=True)
        one.covered = 2
        commit(one, [frame(3, 9)], durable=True)
        assert gone(one) == [(1, "expired")]
    again = LedgerWriter(path / FILE, 1 << 30, 2)
    (dropped,) = again.open().dropped.values()
    assert (dropped.number, dropped.reason, dropped.sequence) == (1, "expired", 2)
    for covered, known in ((3, [1]), (4, [])):  # 3: of just before it was told
        again.covered = covered
        commit(again, [frame(covered + 1, 9)], durable=True)
        tidied(again)
        assert list(LedgerWriter(path / FILE, 1 << 30).open().dropped) == known
    again.disconnect()


WRITTEN = Path(__file__).parents[1] / "previous"
ENTRIES: list[Entry] = [frame(n, n % 3, size=400) for n in range(1, 31)]


def kept_ledger(path: Path) -> Path:
    with opened(path) as one:
        for at in range(0, 30, 3):
            commit(one, ENTRIES[at : at + 3], durable=True)
    return path / FILE


def changed(statement: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with sqlite3.connect(file) as other:
            other.execute(statement)
        other.close()

    return change


def of_28(columns: str) -> Callable[[Path], None]:
    return changed(f"UPDATE entries SET {columns} WHERE sequence = 28")


def flipped_in_a_body(file: Path) -> None:
    """One bit of frame 28, in a file that nobody checks."""
    wanted = frame(28, 1, size=400).frame.sent.mean.tobytes()
    (there,) = (one for one in folder_of(file).iterdir() if wanted in one.read_bytes())
    data = bytearray(there.read_bytes())
    data[data.rindex(wanted) + 20] ^= 4
    there.write_bytes(data)


def with_a_right_checksum(kind: int, less: int) -> Callable[[Path], None]:
    """Frame 28 as another kind of entry, or cut off, by code that could write checksums."""

    def change(file: Path) -> None:
        with sqlite3.connect(file) as other:
            where = "SELECT blob, start, size FROM entries WHERE sequence = 28"
            number, start, size = other.execute(where).fetchone()
            body = read_part(folder_of(file), number, start, size - less)
            crc = Key(28, 1, kind, "s", 28, 28000).crc(body)
        other.close()
        of_28(f"kind = {kind}, size = {size - less}, crc = {crc}")(file)

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped_in_a_body, "it is not as it was written"),
        (of_28("frame_id = 7"), "it is not as it was written"),
        (of_28("stream = x'ff'"), ""),
        (of_28("number = 'x'"), ""),
        (with_a_right_checksum(9, 0), "kind: 9, where 1 to 3"),
        (with_a_right_checksum(3, 0), "Error parsing"),
        (with_a_right_checksum(1, 9), "Error parsing"),
    ],
)
def test_an_entry_that_is_not_as_it_was_written_is_left_out_alone(path, damage, said):
    file = kept_ledger(path)
    damage(file)
    with opened(path):
        reader = LedgerReader(file)
        others = [entry for entry in ENTRIES if entry.sequence != 28]
        assert all_told(reader.after(0)) == all_told(others)
        assert reader.find("s", 28, None, NEVER) is None
        assert reader.find("s", 29, None, NEVER) is not None
        reader.close()
    assert list(reader.damaged) == [28]
    assert reader.damaged[28].startswith("entry 28 of") and said in reader.damaged[28]


def test_frames_whose_bytes_did_not_reach_the_disk_before_the_power_failed_are_not_known(
    path, caplog
):
    file = kept_ledger(path)
    one, other, gone = sorted(folder_of(file).iterdir(), key=lambda one: int(one.name))
    os.truncate(one, one.stat().st_size // 2)
    gone.unlink()
    (folder_of(file) / "77").write_bytes(b"of a commit that was not finished")
    # Commits are of three partitions in turn: 1, 2, 0.
    wanted = [n for n in range(1, 31) if n % 3 == 2 or (n % 3 == 1 and n <= 13)]
    with opened(path) as again:
        left = sequences(path)
        assert "15 frames were lost" in caplog.text
        assert left == wanted
        assert sorted(folder_of(file).iterdir()) == sorted([one, other])
        assert again.bytes == used(path)
        commit(again, [frame(31, 1)], durable=True)
        assert sequences(path) == [*left, 31]


def test_a_file_that_somebody_removes_costs_its_frames_and_no_others(path, caplog):
    with opened(path) as writer:
        commit(writer, [frame(1, 1)], durable=False)
        (folder_of(path / FILE) / "1").unlink()
        for sequence in (2, 3):
            commit(writer, [frame(sequence, 2)], durable=True)
    assert "1 was removed: frames in it are lost" in caplog.text
    assert [entry.sequence for entry in LedgerReader(path / FILE).after(1)] == [2, 3]


def test_what_a_commit_that_failed_has_left_is_written_over(path, monkeypatch):
    with opened(path) as one:
        commit(one, ENTRIES[:3], durable=True)
        with monkeypatch.context() as patch:
            patch.setattr(LedgerWriter, "_transaction", lambda *_: 1 / 0)
            patch.setattr(LedgerWriter, "_sync_commits", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                commit(one, ENTRIES[3:9], durable=True)
        commit(one, ENTRIES[3:6], durable=True)
        commit(one, ENTRIES[6:], durable=True)
        assert all_told(replayed(path)) == all_told(ENTRIES)
        tidied(one)
        assert one.bytes == used(path)


def test_a_ledger_of_the_version_before_is_read_and_gone_on_with(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as old:
        old.executescript((WRITTEN / "ledger1.sql").read_text("utf-8"))
    old.close()
    with opened(tmp_path) as one:
        first, second, brought, last = replayed(tmp_path)
        assert told(first) == told(frame(1, 1, frame_id=2**64 - 1, size=3))
        assert told(second) == ("labels", 2, 1, "s", 2**64 - 1, 0.0)
        assert isinstance(brought, LabelEntry) and brought.frame is not None
        assert told(last) == told(frame(5, -2, size=2))
        one.covered = NEVER
        commit(one, [frame(6, 1, 9), labels(7, 9, 1)], durable=True)
        kept = found(tmp_path, "s", 9)
        assert kept is not None and (kept.entry.sequence, len(kept.labels)) == (6, 1)
        one._drop(1, "budget")
        tidied(one)
        assert (sequences(tmp_path), list(folder_of(tmp_path / FILE).iterdir())) == ([5], [])


@pytest.mark.parametrize(
    "damage",
    [
        of_28("frame_id = NULL"),
        of_28("partition = 'a'"),
        of_28("size = 9223372036854775807"),
        of_28("sequence = 9223372036854775807"),
        changed("INSERT INTO blobs VALUES (9223372036854775807, 1, x'00')"),
        changed("INSERT INTO gone VALUES (1, 'budget', 9223372036854775807, 1)"),
    ],
)
def test_a_row_with_which_nobody_could_count_is_left_out_alone_and_writing_goes_on(path, damage):
    file = kept_ledger(path)
    damage(file)
    one = LedgerWriter(file, 1 << 30)
    assert one.open().sequence == 30
    assert not commit(one, [frame(31, 1)], durable=True)
    assert one.refused == 1
    assert ["1 rows of" in said for said in one.said] == [True]
    one.disconnect()
    assert set(range(1, 32)) - set(sequences(path)) <= {28}
    assert not LedgerWriter(file, 1 << 30).open().failed


def test_a_frame_whose_labels_are_damaged_is_not_found_lest_they_are_counted_twice(path):
    with opened(path) as one:
        commit(one, [frame(1), labels(2, 1), labels(3, 1)], durable=True)
        changed("UPDATE entries SET crc = 0 WHERE sequence = 2")(path / FILE)
        assert found(path, "s", 1) is None
        reader = LedgerReader(path / FILE)
        assert [entry.sequence for entry in reader.after(0)] == [1, 3]
        reader.close()


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def of_another_program(file: Path) -> None:
    file.unlink()
    changed("CREATE TABLE notes (text)")(file)


def root_of_a_table(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page] ^= 0xFF
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "suffix"),
    [
        (cut, "corrupt"),
        (lambda file: file.write_bytes(random.Random(0).randbytes(90_000)), "corrupt"),
        (of_another_program, "corrupt"),
        (root_of_a_table, "corrupt"),
        (changed("PRAGMA application_id = 7"), "corrupt"),
        (changed("PRAGMA user_version = 99"), "incompatible"),
    ],
)
def test_a_file_that_cannot_be_used_is_set_aside_and_another_begins(path, damage, suffix, caplog):
    file = kept_ledger(path)
    damage(file)
    one = LedgerWriter(file, 1 << 30)
    there = one.open()
    assert (there.sequence, len(there.frames), len(there.partitions)) == (0, 0, 0)
    assert there.unknown == suffix
    assert (path / f"{FILE}.{suffix}").exists()
    assert f"kept as {FILE}.{suffix}" in caplog.text
    assert len(one.said) == one.refused == 1
    commit(one, [frame(31, 1)], durable=True)
    assert sequences(path) == [31]
    one.disconnect()


def test_damage_that_is_found_while_it_runs_costs_what_was_there_and_not_what_comes(path):
    file = kept_ledger(path)
    one, reader = writer(path), LedgerReader(file)
    one.disconnect()  # else its pages are in memory
    entries = reader.after(0)
    assert next(entries).sequence == 1
    cut(file)
    with pytest.raises(UnusableFile):
        list(entries)
    commit(one, [frame(31, 1)], durable=True)
    assert (sorted(gone(one)), one.refused) == ([(n, "corrupt") for n in range(3)], 1)
    assert sequences(path) == [31]


def test_a_file_that_is_removed_while_it_runs_is_begun_again(path):
    with opened(path) as one:
        commit(one, [frame(31, 2)], durable=False)
        (path / FILE).unlink()
        assert commit(one, [labels(32, 31, 2), frame(33, 2)], durable=True) == {32}
        assert len(list(folder_of(path / FILE).iterdir())) == 1
        assert (gone(one), sequences(path)) == ([(2, "vanished")], [33])


def test_frames_are_written_on_though_somebody_removes_their_file(path):
    with opened(path) as one:
        commit(one, [frame(1, 2)], durable=True)
        (there,) = folder_of(path / FILE).iterdir()
        there.unlink()
        commit(one, [frame(2, 2)], durable=True)
        shutil.rmtree(folder_of(path / FILE))
        commit(one, [frame(3, 2)], durable=True)
        reader = LedgerReader(path / FILE)
        assert [entry.sequence for entry in reader.after(0)] == [3]
        assert list(reader.damaged) == [1, 2]
        reader.close()


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path, path):
    path.mkdir()
    (tmp_path / "elsewhere").write_bytes(b"")
    (path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerFailed):
        LedgerWriter(path / FILE, 1 << 30).open()
    assert (tmp_path / "elsewhere").read_bytes() == b""


@pytest.fixture
def full(monkeypatch):
    """No room for more than two large frames, once its first element is set."""
    limit, write = [False], os.pwritev

    def limited(descriptor, pieces, at):
        folder = Path(f"/proc/self/fd/{descriptor}").readlink().parent
        room = 300_000 - sum(one.stat().st_size for one in folder.iterdir())
        if not limit[0] or size_of(pieces) < room:
            return write(descriptor, pieces, at)
        if room <= 0:
            raise OSError(errno.ENOSPC, "the disk is full")
        return write(descriptor, [b"".join(pieces)[:room]], at)

    def none(_descriptor, _piece, _at):
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(os, "pwritev", limited)
    monkeypatch.setattr(os, "pwrite", none)
    return limit


def test_on_a_full_disk_the_oldest_partition_that_a_checkpoint_has_makes_room(path, full):
    with opened(path) as one:
        commit(one, [frame(n, n, size=4000) for n in (1, 2)], durable=True)
        one.covered, full[0] = 2, True
        commit(one, [frame(3, 3, size=4000)], durable=True)
        assert (gone(one), sequences(path)) == ([(1, "budget")], [2, 3])


def test_on_a_full_disk_what_no_checkpoint_has_stays_and_the_rest_can_be_written_later(path, full):
    more: list[Entry] = [frame(3, 3), frame(4, 3, size=4000)]
    with opened(path) as one:
        commit(one, [frame(n, n, size=4000) for n in (1, 2)], durable=True)
        full[0] = True
        for _ in range(2):
            with pytest.raises(LedgerFailed, match="full") as failed:
                commit(one, more, durable=True)
            assert failed.value.full
            assert (gone(one), sequences(path)) == ([], [1, 2])
        full[0] = False
        commit(one, more, durable=True)
        assert sequences(path) == [1, 2, 3, 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for dump in WRITTEN.glob("p*.sql"):
        with sqlite3.connect(tmp_path / f"{dump.stem}.sqlite") as old:
            old.executescript(dump.read_text("utf-8"))
        old.close()
    return tmp_path


def taken_over(folder: Path) -> None:
    take_over(PreviousPaths("", "", "", str(folder)), folder)


def test_frames_and_labels_are_taken_over_once_with_their_positions(folder):
    before = {path.name: path.read_bytes() for path in folder.glob("p*.sqlite")}
    taken_over(folder)
    one = writer(folder)
    first, labels, brought, last = replayed(folder)
    assert told(first) == told(frame(1, 1, frame_id=2**64 - 1, size=3))
    assert told(labels) == ("labels", 2, 1, "s", 2**64 - 1, 4.0)
    assert isinstance(brought, LabelEntry)
    assert brought.frame is not None
    assert (brought.sequence, brought.frame.sequence, brought.frame.frame.frame_id) == (4, -3, 9)
    assert told(last) == told(frame(5, -2, size=2))
    kept = found(folder, "s", 2**64 - 1)
    assert kept is not None
    assert len(kept.labels) == 1
    assert set(one.partitions) == {1, -2}
    commit(one, [frame(6)], durable=True)
    taken_over(folder)
    assert len(replayed(folder)) == 5
    one.disconnect()
    assert {path.name: path.read_bytes() for path in folder.glob("p*.sqlite")} == before


def test_rows_that_are_damaged_are_left_out_and_so_is_a_file_that_is_none(folder, caplog):
    with sqlite3.connect(folder / "p1.sqlite") as old:
        old.execute("UPDATE frames SET body = x'00' WHERE sequence = 1")
    old.close()
    (folder / "p7.sqlite").write_text("no database" * 100)
    taken_over(folder)
    writer(folder).disconnect()
    # Labels of the frame that is left out are of nothing.
    assert [entry.sequence for entry in replayed(folder)] == [4, 5]
    assert "entry 1 of" in caplog.text
    assert "p7.sqlite" in caplog.text


def test_without_files_of_before_nothing_is_begun(tmp_path):
    taken_over(tmp_path)
    taken_over(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_what_was_taken_over_by_halves_is_taken_over_again(folder):
    (folder / f"{FILE}.half").write_text("torn")
    taken_over(folder)
    writer(folder).disconnect()
    assert len(replayed(folder)) == 4
    assert not list(folder.glob("*.half*"))
