"""Reads the configuration again: reloadable keys are taken, the others wait for a restart.

Nothing here applies a setting. No kept number depends on a reloadable key: bins, slices, windows,
folders and addresses stay those of the start. Certificates and tokens are read again by security.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from monitor.config import Config, InvalidConfiguration, checked

# By section, the keys that are taken.
RELOADABLE: dict[str, tuple[str, ...]] = {
    section: settings.reloadable() for section, settings in Config() if settings.reloadable()
}

# s to read a file; one that takes longer is on a disk that does not answer.
READ_SECONDS = 10.0


class Outcome(StrEnum):
    """The outcome of reading a configuration again."""

    APPLIED = "applied"  # a key has changed, and is active
    UNCHANGED = "unchanged"  # no key has changed that can be taken while the sidecar runs
    REFUSED = "refused"  # the configuration cannot be used; all is as it was


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A configuration that was read again, compared with the one before.

    config   to be active from now on
    changed  keys whose values are new and active, as section.key
    waiting  keys whose new values wait for a restart
    """

    config: Config
    changed: tuple[str, ...]
    waiting: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """APPLIED or UNCHANGED."""
        return Outcome.APPLIED if self.changed else Outcome.UNCHANGED


@dataclass(slots=True)
class Reloads:
    """Counts the reloads since the start.

    path     of the configuration file, as it was given; empty: there is none
    waiting  keys that wait for a restart, as of the last reload that could be used
    refused  why the last reload could not be used; empty: it could
    """

    path: str = ""
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    waiting: tuple[str, ...] = ()
    refused: str = ""

    def refuse(self, why: str) -> None:
        """Counts a reload that could not be used."""
        self.outcomes[Outcome.REFUSED] += 1
        self.refused = why

    def take(self, reloaded: Reloaded) -> None:
        """Counts a reload that could be used."""
        self.outcomes[reloaded.outcome] += 1
        self.waiting, self.refused = reloaded.waiting, ""


def reloaded(running: Config, read: Config) -> Reloaded:
    """Takes the reloadable keys of a configuration that was read again.

    Raises InvalidConfiguration if the reloadable keys do not fit the keys that stay.
    """
    before, merged = running.model_dump(), read.model_dump()
    changed: list[str] = []
    waiting: list[str] = []
    for section, values in merged.items():
        for key, value in values.items():
            old = before[section][key]
            if value != old and key in RELOADABLE.get(section, ()):
                changed.append(f"{section}.{key}")
                continue
            values[key] = old
            if value != old:
                waiting.append(f"{section}.{key}")
    source = "read again, with what only a restart would change"
    return Reloaded(checked(merged, source), tuple(changed), tuple(waiting))


async def read_again(read: Callable[[], Config], seconds: float = READ_SECONDS) -> Config:
    """Calls `read` in a thread that nothing waits for, and returns the configuration.

    A disk that does not answer holds up neither the loop nor the end of the process.

    Raises what `read` raises, and InvalidConfiguration after so many seconds.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Config] = loop.create_future()

    def settle(finish: Callable[[Any], None], outcome: object) -> None:
        if not found.done():
            finish(outcome)

    def work() -> None:
        finish: Callable[[Any], None] = found.set_result
        outcome: object
        try:
            outcome = read()
        except Exception as error:
            finish, outcome = found.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, finish, outcome)

    # Not the executor's thread: the end of the loop would wait for it.
    threading.Thread(target=work, name="configuration", daemon=True).start()
    try:
        # Not wait_for, which forgets a cancellation that comes together with the result: the
        # sidecar would never end.
        async with asyncio.timeout(seconds):
            return await found
    except TimeoutError:
        raise InvalidConfiguration(
            f"the configuration could not be read within {seconds:g} s: does the disk that it "
            "is on answer?"
        ) from None
