"""The comparison of a candidate with the champion, the active recalibrator of its slice, by bets.

Both are applied to the same whole tracks, and scored by how well ground truth agrees with what
they make: Gaussians, or probabilities of classes (scored.py). A trial asks whether the candidate is
better; a guard, after a promotion, whether the recalibrator of before has become better, and is to
come back. Evidence is the wealth of bettors, and holds however often it is read.

A bettor who stakes a fraction λ of its wealth on a positive difference D of mean log scores, at
each track, multiplies it by 1 + λD/L, where D can be no less than −L. If the candidate is no
better, E D ≤ 0, then wealth is a supermartingale, and reaches 1/α with a chance of at most α,
whenever one stops (Ville 1939).

Where no L is known, a bettor of stake s multiplies by max(1 + sD, 0.1)/M, s ≤ 0.9/B. What that cuts
of a loss is beyond B: where D cut at ±B has a mean of no more than 0, wealth is a supermartingale
too. Under heavy tails that mean may be positive and E D negative. M pays for it: it is the largest
mean of max(1 + sD, 0.1) of a wrong shrinking step under Student-t errors of 3 degrees of freedom,
the heaviest tails that are insured against; see PREMIUMS.

Of classes D is a mean of log z, z = q_y/p_y, q the candidate's probabilities and p the champion's,
of the true class y. If p is calibrated, the mean of z is Σ p_y q_y/p_y = 1, and a bettor of stake
s ≤ 0.9 needs no premium for any candidate, with or without a bound: since log z ≤ z − 1 and
s (z − 1) ≥ −0.9, max(1 + s log z, 0.1) ≤ 1 + s (z − 1), whose mean is 1. The left side is convex in
log z, so that this holds for the mean over the rows of a track, however alike they are.
Sources: Waudby-Smith & Ramdas 2024 (estimating means by betting); Ramdas,
Grünwald, Vovk & Shafer 2023 (game-theoretic statistics).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge, Len

from monitor.frames.detections import Limits
from monitor.frames.marks import Count, CountFrom1, NotNegative, Positive, Share
from monitor.frames.space import FloatArray, IntArray
from monitor.promotion.records import Evidence, Factor, TrialSettings, Verdict
from monitor.promotion.scored import AnyRows, rows_of
from monitor.promotion.tracks import AnyTrack
from monitor.recalibration.selection import AnyMethod, FittedMethod

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

# nats: the least bound of a loss, since stakes are divided by it.
_LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class Clip:
    """How much a track can say, in nats per dimension; of classes in nats. Fixed before any truth.

    most  B, at which gains are clipped
    loss  most that a track can say against the candidate, in (0, B]; B: no bound is known
    gain  most that a track can say for the candidate, in (0, B]; B: no bound is known
    rows  detections of a track that has a full say; a shorter track has its share of one
    tails whether what is scored are errors, which may have heavy tails; False: classes
    """

    most: Positive = 1.0
    loss: Positive = 1.0
    gain: Positive = 1.0
    rows: Annotated[float, Ge(1.0)] = 1.0
    tails: bool = True

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
        return np.minimum(1.0, counts / self.rows)

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
        premium. Of classes M is 1 and B, for s, is 1.

        said    (T,) D, what each track says
        shares  (T,) w
        bound   loss for bets on a positive D, gain for bets on a negative one
        """
        if bound < self.most:
            bounded: FloatArray = 1 + np.array(FRACTIONS) * (said[:, None] / bound)
            return np.maximum(bounded, _RUIN)
        if not self.tails:
            uninsured: FloatArray = np.maximum(1 + np.array(STAKES) * said[:, None], LEFT)
            return uninsured
        premiums = 1 + shares[:, None] * (np.array(PREMIUMS) - 1)
        stakes = np.array(STAKES) / max(1.0, self.most)
        insured: FloatArray = np.maximum(1 + stakes * said[:, None], LEFT) / premiums
        return insured

    def insured(self, dimensions: int) -> bool:
        """Tells whether a proof holds under tails down to 3 degrees of freedom, and so may act.

        True of classes, where a bound of the losses is known, for three joint dimensions or more,
        and for two where a track of a full say holds five detections. Shorter tracks, and those of
        one dimension, do not show such tails: a wrong step then gains more than the premium.
        """
        long = dimensions == _INSURED_DIMENSIONS - 1 and self.rows >= _INSURED_DETECTIONS
        bounded = self.loss < self.most or not self.tails
        return bounded or dimensions >= _INSURED_DIMENSIONS or long


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


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial of one candidate in one slice.

    number    of the trial among those since the last promotion, from 1
    clip      how much a track can say
    unsound   why an estimate of the candidate could not be forwarded; '' where all could
    """

    slice: str
    recalibrator: FittedMethod
    number: CountFrom1
    clip: Clip
    bets: Bets = field(default_factory=Bets)
    unsound: str = ""

    def taken(self, tracks: Sequence[AnyTrack], champion: AnyMethod, limits: Limits) -> Trial:
        """Returns the trial after more tracks of the slice, all of one space, each taken once.

        tracks  those after the ones that the candidate was fitted on
        """
        if not tracks:
            return self
        rows = rows_of(tracks)
        differences, unsound = rows.differences(self.recalibrator, champion, limits)
        if unsound:
            return replace(self, unsound=unsound)
        return replace(self, bets=self.bets.taken(differences, rows.counts, self.clip))

    def verdict(self, settings: TrialSettings) -> Verdict:
        """Returns the result so far."""
        if self.unsound:
            return Verdict.UNSOUND
        threshold = log10_threshold(settings.alpha, self.number)
        if self.bets.log10_better >= threshold:
            return Verdict.BETTER
        if self.bets.log10_worse >= threshold:
            return Verdict.WORSE
        return Verdict.OVER if self.bets.tracks >= settings.tracks else Verdict.RUNNING

    def evidence(self, settings: TrialSettings) -> Evidence:
        """Returns the evidence so far."""
        return Evidence(
            self.bets.tracks,
            self.bets.gain,
            self.bets.log10_better,
            self.bets.log10_worse,
            log10_threshold(settings.alpha, self.number),
        )


def clip_of(candidate: AnyMethod, champion: AnyMethod, rows: AnyRows, most: float) -> Clip:
    """Bounds how much a track can say of a candidate, by the parameters of the two recalibrators.

    Bounds are not read off the rows, since later rows may get larger factors.

    rows  of some tracks, for the length of a full one, and what their kind knows of bounds
    most  B as configured
    """
    full, most = full_say(rows.counts), most * rows.unit
    loss, gain = (
        most if bound is None else min(most, max(bound, _LEAST))
        for bound in rows.bounds(candidate, champion)
    )
    return Clip(most, loss, gain, full, rows.tails > 0)


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one slice: the recalibrator of before, compared with the champion.

    A candidate is better from the start or not at all; a recalibrator of before may be worse for
    hours, and become better when a fault ends. So a guard bets anew at every track.

    recalibrator  the one that was active before
    clip          how much a track can say: trial.clip_of(recalibrator, champion, …)
    """

    slice: str
    recalibrator: FittedMethod
    clip: Clip
    watch: Watch = field(default_factory=Watch)

    def taken(self, tracks: Sequence[AnyTrack], champion: AnyMethod, limits: Limits) -> Guard:
        """Returns the guard after more tracks of the slice, in the order they ended.

        Tracks on which it makes what cannot be forwarded are no reason for a rollback: after them
        its evidence begins anew.
        """
        if not tracks:
            return self
        rows = rows_of(tracks)
        differences, unsound = rows.differences(self.recalibrator, champion, limits)
        watch = Watch() if unsound else self.watch.taken(differences, rows.counts, self.clip)
        return replace(self, watch=watch)

    def won(self, settings: TrialSettings) -> bool:
        """Tells whether the recalibrator of before is proven better now."""
        return self.watch.log10_better >= math.log10(settings.rollback_tracks)

    def evidence(self, settings: TrialSettings) -> Evidence:
        """Returns the evidence of the tracks since it seems better; on worse there is no bet."""
        leading = self.watch.leading
        return Evidence(
            leading.tracks,
            leading.total / leading.tracks if leading.tracks else 0.0,
            self.watch.log10_better,
            0.0,
            math.log10(settings.rollback_tracks),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate in the register.

    proven   it is better, and waits for approval
    shrinks  it makes a variance smaller than the champion does
    late     for an adaptive candidate: see Follower
    doubt    for a candidate that waits: the guard that the champion would be. A proof does not
             last: a fault may end meanwhile, and the evidence of a long one would outweigh
             all after it
    """

    trial: Trial
    factors: tuple[Factor, ...]
    shrinks: bool
    proven: bool = False
    late: Share = 0.0
    doubt: Guard | None = None

    def anew(self) -> Candidate:
        """Begins a new trial: a proof from before nothing could act must be given again."""
        trial = replace(self.trial, bets=Bets(), number=self.trial.number + 1)
        return replace(self, trial=trial, proven=False, doubt=None)

    def doubted(
        self, tracks: Sequence[AnyTrack], champion: AnyMethod, limits: Limits, most: float
    ) -> Candidate:
        """Returns the candidate after tracks that came while it waits; most is B."""
        candidate, doubt = self.trial.recalibrator, self.doubt
        if doubt is None or doubt.recalibrator != champion:
            clip = clip_of(champion, candidate, rows_of(tracks), most)
            doubt = Guard(self.trial.slice, champion, clip)
        return replace(self, doubt=doubt.taken(tracks, candidate, limits))


@dataclass(frozen=True, slots=True)
class AwaitingGuard:
    """The recalibrator of before, until the first track makes a guard of it.

    rows  detections of a track that has a full say, as in the trial that it lost; 0: no trial
    """

    slice: str
    recalibrator: FittedMethod
    rows: NotNegative = 0.0
