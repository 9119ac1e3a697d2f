"""Sums over all slices of one space; made again only where a slice has changed."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from monitor.calibration.matched import SliceStatistics
from monitor.calibration.slices import TOTAL, Slice, label
from monitor.calibration.space import Space

# Slices (or totals) by name, with their statistics.
Named = tuple[tuple[str, SliceStatistics], ...]


@dataclass(slots=True)
class SliceTotals:
    """The last total of each space, with the (immutable) slices it was made from."""

    _last: dict[Space, tuple[tuple[SliceStatistics, ...], SliceStatistics]] = field(
        default_factory=dict
    )

    def read(self, slices: list[tuple[Slice, SliceStatistics]]) -> Generator[None, None, Named]:
        """A total of each space, overflow included; one merge a step."""
        taken = {entry.name for entry, _ in slices}
        totals: list[tuple[str, SliceStatistics]] = []
        for space in dict.fromkeys(entry.space for entry, _ in slices):
            parts = tuple(statistics for entry, statistics in slices if entry.space == space)
            name = label(TOTAL, space, taken)
            taken.add(name)
            totals.append((name, (yield from self._total(space, parts))))
        return tuple(totals)

    def _total(
        self, space: Space, parts: tuple[SliceStatistics, ...]
    ) -> Generator[None, None, SliceStatistics]:
        known = self._last.get(space)
        if known is not None and list(map(id, known[0])) == list(map(id, parts)):
            return known[1]
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
            yield
        self._last[space] = (parts, total)
        return total
