"""Bets on whether a candidate is better: evidence that holds however often it is read.

A bettor who stakes a fraction λ of its wealth on a positive difference D of mean log scores, at
each track, multiplies it by 1 + λD/L, where D can be no less than −L. If the candidate is no
better, E D ≤ 0, then wealth is a supermartingale, and reaches 1/α with a chance of at most α,
whenever one stops (Ville 1939).

Where no L is known, a bettor of stake s multiplies by max(1 + sD, 0.1)/M, s ≤ 0.9/B. What that cuts
of a loss is beyond B: where D cut at ±B has a mean of no more than 0, wealth is a supermartingale
too. Under heavy tails that mean may be positive and E D negative. M pays for it: it is the largest
mean of max(1 + sD, 0.1) of a wrong shrinking step under Student-t errors of 3 degrees of freedom,
the heaviest tails that are insured against; see PREMIUMS.
Sources: Waudby-Smith & Ramdas 2024 (estimating means by betting); Ramdas,
Grünwald, Vovk & Shafer 2023 (game-theoretic statistics).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Len

from monitor.frames.marks import Count, NotNegative, Positive
from monitor.frames.space import FloatArray, IntArray

# Wealth is spread evenly over bettors of these fractions: one of them is near the best.
FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.8, 0.95)
_BY_BETTOR = Len(len(FRACTIONS), len(FRACTIONS))

# Wealth that is left to a bettor who loses all. Not zero, so that its logarithm is finite.
_RUIN = 1e-300

# Where no bound of the losses is known: the stake of each bettor, per nat for B ≤ 1, and the share
# of wealth that a track leaves at least. As many as FRACTIONS, since Bets has one wealth a bettor:
# so the boldest stake comes twice.
STAKES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.9)
LEFT = 0.1

# M by stake: the largest mean, over f > 1, of max(1 + s(½ ln f − ½(f − 1)v), 0.1), rounded up; v is
# F(3, 3)/3, NEES/K of one detection of 3 dimensions with Student-t errors of 3 degrees of freedom
# and unit variance, to which a step that divides variances by f is wrong. The function is convex,
# so means over the detections of a track, more dimensions, and more degrees of freedom (each makes
# v less dispersed in the convex order) have smaller means, as have clipped gains; a track that has
# a share of a say has that share of M − 1 at most.
PREMIUMS = (1.0003, 1.0023, 1.0084, 1.0205, 1.0291, 1.0291)

# Two dimensions are insured as well where a track holds so many detections: simulated at ρ = 0.65,
# too few at 0.95 (docs/promotion.md).
_INSURED_DIMENSIONS, _INSURED_DETECTIONS = 3, 5

# Wealth above which nothing is added, so that it stays finite.
_RICHEST = 1e300


@dataclass(frozen=True, slots=True)
class Clip:
    """How much a track can say, in nats per dimension. Fixed before any truth is seen.

    most  B, at which gains are clipped
    loss  most that a track can say against the candidate, in (0, B]; B: no bound is known
    gain  most that a track can say for the candidate, in (0, B]; B: no bound is known
    rows  detections of a track that has a full say; a shorter track has its share of one
    """

    most: Positive = 1.0
    loss: Positive = 1.0
    gain: Positive = 1.0
    rows: Annotated[float, Ge(1.0)] = 1.0

    def __post_init__(self) -> None:
        if max(self.loss, self.gain) > self.most:
            raise ValueError(
                f"'loss' is {self.loss} and 'gain' {self.gain}: they must be at most 'most', "
                f"{self.most}"
            )

    def shares(self, counts: IntArray) -> FloatArray:
        """Gives each track its share of a full say, by its detections; (T,).

        A tracker breaks a track where an error leaves the gate, and what it breaks off is short and
        wrong. If each piece had a full say, a healthy detector would seem overconfident; by
        its length, breaking a track changes nothing.
        """
        shares: FloatArray = np.minimum(1.0, counts / self.rows)
        return shares

    def said(self, difference: FloatArray, shares: FloatArray) -> FloatArray:
        """Weighs what tracks say for a positive difference; (T,).

        Gains are clipped piece by piece, so that pieces of one object say no more together than it
        could. Losses are not clipped: under heavy tails most tracks speak for smaller covariances,
        and the few against would be cut.
        """
        return np.minimum(difference, self.most) * shares

    def shown(self, said: FloatArray) -> FloatArray:
        """Cuts what tracks say to no less than −B, for totals that people read."""
        return np.maximum(said, -self.most)

    def multiples(self, said: FloatArray, shares: FloatArray, bound: float) -> FloatArray:
        """Returns the factors by which tracks multiply the wealth of each bettor; (T, bettors).

        They are 1 + λD/L where a bound L of the losses is known, else
        max(1 + sD, 0.1)/(1 + w(M − 1)): a track with a share w of a say costs that share of the
        premium.

        said    (T,) D, what each track says
        shares  (T,) w
        bound   loss for bets on a positive D, gain for bets on a negative one
        """
        if bound < self.most:
            bounded: FloatArray = 1 + np.array(FRACTIONS) * (said[:, None] / bound)
            return np.maximum(bounded, _RUIN)
        premiums = 1 + shares[:, None] * (np.array(PREMIUMS) - 1)
        stakes = np.array(STAKES) / max(1.0, self.most)
        insured: FloatArray = np.maximum(1 + stakes * said[:, None], LEFT) / premiums
        return insured

    def insured(self, dimensions: int) -> bool:
        """Tells whether a proof holds under tails down to 3 degrees of freedom, and so may act.

        True where a bound of the losses is known, for three joint dimensions or more, and for two
        where a track of a full say holds five detections. Shorter tracks, and those of one
        dimension, do not show such tails: a wrong step then gains more than the premium.
        """
        long = dimensions == _INSURED_DIMENSIONS - 1 and self.rows >= _INSURED_DETECTIONS
        return self.loss < self.most or dimensions >= _INSURED_DIMENSIONS or long


def full_say(counts: IntArray) -> float:
    """Counts the detections of a track that has a full say.

    Nine in ten detections are in tracks that are no longer.

    counts  (T ≥ 1,) detections of some tracks
    """
    ordered = np.sort(counts)
    place = np.searchsorted(np.cumsum(ordered), 0.9 * ordered.sum())
    return float(ordered[min(int(place), ordered.size - 1)])


@dataclass(frozen=True, slots=True)
class Bets:
    """Wealth of the bettors on "the candidate is better", and of those on "it is worse".

    Products commute: tracks may be taken in any order and in parts.

    tracks  number of tracks that had a say
    total   sum of what they said, no less than −B each, nats per dimension
    better  log wealth by bettor, from 0
    worse   log wealth of those who bet on −D
    """

    tracks: Count = 0
    total: float = 0.0
    better: Annotated[tuple[float, ...], _BY_BETTOR] = (0.0,) * len(FRACTIONS)
    worse: Annotated[tuple[float, ...], _BY_BETTOR] = (0.0,) * len(FRACTIONS)

    def taken(self, difference: FloatArray, counts: IntArray, clip: Clip) -> Bets:
        """Returns the bets after more tracks: (T,) differences, (T,) detections of each."""
        shares = clip.shares(counts)
        said, against = clip.said(difference, shares), clip.said(-difference, shares)
        better = np.log(clip.multiples(said, shares, clip.loss)).sum(axis=0).tolist()
        worse = np.log(clip.multiples(against, shares, clip.gain)).sum(axis=0).tolist()
        return Bets(
            self.tracks + said.size,
            self.total + float(clip.shown(said).sum()),
            tuple(a + b for a, b in zip(self.better, better, strict=True)),
            tuple(a + b for a, b in zip(self.worse, worse, strict=True)),
        )

    @property
    def gain(self) -> float:
        """Mean of what tracks said, nats per dimension; 0 without tracks."""
        return self.total / self.tracks if self.tracks else 0.0

    @property
    def log10_better(self) -> float:
        """Mean wealth of the bettors on better, each from 1, as log10."""
        return _log10_mean(self.better)

    @property
    def log10_worse(self) -> float:
        """Mean wealth of the bettors on worse, each from 1, as log10."""
        return _log10_mean(self.worse)


def _log10_mean(logarithms: tuple[float, ...]) -> float:
    highest = max(logarithms)
    rest = math.fsum(math.exp(one - highest) for one in logarithms)
    return (highest + math.log(rest / len(logarithms))) / math.log(10)


def log10_threshold(alpha: float, number: int) -> float:
    """Returns log10 of the wealth at which the j-th successive trial is won.

    That is 1/α_j, α_j = α/(j(j+1)).

    Σ α_j = α: however many trials there are, α bounds the chance that any of them wins wrongly.

    number  j, from 1
    """
    return math.log10(number * (number + 1) / alpha)


@dataclass(frozen=True, slots=True)
class Run:
    """One bettor who begins anew with every track, and the tracks that favour it.

    statistic   R ← (1 + R) m, m as in Clip.multiples; Shiryaev and Roberts: one more bet of 1 begun
                at each track
    cumulative  W ← max(1, W) m, Page: the best of these bets
    tracks      since W was last no more than 1: those since it seems to be better
    total       sum of what they said, no less than −B each
    """

    statistic: NotNegative = 0.0
    cumulative: NotNegative = 1.0
    tracks: Count = 0
    total: float = 0.0

    def taken(self, multiple: float, said: float) -> Run:
        """Returns the run after one more track."""
        statistic = min((1 + self.statistic) * multiple, _RICHEST)
        cumulative = min(max(1.0, self.cumulative) * multiple, _RICHEST)
        if cumulative <= 1:
            return Run(statistic, cumulative)
        return Run(statistic, cumulative, self.tracks + 1, self.total + said)


@dataclass(frozen=True, slots=True)
class Watch:
    """An e-detector: evidence that something has become better at some time.

    The mean R over the bettors, less the number of tracks, is a supermartingale for as long as
    it is no better: R reaches c after c tracks on average, or later.
    Source: Shin, Ramdas & Rinaldo, arXiv 2203.03532, sections 2 and 3.

    runs  by bettor
    """

    runs: Annotated[tuple[Run, ...], _BY_BETTOR] = (Run(),) * len(FRACTIONS)

    def taken(self, difference: FloatArray, counts: IntArray, clip: Clip) -> Watch:
        """Returns the watch after more tracks, in order; arguments as for Bets."""
        runs, shares = self.runs, clip.shares(counts)
        said = clip.said(difference, shares)
        multiples = clip.multiples(said, shares, clip.loss).tolist()
        for row, value in zip(multiples, clip.shown(said).tolist(), strict=True):
            runs = tuple(
                run.taken(multiple, value) for run, multiple in zip(runs, row, strict=True)
            )
        return Watch(runs)

    @property
    def log10_better(self) -> float:
        """Mean R as log10; 0 where that is less than 1, as before any track."""
        mean = math.fsum(run.statistic for run in self.runs) / len(self.runs)
        return math.log10(mean) if mean > 1 else 0.0

    @property
    def leading(self) -> Run:
        """The bettor with the most wealth."""
        return max(self.runs, key=lambda run: run.cumulative)
