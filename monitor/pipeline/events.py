"""Events: things that an operator should know, told once to all who watch.

Each watcher has a short queue, from which the oldest event is dropped first. A gap in the
sequence numbers tells a slow watcher what it missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from monitor.wire.messages import Event, EventContent, Health

log = logging.getLogger(__name__)
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
