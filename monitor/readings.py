"""Measures of all slices, read one slice at a time so that the caller can let frames pass
in between; slices whose statistics did not change are not read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from monitor.calibration.evaluation import Evaluation
from monitor.calibration.matched import SliceStatistics
from monitor.calibration.reading import read
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

    def read(self, statistics: tuple[tuple[str, SliceStatistics], ...]) -> Iterator[SliceReading]:
        """Readings in the given order, one a step."""
        for name, current in statistics:
            known = self._last.get(name)
            if known is None or known[0] is not current:
                raw = read(current.raw, self.bins)
                same = current.recalibrated is current.raw
                second = raw if same else read(current.recalibrated, self.bins)
                known = (current, SliceReading(name, current.raw.space, raw, second))
                self._last[name] = known
            yield known[1]
