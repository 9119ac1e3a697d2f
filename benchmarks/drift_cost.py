"""What the watch over drift costs, in time of the CPU: frames of 200 detections in 24 slices, taken
in as the sidecar does, some frames at a time.
"""

from __future__ import annotations

import time

import numpy as np

from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.usual import WatchedRows
from monitor.statistics.clusters import ALONE, cluster_id
from monitor.statistics.observations import finished

SLICES, DETECTIONS, K, SOURCES = 24, 200, 4, 6
PERIOD_NS = 100_000_000
# µs a slice and frame, and bytes a slice, that are promised.
MOST_MICROSECONDS, MOST_BYTES = 3.0, 1280
AT_ONCE = (1, 16, 32, 64)


def frames(
    first: int, count: int, rng: np.random.Generator, *, changed: bool, tracked: bool
) -> WatchedRows:
    """Of six sensors in turn; each track lives for four seconds."""
    number = first + np.arange(count)
    source = number % SOURCES
    rows = np.arange(count * DETECTIONS)
    frame, place = rows // DETECTIONS, rows % DETECTIONS
    nees = rng.chisquare(K, rows.size)
    life = number[frame] // SOURCES // 40
    track = cluster_id((place, source[frame], life)) if tracked else np.full(rows.size, ALONE)
    return WatchedRows(
        slices=place % SLICES,
        nees=np.stack([nees, 1.1 * nees if changed else nees]),
        track=track,
        frame=frame,
        stamp_ns=number // SOURCES * PERIOD_NS,
        source=source,
        changed=np.full(count, changed),
    )


def microseconds(at_once: int, *, learning: bool, changed: bool, tracked: bool) -> float:
    """A slice and frame."""
    rng = np.random.default_rng(1)
    enough = 10**9 if learning else 100
    asked = DriftSettings(
        reference_tracks=min(enough, 10**6), reference_detections=enough, reference_seconds=0.0
    )
    family = Family(asked)
    for slice in range(SLICES):
        family.grow(f"slice {slice}", K)
    settled, measured = 256 // at_once, 1024 // at_once
    chunks = [
        frames(i * at_once, at_once, rng, changed=changed, tracked=tracked)
        for i in range(settled + measured)
    ]
    began = 0.0
    for i, rows in enumerate(chunks):
        if i == settled:
            began = time.process_time()
        finished(family.learn(family.take(K, rows)))
    return (time.process_time() - began) / (measured * at_once * SLICES) * 1e6


def cost_tables() -> bool:
    """Print them; whether the promise holds where references are known, tracks too, and some ten
    frames come at a time, as from six sensors within half a second.
    """
    print(
        f"\nµs a slice and frame of {DETECTIONS} detections in {SLICES} slices, frames at a time:"
    )
    print(f"{'':32}" + "".join(f"{at_once:>8}" for at_once in AT_ONCE))
    best = float("inf")
    for name, learning, changed, tracked in (
        ("watching", False, False, True),
        ("watching, recalibrated", False, True, True),
        ("watching, without tracks", False, False, False),
        ("learning what is usual", True, False, True),
    ):
        cells = [
            microseconds(at_once, learning=learning, changed=changed, tracked=tracked)
            for at_once in AT_ONCE
        ]
        print(f"{name:32}" + "".join(f"{cell:8.2f}" for cell in cells), flush=True)
        if name == "watching":
            best = min(cells[1:])
    evidence = Family(DriftSettings()).evidence
    evidence.grow(1)
    size = sum(getattr(evidence, name).nbytes for name in evidence.__dataclass_fields__)
    print(f"evidence of a slice: {size} bytes")
    return best <= MOST_MICROSECONDS and size <= MOST_BYTES
