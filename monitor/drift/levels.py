"""Bets on levels of seconds of tracks: in any channel, beyond a band that they may move in.

A second t of track i has y = m0 + c_t + a_i + w, a_i ~ N(0, τ²), w ~ N(0, ω²). The common level
c_t is shared by all tracks of a slice: weather, or the pose of the vehicle. Nothing is wrong for
as long as it stays within the band, however it moves there; drift is a level beyond an end of it.

So the null is not one level but all paths within the band. They are weighed as a hidden Markov
chain: STATES levels from the lower to the upper end, whose probabilities are updated with every
second (the forward algorithm). With p(y | c) the normal density of a second's levels at common
level c, given the earlier seconds of their tracks, a bet on level b beyond the band is

    L = p(y | b) / Σ_c P(c | the past) p(y | c).

The mean of L is at most 1, averaged over the paths of the chain. On any one path within the band a
bet wins at most ln 1/P(the path): up to 10 nats for a jump to an end of the band, a quarter of a
nat for a second without a move. A bet on b loses on every level within the band.

Given n earlier seconds of a track with mean ȳ, of which the chain explains c̄ by the common level,
r = y − m0 − h(ȳ − m0 − c̄) is N(c_t, v): h = nτ²/(ω² + nτ²), v = ω² + τ²ω²/(ω² + nτ²). If the level
has been at b for j of the n seconds, the chain took them for the end e of the band, and r has
mean e + (b − e) f, f = 1 − jτ²/(ω² + nτ²). The change is taken to be where the evidence of the
column began to rise; how b and j are chosen decides only how fast drift is found.

Seconds are unequal. One of k detections has ω² + S² (1/k − 1/N) in place of ω², which v has of the
second itself, and h the mean of the earlier ones, Ω². ȳ weighs these by their detections, and n is
as many as that mean is worth, (Σ k)²/Σ k².

This holds if blocks are normal and tracks independent but for the common level. That is a model:
it is learned from a reference, r is cut, and what it promises on correlated and heavy-tailed
errors was simulated, not proved.

Source of the forward algorithm: Rabiner 1989, equations 19 and 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import chdtri

from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray

# Bets on levels beyond the band: factors on the variance.
FACTORS = (1.25, 1.75, 2.5, 5.0)
_BEYOND = np.log(np.array(FACTORS))

# Common levels within the band, evenly from end to end: at the default tolerance a factor of 1.19
# on the variance apart.
STATES = 9

# From one second to the next the common level jumps, or moves to the next state, up or down; else
# it stays. By simulation of steps, ramps, waves and OU processes, and by delays on real drives.
_JUMPS, _MOVES = 0.02, 0.1

# Where it jumps to, and is at first: near the middle of the band, whose ends are three deviations
# off.
_USUAL = np.exp(-0.5 * (3.0 * np.linspace(-1.0, 1.0, STATES)) ** 2)
_USUAL /= _USUAL.sum()

# A second counts as of no more than N/0.85 detections: further ones are nearer in time, and more
# alike.
_LEAST_FEWNESS = 0.85

# A reference may take seconds for less noisy than their detections are: so much of ω² is left.
_LEAST_VARIANCE = 0.85

# A second lies no farther than that outside the band: e⁴ in the variance.
_CLIP = 4.0

# Against the end of the band a second wins at most so many nats: one odd object must not outweigh
# all others.
_MOST_LOG_ODDS = 4.0


@dataclass(frozen=True, eq=False, slots=True)
class Past(Columns):
    """Holds what is known of m seconds of tracks beside their levels, (m,) each.

    count  detections
    rows   Σ of those of the earlier seconds of the track
    rows2  Σ of the squares
    """

    count: IntArray
    rows: IntArray
    rows2: IntArray

    @property
    def seconds(self) -> FloatArray:
        """Returns n, the earlier seconds, as many as a mean weighted by detections is worth."""
        found: FloatArray = self.rows * self.rows / np.maximum(self.rows2, 1)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class UsualLevels(Columns):
    """Holds what is usual of the levels of m seconds, all of one shape: m0, τ², ω², S² and N."""

    mean: FloatArray
    between: FloatArray
    within: FloatArray
    spread: FloatArray
    length: FloatArray

    def variance(self, fewness: FloatArray) -> FloatArray:
        """Returns that of w in a second of k detections, some of N that are exchangeable.

        fewness  1/k
        """
        few = 1 / self.length
        found = self.within + self.spread * (np.maximum(fewness, _LEAST_FEWNESS * few) - few)
        kept: FloatArray = np.maximum(found, _LEAST_VARIANCE * self.within)
        return kept


@dataclass(frozen=True, eq=False, slots=True)
class Residuals(Columns):
    """Levels less what the past of their tracks explains, all (m, C).

    r         cut; N(c_t, v) at common level c_t
    v
    learning  τ²/(Ω² + nτ²): by how much each second since a change dulls r
    """

    r: FloatArray
    v: FloatArray
    learning: FloatArray

    def flat(self) -> Residuals:
        """Lays all channels in one row, (m · C,)."""
        return Residuals(self.r.ravel(), self.v.ravel(), self.learning.ravel())


@dataclass(frozen=True, eq=False, slots=True)
class Unexplained(Columns):
    """Levels less what the past of their tracks explains as if nothing were common, all (m, C).

    own  n·learning: by how much the mean common level of the past makes up for that
    """

    r: FloatArray
    v: FloatArray
    learning: FloatArray
    own: FloatArray

    def residuals(self, mean_common: FloatArray, low: FloatArray, high: FloatArray) -> Residuals:
        """Takes the common levels of the past into account; cuts what lies far outside the band.

        mean_common  c̄, mean common level of the earlier seconds
        low, high    ends of the band, over usual
        """
        r = self.r + self.own * mean_common
        return Residuals(np.clip(r, low - _CLIP, high + _CLIP), self.v, self.learning)


def unexplained(level: FloatArray, past: Past, mean: FloatArray, usual: UsualLevels) -> Unexplained:
    """Subtracts from the levels y of m seconds what the past of their tracks explains; (m, C).

    mean   ȳ of the earlier seconds of the track, each weighted by its detections
    usual  of the slice of each
    """
    n, count, rows = past.seconds[:, None], past.count[:, None], past.rows[:, None]
    now, then = usual.variance(1 / count), usual.variance(n / np.maximum(rows, 1))
    learning = usual.between / (then + n * usual.between)
    own = n * learning
    r = level - usual.mean - own * (mean - usual.mean)
    return Unexplained(r, now + learning * then, learning, own)


# ln e of few detections is not normal: its long tail to the left would win bets on errors that are
# too small, E[L] up to 4 for seconds of one detection. So levels of n are cut at 2 ∛n deviations
# below their mean, from where on E[L] was simulated to be 1.03 at most (n from 1 to 10, K = 1, 3).
_LOWEST = 2.0


def not_too_low(level: FloatArray, count: IntArray, usual: UsualLevels) -> FloatArray:
    """Cuts the levels of m seconds from below, each a mean ln NEES; (m, C).

    level  (m, C) y
    count  (m,) detections
    """
    deviation = np.sqrt(usual.variance(1 / count[:, None]) + usual.between)
    cut: FloatArray = np.maximum(level, usual.mean - _LOWEST * np.cbrt(count)[:, None] * deviation)
    return cut


def common_level(
    chain: FloatArray,
    precision: FloatArray,
    weighted: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Takes the same second of some tracks into the chains of P slices, of which each has some.

    chain      (P, STATES) probabilities after the second before, from the lower to the upper end
               of the band; zeros where there was none
    precision, weighted
               (P,) Σ 1/v and Σ r/v over the tracks
    low, high  (P,) ends of the bands, low ≤ 0 ≤ high
    returns    the chain after the second; its expectation, (P,); and of the lower and the upper
               end of the band ln p(y | end) less ln Σ_c P(c) p(y | c), (2, P)
    source     Rabiner 1989, eq. 20
    """
    level = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, STATES)
    # ln p(y | c), but for what all c have in common.
    said = level * weighted[:, None] - 0.5 * level * level * precision[:, None]
    with np.errstate(divide="ignore"):
        joint = np.log(_moved(chain)) + said
    largest = joint.max(axis=1, keepdims=True)
    weight = np.exp(joint - largest)
    total = weight.sum(axis=1, keepdims=True)
    evidence = largest[:, 0] + np.log(total[:, 0])
    after = weight / total
    return after, (after * level).sum(axis=1), said[:, [0, -1]].T - evidence


