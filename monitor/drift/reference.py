"""References: what the errors of a slice at one stage looked like while it was healthy.

A reference is learned from sums of bounded size, of which two are here: a histogram of ln NEES for
its quantiles, and sums over seconds of tracks for a random-effect model of their levels. Once it is
frozen, NEES are mapped through it, so that they are χ²_K where nothing has changed. When a
reference is learned is decided in usual.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated

import numpy as np
from annotated_types import Interval
from scipy.special import digamma, gammainccinv, gammaincinv, polygamma

from monitor.drift.bets import Direction
from monitor.drift.correlation import LARGEST_NUMBER, LEAST, Sum
from monitor.frames.marks import ArrayForm, Count, SparseCounts
from monitor.frames.space import (
    MOST_DIMENSIONS,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    read_only,
)

# Levels at which a reference knows the NEES: evenly in ln(u / (1 − u)), so that tails are fine.
KNOTS = 64
_OUTMOST = 1e-4


@cache
def knot_levels() -> FloatArray:
    """Returns the levels u of the knots, (KNOTS,), ascending."""
    edge = math.log(_OUTMOST / (1 - _OUTMOST))
    return read_only(1 / (1 + np.exp(-np.linspace(edge, -edge, KNOTS))))


@cache
def chi_square_knots(k: int) -> FloatArray:
    """Returns the quantiles of χ²_K at the levels, (KNOTS,)."""
    return read_only(2 * gammaincinv(k / 2, knot_levels()))


class Origin(StrEnum):
    """Where a reference comes from."""

    LEARNED = "learned"  # from this sidecar's own stream, in this epoch
    FILE = "file"  # from recorded drives
    SHIPPED = "shipped"  # from simulation: nothing better is known yet


# Below it, and above, evidence would overflow.
Deviation = Annotated[float, Interval(ge=1e-3, le=1e3)]
Tempering = Annotated[float, Interval(ge=LEAST, le=1.0)]
Degrees = Annotated[int, Interval(ge=1, le=MOST_DIMENSIONS)]


@dataclass(frozen=True, slots=True)
class Levels:
    """How the mean log NEES of seconds of tracks varies: y = m0 + a_track + w.

    mean      m0
    between   τ, deviation of a over tracks
    within    ω, deviation of w over the seconds of a track, of `length` detections each
    tracks    it is known from, and their seconds
    blocks
    """

    mean: Annotated[float, Interval(ge=-1e3, le=1e3)]
    between: Deviation
    within: Deviation
    length: Annotated[float, Interval(ge=1.0, le=LARGEST_NUMBER)]
    tracks: Count
    blocks: Count


@dataclass(frozen=True, eq=False, slots=True)
class Reference:
    """Errors of one slice at one stage while it was healthy; K degrees of freedom.

    quantiles      (KNOTS,) NEES at knot_levels(), ascending, > 0; () where nothing is known
    detections     it is known from
    nees_ratio     mean of NEES/K, of a detection 64 at most
    tempering      γ of a detection whose track is known: L counts as L^γ
    frame_tempering
                   γ of a frame where no tracks are known
    levels         None where too few tracks are known
    """

    k: Degrees
    origin: Origin
    quantiles: Annotated[FloatArray, ArrayForm(np.float64, (None,), 1e-30, 1e30, listed=True)]
    detections: Count
    nees_ratio: Sum
    tempering: Tempering
    frame_tempering: Tempering
    levels: Levels | None

    def __post_init__(self) -> None:
        if self.quantiles.size not in (0, KNOTS) or (np.diff(self.quantiles) < 0).any():
            raise ValueError(f"'quantiles' must be {KNOTS} numbers that never fall, or none")

    def is_same(self, other: Reference) -> bool:
        """Tells whether another one says the same, to the last bit."""
        pairs = [(getattr(self, one), getattr(other, one)) for one in self.__dataclass_fields__]
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


@cache
def calibrated_level(k: int) -> float:
    """Mean ln NEES of a calibrated detector of K degrees of freedom.

    Of a Gaussian E ln χ²_K = ψ(K/2) + ln 2; heavy tails of the same variance have less.
    """
    return float(digamma(k / 2)) + math.log(2) - 0.15


@cache
def shipped(k: int) -> Reference:
    """Returns what is assumed where nothing is known.

    It is on the safe side of simulated tracks, whose errors are calibrated, AR(1) with ρ = 0.65 at
    10 Hz and t-distributed with 5 degrees of freedom. There τ is 0.22 to 0.51, by how much the
    level differs from track to track, ω 0.42 to 0.52, γ 0.16 to 0.5, and m0 lies 0.19 to 0.33 below
    that of a Gaussian. In one and two dimensions ω is larger, as Var ln χ²_K = ψ′(K/2) is.
    """
    spread = math.sqrt(max(1.0, float(polygamma(1, k / 2) / polygamma(1, 3 / 2))))
    return Reference(
        k=k,
        origin=Origin.SHIPPED,
        quantiles=np.zeros(0),
        detections=0,
        nees_ratio=1.0,
        tempering=0.15,
        frame_tempering=0.15,
        levels=Levels(
            calibrated_level(k), between=0.6, within=0.7 * spread, length=10.0, tracks=0, blocks=0
        ),
    )


# Of class probabilities: votes of tracks are compared with what is stated, and nothing is learned.
NOTHING_USUAL = Reference(1, Origin.SHIPPED, np.zeros(0), 0, 1.0, 1.0, 1.0, None)

# In ln e: a quantile is off by less than one bin, 0.4 %.
WIDTH = 1 / 256

# What is outside is in the outmost bins. The lowest knot of χ²_1 is 1.6e-8.
_LOWEST, _HIGHEST = 1e-9, 1e9
_START = float(np.log(_LOWEST))
BINS = int(np.ceil((np.log(_HIGHEST) - np.log(_LOWEST)) / WIDTH))


@dataclass(slots=True)
class NeesHistogram:
    """How often each NEES came, on a fixed grid of ln e.

    counts  (BINS,)
    """

    counts: Annotated[IntArray, SparseCounts(BINS)] = field(
        default_factory=lambda: np.zeros(BINS, np.int64)
    )

    def add(self, nees: FloatArray) -> None:
        """Counts NEES (n,), ≥ 0 and finite."""
        ln = np.log(np.clip(nees, _LOWEST, _HIGHEST))
        place = np.clip(((ln - _START) / WIDTH).astype(np.int64), 0, BINS - 1)
        np.add.at(self.counts, place, 1)

    def quantiles(self, k: int) -> FloatArray:
        """Returns NEES at knot_levels(), (KNOTS,), ascending, > 0; () where nothing was counted.

        The i-th of n has level i/(n + 1), and rows of one bin are spread evenly over it. Levels
        beyond the first and the last row go on from there as those of χ²_K do.
        """
        there = np.flatnonzero(self.counts)
        if there.size == 0:
            return np.zeros(0)
        count = self.counts[there].astype(np.float64)
        through = np.cumsum(count)
        n = through[-1]
        # The first and the last row of each bin.
        rank = np.stack([through - count + 1, through], axis=1).ravel()
        half = WIDTH / (2 * count)
        ln = (_START + there * WIDTH)[:, None] + np.stack([half, WIDTH - half], axis=1)

        levels = knot_levels()
        inside = np.clip(levels, 1 / (n + 1), n / (n + 1))
        found = np.exp(np.interp(inside * (n + 1), rank, ln.ravel()))
        further = chi_square_knots(k) / (2 * gammaincinv(k / 2, inside))
        return np.maximum.accumulate(found * further)


# A track counts by its first seconds for how tracks differ; more of them tell no more.
LONGEST = 64

# Of a variance: deviations below a hundredth are those of a stream that repeats itself.
_LEAST = 1e-4

# τ² of real detectors is 0.17 and more; of thirty tracks it may seem to be none, and then every
# second of an odd object would be news.
_LEAST_BETWEEN = 0.3**2
_HALF = 0.5  # tracks are whole


_BY_SECONDS = ArrayForm(np.float64, (LONGEST + 1,), -LARGEST_NUMBER, LARGEST_NUMBER)


@dataclass(slots=True)
class LevelSums:
    """Sums of y, the mean ln NEES of a second of a track. Tracks come from their first second on.

    tracks, means, squares  (LONGEST + 1,) by how many seconds n they have had: Σ 1, Σ ȳ, Σ ȳ²
    within                  Σ (y − ȳ_track)² over all seconds
    again                   seconds that were not the first of their track
    blocks                  seconds
    rows                    Σ of their detections
    """

    tracks: Annotated[FloatArray, _BY_SECONDS] = field(default_factory=_BY_SECONDS.none)
    means: Annotated[FloatArray, _BY_SECONDS] = field(default_factory=_BY_SECONDS.none)
    squares: Annotated[FloatArray, _BY_SECONDS] = field(default_factory=_BY_SECONDS.none)
    within: Sum = 0.0
    again: Count = 0
    blocks: Count = 0
    rows: Count = 0

    def __post_init__(self) -> None:
        tracks = self.tracks
        if tracks[0] or (tracks < 0).any() or (tracks % 1).any() or tracks.sum() > self.blocks:
            raise ValueError(f"'tracks' must be numbers of tracks, of {self.blocks} seconds")
        if not self.again <= self.blocks <= self.rows:
            raise ValueError("'again' must be at most 'blocks', and that at most 'rows'")

    def add(self, level: FloatArray, count: IntArray, before: IntArray, mean: FloatArray) -> None:
        """m seconds; see Blocks: level (m,), count (m,), before (m,), and mean (m,) of before.

        source  Welford 1962: Σ (y − ȳ)² grows by n/(n + 1) (y − ȳ)²
        """
        n = before.astype(np.float64)
        self.within += float((n / (n + 1) * (level - mean) ** 2).sum())
        self.again += int(np.count_nonzero(before))
        self.blocks += int(before.size)
        self.rows += int(count.sum())

        short = before < LONGEST
        old, now = mean[short], (n * mean + level)[short] / (n[short] + 1)
        grown = before[short]
        had = grown > 0
        for sums, left, joined in (
            (self.tracks, np.ones(old.size), np.ones(old.size)),
            (self.means, old, now),
            (self.squares, old * old, now * now),
        ):
            np.subtract.at(sums, grown[had], left[had])
            np.add.at(sums, grown + 1, joined)
        # Rounding is not kept; nor is a track that was not seen from its first second on.
        for sums in (self.means, self.squares, self.tracks):
            sums[self.tracks < _HALF] = 0.0

    def levels(self, shortest: int) -> Levels | None:
        """m0, τ and ω, as they are estimated.

        y_ij = m0 + a_i + w_ij with n_i seconds of track i, N of them of T tracks:
        ω² = Σ (y_ij − ȳ_i)² / (N − T), and with B = Σ n_i (ȳ_i − ȳ)² / (T − 1),
        n0 = (N − Σ n_i²/N) / (T − 1): τ² = (B − ω²) / n0. m0 is the mean of ȳ_i weighted with
        1 / (τ² + ω²/n_i). τ is 0.3 at least, and else without a margin: what a reference is off by
        is for the tolerance. At its edge, with references of thirty tracks, run lengths were
        simulated to hold; in the middle of the band there is no alarm at all.

        shortest  so many tracks, and as many seconds beyond the first of a track, at least
        returns   None where there are fewer
        source    Searle, Casella, McCulloch 1992, section 3.6
        """
        there = np.flatnonzero(self.tracks)
        number, n = self.tracks[there], there.astype(np.float64)
        total = float(number.sum())
        if total < max(2, shortest) or self.again < max(1, shortest):
            return None
        seconds = float((number * n).sum())
        mean = float((n * self.means[there]).sum()) / seconds
        square = float((n * self.squares[there]).sum()) - seconds * mean * mean
        between = max(0.0, square) / (total - 1)
        size = (seconds - float((number * n * n).sum()) / seconds) / (total - 1)
        omega2 = max(self.within / self.again, _LEAST)
        tau2 = max(0.0, (between - omega2) / size)

        weight = 1 / (tau2 + omega2 / n)
        mean = float((weight * self.means[there]).sum() / (weight * number).sum())
        return Levels(
            mean=mean,
            between=math.sqrt(max(tau2, _LEAST_BETWEEN)),
            within=math.sqrt(omega2),
            length=self.rows / self.blocks,
            tracks=int(total),
            blocks=self.blocks,
        )


# ln of the smallest NEES that is told from 0.
_SMALLEST = 1e-300

# Of the grid of a slice: some thirtieths of a unit of ln e wide.
CELLS = 512


# NEES/K: no detector is more cautious.
_LEAST_RATIO = 1e-6

# NEES/K that differs from 1 by less is that of a calibrated detector.
_NEARLY = 1.25

_NO_LEVELS = Levels(mean=0.0, between=0.0, within=1.0, length=1.0, tracks=0, blocks=0)


@dataclass(frozen=True, eq=False, slots=True)
class UsualArrays(Columns):
    """References of G slices at one stage, (G,) each; zeros where there are no levels.

    The map of each slice is on a grid of its own, even in ln e: no search, whatever row.

    low, high    ln e at the outmost knots
    scale        cells to a unit of ln e
    values       (G, CELLS + 1) ln of the quantiles of χ²_K at the edges of the cells
    floor, cap   ln e' is never beyond
    tempering, frame_tempering
                 γ
    ratio        mean NEES/K
    levels       whether seconds of tracks say anything
    calibrated   mean ln NEES of a calibrated detector
    mean, between, within, length
                 m0, τ², ω² and the detections of a second
    """

    low: FloatArray
    high: FloatArray
    scale: FloatArray
    values: FloatArray
    floor: FloatArray
    cap: FloatArray
    tempering: FloatArray
    frame_tempering: FloatArray
    ratio: FloatArray
    levels: BoolArray
    calibrated: FloatArray
    mean: FloatArray
    between: FloatArray
    within: FloatArray
    length: FloatArray

    def anchor(self, direction: Direction) -> FloatArray:
        """Returns the factor from usual squared errors to those that a direction begins at, (G,).

        It leads nearly to the errors of a calibrated detector, where usual ones are better than
        that, and is 1 elsewhere. So a detector that was too cautious may become calibrated, and so
        may one that was overconfident.
        """
        over = direction is Direction.OVER
        nearly = 1 / _NEARLY if over else _NEARLY
        to_calibrated = nearly / np.maximum(self.ratio, _LEAST_RATIO)
        return (np.maximum if over else np.minimum)(to_calibrated, 1.0)

    def mapped(self, nees: FloatArray, slices: IntArray) -> FloatArray:
        """e' = F_χ²^-1(F_reference(e)): χ²_K for rows of the law that a reference was learned from.

        ln e → ln e' is linear between knots, but for a cell around each, and has slope 1 beyond
        them: a factor stays a factor.
        But e' stays between the quantiles of 1/(2m) and 1 − 1/(2m), m = detections · tempering, as
        many independent ones as the reference is worth.

        What keeps E[L] ≤ 1 for a bet L that is monotone in e', on the average over references: the
        rank of a new row among m independent ones of the same law is uniform, so that it comes
        above all of them with 1/(m + 1), where it may be anything; there L is at most L(cap). For
        L(e') that grows as p^-b in the upper probability p of χ²_K, 0 ≤ b < 1, that is (2m)^b / m,
        and χ²_K itself has m^b / (m (1 − b)), more for every b. Between ranks e' is off by less
        than one rank. One single reference may be off by more, as quantiles of m rows are: that is
        what the tolerance is for. Simulated (K = 3 and 4, 2000 detections, AR(1) up to ρ = 0.9,
        t5): on the average over references E[L] ≤ 1.02 for scale bets at tolerance 1, and 0.83 is
        the most that any reference gave at tolerance √2.

        nees     (n,) ≥ 0, finite
        slices   (n,) number of the slice of each row, 0 … G − 1
        returns  (n,) > 0 in the order of the rows, monotone in nees; nees itself where the
                 reference knows no quantiles
        """
        found = np.log(np.maximum(nees, _SMALLEST))
        low = self.low[slices]
        inside = np.minimum(np.maximum(found, low), self.high[slices])
        within = (inside - low) * self.scale[slices]
        cell = np.minimum(within.astype(np.int64), CELLS - 1)
        within -= cell
        cell += slices * (CELLS + 1)
        values = self.values.ravel()
        left = values[cell]
        at = left + within * (values[cell + 1] - left)
        # Slope 1 beyond the knots.
        at += found - inside
        at = np.minimum(np.maximum(at, self.floor[slices]), self.cap[slices])
        mapped: FloatArray = np.exp(at)
        return mapped


def usual_arrays(references: Sequence[Reference]) -> UsualArrays:
    """Lays out the references of these slices, in this order."""
    calibrated = np.array([chi_square_knots(one.k) for one in references]).reshape(-1, KNOTS)
    known = [
        one.quantiles if one.quantiles.size else quantiles
        for one, quantiles in zip(references, calibrated, strict=True)
    ]
    knots = np.log(known).reshape(-1, KNOTS)
    low, high = knots[:, 0], knots[:, -1]
    values = [
        np.interp(np.linspace(least, most, CELLS + 1), of_slice, quantiles)
        for least, most, of_slice, quantiles in zip(
            low, high, knots, np.log(calibrated), strict=True
        )
    ]
    floor, cap = np.array([_bounds(one) for one in references]).reshape(-1, 2).T
    levels = [one.levels or _NO_LEVELS for one in references]
    return UsualArrays(
        low=low,
        high=high,
        # A reference whose NEES are all alike has no width.
        scale=CELLS / np.maximum(high - low, 1e-12),
        values=np.reshape(values, (-1, CELLS + 1)),
        floor=floor,
        cap=cap,
        tempering=np.array([one.tempering for one in references]),
        frame_tempering=np.array([one.frame_tempering for one in references]),
        ratio=np.array([one.nees_ratio for one in references]),
        levels=np.array([one.levels is not None for one in references]),
        calibrated=np.array([calibrated_level(one.k) for one in references]),
        mean=np.array([one.mean for one in levels]),
        between=np.array([one.between**2 for one in levels]),
        within=np.array([one.within**2 for one in levels]),
        length=np.array([one.length for one in levels]),
    )


def _bounds(reference: Reference) -> tuple[float, float]:
    if not reference.quantiles.size:
        return -np.inf, np.inf
    worth = max(1.0, reference.detections * reference.tempering)
    half = reference.k / 2
    outside = 1 / (2 * worth)
    return (
        float(np.log(2 * gammaincinv(half, outside))),
        float(np.log(2 * gammainccinv(half, outside))),
    )
