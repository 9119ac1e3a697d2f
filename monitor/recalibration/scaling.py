"""Scalings of covariances in closed form, from sums over the errors.

The factor on σ makes normalised errors have their nominal size, by one of three objectives. On
heavy tails no Gaussian scale satisfies both NEES and coverage, so the objective is the user's
choice.

Variance scaling has one factor on σ for each dimension (Levi et al. 2019, section 3.1).
Covariance scaling has the correlation of the errors too: a detector that sends variances is given
the correlations of the normalised residuals; one that sends covariances has their size corrected,
and on request their shape.

With few rows a scaling leans on a prior: an earlier fit, or that of the wider slice. And no factor
goes beyond a clamp.

It forgets exponentially in event time. What it remembers is part of its document, so that it can
go on; a fit is the value after it has followed all tracks of some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from typing import Annotated, ClassVar, Generic, TypeVar

import numpy as np
from annotated_types import Interval
from scipy.special import gammainc

from monitor.frames.detections import Estimates
from monitor.frames.marks import NotNegative, Positive
from monitor.frames.space import BoolArray, FloatArray
from monitor.frames.words import FullInput, Objective
from monitor.recalibration.fit_rows import FitRows, check_errors, numbered_objects, prepared
from monitor.recalibration.methods import LARGEST_FACTOR, LEAST_FACTOR, TIME_CONSTANT_S
from monitor.recalibration.recalibrator import (
    Factors,
    Moments,
    PerDimension,
    Recalibrator,
    UnfitData,
    as_matrix,
)
from monitor.statistics.bins import chi_square
from monitor.statistics.clusters import LARGEST
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import quantile_of_histogram, read
from monitor.statistics.state import StageStatistics

# Winsorised: NEES is cut at this quantile of a calibrated χ²₁.
WINSOR_LEVEL = 0.99

# Enough where only the rows are counted.
_ONE_BIN = BinCut(1)

# Quantile: the central interval whose coverage is matched.
QUANTILE_LEVEL = 0.6827


@dataclass(frozen=True, slots=True)
class Scaled(PerDimension):
    """Σ' = S Σ S with S = diag(scale).

    scale  K factors on σ, positive
    """

    scale: Factors

    def apply(self, estimates: Estimates) -> Estimates:
        """Scales every dimension by itself; correlations stay."""
        return estimates.rescaled(np.array(self.scale))


Previous = TypeVar("Previous", bound=Recalibrator, covariant=True)


@dataclass(frozen=True, slots=True)
class Prior(Generic[Previous]):
    """An earlier fit, or that of a wider slice, and how many rows it counts for.

    previous  over the same dimensions as the rows
    strength  effective rows n₀ > 0: with as many of its own, a fit lies halfway
    """

    previous: Previous
    strength: float = 30.0


@dataclass(frozen=True, slots=True)
class Clamp:
    """The range of factors on σ.

    A factor at its end says that units, matches or the selection of rows are wrong, rather than
    the detector: see reached().
    """

    lowest: float = LEAST_FACTOR
    highest: float = LARGEST_FACTOR

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.highest < float("inf"):
            raise ValueError(
                f"factors cannot be clamped to {self.lowest} … {self.highest}: "
                "give two positive numbers, the lower first."
            )

    def of(self, factor: FloatArray) -> FloatArray:
        """Cuts factors to the range."""
        return np.clip(factor, self.lowest, self.highest)

    def reached(self, model: Scaled) -> tuple[bool, ...]:
        """Tells which dimensions of a model were fitted to an end of the range."""
        return tuple(not self.lowest < factor < self.highest for factor in model.scale)


WIDE = Clamp()
WideFactor = Annotated[float, Interval(ge=WIDE.lowest, le=WIDE.highest)]


@dataclass(frozen=True, slots=True)
class VarianceScaling(Scaled):
    """Scaled with factors in closed form.

    objective  what they satisfy
    """

    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "variance-scaling"
    by_rows: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CovarianceScaling(Scaled):
    """Σ' = S D C D S for variances, S Σ S or L A Lᵀ for covariances.

    correlation  (K, K) C, about zero, of z = r/σ: of the residuals, not of the truth
    whitened     (K, K) A = mean of (L⁻¹r)(L⁻¹r)ᵀ, in the order `order`
    order        the dimensions in the order they are whitened in; ascending where none is given
    """

    correlation: Moments
    whitened: Moments
    order: tuple[int, ...] = ()
    full_input: FullInput = FullInput.SCALE
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "covariance-scaling"

    def __post_init__(self) -> None:
        self.check_positive_definite("correlation", self.k, "scale")
        self.check_positive_definite("whitened", self.k, "scale")
        self.complete_order(self.order, self.k)

    @property
    def keeps_definite(self) -> bool:
        """Says no where it whitens: L A Lᵀ is as near to singular as Σ and A together."""
        return self.full_input is FullInput.SCALE

    def apply(self, estimates: Estimates) -> Estimates:
        """Makes full covariances of variances; covariances stay so."""
        diagonal = estimates.diagonal
        covariance = by_form(estimates, diagonal, self._estimated, self._recalibrated)
        return Estimates(estimates.mean, covariance, np.zeros_like(diagonal))

    def _estimated(self, estimates: Estimates) -> FloatArray:
        s, deviation = np.array(self.scale), estimates.deviation
        shape = np.array(self.correlation) * (s[:, None] * s)
        # The outer product first: it is symmetric to the last bit, and stays so.
        covariance: FloatArray = (deviation[:, :, None] * deviation[:, None, :]) * shape
        return covariance

    def _recalibrated(self, estimates: Estimates) -> FloatArray:
        if self.full_input is FullInput.SCALE:
            return estimates.rescaled(np.array(self.scale)).covariance
        factor = np.linalg.cholesky(permuted(estimates.covariance, self.order))
        whitened = factor @ np.array(self.whitened) @ factor.transpose(0, 2, 1)
        symmetric = 0.5 * (whitened + whitened.transpose(0, 2, 1))
        return permuted(symmetric, np.argsort(self.order).tolist())


def permuted(covariance: FloatArray, order: Sequence[int]) -> FloatArray:
    """Puts rows and columns of covariances (n, K, K) into another order."""
    if list(order) == sorted(order):
        return covariance
    places = np.asarray(order)
    return covariance[:, places[:, None], places]


def by_form(
    estimates: Estimates,
    alone: BoolArray,
    estimated: Callable[[Estimates], FloatArray],
    recalibrated: Callable[[Estimates], FloatArray],
) -> FloatArray:
    """Makes covariances (n, K, K) of estimates whose forms need different functions.

    alone         (n,) rows that have variances alone
    estimated     covariances of those rows
    recalibrated  covariances of the other rows
    """
    if alone.all():
        return estimated(estimates)
    if not alone.any():
        return recalibrated(estimates)
    covariance = np.empty_like(estimates.covariance)
    covariance[alone] = estimated(estimates.take(alone))
    covariance[~alone] = recalibrated(estimates.take(~alone))
    return covariance


def fit_scale(statistics: StageStatistics, objective: Objective) -> FloatArray:
    """Fits the factor on σ of each dimension, (K,).

    mean: s_d = sqrt(mean NEES_d), the maximum of the likelihood (Levi et al.
    2019, eq. 12; its print has three misprints: √(2π s σ) for √(2π) s σ, T/2 log s
    for T log s, and a minus for the plus before the last sum). The other two are
    read off the NEES histogram, whose bins are 4 % wide.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    nees = np.diagonal(statistics.normalised)
    check_errors(statistics.space, statistics.n, nees > 0)
    mean_nees = nees / statistics.n
    if objective is Objective.MEAN:
        return np.sqrt(mean_nees)
    histogram_scale = _winsorised if objective is Objective.WINSORISED_MEAN else _quantile
    return np.sqrt([histogram_scale(statistics, i) for i in range(statistics.space.k)])


