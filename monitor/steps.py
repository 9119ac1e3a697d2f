"""Work in short steps on the event loop: frames pass in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


async def in_steps(work: Generator[None, None, Result]) -> Result:
    """What a generator returns; whoever waits for the loop has a turn after each of its steps."""
    try:
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: Result = end.value
                return result
            await asyncio.sleep(0)
    finally:
        # Who is cancelled is remembered with all it held: what it has claimed must be free at once.
        work.close()
