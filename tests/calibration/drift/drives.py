"""Simulated drives of one slice: tracks with a level of their own, at 10 Hz, and what is usual of
them; no tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.special import digamma

from monitor.drift.alarms import AlarmChange
from monitor.drift.bets import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.reference import Levels, Origin, Reference, chi_square_knots, reference_map
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from tests.calibration.drift.watched_rows import Frame, watched

K = 3
PERIOD_NS = 100_000_000
SECOND = 10**9
Factor = Callable[[float], float]


def usual(_: float) -> float:
    """No fault."""
    return 1.0


def mapped(reference: Reference, nees: FloatArray) -> FloatArray:
    """NEES (n,) through one reference."""
    return reference_map((reference,)).mapped(nees, np.zeros(nees.size, np.int64))


def from_ten(factor: float) -> Factor:
    """NEES times so much from the tenth second on."""
    return lambda seconds: factor if seconds >= 10.0 else 1.0


def drive(
    seconds: float,
    seed: int = 0,
    *,
    made: Factor = usual,
    raw: Factor | None = None,
    slices: Sequence[int] = (0,),
    tracks: int = 8,
    begin: float = 0.0,
    tracked: bool = True,
    changed: bool = False,
) -> list[Frame]:
    """Frames in which every slice has so many tracks; each lasts for four seconds.

    made, raw  factor on the NEES of each stage, by seconds
    """
    random = np.random.default_rng(seed)
    frames: list[Frame] = []
    first = round(begin * SECOND)
    for number in range(round(seconds * SECOND / PERIOD_NS)):
        stamp = first + number * PERIOD_NS
        generation = 1 + stamp // (4 * SECOND)
        rows = []
        for g in slices:
            for track, e in enumerate(random.chisquare(K, tracks)):
                key = (generation * 100 + track) * 10 + g if tracked else 0
                at = stamp / SECOND
                rows.append((int(key), g, e * (raw or made)(at), e * made(at)))
        frames.append((0, stamp, changed, rows))
    return frames


def exact_reference(
    k: int = K, *, origin: Origin = Origin.FILE, tracks: bool = True, tempering: float = 1.0
) -> Reference:
    """Of independent detections that are calibrated."""
    mean = float(digamma(k / 2)) + float(np.log(2))
    levels = Levels(mean, 0.1, 0.35, 10.0, 100, 1000) if tracks else None
    return Reference(
        k, origin, chi_square_knots(k).copy(), 10**9, 1.0, tempering, tempering, levels
    )


def both(reference: Reference) -> dict[Stage, Reference]:
    """The same at both stages."""
    return dict.fromkeys(Stage, reference)


def family_of(
    wanted: DriftSettings, names: Sequence[str] = ("car",), reference: Reference | None = None
) -> Family:
    """Of slices that all have this reference; of ones that nothing is known of."""
    family = Family(wanted, {} if reference is None else {n: both(reference) for n in names})
    for name in names:
        family.grow(name, K)
    return family


def fed(family: Family, frames: Iterable[Frame], at_once: int = 8) -> list[AlarmChange]:
    """Have a family take in frames and learn from them; what became of alarms."""
    frames, changes = list(frames), []
    for begin in range(0, len(frames), at_once):
        taken = family.take(K, watched(frames[begin : begin + at_once]))
        changes += taken.changes
        finished(family.learn(taken))
    return changes