def _quantile(statistics: StageStatistics, i: int) -> float:
    counts = statistics.histogram(i)
    quantile = quantile_of_histogram(statistics.binning.nees, counts, QUANTILE_LEVEL)
    return quantile / chi_square((QUANTILE_LEVEL,), 1).item()


def _winsorised(statistics: StageStatistics, i: int) -> float:
    """The v with mean min(NEES/v, c) = E min(χ²₁, c); found by bisection on log v."""
    counts = statistics.histogram(i).astype(np.float64)
    lower, upper = statistics.binning.nees.bounds
    centre = np.sqrt(np.maximum(lower, upper[0] / 2) * np.minimum(upper, lower[-1] * 2))
    cut = chi_square((WINSOR_LEVEL,), 1).item()
    # E[χ²₁; χ²₁ ≤ c] = F_3(c)
    expected = float(gammainc(1.5, cut / 2)) + cut * (1.0 - WINSOR_LEVEL)
    low, high = np.log(centre[0]) - 1.0, np.log(centre[-1]) + 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        mean = float((counts * np.minimum(centre / np.exp(middle), cut)).sum() / counts.sum())
        low, high = (middle, high) if mean > expected else (low, middle)
    return float(np.exp(0.5 * (low + high)))


def own_share(statistics: StageStatistics, strength: float) -> FloatArray:
    """n / (n + n₀) for the effective rows n of each dimension, and of all jointly; (K + 1,).

    The sums hold squared errors that were cut at 64 σ² row by row. Where σ is too small by so
    much that most are beyond, rows of one object look independent, and n is too high.
    """
    found = read(statistics, _ONE_BIN)
    worth = [found.dimensions[name].n_eff for name in statistics.space.names]
    rows = np.array([*worth, found.joint.n_eff])
    return rows / (rows + strength)


