"""The comparison of a candidate with the champion, the active recalibrator of its slice.

Both are applied to the same whole tracks, and scored by how well ground truth agrees with the
Gaussians that they make. A trial asks whether the candidate is better; a guard, after a promotion,
whether the recalibrator of before has become better, and is to come back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.frames.detections import Estimates, Limits
from monitor.frames.marks import CountFrom1, NotNegative, Share
from monitor.frames.space import FloatArray, Space
from monitor.promotion.betting import Bets, Clip, Watch, full_say, log10_threshold
from monitor.promotion.records import Evidence, Factor, TrialSettings, Verdict
from monitor.promotion.tracks import TrackRows, WholeTrack, rows_of
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.recalibrator import (
    Identity,
    Recalibrator,
    fault_of,
    sent_where_unsound,
    sound_rows,
)
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import AnyRecalibrator
from monitor.statistics.observations import measure

# For estimates of any size: finite and positive definite is enough.
ANY_SIZE = Limits(float("inf"), 0.0, float("inf"))

# Characters of an exception's text that are recorded.
_MOST_WORDS = 200

# The lowest score that counts, so that the difference of two scores is finite.
_LOWEST = -1e18

# Quantiles over rows: a few odd detections do not make a factor.
_LOW, _HIGH = 0.05, 0.95

# The share by which a covariance may be smaller than another and still count as no smaller.
_ROUNDING = 1e-9

# nats: the least bound of a loss, since stakes are divided by it.
_LEAST = 1e-3

# The largest condition number of correlation matrices that is reckoned with: two dimensions that
# correlate by 0.98, say.
_CONDITION = 100.0


def outcome_of(
    recalibrator: Recalibrator, sent: Estimates, limits: Limits = ANY_SIZE
) -> tuple[Estimates, str]:
    """Applies a recalibrator and factorises every covariance, whatever the method promises.

    Returns what could be forwarded, all as sent where any row could not; and why any could not, to
    be read after the name of the method, or ''.
    """
    try:
        made = recalibrator.apply(sent)
        fault = fault_of(sent, made, limits)
    except Exception as error:
        # Whatever goes wrong in a method is a finding about it.
        fault = f"fails: {in_words(error)}"
    return (sent, fault) if fault else (made, "")


def in_words(error: Exception) -> str:
    """Returns one printable line for an error, whatever the error says."""
    words = "".join(c if c.isprintable() else " " for c in str(error))
    said = " ".join(words.split())[:_MOST_WORDS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def forwarded(recalibrator: Recalibrator, sent: Estimates, limits: Limits = ANY_SIZE) -> Estimates:
    """Returns what an active recalibrator would forward: rows as sent wherever it fails."""
    try:
        made = recalibrator.apply(sent)
        sound = sound_rows(sent, made, limits, definite=recalibrator.keeps_definite)
    except Exception:
        return sent
    return sent_where_unsound(sent, made, sound)


def joint_log_score(space: Space, error: FloatArray, covariance: FloatArray) -> FloatArray:
    """Scores errors by their log density, per joint dimension: higher is better.

    log N(e; 0, Σ) / K = −½ (log 2π + log det(Σ)/K + eᵀΣ⁻¹e/K), K joint dimensions; angles are
    left out as in all joint measures.

    error       (n, K) truth − mean, angles wrapped
    covariance  (n, K, K)
    returns     (n,) nats per dimension; NaN where the joint block is not positive definite
    source      Gneiting & Raftery 2007, section 4.1 (LogS), a strictly proper score
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = measure(space, [(error, covariance)])
        score = np.log(2 * np.pi) + (found.log_determinant + found.nees[-1]) / found.joint
        return np.where(found.regular, -0.5 * score, np.nan)


def mean_differences(
    rows: TrackRows, candidate: Recalibrator, champion: Recalibrator, limits: Limits
) -> tuple[FloatArray, str]:
    """Scores what each would have forwarded, candidate minus champion, by track.

    Rows on which the champion fails count as they were sent, as they did in the stream. A
    candidate that fails on any row is not sound.

    returns  (T,) nats per dimension, mean over the rows of each track; and why the candidate could
             not have been forwarded on every row, and there are zeros, or '' where it could
    """
    made, unsound = outcome_of(candidate, rows.sent, limits)
    if unsound:
        return np.zeros(rows.start.size), unsound
    served = forwarded(champion, rows.sent, limits)
    return rows.means(_score(rows, made) - _score(rows, served)), ""


def _score(rows: TrackRows, made: Estimates) -> FloatArray:
    error = rows.space.error(rows.truth, made.mean)
    return np.fmax(joint_log_score(rows.space, error, made.covariance), _LOWEST)


def ratios(made: Estimates, served: Estimates) -> FloatArray:
    """Divides the variances of n ≥ 1 estimates by those of others, row by row.

    returns  (3, K): the 5 % quantile over rows, the geometric mean, and the 95 % quantile
    """
    logarithm = 2 * (np.log(made.deviation) - np.log(served.deviation))
    lowest, highest = np.quantile(logarithm, (_LOW, _HIGH), axis=0)
    return np.stack([np.exp(lowest), np.exp(logarithm.mean(axis=0)), np.exp(highest)])