def _moved(chain: FloatArray) -> FloatArray:
    """Returns P(c | the past) a second later, (P, STATES); as at first where there is no past."""
    moves = np.zeros_like(chain)
    moves[:, 1:] += chain[:, :-1]
    moves[:, :-1] += chain[:, 1:]
    # Beyond an end there is nowhere to go.
    moves[:, 0] += chain[:, 0]
    moves[:, -1] += chain[:, -1]
    later = (1 - _JUMPS - 2 * _MOVES) * chain + _MOVES * moves + _JUMPS * _USUAL
    return np.where(chain.any(axis=1, keepdims=True), later, _USUAL)


# The slope of a bet that errors are too small, in ln e, a detection and degree of freedom at most:
# E exp(−θ ln χ²_K) exceeds that of a Gaussian by 3 to 7 % at θ = K/5, for K up to 8, and is
# infinite from K/2 on. It bounds the bet on b; the cut of levels that on the end of the band.
_STEEPEST = 0.2


def steepest(sign: IntArray | int, degrees: FloatArray, count: IntArray) -> FloatArray:
    """Returns the largest slope of a bet on the mean ln NEES of n detections; ∞ without a bound.

    sign     +1 beyond the upper end of a band, −1 beyond the lower one
    degrees  of freedom, 0 of a level that is no ln NEES
    count    n
    """
    most = _STEEPEST * degrees * count
    return np.where((sign < 0) & (degrees > 0), most, np.inf)


