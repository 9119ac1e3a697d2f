"""The sidecar's log: records become bounded lines of text or JSON on standard error.

A line holds names of clients and words of exceptions. None of them can end a line, begin another,
move the cursor of a terminal or make a line long, and anything that looks like a secret is cut out.
Lines that are alike pass at a limited rate.

The thread that logs puts its line into a bounded queue and another thread writes it, so that
neither a pipe that nobody reads nor a full disk holds up a frame. A line that finds no room is
counted and told later. A crash of the process loses the lines of its last milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import queue
import re
import sys
import threading
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

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

# Enough for every place that logs, times the slices that some of them tell apart.
MOST_KINDS = 1024

# Lines that wait to be written, of some 10 kB at most.
MOST_WAITING = 512

# s between two looks for lines left out, and ns before they are told; together below a minute.
_LOOK_S, _TELL_NS = 5.0, 50 * 10**9

# s that the end waits for a standard error that takes nothing.
_PATIENCE_S = 2.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineKind:
    """Identity of lines that are alike.

    level     debug, info, warning or error
    subject   one place in the program, one type of error, one matter
    template  the message before its arguments were put in
    """

    logger: str
    level: str
    subject: tuple[object, ...]
    template: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log.

    time_s     since 1970, by the wall clock
    left_out   alike lines that were not written before this one
    exception  the lines of the traceback
    tells      True: the line reports no event, only the lines that were left out
    """

    time_s: float
    kind: LineKind
    message: str
    left_out: int = 0
    exception: tuple[str, ...] = ()
    tells: bool = False


def text_line(line: LogLine) -> str:
    """Writes `2026-01-31T12:00:00.000Z WARNING logger: message`, its traceback indented below.

    A line that does not begin with a blank is an event.
    """
    left_out = 0 if line.tells else line.left_out
    alike = f" [{left_out} alike were left out before]" if left_out else ""
    head = f"{_stamp(line.time_s)} {line.kind.level.upper()} {_shown(line.kind.logger)}: "
    below = "".join(f"\n    {_shown(one)}" for one in line.exception)
    return f"{head}{_shown(line.message)}{alike}{below}"


def json_line(line: LogLine) -> str:
    """Writes an ASCII object whose keys and their order never change."""
    return json.dumps(
        {
            "time": _stamp(line.time_s),
            "level": line.kind.level,
            "logger": _sound(line.kind.logger),
            "template": _sound(line.kind.template),
            "message": _sound(line.message),
            "left_out": line.left_out,
            "exception": _sound("\n".join(line.exception)) or None,
        }
    )


def bounded(text: str, longest: int) -> str:
    """Cuts secrets out of a text, and its end if it is too long; the text then says so."""
    # Secrets first: the cut could remove the word that marks a secret.
    sound = _without_secrets(text[:_EXAMINED])
    if len(sound) <= longest:
        return sound
    return f"{sound[:longest]}… ({len(text)} characters)"


def traceback_lines(error: BaseException) -> tuple[str, ...]:
    """Formats a traceback: at most 30 lines of some 256 characters, without line breaks."""
    text = "".join(traceback.format_exception(error, limit=-_FRAMES))
    lines = _without_secrets(text[:_EXAMINED]).splitlines()
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        lines = [*lines[:FIRST_LINES], f"… {left_out} lines …", *lines[-LAST_LINES:]]
    return tuple(bounded(line.rstrip(), LONGEST_LINE) for line in lines)


def _without_secrets(text: str) -> str:
    """Cuts secrets out of a text: an exception may quote one, though our own lines hold none."""
    return _SECRET.sub(lambda found: f"{found['bearer'] or ''}(left out)", text)


