"""The snapshot file is whole after any death of its writer; what is damaged is set aside."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from monitor.store.snapshot import CorruptFile, SnapshotFile, read_body
from monitor.store.statistics_state import StoredState, parsed, serialised
from tests.states import assert_same_state, counted, random_rows

ROOT = Path(__file__).parents[2]
HEAD = 24  # bytes: magic, format, length, CRC


@pytest.fixture
def snapshot(tmp_path):
    return SnapshotFile(tmp_path / "statistics.state")


def text(body: bytes) -> str:
    return body.decode("ascii")


def names(snapshot):
    return sorted(path.name for path in snapshot.path.parent.iterdir())


def damaged(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_a_state_that_was_written_is_loaded_to_the_last_bit(snapshot):
    stored = StoredState(counted(random_rows(1, 50)))
    snapshot.write(serialised(stored))
    loaded = snapshot.load(parsed)
    assert loaded.value is not None
    assert_same_state(loaded.value.state, stored.state)
    assert (loaded.source, loaded.complaints) == (snapshot.path, ())


def test_the_file_says_what_it_is_how_long_and_which_bytes(snapshot):
    assert snapshot.write([b"first ", b"second"]) == HEAD + 12
    data = snapshot.path.read_bytes()
    assert data[:8] == b"calstate"
    assert [int.from_bytes(data[a:b], "little") for a, b in ((8, 12), (12, 20), (20, 24))] == [
        1,
        12,
        zlib.crc32(b"first second"),
    ]
    assert data[HEAD:] == b"first second" == read_body(snapshot.path)


def test_only_the_owner_may_read_it(snapshot):
    before = os.umask(0)
    try:
        snapshot.write([b"one"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(snapshot.path.stat().st_mode) == 0o600


def test_the_generation_before_is_kept_and_no_other(snapshot):
    for body in (b"one", b"two", b"three"):
        snapshot.write([body])
    assert names(snapshot) == ["statistics.state", "statistics.state.1"]
    assert [read_body(path) for path in (snapshot.path, snapshot.previous)] == [b"three", b"two"]


def test_at_the_first_start_there_is_nothing_and_no_complaint(snapshot):
    assert snapshot.load(text) == type(snapshot.load(text))(None, None, ())


def test_a_write_that_fails_leaves_the_file_and_nothing_else(snapshot):
    snapshot.write([b"one"])

    def parts():
        yield b"tw"
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        snapshot.write(parts())
    assert names(snapshot) == ["statistics.state"]
    assert snapshot.load(text).value == "one"


def test_files_of_writers_that_died_are_removed_and_no_others(snapshot):
    folder = snapshot.path.parent
    kept = ["other.state.77.tmp", "statistics.state", "statistics.tmp"]
    snapshot.write([b"one"])
    for name in ("statistics.state.77.1.tmp", "statistics.state.1.23.tmp", *kept[::2]):
        (folder / name).write_bytes(b"half")
    assert snapshot.load(text).value == "one"
    assert names(snapshot) == kept


def test_a_name_with_wildcards_is_taken_literally(tmp_path):
    snapshot = SnapshotFile(tmp_path / "[ab]*.state")
    (tmp_path / "a.state.7.tmp").write_bytes(b"half")
    (tmp_path / "[ab]*.state.7.tmp").write_bytes(b"half")
    snapshot.load(text)
    assert names(snapshot) == ["a.state.7.tmp"]


def test_a_writer_that_died_between_two_renames_loses_nothing(snapshot):
    snapshot.write([b"one"])
    snapshot.path.replace(snapshot.previous)
    loaded = snapshot.load(text)
    assert (loaded.value, loaded.source) == ("one", snapshot.previous)
    snapshot.write([b"two"])
    assert [read_body(path) for path in (snapshot.path, snapshot.previous)] == [b"two", b"one"]


@pytest.mark.parametrize("length", [0, 1, HEAD - 1, HEAD, HEAD + 1, HEAD + 4])
def test_a_torn_file_is_set_aside_for_the_generation_before(snapshot, caplog, length):
    snapshot.write([b"older"])
    snapshot.write([b"newer"])
    data = snapshot.path.read_bytes()
    snapshot.path.write_bytes(data[:length])
    loaded = snapshot.load(text)
    assert (loaded.value, loaded.source) == ("older", snapshot.previous)
    torn, used = loaded.complaints
    assert torn.startswith(f"{snapshot.path}: ")
    assert torn.endswith("It is kept as statistics.state.corrupt.")
    assert used == f"{snapshot.previous}: the generation before is used."
    assert [record.getMessage() for record in caplog.records] == [
        f"snapshot: {said}" for said in loaded.complaints
    ]
    assert (snapshot.path.parent / "statistics.state.corrupt").read_bytes() == data[:length]


@pytest.mark.parametrize("position", range(HEAD + 5))
def test_any_damaged_byte_is_found(snapshot, position):
    snapshot.write([b"older"])
    snapshot.write([b"newer"])
    damaged(snapshot.path, position)
    assert snapshot.load(text).value == "older"


def test_bytes_behind_the_end_are_found(snapshot):
    snapshot.write([b"one"])
    with snapshot.path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(CorruptFile, match="7 bytes of 3"):
        read_body(snapshot.path)


def test_a_damaged_file_never_takes_the_place_of_a_good_one(snapshot):
    snapshot.write([b"older"])
    snapshot.write([b"newer"])
    damaged(snapshot.path, HEAD)
    snapshot.load(text)
    snapshot.write([b"newest"])
    assert [read_body(path) for path in (snapshot.path, snapshot.previous)] == [
        b"newest",
        b"older",
    ]


def test_where_both_are_damaged_statistics_begin_anew_and_both_are_kept(snapshot):
    snapshot.write([b"older"])
    snapshot.write([b"newer"])
    for path in (snapshot.path, snapshot.previous):
        damaged(path, HEAD)
    loaded = snapshot.load(text)
    assert (loaded.value, loaded.source) == (None, None)
    assert loaded.complaints[-1].endswith(".1.corrupt, statistics begin anew.")
    assert names(snapshot) == ["statistics.state.1.corrupt", "statistics.state.corrupt"]


def test_a_file_whose_meaning_is_refused_is_set_aside_too(snapshot):
    snapshot.write(serialised(StoredState(counted(random_rows(1, 5)))))
    snapshot.write([b"\x08\x01"])  # version 1 of the state, and nothing else
    loaded = snapshot.load(parsed)
    assert loaded.value is not None and loaded.source == snapshot.previous
    assert "bins" in loaded.complaints[0]
    assert names(snapshot) == ["statistics.state.1", "statistics.state.corrupt"]


def test_a_state_of_a_newer_version_is_kept_for_it_and_nothing_older_is_used(snapshot):
    snapshot.write(serialised(StoredState(counted(random_rows(1, 5)))))
    snapshot.write([b"\x08\x63"])  # version 99 of the state
    loaded = snapshot.load(parsed)
    assert (loaded.value, loaded.source) == (None, None)
    (said,) = loaded.complaints
    assert said.startswith("version: 99")
    assert said.endswith("It is kept as statistics.state.incompatible, statistics begin anew.")
    assert names(snapshot) == ["statistics.state.1", "statistics.state.incompatible"]


def test_a_file_of_another_format_is_kept_for_who_reads_it(snapshot):
    snapshot.write([b"older"])
    snapshot.write([b"newer"])
    damaged(snapshot.path, 8)
    assert snapshot.load(text).value == "older"
    assert names(snapshot) == ["statistics.state.1", "statistics.state.incompatible"]


def test_what_the_disk_does_not_give_is_set_aside_unread(snapshot, monkeypatch):
    snapshot.write([b"older"])
    snapshot.write([b"newer"])

    def failing(path, kind):
        if path == snapshot.path:
            raise OSError(5, "Input/output error", str(path))
        return read_body(path, kind)

    monkeypatch.setattr("monitor.store.snapshot.read_body", failing)
    loaded = snapshot.load(text)
    assert loaded.value == "older"
    assert "Input/output error" in loaded.complaints[0]
    assert names(snapshot) == ["statistics.state.1", "statistics.state.unreadable"]


def test_a_folder_in_the_place_of_the_file_is_left_where_it_is(snapshot):
    snapshot.path.mkdir()
    loaded = snapshot.load(text)
    assert loaded.value is None
    assert "is left where it is" in loaded.complaints[0]
    assert snapshot.path.is_dir()


def test_what_cannot_be_set_aside_is_said_and_does_not_stop_the_start(snapshot):
    snapshot.path.write_bytes(b"no statistics")
    snapshot.path.with_name("statistics.state.corrupt").mkdir()
    loaded = snapshot.load(text)
    assert loaded.value is None
    assert "It cannot be kept as statistics.state.corrupt (Is a directory)" in loaded.complaints[0]


def test_a_file_is_one_writers_until_it_lets_go(snapshot):
    lock = snapshot.lock()
    assert lock is not None
    other = SnapshotFile(snapshot.path)
    assert other.lock() is None
    # Another name in the same folder is another file.
    beside = SnapshotFile(snapshot.path.with_name("other.state")).lock()
    assert beside is not None
    beside.close()
    lock.close()
    again = other.lock()
    assert again is not None
    again.close()


def test_where_there_is_no_folder_there_is_no_lock(tmp_path):
    with pytest.raises(FileNotFoundError):
        SnapshotFile(tmp_path / "missing" / "statistics.state").lock()


def test_a_writer_that_was_given_up_harms_no_other_one(snapshot):
    def parts():
        yield b"fir"
        snapshot.write([b"second"])
        yield b"st"

    snapshot.write(parts())
    assert [read_body(path) for path in (snapshot.path, snapshot.previous)] == [b"first", b"second"]
    assert names(snapshot) == ["statistics.state", "statistics.state.1"]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(snapshot, monkeypatch):
    folder = snapshot.path.parent
    monkeypatch.setattr("monitor.store.snapshot._writes", iter([7]))
    (folder / f"statistics.state.{os.getpid()}.7.tmp").symlink_to(folder / "elsewhere")
    with pytest.raises(OSError):
        snapshot.write([b"one"])
    assert not (folder / "elsewhere").exists()


WRITER = """
import itertools, sys
from dataclasses import replace
from pathlib import Path
from monitor.store.snapshot import SnapshotFile
from monitor.store.statistics_state import StoredState, serialised
from tests.states import counted, random_rows
snapshot, first = SnapshotFile(Path(sys.argv[1])), int(sys.argv[2])
state = counted([replace(row, stamp=None) for row in random_rows(1, 200)])
for number in itertools.count(first):
    snapshot.write(serialised(StoredState(replace(state, clock_ns=number))))
    print(number, flush=True)