def shrunk_scale(scale: FloatArray, before: tuple[float, ...], share: FloatArray) -> FloatArray:
    """log s ← (n log s + n₀ log s₀) / (n + n₀), dimension by dimension; (K,).

    It is where the likelihood of log s, a parabola of curvature 2n about the fit, meets a
    Gaussian about the prior that n₀ such rows would have made.

    share  (K,) from own_share
    """
    return np.exp(share * np.log(scale) + (1 - share) * np.log(before))


def clamped_matrix(matrix: FloatArray, clamp: Clamp) -> FloatArray:
    """Brings the roots of the eigenvalues of A into the range; unchanged where they are in it.

    Where errors are whitened with L, L A Lᵀ then has a deviation within the range of that of
    L Lᵀ in every direction, not in the dimensions alone. Positive definite as before.
    """
    values, vectors = np.linalg.eigh(matrix)
    root = np.sqrt(values)
    within = clamp.of(root)
    if np.array_equal(within, root):
        return matrix
    half = vectors * within
    clamped: FloatArray = half @ half.T
    return 0.5 * (clamped + clamped.T)


def fit_variance_scaling(
    statistics: StageStatistics,
    objective: Objective = Objective.MEAN,
    prior: Prior[Scaled] | None = None,
    clamp: Clamp = WIDE,
) -> VarianceScaling:
    """Fits in closed form from the sums, draws to the prior, then clamps. Raises UnfitData."""
    scale = fit_scale(statistics, objective)
    if prior is not None:
        share = own_share(statistics, prior.strength)
        scale = shrunk_scale(scale, prior.previous.scale, share[:-1])
    return VarianceScaling(tuple(clamp.of(scale).tolist()), objective)


def fit_covariance_scaling(
    statistics: StageStatistics,
    objective: Objective = Objective.MEAN,
    full_input: FullInput = FullInput.SCALE,
    prior: Prior[CovarianceScaling] | None = None,
    clamp: Clamp = WIDE,
) -> CovarianceScaling:
    """Fits in closed form from the sums, draws towards the prior, and then clamps.

    Raises UnfitData where the rows, with the prior, do not span all dimensions, since a
    correlation of 1 would make a covariance that no tracker can invert.
    """
    scale = fit_scale(statistics, objective)
    moment = statistics.normalised / statistics.n
    size = np.sqrt(np.diagonal(moment))
    correlation = moment / (size[:, None] * size)
    whitened = statistics.whitened / statistics.n
    if objective is not Objective.MEAN:
        whitened = whitened * (np.exp(2 * np.mean(np.log(scale / size))))
    if prior is not None:
        before, share = prior.previous, own_share(statistics, prior.strength)
        scale = shrunk_scale(scale, before.scale, share[:-1])
        if before.order != statistics.space.order:
            raise UnfitData(
                f"the prior whitens dimensions in the order {before.order}, and the rows are "
                f"whitened in the order {statistics.space.order}: give a fit over the same space."
            )
        # (n A + n₀ A₀)/(n + n₀) with one share for a whole matrix, the least of all: positive
        # definite where A₀ is, however few the rows, and a unit diagonal stays one.
        own = float(share.min())
        correlation = own * correlation + (1 - own) * np.array(before.correlation)
        whitened = own * whitened + (1 - own) * np.array(before.whitened)
    for name, matrix in (("correlation", correlation), ("whitened errors", whitened)):
        if np.linalg.eigvalsh(matrix)[0] <= 1e-9 * np.trace(matrix) / len(matrix):
            raise UnfitData(
                f"the {name} of {statistics.n} rows over {statistics.space.names} are singular: "
                f"{statistics.space.k} dimensions need more rows with independent errors. "
                "Use variance-scaling or more data."
            )
    return CovarianceScaling(
        tuple(clamp.of(scale).tolist()),
        as_matrix(correlation),
        as_matrix(clamped_matrix(whitened, clamp)),
        statistics.space.order,
        full_input,
        objective,
    )


