"""A file that a running sidecar keeps for itself: claimed against other sidecars, read at start,
and written again and again. What goes wrong is said and counted, and stops nothing.

Only the making of the value is done on the loop; bytes and disk belong to a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from monitor.edges.snapshot import Kind, Loaded, SnapshotFile

log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(slots=True)
class KeptFile:
    """One file, or none at all.

    path        '': nothing is kept
    what        is in it, for the log
    written_at  monotonic seconds of the last write; None before the first
    failures    writes that came to nothing; the next one tries again, unless another sidecar has
                the file
    refused     files that could not be used at the start
    """

    path: str
    kind: Kind
    what: str
    written_at: float | None = None
    failures: int = 0
    refused: int = 0
    _file: SnapshotFile | None = field(init=False)
    _lock: BinaryIO | None = None
    _of_another: bool = False
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._file = SnapshotFile(Path(self.path).absolute(), self.kind) if self.path else None

    def load(self, taken: Callable[[bytes], Value]) -> Loaded[Value] | None:
        """What was there at start; None where there is no file, or none that is ours.

        taken  raises as SnapshotFile.load() has it; what else it raises is said too
        """
        if self._file is None:
            return None
        try:
            loaded = self._file.load(taken) if self._claimed(self._file) else None
            self.refused += 0 if loaded is None else loaded.refused
            return loaded
        except Exception as error:
            topic, path = self.kind.topic, self._file.path
            log.warning("%s: %s cannot be used, %s begin anew: %s", topic, path, self.what, error)
            return None

    def _claimed(self, file: SnapshotFile) -> bool:
        """Whether the file is ours. Where another sidecar has it, it is left alone from now on.

        Raises OSError where that cannot be told.
        """
        if self._lock is None and not self._of_another:
            self._lock = file.lock()
            self._of_another = self._lock is None
            if self._of_another:
                topic, what = self.kind.topic, self.what
                log.warning(
                    "%s: another sidecar keeps its %s in %s: this one keeps none. "
                    "Give it a [%s] path of its own, or none.",
                    *(topic, what, file.path, topic),
                )
        return not self._of_another

    async def write(self, made: Callable[[], Awaitable[Iterable[bytes]]]) -> None:
        """Write the parts of a value that is made then, after those that are being written."""
        # Who waits for it may be cancelled; a thread cannot be, and the next one must wait for it.
        task = asyncio.create_task(self._write(made))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def _write(self, made: Callable[[], Awaitable[Iterable[bytes]]]) -> None:
        async with self._one_at_a_time:
            file = self._file
            if file is None:
                return
            try:
                if not self._claimed(file):
                    self.failures += 1
                    return
                await asyncio.to_thread(file.write, await made())
            except Exception as error:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                    log.warning("%s: %s not written: %s", self.kind.topic, file.path, error)
                return
            self.written_at = time.monotonic()

    def close(self) -> None:
        """Let another sidecar have the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._file = None
