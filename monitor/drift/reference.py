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
from functools import cache
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from scipy.special import digamma, gammainccinv, gammaincinv, polygamma

from monitor.drift.channels import (
    BIASES,
    CHANNELS,
    CORRELATIONS,
    GAUSSIAN_SCALE,
    MOST_NAMED,
    SCALES,
    SHIPPED,
    channels,
)
from monitor.drift.charts import Direction, Origin
from monitor.drift.correlation import LARGEST_NUMBER, LEAST, SPACINGS, Sum
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


# Of levels; below it, and above, evidence would overflow.
_DEVIATIONS = ArrayForm(np.float64, (None,), 1e-3, 1e3, listed=True)
_MEANS = ArrayForm(np.float64, (None,), -1e3, 1e3, listed=True)
_SPREADS = ArrayForm(np.float64, (None,), 0.0, 1e3, listed=True)
_SPACINGS = ArrayForm(np.float64, (len(SPACINGS),), 1e-6, 1e6, listed=True)
_TEMPERINGS = ArrayForm(np.float64, (len(SPACINGS),), LEAST, 1.0, listed=True)
Tempering = Annotated[float, Interval(ge=LEAST, le=1.0)]
Degrees = Annotated[int, Interval(ge=1, le=MOST_DIMENSIONS)]
Share = Annotated[float, Interval(gt=0.0, le=1.0)]


@dataclass(frozen=True, eq=False, slots=True)
class Levels:
    """How the level of a second of a track varies: y = m0 + a_track + w, in each channel.

    mean      (C,) m0, by channels(k)
    between   (C,) τ, deviation of a over tracks
    within    (C,) ω, deviation of w over the seconds of a track, of `length` detections each
    spread    (C,) S, deviation of what one detection shows about the level of its second
    length    detections of a second
    outside   share of detections far outside: see levels.far_outside
    onsets    share of seconds with one, after a second of the track without
    tracks    it is known from, and their seconds
    blocks
    """

    mean: Annotated[FloatArray, _MEANS]
    between: Annotated[FloatArray, _DEVIATIONS]
    within: Annotated[FloatArray, _DEVIATIONS]
    spread: Annotated[FloatArray, _SPREADS]
    length: Annotated[float, Interval(ge=1.0, le=LARGEST_NUMBER)]
    outside: Share
    onsets: Share
    tracks: Count
    blocks: Count


@dataclass(frozen=True, eq=False, slots=True)
class Reference:
    """Errors of one slice at one stage while it was healthy; K degrees of freedom.

    quantiles      (KNOTS,) NEES at knot_levels(), ascending, > 0; () where nothing is known
    detections     it is known from
    nees_ratio     mean of NEES/K, of a detection 64 at most
    spacings       (6,) s from a label of a track to the next, ascending
    temperings     (6,) γ of a detection that comes so long after the last of its track: L counts
                   as L^γ
    frame_tempering
                   γ of a frame where no tracks are known
    tracks         that were seen
    levels         None where too few tracks are known
    """

    k: Degrees
    origin: Origin
    quantiles: Annotated[FloatArray, ArrayForm(np.float64, (None,), 1e-30, 1e30, listed=True)]
    detections: Count
    nees_ratio: Sum
    spacings: Annotated[FloatArray, _SPACINGS]
    temperings: Annotated[FloatArray, _TEMPERINGS]
    frame_tempering: Tempering
    tracks: Count
    levels: Levels | None

    def __post_init__(self) -> None:
        if self.quantiles.size not in (0, KNOTS) or (np.diff(self.quantiles) < 0).any():
            raise ValueError(f"'quantiles' must be {KNOTS} numbers that never fall, or none")
        if (np.diff(self.spacings) < 0).any() or (np.diff(self.temperings) < 0).any():
            raise ValueError("'spacings' and 'temperings' must never fall")
        if self.levels is not None:
            levels, count = self.levels, channels(self.k).size
            for name in ("mean", "between", "within", "spread"):
                if getattr(levels, name).size != count:
                    raise ValueError(f"'levels.{name}' must have {count} numbers for 'k' {self.k}")

    @property
    def tempering(self) -> float:
        """Returns γ at the rate of labels that it was learned at."""
        return float(self.temperings[0])

    @property
    def is_of_tracks(self) -> bool:
        """Tells whether seconds of tracks say anything: by levels that it knows, or are shipped."""
        return self.levels is not None or self.tracks > 0

    def is_same(self, other: Reference) -> bool:
        """Tells whether another one says the same, to the last bit."""
        return _same(self, other)


def _same(one: Any, other: Any) -> bool:
    """Compares two values field by field."""
    if type(one) is not type(other):
        return False
    names = getattr(one, "__dataclass_fields__", None)
    if names is None:
        return np.array_equal(one, other)
    return all(_same(getattr(one, name), getattr(other, name)) for name in names)


# By so much heavy tails of the same variance lower a level of ln e.
_OF_TAILS = 0.15