# In time constants: a track that ended so long before the newest, while labels come less than one
# late, is of a clock that was set back.
_SET_BACK = 10.0

# Limits of documents: sums beyond are no sums over tracks, and their quotients would overflow.
_MOST_TRACKS, _LARGEST_SUM = 1e15, 1e30

# Tracks that "nothing is wrong" counts for where there is no other prior.
PRIOR_TRACKS = 3.0

# The share of labels that have come by the delay that a fit sees.
_DELAY_LEVEL = 0.95

# In σ: no error is larger, so that its square is finite.
_LARGEST_ERROR = 1e100


@dataclass(frozen=True, slots=True)
class AdaptiveScaling(Scaled):
    """Scaled, with the memory that the next tracks are added to.

    time_constant_s  τ, s of event time in which the weight of a track falls to 1/e
    delay_s          how late the labels came, s; below τ, else UnfitData
    ended_s          event time of the end of the newest track, s
    tracks           W = Σ exp(−age/τ): how many tracks are remembered
    nees             K sums Σ exp(−age/τ) × mean z² of a track, z = error/σ as sent
    prior_scale      K factors on σ that count for prior_tracks more, of any age
    """

    time_constant_s: Positive
    delay_s: NotNegative
    ended_s: float
    tracks: Annotated[float, Interval(ge=0.0, le=_MOST_TRACKS)]
    nees: tuple[Annotated[float, Interval(ge=0.0, le=_LARGEST_SUM)], ...]
    prior_scale: tuple[WideFactor, ...]
    prior_tracks: Annotated[float, Interval(ge=1e-100, le=1e100)]
    method: ClassVar[str] = "adaptive-scaling"

    def __post_init__(self) -> None:
        self.check_entries(("nees", "prior_scale"), self.k, "scale")
        if not self.delay_s < self.time_constant_s:
            raise UnfitData(
                f"labels come {self.delay_s:g} s late, and the time constant is "
                f"{self.time_constant_s:g} s: what they say would be forgotten before it could "
                "serve. Choose a time constant that is long against the delay, bring labels "
                "earlier, or use variance-scaling."
            )


