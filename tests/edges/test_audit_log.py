"""The audit log: what was appended is there for good, and damage harms one line alone."""

from __future__ import annotations

import json
import os
import stat

import pytest

from monitor.store.recalibrator_folder import LARGEST, AuditLog
from tests.promotion.random_records import record


@pytest.fixture
def log(tmp_path):
    return AuditLog(tmp_path / "history.jsonl")


def sequences(log: AuditLog) -> list[int]:
    return [one.sequence for one in log.read().records]


def filled(log: AuditLog, last: int) -> None:
    log.append([record(n) for n in range(1, last + 1)])


def test_what_was_appended_is_read_in_order(log):
    filled(log, 5)
    log.append([record(6)])
    again = AuditLog(log.path)
    again.append([record(7), record(8)])
    assert again.read().records == tuple(record(n) for n in range(1, 9))
    assert again.read().complaints == ()


def test_where_there_is_no_file_there_is_no_history(log):
    assert log.read() == type(log.read())((), ())


def test_every_line_is_json_for_people_and_private(log):
    before = os.umask(0)
    try:
        filled(log, 2)
    finally:
        os.umask(before)
    assert [json.loads(line)["sequence"] for line in log.path.read_text().splitlines()] == [1, 2]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_a_file_that_is_cut_anywhere_keeps_all_lines_before_and_goes_on(log):
    filled(log, 3)
    data = log.path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data) + 1):
        log.path.write_bytes(data[:length])
        again = AuditLog(log.path)
        history = again.read()
        whole = sum(end <= length for end in ends)
        assert [one.sequence for one in history.records] == list(range(1, whole + 1))
        assert bool(history.complaints) == (length not in (0, *ends))
        again.append([record(9)])
        assert sequences(again) == [*range(1, whole + 1), 9]
        assert again.read().complaints == ()


def test_any_damaged_byte_costs_its_line_and_is_said(log):
    filled(log, 3)
    data = log.path.read_bytes()
    first, second = data.index(b"\n"), data.index(b"\n", data.index(b"\n") + 1)
    for position in range(first + 1, second):
        for flipped in (1, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= flipped
            log.path.write_bytes(bytes(damaged))
            history = log.read()
            assert [one.sequence for one in history.records] == [1, 3]
            (said,) = history.complaints
            assert "left out (line 2" in said


def test_a_line_break_that_is_damaged_costs_two_lines_at_most(log):
    filled(log, 4)
    data = bytearray(log.path.read_bytes())
    data[data.index(b"\n")] ^= 1
    log.path.write_bytes(bytes(data))
    assert sequences(log) == [3, 4]


def test_many_damaged_lines_make_one_complaint(log):
    filled(log, 20)
    data = log.path.read_bytes().replace(b'"policy"', b'"nobody"')
    log.path.write_bytes(data)
    history = log.read()
    assert history.records == ()
    (said,) = history.complaints
    assert "20 of 20 lines are left out (line 1, 2, 3, 4, 5 and 15 more)" in said


def test_a_damaged_line_stays_where_it_is(log):
    filled(log, 2)
    data = log.path.read_bytes().replace(b'"sequence":1,', b'"sequence":8,')
    log.path.write_bytes(data)
    log.append([record(3)])
    assert log.path.read_bytes().startswith(data)


def test_a_full_file_gives_way_and_one_older_one_is_kept(tmp_path):
    log = AuditLog(tmp_path / "history.jsonl", largest=5000)
    for n in range(1, 101):
        log.append([record(n)])
        kept = sequences(log)
        assert kept == list(range(kept[0], n + 1))
        assert sum(path.stat().st_size for path in (log.path, log.older) if path.exists()) <= 10_000
    assert len(kept) >= 10
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "history.jsonl",
        "history.jsonl.1",
    ]


def test_a_torn_line_is_not_carried_over_into_the_older_file(tmp_path):
    log = AuditLog(tmp_path / "history.jsonl", largest=1900)
    filled(log, 4)
    with log.path.open("ab") as file:
        file.write(b'{"sequence":5')
    again = AuditLog(log.path, largest=1900)
    again.append([record(5)])
    assert again.older.exists()
    assert (sequences(again), again.read().complaints) == ([1, 2, 3, 4, 5], ())


def test_records_that_do_not_fit_together_are_written_all_the_same(tmp_path):
    log = AuditLog(tmp_path / "history.jsonl", largest=100)
    filled(log, 3)
    assert sequences(log) == [1, 2, 3]


def test_a_history_of_thousands_fits_into_a_file(log):
    filled(log, 10)
    assert LARGEST / (log.path.stat().st_size / 10) > 5000


def test_an_append_that_failed_is_done_again_without_a_trace(log, monkeypatch):
    filled(log, 2)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr("monitor.store.recalibrator_folder.os.fsync", full)
        log.append([record(3), record(4)])
    log.append([record(3), record(4), record(5)])
    assert sequences(log) == [1, 2, 3, 4, 5]
    assert log.read().complaints == ()


def test_a_link_or_a_pipe_in_its_place_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    log = AuditLog(tmp_path / "history.jsonl")
    log.path.symlink_to(elsewhere)
    with pytest.raises(OSError):
        log.append([record(1)])
    assert not elsewhere.exists()
    log.path.unlink()
    os.mkfifo(log.path)
    with pytest.raises(OSError, match="no regular file"):
        log.read()
    with pytest.raises(OSError, match="no regular file"):
        log.append([record(1)])
