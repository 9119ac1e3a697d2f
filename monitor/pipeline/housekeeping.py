"""Housekeeping of a running sidecar: overload, clock steps, contained faults, events that are told.

Under overload monitoring gives way: frames are answered and forwarded all the same. Vehicles boot
before they know the time: stamps taken before and after a step of the wall clock cannot be
compared, so a step begins a new epoch. An event is a thing that an operator should know, told once
to all who watch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monitor.frames.status import Counters
from monitor.wire.values import Event, EventContent, Health

log = logging.getLogger(__name__)

# Samples in a row above the limit before the loop counts as late: a single one is a long step of
# something else, such as a promotion, and over when it is seen.
LATE_SAMPLES = 2

# Of the limits; below them there is room again.
CALM_SHARE = 0.5
SECOND = 10**9

# A clock that is being corrected runs at most so much faster or slower: twice what NTP does.
SLEW = 1e-3


@dataclass(slots=True)
class Overload:
    """Sheds while there is too much to do, and until it has been calm for a while.

    lag_seconds   s; what the loop may be late, in LATE_SAMPLES samples in a row; 0: any time
    waiting_rows  detections that may wait for the statistics; 0: any number
    calm_seconds  s below CALM_SHARE of both limits, without a break, that end it
    shedding      whether monitoring work is left undone now
    episodes      how often that began
    """

    lag_seconds: float = 0.1
    waiting_rows: int = 1 << 18
    calm_seconds: float = 1.0
    shedding: bool = False
    episodes: int = 0
    _late: int = 0
    _calm_since: float | None = None

    def look(self, now: float, lag: float, waiting: int) -> bool:
        """Takes in a sample; tells whether shedding began or ended with it.

        now      s of a clock that never moves back
        lag      s that the loop was late, or that frames waited, whichever is longer
        waiting  detections that wait for the statistics
        """
        late = lag / self.lag_seconds if self.lag_seconds else 0.0
        full = waiting / self.waiting_rows if self.waiting_rows else 0.0
        self._late = self._late + 1 if late > 1 else 0
        if not self.shedding:
            if self._late < LATE_SAMPLES and full <= 1:
                return False
            self.shedding = True
            self.episodes += 1
            self._calm_since = None
            return True
        if max(late, full) > CALM_SHARE:
            self._calm_since = None
            return False
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.calm_seconds:
            return False
        self.shedding = False
        self._late = 0
        return True


@dataclass(slots=True)
class WallClock:
    """Finds steps of the wall clock against the monotonic one.

    step_seconds  s; a clock that is off by more has been set
    epoch         goes up by one with each step; the one to begin with may be of an earlier run
    steps         how many there were
    """

    step_seconds: float = 0.5
    epoch: int = 0
    steps: int = 0
    # Wall minus monotonic time where nothing was set, and when it was last looked at.
    _usual_ns: int | None = None
    _looked_ns: int = 0

    def look(self, wall_ns: int, monotonic_ns: int) -> float | None:
        """s that the clock was set by since the last look, forward positive; None: it was not.

        What comes in several small steps is one as soon as they add up, unless they are so slow
        that they may be a correction. Of a machine that slept the monotonic clock stood still: its
        wall clock is found ahead, and begins a new epoch too.
        """
        difference = wall_ns - monotonic_ns
        elapsed, self._looked_ns = monotonic_ns - self._looked_ns, monotonic_ns
        if self._usual_ns is None:
            self._usual_ns = difference
            return None
        off = difference - self._usual_ns
        if abs(off) > self.step_seconds * SECOND:
            self._usual_ns = difference
            self.epoch += 1
            self.steps += 1
            return off / SECOND
        most = int(SLEW * elapsed)
        self._usual_ns += max(-most, min(most, off))
        return None


@dataclass(slots=True)
class Collections:
    """Says when to look for garbage among all objects, which holds up frames for some time.

    idle_seconds, busy_seconds  s between two times, while no frames come and while some do
    """

    idle_seconds: float = 60.0
    busy_seconds: float = 900.0
    _last: float | None = None

    def due(self, now: float, *, idle: bool) -> bool:
        """Tells whether it is time, which it is once.

        now  s of a clock that never moves back
        """
        if self._last is None:
            self._last = now
        if now - self._last < (self.idle_seconds if idle else self.busy_seconds):
            return False
        self._last = now
        return True


class contained:  # noqa: N801  # it reads as a statement
    """Logs and counts a fault of its block; what follows the block goes on.

    Cancellation and the end of the process pass through. Where an answer must be given after a
    fault, the code behind the block gives it.
    """

    __slots__ = ("_arguments", "_counters", "_log", "_message")

    def __init__(
        self, counters: Counters, log: logging.Logger, message: str, *arguments: object
    ) -> None:
        """Takes the message and its arguments as the logger does."""
        self._counters, self._log = counters, log
        self._message, self._arguments = message, arguments

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Says whether there was a fault, which is over with that."""
        if not isinstance(error, Exception):
            return False
        self._log.error(self._message, *self._arguments, exc_info=error, stacklevel=2)
        self._counters.internal_errors += 1
        return True


Result = TypeVar("Result")


async def in_steps(work: Generator[None, None, Result]) -> Result:
    """Runs a generator to its result; whoever waits for the loop has a turn after each step."""
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


QUEUE = 256
Kind = TypeVar("Kind")


@dataclass(slots=True)
class Events:
    """Hands every event to every watcher.

    Whoever publishes takes the events at construction; whoever must act on an event listens.

    health  what a new watcher is told first
    """

    health: Health = field(default_factory=lambda: Health(False, "starting"))
    _sequence: int = 0
    _closed: bool = False
    _watchers: set[asyncio.Queue[Event | None]] = field(default_factory=set)
    _listeners: list[tuple[type, Callable[[Any], None]]] = field(default_factory=list)

    def publish(self, what: EventContent, time_ns: int | None = None) -> None:
        """Tells all watchers, then calls all listeners; never waits.

        time_ns  None: now
        """
        self._sequence += 1
        if isinstance(what, Health):
            self.health = what
        event = Event(self._sequence, time.time_ns() if time_ns is None else time_ns, what)
        for queue in self._watchers:
            _put(queue, event)
        for kind, listener in self._listeners:
            if isinstance(what, kind):
                listener(what)

    def announce(self, health: Health, *, lasts: bool = True) -> None:
        """Logs and publishes a state of health.

        lasts  False: it has happened and is over; a later watcher is told the state before it
        """
        log.info("health: %s", health.message)
        before = self.health
        self.publish(health)
        if not lasts:
            self.health = before

    def listen(self, kind: type[Kind], listener: Callable[[Kind], None]) -> None:
        """Calls a listener with every event of one kind from now on, as it is published."""
        self._listeners.append((kind, listener))

    def close(self) -> None:
        """Ends all watchers, after what they were told already."""
        self._closed = True
        for queue in self._watchers:
            _put(queue, None)

    async def watch(self, time_ns: int) -> AsyncIterator[Event]:
        """Yields the state of health, then every event from now on."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE)
        self._watchers.add(queue)
        try:
            yield Event(self._sequence, time_ns, self.health)
            while not self._closed or not queue.empty():
                event = await queue.get()
                if event is None:
                    return
                yield event
        finally:
            self._watchers.discard(queue)


def _put(queue: asyncio.Queue[Event | None], event: Event | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
