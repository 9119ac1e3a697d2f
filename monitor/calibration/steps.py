"""Work in short steps: a generator that yields where its caller may do something else."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


def finished(steps: Generator[None, None, Result]) -> Result:
    """What the work returns, done without a break."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
