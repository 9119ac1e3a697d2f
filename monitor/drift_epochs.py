"""Which detections are of the present epoch of their slice: those that were made by a recalibrator
that served the slice since another one last did otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.slices import SliceTable
from monitor.calibration.space import BoolArray, IntArray, Space
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Chain, Selection

# Versions that are known at a time; truth that comes later than so many of them is of no epoch.
_MOST = 4096


@dataclass(slots=True)
class DriftEpochs:
    """Versions in the order in which they came in force, and where the epoch of a slice begins."""

    _number: dict[str, int] = field(default_factory=dict)
    _begins: dict[int, int] = field(default_factory=dict)
    _latest: int = 0

    def begin(self, version: str, slices: Collection[int]) -> None:
        """A version comes in force, and does otherwise than the one before in some slices."""
        self._latest += 1
        # Last in the order: the oldest is forgotten first.
        self._number.pop(version, None)
        self._number[version] = self._latest
        if len(self._number) > _MOST:
            del self._number[next(iter(self._number))]
        self._begins |= dict.fromkeys(slices, self._latest)

    def current(self, slices: IntArray, version: str | None) -> BoolArray:
        """(n,) whether detections of these slices, made by a version, are of their epoch.

        version  None: no recalibrator could be applied
        """
        if version is None or not self._begins:
            return np.ones(slices.size, bool)
        number = self._number.get(version, 0)
        if number == self._latest:
            return np.ones(slices.size, bool)
        return np.array([number >= self._begins.get(s, 0) for s in slices.tolist()], bool)


def served_otherwise(slices: SliceTable, earlier: Selection, now: Selection) -> list[int]:
    """Slices that another recalibrator serves than before."""
    return [
        i
        for i, (entry, chain) in enumerate(zip(slices.slices, slices.chains, strict=True))
        if _serving(earlier, entry.space, chain) != _serving(now, entry.space, chain)
    ]


def _serving(selection: Selection, space: Space, chain: Chain) -> Recalibrator:
    """Of a slice; where a selection does not fit, nothing is done."""
    return selection.of(chain) if selection.fits(space) else Identity()
