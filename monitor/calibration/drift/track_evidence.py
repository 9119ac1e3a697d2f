"""What seconds of tracks say of drift: a random-effect model of their mean log NEES.

y = m0 + a_track + w with a ~ N(0, τ²), w ~ N(0, ω²). Given n earlier seconds of a track with mean
ȳ, the next one is N(ŷ, v): ŷ = m0 + h(ȳ − m0), h = nτ²/(ω² + nτ²), v = ω² + τ²ω²/(ω² + nτ²).
If covariances are wrong by a factor e^δ all along, y is off by δ and ŷ by hδ: r = ±(y − ŷ) is off
by δ(1 − h), and by no more than δ0(1 − h) within the tolerance. Any d ≥ 0 that the past decides
then makes L = exp((d·r − d²/2)/v) one of conditional mean at most 1, for r less its tolerance.

A level may wander within the band as well, from its lower end to its upper one: half of
what that is beyond δ0(1 − h) is taken from r too. How d is chosen decides only how fast drift is
found. A track that lives through the change knows its usual level from before: with j of its
seconds since the change, r is off by δ(1 − jτ²/(ω² + nτ²)), which is nearly δ where n − j is
large. The change is taken to be where the evidence of the chart began to rise.

L is an e-value if blocks are normal and tracks independent. That is a model: it is learned
from a reference, its spreads with a margin, r is clipped, and what it promises on correlated and
heavy-tailed errors was simulated, not proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray, IntArray

# Bets on δ, over the tolerance: in the variance.
FACTORS = (1.25, 1.75, 2.5, 5.0)
_OVER_TOLERANCE = np.log(np.array(FACTORS))
# A second says no more than that: e⁴ in the variance.
_CLIP = 4.0
# Nor does it win more for any bet, in nats: one odd object must not outweigh all others.
_MOST = 4.0
# How much of the tolerance a change within it may use up, where a track knows an earlier level: 0
# would let a level that wanders through the band, all objects alike, seem to have drifted; with 1
# drift of a level that was low before is found late. In between by simulation of such levels.
_WANDER = 0.5


@dataclass(frozen=True, eq=False, slots=True)
class BlockLevels:
    """The level of each of m blocks, and what is usual of its slice; all (m,).

    level          y
    count          detections of the block
    mean, before   ȳ of n earlier blocks of the track
    since_change   j of them since the change
    usual          m0
    between        τ²
    within         ω², of blocks of `length` detections
    length
    """

    level: FloatArray
    count: IntArray
    mean: FloatArray
    before: IntArray
    since_change: IntArray
    usual: FloatArray
    between: FloatArray
    within: FloatArray
    length: FloatArray


def log_likelihoods(blocks: BlockLevels, sign: int, tolerance: float) -> FloatArray:
    """(m, 4) ln L of each block for each of FACTORS.

    sign       +1 for errors that are too large, −1 for errors that are too small
    tolerance  on σ
    """
    n = blocks.before
    known = blocks.within + n * blocks.between
    h = n * blocks.between / known
    # A block of fewer detections tells less; at worst as if they were independent.
    within = blocks.within * np.maximum(1.0, blocks.length / blocks.count)
    v = within + blocks.between * blocks.within / known
    expected = blocks.usual + h * (blocks.mean - blocks.usual)
    f = 1 - blocks.since_change * blocks.between / known
    allowed = 2 * math.log(tolerance) * ((1 - h) + _WANDER * (f - (1 - h)))
    r = np.clip(sign * (blocks.level - expected) - allowed, -_CLIP, _CLIP)
    d = _OVER_TOLERANCE * f[:, None]
    said = (d * r[:, None] - 0.5 * d * d) / v[:, None]
    found: FloatArray = np.minimum(said, _MOST)
    return found
