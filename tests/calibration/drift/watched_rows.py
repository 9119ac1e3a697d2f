"""Detections of tracks that come and go, of several sources, as a watch is given them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from monitor.drift.usual import WatchedRows

# Track, slice, and NEES of the raw and the recalibrated estimate.
Row = tuple[int, int, float, float]
# Source, stamp, whether a recalibrator changed them, and the detections.
Frame = tuple[int, int, bool, list[Row]]


def watched(frames: Iterable[Frame]) -> WatchedRows:
    """All detections of some frames."""
    frames = list(frames)
    rows = [row for *_, of_frame in frames for row in of_frame]
    return WatchedRows(
        slices=np.array([row[1] for row in rows], np.int64),
        nees=np.array([row[2:] for row in rows], np.float64).reshape(-1, 2).T,
        track=np.array([row[0] for row in rows], np.uint64),
        frame=np.repeat(np.arange(len(frames)), [len(frame[3]) for frame in frames]),
        stamp_ns=np.array([frame[1] for frame in frames], np.int64),
        source=np.array([frame[0] for frame in frames], np.int64),
        changed=np.array([frame[2] for frame in frames], bool),
    )


def some_frames(seed: int, frames: int = 120, *, wild: bool = False):
    """Frames of up to three sources at their own rates; tracks pause, end and come again.

    wild  stamps that are late, far ahead or set back too
    """
    random = np.random.default_rng(seed)
    sources = int(random.integers(1, 4))
    stamp = random.integers(0, 10**12, sources)
    period = random.choice([30, 100, 140], sources) * 1_000_000
    there = random.random((sources, 6)) < 0.7
    out = []
    for _ in range(frames):
        source = int(random.integers(sources))
        stamp[source] += period[source]
        if random.random() < 0.03:
            stamp[source] += int(random.choice([1, 2, 3, 9])) * 10**9
        there[source] ^= random.random(6) < 0.04
        shown = int(stamp[source])
        if wild and random.random() < 0.15:
            shown += int(random.choice([-12, -3, -1, -0.2, 2, 3600]) * 1e9)
        rows = [
            (source * 10 + track + 1 if track < 5 else 0, track % 3, *random.chisquare(3, 2))
            for track in random.permutation(np.flatnonzero(there[source]))
            for _ in range(2)
        ]
        out.append((source, shown, bool(random.random() < 0.5), rows))
    return out


def cut(frames, cuts):
    """The same frames in pieces, some of them empty."""
    edges = [0, *sorted(min(at, len(frames)) for at in cuts), len(frames)]
    return [watched(frames[a:b]) for a, b in pairwise(edges)]
