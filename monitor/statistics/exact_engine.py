"""Evaluates recorded detections exactly, from the rows themselves.

For recorded files, where every row is at hand: reliability bins of equal count, of equal width,
or between frozen edges are cut from rows. The live engine keeps micro-bins instead, and shares
only the measures. Rows are sorted once along each axis; all sums over them are then made in one
pass, in an order that depends on nothing but the rows.

A detection may have distributions that are no Gaussians. Likelihood, coverage and quantiles are
then the distribution's own; what asks for a variance, and what a tracker sees of a detection,
stays with the Gaussian that is forwarded of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
from scipy.special import ndtri

from monitor.frames.cholesky import add_up, factorise, log_determinant, positive_definite
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.statistics import measures
from monitor.statistics.clusters import Clusters, effect_by_clusters
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
from monitor.statistics.observations import joint_unit
from monitor.statistics.row_columns import (
    PORTION,
    Levels,
    RowColumns,
    RowReducer,
    portions,
    sorted_by,
)
from monitor.statistics.sparsification import ErrorRanking, Ranked, rank_twice
from monitor.statistics.verdicts import mean_interval, median_ratio

BinningKind = Literal["equal-count", "equal-width", "frozen"]

T = TypeVar("T")
S = TypeVar("S")


class Each(Protocol):
    """Applies a function to values, in their order, as map does."""

    def __call__(self, work: Callable[[S], T], values: Iterable[S], /) -> Iterable[T]: ...


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
        """Adds up micro-bins in the bins of ENCE and QCE and those of UCE, not of equal count.

        i     the dimension, K or −1 for the joint axis
        rows  at least one micro-bin
        axis  (M,) σ, or σ_G, of each
        """
        variance = rows.variance / rows.n
        edges = self.edges(i, float(axis.min()), float(axis.max()))
        squares = self.square_edges(float(variance.min()), float(variance.max()))
        bins = measures.bins_between(rows, axis, edges)
        return bins, bins if squares is None else measures.bins_between(rows, variance, squares)

    def edges(self, i: int, lowest: float, highest: float) -> FloatArray:
        """Lists the edges over σ of axis i, whose values lie between these; not of equal count."""
        if self.frozen is not None:
            return self.frozen[i]
        return self._equal_width(*(self.ends or (lowest, highest)))

    def square_edges(self, lowest: float, highest: float) -> FloatArray | None:
        """Lists the edges of UCE over σ², with the ends squared; None where it shares the bins."""
        if self.frozen is not None:
            return None
        if self.ends is not None:
            lowest, highest = self.ends[0] ** 2, self.ends[1] ** 2
        return self._equal_width(lowest, highest)

    def _equal_width(self, lowest: float, highest: float) -> FloatArray:
        # A constant axis is one bin.
        return np.linspace(lowest, highest, (1 if lowest == highest else self.count) + 1)


# 20 bins of equal count.
EQUAL_COUNT = BinCut()


class Pieces:
    """Sums over rows that are sorted along an axis, in pieces that its bins are put together from.

    Bins are closed on the left, the last one on both sides, unless they are of equal count: these
    are cut wherever the count is reached, the first ones with a row more (Levi et al. 2019,
    section 3), and their edges are the lowest and highest deviation in them.
    """

    def __init__(
        self, cut: BinCut, i: int, deviation: FloatArray, variance: FloatArray, levels: int
    ) -> None:
        """Takes σ and σ² of axis i, (n,), ascending, at least one; and the number of levels τ."""
        n = deviation.size
        self._uce: _Bounds | None = None
        if cut.kind == "equal-count":
            bins = np.arange(min(cut.count, n) + 1)
            at = bins * (n // bins[-1]) + np.minimum(bins, n % bins[-1])
            self._bounds = _Bounds(at, deviation[at[:-1]], deviation[at[1:] - 1])
        else:
            self._bounds = _between(
                deviation, cut.edges(i, float(deviation[0]), float(deviation[-1]))
            )
            squares = cut.square_edges(float(variance[0]), float(variance[-1]))
            self._uce = None if squares is None else _between(variance, squares)
        places = np.append(np.arange(0, n, PORTION), n)
        bounds = [one.at for one in (self._bounds, self._uce) if one is not None]
        self._starts = np.unique(np.concatenate((places, *bounds)))
        self._portions = np.searchsorted(self._starts, places).tolist()
        self._sums = np.zeros((3, self._starts.size - 1))
        self._within = np.zeros((self._starts.size - 1, levels), np.int64)
        self._filled = 0

    def portions(self) -> Iterator[tuple[slice, IntArray]]:
        """Yields rows to be worked on together, and where in them pieces begin."""
        for first, last in pairwise(self._portions):
            starts = self._starts[first:last]
            yield slice(int(starts[0]), int(self._starts[last])), starts - starts[0]

    def add(self, starts: IntArray, columns: Sequence[FloatArray], within: IntArray) -> None:
        """Adds up the next portion.

        columns  variance, squared error and NEES of its rows
        within   (pieces, T) how many rows of each are within the levels
        """
        end = self._filled + starts.size
        for row, column in zip(self._sums, columns, strict=True):
            np.add.reduceat(column, starts, out=row[self._filled : end])
        self._within[self._filled : end] = within
        self._filled = end

    def totals(self) -> list[float]:
        """Gives Σ variance, squared error and NEES of all rows."""
        found: list[float] = self._sums.sum(axis=1).tolist()
        return found

    def within(self) -> IntArray:
        """Counts all rows within the levels, (T,)."""
        found: IntArray = self._within.sum(axis=0)
        return found

    def bins(self) -> ReliabilityBins:
        """Gives the bins of ENCE and QCE."""
        return self._of(self._bounds)

    def uce_bins(self) -> ReliabilityBins:
        """Gives the bins of UCE."""
        return self._of(self._uce or self._bounds)

    def _of(self, bounds: _Bounds) -> ReliabilityBins:
        n, places = np.diff(bounds.at), np.searchsorted(self._starts, bounds.at)
        held = np.flatnonzero(n)
        sums, within = np.zeros((3, n.size)), np.zeros((n.size, self._within.shape[1]), np.int64)
        if held.size:
            first, end = places[held], places[-1]
            sums[:, held] = np.add.reduceat(self._sums[:, :end], first, axis=1)
            within[held] = np.add.reduceat(self._within[:end], first, axis=0)
        variance, squared_error, nees = sums
        return ReliabilityBins(
            lower=bounds.lower,
            upper=bounds.upper,
            n=n,
            variance=variance,
            squared_error=squared_error,
            nees=nees,
            within=within,
            below=int(bounds.at[0]),
            above=int(self._starts[-1] - bounds.at[-1]),
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Bounds:
    """Where B bins begin among sorted rows, and the last one ends, (B + 1,); and their edges."""

    at: IntArray
    lower: FloatArray
    upper: FloatArray


def _between(values: FloatArray, edges: FloatArray) -> _Bounds:
    """Finds where bins between edges (B + 1,) begin among ascending values."""
    at = np.searchsorted(values, edges)
    at[-1] = np.searchsorted(values, edges[-1], side="right")
    return _Bounds(at, edges[:-1], edges[1:])


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
    labelled = np.flatnonzero(np.isfinite(truth).all(axis=1))
    reducer, kept = RowReducer(space, labelled.size), []
    for part in portions(labelled.size):
        rows = labelled[part]
        kept.append(rows[reducer.add(mean[rows], covariance[rows], truth[rows])])
    rows = np.concatenate([*kept, labelled[:0]])
    if rows.size == 0:
        raise EvaluationError(
            f"nothing to evaluate: of {truth.shape[0]} rows, {truth.shape[0] - labelled.size} have "
            f"no truth and {labelled.size} have a mean that is not finite or a "
            "covariance that is not positive definite. Select rows with ground truth."
        )
    found = evaluate_columns(
        reducer.columns(),
        tau=tau,
        cut=cut,
        track=None if cluster is None else cluster[rows],
        shaped=None if shaped is None else (shaped, rows),
        done=done,
    )
    missing = truth.shape[0] - labelled.size
    return replace(found, without_truth=missing, refused=labelled.size - rows.size)


def evaluate_columns(
    columns: RowColumns,
    *,
    tau: FloatArray = TAU,
    cut: BinCut = EQUAL_COUNT,
    rows: IntArray | None = None,
    track: IntArray | None = None,
    clusters: Clusters | None = None,
    shaped: tuple[OwnDistributions, IntArray] | None = None,
    each: Each = map,
    done: Callable[[float], object] = lambda rows: None,
) -> Evaluation:
    """Measures rows that were reduced to columns, at least one; the rest as in evaluate_rows.

    rows      numbers of the rows to measure, n of them; None: all
    track     (n,) of these rows
    clusters  of these tracks; None: they are made here
    shaped    distributions, and which of them (n,) the rows have
    each      works on axes one by one, or several at a time: with equal digits
    """
    space, n = columns.space, columns.n if rows is None else rows.size
    clusters = Clusters.of(n, track) if clusters is None else clusters
    within, own = None, [dict[str, Any]() for _ in space.names]
    if shaped is not None:
        within, own = own_measures(*shaped, tau)

    def measured(i: int) -> DimensionMeasures | JointMeasures:
        if i == space.k:
            axis: DimensionMeasures | JointMeasures = _joint(columns, rows, cut, tau, clusters)
        else:
            ours = None if within is None else within[:, i]
            axis = replace(_dimension(columns, rows, i, cut, tau, clusters, ours), **own[i])
        done(n / (space.k + 1))
        return axis

    *dimensions, joint = each(measured, range(space.k + 1))
    if shaped is not None:
        # The dimensions are taken as independent. Which region of several holds τ is not defined
        # for them (Küppers et al. 2022 give it for Gaussians); NEES is the Gaussian's.
        nll, undefined = [own[i]["nll"] for i in space.joint], np.full_like(tau, np.nan)
        joint = replace(
            joint, nll=float(np.sum(nll)), qce_by_tau=undefined, coverage_by_tau=undefined
        )
    tracks = None if track is None else 0
    if track is not None and clusters.number is not None:
        tracks = clusters.rows.size - int(np.count_nonzero(track < 0))
    named = dict(zip(space.names, cast(list[DimensionMeasures], dimensions), strict=True))
    return Evaluation(n, tau, named, cast(JointMeasures, joint), tracks=tracks)


def _dimension(
    columns: RowColumns,
    rows: IntArray | None,
    i: int,
    cut: BinCut,
    tau: FloatArray,
    clusters: Clusters,
    own_within: BoolArray | None,
) -> DimensionMeasures:
    """Measures one dimension; own_within (n, T) takes the place of NEES ≤ χ²(τ)."""
    variance, error = columns.axis(i, rows)
    n, mean = error.size, float(error.mean())
    bias_interval = mean_interval(error, clusters)
    nees = np.square(error)
    nees /= variance
    effect = effect_by_clusters(nees, clusters)
    typical = median_ratio(nees, 1)
    del nees
    order, variance = sorted_by(variance)
    error = error[order]
    held = None if own_within is None else own_within[order]
    del order
    pieces = Pieces(cut, i, np.sqrt(variance), variance, tau.size)
    levels, central = Levels(ndtri(tau)), Levels(measures.chi_square_quantiles(tau, 1))
    middle = math.sqrt(variance[n // 2])
    # Σ of log σ², CRPS, σ − middle, its square, z⁴; and of the rows between two levels of z.
    sums, between = [], []
    for part, place in pieces.portions():
        v, e = variance[part], error[part]
        sigma, square = np.sqrt(v), e * e
        z, nees = e / sigma, square / v
        if held is None:
            within = central.counts(nees, place)
        else:
            within = np.add.reduceat(held[part], place, axis=0, dtype=np.int64)
        pieces.add(place, (v, square, nees), within)
        crps, off = sigma * measures.normal_crps(z), sigma - middle
        sums.append((np.log(v).sum(), crps.sum(), off.sum(), off @ off, nees @ nees))
        between.append(levels.sums(z, e, sigma))
    bins, uce_bins = pieces.bins(), pieces.uce_bins()
    total_variance, total_square, total_nees = pieces.totals()
    log_variance, crps, off, off_square, fourth = np.sum(sums, axis=0).tolist()
    below, of_error, of_sigma = np.sum(between, axis=0)
    mean_sigma = middle + off / n
    kurtosis = float(measures.kurtosis(n, np.array([total_nees]), np.array([fourth]))[0])
    # Pinball loss ρ_τ(d) = max(τ d, (τ − 1) d), d = truth − (mean + σ Φ⁻¹(τ)): d > 0 where z does
    # not lie below the level.
    quantile = ndtri(tau)
    d_below = of_error[0] - quantile * of_sigma[0]
    d_above = of_error[1] - quantile * of_sigma[1]
    spread = max(off_square - off * off / n, 0.0)
    return DimensionMeasures(
        **measures.binned_measures((bins, uce_bins), cut.fewest_rows, tau, n, kurtosis, effect),
        nll=0.5 * (math.log(2 * math.pi) + (log_variance + total_nees) / n),
        c_v=math.sqrt(spread / (n - 1)) / mean_sigma if n > 1 else math.nan,
        nees_mean=total_nees / n,
        nees_median_ratio=typical,
        mean_sigma=mean_sigma,
        mean_variance=total_variance / n,
        mean_squared_error=total_square / n,
        bias=mean,
        bias_interval=bias_interval,
        crps=crps / n,
        pinball_by_tau=(tau * d_above - (1 - tau) * d_below) / n,
        coverage_by_tau=pieces.within() / n,
        coverage_one_sided_by_tau=below[0] / n,
        ranking=ErrorRanking(partial(_ranked, columns, rows, i)),
    )


def _joint(
    columns: RowColumns, rows: IntArray | None, cut: BinCut, tau: FloatArray, clusters: Clusters
) -> JointMeasures:
    """Measures the joint block."""
    space, k = columns.space, len(columns.space.joint)
    deviation, nees = columns.axis(space.k, rows)
    n = nees.size
    effect = effect_by_clusters(nees / k, clusters)
    log_det = columns.log_det if rows is None else columns.log_det[rows]
    nll = 0.5 * (k * math.log(2 * math.pi) + float(log_det.mean()) + float(nees.mean()))
    typical = median_ratio(nees.copy(), k)
    order, deviation = sorted_by(deviation)
    nees = nees[order]
    del order
    square = np.square(deviation)
    pieces = Pieces(cut, -1, deviation, square, tau.size)
    levels = Levels(measures.chi_square_quantiles(tau, k))
    none = np.zeros(PORTION)
    for part, place in pieces.portions():
        part_nees = nees[part]
        within = levels.counts(part_nees, place)
        pieces.add(place, (square[part], none[: part_nees.size], part_nees), within)
    bins = pieces.bins()
    together = joint_unit(space) is not None
    return JointMeasures(
        k=k,
        n=n,
        n_eff=n / effect,
        nll=nll,
        nees_mean=pieces.totals()[2] / n,
        nees_median_ratio=typical,
        tau=tau,
        qce_by_tau=measures.qce_by_tau(bins.with_rows(cut.fewest_rows), tau),
        coverage_by_tau=pieces.within() / n,
        deviation=(float(deviation[0]), float(deviation[-1]), float(deviation.mean())),
        bins=bins,
        # Errors of several units do not add up.
        ranking=ErrorRanking(partial(_ranked, columns, rows, space.k) if together else None),
    )


def _ranked(columns: RowColumns, rows: IntArray | None, i: int) -> Ranked:
    """Ranks squared errors of dimension i by σ, or of the joint block by σ_G."""
    spread, error = columns.axis(i, rows)
    if i < columns.space.k:
        return rank_twice(np.sqrt(spread), np.square(error))
    total = np.zeros(spread.size)
    for j in columns.space.joint:
        total += np.square(columns.axis(j, rows)[1])
    return rank_twice(spread, total)