"""


@pytest.mark.campaign
def test_a_writer_that_is_killed_at_any_moment_leaves_all_that_it_said_it_wrote(snapshot):
    random = np.random.default_rng(0)
    written = 0
    for _ in range(10):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(snapshot.path), str(written + 1)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        said = [writer.stdout.readline()]
        time.sleep(random.uniform(0, 0.05))
        writer.kill()
        said += writer.stdout.readlines()
        writer.stdout.close()
        writer.wait(10)
        acknowledged = int([line for line in said if line.endswith(b"\n")][-1])
        loaded = snapshot.load(parsed)
        assert loaded.value is not None
        written = loaded.value.state.clock_ns or 0
        # The last one may have been in place before it was said.
        assert acknowledged <= written <= acknowledged + 1
        assert not [path for path in names(snapshot) if path.endswith((".tmp", ".corrupt"))]
        assert sum(entry.n for entry in loaded.value.state.slices) == 200


def test_a_pipe_in_place_of_the_file_is_neither_read_nor_replaced(tmp_path):
    path = tmp_path / "statistics"
    os.mkfifo(path)
    loaded = SnapshotFile(path).load(bytes)
    assert loaded.value is None
    assert "no regular file" in loaded.complaints[0]
    with pytest.raises(OSError, match="no regular file"):
        SnapshotFile(path).write([b"sums"])
    assert path.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["statistics"]