@dataclass(frozen=True, eq=False, slots=True)
class Beyond:
    """Seconds of tracks as bets on levels beyond an end of a band see them, (m,) each.

    r         by how far the level lies beyond the end
    v         as in Residuals
    dulled    1 − j·learning, of j seconds of the track since the change
    """

    r: FloatArray
    v: FloatArray
    dulled: FloatArray

    @property
    def terms(self) -> FloatArray:
        """Returns what a second adds to the sums of `of_factors`, (2, m)."""
        weight = self.dulled / self.v
        return np.stack([weight * self.r, weight * self.dulled])

    def log_ratios(self, steepest: FloatArray) -> FloatArray:
        """Returns ln p(y | b)/p(y | e) for each of FACTORS, (m, 4), at most 4.

        steepest  (m,) largest slope: v counts as d/steepest at least
        """
        d = _BEYOND * self.dulled[:, None]
        v = np.maximum(self.v[:, None], d / steepest[:, None])
        found: FloatArray = np.minimum((d * self.r[:, None] - 0.5 * d * d) / v, _MOST_LOG_ODDS)
        return found


def of_factors(sums: FloatArray) -> FloatArray:
    """Returns ln p(y | b)/p(y | e) = (d r − d²/2)/v over some seconds for each of FACTORS, (…, 4).

    d is in proportion to ln of a factor, so that two sums tell it for all of them; unless something
    is cut, or a slope bounded.

    sums  (2, …) of Beyond.terms
    """
    linear, square = sums[..., None]
    found: FloatArray = _BEYOND * linear - 0.5 * _BEYOND**2 * square
    return found


def may_exceed(beyond: FloatArray, v: FloatArray, nats: float) -> BoolArray:
    """Tells where any bet may win more than so many nats: (d r − d²/2)/v is at most r²/2v."""
    found: BoolArray = (beyond > 0) & (beyond * beyond > 2 * nats * v)
    return found


def may_be_bounded(steepest: FloatArray, v: FloatArray) -> BoolArray:
    """Tells where the slope of any bet may be bounded."""
    found: BoolArray = _BEYOND[-1] > steepest * v
    return found


# A detection is far outside beyond this quantile of χ²_K, with deviations that are too small by the
# tolerance.
_FAR_LEVEL = 0.99

# Shares of seconds with a detection far outside that are bet on, over the most that is usual. A
# reference may know too few seconds, and one odd object is no drift.
_TAIL_FACTORS = (2.0, 4.0, 8.0, 16.0)
_USUAL_TAILS, _LEAST_ONSETS, _LEAST_OUTSIDE = 2.0, 0.05, 0.01
_MOST_TAILS = 0.9


@cache
def far_outside(k: int, tolerance: float) -> float:
    """Returns the NEES beyond which a detection is far outside of what its covariance allows."""
    return float(tolerance**2 * chdtri(k, 1 - _FAR_LEVEL))


def tail_log_ratios(
    outside: IntArray, count: IntArray, share: FloatArray, onsets: FloatArray
) -> FloatArray:
    """Bets on how often a second of a track has a detection far outside, (m, 4).

    Asked are seconds that follow on one without, so that an odd object counts once. With p0 the
    most that is usual of a second of n detections, min(n · share, onsets) each with a margin, and
    q = 2 p0 … 16 p0, at most 0.9: L = q/p0 if there is one, else (1 − q)/(1 − p0), whose mean is at
    most 1 for every chance up to p0.

    outside        (m,) detections far outside
    count          (m,) detections
    share, onsets  (m,) what is usual: of detections outside, and of seconds with one
    """
    most = np.maximum(_USUAL_TAILS * onsets, _LEAST_ONSETS)
    single = np.maximum(_USUAL_TAILS * share, _LEAST_OUTSIDE)
    p0 = np.minimum(np.minimum(count * single, most), _MOST_TAILS)[:, None]
    q = np.minimum(p0 * np.array(_TAIL_FACTORS), np.maximum(p0, _MOST_TAILS))
    there = (outside > 0)[:, None]
    found: FloatArray = np.where(there, np.log(q / p0), np.log((1 - q) / (1 - p0)))
    return found
