"""Which tracks say that something is wrong: evidence of one odd object is no drift."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.clusters import ClusterArray
from monitor.calibration.drift.watched import BLOCK_NS
from monitor.calibration.space import IntArray

# Tracks of a chart that are remembered; nobody asks for more.
MOST = 256


def _by_chart() -> defaultdict[tuple[int, int], dict[int, int]]:
    return defaultdict(dict)


@dataclass(slots=True)
class Supporters:
    """By slice and chart, tracks with a second that spoke for it, and the latest such second."""

    _seconds: defaultdict[tuple[int, int], dict[int, int]] = field(default_factory=_by_chart)

    def add(self, chart: int, slices: IntArray, tracks: ClusterArray, second: int) -> None:
        """Take in m tracks, (m,) each, whose second spoke for a chart."""
        for slice, track in zip(slices.tolist(), tracks.tolist(), strict=True):
            known = self._seconds[slice, chart]
            # The latest ones last.
            known.pop(track, None)
            known[track] = second
            if len(known) > MOST:
                del known[next(iter(known))]

    def of(self, slice: int, chart: int) -> tuple[ClusterArray, IntArray]:
        """Tracks that spoke for a chart of a slice (n,), and the second of each (n,)."""
        known = self._seconds.get((slice, chart), {})
        return np.array(list(known), np.uint64), np.array(list(known.values()), np.int64)

    def put(self, slice: int, chart: int, tracks: ClusterArray, seconds: IntArray) -> None:
        """The inverse of `of`."""
        self._seconds[slice, chart] = dict(zip(tracks.tolist(), seconds.tolist(), strict=True))

    def count(self, slice: int, chart: int, since_ns: int) -> int:
        """Of a slice and chart, how many spoke for it after a time."""
        seconds = np.array(list(self._seconds[slice, chart].values()), np.int64)
        return int(np.count_nonzero((seconds + 1) * BLOCK_NS > since_ns))
