"""Entries of the ledger at random, with and without what may be absent; no tests here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Estimates
from monitor.frames.frame import Header, TrackIds
from monitor.frames.space import BoolArray, Dimension, DimensionKind, FloatArray, Space
from monitor.frames.stored import (
    SliceKey,
    StoredEstimates,
    StoredFrame,
    StoredOpinions,
    stored_estimates,
)
from monitor.matching.record import INLINE, LabelRecord, Outcome
from monitor.store.entries import FrameEntry

CLASSES = ("car", "bus", "person")
SLICES = (SliceKey("lidar/car"), SliceKey("overflow", overflow=True))


def a_header(k: int) -> Header:
    """Of k dimensions; every other one is an angle of either kind."""
    kinds = (DimensionKind.LENGTH, DimensionKind.ANGLE, DimensionKind.ANGLE_MODULO_PI)
    dimensions = tuple(
        Dimension(f"d{i}", "m" if i % 3 == 0 else "", kinds[i % 3]) for i in range(k)
    )
    return Header("lidar", Space(dimensions), CLASSES, "lidar_top")


def covariances(random: np.random.Generator, n: int, k: int) -> FloatArray:
    """(n, k, k), symmetric to the last bit."""
    root = random.normal(size=(n, k, k))
    made: FloatArray = root @ root.transpose(0, 2, 1)
    return (made + made.transpose(0, 2, 1)) / 2


def some_estimates(random: np.random.Generator, n: int, k: int) -> StoredEstimates:
    covariance = covariances(random, n, k)
    diagonal = random.random(n) < random.choice([0.0, 0.5, 1.0])
    covariance[diagonal] *= np.eye(k)
    return stored_estimates(Estimates(random.normal(size=(n, k)), covariance, diagonal))


def some_ids(random: np.random.Generator, n: int) -> np.ndarray:
    return random.integers(0, 2**64, n, np.uint64)


def some_tracks(random: np.random.Generator, n: int) -> TrackIds:
    return TrackIds(some_ids(random, n), _flags(random, n))


def _flags(random: np.random.Generator, n: int) -> BoolArray:
    return random.random(n) < 0.5


def a_frame(seed: int, n: int, k: int, *, whole: bool = False) -> StoredFrame:
    """whole: nothing is absent."""
    random = np.random.default_rng([seed, n, k])

    def there() -> bool:
        return bool(random.random() < 0.5) or whole

    opinions = None
    if there():
        rows = np.flatnonzero(random.random(n) < 0.7)
        place = SliceKey("lidar") if there() else None
        values = random.dirichlet(np.ones(len(CLASSES)), (rows.size, int(random.integers(1, 4))))
        opinions = StoredOpinions(place, rows, values)
    return StoredFrame(
        header=a_header(k),
        frame_id=int(some_ids(random, 1)[0]),
        stamp_ns=int(random.integers(-(2**62), 2**62)) if there() else None,
        received=n + int(random.integers(5)),
        id=some_ids(random, n),
        class_index=random.integers(0, len(CLASSES), n),
        slices=SLICES,
        slice=random.integers(0, len(SLICES), n).astype(np.uint16),
        sent=some_estimates(random, n, k),
        made=some_estimates(random, n, k) if there() else None,
        version="v7" if there() else None,
        unusable=np.sort(some_ids(random, int(random.integers(4)))),
        tracks=some_tracks(random, n) if there() else None,
        source=int(random.integers(2**62)),
        opinions=opinions,
        epoch=int(random.integers(3)),
        bare=int(random.integers(3)),
    )


def a_record(seed: int, n: int, k: int, *, whole: bool = False) -> LabelRecord:
    """Of a frame of n detections; where it has rows, anything may be absent."""
    random = np.random.default_rng([seed, n, k, 1])

    def there() -> bool:
        return bool(random.random() < 0.5) or whole

    settled = np.flatnonzero((random.random(n) < 0.8) | whole)
    rows = settled[(random.random(settled.size) < 0.7) | whole]
    class_rows = settled[(random.random(settled.size) < 0.3) | whole]
    m = rows.size
    covariance = covariances(random, m, k) if m and there() else None
    counts = [int(count) for count in random.integers(0, 2**40, 9)]
    return LabelRecord(
        revision=int(random.integers(2**32)),
        replaces=there(),
        settled=settled,
        outcome=random.integers(0, len(Outcome), settled.size).astype(np.uint8),
        rows=rows,
        truth=random.normal(size=(m, k)),
        truth_covariance=covariance,
        objects=some_tracks(random, m) if there() else None,
        class_rows=class_rows,
        true_class=random.integers(0, len(CLASSES), class_rows.size),
        stamp_ns=int(random.integers(-(2**62), 2**62)) if there() else None,
        clock_ns=int(random.integers(-(2**62), 2**62)) if there() else None,
        generation=int(random.integers(5)),
        delay_ns=int(random.integers(-(2**40), 2**40)),
        live=there(),
        account=TruthAccount(*counts),
        objects_told=there(),
        gate=random.integers(3, size=m).astype(np.uint8) if m and there() else None,
    )


def an_entry(seed: int, n: int, k: int, *, whole: bool = False) -> FrameEntry:
    """With what came with it, as often as not; whole: always, and nothing is absent."""
    random = np.random.default_rng([seed, 2])
    inline = None
    if whole or random.random() < 0.5:
        inline = replace(a_record(seed, n, k, whole=whole), revision=INLINE)
    place = int(random.integers(2**40)), int(random.integers(-5, 2**30))
    return FrameEntry(*place, a_frame(seed, n, k, whole=whole), inline)
