"""What a line of the log looks like, as text and as JSON.

Names of clients are in it, and words of exceptions: nothing of them can end a line, begin another
or move the cursor of a terminal, nothing makes a line long, and what looks like a secret is cut.
"""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime

LONGEST_MESSAGE = 2000  # characters
LONGEST_TEMPLATE = 200
# Of a traceback: the first lines and the last ones, where the error itself is.
FIRST_LINES, LAST_LINES, LONGEST_LINE = 6, 23, 256
_FRAMES = 20  # of an exception, the innermost ones
# Of a longer text, what comes after so many characters is not looked at, and not written.
_EXAMINED = 2**20

_SECRET = re.compile(
    r"(?P<bearer>\bbearer\s+)[\w\-.~+/=]{16,}"
    r"|-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event.

    time_s     since 1970, by the wall clock
    level      debug, info, warning or error
    template   the message before its arguments were put in: what alike lines have in common
    left_out   alike ones that were not written before this one
    exception  the lines of its traceback
    tells      it is no event, but has been made to tell of those that were left out
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
    """`2026-01-31T12:00:00.000Z WARNING logger: message`, and a traceback indented below it.

    A line that does not begin with a blank is an event.
    """
    left_out = 0 if line.tells else line.left_out
    alike = f" [{left_out} alike were left out before]" if left_out else ""
    head = f"{_stamp(line.time_s)} {line.level.upper()} {_shown(line.logger)}: "
    below = "".join(f"\n    {_shown(one)}" for one in line.exception)
    return f"{head}{_shown(line.message)}{alike}{below}"


def json_line(line: LogLine) -> str:
    """An object in ASCII, always with the same keys in the same order."""
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
    """Without secrets, and cut, which it says."""
    # Before it is cut, which could leave a secret without the word that it is known by.
    sound = _without_secrets(text[:_EXAMINED])
    if len(sound) <= longest:
        return sound
    return f"{sound[:longest]}… ({len(text)} characters)"


def traceback_lines(error: BaseException) -> tuple[str, ...]:
    """At most 30 lines, of 256 characters each and a few more; no line breaks are in them."""
    text = "".join(traceback.format_exception(error, limit=-_FRAMES))
    lines = _without_secrets(text[:_EXAMINED]).splitlines()
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        lines = [*lines[:FIRST_LINES], f"… {left_out} lines …", *lines[-LAST_LINES:]]
    return tuple(bounded(line.rstrip(), LONGEST_LINE) for line in lines)


def _without_secrets(text: str) -> str:
    """Our own lines hold none: this is for words of exceptions that quote what they were given."""
    return _SECRET.sub(lambda found: f"{found['bearer'] or ''}(left out)", text)


def _shown(text: str) -> str:
    """Line breaks, control characters and those that turn the direction of writing, escaped."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _sound(text: str) -> str:
    """Half a surrogate, as in a path that is not UTF-8, makes JSON that many readers refuse."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _stamp(time_s: float) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
