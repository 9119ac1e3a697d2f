"""Bets on whether a candidate is better: evidence that holds however often one looks at it.

Who bets a fraction λ of its wealth on each track that the difference D of mean log scores is
positive multiplies it by 1 + λD/L, where D can be no less than −L. If the candidate is no better,
E D ≤ 0, then wealth is a supermartingale, and reaches 1/α with a chance of at most α, whenever one
stops (Ville 1939). What is tested is the mean of the clipped D: without a bound from below nothing
could be staked, and where no track can say as much as B against a candidate it is the mean itself.
Sources: Waudby-Smith & Ramdas 2024 (estimating means by betting); Ramdas,
Grünwald, Vovk & Shafer 2023 (game-theoretic statistics).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray, IntArray

# Wealth is spread evenly over bettors of these fractions: one of them is near the best.
FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.8, 0.95)
# What is left to who loses more than all. Not zero, so that the logarithm is a number.
_RUIN = 1e-300
# More than anybody needs.
_RICHEST = 1e300


@dataclass(frozen=True, slots=True)
class Clip:
    """How much a track can say, in nats per dimension. Fixed before any truth is seen.

    most  B: differences are clipped at ±B
    loss  what it can say against the candidate, in (0, B]
    gain  what it can say for the candidate, in (0, B]
    rows  detections of a track that has a full say; of a shorter one, its share
    """

    most: float = 1.0
    loss: float = 1.0
    gain: float = 1.0
    rows: float = 1.0

    def of(self, difference: FloatArray) -> FloatArray:
        """Differences clipped at ±B."""
        return np.clip(difference, -self.most, self.most)

    def said(self, difference: FloatArray, counts: IntArray) -> FloatArray:
        """What tracks say: their differences, by how long they are, within ±B.

        A tracker breaks a track where an error leaves the gate, and what it breaks off is short and
        wrong. If each piece had a full say, a healthy detector would seem overconfident; by
        its length, breaking a track changes nothing. Gains are clipped piece by piece, so that
        pieces of one object say no more together than it could; losses only as a whole, or the
        large ones of a step that shrinks would be cut where they are broken off.

        counts  (T,) detections of each
        """
        share = np.minimum(1.0, counts / self.rows)
        gains, losses = self.of(difference) * share, np.maximum(difference * share, -self.most)
        return np.where(difference > 0, gains, losses)


def full_say(counts: IntArray) -> float:
    """Detections of a track that has a full say: nine in ten detections are in no longer ones.

    counts  (T ≥ 1,) detections of some tracks
    """
    ordered = np.sort(counts)
    place = np.searchsorted(np.cumsum(ordered), 0.9 * ordered.sum())
    return float(ordered[min(int(place), ordered.size - 1)])


def returns(said: FloatArray, bound: float) -> FloatArray:
    """(T, fractions) by what each bettor's wealth is multiplied: 1 + λD/L.

    said   (T,) D, what each track says
    bound  L; a bettor who meets a D below −L/λ after all is ruined. So a candidate that has
             learnt to lose more than it could when the trial began does not profit by it
    """
    multiples: FloatArray = 1 + np.array(FRACTIONS) * (said[:, None] / bound)
    return np.maximum(multiples, _RUIN)


@dataclass(frozen=True, slots=True)
class Bets:
    """The wealth of those who bet that a candidate is better, and of those who bet on worse.

    Products commute: tracks may be taken in any order and in parts.

    tracks  that had a say
    total   sum of what they said, nats per dimension
    better  log wealth by fraction, from 0
    worse   the same of those who bet on −D
    """

    tracks: int = 0
    total: float = 0.0
    better: tuple[float, ...] = (0.0,) * len(FRACTIONS)
    worse: tuple[float, ...] = (0.0,) * len(FRACTIONS)

    def taken(self, said: FloatArray, clip: Clip) -> Bets:
        """With more tracks; (T,) what they say, as clip.said gives it."""
        better = np.log(returns(said, clip.loss)).sum(axis=0)
        worse = np.log(returns(-said, clip.gain)).sum(axis=0)
        return self.merged(
            Bets(said.size, float(said.sum()), tuple(better.tolist()), tuple(worse.tolist()))
        )

    def merged(self, other: Bets) -> Bets:
        """Of the tracks of both."""
        return Bets(
            self.tracks + other.tracks,
            self.total + other.total,
            tuple(a + b for a, b in zip(self.better, other.better, strict=True)),
            tuple(a + b for a, b in zip(self.worse, other.worse, strict=True)),
        )

    @property
    def gain(self) -> float:
        """Mean of what tracks said, nats per dimension; 0 without tracks."""
        return self.total / self.tracks if self.tracks else 0.0

    @property
    def log10_better(self) -> float:
        """Of the wealth of all who bet on better, from 1."""
        return _log10_mean(self.better)

    @property
    def log10_worse(self) -> float:
        """Of the wealth of all who bet on worse, from 1."""
        return _log10_mean(self.worse)


def _log10_mean(logarithms: tuple[float, ...]) -> float:
    highest = max(logarithms)
    rest = math.fsum(math.exp(one - highest) for one in logarithms)
    return (highest + math.log(rest / len(logarithms))) / math.log(10)


def log10_threshold(alpha: float, number: int) -> float:
    """At which the bet of the j-th of successive trials is won: 1/α_j, α_j = α/(j(j+1)).

    Σ α_j = α: however many trials there are, α bounds the chance that any of them wins wrongly.

    number  j, from 1
    """
    return math.log10(number * (number + 1) / alpha)


@dataclass(frozen=True, slots=True)
class Run:
    """One bettor who begins anew with every track, and the tracks that favour it.

    statistic   R ← (1 + R)(1 + λD/L), Shiryaev and Roberts: one more bet of 1 begun at each track
    cumulative  W ← max(1, W)(1 + λD/L), Page: the best of these bets
    tracks      since W was last no more than 1: those since it seems to be better
    total       sum of what they said
    """

    statistic: float = 0.0
    cumulative: float = 1.0
    tracks: int = 0
    total: float = 0.0

    def taken(self, multiple: float, said: float) -> Run:
        """With one more track."""
        statistic = min((1 + self.statistic) * multiple, _RICHEST)
        cumulative = min(max(1.0, self.cumulative) * multiple, _RICHEST)
        if cumulative <= 1:
            return Run(statistic, cumulative)
        return Run(statistic, cumulative, self.tracks + 1, self.total + said)


@dataclass(frozen=True, slots=True)
class Watch:
    """An e-detector: how much speaks for it that something has become better at some time.

    The mean R over the fractions, less the number of tracks, is a supermartingale for as long as
    it is no better: R reaches c after c tracks on average, or later.
    Source: Shin, Ramdas & Rinaldo, arXiv 2203.03532, sections 2 and 3.

    runs  by fraction
    """

    runs: tuple[Run, ...] = (Run(),) * len(FRACTIONS)

    def taken(self, said: FloatArray, clip: Clip) -> Watch:
        """With more tracks, in order; (T,) what they say, as for Bets."""
        runs = self.runs
        multiples = returns(said, clip.loss).tolist()
        for row, value in zip(multiples, said.tolist(), strict=True):
            runs = tuple(
                run.taken(multiple, value) for run, multiple in zip(runs, row, strict=True)
            )
        return Watch(runs)

    @property
    def log10_better(self) -> float:
        """Of the mean R; 0 where that is less than 1, as before any track."""
        mean = math.fsum(run.statistic for run in self.runs) / len(self.runs)
        return math.log10(mean) if mean > 1 else 0.0

    @property
    def leading(self) -> Run:
        """The bettor to whom it speaks most."""
        return max(self.runs, key=lambda run: run.cumulative)
