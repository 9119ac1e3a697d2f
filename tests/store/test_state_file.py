"""state.db by itself: what is written is read, whatever dies, fails or is damaged; and the folder
is of one process.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.store import state
from monitor.store.files import Claim, private
from monitor.store.state import Checkpoint, Contents, Loaded, StateFile, state_folder

KEPT = ["state.db", "state.db.1"]


def checkpoint(number: int, *records: bytes, size: int = 300) -> Checkpoint:
    """One like no other; parts and recalibrators of two pages each."""
    return Checkpoint(
        number,
        {name: [name.encode(), bytes([number]) * size] for name in ("sums", "evidence")},
        {f"v{n}": f"document {n} {'.' * size}".__str__ for n in (number - 1, number)},
        [(1000 * number + n, one) for n, one in enumerate(records or [b"record %d" % number])],
    )


def whole(contents: Contents) -> int:
    """The number of a checkpoint, all of which must be there."""
    number = contents.position
    assert number is not None
    expected = checkpoint(number)
    assert contents.parts == {name: b"".join(body) for name, body in expected.parts.items()}
    assert contents.recalibrators == {
        version: document().encode() for version, document in expected.recalibrators.items()
    }
    assert contents.records[-1] == b"record %d" % number
    return number


def names(file: StateFile) -> list[str]:
    return sorted(path.name for path in file.folder.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    """Written twice."""
    found = StateFile(tmp_path / "state of [a]*?# sidecar")
    found.folder.mkdir(0o700)
    for number in (1, 2):
        found.write(checkpoint(number))
    return found


def test_what_was_written_is_read_and_the_generation_before_is_kept(file):
    assert file.load(whole) == Loaded(2, file.path, ())
    assert file.write(checkpoint(3)) == 2
    assert names(file) == KEPT
    records = StateFile(file.folder).load(lambda contents: contents.records).value
    assert records == [b"record 1", b"record 2", b"record 3"]
    file.path.unlink()
    gone = f"{file.previous}: state.db is not there, and the generation before is used."
    assert file.load(whole) == Loaded(2, file.previous, (gone,), refused=0)


def test_only_the_owner_may_read_it(tmp_path):
    before = os.umask(0)
    try:
        claim = Claim(tmp_path / "new")
        assert claim.take()
        for number in (1, 2):
            StateFile(claim.folder).write(checkpoint(number))
        claim.release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(claim.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in claim.folder.iterdir()} == {0o600}


def test_recalibrators_that_nobody_names_go_and_a_document_is_made_once(file):
    made: list[str] = []

    def document(text: str) -> Callable[[], str]:
        def make() -> str:
            made.append(text)
            return text

        return make

    for versions in (("a", "b"), ("b", "c"), ("b", "a")):
        file.write(Checkpoint(9, {"sums": [b"3"]}, {one: document(one) for one in versions}))
    assert made == ["a", "b", "c", "a"]
    found = file.load(lambda contents: contents).value
    assert found.recalibrators == {"b": b"b", "a": b"a"}
    # A part that is not written stays as it was.
    assert found.parts["sums"] == b"3" and found.parts["evidence"].startswith(b"evidence\x02")


def test_records_of_the_audit_log_are_bounded_and_the_latest_stay(file, monkeypatch):
    monkeypatch.setattr(state, "MOST_RECORDS", 5)
    for begin in (10, 13, 16):
        records = [(10_000 + n, b"%d" % n) for n in range(begin, begin + 3)]
        file.write(replace(checkpoint(begin), records=records))
    found = file.load(lambda contents: contents.records).value
    assert found == [b"14", b"15", b"16", b"17", b"18"]


def killed_before(step: int, file: StateFile, number: int) -> bool:
    """Writes in a process that dies before its step of that number; False: it had fewer."""
    pid = os.fork()
    if pid == 0:
        left = step

        def count(_: object, event: str, __: object) -> None:
            nonlocal left
            left -= event.endswith("call")
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(count)
            file.write(checkpoint(number))
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_a_writer_that_dies_between_any_two_steps_leaves_the_one_before_or_its_own(tmp_path):
    file, before, step = StateFile(tmp_path), 0, 1
    while killed_before(step, file, before + 1):
        loaded = file.load(whole)
        found = loaded.value or 0
        # A new file is in its place whole; the generation before is never the newer one.
        assert loaded.complaints == ()
        assert before <= found <= before + 1
        if found and file.previous.exists():
            previous = state._position(file.previous)
            assert found - 1 <= previous <= found
        assert not [name for name in names(file) if "tmp" in name or "corrupt" in name]
        step, before = step + 1, found
    assert step > 50
    assert before > 2


def sql(*statements: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with state._opened(path) as run:
            for statement in statements:
                run(statement)

    return damage


DAMAGES = {
    "emptied": (lambda path: path.write_bytes(b""), "corrupt", "no state of a sidecar"),
    "cut in two": (lambda path: os.truncate(path, path.stat().st_size // 2), "corrupt", ""),
    "no database": (lambda path: path.write_bytes(b"sums" * 999), "corrupt", "not a database"),
    "of another program": (sql("PRAGMA application_id = 7"), "corrupt", "no state of a sidecar"),
    "of a later version": (sql("PRAGMA user_version = 9"), "incompatible", "format 9, but this"),
    "without a table": (sql("DROP TABLE parts"), "corrupt", "no such table"),
    "with another position": (sql("UPDATE checkpoint SET position = 7"), "corrupt", "its position"),
    "without a part": (sql("DELETE FROM parts WHERE name = 'sums'"), "corrupt", "its position"),
    "with a number": (sql("UPDATE recalibrators SET document = 7"), "corrupt", "its recalibrators"),
    "with another body": (sql("UPDATE parts SET body = x'00'"), "corrupt", "not as it was written"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_used_is_set_aside_for_the_generation_before(file, damage):
    spoil, suffix, reason = DAMAGES[damage]
    spoil(file.path)
    spoilt = file.path.read_bytes()
    loaded = file.load(whole)
    assert (loaded.value, loaded.source, loaded.refused) == (1, file.previous, 1)
    refused, used = loaded.complaints
    assert refused.startswith(f"{file.path}: ") and reason in refused
    assert refused.endswith(f"It is kept as state.db.{suffix}.")
    assert used == f"{file.previous}: the generation before is used."
    assert file.path.with_name(f"state.db.{suffix}").read_bytes() == spoilt
    # It is said once, and never takes the place of a good one.
    assert file.write(checkpoint(3)) == 1
    assert file.load(whole) == Loaded(3, file.path, ())
    assert file.write(checkpoint(4)) == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0), bit=st.integers(0, 7))
def test_a_bit_that_is_flipped_anywhere_is_found_or_changes_nothing(file, place, bit):
    good, older = file.path.read_bytes(), file.previous.read_bytes()
    data = bytearray(good)
    data[place % len(good)] ^= 1 << bit
    file.path.write_bytes(data)
    loaded = file.load(lambda contents: contents)
    assert loaded.value is not None
    found = loaded.value
    if found.position == 2:
        # What SQLite does not need is no loss; records and documents answer for themselves.
        assert found.parts == {name: b"".join(body) for name, body in checkpoint(2).parts.items()}
        assert set(found.records) <= {b"record 1", b"record 2"}
        assert len(found.records) == 2 or loaded.complaints
    else:
        assert whole(found) == 1 and loaded.refused == 1
    file.path.write_bytes(good)
    file.previous.write_bytes(older)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_in_its_place_is_neither_read_nor_moved(file, make):
    file.path.unlink()
    make(file.path)
    refused, used = file.load(whole).complaints
    assert "no regular file" in refused and "left where it is" in refused and "before" in used
    with pytest.raises(OSError, match="no regular file"):
        file.write(checkpoint(3))
    assert names(file) == KEPT and not file.path.is_file()


def test_what_cannot_be_set_aside_or_copied_is_said_and_not_written_over(file):
    file.path.with_name("state.db.incompatible").mkdir()
    assert "A copy of the file cannot be kept as state" in file.keep_copy(file.folder / "nowhere")
    sql("PRAGMA user_version = 9")(file.path)
    before = file.path.read_bytes()
    refused, _ = file.load(whole).complaints
    assert "It cannot be kept as state.db.incompatible (Is a directory)" in refused
    with pytest.raises(ValueError, match="format 9"):
        file.write(checkpoint(3))
    assert (file.path.read_bytes(), file.load(whole).value) == (before, 1)


@pytest.mark.parametrize("damage", ["emptied", "cut in two", "without a part"])
def test_a_file_that_is_damaged_while_it_is_used_costs_no_generation(file, damage):
    DAMAGES[damage][0](file.path)
    assert file.write(checkpoint(3)) == 1
    assert "state.db.corrupt" in names(file) and file.load(whole).value == 3
    file.path.unlink()
    assert file.load(whole).value == 1


def test_where_no_generation_can_be_used_all_begins_anew_and_both_are_kept(file):
    for path in (file.path, file.previous):
        path.write_bytes(b"no database")
    loaded = file.load(whole)
    assert (loaded.value, loaded.refused) == (None, 2)
    assert loaded.complaints[-1].endswith("state.db.1.corrupt, and all begins anew.")
    assert names(file) == ["state.db.1.corrupt", "state.db.corrupt"]
    assert file.write(checkpoint(3)) == 0
    assert "division by zero" in file.load(lambda _: 1 / 0).complaints[0]


def test_damaged_records_are_left_out_alone_and_said_in_one_sentence(file):
    file.write(checkpoint(3, *(b"%d" % n for n in range(20)), b"record 3"))
    sql("UPDATE audit SET record = 'forged' WHERE number BETWEEN 3001 AND 3007")(file.path)
    loaded = file.load(lambda contents: contents.records)
    assert len(loaded.value) == 23 - 7
    (said,) = loaded.complaints
    assert "7 of 23 records" in said and "(3001, 3002, 3003, 3004, 3005 and 2 more)" in said


def test_a_full_disk_leaves_what_is_there_and_nothing_else(file):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file of this process may grow beyond that: each half of the write needs more.
    for limit in (1000, file.path.stat().st_size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises((OSError, sqlite3.Error)):
                file.write(checkpoint(3, size=10**5))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert names(file) == KEPT
        assert file.load(whole) == Loaded(2, file.path, ())
    assert file.write(checkpoint(3)) == 2


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(file, monkeypatch):
    monkeypatch.setattr("monitor.store.files._writes", iter([7, 8]))
    link = file.folder / f"state.db.1.{os.getpid()}.7.tmp"
    link.symlink_to(file.folder / "elsewhere")
    with pytest.raises(OSError):
        file.write(checkpoint(3))
    assert not (file.folder / "elsewhere").exists()


def test_files_of_writers_that_died_are_removed_and_no_others(file):
    for name in ("state.db.77.1.tmp", "state.db.1.23.tmp", "state.db.1.23.tmp-journal", "my.tmp"):
        (file.folder / name).write_bytes(b"half")
    file.load(whole)
    assert names(file) == ["my.tmp", *KEPT]


def test_a_folder_is_of_one_process_until_it_lets_go(tmp_path):
    first, second = (Claim(tmp_path / "above" / "kept") for _ in range(2))
    assert first.take() and first.take()
    assert not second.take()
    first.release()
    assert second.take()
    assert not first.take()
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        Claim(tmp_path / "file" / "kept").take()


def test_a_folder_that_somebody_removes_is_made_again_and_is_of_whoever_claims_it(tmp_path):
    first, second = (Claim(tmp_path / "kept") for _ in range(2))
    assert first.take()
    (tmp_path / "kept").rename(tmp_path / "elsewhere")
    assert first.take() and (tmp_path / "kept" / "lock").exists()
    (tmp_path / "kept").rename(tmp_path / "elsewhere too")
    assert second.take()
    assert not first.take()
    second.release()
    assert first.take()


@pytest.mark.parametrize(
    ("folder", "name", "environment", "expected"),
    [
        ("kept", "50051", {"STATE_DIRECTORY": "/var/lib/monitor"}, str(Path("kept").absolute())),
        (None, "", {}, None),
        ("", "50051", {"STATE_DIRECTORY": "/var/lib/monitor"}, None),
        (None, "front", {"STATE_DIRECTORY": "/var/lib/monitor:/x"}, "/var/lib/monitor/front"),
        (None, "front", {"XDG_STATE_HOME": "/s"}, "/s/calibration-monitor/front"),
        (None, "front", {}, "~/.local/state/calibration-monitor/front"),
    ],
)
def test_the_folder_is_the_configured_one_or_one_of_its_name(folder, name, environment, expected):
    found = state_folder(folder, name, environment)
    assert found == (None if expected is None else Path(expected).expanduser())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_that_was_open_to_others_is_closed_to_them_when_it_is_written(tmp_path, umask):
    path, before = tmp_path / "file", os.umask(umask)
    try:
        for _ in range(2):
            with open(path, "ab", opener=private) as file:
                file.write(b"x")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o666)
        (tmp_path / "link").symlink_to(path)
        with pytest.raises(OSError, match="symbolic links"):
            private(str(tmp_path / "link"), os.O_WRONLY)
    finally:
        os.umask(before)
