"""The sidecar's log: records become bounded lines of text or JSON on standard error.

A line holds names of clients and words of exceptions. None of them can end a line, begin another,
move the cursor of a terminal or make a line long, and anything that looks like a secret is cut out.
Lines that are alike pass at a limited rate.

The thread that logs puts its line into a bounded queue and another thread writes it, so that
neither a pipe without a reader nor a full disk holds up a frame. A line that finds no room is
counted and told later. A crash of the process loses the lines of its last milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, cast

from monitor.config import LogConfig, LogFormat

LONGEST_MESSAGE = 2000  # characters
LONGEST_TEMPLATE = 200

# Lines of a traceback: the first ones and the last ones, where the error itself is.
FIRST_LINES, LAST_LINES, LONGEST_LINE = 6, 23, 256
_LEVELS = ("debug", "info", "warning", "error")
_FRAMES = 20  # of an exception, the innermost ones

# Characters of a text; the rest is neither searched for secrets nor written.
_EXAMINED = 2**20

_SECRET = re.compile(
    r"(?P<bearer>\bbearer\s+)[\w\-.~+/=]{16,}"
    r"|-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)

MINUTE_NS = 60 * 10**9

# Lines that wait to be written, of some 10 kB at most.
MOST_WAITING = 512

# s between two looks for lines left out, and ns before they are told; together below a minute.
_LOOK_S, _TELL_NS = 5.0, 50 * 10**9

# s that the end waits for a standard error that takes nothing.
_PATIENCE_S = 2.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class LogCounts:
    """Counts lines since the start: written ones by level, and those left out."""

    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LEVELS, 0))
    left_out: int = 0


@dataclass(slots=True)
class LineKind:
    """Lines that are alike, with their token bucket.

    level     debug, info, warning or error
    template  a message before its arguments were put in
    full_ns   when the bucket is full again; each line adds an interval
    untold    lines that were left out and not told of yet
    since_ns  when the first untold line was left out
    """

    logger: str
    level: str
    template: str
    full_ns: int = 0
    untold: int = 0
    since_ns: int = 0


class Line(logging.LogRecord):
    """A record that a RateFilter let pass, which has added these.

    left_out  alike lines that were not written before this one
    tells     True: the line reports no event, only the lines that were left out
    """

    kind: LineKind
    left_out: int
    tells: bool


class RateFilter(logging.Filter):
    """Limits the lines of each kind: at most burst + m · lines_a_minute in any m minutes.

    A kind is a level, a type of error, and a template or, for messages without arguments, a place
    in the source: the source bounds their number.

    config  may be replaced at any time; lines_a_minute 0: no limit
    clock   ns that never go back
    """

    def __init__(self, config: LogConfig, counts: LogCounts, clock: Callable[[], int]) -> None:
        super().__init__()
        self.config, self._counts, self._clock = config, counts, clock
        self._kinds: dict[tuple[object, ...], LineKind] = {}
        # Not a handler's lock, which is held while the end waits for the writer.
        self._lock = threading.RLock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tells if a record passes; one that does becomes a Line."""
        place = f"{record.pathname}:{record.lineno}"
        template = bounded(record.msg, LONGEST_TEMPLATE) if isinstance(record.msg, str) else place
        level = _LEVELS[min(max(record.levelno // 10 - 1, 0), 3)]
        error = record.exc_info[0] if record.exc_info else None
        of = str(getattr(record, "of", ""))[:LONGEST_TEMPLATE]
        key = record.name, level, template if record.args else place, error, of
        config, now_ns = self.config, self._clock()
        interval_ns = -(-MINUTE_NS // config.lines_a_minute) if config.lines_a_minute else 0
        # After a change of limits, no kind waits for longer than the new ones ask for.
        latest_ns = now_ns + config.burst * interval_ns
        line = cast("Line", record)
        with self._lock:
            kind = self._kinds.setdefault(key, LineKind(record.name, level, template))
            kind.full_ns = min(max(kind.full_ns, now_ns), latest_ns)
            line.kind, line.left_out, line.tells = kind, 0, False
            if kind.full_ns + interval_ns > latest_ns:
                self.leave_out(line)
                return False
            kind.full_ns += interval_ns
            line.left_out, kind.untold = kind.untold, 0
        return True

    def leave_out(self, line: Line) -> None:
        """Counts a line that is not written; a later line tells of it, and of those before it."""
        with self._lock:
            if not line.kind.untold:
                line.kind.since_ns = self._clock()
            line.kind.untold += line.left_out + (not line.tells)
            self._counts.left_out += not line.tells

    def overdue(self, patience_ns: int) -> list[Line]:
        """Returns a line for each kind that left out lines so long ago, which count as told."""
        found: list[Line] = []
        with self._lock:
            for kind in self._kinds.copy().values():
                if kind.untold and self._clock() - kind.since_ns >= patience_ns:
                    told = {"kind": kind, "left_out": kind.untold, "tells": True}
                    found.append(cast("Line", logging.makeLogRecord(told)))
                    kind.untold = 0
        return found


class TextFormatter(logging.Formatter):
    """Writes `2026-01-31T12:00:00.000Z WARNING logger: message`, its traceback indented below.

    A line that does not begin with a blank is an event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Writes a Line."""
        line = cast("Line", record)
        before = 0 if line.tells else line.left_out
        alike = f" [{before} alike were left out before]" if before else ""
        head = f"{_stamp(line)} {line.kind.level.upper()} {_shown(line.kind.logger)}: "
        below = "".join(f"\n    {_shown(one)}" for one in traceback_lines(line))
        return f"{head}{_shown(_message(line))}{alike}{below}"


class JsonFormatter(logging.Formatter):
    """Writes an ASCII object whose keys and their order never change."""

    def format(self, record: logging.LogRecord) -> str:
        """Writes a Line."""
        line = cast("Line", record)
        return json.dumps(
            {
                "time": _stamp(line),
                "level": line.kind.level,
                "logger": _sound(line.kind.logger),
                "template": _sound(line.kind.template),
                "message": _sound(_message(line)),
                "left_out": line.left_out,
                "exception": _sound("\n".join(traceback_lines(line))) or None,
            }
        )


def bounded(text: str, longest: int) -> str:
    """Cuts secrets out of a text, and its end if it is too long; the text then says so."""
    # Secrets first: the cut could remove the word that marks a secret.
    sound = _without_secrets(text)
    if len(sound) <= longest:
        return sound
    return f"{sound[:longest]}… ({len(text)} characters)"


def traceback_lines(record: logging.LogRecord) -> list[str]:
    """Formats a traceback: at most 30 lines of some 256 characters, without line breaks."""
    error = record.exc_info[1] if record.exc_info else None
    text = "".join(traceback.format_exception(error, limit=-_FRAMES)) if error else ""
    lines = _without_secrets(text).splitlines()
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        lines = [*lines[:FIRST_LINES], f"… {left_out} lines …", *lines[-LAST_LINES:]]
    return [bounded(line.rstrip(), LONGEST_LINE) for line in lines]


def _without_secrets(text: str) -> str:
    """Cuts secrets out of a text: an exception may quote one, though our own lines hold none."""
    return _SECRET.sub(lambda found: f"{found['bearer'] or ''}(left out)", text[:_EXAMINED])


def _message(line: Line) -> str:
    if line.tells:
        were = "lines like '{}' were" if line.left_out > 1 else "line like '{}' was"
        return f"{line.left_out} {were.format(line.kind.template)} left out"
    try:
        return bounded(line.getMessage(), LONGEST_MESSAGE)
    except Exception:
        return f"{line.kind.template} (without its arguments, which do not fit)"


def _shown(text: str) -> str:
    """Escapes line breaks, control characters and those that turn the direction of writing."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _sound(text: str) -> str:
    """Escapes lone surrogates, as in a path that is not UTF-8: many readers of JSON refuse them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _stamp(line: Line) -> str:
    """Writes the time as RFC 3339 does, in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(line.created, UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


# Takes the bytes of a line and returns how many it wrote; None: it is full for now. Raises
# OSError, ValueError.
Sink: TypeAlias = Callable[[bytes], int | None]


def standard_error() -> Sink | None:
    """Opens standard error without a buffer.

    A write that hangs then holds no lock that the end of the interpreter needs.

    returns  None if the process was started without: descriptor 2 may be any other file
    """
    return None if sys.stderr is None else io.FileIO(2, "wb", closefd=False).write


_FORMATTERS = {LogFormat.TEXT: TextFormatter(), LogFormat.JSON: JsonFormatter()}


class Logs(QueueHandler):
    """Handles all records of the process until `close`; never raises, never waits for long.

    counts  lines written and left out; may be read from any thread
    clock   ns that never go back
    """

    def __init__(
        self, config: LogConfig, sink: Sink | None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        # Records, or an event that is set when all before it are written; None: the end. Not a
        # Queue: a finaliser may log while this very thread puts a line.
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        super().__init__(self._waiting)
        self.counts, self._sink = LogCounts(), sink
        self._rate = RateFilter(config, self.counts, clock)
        self.addFilter(self._rate)
        self.apply(config)
        self._writer = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._writer.start()

    def apply(self, config: LogConfig) -> None:
        """Takes other settings; no line that waits is lost."""
        self._rate.config = config
        self.setFormatter(_FORMATTERS[config.format])
        logging.getLogger().setLevel(config.level.upper())

    def enqueue(self, record: logging.LogRecord) -> None:
        """Adds a line if there is room for it."""
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(record)
        else:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Counts a line that cannot be written."""
        self._rate.leave_out(cast("Line", record))

    def tell(self, patience_ns: int = _TELL_NS) -> None:
        """Logs a line for each kind that left out lines so long ago and was silent since."""
        for line in self._rate.overdue(patience_ns):
            self.emit(line)

    def flush(self) -> None:
        """Waits until all lines that came so far are written, two seconds at most."""
        if self._writer.is_alive():
            written = threading.Event()
            self._waiting.put(written)
            written.wait(_PATIENCE_S)

    def close(self) -> None:
        """Tells of lines left out, writes waiting lines and ends, within some two seconds."""
        if self._writer.is_alive():
            self.tell(patience_ns=0)
            self._waiting.put(None)
            self._writer.join(_PATIENCE_S)
        super().close()

    def _write_on(self) -> None:
        """Writes lines in a thread of its own, until None comes."""
        while True:
            with contextlib.suppress(Empty):
                match self._waiting.get(timeout=_LOOK_S):
                    case None:
                        return
                    case threading.Event() as written:
                        written.set()
                    case line:
                        self._write(line)
            self.tell()

    def _write(self, line: Line) -> None:
        data, written = f"{line.message}\n".encode(), None
        with contextlib.suppress(Exception):
            written = self._sink(data) if self._sink is not None else None
        if written == len(data):
            self.counts.lines[line.kind.level] += 1
        else:
            self.handleError(line)


@contextlib.contextmanager
def start_logging(config: LogConfig, sink: Sink | None) -> Iterator[Logs]:
    """Logs records, warnings and faults of threads of the process as long as the block lasts.

    sink  None: lines are counted and not written
    """
    root = logging.getLogger()
    level, threads, unraisable = root.level, threading.excepthook, sys.unraisablehook
    logs = Logs(config, sink)
    root.addHandler(logs)
    logging.captureWarnings(True)
    threading.excepthook, sys.unraisablehook = _thread_ended, _no_caller_to_raise_to
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
        log.error("the thread %s ended by a fault", name, exc_info=args.exc_value)


def _no_caller_to_raise_to(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        log.error("a fault without a caller: %s", args.err_msg, exc_info=args.exc_value)
