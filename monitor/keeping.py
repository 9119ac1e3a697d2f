"""The statistics of a running sidecar, kept on disk: loaded at start, written now and then.

Only the making of the value is done on the loop, in steps; bytes and disk belong to a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from monitor.calibration.steps import finished
from monitor.config import SnapshotConfig
from monitor.edges.pane_bytes import PaneBytes
from monitor.edges.snapshot import SnapshotFile
from monitor.edges.state import StoredState, parsed, serialised
from monitor.edges.unknown_fields import NewerFields
from monitor.pipeline import Pipeline
from monitor.steps import in_steps

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Keeper:
    """Writes what the pipeline has counted to a file, and reads it at start.

    newer       shared with whoever exports and imports
    written_at  monotonic seconds of the last snapshot; None before the first
    failures    snapshots that could not be written
    """

    pipeline: Pipeline
    newer: NewerFields
    config: SnapshotConfig
    written_at: float | None = None
    failures: int = 0
    _file: SnapshotFile | None = field(init=False)
    _lock: BinaryIO | None = None
    _encoded: PaneBytes = field(default_factory=PaneBytes)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        path = self.config.path
        self._file = SnapshotFile(Path(path).absolute()) if path else None

    @property
    def age_seconds(self) -> float:
        """Since the last snapshot; NaN where there is none."""
        if self.written_at is None:
            return float("nan")
        return time.monotonic() - self.written_at

    def load(self) -> None:
        """Begin where the last run ended; what cannot be used is said, and never stops the start.

        Where another sidecar keeps its statistics in the file, it is left alone from now on.
        """
        if self._file is None:
            return
        path = self._file.path
        try:
            if not self._claimed():
                return
            loaded = self._file.load(self._imported)
        except Exception as error:
            log.warning("snapshot: %s cannot be used, statistics begin anew: %s", path, error)
            return
        if loaded.value is not None:
            detections, slices = loaded.value
            log.info(
                "snapshot: %d matched detections of %d slices from %s",
                detections,
                slices,
                loaded.source,
            )

    def _imported(self, body: bytes) -> tuple[int, int]:
        """What came with it. Raises InvalidState, IncompatibleStatistics; nothing is added then."""
        stored = parsed(body)
        added = finished(self.pipeline.live.import_in_steps(stored.state))
        self.newer.data = stored.unknown
        return added

    def _claimed(self) -> bool:
        """Whether the file is ours. Raises OSError where that cannot be told."""
        if self._file is None:
            return False
        if self._lock is None:
            self._lock = self._file.lock()
        if self._lock is None:
            log.warning(
                "snapshot: another sidecar keeps its statistics in %s: this one keeps none. "
                "Give it a [snapshot] path of its own, or none.",
                self._file.path,
            )
            self._file = None
        return self._lock is not None

    async def keep(self) -> None:
        """Write snapshots, for ever."""
        while True:
            await asyncio.sleep(self.config.every_seconds)
            await self.write()

    async def write(self) -> None:
        """Write one now, after those that are being written.

        A failure is said and counted, and the next one tries again.
        """
        # Who waits for it may be cancelled; a thread cannot be, and the next one must wait for it.
        task = asyncio.create_task(self._write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def _write(self) -> None:
        async with self._one_at_a_time:
            if self._file is None:
                return
            path = self._file.path
            try:
                if not self._claimed():
                    return
                state = await in_steps(self.pipeline.live.state_in_steps())
                stored = StoredState(state, self.newer.data)
                await asyncio.to_thread(self._file.write, serialised(stored, self._encoded))
            except Exception as error:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                    log.warning("snapshot %s not written: %s", path, error)
                return
            self.written_at = time.monotonic()

    def close(self) -> None:
        """Let another sidecar have the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._file = None
