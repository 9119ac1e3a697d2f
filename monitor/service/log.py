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
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

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

# s between two tries to write to a sink that says it is full, and how many tries.
_FULL_S, _FULL_TIMES = 0.05, 200

# Lines that wait to be written, of some 10 kB at most.
MOST_WAITING = 512

# s between two looks for lines left out, and ns before they are told; together below a minute.
_LOOK_S, _TELL_NS = 5.0, 50 * 10**9

# s that the end waits for a standard error that takes nothing.
_PATIENCE_S = 2.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log.

    time_s     since 1970, by the wall clock
    level      debug, info, warning or error
    template   the message before its arguments were put in; lines that are alike share it
    left_out   alike lines that were not written before this one
    exception  the lines of the traceback
    tells      True: the line reports no event, only the lines that were left out
    """

    time_s: float
    level: str
    logger: str
    template: str
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
    head = f"{_stamp(line.time_s)} {line.level.upper()} {_shown(line.logger)}: "
    below = "".join(f"\n    {_shown(one)}" for one in line.exception)
    return f"{head}{_shown(line.message)}{alike}{below}"


def json_line(line: LogLine) -> str:
    """Writes an ASCII object whose keys and their order never change."""
    return json.dumps(
        {
            "time": _stamp(line.time_s),
            "level": line.level,
            "logger": _sound(line.logger),
            "template": _sound(line.template),
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


K = TypeVar("K", bound=Hashable)


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
class LineRate(Generic[K]):
    """Limits the lines of each kind by a token bucket. Kinds and times are arguments.

    others          the kind under which lines beyond `most_kinds` are told; they share a bucket
    lines_a_minute  0: no limit

    In any m minutes, at most burst + m · lines_a_minute lines of a kind pass: a kind is forgotten
    only when its bucket is full and all lines that it left out have been told.
    """

    others: K
    lines_a_minute: int
    burst: int
    most_kinds: int = MOST_KINDS
    _buckets: OrderedDict[K, _Bucket] = field(default_factory=OrderedDict)
    _shared: _Bucket = field(default_factory=lambda: _Bucket(0))

    def admit(self, kind: K, now_ns: int) -> int | None:
        """Returns how many alike lines were left out before; None: this line is left out too."""
        bucket = self._bucket(kind, now_ns)
        interval_ns = self._interval_ns
        if interval_ns and bucket.full_ns - now_ns > (self.burst - 1) * interval_ns:
            _leave_out(bucket, 1, now_ns)
            return None
        bucket.full_ns = max(bucket.full_ns, now_ns) + interval_ns
        if bucket is self._shared:
            return 0  # the lines that it left out were not alike
        untold, bucket.untold = bucket.untold, 0
        return untold

    def leave_out(self, kind: K, lines: int, now_ns: int) -> None:
        """Notes lines that passed but could not be written; `overdue` returns them later."""
        if lines:
            _leave_out(self._bucket(kind, now_ns), lines, now_ns)

    def overdue(self, now_ns: int, patience_ns: int) -> list[tuple[K, int]]:
        """Returns kinds that left out lines so long ago, and how many, which then count as told."""
        found: list[tuple[K, int]] = []
        for kind, bucket in [*self._buckets.items(), (self.others, self._shared)]:
            if bucket.untold and now_ns - bucket.since_ns >= patience_ns:
                found.append((kind, bucket.untold))
                bucket.untold = 0
        return found

    def limit(self, lines_a_minute: int, burst: int, now_ns: int) -> None:
        """Takes other limits; no kind waits for longer than the new limits ask for."""
        self.lines_a_minute, self.burst = lines_a_minute, burst
        latest_ns = now_ns + burst * self._interval_ns
        for bucket in (*self._buckets.values(), self._shared):
            bucket.full_ns = min(bucket.full_ns, latest_ns)

    @property
    def _interval_ns(self) -> int:
        """ns between two lines, rounded up; 0: there is no limit."""
        return -(-MINUTE_NS // self.lines_a_minute) if self.lines_a_minute else 0

    def _bucket(self, kind: K, now_ns: int) -> _Bucket:
        bucket = self._buckets.get(kind)
        if bucket is not None:
            self._buckets.move_to_end(kind)
            return bucket
        if len(self._buckets) >= self.most_kinds:
            oldest, spent = next(iter(self._buckets.items()))
            if spent.untold or spent.full_ns > now_ns:
                # If it were forgotten now, it would begin again with a full bucket.
                return self._shared
            del self._buckets[oldest]
        bucket = self._buckets[kind] = _Bucket(now_ns)
        return bucket


def _leave_out(bucket: _Bucket, lines: int, now_ns: int) -> None:
    if not bucket.untold:
        bucket.since_ns = now_ns
    bucket.untold += lines


class Sink(Protocol):
    """A raw stream of bytes."""

    def write(self, data: bytes, /) -> int | None:
        """Returns how many bytes it took; None: it is full for now. Raises OSError, ValueError."""


def standard_error() -> Sink | None:
    """Opens standard error without a buffer.

    A write that hangs then holds no lock that the end of the interpreter needs.

    returns  None if the process was started without: descriptor 2 may be any other file
    """
    return None if sys.stderr is None else io.FileIO(2, "wb", closefd=False)


@dataclass(slots=True)
class WholeLines:
    """Writes line after line to a sink, from one thread."""

    sink: Sink | None
    _torn: bool = False

    def write(self, line: bytes) -> None:
        """Writes a line. Raises OSError or ValueError if it was not written as a whole."""
        if self.sink is None:
            raise OSError("there is no standard error")
        # The rest of a line that was torn off, as on a full disk, must not begin this line.
        left = b"\n" + line if self._torn else line
        for _ in range(_FULL_TIMES):
            taken = self.sink.write(left)
            if taken is None:
                time.sleep(_FULL_S)
                continue
            left, self._torn = left[taken:], True
            if not left:
                self._torn = False
                return
        raise OSError("standard error takes nothing")


_FORMS = {LogFormat.TEXT: text_line, LogFormat.JSON: json_line}


@dataclass(slots=True)
class LogCounts:
    """Counts lines since the start: written ones by level, and those left out."""

    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LEVELS, 0))
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Kind:
    """Identity of lines that are alike: one place in the program, one error, one matter."""

    logger: str
    level: str
    place: str
    error: str
    of: str
    template: str = field(compare=False)


_OTHERS = _Kind("monitor", "warning", "", "", "", "any other")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A line in the queue, and how many left-out lines of its kind it tells of."""

    data: bytes
    kind: _Kind
    told: int
    is_event: bool


