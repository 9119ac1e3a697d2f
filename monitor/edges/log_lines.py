"""Log records on their way to standard error: held back where too many are alike, then written.

The thread that logs makes the line and leaves it in a bounded queue; a thread of its own writes.
So neither a pipe that nobody reads nor a full disk holds up a frame: what cannot be taken is
counted, and told later. A crash of the process itself loses what waits: that of milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from monitor.config_log import LogConfig, LogFormat
from monitor.edges.standard_error import Sink, WholeLines
from monitor.log_form import (
    LONGEST_MESSAGE,
    LONGEST_TEMPLATE,
    LogLine,
    bounded,
    json_line,
    text_line,
    traceback_lines,
)
from monitor.log_rate import LineRate

# Lines that wait to be written, of some 10 kB at most.
MOST_WAITING = 512
# How often it is looked whether something is to be told of what was left out, and how old that
# gets before it is; together below a minute.
_LOOK_S, _TELL_NS = 5.0, 50 * 10**9
# How long the end waits for a standard error that takes nothing.
_PATIENCE_S = 2.0
_FORMS = {LogFormat.TEXT: text_line, LogFormat.JSON: json_line}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LogCounts:
    """Since the start: lines written, by level, and lines left out for whatever reason."""

    lines: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("debug", "info", "warning", "error"), 0)
    )
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Kind:
    """Lines that are alike: from one place in the program, of the same error and matter."""

    logger: str
    level: str
    place: str
    error: str
    of: str
    template: str = field(compare=False)


_OTHERS = _Kind("monitor", "warning", "", "", "", "any other")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A line, and how many of its kind go untold where it cannot be written."""

    data: bytes
    kind: _Kind
    told: int
    is_event: bool