def _shown(text: str) -> str:
    """Escapes line breaks, control characters and those that turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _sound(text: str) -> str:
    """Escapes lone surrogates, as in a path that is not UTF-8: many readers of JSON refuse them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _stamp(time_s: float) -> str:
    """Writes a time as RFC 3339 does, in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


# Kinds for which there is no room are told of, and limited, as one.
OTHERS = LineKind("monitor", "warning", (), "any other")


@dataclass(slots=True)
class _Bucket:
    """A token bucket of one kind of lines.

    full_ns   when the bucket is full again; each line adds an interval
    untold    lines that were left out and not told of yet
    since_ns  when the first untold line was left out
    """

    full_ns: int
    untold: int = 0
    since_ns: int = 0


@dataclass(slots=True)
class LineRate:
    """Limits the lines of each kind by a token bucket. Kinds and times are arguments.

    lines_a_minute  0: no limit; it and the burst may be changed at any time

    In any m minutes, at most burst + m · lines_a_minute lines of a kind pass, and twice as many
    if there are more than `most_kinds`. A kind is forgotten only when its bucket is full and all
    lines that it left out have been told.
    """

    lines_a_minute: int
    burst: int
    most_kinds: int = MOST_KINDS
    _buckets: dict[LineKind, _Bucket] = field(default_factory=dict)

    def admit(self, kind: LineKind, now_ns: int) -> int | None:
        """Returns how many alike lines were left out before; None: this line is left out too."""
        kind, bucket = self._bucket(kind, now_ns)
        interval_ns = -(-MINUTE_NS // self.lines_a_minute) if self.lines_a_minute else 0
        # After a change of limits, no kind waits for longer than the new ones ask for.
        latest_ns = now_ns + self.burst * interval_ns
        bucket.full_ns = min(max(bucket.full_ns, now_ns), latest_ns)
        if bucket.full_ns + interval_ns > latest_ns:
            self.leave_out(kind, 1, now_ns)
            return None
        bucket.full_ns += interval_ns
        if kind is OTHERS:
            return 0  # the lines that it left out were not alike
        untold, bucket.untold = bucket.untold, 0
        return untold

    def leave_out(self, kind: LineKind, lines: int, now_ns: int) -> None:
        """Notes lines that were not written; `admit` or `overdue` returns them later."""
        _, bucket = self._bucket(kind, now_ns)
        if not bucket.untold:
            bucket.since_ns = now_ns
        bucket.untold += lines

    def overdue(self, now_ns: int, patience_ns: int) -> list[tuple[LineKind, int]]:
        """Returns kinds that left out lines so long ago, and how many, which then count as told."""
        found: list[tuple[LineKind, int]] = []
        for kind, bucket in self._buckets.copy().items():
            if bucket.untold and now_ns - bucket.since_ns >= patience_ns:
                found.append((kind, bucket.untold))
                bucket.untold = 0
        return found

    def _bucket(self, kind: LineKind, now_ns: int) -> tuple[LineKind, _Bucket]:
        """Returns the bucket of a kind, or that of all others if there is no room for the kind."""
        if kind not in self._buckets and len(self._buckets) >= self.most_kinds:
            # A bucket that is not full must not begin again as a full one.
            for known, bucket in self._buckets.copy().items():
                if not bucket.untold and bucket.full_ns <= now_ns:
                    self._buckets.pop(known, None)
            if len(self._buckets) >= self.most_kinds:
                kind = OTHERS
        return kind, self._buckets.setdefault(kind, _Bucket(now_ns))


# Takes the bytes of a line and returns how many it wrote; None: it is full for now. Raises
# OSError, ValueError.
Sink: TypeAlias = Callable[[bytes], int | None]


def standard_error() -> Sink | None:
    """Opens standard error without a buffer.

    A write that hangs then holds no lock that the end of the interpreter needs.

    returns  None if the process was started without: descriptor 2 may be any other file
    """
    return None if sys.stderr is None else io.FileIO(2, "wb", closefd=False).write


_FORMS = {LogFormat.TEXT: text_line, LogFormat.JSON: json_line}


@dataclass(slots=True)
class LogCounts:
    """Counts lines since the start: written ones by level, and those left out."""

    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LEVELS, 0))
    left_out: int = 0


# A line and its bytes; or an event that is set when all before it is written; None: the end.
_Waiting: TypeAlias = tuple[LogLine, bytes] | threading.Event | None


class Logs(logging.Handler):
    """Handles all records of the process until `close`; never raises, never waits for long.

    counts  lines written and left out; may be read from any thread
    clock   ns that never go back
    """

    def __init__(
        self, config: LogConfig, sink: Sink | None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__()
        self.counts = LogCounts()
        self._config, self._sink, self._clock = config, sink, clock
        # Not the handler's own lock, which is held while the end waits for the writer.
        self._ours = threading.RLock()
        self._rate = LineRate(config.lines_a_minute, config.burst)
        # Not a Queue: a finaliser may log while this very thread puts a line.
        self._waiting: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._writer.start()

    def apply(self, config: LogConfig) -> None:
        """Takes other settings; no line that waits is lost."""
        with self._ours:
            self._config = config
            self._rate.lines_a_minute, self._rate.burst = config.lines_a_minute, config.burst
        logging.getLogger().setLevel(config.level.upper())

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record. A failure is counted and never raised to the code that logs."""
        try:
            kind = _kind_of(record)
            with self._ours:
                left_out = self._rate.admit(kind, self._clock())
                if left_out is None:
                    self.counts.left_out += 1
                    return
            self._leave(_line_of(record, kind, left_out))
        except Exception:
            with self._ours:
                self.counts.left_out += 1

    def tell(self, now_ns: int, patience_ns: int = _TELL_NS) -> None:
        """Logs a line for each kind that left out lines so long ago and was silent since."""
        with self._ours:
            overdue = self._rate.overdue(now_ns, patience_ns)
        for kind, lines in overdue:
            self._leave(_telling_of(kind, lines))

    def flush(self) -> None:
        """Waits until all lines that came so far are written, two seconds at most."""
        if self._writer.is_alive():
            written = threading.Event()
            self._waiting.put(written)
            written.wait(_PATIENCE_S)

    def close(self) -> None:
        """Tells of lines left out, writes waiting lines and ends, within some two seconds."""
        if self._writer.is_alive():
            self.tell(self._clock(), patience_ns=0)
            self._waiting.put(None)
            self._writer.join(_PATIENCE_S)
        super().close()

    def _leave(self, line: LogLine) -> None:
        data = f"{_FORMS[self._config.format](line)}\n".encode()
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put((line, data))
        else:
            self._lose(line)

    def _lose(self, line: LogLine) -> None:
        event = 0 if line.tells else 1
        with self._ours:
            self.counts.left_out += event
            self._rate.leave_out(line.kind, line.left_out + event, self._clock())

    def _write_on(self) -> None:
        """Writes lines in a thread of its own, until None comes."""
        while True:
            with contextlib.suppress(queue.Empty):
                match self._waiting.get(timeout=_LOOK_S):
                    case None:
                        return
                    case threading.Event() as written:
                        written.set()
                    case line, data:
                        self._write(line, data)
            self.tell(self._clock())

    def _write(self, line: LogLine, data: bytes) -> None:
        written: int | None = None
        with contextlib.suppress(Exception):
            written = self._sink(data) if self._sink is not None else None
        if written == len(data):
            self.counts.lines[line.kind.level] += 1
        else:
            self._lose(line)


