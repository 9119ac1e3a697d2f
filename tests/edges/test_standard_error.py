"""Whole lines on a stream that takes a part, is full for a while, or fails in between."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.service import log
from monitor.service.log import WholeLines, standard_error


class Scripted:
    """Takes as many bytes as its script says; None: it is full; -1: it fails. Then all."""

    def __init__(self, *script: int | None) -> None:
        self.script = list(script)
        self.data = b""

    def write(self, data: bytes, /) -> int | None:
        takes = self.script.pop(0) if self.script else len(data)
        if takes == -1:
            raise OSError(28, "No space left on device")
        if takes is not None:
            self.data += data[:takes]
            return min(takes, len(data))
        return None


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(log, "_FULL_S", 0.0)


def test_a_line_is_written_part_by_part():
    sink = Scripted(3, None, 2, None)
    WholeLines(sink).write(b"a whole line\n")
    assert sink.data == b"a whole line\n"


def test_a_torn_line_does_not_become_the_beginning_of_the_next_one():
    sink = Scripted(3, -1)
    lines = WholeLines(sink)
    with pytest.raises(OSError, match="No space"):
        lines.write(b"a whole line\n")
    lines.write(b"another\n")
    lines.write(b"one more\n")
    assert sink.data == b"a w\nanother\none more\n"


def test_a_stream_that_stays_full_is_given_up():
    with pytest.raises(OSError, match="takes nothing"):
        WholeLines(Scripted(*[None] * 10_000)).write(b"a line\n")


def test_without_a_stream_nothing_is_written():
    with pytest.raises(OSError, match="no standard error"):
        WholeLines(None).write(b"a line\n")


@given(
    st.lists(st.sampled_from([b"one\n", b"another\n", b"a third, longer one\n"]), max_size=8),
    st.lists(st.one_of(st.none(), st.integers(-1, 20)), max_size=40),
)
def test_whatever_the_stream_does_lines_that_were_written_are_whole(lines, script):
    sink, written = Scripted(*script), []
    whole = WholeLines(sink)
    for line in lines:
        try:
            whole.write(line)
        except OSError:
            continue
        written.append(line)
    # Between them are beginnings of lines that failed, each a line of its own.
    found = iter(sink.data.splitlines(keepends=True))
    assert all(line in found for line in written)


def test_a_process_that_was_started_without_standard_error_has_none(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert standard_error() is None


def test_standard_error_is_that_of_the_process(capfd):
    sink = standard_error()
    assert sink is not None
    WholeLines(sink).write(b"said\n")
    assert capfd.readouterr().err == "said\n"
    os.fstat(2)  # it is open still
