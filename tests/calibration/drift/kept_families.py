"""Families that have seen some frames, and their text; no tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import TypeAlias

import numpy as np

from monitor.drift.alarms import AlarmChange
from monitor.drift.bets import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.reference import Reference
from monitor.drift.state import FamilyState, family_state
from monitor.drift.usual import ReferenceLearner
from monitor.statistics.observations import finished
from monitor.store.codec import Codec
from monitor.store.drift_documents import family_text, read_family
from tests.calibration.drift.watched_rows import Frame, some_frames, watched

LEARNER = Codec(ReferenceLearner, "learner", "Learn anew.")
Given: TypeAlias = Mapping[str, Mapping[Stage, Reference]]
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
    return b"".join(finished(family_text(family_state(family, selection))))


def through_text(family: Family, selection: str = "identity") -> FamilyState:
    return read_family(text_of(family, selection))


# ---- frame by frame


def empty(wanted: DriftSettings, given: Given | None = None) -> Family:
    """Of three slices, of which nothing is known but this."""
    family = Family(wanted, given or {})
    for name in NAMES:
        family.grow(name, K)
    return family


def frames_of(seed: int, frames: int, factor: float) -> list[Frame]:
    """None of them without rows."""
    return [
        (source, stamp, changed, [(t, s, factor * raw, factor * made) for t, s, raw, made in rows])
        for source, stamp, changed, rows in some_frames(seed, frames, wild=seed % 3 == 0)
        if rows
    ]


def fed(family: Family, frames: Sequence[Frame], sizes: Sequence[int] = (1,)) -> list[AlarmChange]:
    """Have a family take in frames in portions of these sizes, over and over, and learn from them;
    what became of alarms.
    """
    changes: list[AlarmChange] = []
    begin = 0
    for size in cycle(sizes):
        if begin >= len(frames):
            return changes
        taken = family.take(K, watched(frames[begin : begin + size]))
        changes += taken.changes
        finished(family.learn(taken))
        begin += size
    return changes
