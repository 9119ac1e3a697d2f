"""Reads the configuration again: reloadable keys are taken, the others wait for a restart.

Nothing here applies a setting. No kept number depends on a reloadable key: bins, slices, windows,
folders and addresses stay those of the start. Certificates and tokens are read again by security.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum

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

    def take(self, changed: Sequence[str], waiting: Sequence[str]) -> None:
        """Counts a reload that could be used; the keys are those of reloaded()."""
        self.outcomes[Outcome.APPLIED if changed else Outcome.UNCHANGED] += 1
        self.waiting, self.refused = tuple(waiting), ""


def reloaded(running: Config, read: Config) -> tuple[Config, list[str], list[str]]:
    """Takes the reloadable keys of a configuration that was read again.

    returns  the configuration to be active from now on; as section.key, the keys whose values are
             new and active, and those whose new values wait for a restart

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
    return checked(merged, source), changed, waiting


async def read_again(read: Callable[[], Config], seconds: float = READ_SECONDS) -> Config:
    """Calls `read` in a thread that nothing waits for, and returns the configuration.

    A disk that does not answer holds up neither the loop nor the end of the process.

    Raises what `read` raises, and InvalidConfiguration after so many seconds.
    """
    found: Future[Config] = Future()
    # The thread cannot be stopped: a wait that is given up leaves it to finish.
    found.set_running_or_notify_cancel()

    def work() -> None:
        try:
            found.set_result(read())
        except Exception as error:
            found.set_exception(error)

    # Not the executor's thread: the end of the loop would wait for it.
    threading.Thread(target=work, name="configuration", daemon=True).start()
    try:
        # Not wait_for, which forgets a cancellation that comes together with the result: the
        # sidecar would never end.
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(found)
    except TimeoutError:
        raise InvalidConfiguration(
            f"the configuration could not be read within {seconds:g} s: does the disk that it "
            "is on answer?"
        ) from None
