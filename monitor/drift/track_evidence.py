"""Bets on seconds of tracks: a random-effect model of their mean log NEES.

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
chart began to rise; how b and j are chosen decides only how fast drift is found.

This holds if blocks are normal and tracks independent but for the common level. That is a model:
it is learned from a reference, r is cut, and what it promises on correlated and heavy-tailed
errors was simulated, not proved.

Source of the forward algorithm: Rabiner 1989, equations 19 and 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.frames.space import FloatArray, IntArray

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

# A second lies no farther than that outside the band: e⁴ in the variance.
_CLIP = 4.0

# Nor does it win more for any bet, in nats: one odd object must not outweigh all others.
_MOST = 4.0


@dataclass(frozen=True, eq=False, slots=True)
class Residuals:
    """Levels less what the past of their tracks explains, all (m,).

    r         cut; N(c_t, v) at common level c_t
    v
    learning  τ²/(ω² + nτ²): by how much each second since a change dulls r
    """

    r: FloatArray
    v: FloatArray
    learning: FloatArray


def residuals(
    level: FloatArray,
    count: IntArray,
    before: IntArray,
    mean: FloatArray,
    mean_common: FloatArray,
    *,
    usual: FloatArray,
    between: FloatArray,
    within: FloatArray,
    length: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> Residuals:
    """Subtracts from the levels y of m blocks what the past of their tracks explains; all (m,).

    count            detections of the block
    mean             ȳ of n = `before` earlier blocks of the track
    mean_common      c̄, mean common level of those blocks
    usual, between   m0 and τ² of the slice
    within           ω², of blocks of `length` detections
    low, high        ends of the band, in ln of the variance over usual
    """
    known = within + before * between
    # A block of fewer detections tells less; at worst as if they were independent.
    v = within * np.maximum(1.0, length / count) + between * within / known
    learning = between / known
    own = before * learning * (mean - usual - mean_common)
    return Residuals(np.clip(level - usual - own, low - _CLIP, high + _CLIP), v, learning)


@dataclass(frozen=True, eq=False, slots=True)
class CommonLevel:
    """The common level of P slices after a second.

    chain  (P, STATES) probabilities, from the lower to the upper end of the band
    mean   (P,) its expectation
    low_edge, high_edge
           (P,) ln p(y | end of the band) less ln Σ_c P(c) p(y | c)
    """

    chain: FloatArray
    mean: FloatArray
    low_edge: FloatArray
    high_edge: FloatArray


def common_level(
    chain: FloatArray,
    found: Residuals,
    at: IntArray,
    low: FloatArray,
    high: FloatArray,
) -> CommonLevel:
    """Takes the seconds of m tracks into the chains of P slices; a slice without any stays.

    chain      (P, STATES) after the second before; zeros where there was none
    at         (m,) the slice of each
    low, high  (P,) ends of the bands, low ≤ 0 ≤ high
    source     Rabiner 1989, eq. 20
    """
    slices = low.size
    precision = np.bincount(at, 1 / found.v, slices)
    weighted = np.bincount(at, found.r / found.v, slices)
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
    there = np.bincount(at, minlength=slices) > 0
    return CommonLevel(
        chain=np.where(there[:, None], after, chain),
        mean=(after * level).sum(axis=1),
        low_edge=said[:, 0] - evidence,
        high_edge=said[:, -1] - evidence,
    )


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


def log_ratios(found: Residuals, sign: int, edge: FloatArray, since: IntArray) -> FloatArray:
    """Returns ln p(y | b)/p(y | e) of each block for each of FACTORS, (m, 4).

    sign   +1 beyond the upper end, −1 beyond the lower one
    edge   (m,) e, the end of the band
    since  (m,) j, blocks of the track since the change
    """
    r = sign * (found.r - edge)
    d = _BEYOND * (1 - since * found.learning)[:, None]
    said = (d * r[:, None] - 0.5 * d * d) / found.v[:, None]
    cut: FloatArray = np.minimum(said, _MOST)
    return cut
