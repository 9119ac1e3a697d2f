"""Evaluates recorded detections exactly, from the rows themselves.

For recorded files, where every row is at hand: reliability bins of equal count, of equal width,
or between frozen edges are cut from rows. The live engine keeps micro-bins instead, and shares
only the measures.

A detection may have distributions that are no Gaussians. Likelihood, coverage and quantiles are
then the distribution's own; what asks for a variance, and what a tracker sees of a detection,
stays with the Gaussian that is forwarded of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from monitor.frames.cholesky import add_up, factorise, log_determinant, positive_definite, whiten
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.statistics import measures
from monitor.statistics.clusters import design_effect_of_rows
from monitor.statistics.measures import (
    TAU,
    BinSums,
    DimensionMeasures,
    Evaluation,
    EvaluationError,
    JointMeasures,
    Marginals,
    ReliabilityBins,
)
from monitor.statistics.observations import axis_degrees, joint_unit
from monitor.statistics.sparsification import ErrorRanking, rank_twice
from monitor.statistics.verdicts import mean_interval, numbered_tracks

BinningKind = Literal["equal-count", "equal-width", "frozen"]

# Rows looked at together: their quantiles at 60 levels and 8 dimensions are 16 MB.
_CHUNK = 4096


def freeze_edges(space: Space, covariance: FloatArray, bins: int) -> tuple[FloatArray, ...]:
    """Cuts reference detections into bins of equal count, their outer ends opened.

    These bins stay as they are whatever comes.

    An edge is the lowest deviation of the bin above it; equal ones are one edge, so that
    fewer than `bins` remain where deviations are equal.

    covariance  (N, K, K); what is not positive definite is left out
    returns     ascending edges from 0 to infinity over σ of each dimension, then over σ_G
    raises      EvaluationError when nothing is left
    """
    order = np.array(space.order)
    factor = factorise(covariance[:, order[:, None], order])
    usable = positive_definite(factor)
    if not usable.any():
        raise EvaluationError(
            f"no edges to freeze: of {covariance.shape[0]} reference rows none has a positive "
            "definite covariance. Give recorded detections with covariances."
        )
    sigma = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)[usable])
    joint = joint_deviation(factor[:, :, usable], len(space.joint))
    return tuple(_open_ended(axis, bins) for axis in (*sigma.T, joint))


def _open_ended(axis: FloatArray, bins: int) -> FloatArray:
    parts = np.array_split(np.sort(axis), min(bins, axis.size))
    inner = np.unique([part[0] for part in parts[1:]])
    return np.concatenate(([0.0], inner, [np.inf]))


def joint_deviation(factor: FloatArray, k: int) -> FloatArray:
    """σ_G = det(Σ)^(1/2K) of the leading K dimensions (Küppers et al. 2022, above eq. 11)."""
    return np.exp(log_determinant(factor, k) / (2 * k))


def generalised_deviation(space: Space, covariance: FloatArray, diagonal: BoolArray) -> FloatArray:
    """σ_G of the joint block of n covariances; NaN where one is not positive definite.

    A detection gets the same bits alone and among others, of both forms.

    covariance  (n, K, K)
    diagonal    (n,) of which there are variances only
    returns     (n,) det(Σ)^(1/2K) over the joint dimensions, in their unit
    source      Küppers et al. 2022, above eq. 11
    """
    joint = np.array(space.joint)
    if diagonal.all():
        return _of_variances(covariance[:, joint, joint])
    block = covariance
    if space.joint != tuple(range(space.k)):
        block = covariance[:, joint[:, None], joint]
    found = joint_deviation(factorise(block), joint.size)
    if diagonal.any():
        found[diagonal] = _of_variances(covariance[diagonal][:, joint, joint])
    return found


def _of_variances(variance: FloatArray) -> FloatArray:
    """exp(Σ log σ² / 2K) of (n, K): without correlations det(Σ) is the product."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logarithm = np.log(np.ascontiguousarray(variance.T))
    # A variance of 0 is as little positive definite as a negative one.
    logarithm[~np.isfinite(logarithm)] = np.nan
    deviation: FloatArray = np.exp(add_up(logarithm) / (2 * variance.shape[1]))
    return deviation


