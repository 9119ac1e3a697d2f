"""Simulated detections of tracks that come and go, and families that take them in; no tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from scipy.special import digamma

from monitor.drift.alarms import AlarmChange
from monitor.drift.bets import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family, family_state
from monitor.drift.reference import Levels, Origin, Reference, chi_square_knots, usual_arrays
from monitor.drift.usual import WatchedRows
from monitor.frames.detections import IdArray
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from monitor.store.documents import family_text

# Track, slice, and NEES of the raw and the recalibrated estimate.
Row = tuple[int, int, float, float]
# Source, stamp, whether a recalibrator changed them, and the detections.
Frame = tuple[int, int, bool, list[Row]]


seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)


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


def correlated(
    seed: int,
    k: int,
    correlation: float,
    frames: int,
    open_tracks: int = 8,
    life: int = 40,
    bias: float = 0.0,
) -> tuple[FloatArray, IdArray]:
    """(F, T) NEES and ids: AR(1) whitened errors, and a constant bias of each track, of which
    the second moment is 1 together; a track ends with 1/life in each frame.
    """
    random = np.random.default_rng(seed)
    ids = np.arange(1, open_tracks + 1)
    following = open_tracks + 1
    errors, biases = random.standard_normal((2, open_tracks, k))
    nees, tracks = np.empty((frames, open_tracks)), np.empty((frames, open_tracks), np.uint64)
    for frame in range(frames):
        whole = np.sqrt(1 - bias**2) * errors + bias * biases
        nees[frame], tracks[frame] = (whole**2).sum(axis=1), ids
        fresh = random.standard_normal((open_tracks, k))
        errors = correlation * errors + np.sqrt(1 - correlation**2) * fresh
        over = np.flatnonzero(random.random(open_tracks) < 1 / life)
        errors[over], biases[over] = random.standard_normal((2, over.size, k))
        ids[over] = np.arange(following, following + over.size)
        following += over.size
    return nees, tracks


K = 3
PERIOD_NS = 100_000_000
SECOND = 10**9
Factor = Callable[[float], float]


def from_ten(factor: float) -> Factor:
    """NEES times so much from the tenth second on."""
    return lambda seconds: factor if seconds >= 10.0 else 1.0


def drive(
    seconds: float,
    seed: int = 0,
    *,
    made: Factor = lambda _: 1.0,
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


def mapped(reference: Reference, nees: FloatArray) -> FloatArray:
    """NEES (n,) through one reference."""
    return usual_arrays((reference,)).mapped(nees, np.zeros(nees.size, np.int64))


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
        k = family.slices[0].k
        told, learning = family.take(k, watched(frames[begin : begin + at_once]))
        changes += told
        finished(learning)
    return changes


def feed(family: Family, seed: int, frames: int, factor: float = 1.0) -> Family:
    """A family that has taken in some frames, whose NEES are too large by a factor."""
    found = [
        (source, stamp, changed, [(t, s, factor * raw, factor * made) for t, s, raw, made in rows])
        for source, stamp, changed, rows in some_frames(seed, frames)
        if rows
    ]
    fed(family, found, 32)
    return family


def text_of(family: Family, selection: str = "identity") -> bytes:
    """The document of a family."""
    return b"".join(finished(family_text(family_state(family, selection))))
