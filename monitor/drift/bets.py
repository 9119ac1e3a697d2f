"""Bets against calibration: the likelihood of a NEES if it has drifted, over that if it has not.

Evidence gathers the bets elsewhere (see evidence.py). Bets are held by charts, each of which is one
way to be wrong: a stage and a direction. Overconfidence of what is forwarded breaks the gates of a
tracker, so that it has the page and its budget for itself; the other charts are tickets, which
share one budget. Raw estimates are watched only where a recalibrator has changed them.

A bet L multiplies the evidence of its chart. The mean of L is at most 1 for as long as nothing is
wrong: for every scale of the errors on the right side of the tolerance band, and 1 at its edge.
Bets on overconfidence never fall with the NEES, and bets on underconfidence never rise, so that
this holds for every law of the NEES that is stochastically no larger (no smaller) than the law at
the edge; only bets on tails at a tolerance of 1 are less careful.
Source: Shin, Ramdas & Rinaldo, arXiv 2203.03532 (e-detectors of likelihood ratios).

Detections of one track are correlated, so that their likelihood ratios are tempered: L counts as
L^γ, which keeps a mean of at most 1 (Jensen), and with γ = (1 − r)/(1 + r) gives as much evidence
as independent detections would. That a product of tempered, dependent ratios is no larger than it
may be was simulated, not proved. Where no track is known, a frame counts once: the mean of the
ratios of its detections is a likelihood ratio too, whatever the detections have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import chdtr, chdtrc, fdtrc, gammaincinv, gammaln

from monitor.drift.charts import Direction
from monitor.frames.space import BoolArray, FloatArray, IntArray, read_only

# Shares of χ²_K below the thresholds of coverage: those of QCE, so that panel and alarm agree.
COVERAGE_LEVELS = (0.5, 0.9, 0.99)

# Factors on σ that are bet on, beyond the band.
COVERAGE_FACTORS = (1.25, 1.5, 2.0, 3.0)
SCALE_FACTORS = (1.15, 1.25, 1.4, 1.6, 2.0, 3.0)

# Degrees of freedom of the tails that are bet on.
STUDENT_DEGREES = (3.0, 5.0)


@cache
def coverage_thresholds(k: int) -> FloatArray:
    """Returns a_τ, the quantiles of χ²_K at COVERAGE_LEVELS, (3,), ascending."""
    return read_only(2 * gammaincinv(k / 2, COVERAGE_LEVELS))


def exceeded(k: int, nees: FloatArray) -> IntArray:
    """Counts the thresholds that each NEES is above, (n,): the row of coverage_bets."""
    return np.searchsorted(coverage_thresholds(k), nees, side="left")


@cache
def coverage_bets(k: int, direction: Direction, tolerance: float) -> FloatArray:
    """Bets on how often the NEES lies below three thresholds. Bounded: no outlier can trip them.

    p0 = F(a/s²) at the edge of the band, s = s0 (over) or 1/s0 (under), and q the same at s · f,
    f from COVERAGE_FACTORS (over) or 1/f (under). L = q/p0 if e ≤ a, else (1 − q)/(1 − p0).

    tolerance  s0 on σ, finite and ≥ 1, as for all bets
    returns    (4, 12) ln L by how many thresholds a NEES exceeds; the bets of a threshold side by
               side, by COVERAGE_FACTORS
    """
    edge, factors = _beyond(direction, tolerance, COVERAGE_FACTORS)
    allowed = coverage_thresholds(k)[:, None] / edge**2
    drifted = allowed / factors**2
    within = np.log(chdtr(k, drifted)) - np.log(chdtr(k, allowed))
    above = _log_survival(k, drifted) - _log_survival(k, allowed)
    is_above = np.arange(4)[:, None, None] > np.arange(3)[:, None]
    return read_only(np.where(is_above, above, within).reshape(4, -1))


@cache
def scale_bets(k: int, direction: Direction, tolerance: float) -> tuple[FloatArray, FloatArray]:
    """Bets on the scale of errors that are otherwise as usual: ln L = constant + slope · e.

    e is χ²_K where nothing has changed. Gaussian of scale s · f against s, the edge of the band,
    with s and f as for coverage: ln L = −K ln f + e/2 · (1/s² − 1/(s f)²).

    returns  constant and slope, (6,) by SCALE_FACTORS
    """
    edge, factors = _beyond(direction, tolerance, SCALE_FACTORS)
    slope = (1 - factors**-2) / (2 * edge**2)
    return read_only(-k * np.log(factors)), read_only(slope)


def tail_log_likelihood(k: int, tolerance: float, nees: FloatArray) -> FloatArray:
    """Bets on heavy tails of the same variance, which a scale explains badly; ln L, (n, 2).

    With u = e/s0², s0 the tolerance, the ratio of the densities of Student-t and Gaussian is
    ln f(u) = c + u/2 − (ν + K)/2 · ln(1 + u/(ν − 2)). It falls up to u = K + 2 and rises from
    there, and f(0) > 1: a detector that is too cautious would seem to have tails. Hence beyond a
    tolerance of 1, L(e) = f(max(u, K + 2))/Z, Z = E f(max(χ²_K, K + 2)): L never falls. At the
    edge of the band u ~ χ²_K, thus E L = 1; at any smaller scale e is stochastically smaller, thus
    E L ≤ 1. Above the cut f·p is the density of Student-t itself:
    Z = f(K + 2) · P(χ²_K ≤ K + 2) + P(F_{K,ν} > (K + 2)ν / ((ν − 2)K)).

    A tolerance of 1 asks for any change to be found, and L = f: thrice as fast, since errors that
    are too small speak for tails as well, but E L = 1 holds of the reference alone.

    Tails are a kind of overconfidence: there are no such bets for the other direction.
    """
    constant, lowest = _tail_constants(k, tolerance)
    u = np.maximum(nees / tolerance**2, lowest)[:, None]
    return constant + _student_shape(k, u)


@cache
def _tail_constants(k: int, tolerance: float) -> tuple[FloatArray, float]:
    """Returns c − ln Z, (2,) by STUDENT_DEGREES, and the least that u counts as."""
    degrees = np.array(STUDENT_DEGREES)
    constant = gammaln((degrees + k) / 2) - gammaln(degrees / 2) - k / 2 * np.log(degrees / 2 - 1)
    if tolerance == 1:
        return read_only(constant), 0.0
    cut = float(k + 2)
    lowest = np.exp(constant + _student_shape(k, np.array([cut])))
    mean = lowest * chdtr(k, cut) + fdtrc(k, degrees, cut / k * degrees / (degrees - 2))
    return read_only(constant - np.log(mean)), cut


def _student_shape(k: int, u: FloatArray) -> FloatArray:
    """u/2 − (ν + K)/2 · ln(1 + u/(ν − 2)), by ν in the last axis."""
    degrees = np.array(STUDENT_DEGREES)
    found: FloatArray = u / 2 - (degrees + k) / 2 * np.log1p(u / (degrees - 2))
    return found


def _beyond(
    direction: Direction, tolerance: float, factors: tuple[float, ...]
) -> tuple[float, FloatArray]:
    """Scale at the edge of the band, and factors on it that lead further out."""
    return tolerance**direction.sign, np.array(factors) ** float(direction.sign)


def _log_survival(k: int, x: FloatArray) -> FloatArray:
    """ln P(χ²_K > x), where P itself would be zero as well."""
    half = x / 2
    # Γ(a, z) = z^(a−1) e^(−z) (1 + (a − 1)/z + …): DLMF 8.11.2.
    far = np.maximum(half, 300.0)
    a = k / 2
    beyond = (a - 1) * np.log(far) - far + np.log1p((a - 1) / far) - gammaln(a)
    survival = chdtrc(k, np.minimum(x, 600.0))
    found: FloatArray = np.where(half > 300.0, beyond, np.log(survival))
    return found


ABSOLUTE = len(COVERAGE_LEVELS) * len(COVERAGE_FACTORS)
SCALE = len(SCALE_FACTORS)
RELATIVE = SCALE + len(STUDENT_DEGREES)

# Bets of a chart on detections: coverage, then scale, then tails.
BETS = ABSOLUTE + RELATIVE


@dataclass(frozen=True, slots=True)
class Aim:
    """Direction that a chart bets on, beyond a tolerance on σ."""

    direction: Direction
    tolerance: float


@dataclass(frozen=True, eq=False, slots=True)
class DetectionCells:
    """n detections at one stage, and which of C cells (a slice in a frame) each is in.

    nees       (n,) e
    mapped     (n,) e' through the reference of its slice
    cell       (n,)
    tracked    (n,) whether its track is known
    count      C
    tempering  (t,) γ of those whose track is known
    frame_tempering
               (C,) γ of the cell as a whole, where no tracks are known
    anchors    (C,) by chart: factor on usual squared errors from which its direction counts
    """

    k: int
    nees: FloatArray
    mapped: FloatArray
    cell: IntArray
    tracked: BoolArray
    count: int
    tempering: FloatArray
    frame_tempering: FloatArray
    anchors: Sequence[FloatArray]


def log_likelihoods(cells: DetectionCells, aims: Sequence[Aim]) -> FloatArray:
    """Returns ln of what each bet is multiplied by, (C, charts, BETS); 0 in an empty cell."""
    found = np.zeros((cells.count, len(aims), BETS))
    if cells.tracked.all():
        _add_tracked(found, cells, aims, slice(None))
        return found
    if cells.tracked.any():
        _add_tracked(found, cells, aims, cells.tracked)
    _add_untracked(found, cells, aims, np.flatnonzero(~cells.tracked))
    return found


def row_log_likelihoods(
    k: int,
    nees: FloatArray,
    mapped: FloatArray,
    aims: Sequence[Aim],
    anchors: Sequence[FloatArray],
) -> FloatArray:
    """Returns ln L of single detections, not tempered, (n, charts, BETS).

    anchors  (n,) by chart, as in DetectionCells
    """
    found = np.zeros((nees.size, len(aims), BETS))
    for chart, (aim, anchor) in enumerate(zip(aims, anchors, strict=True)):
        coverage, usual = coverage_bets(k, aim.direction, aim.tolerance), mapped / anchor
        found[:, chart, :ABSOLUTE] = coverage[exceeded(k, nees)]
        constant, slope = scale_bets(k, aim.direction, aim.tolerance)
        found[:, chart, ABSOLUTE : ABSOLUTE + SCALE] = constant + usual[:, None] * slope
        if aim.direction is Direction.OVER:
            found[:, chart, ABSOLUTE + SCALE :] = tail_log_likelihood(k, aim.tolerance, usual)
    return found


def _add_tracked(
    found: FloatArray, cells: DetectionCells, aims: Sequence[Aim], rows: BoolArray | slice
) -> None:
    """Sums over detections of a cell need no row of bets: counts and sums of e' are enough."""
    nees, mapped, cell = cells.nees[rows], cells.mapped[rows], cells.cell[rows]
    gamma = cells.tempering
    zones = np.bincount(cell * 4 + exceeded(cells.k, nees), gamma, 4 * cells.count).reshape(-1, 4)
    n = zones.sum(axis=1)[:, None]
    total = np.bincount(cell, gamma * mapped, cells.count)[:, None]
    for chart, (aim, anchor) in enumerate(zip(aims, cells.anchors, strict=True)):
        coverage = coverage_bets(cells.k, aim.direction, aim.tolerance)
        found[:, chart, :ABSOLUTE] = zones @ coverage
        constant, slope = scale_bets(cells.k, aim.direction, aim.tolerance)
        said = n * constant + total / anchor[:, None] * slope
        found[:, chart, ABSOLUTE : ABSOLUTE + SCALE] = said
        if aim.direction is Direction.OVER:
            tails = tail_log_likelihood(cells.k, aim.tolerance, mapped / anchor[cell])
            for bet, said in enumerate(tails.T, ABSOLUTE + SCALE):
                found[:, chart, bet] = np.bincount(cell, gamma * said, cells.count)


def _add_untracked(
    found: FloatArray, cells: DetectionCells, aims: Sequence[Aim], rows: IntArray
) -> None:
    order = rows[np.argsort(cells.cell[rows], kind="stable")]
    cell = cells.cell[order]
    start = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    anchors = [anchor[cell] for anchor in cells.anchors]
    said = row_log_likelihoods(cells.k, cells.nees[order], cells.mapped[order], aims, anchors)
    # A mean of numbers as large as e^700: relative to the largest of the cell.
    largest = np.maximum.reduceat(said, start)
    counts = np.diff(np.append(start, cell.size))
    said -= np.repeat(largest, counts, axis=0)
    mean = np.log(np.add.reduceat(np.exp(said), start) / counts[:, None, None]) + largest
    there = cell[start]
    found[there] += cells.frame_tempering[there, None, None] * mean
