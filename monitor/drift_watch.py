"""The watch over drift of a running sidecar: what the truth says on its way in, evidence and
alarms, and what is told of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field

from monitor.calibration.drift.alarm import Alarm, AlarmChange, DriftReading
from monitor.calibration.drift.settings import DriftSettings
from monitor.calibration.slices import SliceTable


def nobody(_: AlarmChange) -> None:
    """Until there is somebody to tell."""


@dataclass(slots=True)
class DriftWatch:
    """Of one pipeline.

    announce  tells those who watch
    """

    settings: DriftSettings
    slices: SliceTable
    announce: Callable[[AlarmChange], None] = field(default=nobody)

    def acknowledge(self, slices: Collection[str], actor: str) -> tuple[Alarm, ...]:
        """End the alarms of these slices, or of all where none is named; those that were there.

        raises  NoSuchSlice
        """
        raise NotImplementedError

    def reading(self, store_failures: int = 0) -> Generator[None, None, DriftReading]:
        """How all of it stands, in short steps."""
        raise NotImplementedError


class NoSuchSlice(ValueError):
    """A slice that nothing is known of."""
