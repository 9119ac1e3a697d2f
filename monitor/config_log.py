"""What the sidecar says on standard error: from which level on, in which form, how often."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from monitor.config_section import Section


class LogLevel(StrEnum):
    """The least weight of a line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Of a line."""

    TEXT = "text"  # for people: time, level, logger, message; tracebacks indented below it
    JSON = "json"  # for programs: one object a line


class LogConfig(Section):
    """What is written, and how much of it. All of it may change while the sidecar runs."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.TEXT
    # Of one kind: from the same place in the program. Further ones are counted. 0: no limit.
    lines_a_minute: Annotated[int, Field(ge=0, le=60_000)] = 12
    # Of one kind, at once; also the first ones of a kind that was silent for long.
    burst: Annotated[int, Field(ge=1, le=10_000)] = 6
