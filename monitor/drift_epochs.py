"""Which detections are of the present epoch of their slice: those that were made by a recalibrator
that served the slice since another one last did otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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

    def state(self, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Numbers by version, and begins by slice, of slices of these names."""
        begins = {names[i]: n for i, n in self._begins.items() if i < len(names)}
        return dict(self._number), begins

    def restore(
        self, numbers: Mapping[str, int], begins: Mapping[str, int], names: Sequence[str]
    ) -> None:
        """Go on where another one was, if the version that is in force now was so then."""
        latest = max(numbers, key=numbers.__getitem__, default=None)
        ours = max(self._number, key=self._number.__getitem__, default=latest)
        if latest is None or ours != latest:
            return
        self._number, self._latest = dict(numbers), numbers[latest]
        place = {name: i for i, name in enumerate(names)}
        self._begins = {place[name]: n for name, n in begins.items() if name in place}

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