def bins_equal_count(rows: BinSums, bins: int) -> ReliabilityBins:
    """Adds up rows in bins of equal count along the axis; the first ones hold a row more.

    Rows of equal axis keep their order, and may fall on both sides of an edge.
    With fewer rows than bins every row is a bin of its own. Edges are the
    lowest and highest axis value in the bin.

    source   Levi et al. 2019, section 3
    """
    order = np.argsort(rows.lower, kind="stable")
    parts = np.array_split(order, min(bins, order.size)) if order.size else []

    def total(values: FloatArray) -> FloatArray:
        return np.array([values[part].sum() for part in parts])

    counts = [rows.within[part].sum(axis=0) for part in parts]
    return ReliabilityBins(
        lower=np.array([rows.lower[part[0]] for part in parts]),
        upper=np.array([rows.upper[part[-1]] for part in parts]),
        n=np.array([part.size for part in parts], np.int64),
        variance=total(rows.variance),
        squared_error=total(rows.squared_error),
        nees=total(rows.nees),
        within=np.array(counts, np.int64).reshape(-1, rows.within.shape[1]),
    )


@dataclass(frozen=True, eq=False, slots=True)
class BinCut:
    """A way to cut the axes into bins.

    count        at least one
    ends         0 ≤ lo < hi of equal-width bins, in σ (squared for UCE); None = lowest to highest
    frozen       the edges of frozen bins, and of these only: freeze_edges
    fewest_rows  bins with less are left out of ENCE and QCE, and weigh nothing in UCE
    """

    count: int = 20
    kind: BinningKind = "equal-count"
    ends: tuple[float, float] | None = None
    frozen: tuple[FloatArray, ...] | None = None
    fewest_rows: int = 1

    def between_edges(
        self, i: int, rows: BinSums, axis: FloatArray
    ) -> tuple[ReliabilityBins, ReliabilityBins]:
        """Cuts rows into the bins of ENCE and QCE and those of UCE, unless they are of equal count.

        UCE has bins of equal width over σ², with the ends squared; frozen ones are shared.

        i     the dimension, K or −1 for the joint axis
        rows  at least one row, or micro-bin
        axis  (M,) σ, or σ_G, of each
        """
        if self.frozen is not None:
            bins = measures.bins_between(rows, axis, self.frozen[i])
            return bins, bins
        squares = None if self.ends is None else (self.ends[0] ** 2, self.ends[1] ** 2)
        variance = rows.variance / rows.n
        return self._equal_width(rows, axis, self.ends), self._equal_width(rows, variance, squares)

    def _equal_width(
        self, rows: BinSums, axis: FloatArray, ends: tuple[float, float] | None
    ) -> ReliabilityBins:
        lower, upper = ends or (float(axis.min()), float(axis.max()))
        # A constant axis is one bin.
        edges = np.linspace(lower, upper, (1 if lower == upper else self.count) + 1)
        return measures.bins_between(rows, axis, edges)


# 20 bins of equal count.
EQUAL_COUNT = BinCut()


def _cut(cut: BinCut, i: int, rows: BinSums) -> tuple[ReliabilityBins, ReliabilityBins]:
    """Cuts rows along axis i into the bins of ENCE and QCE, and those of UCE."""
    if cut.kind != "equal-count":
        return cut.between_edges(i, rows, rows.lower)
    bins = bins_equal_count(rows, cut.count)
    return bins, bins


@dataclass(frozen=True, slots=True)
class OwnDistributions:
    """The distributions of N rows.

    value         (N, K) truths next to the means that the distributions were made of
    marginals     the distributions of some rows, by their numbers
    has_variance  False where they have none, so that ENCE and UCE are not defined
    """

    value: FloatArray
    marginals: Callable[[IntArray], Marginals]
    has_variance: bool


def own_measures(
    shaped: OwnDistributions, rows: IntArray, tau: FloatArray
) -> tuple[BoolArray, list[dict[str, Any]]]:
    """Measures n rows, at least one; a Gaussian gives its closed forms to rounding.

    The central interval of τ ends at the quantiles of (1 − τ)/2 and (1 + τ)/2, so that the
    test on F is the one on NEES (Küppers et al. 2022, eq. 11) where F is Gaussian.

    returns  (n, K, T) whether the central τ interval holds the truth: |2 F(y) − 1| ≤ τ; and for
             each dimension the fields of DimensionMeasures that are not the Gaussian's, nor
             follow from the former
    """
    levels, place = np.unique([tau, (1 - tau) / 2, (1 + tau) / 2], return_inverse=True)
    at, lower, upper = place.reshape(3, tau.size)
    n, k = rows.size, shaped.value.shape[1]
    within = np.empty((n, k, tau.size), bool)
    nll, crps, sums = np.zeros(k), np.zeros(k), np.zeros((3, k, tau.size))
    for start in range(0, n, _CHUNK):
        part = slice(start, start + _CHUNK)
        value, marginals = shaped.value[rows[part]], shaped.marginals(rows[part])
        nll -= marginals.log_density(value).sum(axis=0)
        crps += marginals.crps(value).sum(axis=0)
        cumulative = marginals.cumulative(value)[:, :, None]
        quantiles = marginals.quantiles(levels).transpose(1, 2, 0)
        # Pinball loss ρ_τ(d) = max(τ d, (τ − 1) d), d = truth − quantile.
        d = value[:, :, None] - quantiles[:, :, at]
        within[part] = np.abs(2 * cumulative - 1) <= tau
        sums[0] += np.maximum(tau * d, (tau - 1) * d).sum(axis=0)
        sums[1] += np.count_nonzero(cumulative <= tau, axis=0)
        sums[2] += (quantiles[:, :, upper] - quantiles[:, :, lower]).sum(axis=0)
    pinball, one_sided, width = sums / n
    of_variance = ("ence", "ence_noise_floor", "ence_noise_floor_gaussian", "uce")
    undefined = {} if shaped.has_variance else dict.fromkeys(of_variance, float("nan"))
    return within, [
        {
            "nll": float(nll[i] / n),
            "crps": float(crps[i] / n),
            "pinball_by_tau": pinball[i],
            "coverage_one_sided_by_tau": one_sided[i],
            "interval_width_by_tau": width[i],
            **undefined,
        }
        for i in range(k)
    ]


