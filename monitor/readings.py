"""Measures of all slices, read in short steps so that the caller can let frames pass in
between; slices whose statistics did not change are not read again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from monitor.calibration.evaluation import Evaluation
from monitor.calibration.matched import SliceStatistics
from monitor.calibration.reading import read_in_steps
from monitor.calibration.space import Space

RAW = "raw"
RECALIBRATED = "recalibrated"


@dataclass(frozen=True, slots=True)
class SliceReading:
    """The measures of one slice by stage."""

    name: str
    space: Space
    raw: Evaluation
    recalibrated: Evaluation

    @property
    def stages(self) -> tuple[tuple[str, Evaluation], ...]:
        """Both, with their names."""
        return ((RAW, self.raw), (RECALIBRATED, self.recalibrated))


@dataclass(slots=True)
class ReadingCache:
    """The last reading of every slice, with the (immutable) statistics it was made from."""

    bins: int
    _last: dict[str, tuple[SliceStatistics, SliceReading]] = field(default_factory=dict)

    def read(
        self, statistics: tuple[tuple[str, SliceStatistics], ...]
    ) -> Generator[None, None, tuple[SliceReading, ...]]:
        """Readings in the given order, returned after many short steps."""
        readings = []
        for name, current in statistics:
            known = self._last.get(name)
            if known is None or known[0] is not current:
                raw = yield from read_in_steps(current.raw, self.bins)
                second = raw
                if current.recalibrated is not current.raw:
                    second = yield from read_in_steps(current.recalibrated, self.bins)
                known = (current, SliceReading(name, current.raw.space, raw, second))
                self._last[name] = known
            readings.append(known[1])
        return tuple(readings)
