"""Rows of whole tracks, and how recalibrators score on them: what a trial asks of each kind.

Estimates are scored by the log density of truth under the Gaussian that would be forwarded, class
probabilities by the log of the probability of the true class. All that differs between the two
kinds of recalibrators in a trial is here; bets, guards and decisions are the same for both.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, overload

import numpy as np

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.promotion.records import Factor, PolicySettings
from monitor.promotion.tracks import AnyTrack, ClassKind, ClassTrack, WholeTrack
from monitor.recalibration.binned import HistogramBinning, IsotonicStd
from monitor.recalibration.class_probabilities import (
    LEAST,
    ClassIdentity,
    ClassRecalibrator,
    from_probabilities,
)
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.mean_correction import parts_of, with_offset
from monitor.recalibration.recalibrator import (
    Identity,
    Recalibrator,
    fault_of,
    sent_where_unsound,
    sound_rows,
)
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import AnyMethod
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

# The largest condition number of correlation matrices that is reckoned with: two dimensions that
# correlate by 0.98, say.
_CONDITION = 100.0

# Steps of a search, each to two thirds of the range: to 1e-14.
_THIRDS = 80

# Class probabilities add up to 1 within this.
_SUM_OFF = 1e-6

# A bound of what a track can lose, and one of what it can gain; None: none is known.
Bounds = tuple[float | None, float | None]

# What recalibrators make of all rows: estimates, or mean class probabilities (n, C).
Made = TypeVar("Made", Estimates, FloatArray)


class _Rows(ABC, Generic[Made]):
    """Rows of T ≥ 1 tracks of one kind, track after track.

    start     (T,) where each begins
    n         number of rows
    unit      nats that [promotion] clip counts in, of this kind
    tails     dimensions in which a track shows how heavy the tails of its errors are
    shrinking_words  why a proven candidate with smaller factors waits
    """

    __slots__ = ()
    start: IntArray
    shrinking_words: ClassVar[str]

    @property
    @abstractmethod
    def n(self) -> int: ...

    @property
    def counts(self) -> IntArray:
        """Numbers of rows of each track, (T,)."""
        return np.diff(np.append(self.start, self.n))

    def differences(
        self, candidate: AnyMethod, champion: AnyMethod, limits: Limits
    ) -> tuple[FloatArray, str]:
        """Scores what each would have forwarded, candidate minus champion, by track.

        Rows on which the champion fails count as they were sent, as they did in the stream. A
        candidate that fails on any row is not sound.

        limits   of deviations; class probabilities have none
        returns  (T,) nats, of estimates per dimension, mean over the rows of each track; and why
                 the candidate could not have been forwarded on every row, and there are zeros, or
                 '' where it could
        """
        made, unsound = self._attempted(candidate, limits)
        if unsound:
            return np.zeros(self.start.size), unsound
        served = self._forwarded(champion, limits)
        return self.means(self._score(made) - self._score(served)), ""

    def unsound(self, recalibrator: AnyMethod, limits: Limits) -> str:
        """Says why what a recalibrator makes could not be forwarded; '' where it could."""
        return self._attempted(recalibrator, limits)[1]

    @abstractmethod
    def _attempted(self, recalibrator: AnyMethod, limits: Limits) -> tuple[Made, str]:
        """Makes what could be forwarded, and says why any row could not be, or ''."""

    @abstractmethod
    def _forwarded(self, recalibrator: AnyMethod, limits: Limits) -> Made:
        """Makes what an active recalibrator would forward: rows as sent wherever it fails."""

    @abstractmethod
    def _score(self, made: Made) -> FloatArray:
        """Scores each row, (n,) nats; higher is better."""

    def means(self, rows: FloatArray) -> FloatArray:
        """Averages a value of each row over each track; (n, …) in, (T, …) out."""
        total = np.add.reduceat(rows, self.start, axis=0)
        return total / self.counts.reshape(-1, *([1] * (rows.ndim - 1)))


@dataclass(frozen=True, eq=False, slots=True)
class TrackRows(_Rows[Estimates]):
    """Estimates of T ≥ 1 tracks of one space.

    sent, truth  (n, …), (n, K): track after track
    start        (T,) where each begins
    """

    space: Space
    sent: Estimates
    truth: FloatArray
    start: IntArray

    unit: ClassVar[float] = 1.0
    shrinking_words = "it makes covariances smaller"

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.truth.shape[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return self.space.names

    @property
    def tails(self) -> int:
        """Dimensions in which a track shows how heavy the tails of its errors are."""
        return len(self.space.joint)

    @property
    def identity(self) -> Identity:
        """Changes nothing."""
        return Identity()

    def _attempted(self, recalibrator: AnyMethod, limits: Limits) -> tuple[Estimates, str]:
        return outcome_of(_gaussian(recalibrator), self.sent, limits)

    def _forwarded(self, recalibrator: AnyMethod, limits: Limits) -> Estimates:
        return forwarded(_gaussian(recalibrator), self.sent, limits)

    def _score(self, made: Estimates) -> FloatArray:
        error = self.space.error(self.truth, made.mean)
        return np.fmax(joint_log_score(self.space, error, made.covariance), _LOWEST)

    @property
    def claimed(self) -> bool:
        """Tells whether the detector stands for its covariances: not where they are assumed."""
        return not self.space.assumed

    def change(
        self, candidate: AnyMethod, champion: AnyMethod, limits: Limits = ANY_SIZE
    ) -> FloatArray:
        """Divides the variances that two recalibrators make; (3, K) as of `ratios`."""
        both = _gaussian(candidate), _gaussian(champion)
        made, served = (forwarded(one, self.sent, limits) for one in both)
        return ratios(made, served)

    def moved(
        self, candidate: AnyMethod, champion: AnyMethod, limits: Limits = ANY_SIZE
    ) -> FloatArray:
        """Measures how far apart two recalibrators bring means: the mean of (Δ/σ)², (K,).

        Of Gaussians that are right about their mean, mean z² grows by as much with the other mean.
        σ is the champion's.
        """
        both = _gaussian(candidate), _gaussian(champion)
        made, served = (forwarded(one, self.sent, limits) for one in both)
        apart = self.space.error(made.mean, served.mean) / served.deviation
        moved: FloatArray = np.square(apart).mean(axis=0)
        return moved

    def healthy(self, fitted: AnyMethod) -> Recalibrator:
        """Returns what is left of a fit whose factors are noise: its offset, or the identity."""
        return with_offset(parts_of(_gaussian(fitted), self.space.k)[0], Identity())

    def offset_of(self, fitted: AnyMethod) -> str:
        """Says in words what a fit adds to means; '' where that is nothing."""
        offset, _ = parts_of(_gaussian(fitted), self.space.k)
        units = (f" {one.unit}".rstrip() for one in self.space.dimensions)
        pairs = zip(self.names, offset.tolist(), units, strict=True)
        added = ", ".join(f"{by:+.3g}{unit} to {name}" for name, by, unit in pairs if by)
        return f"it adds {added}" if added else ""

    def factors(self, recalibrator: AnyMethod) -> tuple[Factor, ...]:
        """Divides the variances that are made by those sent, by dimension."""
        return factors(forwarded(_gaussian(recalibrator), self.sent), self.sent, self.names)

    def said(self, found: Sequence[Factor], within: tuple[float, float] | None = None) -> str:
        """Says in words what factors are, all within a band or not."""
        listed = ", ".join(f"{factor.dimension} {factor.typical:.3g}" for factor in found)
        if within is None:
            return f"factors on the variance: {listed}"
        return f"every factor on the variance lies within {within[0]:g} … {within[1]:g}: {listed}"

    def band(self, policy: PolicySettings) -> tuple[float, float]:
        """Factors that are left alone."""
        return policy.band

    def bounds(self, candidate: AnyMethod, champion: AnyMethod) -> Bounds:
        """Bounds what a track can lose and gain by a candidate, in nats per dimension.

        D = −½ log(det Σ'/det Σ)/K + ½ eᵀ(Σ⁻¹ − Σ'⁻¹)e/K. Where Σ' ⪰ Σ for every input and the
        means are equal, the second term is not negative: a candidate that inflates loses no more
        than ½ log of the geometric mean of its largest factors on the variance, whatever the truth.
        So wealth can be staked on it as a whole, and proof comes several times sooner. The mirror
        image holds for the gain of a candidate that shrinks, whose loss has no bound. Factors are
        not read off the rows, since later rows may get larger ones.

        Σ' = S Σ S ⪰ Σ asks for more than s ≥ 1 where dimensions correlate: ‖R^½ S⁻¹ R^−½‖ ≤ 1 for
        the correlation matrix R. Where all 1/s lie within a ± b, the norm is at most a + b √κ(R).
        """
        k, joint = self.space.k, list(self.space.joint)
        (shift, after), (other, before) = (
            parts_of(_gaussian(one), k) for one in (candidate, champion)
        )
        # With other means nothing bounds what a row loses or gains.
        same = shift.shape == other.shape and bool((shift == other)[joint].all())
        ours, theirs = (_scales(one, k) if same else None for one in (after, before))
        if ours is None or theirs is None:
            return None, None
        lowest, highest = (ours[0] / theirs[1])[joint], (ours[1] / theirs[0])[joint]
        correlated = not self.sent.diagonal.all()
        loss = float(np.log(highest).mean()) if _grows(lowest, highest, correlated) else None
        grows = _grows(1 / highest, 1 / lowest, correlated)
        return loss, -float(np.log(lowest).mean()) if grows else None


@dataclass(frozen=True, eq=False, slots=True)
class ClassTrackRows(_Rows[FloatArray]):
    """Class probabilities of T ≥ 1 tracks of one kind.

    log_probabilities  (n, M, C) as sent, track after track
    label              (n,) true class
    start              (T,) where each begins
    """

    kind: ClassKind
    log_probabilities: FloatArray
    label: IntArray
    start: IntArray

    # Classes have no tails.
    tails: ClassVar[int] = 0
    claimed: ClassVar[bool] = True
    shrinking_words = "it makes the detector surer of its classes"

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.label.size)

    @property
    def unit(self) -> float:
        """log C: the loss of softening by any temperature is less."""
        return float(np.log(len(self.kind.names)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.kind.names

    @property
    def identity(self) -> ClassIdentity:
        """Changes nothing."""
        return ClassIdentity()

    def _attempted(self, recalibrator: AnyMethod, limits: Limits) -> tuple[FloatArray, str]:
        made, sound, fault = self._made(_of_classes(recalibrator))
        count = int(np.count_nonzero(~sound))
        if count and not fault:
            fault = f"made what are no probabilities, of {count} of {self.n} detections"
        return made, fault

    def _forwarded(self, recalibrator: AnyMethod, limits: Limits) -> FloatArray:
        made, sound, _ = self._made(_of_classes(recalibrator))
        return made if sound.all() else np.where(sound[:, None], made, self._made(self.identity)[0])

    def _score(self, made: FloatArray) -> FloatArray:
        """Scores log p̂_y of the mean p̂ = 1/M Σ_m of recalibrated opinions, at least log LEAST.

        source  Laves et al. 2019, eq. 25; Gneiting & Raftery 2007, section 4.1 (LogS)
        """
        score: FloatArray = np.log(np.maximum(made[np.arange(self.n), self.label], LEAST))
        return score

    def _made(self, recalibrator: ClassRecalibrator) -> tuple[FloatArray, BoolArray, str]:
        """Makes mean probabilities (n, C); (n,) where they are sound; and why all of them fail."""
        try:
            made = recalibrator.apply(self.log_probabilities)
            fault = ""
            if made.shape != self.log_probabilities.shape:
                fault = f"made the shape {made.shape} of {self.log_probabilities.shape}"
        except Exception as error:
            # Whatever goes wrong in a method is a finding about it.
            fault = f"fails: {in_words(error)}"
        if fault:
            return np.zeros((self.n, len(self.names))), np.zeros(self.n, np.bool_), fault
        mean: FloatArray = made.mean(axis=1)
        sums_to_1 = np.abs(mean.sum(axis=1) - 1) <= _SUM_OFF
        return mean, sums_to_1 & (mean >= 0).all(axis=1), ""

    def change(
        self, candidate: AnyMethod, champion: AnyMethod, limits: Limits = ANY_SIZE
    ) -> FloatArray:
        """Divides the temperatures of two recalibrators; (3, 1).

        Of a method that has none nothing is known: it may do anything, so that it is always a
        change, and may always make the detector surer.
        """
        ours, theirs = temperature_of(candidate), temperature_of(champion)
        if ours is None or theirs is None:
            return np.array([[0.0], [1.0], [np.inf]])
        return np.full((3, 1), ours / theirs)

    def moved(
        self, candidate: AnyMethod, champion: AnyMethod, limits: Limits = ANY_SIZE
    ) -> FloatArray:
        """Returns 0: classes have no mean; (1,)."""
        return np.zeros(1)

    def healthy(self, fitted: AnyMethod) -> ClassIdentity:
        """Returns what is left of a fit whose temperature is noise: the identity."""
        return self.identity

    def offset_of(self, fitted: AnyMethod) -> str:
        """Returns '': classes have no mean."""
        return ""

    def factors(self, recalibrator: AnyMethod) -> tuple[Factor, ...]:
        """Returns the temperature; none for a method that has none."""
        found = temperature_of(recalibrator)
        return () if found is None else (Factor("temperature", found, found, found),)

    def said(self, found: Sequence[Factor], within: tuple[float, float] | None = None) -> str:
        """Says in words what the temperature is, within a band or not."""
        (temperature,) = (f"{factor.typical:.3g}" for factor in found)
        if within is None:
            return f"temperature: {temperature}"
        return f"the temperature {temperature} lies within {within[0]:g} … {within[1]:g}"

    def band(self, policy: PolicySettings) -> tuple[float, float]:
        """Temperatures that are left alone."""
        return policy.class_band

    def bounds(self, candidate: AnyMethod, champion: AnyMethod) -> Bounds:
        """Bounds what a track can lose and gain by a candidate, in nats; see most_lost."""
        ours, theirs = temperature_of(candidate), temperature_of(champion)
        if ours is None or theirs is None:
            return None, None
        t, classes = ours / theirs, len(self.kind.names)
        return (most_lost(t, classes), None) if t >= 1 else (None, most_lost(1 / t, classes))


AnyRows = TrackRows | ClassTrackRows


@overload
def rows_of(tracks: Sequence[WholeTrack]) -> TrackRows: ...
@overload
def rows_of(tracks: Sequence[ClassTrack]) -> ClassTrackRows: ...
@overload
def rows_of(tracks: Sequence[AnyTrack]) -> AnyRows: ...
def rows_of(tracks: Sequence[AnyTrack]) -> AnyRows:
    """Joins the rows of at least one track, all of one kind and space."""
    counts = np.array([track.n for track in tracks])
    start, first = np.cumsum(counts) - counts, tracks[0]
    if isinstance(first, ClassTrack):
        of_classes = [track for track in tracks if isinstance(track, ClassTrack)]
        joined = np.concatenate([track.probabilities for track in of_classes])
        label = np.concatenate([track.label for track in of_classes])
        return ClassTrackRows(first.kind, from_probabilities(joined), label, start)
    estimates = of_space(tracks)
    sent = Estimates.joined([track.sent for track in estimates])
    truth = np.concatenate([track.truth for track in estimates])
    return TrackRows(first.space, sent, truth, start)


def of_space(tracks: Sequence[AnyTrack]) -> list[WholeTrack]:
    """Returns those of estimates."""
    return [track for track in tracks if isinstance(track, WholeTrack)]


def _gaussian(recalibrator: AnyMethod) -> Recalibrator:
    assert isinstance(recalibrator, Recalibrator), f"{recalibrator.method} is of classes"
    return recalibrator


def _of_classes(recalibrator: AnyMethod) -> ClassRecalibrator:
    assert isinstance(recalibrator, ClassRecalibrator), f"{recalibrator.method} is of estimates"
    return recalibrator


def temperature_of(recalibrator: AnyMethod) -> float | None:
    """Returns what a class recalibrator divides log-probabilities by; None: it does more."""
    match recalibrator:
        case ClassIdentity():
            return 1.0
        case Temperature(temperature=temperature):
            return temperature
        case _:
            return None


def most_lost(t: float, classes: int) -> float:
    """Bounds what a temperature loses that is t ≥ 1 times that of the champion, in nats a row.

    Of the champion's probabilities p, the candidate makes q_i = p_i^a / Σ p_j^a with a = 1/t. What
    a row with the true class y loses is

        log p_y/q_y = log(p_y + p_y^(1 − a) Σ_(j≠y) p_j^a)
                    ≤ log g(p_y), g(x) = x + ((C − 1) x)^(1 − a) (1 − x)^a,

    by Jensen's inequality, z^a being concave: the other C − 1 classes have 1 − p_y together. So no
    row of whatever truth loses more than log max g, which is reached where the others are equal. It
    is less than (1 − a) log C, since Σ p_j^a ≤ C^(1 − a) and p_y^a ≥ p_y. Means over opinions
    keep p_y/q_y below it, and so does a floor under p and q; so does the mean over a track.

    With the two exchanged, a temperature that is t times lower gains no more than that. What it
    loses has no bound but that of the floor.
    """
    # g is concave: a line and a weighted geometric mean of x and 1 − x. It is searched by thirds,
    # and what is lost by stopping early is of second order, and added.
    a, low, high = 1 / t, 0.0, 1.0

    def g(x: float) -> float:
        power: float = ((classes - 1) * x) ** (1 - a) * (1 - x) ** a
        return x + power

    for _ in range(_THIRDS):
        third = (high - low) / 3
        if g(low + third) < g(high - third):
            low += third
        else:
            high -= third
    return float(np.log(g((low + high) / 2))) + _ROUNDING


# ---- estimates


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