def evaluate_rows(
    space: Space,
    mean: FloatArray,
    covariance: FloatArray,
    truth: FloatArray,
    *,
    tau: FloatArray = TAU,
    cut: BinCut = EQUAL_COUNT,
    cluster: IntArray | None = None,
    shaped: OwnDistributions | None = None,
    done: Callable[[float], object] = lambda rows: None,
) -> Evaluation:
    """Measures the rows that have truth.

    ENCE and QCE bin over σ, joint QCE over σ_G = det(Σ)^(1/2K). UCE bins over σ²
    with equal widths, and uses the bins of ENCE otherwise.

    mean, truth  (N, K); a row of truth that is not finite means no truth
    covariance   (N, K, K); rows that are not positive definite are refused and counted
    tau          (T,) confidence levels in (0, 1), at least one
    cut          of its ends: ENCE and QCE leave out the rows beyond them, UCE keeps these in
                 its N, and all other measures take every row, as netcal does
    cluster      (N,) number of the track, along which errors may be correlated; −1 = no track
    shaped       distributions of which the Gaussians are forwarded only; None: these themselves
    done         is told, as the work goes on, of how many further rows are measured
    raises       EvaluationError when no row is left
    """
    labelled = np.isfinite(truth).all(axis=1)
    order = np.array(space.order)
    factor = factorise(covariance[labelled][:, order[:, None], order])
    # A bad covariance is NaN from its first bad pivot on.
    usable = positive_definite(factor) & np.isfinite(mean[labelled]).all(axis=1)
    kept = np.flatnonzero(labelled)[usable]
    if kept.size == 0:
        raise EvaluationError(
            f"nothing to evaluate: of {truth.shape[0]} rows, {np.count_nonzero(~labelled)} have "
            f"no truth and {np.count_nonzero(~usable)} have a mean that is not finite or a "
            "covariance that is not positive definite. Select rows with ground truth."
        )
    factor = factor[:, :, usable]
    error = space.error(truth[kept], mean[kept])
    variance = np.diagonal(covariance, axis1=1, axis2=2)[kept]
    k = len(space.joint)
    nees = np.empty((kept.size, space.k + 1))
    nees[:, :-1] = error * error / variance
    nees[:, -1] = np.square(whiten(factor, error[:, order])[:k]).sum(axis=0)
    track = None if cluster is None else cluster[kept]
    effect = np.ones(space.k + 1)
    if track is not None:
        effect = design_effect_of_rows(nees, axis_degrees(space), track)
    ranking = _rankings(space, error, variance, joint_deviation(factor, k))
    joint = _joint(cut, k, factor, nees[:, -1], tau, effect[-1], ranking[-1])
    share = kept.size / (space.k + 1)
    done(share)
    within = nees[:, :-1, None] <= measures.chi_square_quantiles(tau, 1)
    own: list[dict[str, Any]] = [{} for _ in space.names]
    if shaped is not None:
        within, own = own_measures(shaped, kept, tau)
        # The dimensions are taken as independent. Which region of several holds τ is not defined
        # for them (Küppers et al. 2022 give it for Gaussians); NEES is the Gaussian's.
        nll, undefined = [own[i]["nll"] for i in space.joint], np.full_like(tau, np.nan)
        joint = replace(
            joint, nll=float(np.sum(nll)), qce_by_tau=undefined, coverage_by_tau=undefined
        )
    number, _ = numbered_tracks(kept.size, track)
    dimensions = {}
    for i, name in enumerate(space.names):
        column = variance[:, i], error[:, i], nees[:, i], within[:, i]
        gaussian = _dimension(cut, i, *column, tau, effect[i], number, ranking[i])
        dimensions[name] = replace(gaussian, **own[i])
        done(share)
    return Evaluation(
        rows=kept.size,
        without_truth=int(np.count_nonzero(~labelled)),
        refused=int(np.count_nonzero(~usable)),
        tau=tau,
        dimensions=dimensions,
        joint=joint,
        tracks=None if track is None else int(np.unique(track[track >= 0]).size),
    )


