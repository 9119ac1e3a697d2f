"""The call to a tracker elsewhere: made again and again, one task that writes, one that reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from monitor.edges.tracker_answers import UnusableAnswer
from monitor.edges.tracker_requests import encode_header_update
from monitor.external_tracker import ExternalTracker

log = logging.getLogger(__name__)

# Seconds before the second attempt, at most; each further one may wait twice as long.
FIRST_BACKOFF = 0.05
# What the log calls a tracker that serves.
THERE = "there"
# A tracker that takes frames and says nothing for so many seconds hangs: it is called anew.
SILENCE = 5.0
# Seconds between two lines of the log on one matter: a tracker may come and go many times a second.
SAY_EVERY = 1.0


class LinkLost(ConnectionError):
    """The call to the tracker is over, or could not be made; the message says why."""


class Link(Protocol):
    """A call to the tracker. All of it raises LinkLost."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more."""

    async def read(self) -> bytes:
        """The next message."""

    def health(self) -> AsyncIterator[bool]:
        """Whether the tracker serves, each time that changes; ends where it does not tell."""


Dial = Callable[[], AbstractAsyncContextManager[Link]]


@dataclass(slots=True)
class TrackerCalls:
    """Keeps a call to the tracker."""

    tracker: ExternalTracker
    dial: Dial
    random: Random = field(default_factory=Random)
    silence: float = SILENCE
    _state: tuple[str, str] | None = None  # as it is, and why
    _told: str = ""  # as the log says it is
    _said: dict[str, float] = field(default_factory=dict)  # when, by matter

    async def run(self) -> None:
        """Until cancelled."""
        loop, tracker = asyncio.get_running_loop(), self.tracker
        failures = 0
        while True:
            began, tracker.heard = loop.time(), False
            try:
                async with self.dial() as link:
                    await self._serve(link)
            except LinkLost as error:
                why = str(error)
            except Exception:
                log.exception("the call to the tracker failed")
                tracker.counters.internal_errors += 1
                why = "a fault of the sidecar"
            finally:
                tracker.be(False)
            self._tell("away", f": {why}")
            longest = tracker.config.backoff_seconds
            if tracker.heard or loop.time() - began > longest:
                failures = 0
            longest = min(longest, FIRST_BACKOFF * 2.0 ** min(failures, 16))
            failures += 1
            # Drawn, so that the sidecars of a tracker do not all come back at one moment.
            await asyncio.sleep(longest * self.random.uniform(0.5, 1.0))

    async def _serve(self, link: Link) -> None:
        """One call, to its end. Raises LinkLost."""
        self.tracker.line.begin_call()
        self.tracker.unheard_since = None
        work = (self._write(link), self._read(link), self._watch(link), self._listen())
        tasks = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            raise LinkLost("the call was cancelled")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, link: Link) -> None:
        """Send what waits, oldest first; before the first frame of a stream its header."""
        loop, tracker = asyncio.get_running_loop(), self.tracker
        announced: dict[str, int] = {}
        while True:
            frame = tracker.line.take()
            if frame is None:
                tracker.ready.clear()
                await tracker.ready.wait()
                continue
            first = tracker.unheard_since is None
            if first:
                tracker.unheard_since = loop.time()
            name, number = frame.stream.header.stream, frame.stream.number
            if announced.get(name) != number:
                await link.write(encode_header_update(frame.stream.header))
                announced[name] = number
                # Meanwhile it may have ended, with the detector long gone on.
                if frame.outcome is not None:
                    if first:
                        tracker.unheard_since = None  # a header has no answer
                    continue
            data = tracker.encoded(frame, loop.time())
            if data is not None:
                await link.write(data)
                tracker.line.sent += 1

    async def _read(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await link.read()
            try:
                self.tracker.take(data, loop.time())
            except UnusableAnswer as error:
                self._say("answers", f"answered what cannot be used: {error}")

    async def _watch(self, link: Link) -> None:
        """What the tracker says of its own health; where it says nothing, it is well."""
        healthy = True
        while True:
            async for told in link.health():
                healthy = told
                self._be(healthy)
            if healthy:
                break
            # It does not serve, and tells no more of it: ask again, lest it be away for ever.
            await asyncio.sleep(self.tracker.config.backoff_seconds)
        self._be(True)
        await asyncio.Event().wait()

    def _be(self, up: bool) -> None:
        self.tracker.be(up)
        self._tell(THERE if up else "there, but says that it does not serve")

    async def _listen(self) -> None:
        """Whether anything is heard of the tracker. Raises LinkLost if not.

        Says a state, too, that came too soon after the one before: it would be unsaid for good.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.silence / 4)
            if self._state is not None:
                self._tell(*self._state)
            since = self.tracker.unheard_since
            if since is not None and loop.time() - since > self.silence:
                raise LinkLost(f"it took frames and answered none for {self.silence:g} s")

    def _tell(self, state: str, why: str = "") -> None:
        """Say a state, unless it was the last that was said."""
        self._state = (state, why)
        if state != THERE:
            self.tracker.trouble = f"is {state}{why}"
        if state != self._told and self._say("state", f"is {state}{why}"):
            self._told = state

    def _say(self, matter: str, what: str) -> bool:
        """Whether it was said: not so soon after the line before on the same matter."""
        now = asyncio.get_running_loop().time()
        if now - self._said.get(matter, float("-inf")) < SAY_EVERY:
            return False
        self._said[matter] = now
        log.warning("the tracker at %s %s", self.tracker.config.address, what)
        return True
