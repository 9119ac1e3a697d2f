"""Whose turn it is on the event loop: one message at a time, and first of those whose stream has
had the least of the loop lately. Who sends as fast as it can waits for itself alone.

Without it the loop would answer, in one pass, a message of every stream that has one: a frame of
a sensor in time then waits for as many messages as there are streams that push.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# s in which half of what a stream has had is forgotten.
HALF_LIFE = 1.0


@dataclass(eq=False, slots=True)
class Share:
    """What one stream has had of the loop lately, in s; as of `at`."""

    had: float = 0.0
    at: float = 0.0

    def by(self, now: float) -> float:
        """What of it is not forgotten."""
        return self.had * math.exp2((self.at - now) / HALF_LIFE)

    def add(self, now: float, seconds: float) -> None:
        """It had some more."""
        self.had = self.by(now) + seconds
        self.at = now


@dataclass(slots=True)
class Turns:
    """Of all streams of one loop.

    A turn is from when it is given until whoever has it waits for anything; in between everything
    else that is ready on the loop has a pass of it.
    """

    clock: Callable[[], float] = time.monotonic
    # What each has had, the order in which they came, and since when they wait.
    _waiting: list[tuple[float, int, float, Share, asyncio.Future[None]]] = field(
        default_factory=list
    )
    _came: int = 0
    _at: Share | None = None  # whose turn it is
    _since: float = 0.0
    _longest: float = 0.0

    def longest_wait(self) -> float:
        """s that a message waited for its turn, at most, of those that got one since last asked or
        still wait: a loop that is punctual may have more to do than it can all the same.
        """
        now = self.clock()
        waits = [now - since for _, _, since, _, turn in self._waiting if not turn.done()]
        longest, self._longest = max([self._longest, *waits]), 0.0
        return longest

    async def take(self, share: Share) -> None:
        """Wait for a turn; at once where nobody has one."""
        if self._at is None:
            self._give(share)
            return
        turn = asyncio.get_running_loop().create_future()
        self._came += 1
        now = self.clock()
        heapq.heappush(self._waiting, (share.by(now), self._came, now, share, turn))
        await turn
        self._longest = max(self._longest, self.clock() - now)

    def _give(self, share: Share) -> None:
        self._at, self._since = share, self.clock()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A pass later: the turn is over."""
        now = self.clock()
        if self._at is not None:
            self._at.add(now, max(0.0, now - self._since))
        self._at = None
        while self._waiting:
            *_, share, turn = heapq.heappop(self._waiting)
            # Who has gone meanwhile needs none.
            if not turn.done():
                turn.set_result(None)
                # Behind the one that was just woken.
                self._give(share)
                return