def _rankings(
    space: Space, error: FloatArray, variance: FloatArray, joint_deviation: FloatArray
) -> list[ErrorRanking]:
    """Ranks the errors of n rows by deviation; rows of equal deviation are ties.

    error, variance  (n, K)
    joint_deviation  (n,) σ_G
    returns          of each dimension, then of the joint block
    """
    squares = np.square(error)
    joint = squares[:, list(space.joint)].sum(axis=1)
    axes = [*zip(np.sqrt(variance).T, squares.T, strict=True), (joint_deviation, joint)]
    found = [ErrorRanking(partial(rank_twice, *axis)) for axis in axes]
    # Errors of several units do not add up.
    return found if joint_unit(space) is not None else [*found[:-1], ErrorRanking(None)]


def _median_ratio(nees: FloatArray, k: int) -> float:
    return float(np.median(nees) / measures.chi_square_quantiles(np.array([0.5]), k)[0])


def _dimension(
    cut: BinCut,
    i: int,
    variance: FloatArray,
    error: FloatArray,
    nees: FloatArray,
    within: BoolArray,
    tau: FloatArray,
    effect: float,
    number: IntArray,
    ranking: ErrorRanking,
) -> DimensionMeasures:
    n = error.size
    sigma = np.sqrt(variance)
    squared_error = error * error
    ones = np.ones(n, np.int64)
    bins = _cut(cut, i, BinSums(sigma, sigma, ones, variance, squared_error, nees, within))
    kurtosis = float(measures.kurtosis(n, nees.sum(keepdims=True), (nees @ nees)[None])[0])
    # Pinball loss ρ_τ(d) = max(τ d, (τ − 1) d), d = truth − (mean + σ Φ⁻¹(τ)).
    quantiles = ndtri(tau)
    d = error[:, None] - sigma[:, None] * quantiles
    return DimensionMeasures(
        **measures.binned_measures(bins, cut.fewest_rows, tau, n, kurtosis, effect),
        nll=float(np.mean(0.5 * (np.log(2 * np.pi * variance) + nees))),
        c_v=float(np.std(sigma, ddof=1) / sigma.mean()) if n > 1 else float("nan"),
        nees_mean=float(nees.mean()),
        nees_median_ratio=_median_ratio(nees, 1),
        mean_sigma=float(sigma.mean()),
        mean_variance=float(variance.mean()),
        mean_squared_error=float(squared_error.mean()),
        bias=float(error.mean()),
        bias_interval=mean_interval(error, number),
        crps=float(np.mean(sigma * measures.normal_crps(error / sigma))),
        pinball_by_tau=np.maximum(tau * d, (tau - 1) * d).mean(axis=0),
        coverage_by_tau=within.mean(axis=0),
        coverage_one_sided_by_tau=((error / sigma)[:, None] <= quantiles).mean(axis=0),
        ranking=ranking,
    )


def _joint(
    cut: BinCut,
    k: int,
    factor: FloatArray,
    nees: FloatArray,
    tau: FloatArray,
    effect: float,
    ranking: ErrorRanking,
) -> JointMeasures:
    """Measures of the leading k dimensions of factors in the order Space.order."""
    log_det = log_determinant(factor, k)
    within = nees[:, None] <= measures.chi_square_quantiles(tau, k)
    deviation = joint_deviation(factor, k)
    ones, none = np.ones(nees.size, np.int64), np.zeros_like(nees)
    rows = BinSums(deviation, deviation, ones, deviation**2, none, nees, within)
    bins, _ = _cut(cut, -1, rows)
    return JointMeasures(
        k=k,
        n=nees.size,
        n_eff=nees.size / effect,
        nll=float(np.mean(0.5 * (k * np.log(2 * np.pi) + log_det + nees))),
        nees_mean=float(nees.mean()),
        nees_median_ratio=_median_ratio(nees, k),
        tau=tau,
        qce_by_tau=measures.qce_by_tau(bins.with_rows(cut.fewest_rows), tau),
        coverage_by_tau=within.mean(axis=0),
        deviation=(float(deviation.min()), float(deviation.max()), float(deviation.mean())),
        bins=bins,
        ranking=ranking,
    )