def factors(made: Estimates, sent: Estimates, names: tuple[str, ...]) -> tuple[Factor, ...]:
    """Divides the variances that were made by those sent, by dimension; n ≥ 1 estimates."""
    return tuple(itertools.starmap(Factor, zip(names, *ratios(made, sent).tolist(), strict=True)))


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial of one candidate in one slice.

    number    of the trial among those since the last promotion, from 1
    clip      how much a track can say
    unsound   why an estimate of the candidate could not be forwarded; '' where all could
    """

    slice: str
    recalibrator: AnyRecalibrator
    number: CountFrom1
    clip: Clip
    bets: Bets = field(default_factory=Bets)
    unsound: str = ""

    def taken(self, tracks: Sequence[WholeTrack], champion: Recalibrator, limits: Limits) -> Trial:
        """Returns the trial after more tracks of the slice, all of one space, each taken once.

        tracks  those after the ones that the candidate was fitted on
        """
        if not tracks:
            return self
        rows = rows_of(tracks)
        differences, unsound = mean_differences(rows, self.recalibrator, champion, limits)
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


def clip_of(candidate: Recalibrator, champion: Recalibrator, rows: TrackRows, most: float) -> Clip:
    """Bounds how much a track can say of a candidate, by the parameters of the two recalibrators.

    D = −½ log(det Σ'/det Σ)/K + ½ eᵀ(Σ⁻¹ − Σ'⁻¹)e/K. Where Σ' ⪰ Σ for every input and the means
    are equal, the second term is not negative: a candidate that inflates loses no more than ½ log
    of the geometric mean of its largest factors on the variance, whatever the truth. So wealth can
    be staked on it as a whole, and proof comes several times sooner. The mirror image holds for the
    gain of a candidate that shrinks, whose loss has no bound. Factors are not read off the rows,
    since later rows may get larger ones.

    Σ' = S Σ S ⪰ Σ asks for more than s ≥ 1 where dimensions correlate: ‖R^½ S⁻¹ R^−½‖ ≤ 1 for the
    correlation matrix R. Where all 1/s lie within a ± b, the norm is at most a + b √κ(R).

    rows  of some tracks, for the length of a full one, and whether correlations are sent
    most  B
    """
    full, ours = full_say(rows.counts), _scales(candidate, rows.space.k)
    theirs = _scales(champion, rows.space.k)
    if ours is None or theirs is None:
        return Clip(most, most, most, full)
    joint = list(rows.space.joint)
    lowest, highest = (ours[0] / theirs[1])[joint], (ours[1] / theirs[0])[joint]
    correlated = not rows.sent.diagonal.all()
    loss = float(np.log(highest).mean()) if _grows(lowest, highest, correlated) else most
    gain = -float(np.log(lowest).mean()) if _grows(1 / highest, 1 / lowest, correlated) else most
    return Clip(most, min(most, max(loss, _LEAST)), min(most, max(gain, _LEAST)), full)


def _scales(recalibrator: Recalibrator, k: int) -> tuple[FloatArray, FloatArray] | None:
    """Finds the least and the largest factor on σ of each of K dimensions; None: not known."""
    if recalibrator.k not in (None, k):
        return None
    match recalibrator:
        case Identity():
            return np.ones(k), np.ones(k)
        case VarianceScaling(scale=scale):
            return np.array(scale), np.array(scale)
        case HistogramBinning(factors=curves) | IsotonicStd(factor=curves):
            lowest, highest = (np.array([of(curve) for curve in curves]) for of in (min, max))
            return lowest, highest
        case _:
            return None


def _grows(lowest: FloatArray, highest: FloatArray, correlated: bool) -> bool:
    """Tells whether S Σ S ⪰ Σ for every diagonal S with lowest ≤ s ≤ highest, (K,) both."""
    least, most = 1 / highest.max(), 1 / lowest.min()
    root = np.sqrt(_CONDITION) if correlated else 1.0
    norm = (most + least) / 2 + (most - least) / 2 * root
    return bool(norm <= 1 + _ROUNDING)


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one slice: the recalibrator of before, compared with the champion.

    A candidate is better from the start or not at all; a recalibrator of before may be worse for
    hours, and become better when a fault ends. So a guard bets anew at every track.

    recalibrator  the one that was active before
    clip          how much a track can say: trial.clip_of(recalibrator, champion, …)
    """

    slice: str
    recalibrator: AnyRecalibrator
    clip: Clip
    watch: Watch = field(default_factory=Watch)

    def taken(self, tracks: Sequence[WholeTrack], champion: Recalibrator, limits: Limits) -> Guard:
        """Returns the guard after more tracks of the slice, in the order they ended.

        Tracks on which it makes what cannot be forwarded are no reason for a rollback: after them
        its evidence begins anew.
        """
        if not tracks:
            return self
        rows = rows_of(tracks)
        differences, unsound = mean_differences(rows, self.recalibrator, champion, limits)
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
             last: a fault may end while nobody looks, and the evidence of a long one would outweigh
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
        self, tracks: Sequence[WholeTrack], champion: Recalibrator, limits: Limits, most: float
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
    recalibrator: AnyRecalibrator
    rows: NotNegative = 0.0