def followed(
    scaling: AdaptiveScaling,
    nees: FloatArray,
    ended_s: FloatArray,
    delay_s: float,
    votes: FloatArray | None = None,
) -> AdaptiveScaling:
    """Adds T new whole tracks to the scaling, taken in the order in which they ended.

    s² = (n₀ s₀² + Σ v x)/(n₀ + Σ v), v = exp(−age/τ), x the mean z² of a track: where much is
    remembered, the maximum of the likelihood (Levi et al. 2019, eq. 12) under exponential
    forgetting; where little is, the prior. x is cut at 64 s², or at 64 where s is below 1: a gross
    outlier is one track, and σ that are off by any factor are found within a few. A track that
    ended before the newest counts for its age, and takes nothing from the newer ones; one that
    ended more than ten time constants before says that the clock was set back: what is remembered
    is then as old as that track.

    nees     (T, K) mean of the squared normalised errors of each dimension, as sent; no NaN
    ended_s  (T,) event time of the last detection of each; finite
    delay_s  how late their labels came, at most; from 0 on
    votes    (T,) what each counts for, in [0, 1]; None: one each
    raises   UnfitData where the delay is not below the time constant
    """
    if ended_s.size == 0:
        return scaling
    time_constant_s, newest_s = scaling.time_constant_s, scaling.ended_s
    tracks, total = scaling.tracks, np.array(scaling.nees)
    prior, prior_tracks = np.square(scaling.prior_scale), scaling.prior_tracks

    def scale() -> FloatArray:
        return WIDE.of(np.sqrt((prior_tracks * prior + total) / (prior_tracks + tracks)))

    order = np.argsort(ended_s, kind="stable")
    shares = np.ones(ended_s.size) if votes is None else votes
    of_each = zip(nees[order], ended_s[order].tolist(), shares[order].tolist(), strict=True)
    for x, at_s, share in of_each:
        if newest_s - at_s > _SET_BACK * time_constant_s:
            newest_s = at_s
        later_s = at_s - newest_s
        fade = exp(-max(later_s, 0.0) / time_constant_s)
        vote = share * exp(min(later_s, 0.0) / time_constant_s)
        tracks, total = fade * tracks, fade * total
        cut = LARGEST * np.maximum(np.square(scale()), 1.0)
        tracks, total = tracks + vote, total + vote * np.minimum(x, cut)
        newest_s = max(newest_s, at_s)
    return replace(
        scaling,
        scale=tuple(scale().tolist()),
        delay_s=delay_s,
        ended_s=newest_s,
        tracks=tracks,
        nees=tuple(total.tolist()),
    )


def fit_adaptive_scaling(
    rows: FitRows,
    time_constant_s: float = TIME_CONSTANT_S,
    prior: Prior[Scaled] | None = None,
) -> AdaptiveScaling:
    """Returns the scaling after it has followed all tracks of the rows.

    rows    with event times and delays of their truth; the delay seen is the 95 % quantile
    prior   what few tracks are drawn towards, over the same dimensions, its strength in tracks;
            None: factors of 1 that count for three
    raises  UnfitData without rows or times, where a dimension has no error, and unless the time
            constant exceeds the delay
    """
    rows = prepared(rows)
    time_s, delay_s = rows.time_s, rows.delay_s
    if time_s is None or not np.isfinite(time_s).all():
        raise UnfitData(
            "adaptive scaling weighs tracks by their age, and there are rows without a time: give "
            "every row its t or stamp_ns, or use variance-scaling."
        )
    assert delay_s is not None, "rows with times have delays"
    # A clock that is a little ahead makes no label early.
    delay = max(0.0, float(np.quantile(delay_s, _DELAY_LEVEL)))
    k = rows.space.k
    before = np.ones(k) if prior is None else WIDE.of(np.array(prior.previous.scale))
    nees, ended_s = track_means(rows, time_constant_s)
    prior_scale = tuple(before.tolist())
    start = AdaptiveScaling(
        scale=prior_scale,
        time_constant_s=time_constant_s,
        delay_s=delay,
        ended_s=float(ended_s.min()),
        tracks=0.0,
        nees=(0.0,) * k,
        prior_scale=prior_scale,
        prior_tracks=PRIOR_TRACKS if prior is None else prior.strength,
    )
    return followed(start, nees, ended_s, delay)


def track_means(rows: FitRows, time_constant_s: float) -> tuple[FloatArray, FloatArray]:
    """Averages z² of each track and dimension, (T, K), and tells when each ended, (T,), in s.

    A car that stands beside the road for minutes is one track: within it too, what is older than
    its end by a time constant counts for 1/e. A row without a track is one of its own.

    rows  as `prepared` sorts them
    """
    rows = rows.take(np.argsort(np.asarray(rows.time_s), kind="stable"))
    time_s = np.asarray(rows.time_s)
    index, tracks = numbered_objects(rows.track)
    ended_s = np.full(tracks, -inf)
    np.maximum.at(ended_s, index, time_s)
    weight = np.exp((time_s - ended_s[index]) / time_constant_s)
    z = np.clip(rows.error / rows.deviation, -_LARGEST_ERROR, _LARGEST_ERROR)
    sums = np.column_stack([np.bincount(index, weight * column) for column in np.square(z).T])
    return sums / np.bincount(index, weight)[:, None], ended_s