@cache
def calibrated_level(k: int) -> float:
    """Returns the mean ln NEES of a calibrated detector of K degrees of freedom.

    Of a Gaussian E ln χ²_K = ψ(K/2) + ln 2; heavy tails of the same variance have less.
    """
    return float(digamma(k / 2)) + math.log(2) - _OF_TAILS


# What is assumed of the levels of each kind of channel: τ, ω and S, of seconds of 10 detections.
_OF_SCALE = (0.6, 1.0, 1.2)
_OF_BIAS = (0.6, 0.7, 0.7)
_OF_CORRELATION = (1.2, 1.2, 1.6)


@cache
def shipped_levels(k: int) -> Levels:
    """Returns levels that are on the safe side of simulated tracks: see shipped()."""
    count = CHANNELS
    mean, between, within, spread = (np.zeros(count) for _ in range(4))
    wide = math.sqrt(max(1.0, float(polygamma(1, k / 2) / polygamma(1, 3 / 2))))
    mean[:SCALES], mean[SCALES:BIASES] = calibrated_level(k), GAUSSIAN_SCALE - _OF_TAILS
    between[:SCALES], within[:SCALES], spread[:SCALES] = 0.6, 0.7 * wide, 0.8 * wide
    for begin, found in ((SCALES, _OF_SCALE), (BIASES, _OF_BIAS), (CORRELATIONS, _OF_CORRELATION)):
        places = slice(begin, begin + MOST_NAMED)
        between[places], within[places], spread[places] = found
    there = channels(k)
    return Levels(
        mean[there],
        between[there],
        within[there],
        spread[there],
        length=10.0,
        outside=0.02,
        onsets=0.08,
        tracks=0,
        blocks=0,
    )


@cache
def shipped(k: int) -> Reference:
    """Returns what is assumed where nothing is known.

    It is on the safe side of simulated tracks, whose errors are calibrated, AR(1) with ρ = 0.65 at
    10 Hz and t-distributed with 5 degrees of freedom. There τ is 0.22 to 0.51, by how much the
    level differs from track to track, ω 0.42 to 0.52, γ 0.16 to 0.5, and m0 lies 0.19 to 0.33 below
    that of a Gaussian. In one and two dimensions ω is larger, as Var ln χ²_K = ψ′(K/2) is.
    """
    return Reference(
        k=k,
        origin=Origin.SHIPPED,
        quantiles=np.zeros(0),
        detections=0,
        nees_ratio=1.0,
        spacings=np.array([0.1, 0.2, 0.5, 1.0, 2.0, 5.0]),
        temperings=np.array([0.15, 0.2, 0.3, 0.4, 0.4, 0.4]),
        frame_tempering=0.15,
        tracks=0,
        levels=shipped_levels(k),
    )


# Of class probabilities: votes of tracks are compared with what is stated, and nothing is learned.
NOTHING_USUAL = Reference(
    1,
    Origin.SHIPPED,
    np.zeros(0),
    0,
    1.0,
    np.full(len(SPACINGS), 1.0),
    np.ones(len(SPACINGS)),
    1.0,
    0,
    None,
)

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


# ln of the smallest NEES that is told from 0.
_SMALLEST = 1e-300

# Of the grid of a slice: some thirtieths of a unit of ln e wide.
CELLS = 512


# NEES/K: no detector is more cautious.
_LEAST_RATIO = 1e-6

# NEES/K that differs from 1 by less is that of a calibrated detector.
_NEARLY = 1.25


