"""Standard error as a place for whole lines, whatever it is: a pipe, a file, nothing at all."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import dataclass
from typing import Protocol

# How often, and after how long, it is tried again where it is full and says so.
_FULL_S, _FULL_TIMES = 0.05, 200


class Sink(Protocol):
    """A raw stream."""

    def write(self, data: bytes, /) -> int | None:
        """The bytes that it took; None: it is full for now. Raises OSError, ValueError."""


def standard_error() -> Sink | None:
    """Unbuffered: a write that never ends holds no lock that the end of the interpreter needs.

    None where the process was started without: its number may be that of any other file by now.
    """
    return None if sys.stderr is None else io.FileIO(2, "wb", closefd=False)


@dataclass(slots=True)
class WholeLines:
    """Writes line after line, from one thread."""

    sink: Sink | None
    _torn: bool = False

    def write(self, line: bytes) -> None:
        """Raises OSError, ValueError where it was not written as a whole."""
        if self.sink is None:
            raise OSError("there is no standard error")
        # What was torn off, as on a full disk, must not be the beginning of this line.
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
