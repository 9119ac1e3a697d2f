"""The log: an event is a line without secrets, alike lines are bounded, nobody is held up."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.config import LogConfig, LogFormat
from monitor.frames.words import LogLevel
from monitor.service import log as log_module
from monitor.service.log import (
    LONGEST_MESSAGE,
    MINUTE_NS,
    MOST_WAITING,
    JsonFormatter,
    Line,
    LineKind,
    LogCounts,
    Logs,
    RateFilter,
    TextFormatter,
    bounded,
    start_logging,
    traceback_lines,
)

SECOND = 10**9
LONG = 10 * MINUTE_NS
PATIENCE = 20  # s; far above what anything here takes

# ---- the form of a line

KIND = LineKind("monitor.pipeline", "warning", "stream %s")


def line_of(msg: str, error: ValueError | None = None, **others: object) -> Line:
    fields = {"created": 1769860800.1239, "msg": msg, "kind": KIND, "left_out": 0, "tells": False}
    return cast("Line", logging.makeLogRecord(fields | {"exc_info": (0, error, 0)} | others))


# All of Unicode, halves of surrogates too, as they come from names of files.
anything = st.text(st.characters(codec=None))
TOKEN = "s3cr3t-" * 6


def test_a_line_is_as_it_is_documented_as_text_and_as_json():
    text_of, json_of = TextFormatter().format, JsonFormatter().format
    start = "2026-01-31T12:00:00.123Z WARNING monitor.pipeline: "
    assert text_of(line_of("stream lidar")) == f"{start}stream lidar"
    line = line_of("stream lidar", ValueError("no\n…"), left_out=3)
    assert json_of(line) == (
        '{"time": "2026-01-31T12:00:00.123Z", "level": "warning", "logger": "monitor.pipeline", '
        '"template": "stream %s", "message": "stream lidar", "left_out": 3, '
        '"exception": "ValueError: no\\n\\u2026"}'
    )
    without = json.loads(json_of(line_of("stream lidar")))
    assert list(without) == list(json.loads(json_of(line)))
    assert without["exception"] is None
    assert text_of(line_of("…", left_out=7)) == f"{start}… [7 alike were left out before]"
    told = text_of(line_of("…", left_out=7, tells=True))
    assert told == f"{start}7 lines like 'stream %s' were left out"


@given(anything, st.lists(anything, max_size=4))
@example("a\r\nb \x1b[2J \u202e \u2028\u2029\x85\x0b\x0c\0 \udcff", [])
@example("Straße 東京 🚗", [])
def test_a_line_is_one_line_whatever_is_in_its_words(message, exception):
    line = line_of(message, ValueError("\n".join(exception)) if exception else None)
    text = TextFormatter().format(line)
    text.encode("utf-8")
    first, *below = text.splitlines()
    assert first.startswith("2026-01-31T12:00:00.123Z WARNING ")
    assert len(below) == len(traceback_lines(line)) >= bool(exception)
    assert all(one.startswith("    ") for one in below)
    assert text.replace("\n", "").isprintable()
    assert not message.isprintable() or message in first
    written = JsonFormatter().format(line)
    assert written.isascii() and written.isprintable()
    found = json.loads(written)
    found["message"].encode("utf-8")  # no half of a surrogate is left
    if not any("\ud800" <= one <= "\udfff" for one in message):
        assert found["message"] == message


@given(anything, st.integers(1, 5000))
def test_no_message_is_long_and_one_that_is_cut_says_how_long_it_was(message, longest):
    assert len(bounded(message * 50, longest)) <= longest + 40
    assert bounded("x" * longest, longest) == "x" * longest
    assert bounded("x" * (longest + 1), longest) == f"{'x' * longest}… ({longest + 1} characters)"


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
    said = bounded(text, LONGEST_MESSAGE) + "".join(traceback_lines(line_of("", ValueError(text))))
    assert "s3cr3t" not in said
    assert "(left out)" in said
    words = "authorization: this call needs a bearer token, and shows none."
    assert bounded(words, LONGEST_MESSAGE) == words


# ---- the rate of alike lines


class Rated(RateFilter):
    """A filter with a clock of its own, asked with lines of kinds that have a name."""

    def __init__(self, lines_a_minute: int, burst: int) -> None:
        self.now, self.counts = 0, LogCounts()
        config = LogConfig(lines_a_minute=lines_a_minute, burst=burst)
        super().__init__(config, self.counts, lambda: self.now)

    def line(self, name: str, now: int) -> Line | None:
        self.now = now
        record = logging.LogRecord("tried", logging.INFO, "", 1, name, (1,), None)
        return cast("Line", record) if self.filter(record) else None

    def passing(self, name: str, times: list[int]) -> list[int | None]:
        found = (self.line(name, now) for now in times)
        return [line.left_out if line else None for line in found]

    def told(self, now: int, patience: int) -> int:
        self.now = now
        return sum(line.left_out for line in self.overdue(patience))


KINDS = "abcdefgh"
# Kinds, how long after the line before, and now and then a look at what is overdue.
lines = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.one_of(st.just(0), st.integers(0, 2 * SECOND), st.integers(0, 3 * MINUTE_NS)),
        st.sampled_from(("log", "log", "log", "tell")),
    ),
    max_size=80,
)
limits = st.tuples(st.integers(1, 200), st.integers(1, 8))


@given(lines, limits, st.integers(0, 3))
def test_what_passes_is_bounded_and_all_that_is_left_out_is_told(lines, limits, unwritten):
    lines_a_minute, burst = limits
    desk, now, told, came = Rated(*limits), 0, 0, 0
    passed: dict[str, list[int]] = {name: [] for name in KINDS}
    for number, (name, pause, what) in enumerate(lines):
        now += pause
        if what == "tell":
            told += desk.told(now, MINUTE_NS)
            continue
        came += 1
        line = desk.line(name, now)
        if line is None:
            continue
        passed[name].append(now)
        if number % 4 < unwritten:
            desk.leave_out(line)  # it passed, but went nowhere
        else:
            told += line.left_out + 1
    for times in passed.values():
        for i, first in enumerate(times):
            for n, last in enumerate(times[i:], 1):
                # In whole numbers: n <= burst + rate * minutes.
                assert (n - burst) * MINUTE_NS <= lines_a_minute * (last - first)
    assert told + desk.told(now, 0) == came
    assert desk.told(now + LONG, 0) == 0


def test_a_burst_passes_then_one_in_an_interval_which_tells_of_the_others():
    desk = Rated(12, 3)
    assert desk.passing("a", [0] * 5) == [0, 0, 0, None, None]
    assert desk.passing("b", [0]) == [0]
    assert desk.passing("a", [5 * SECOND - 1, 5 * SECOND, 5 * SECOND]) == [None, 3, None]
    assert desk.passing("a", [10 * SECOND]) == [1]
    assert desk.passing("a", [LONG] * 5) == [0, 0, 0, None, None]
    assert desk.counts.left_out == 6
    assert Rated(0, 1).passing("a", [0] * 1000) == [0] * 1000


# ---- records on their way out

JSON = LogConfig(format=LogFormat.JSON)
TIGHT = LogConfig(format=LogFormat.JSON, burst=2, lines_a_minute=1)
NO_LIMIT = LogConfig(format=LogFormat.JSON, lines_a_minute=0)


class Desk:
    """A logger of its own, a clock, and a sink that may fail, or take nothing for a while."""

    def __init__(self, config: LogConfig) -> None:
        self.data, self.now = b"", 0
        self.fault: Exception | None = None
        self.free = threading.Event()
        self.free.set()
        self.logs = Logs(config, self.write, lambda: self.now)
        self.counts = self.logs.counts
        self.log = logging.Logger("monitor.tried", logging.DEBUG)
        self.log.addHandler(self.logs)

    def write(self, data: bytes, /) -> int:
        assert self.free.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault
        self.data += data
        return len(data)

    def warn(self, template: str, *numbers: int) -> None:
        for number in numbers:
            self.log.warning(template, number)

    @property
    def written(self) -> int:
        self.logs.flush()
        return sum(self.counts.lines.values())

    @property
    def lines(self) -> list[str]:
        self.logs.flush()
        return self.data.decode().splitlines()

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]

    @property
    def messages(self) -> list[object]:
        return [event["message"] for event in self.events]


@pytest.fixture
def at() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []
    level = logging.getLogger().level

    def make(config: LogConfig = JSON) -> Desk:
        desks.append(Desk(config))
        return desks[-1]

    yield make
    for desk in desks:
        desk.free.set()
        desk.logs.close()
    logging.getLogger().setLevel(level)


def test_lines_are_text_by_default_and_counted_by_level_and_critical_ones_are_errors(at):
    desk, other = at(LogConfig()), at()
    for one in (desk, other):
        one.log.warning("stream %s is late by %d s", "lidar", 3)
    (line,) = desk.lines
    assert line.endswith("Z WARNING monitor.tried: stream lidar is late by 3 s")
    (event,) = other.events
    assert event["template"] == "stream %s is late by %d s"
    for level in (logging.DEBUG, logging.ERROR, logging.CRITICAL):
        other.log.log(level, "of level %d", level)
    assert other.written == 4
    assert other.counts.lines == {"debug": 1, "info": 0, "warning": 1, "error": 2}


def test_a_kind_is_a_level_a_template_and_an_error_whatever_its_arguments(at):
    desk = at(TIGHT)
    for number in range(5):
        desk.log.error("late %d", number)
    assert (desk.written, desk.counts.left_out) == (2, 3)
    desk.log.info("late %d", 1)
    desk.log.error("late %d", 1, exc_info=ValueError("no"))
    desk.log.error("late %d", 1, extra={"of": "car"})
    desk.log.error("early %d", 1)
    assert (desk.written, desk.counts.left_out) == (6, 3)


def test_what_does_not_fit_or_has_no_text_is_no_reason_to_fail(at):
    desk = at()
    desk.log.info("%d", "x")
    desk.log.info(type("Wrong", (), {"__str__": lambda _: 1 / 0})())
    desk.log.info("after it")
    unfit, textless, after = map(str, desk.messages)
    assert (unfit, after) == ("%d (without its arguments, which do not fit)", "after it")
    assert re.fullmatch(rf"{__file__}:\d+ \(without .*\)", textless)
    assert desk.counts.left_out == 0
    lines = traceback_lines(line_of("", ValueError("\n".join(map(str, range(99))))))
    assert len(lines) <= 30 and lines[-1] == "98" and any("lines …" in one for one in lines)


def test_lines_left_out_are_told_by_the_next_alike_one_or_within_a_minute_or_at_the_end(at):
    desk = at(TIGHT)
    desk.warn("late %d", *range(10))
    desk.now = 60 * SECOND
    desk.warn("late %d", 10)
    assert [event["left_out"] for event in desk.events] == [0, 0, 8]
    desk.warn("late %d", *range(3))
    for seconds, written in ((109, 3), (115, 4), (300, 4)):
        desk.now = seconds * SECOND
        desk.logs.tell()
        assert desk.written == written
    *_, last = desk.events
    assert last["message"] == "3 lines like 'late %d' were left out"
    assert (last["template"], last["left_out"], last["level"]) == ("late %d", 3, "warning")
    desk.warn("lost %d", *range(3))
    desk.logs.close()
    assert desk.messages[-1] == "1 line like 'lost %d' was left out"


def test_other_settings_hold_from_the_next_line_on_and_lose_none_that_waits(at):
    desk = at(LogConfig(burst=1))
    desk.warn("first %d", 1, 1)
    desk.free.clear()
    desk.logs.apply(JSON.model_copy(update={"level": LogLevel.ERROR, "lines_a_minute": 0}))
    desk.warn("second %d", *range(20))
    assert logging.getLogger().level == logging.ERROR
    desk.logs.apply(LogConfig())
    desk.free.set()
    text, *lines = desk.lines
    assert text.endswith("first 1")
    assert [json.loads(line)["message"] for line in lines] == [f"second {n}" for n in range(20)]


def test_a_sink_that_takes_nothing_holds_nobody_up_and_memory_is_bounded(at):
    desk = at(NO_LIMIT)
    desk.free.clear()
    desk.warn("late %d", *range(3 * MOST_WAITING))  # or it would hang here
    assert desk.logs._waiting.qsize() == MOST_WAITING
    assert 2 * MOST_WAITING - 1 <= desk.counts.left_out <= 2 * MOST_WAITING
    desk.free.set()
    desk.logs.flush()
    desk.logs.close()
    # The last line tells of them, and one that found room before, if the writer began late.
    told = sum(event.get("left_out", 0) for event in desk.events)
    assert len(desk.lines) - 1 + desk.counts.left_out == 3 * MOST_WAITING
    assert told == desk.counts.left_out


def test_the_end_does_not_wait_for_a_sink_that_takes_nothing(at, monkeypatch):
    monkeypatch.setattr(log_module, "_PATIENCE_S", 0.05)
    desk = at()
    desk.free.clear()
    for words in ("stopped", "after the end"):
        desk.log.info(words)
        desk.logs.close()
    assert desk.data == b""


@pytest.mark.parametrize("fault", [OSError(28, "full"), ValueError()])
def test_what_cannot_be_written_is_counted_once_and_told_when_it_can_again(at, fault):
    desk = at(NO_LIMIT)
    desk.warn("seen %d", 0)
    desk.logs.flush()
    desk.fault = fault
    desk.warn("seen %d", *range(1, 11))
    for minute in range(1, 5):  # telling in vain is told again
        desk.now = minute * 60 * SECOND
        desk.logs.tell()
    assert (desk.written, desk.counts.left_out) == (1, 10)
    desk.fault = None
    desk.warn("seen %d", 11)
    assert [event["left_out"] for event in desk.events] == [0, 10]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_from_start_to_end_all_is_taken_and_afterwards_all_is_as_before():
    found, root = bytearray(), logging.getLogger()
    before = (root.level, root.handlers[:], threading.excepthook, sys.unraisablehook)

    def write(data: bytes, /) -> int:
        found.extend(data)
        return len(data)

    with start_logging(JSON, write) as logs:
        assert root.level == logging.INFO
        logging.getLogger("monitor.tried").info("hello")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        for target, name in ((lambda: 1 / 0, "one that fails"), (sys.exit, "one that ends")):
            thread = threading.Thread(target=target, name=name)
            thread.start()
            thread.join()

        class Falling:
            def __del__(self) -> None:
                raise KeyError("in a finaliser")

        Falling()
    assert sum(logs.counts.lines.values()) == 4
    assert (root.level, root.handlers, threading.excepthook, sys.unraisablehook) == before
    said = [f"{one['message']} {one['exception']}" for one in map(json.loads, found.splitlines())]
    for words in ("hello", "DeprecationWarning: old", "ZeroDivisionError", "in a finaliser"):
        assert any(words in one for one in said)
    assert any("the thread one that fails ended by a fault" in one for one in said)