@dataclass(frozen=True, eq=False, slots=True)
class UsualArrays(Columns):
    """References of G slices at one stage, (G,) each; levels that are shipped where it has none.

    The map of each slice is on a grid of its own, even in ln e: no search, whatever row.

    low, high    ln e at the outmost knots
    scale        cells to a unit of ln e
    values       (G, CELLS + 1) ln of the quantiles of χ²_K at the edges of the cells
    floor, cap   ln e' is never beyond
    spacings, log_temperings
                 (G, 6) ln of the seconds from a label to the next of a track, and ln γ
    nearness     (G,) λ: γ = tanh(λ Δ/2) of labels nearer in time than any that it knows
    frame_tempering
                 γ of a frame
    ratio        mean NEES/K
    levels       whether seconds of tracks say anything
    mean, between, within, spread
                 (G, CHANNELS) m0, τ², ω² and S²; of what is shipped in SHIPPED
    length       (G, CHANNELS) detections of a second
    outside, onsets
                 shares of detections outside, and of seconds with one
    """

    low: FloatArray
    high: FloatArray
    scale: FloatArray
    values: FloatArray
    floor: FloatArray
    cap: FloatArray
    spacings: FloatArray
    log_temperings: FloatArray
    nearness: FloatArray
    frame_tempering: FloatArray
    ratio: FloatArray
    levels: BoolArray
    mean: FloatArray
    between: FloatArray
    within: FloatArray
    spread: FloatArray
    length: FloatArray
    outside: FloatArray
    onsets: FloatArray

    def tempering(self, slices: IntArray, apart: FloatArray) -> FloatArray:
        """Returns γ of n detections by the time since the last label of their track, (n,).

        Between spacings that are known ln γ is linear in ln Δ. Labels that are nearer in time are
        alike as those of an AR(1) process are, (1 − r)/(1 + r) with r = exp(−λΔ): tanh(λΔ/2).
        Labels that are farther apart count as the farthest that are known.

        apart  (n,) s; NaN where it is not known: as near as any that the reference knows
        """
        known, gamma = self.spacings[slices], self.log_temperings[slices]
        rows = np.arange(slices.size)
        with np.errstate(divide="ignore"):
            at = np.log(np.where(apart > 0, apart, np.exp(known[:, 0])))
        left = np.clip((at[:, None] >= known).sum(axis=1) - 1, 0, known.shape[1] - 2)
        low, high = known[rows, left], known[rows, left + 1]
        part = np.clip((at - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)
        from_, to = gamma[rows, left], gamma[rows, left + 1]
        found = np.exp(from_ + part * (to - from_))
        near = at < known[:, 0]
        if near.any():
            found[near] = np.tanh(self.nearness[slices[near]] * np.exp(at[near]) / 2)
        kept: FloatArray = np.clip(found, LEAST, 1.0)
        return kept

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
    levels = [one.levels or shipped_levels(one.k) for one in references]
    spacings = np.array([one.spacings for one in references]).reshape(-1, len(SPACINGS))
    temperings = np.array([_temperings(one) for one in references]).reshape(-1, len(SPACINGS))
    nearest = np.minimum(temperings[:, 0], 1 - 1e-9)
    return UsualArrays(
        low=low,
        high=high,
        # A reference whose NEES are all alike has no width.
        scale=CELLS / np.maximum(high - low, 1e-12),
        values=np.reshape(values, (-1, CELLS + 1)),
        floor=floor,
        cap=cap,
        spacings=np.log(spacings),
        log_temperings=np.log(temperings),
        nearness=2 * np.arctanh(nearest) / spacings[:, 0],
        frame_tempering=np.array([one.frame_tempering for one in references]),
        ratio=np.array([one.nees_ratio for one in references]),
        levels=np.array([one.is_of_tracks for one in references]),
        mean=_laid_out(references, "mean"),
        between=_laid_out(references, "between") ** 2,
        within=_laid_out(references, "within") ** 2,
        spread=_laid_out(references, "spread") ** 2,
        length=_laid_out(references, "length"),
        outside=np.array([one.outside for one in levels]),
        onsets=np.array([one.onsets for one in levels]),
    )


def _laid_out(references: Sequence[Reference], name: str) -> FloatArray:
    """Lays a field of Levels out in all CHANNELS, (G, CHANNELS); that of what is shipped in one."""
    found = np.zeros((len(references), CHANNELS))
    for row, one in zip(found, references, strict=True):
        there, assumed = channels(one.k), shipped_levels(one.k)
        row[there] = getattr(one.levels or assumed, name)
        row[SHIPPED] = np.atleast_1d(getattr(assumed, name))[0]
        if name in _VARY and one.levels is not None:
            row[there] *= _of_correlations(one.k, one.levels)[name]
    return found


# Deviations of levels, and the variance of a level of correlation of one detection, ± 2. A
# reference that has seen less than a quarter of it knows nothing of how it varies.
_VARY = ("between", "within", "spread")
_SIGNS, _FEWEST_SIGNS = 4.0, 1.0


def _of_correlations(k: int, levels: Levels) -> dict[str, FloatArray]:
    """Returns factors on the deviations that a reference knows, by channels(k); 1 of others.

    Detections that are stated to be uncorrelated have u = z, and a level of 0 that does not vary.
    Others may come, and all may be of them: levels are taken to vary as if all had been.
    """
    assumed, ours = shipped_levels(k), channels(k) >= CORRELATIONS
    total = sum(np.square(getattr(levels, name)) for name in _VARY)
    known = total >= _FEWEST_SIGNS
    factor = np.sqrt(np.maximum(_SIGNS / np.maximum(total, _FEWEST_SIGNS), 1.0))
    return {
        name: np.where(
            ours,
            np.where(
                known, factor, getattr(assumed, name) / np.maximum(getattr(levels, name), 1e-9)
            ),
            1.0,
        )
        for name in _VARY
    }


# Tracks of a reference that knows enough: fewer may be odd ones.
_ENOUGH = 30


def is_thin(reference: Reference) -> bool:
    """Tells whether a reference is known from so few tracks that it may be of odd ones."""
    if reference.origin is Origin.SHIPPED or not reference.is_of_tracks:
        return False
    return reference.levels is None or reference.levels.tracks < _ENOUGH


def _temperings(reference: Reference) -> FloatArray:
    """Returns γ at the spacings; of few tracks it is uncertain, and no less than is shipped."""
    if not is_thin(reference):
        return reference.temperings
    assumed, spacings = usual_arrays([shipped(reference.k)]), reference.spacings
    least = assumed.tempering(np.zeros(spacings.size, np.int64), spacings)
    return np.maximum(reference.temperings, least)


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
