"""Families that have seen some frames, and their text; no tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.calibration.drift.family import Family
from monitor.calibration.drift.family_json import (
    family_from_json,
    family_text,
    family_to_json,
)
from monitor.calibration.drift.family_state import (
    FamilyState,
    family_state,
)
from monitor.calibration.drift.settings import DriftSettings
from monitor.calibration.steps import finished
from tests.calibration.drift.watched_rows import some_frames, watched

K = 3
NAMES = ("car", "van", "bus")
SHORT = DriftSettings(
    # The slow account asks for no second track, and for no time of learning.
    fewest_tracks=1,
    reference_seconds=0.0,
    hours_between_false_pages=1e-3,
    hours_between_false_tickets=1e-3,
    reference_tracks=4,
    reference_detections=150,
    shortest_reference=3,
    calm_hours=0.0,
)
LONG = replace(SHORT, hours_between_false_pages=1e9, hours_between_false_tickets=1e9)


def family_of(seed: int, wanted: DriftSettings = SHORT, frames: int = 100, factor: float = 1.0):
    """Of three slices; errors are too large by a factor on NEES."""
    family = Family(wanted)
    for name in NAMES:
        family.grow(name, K)
    feed(family, seed, frames, factor)
    return family


def feed(family: Family, seed: int, frames: int, factor: float = 1.0) -> None:
    found = [
        (source, stamp, changed, [(t, s, factor * raw, factor * made) for t, s, raw, made in rows])
        for source, stamp, changed, rows in some_frames(seed, frames)
    ]
    for at in range(0, len(found), 32):
        rows = watched(found[at : at + 32])
        if rows.n:
            # Frames without rows are of nobody.
            there, frame = np.unique(rows.frame, return_inverse=True)
            rows = replace(
                rows,
                frame=frame,
                stamp_ns=rows.stamp_ns[there],
                source=rows.source[there],
                changed=rows.changed[there],
            )
            finished(family.learn(family.take(K, rows)))


def text_of(family: Family, selection: str = "identity") -> bytes:
    return b"".join(family_text(finished(family_to_json(family_state(family, selection)))))


def through_text(family: Family, selection: str = "identity") -> FamilyState:
    return family_from_json(text_of(family, selection))
