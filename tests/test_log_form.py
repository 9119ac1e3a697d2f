"""Lines of the log: one event is one line, whatever is in its words, and none of it is a secret."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.service.log import (
    LONGEST_MESSAGE,
    LineKind,
    LogLine,
    bounded,
    json_line,
    text_line,
    traceback_lines,
)

KIND = LineKind("monitor.pipeline", "warning", (), "stream %s")
LINE = LogLine(1769860800.1239, KIND, "stream lidar")
# All of Unicode, halves of surrogates too, as they come from names of files.
anything = st.text(st.characters(codec=None))
TOKEN = "s3cr3t-" * 6


def test_a_line_of_text_is_as_it_is_documented():
    assert text_line(LINE) == "2026-01-31T12:00:00.123Z WARNING monitor.pipeline: stream lidar"


def test_a_line_of_json_is_as_it_is_documented():
    line = replace(LINE, left_out=3, exception=("Traceback …", "ValueError: no"))
    assert json_line(line) == (
        '{"time": "2026-01-31T12:00:00.123Z", "level": "warning", "logger": "monitor.pipeline", '
        '"template": "stream %s", "message": "stream lidar", "left_out": 3, '
        '"exception": "Traceback \\u2026\\nValueError: no"}'
    )


def test_without_an_exception_the_keys_are_the_same():
    with_one = json.loads(json_line(replace(LINE, exception=("ValueError: no",))))
    without = json.loads(json_line(LINE))
    assert list(without) == list(with_one)
    assert without["exception"] is None


def test_text_tells_of_alike_lines_once():
    assert text_line(replace(LINE, left_out=7)).endswith("lidar [7 alike were left out before]")
    assert text_line(replace(LINE, left_out=7, tells=True)).endswith("stream lidar")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\r\n2026-01-31T12:00:00.000Z INFO monitor: all is well", "a\\r\\n2026-01-31T"),
        ("\x1b[2J\x1b[31m", "\\x1b[2J\\x1b[31m"),
        ("\u202etfel ot thgir", "\\u202etfel"),
        ("\u2028\u2029\x85\x0b\x0c", "\\u2028\\u2029\\x85\\x0b\\x0c"),
        ("\0", "\\x00"),
        ("\udcff", "\\udcff"),
        ("Straße 東京 🚗", "Straße 東京 🚗"),
    ],
)
def test_what_a_client_names_its_stream_stays_in_its_line(name, shown):
    assert shown in text_line(replace(LINE, message=f"stream {name}"))


@given(anything, anything, st.lists(anything, max_size=4))
def test_text_is_one_line_and_what_is_below_it_is_indented(message, logger, exception):
    kind = replace(KIND, logger=logger)
    text = text_line(LogLine(LINE.time_s, kind, message, 0, tuple(exception)))
    text.encode("utf-8")
    first, *below = text.splitlines()
    assert first.startswith("2026-01-31T12:00:00.123Z WARNING ")
    assert len(below) == len(exception)
    assert all(line.startswith("    ") for line in below)
    assert text.replace("\n", "").isprintable()


@given(anything, anything, anything)
def test_json_is_one_line_of_ascii_that_gives_the_words_back(message, logger, error):
    text = json_line(LogLine(LINE.time_s, replace(KIND, logger=logger), message, 0, (error,)))
    assert text.isascii()
    assert text.isprintable()
    found = json.loads(text)
    found["message"].encode("utf-8")  # no half of a surrogate is left
    if not any("\ud800" <= one <= "\udfff" for one in message):
        assert found["message"] == message


@given(anything, st.integers(1, 5000))
def test_no_message_is_long(message, longest):
    assert len(bounded(message * 50, longest)) <= longest + 40


def test_what_is_cut_says_how_long_it_was():
    assert bounded("x" * 5000, 10) == "xxxxxxxxxx… (5000 characters)"
    assert bounded("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize(
    "text",
    [
        f"metadata (('authorization', 'Bearer {TOKEN}'),)",
        f"authorization: bearer {TOKEN}",
        f"{'x' * 1970} BEARER {TOKEN}",
        f"-----BEGIN PRIVATE KEY-----\n{TOKEN}\n{TOKEN}\n-----END PRIVATE KEY-----",
        f"-----BEGIN EC PRIVATE KEY-----\n{TOKEN}",
        f"b'-----BEGIN PRIVATE KEY-----\\n{TOKEN}'",
    ],
)
def test_what_looks_like_a_secret_is_left_out_of_messages_and_of_errors(text):
    said = bounded(text, LONGEST_MESSAGE) + "".join(traceback_lines(ValueError(text)))
    assert "s3cr3t" not in said
    assert "(left out)" in said


def test_words_about_tokens_are_no_secrets():
    text = "authorization: this call needs a bearer token, and shows none."
    assert bounded(text, LONGEST_MESSAGE) == text


def raised(error: BaseException, depth: int) -> BaseException:
    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        else:
            raise error

    try:
        fall(depth)
    except BaseException as caught:
        return caught
    raise AssertionError


class Unspeakable(Exception):
    """It cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError("many\n" * 5000),
        ValueError("long" * 100_000),
        ValueError("\x1b[2J\r\n"),
        Unspeakable(),
        ExceptionGroup("all", [ValueError(str(n)) for n in range(200)]),
    ],
    ids=("plain", "many lines", "a long one", "control", "unspeakable", "group"),
)
@pytest.mark.parametrize("depth", [0, 5, 400])
def test_a_traceback_is_bounded_and_says_what_and_where(error, depth):
    lines = traceback_lines(raised(error, depth))
    assert len(lines) <= 30
    assert sum(map(len, lines)) <= 30 * 300
    assert not any("\n" in line for line in lines)
    assert "Traceback" in lines[0] or "Traceback" in lines[1]
    text = "\n".join(lines)
    if not isinstance(error, ExceptionGroup):
        assert type(error).__name__ in text or len(str(error)) > 1000


def test_a_chain_of_errors_keeps_its_beginning_and_its_end():
    error: BaseException = raised(KeyError("the first"), 3)
    for number in range(60):
        later = ValueError(f"number {number}")
        later.__cause__ = error
        error = raised(later, 2)
    lines = traceback_lines(error)
    assert len(lines) <= 30
    assert "number 59" in lines[-1]
    assert any(line.startswith("… ") for line in lines)
