"""Remembers which tracks had truth of late, and which tracks say that something is wrong: evidence
of one odd object is no drift.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.clusters import ALONE, ClusterArray
from monitor.calibration.drift.watched import BLOCK_NS
from monitor.calibration.space import IntArray

# Tracks of a chart that are remembered; nobody asks for more.
MOST = 256
# Tracks of a slice that are remembered; an alarm that concerns more tells this number.
MOST_SEEN = 1024


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


@dataclass(slots=True)
class SeenTracks:
    """Remembers by slice the tracks that had truth of late, and the latest frame of each track."""

    _latest: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, slices: IntArray, tracks: ClusterArray, frame: IntArray) -> None:
        """Take in n detections, (n,) each, by ascending frame; those of no track say nothing."""
        tracked = np.flatnonzero(tracks != ALONE)[::-1]
        _, last = np.unique(tracks[tracked], return_index=True)
        columns = (one[tracked[last]].tolist() for one in (slices, tracks, frame))
        for slice, track, number in zip(*columns, strict=True):
            known = self._latest[slice]
            known.pop(track, None)
            known[track] = number
            if len(known) > MOST_SEEN:
                del known[next(iter(known))]

    def forget(self, slice: int, before: int) -> None:
        """Drops the tracks of a slice whose latest frame is before this one."""
        known = self._latest[slice]
        self._latest[slice] = {track: frame for track, frame in known.items() if frame >= before}

    def of(self, slice: int) -> tuple[ClusterArray, IntArray]:
        """Tracks of a slice (n,), the longest unseen first, and the latest frame of each (n,)."""
        known = self._latest.get(slice, {})
        return np.array(list(known), np.uint64), np.array(list(known.values()), np.int64)

    def put(self, slice: int, tracks: ClusterArray, frames: IntArray) -> None:
        """The inverse of `of`."""
        self._latest[slice] = dict(zip(tracks.tolist(), frames.tolist(), strict=True))

    def count(self, slice: int, since: int) -> int:
        """Counts the tracks of a slice that had truth in this frame or a later one."""
        return sum(frame >= since for frame in self._latest[slice].values())
