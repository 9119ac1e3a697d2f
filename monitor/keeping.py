"""The statistics of a running sidecar, kept on disk: loaded at start, written now and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from monitor.calibration.steps import finished
from monitor.config import SnapshotConfig
from monitor.drift_keeping import nothing_to_cover
from monitor.drift_watch import nobody
from monitor.edges.pane_bytes import PaneBytes
from monitor.edges.snapshot import STATISTICS
from monitor.edges.state import StoredState, parsed, serialised
from monitor.edges.state_sums import InvalidState
from monitor.edges.unknown_fields import NewerFields
from monitor.kept_file import KeptFile
from monitor.pipeline import Pipeline
from monitor.progress import Progress
from monitor.resuming import IN_PARTITION, progress_of, restore_progress, with_clusters
from monitor.steps import in_steps

log = logging.getLogger(__name__)

# s between two snapshots that are asked for, at least.
_APART = 1.0

_PARTITION = re.compile(r"-?[0-9]{1,19}")


def check_progress(progress: Progress) -> None:
    """Whether it can be restored. Raises InvalidState."""
    for name, count in progress.detections.items():
        if name.startswith(IN_PARTITION):
            number = name.removeprefix(IN_PARTITION)
            if not _PARTITION.fullmatch(number) or count < 0:
                raise InvalidState(
                    f"progress.detections: '{name}' is {count}, where a partition and how many "
                    "wait in it belong. The state is damaged or forged."
                )


@dataclass(slots=True)
class Keeper:
    """Writes what the pipeline has counted to a file, and reads it at start.

    newer    shared with whoever exports and imports
    covered  returns when the ledger has so many entries on disk; raises OSError where it cannot:
             labels that only a snapshot knew of would be counted again
    soon     set by whoever cannot wait for the next one
    wrote    is told of the last entry in a snapshot that is on the disk
    entry    the last one that is in what was loaded; 0: nothing was, None: it is not known
    """

    pipeline: Pipeline
    newer: NewerFields
    config: SnapshotConfig
    covered: Callable[[int], Awaitable[None]] = field(default=nothing_to_cover)
    wrote: Callable[[int], None] = field(default=nobody)
    entry: int | None = field(default=0, init=False)
    soon: asyncio.Event = field(default_factory=asyncio.Event)
    _last: int = 0
    _file: KeptFile = field(init=False)
    _encoded: PaneBytes = field(default_factory=PaneBytes)

    def __post_init__(self) -> None:
        self._file = KeptFile(self.config.path, STATISTICS, "statistics")

    @property
    def written_at(self) -> float | None:
        """Monotonic seconds of the last snapshot; None before the first."""
        return self._file.written_at

    @property
    def failures(self) -> int:
        """Snapshots that were not written."""
        return self._file.failures

    @property
    def refused(self) -> int:
        """Files that could not be used at the start."""
        return self._file.refused

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
        loaded = self._file.load(self._imported)
        if loaded is not None and loaded.value is not None:
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
        # All of it first: what is added already cannot be taken back.
        if stored.progress is not None:
            check_progress(stored.progress)
        added = finished(self.pipeline.live.import_in_steps(stored.state))
        self.newer.data = stored.unknown
        self.entry = None
        if stored.progress is not None:
            restore_progress(self.pipeline, stored.progress)
            self.entry = stored.progress.sequence
        return added

    async def keep(self) -> None:
        """Write snapshots, for ever."""
        while True:
            # Not wait_for, which forgets that it was cancelled where both come at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.every_seconds):
                    await self.soon.wait()
            self.soon.clear()
            await self.write()
            # Whoever asks for more of them asks in vain.
            await asyncio.sleep(min(_APART, self.config.every_seconds))

    async def write(self) -> None:
        """Write one now, after those that are being written.

        A failure is said and counted, and the next one tries again.
        """
        before = self._file.written_at
        await self._file.write(self._made)
        if self._file.written_at != before:
            self.wrote(self._last)

    async def _made(self) -> Iterable[bytes]:
        live = self.pipeline.live
        with live.held():
            progress = progress_of(self.pipeline)
            state = await in_steps(live.state_in_steps(holder=True))
            progress = with_clusters(progress, self.pipeline)
        await self.covered(progress.sequence)
        self._last = progress.sequence
        stored = StoredState(state, self.newer.data, progress)
        return serialised(stored, self._encoded)

    def close(self) -> None:
        """Let another sidecar have the file."""
        self._file.close()
