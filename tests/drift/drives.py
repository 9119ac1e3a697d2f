"""Simulated detections of tracks that come and go, and families that take them in; no tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from scipy.special import digamma, ndtri, polygamma

from monitor.drift.alarms import AlarmChange
from monitor.drift.channels import BIASES, CORRELATIONS, GAUSSIAN_SCALE, SCALES, channels
from monitor.drift.charts import Origin, Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family, family_state
from monitor.drift.reference import Levels, Reference, chi_square_knots, usual_arrays
from monitor.drift.usual import WatchedRows
from monitor.frames.detections import IdArray
from monitor.frames.space import Dimension, FloatArray
from monitor.statistics.observations import finished
from monitor.store.documents import family_text

# Track, slice, and NEES of the raw and the recalibrated estimate.
Row = tuple[int, int, float, float]
# Source, stamp, whether a recalibrator changed them, and the detections.
Frame = tuple[int, int, bool, list[Row]]


K = 3
DIMENSIONS = tuple(Dimension(name, "m") for name in "xyzabcdefgh")

seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)

# Correlation of each dimension with the one before it, as it is stated and true; deviations in m.
_CORRELATED = 0.6
_SIGMA = 0.2


def errors_of(nees: FloatArray, k: int = K) -> tuple[FloatArray, FloatArray]:
    """Errors z and u (…, k, n) of these NEES (…, n): of Gaussian errors, if these are χ²_k.

    Their direction is read off the last digits of the NEES: the same in every call.
    """
    bits = np.ascontiguousarray(nees).view(np.uint64)
    normal = []
    for number in range(k):
        # Source: splitmix64, Steele, Lea & Flood 2014.
        mixed = bits + np.uint64((0x9E3779B97F4A7C15 * (number + 1)) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        normal.append(ndtri(((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53))
    u = np.stack(normal, axis=-2)
    u *= np.sqrt(nees / np.square(u).sum(axis=-2))[..., None, :]
    z = u.copy()
    for i in range(1, k):
        z[..., i, :] = _CORRELATED * z[..., i - 1, :] + np.sqrt(1 - _CORRELATED**2) * u[..., i, :]
    return z, u


def as_sent(frame: Frame) -> list[Row]:
    """Detections of a frame; what no recalibrator has changed is the same at both stages."""
    return [(key, g, raw if frame[2] else made, made) for key, g, raw, made in frame[3]]


def watched(frames: Iterable[Frame], k: int = K) -> WatchedRows:
    """All detections of some frames, of k degrees of freedom."""
    frames = list(frames)
    rows = [row for frame in frames for row in as_sent(frame)]
    nees = np.array([row[2:] for row in rows], np.float64).reshape(-1, 2).T
    z, u = errors_of(nees, k)
    return WatchedRows(
        slices=np.array([row[1] for row in rows], np.int64),
        nees=nees,
        z=z,
        u=u,
        error=_SIGMA * z,
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


def correlated_errors(
    seed: int,
    k: int,
    correlation: float,
    frames: int,
    open_tracks: int = 8,
    life: int = 40,
    bias: float = 0.0,
) -> tuple[FloatArray, IdArray]:
    """(F, k, T) whitened errors and (F, T) ids: AR(1), and a constant bias of each track, of which
    the second moment is 1 together; a track ends with 1/life in each frame.
    """
    random = np.random.default_rng(seed)
    ids = np.arange(1, open_tracks + 1)
    following = open_tracks + 1
    errors, biases = random.standard_normal((2, open_tracks, k))
    whole, tracks = np.empty((frames, k, open_tracks)), np.empty((frames, open_tracks), np.uint64)
    for frame in range(frames):
        whole[frame], tracks[frame] = (np.sqrt(1 - bias**2) * errors + bias * biases).T, ids
        fresh = random.standard_normal((open_tracks, k))
        errors = correlation * errors + np.sqrt(1 - correlation**2) * fresh
        over = np.flatnonzero(random.random(open_tracks) < 1 / life)
        errors[over], biases[over] = random.standard_normal((2, over.size, k))
        ids[over] = np.arange(following, following + over.size)
        following += over.size
    return whole, tracks


def correlated(
    seed: int,
    k: int,
    correlation: float,
    frames: int,
    open_tracks: int = 8,
    life: int = 40,
    bias: float = 0.0,
) -> tuple[FloatArray, IdArray]:
    """(F, T) NEES and ids of correlated errors."""
    errors, tracks = correlated_errors(seed, k, correlation, frames, open_tracks, life, bias)
    nees: FloatArray = np.square(errors).sum(axis=1)
    return nees, tracks


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


SPACED = np.array([0.1, 0.2, 0.5, 1.0, 2.0, 5.0])


def exact_levels(k: int = K) -> Levels:
    """Of independent detections of Gaussian errors, ten in a second; τ and ω on the safe side."""
    there = channels(k)
    mean, spread = np.zeros(there.size), np.ones(there.size)
    joint, scales = there < SCALES, (there >= SCALES) & (there < BIASES)
    mean[joint], mean[scales] = digamma(k / 2) + np.log(2), GAUSSIAN_SCALE
    spread[joint], spread[scales] = np.sqrt(polygamma(1, k / 2)), np.sqrt(1.8)
    # Of 10 (u² − z²)/(u² + z² + 2), where z and u are correlated by 0.8.
    spread[there >= CORRELATIONS] = 2.2
    within = 1.15 * spread / np.sqrt(10)
    return Levels(mean, np.full(there.size, 0.1), within, spread, 10.0, 0.001, 0.01, 100, 1000)


def exact_reference(
    k: int = K, *, origin: Origin = Origin.FILE, tracks: bool = True, tempering: float = 1.0
) -> Reference:
    """Of independent detections that are calibrated."""
    return Reference(
        k=k,
        origin=origin,
        quantiles=chi_square_knots(k).copy(),
        detections=10**9,
        nees_ratio=1.0,
        spacings=SPACED.copy(),
        temperings=np.full(SPACED.size, tempering),
        frame_tempering=tempering,
        tracks=100 if tracks else 0,
        levels=exact_levels(k) if tracks else None,
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
        family.grow(name, DIMENSIONS[:K])
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