class Logs(logging.Handler):
    """Of this process, until `close`. Nothing that it does raises, or waits for long.

    counts  of what was written; may be read from any thread
    clock   ns that never go back
    """

    def __init__(
        self,
        config: LogConfig,
        sink: Sink | None,
        counts: LogCounts,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__()
        self.counts, self._config, self._clock = counts, config, clock
        self._lines = WholeLines(sink)
        # Not the handler's own lock, which is held while the end waits for the writer.
        self._ours = threading.RLock()
        self._rate = LineRate(_OTHERS, config.lines_a_minute, config.burst)
        # A simple queue may be filled by a finaliser that runs while it is filled.
        self._waiting: queue.SimpleQueue[_Waiting | threading.Event | None] = queue.SimpleQueue()
        self._ended = False
        self._writer = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._writer.start()

    def apply(self, config: LogConfig) -> None:
        """Go on with other settings; nothing that waits is lost."""
        with self._ours:
            self._config = config
            self._rate.limit(config.lines_a_minute, config.burst, self._clock())
        logging.getLogger().setLevel(config.level.upper())

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record. Who logs never learns that this failed: it is counted."""
        try:
            kind = _kind_of(record)
            with self._ours:
                left_out = self._rate.admit(kind, self._clock())
                if left_out is None:
                    self.counts.left_out += 1
                    return
            self._leave(_line_of(record, kind, left_out), kind)
        except Exception:
            with self._ours:
                self.counts.left_out += 1

    def tell(self, now_ns: int, patience_ns: int = _TELL_NS) -> None:
        """Leave a line for each kind that left some out so long ago and was silent since."""
        with self._ours:
            overdue = self._rate.overdue(now_ns, patience_ns)
        for kind, lines in overdue:
            self._leave(_telling_of(kind, lines), kind)

    def flush(self) -> None:
        """Wait until all that came so far is written, or two seconds."""
        if self._writer.is_alive():
            written = threading.Event()
            self._waiting.put(written)
            written.wait(_PATIENCE_S)

    def close(self) -> None:
        """Tell what was left out, write what waits and end, within two seconds or so."""
        with self._ours:
            ended, self._ended = self._ended, True
        if not ended:
            self.tell(self._clock(), patience_ns=0)
            self._waiting.put(None)
            self._writer.join(_PATIENCE_S)
        super().close()

    def _leave(self, line: LogLine, kind: _Kind) -> None:
        text = f"{_FORMS[self._config.format](line)}\n"
        waiting = _Waiting(text.encode(), kind, line.left_out, not line.tells)
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(waiting)
        else:
            self._lose(waiting)

    def _lose(self, waiting: _Waiting) -> None:
        with self._ours:
            self.counts.left_out += waiting.is_event
            self._rate.leave_out(waiting.kind, waiting.told + waiting.is_event, self._clock())

    def _write_on(self) -> None:
        """In a thread of its own, until it finds the end."""
        looked_ns = self._clock()
        while True:
            with contextlib.suppress(queue.Empty):
                found = self._waiting.get(timeout=_LOOK_S)
                if found is None:
                    return
                if isinstance(found, threading.Event):
                    found.set()
                else:
                    self._write(found)
            now_ns = self._clock()
            if now_ns - looked_ns >= _LOOK_S * 1e9:
                looked_ns = now_ns
                self.tell(now_ns)

    def _write(self, waiting: _Waiting) -> None:
        try:
            self._lines.write(waiting.data)
            self.counts.lines[waiting.kind.level] += 1
        except Exception:
            self._lose(waiting)


@contextlib.contextmanager
def start_logging(config: LogConfig, sink: Sink | None) -> Iterator[Logs]:
    """Take all that this process logs, its warnings, and what its threads die of, until the end.

    sink  None: it is counted alone
    """
    logs, root = Logs(config, sink, LogCounts()), logging.getLogger()
    level, threads, unraisable = root.level, threading.excepthook, sys.unraisablehook
    root.addHandler(logs)
    logs.apply(config)
    logging.captureWarnings(True)
    threading.excepthook, sys.unraisablehook = _thread_ended, _nobody_to_raise_to
    try:
        yield logs
    finally:
        threading.excepthook, sys.unraisablehook = threads, unraisable
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(logs)
        logs.close()


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "unknown"
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        log.error("the thread %s ended by a fault", name, exc_info=error)


def _nobody_to_raise_to(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        log.error("a fault where nobody could be told: %s", args.err_msg, exc_info=error)


def _kind_of(record: logging.LogRecord) -> _Kind:
    """The arguments make no kind; what was formatted already is known by where it is said."""
    template = bounded(str(record.msg), LONGEST_TEMPLATE)
    error = record.exc_info[0] if record.exc_info else None
    return _Kind(
        logger=record.name,
        level=_level(record.levelno),
        place=template if record.args else f"{record.pathname}:{record.lineno}",
        error=error.__name__ if error else "",
        of=str(getattr(record, "of", ""))[:LONGEST_TEMPLATE],
        template=template,
    )


def _level(number: int) -> str:
    for least, level in ((logging.ERROR, "error"), (logging.WARNING, "warning")):
        if number >= least:
            return level
    return "info" if number >= logging.INFO else "debug"


def _line_of(record: logging.LogRecord, kind: _Kind, left_out: int) -> LogLine:
    try:
        message = bounded(record.getMessage(), LONGEST_MESSAGE)
    except Exception:
        message = f"{kind.template} (without its arguments, which do not fit)"
    exception: tuple[str, ...] = ()
    if record.exc_info and record.exc_info[0] is not None and record.exc_info[1] is not None:
        exception = traceback_lines(record.exc_info[1])
    return LogLine(
        record.created, kind.level, record.name, kind.template, message, left_out, exception
    )


def _telling_of(kind: _Kind, lines: int) -> LogLine:
    were = "line like '{}' was" if lines == 1 else "lines like '{}' were"
    text = f"{lines} {were.format(kind.template)} left out"
    return LogLine(time.time(), kind.level, kind.logger, kind.template, text, lines, tells=True)
