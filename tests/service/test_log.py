"""Log records on their way out: nobody who logs is held up, or learns that it failed."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from monitor.config import LogConfig, LogFormat, LogLevel
from monitor.service import log as log_module
from monitor.service.log import (
    MOST_WAITING,
    Logs,
    Sink,
    standard_error,
    start_logging,
)

SECOND = 10**9
JSON = LogConfig(format=LogFormat.JSON)
TIGHT = LogConfig(format=LogFormat.JSON, burst=2, lines_a_minute=1)
NO_LIMIT = LogConfig(format=LogFormat.JSON, lines_a_minute=0)
PATIENCE = 20  # s; far above what anything here takes


class Kept:
    """What was written; and it may fail, or take nothing for a while."""

    def __init__(self) -> None:
        self.data = b""
        self.fault: Exception | None = None
        self.free = threading.Event()
        self.free.set()

    def write(self, data: bytes, /) -> int:
        assert self.free.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault
        self.data += data
        return len(data)

    @property
    def lines(self) -> list[str]:
        return self.data.decode().splitlines()

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]

    @property
    def messages(self) -> list[object]:
        return [event["message"] for event in self.events]


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Desk:
    """A logger of its own, and where its lines go."""

    def __init__(self, config: LogConfig, sink: Sink | None = None) -> None:
        self.kept, self.clock = Kept(), Clock()
        self.logs = Logs(config, sink or self.kept.write, self.clock)
        self.counts = self.logs.counts
        self.log = logging.Logger("monitor.tried", logging.DEBUG)
        self.log.addHandler(self.logs)

    @property
    def written(self) -> int:
        self.logs.flush()
        return sum(self.counts.lines.values())


@pytest.fixture
def at() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []
    level = logging.getLogger().level

    def make(config: LogConfig = JSON, sink: Sink | None = None) -> Desk:
        desks.append(Desk(config, sink))
        return desks[-1]

    yield make
    for desk in desks:
        desk.kept.free.set()
        desk.logs.close()
    logging.getLogger().setLevel(level)


def test_a_record_is_written_as_text_by_default(at):
    desk = at(LogConfig())
    desk.log.warning("stream %s is late by %d s", "lidar", 3)
    desk.logs.flush()
    assert len(desk.kept.lines) == 1
    assert desk.kept.lines[0].endswith("Z WARNING monitor.tried: stream lidar is late by 3 s")


def test_a_record_is_written_as_json_with_its_template(at):
    desk = at()
    desk.log.info("stream %s is late by %d s", "lidar", 3)
    desk.logs.flush()
    (event,) = desk.kept.events
    assert list(event) == [
        *("time", "level", "logger", "template", "message", "left_out", "exception")
    ]
    assert event["template"] == "stream %s is late by %d s"
    assert event["message"] == "stream lidar is late by 3 s"
    assert (event["level"], event["logger"]) == ("info", "monitor.tried")
    assert (event["left_out"], event["exception"]) == (0, None)


def test_lines_are_counted_by_level_and_critical_ones_are_errors(at):
    desk = at()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        desk.log.log(level, "of level %d", level)
    assert desk.written == 5
    assert desk.counts.lines == {"debug": 1, "info": 1, "warning": 1, "error": 2}
    assert desk.counts.left_out == 0


def test_arguments_make_no_kind_of_their_own(at):
    desk = at(TIGHT)
    for number in range(100):
        desk.log.warning("frame %d is late", number)
    assert desk.written == 2
    assert desk.counts.left_out == 98


def test_what_was_formatted_already_is_one_kind_by_its_place(at):
    desk = at(TIGHT)
    for number in range(100):
        desk.log.warning(f"frame {number} is late")
    assert desk.written == 2


@pytest.mark.parametrize(
    "differ",
    [
        lambda log: log.info("late %d", 1),
        lambda log: log.error("late %d", 1, exc_info=ValueError("no")),
        lambda log: log.error("late %d", 1, extra={"of": "car"}),
        lambda log: log.error("early %d", 1),
    ],
    ids=("level", "error", "matter", "template"),
)
def test_another_level_error_matter_or_template_is_another_kind(at, differ):
    desk = at(TIGHT)
    for number in range(5):
        desk.log.error("late %d", number)
    differ(desk.log)
    assert desk.written == 3


def test_a_line_that_passes_again_says_how_many_alike_were_left_out(at):
    desk = at(TIGHT)
    for number in range(10):
        desk.log.warning("late %d", number)
    desk.clock.now = 60 * SECOND
    desk.log.warning("late %d", 10)
    desk.logs.flush()
    assert [event["left_out"] for event in desk.kept.events] == [0, 0, 8]


def test_of_a_kind_that_fell_silent_it_is_told_within_a_minute(at):
    desk = at(TIGHT)
    for number in range(10):
        desk.log.warning("late %d", number)
    desk.logs.tell(49 * SECOND)
    assert desk.written == 2
    desk.logs.tell(55 * SECOND)
    desk.logs.tell(300 * SECOND)
    desk.logs.flush()
    last = desk.kept.events[-1]
    assert len(desk.kept.events) == 3
    assert last["message"] == "8 lines like 'late %d' were left out"
    assert (last["template"], last["left_out"], last["level"]) == ("late %d", 8, "warning")


def test_the_writer_tells_by_itself(at, monkeypatch):
    monkeypatch.setattr(log_module, "_LOOK_S", 0.01)
    desk = at(TIGHT)
    for number in range(10):
        desk.log.warning("late %d", number)
    desk.clock.now = 55 * SECOND
    done = threading.Event()
    for _ in range(2000):
        if len(desk.kept.lines) == 3:
            break
        done.wait(0.01)
    assert desk.kept.messages[-1] == "8 lines like 'late %d' were left out"


def test_as_text_too_it_is_told_once(at):
    desk = at(TIGHT.model_copy(update={"format": LogFormat.TEXT}))
    for number in range(3):
        desk.log.warning("late %d", number)
    desk.logs.close()
    assert desk.kept.lines[-1].endswith(
        "Z WARNING monitor.tried: 1 line like 'late %d' was left out"
    )


def test_at_the_end_all_that_was_left_out_is_told(at):
    desk = at(TIGHT)
    for number in range(10):
        desk.log.warning("late %d", number)
        desk.log.error("lost %d", number)
    desk.logs.close()
    assert sorted(desk.kept.messages[-2:]) == [
        "8 lines like 'late %d' were left out",
        "8 lines like 'lost %d' were left out",
    ]


def test_an_error_has_its_traceback_and_the_first_of_a_kind_passes(at):
    desk = at(LogConfig(burst=1, lines_a_minute=1, format=LogFormat.JSON))
    for make in (lambda: 1 / 0, lambda: int("x"), lambda: 1 / 0):
        try:
            make()
        except Exception:
            desk.log.exception("frame %d failed", 1)
    desk.logs.flush()
    first, second = desk.kept.events
    assert "ZeroDivisionError: division by zero" in str(first["exception"])
    assert "ValueError: invalid literal" in str(second["exception"])


def test_other_settings_hold_from_the_next_line_on(at):
    desk = at(LogConfig(burst=1))
    desk.log.warning("first %d", 1)
    desk.log.warning("first %d", 1)
    desk.logs.apply(JSON.model_copy(update={"level": LogLevel.ERROR, "lines_a_minute": 0}))
    for number in range(20):
        desk.log.warning("second %d", number)
    desk.logs.flush()
    text, *lines = desk.kept.lines
    assert text.endswith("first 1")
    assert [json.loads(line)["message"] for line in lines] == [f"second {n}" for n in range(20)]
    assert logging.getLogger().level == logging.ERROR


def test_what_waits_is_written_though_settings_change(at):
    desk = at(NO_LIMIT)
    desk.kept.free.clear()
    for number in range(100):
        desk.log.info("before %d", number)
    desk.logs.apply(LogConfig())
    desk.kept.free.set()
    desk.logs.flush()
    assert desk.kept.messages == [f"before {n}" for n in range(100)]


def test_a_sink_that_takes_nothing_holds_nobody_up_and_memory_is_bounded(at):
    desk = at(NO_LIMIT)
    desk.kept.free.clear()
    for number in range(3 * MOST_WAITING):
        desk.log.info("late %d", number)  # or it would hang here
    assert desk.logs._waiting.qsize() == MOST_WAITING
    assert 2 * MOST_WAITING - 1 <= desk.counts.left_out <= 2 * MOST_WAITING
    desk.kept.free.set()
    desk.logs.flush()
    desk.logs.close()
    lines = len(desk.kept.lines)
    told = desk.kept.events[-1]["left_out"]
    assert lines - 1 + told == 3 * MOST_WAITING
    assert told == desk.counts.left_out


def test_the_end_does_not_wait_for_a_sink_that_takes_nothing(at, monkeypatch):
    monkeypatch.setattr(log_module, "_PATIENCE_S", 0.05)
    desk = at()
    desk.kept.free.clear()
    desk.log.info("stopped")
    desk.logs.flush()
    desk.logs.close()
    desk.log.info("after the end")
    desk.logs.close()
    assert desk.kept.data == b""


@pytest.mark.parametrize("fault", [BrokenPipeError(32, "gone"), OSError(28, "full"), ValueError()])
def test_what_cannot_be_written_is_counted_and_told_when_it_can_again(at, fault):
    desk = at(NO_LIMIT)
    desk.log.info("seen %d", 0)
    desk.logs.flush()
    desk.kept.fault = fault
    for number in range(1, 11):
        desk.log.info("seen %d", number)
    assert desk.written == 1
    assert desk.counts.left_out == 10
    desk.kept.fault = None
    desk.log.info("seen %d", 11)
    desk.logs.flush()
    assert [event["left_out"] for event in desk.kept.events] == [0, 10]


def test_a_line_of_which_a_part_is_written_is_counted_as_left_out(at):
    taken: list[int | None] = [3, None, 0]
    desk = at(NO_LIMIT, lambda data: taken.pop() if taken else len(data))
    for number in range(4):
        desk.log.info("seen %d", number)
    assert desk.written == 1
    assert desk.counts.left_out == 3


def test_telling_in_vain_is_told_again_and_counted_once(at):
    desk = at(TIGHT)
    desk.kept.fault = BrokenPipeError(32, "gone")
    for number in range(10):
        desk.log.info("seen %d", number)
    desk.logs.flush()
    for minute in range(1, 5):
        desk.clock.now = minute * 60 * SECOND
        desk.logs.tell(desk.clock.now)
        desk.logs.flush()
    assert desk.counts.left_out == 10
    desk.kept.fault = None
    desk.logs.tell(desk.clock.now + 60 * SECOND)
    desk.logs.flush()
    assert desk.kept.messages == ["10 lines like 'seen %d' were left out"]


class Wrong:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("template", "arguments"),
    [("%d", ("x",)), ("%s %s", (1,)), ("%s", (Wrong(),)), ("%(a)s", ({"b": 1},)), ("%s", (2**70,))],
)
def test_arguments_that_do_not_fit_are_no_reason_to_fail(at, template, arguments):
    desk = at()
    desk.log.info(template, *arguments)
    assert desk.written == 1


@pytest.mark.parametrize("what", [Wrong(), None, 3, ValueError("x"), b"bytes"])
def test_a_message_that_is_no_text_is_no_reason_to_fail(at, what):
    desk = at()
    desk.log.info(what)
    desk.log.info("after it")
    assert desk.written + desk.counts.left_out == 2
    assert desk.kept.messages[-1] == "after it"


def test_without_a_standard_error_lines_are_counted_alone():
    with start_logging(LogConfig(), None) as logs:
        logging.getLogger("monitor.tried").warning("nobody hears %s", "this")
    assert logs.counts.left_out == 1
    assert sum(logs.counts.lines.values()) == 0


def test_a_process_that_was_started_without_standard_error_has_none(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert standard_error() is None


def test_standard_error_is_that_of_the_process(capfd):
    sink = standard_error()
    assert sink is not None
    assert sink(b"said\n") == 5
    assert capfd.readouterr().err == "said\n"
    os.fstat(2)  # it is open still


def test_many_threads_lose_nothing_and_mix_no_lines(at):
    desk = at(NO_LIMIT)

    def speak(name: int) -> None:
        for number in range(50):
            desk.log.info("%d of %d", number, name)

    threads = [threading.Thread(target=speak, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert desk.written == 400
    for name in range(8):
        mine = [text for text in desk.kept.messages if str(text).endswith(f" of {name}")]
        assert mine == [f"{n} of {name}" for n in range(50)]


def test_a_line_that_logs_while_it_is_made_is_no_trouble(at):
    desk = at()

    class Talkative:
        def __str__(self) -> str:
            desk.log.info("asked for my name")
            return "me"

    desk.log.info("here is %s", Talkative())
    assert desk.written == 2
    assert set(desk.kept.messages) == {"here is me", "asked for my name"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_from_start_to_end_all_is_taken_and_afterwards_all_is_as_before():
    kept, root = Kept(), logging.getLogger()
    before = (root.level, root.handlers[:], threading.excepthook, sys.unraisablehook)
    with start_logging(JSON, kept.write) as logs:
        assert root.level == logging.INFO
        logging.getLogger("monitor.tried").info("hello")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: 1 / 0, name="one that fails")
        thread.start()
        thread.join()
        ending = threading.Thread(target=sys.exit)
        ending.start()
        ending.join()

        class Falling:
            def __del__(self) -> None:
                raise KeyError("in a finaliser")

        Falling()
    assert sum(logs.counts.lines.values()) == 4
    assert (root.level, root.handlers, threading.excepthook, sys.unraisablehook) == before
    said = [f"{event['message']} {event['exception']}" for event in kept.events]
    assert len(said) == 4
    for words in ("hello", "DeprecationWarning: old", "ZeroDivisionError", "in a finaliser"):
        assert any(words in one for one in said)
    assert any("the thread one that fails ended by a fault" in one for one in said)