@contextlib.contextmanager
def start_logging(config: LogConfig, sink: Sink | None) -> Iterator[Logs]:
    """Logs records, warnings and faults of threads of the process as long as the block lasts.

    sink  None: lines are counted and not written
    """
    logs, root = Logs(config, sink), logging.getLogger()
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
        log.error("the thread %s ended by a fault", name, exc_info=args.exc_value)


def _nobody_to_raise_to(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        log.error("a fault where nobody could be told: %s", args.err_msg, exc_info=args.exc_value)


def _kind_of(record: logging.LogRecord) -> LineKind:
    """Returns the kind: by template, or by place in the source for messages without arguments."""
    template = bounded(str(record.msg), LONGEST_TEMPLATE)
    place = template if record.args else f"{record.pathname}:{record.lineno}"
    error = record.exc_info[0] if record.exc_info else None
    of = str(getattr(record, "of", ""))[:LONGEST_TEMPLATE]
    return LineKind(record.name, _level(record.levelno), (place, error, of), template)


def _level(number: int) -> str:
    return _LEVELS[bisect_right((logging.INFO, logging.WARNING, logging.ERROR), number)]


def _line_of(record: logging.LogRecord, kind: LineKind, left_out: int) -> LogLine:
    try:
        message = bounded(record.getMessage(), LONGEST_MESSAGE)
    except Exception:
        message = f"{kind.template} (without its arguments, which do not fit)"
    error = record.exc_info[1] if record.exc_info else None
    exception = () if error is None else traceback_lines(error)
    return LogLine(record.created, kind, message, left_out, exception)


def _telling_of(kind: LineKind, lines: int) -> LogLine:
    were = "line like '{}' was" if lines == 1 else "lines like '{}' were"
    text = f"{lines} {were.format(kind.template)} left out"
    return LogLine(time.time(), kind, text, lines, tells=True)