class Logs(logging.Handler):
    """Handles all records of the process until `close`; never raises, never waits for long.

    counts  lines written and left out; may be read from any thread
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
        # Not a Queue: a finaliser may log while this very thread puts a line.
        self._waiting: queue.SimpleQueue[_Waiting | threading.Event | None] = queue.SimpleQueue()
        self._ended = False
        self._writer = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._writer.start()

    def apply(self, config: LogConfig) -> None:
        """Takes other settings; no line that waits is lost."""
        with self._ours:
            self._config = config
            self._rate.limit(config.lines_a_minute, config.burst, self._clock())
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
            self._leave(_line_of(record, kind, left_out), kind)
        except Exception:
            with self._ours:
                self.counts.left_out += 1

    def tell(self, now_ns: int, patience_ns: int = _TELL_NS) -> None:
        """Logs a line for each kind that left out lines so long ago and was silent since."""
        with self._ours:
            overdue = self._rate.overdue(now_ns, patience_ns)
        for kind, lines in overdue:
            self._leave(_telling_of(kind, lines), kind)

    def flush(self) -> None:
        """Waits until all lines that came so far are written, two seconds at most."""
        if self._writer.is_alive():
            written = threading.Event()
            self._waiting.put(written)
            written.wait(_PATIENCE_S)

    def close(self) -> None:
        """Tells of lines left out, writes waiting lines and ends, within some two seconds."""
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
        """Writes lines in a thread of its own, until None comes."""
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
    """Logs records, warnings and faults of threads of the process as long as the block lasts.

    sink  None: lines are counted and not written
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
        log.error("the thread %s ended by a fault", name, exc_info=args.exc_value)


def _nobody_to_raise_to(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        log.error("a fault where nobody could be told: %s", args.err_msg, exc_info=args.exc_value)


def _kind_of(record: logging.LogRecord) -> _Kind:
    """Returns the kind: by template, or by place in the source for messages without arguments."""
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
    return _LEVELS[bisect_right((logging.INFO, logging.WARNING, logging.ERROR), number)]


def _line_of(record: logging.LogRecord, kind: _Kind, left_out: int) -> LogLine:
    try:
        message = bounded(record.getMessage(), LONGEST_MESSAGE)
    except Exception:
        message = f"{kind.template} (without its arguments, which do not fit)"
    error = record.exc_info[1] if record.exc_info else None
    exception = () if error is None else traceback_lines(error)
    return LogLine(
        record.created, kind.level, record.name, kind.template, message, left_out, exception
    )


def _telling_of(kind: _Kind, lines: int) -> LogLine:
    were = "line like '{}' was" if lines == 1 else "lines like '{}' were"
    text = f"{lines} {were.format(kind.template)} left out"
    return LogLine(time.time(), kind.level, kind.logger, kind.template, text, lines, tells=True)
