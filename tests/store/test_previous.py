"""What the last release kept is there after an upgrade; `previous/` holds what it wrote."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from monitor.store.entries import LabelEntry
from monitor.store.ledger import FILE
from monitor.store.previous import PreviousPaths, take_over
from tests.journalled import commit, found, frame, replayed, told, writer

WRITTEN = Path(__file__).parents[1] / "previous"


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
