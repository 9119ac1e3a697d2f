"""What happened, for those who watch: a short queue for each watcher, the oldest dropped first.

A gap in the sequence numbers tells a slow watcher what it missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from monitor.wire.messages import Event, Health, What

QUEUE = 256


@dataclass(slots=True)
class Events:
    """Hands every event to every watcher."""

    health: Health = field(default_factory=lambda: Health(False, "starting"))
    _sequence: int = 0
    _closed: bool = False
    _watchers: set[asyncio.Queue[Event | None]] = field(default_factory=set)

    def publish(self, what: What, time_ns: int) -> None:
        """Tell all watchers; never waits."""
        self._sequence += 1
        if isinstance(what, Health):
            self.health = what
        event = Event(self._sequence, time_ns, what)
        for queue in self._watchers:
            _put(queue, event)

    def close(self) -> None:
        """End all watchers, after what they were told already."""
        self._closed = True
        for queue in self._watchers:
            _put(queue, None)

    async def watch(self, time_ns: int) -> AsyncIterator[Event]:
        """The state of health, then everything from now on."""
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
