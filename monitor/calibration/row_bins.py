"""Reliability bins cut from rows: of equal count, of equal width, or between frozen edges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from monitor.calibration.cholesky import add_up, factorise, log_determinant
from monitor.calibration.evaluation import EvaluationError
from monitor.calibration.measures import ReliabilityBins
from monitor.calibration.space import BoolArray, FloatArray, Space

BinningKind = Literal["equal-count", "equal-width", "frozen"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What is summed in the bins of one axis.

    axis, variance, squared_error, nees  (N,)
    within                               (N, T) whether NEES is within the χ²(τ) quantile
    """

    axis: FloatArray
    variance: FloatArray
    squared_error: FloatArray
    nees: FloatArray
    within: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class FrozenEdges:
    """Bins that stay as they are whatever comes: B + 1 ascending edges from 0 to infinity.

    dimensions  over σ, one array for each dimension
    joint       over σ_G = det(Σ)^(1/2K)
    """

    dimensions: tuple[FloatArray, ...]
    joint: FloatArray


def freeze_edges(space: Space, covariance: FloatArray, bins: int) -> FrozenEdges:
    """The equal-count bins of reference detections, their outer ends opened.

    An edge is the lowest deviation of the bin above it; equal ones are one edge, so that
    fewer than `bins` remain where deviations are equal.

    covariance  (N, K, K); what is not positive definite is left out
    raises      EvaluationError when nothing is left
    """
    order = np.array(space.order)
    factor = factorise(covariance[:, order[:, None], order])
    usable = np.isfinite(factor[-1, -1])
    if not usable.any():
        raise EvaluationError(
            f"no edges to freeze: of {covariance.shape[0]} reference rows none has a positive "
            "definite covariance. Give recorded detections with covariances."
        )
    sigma = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)[usable])
    return FrozenEdges(
        dimensions=tuple(_open_ended(column, bins) for column in sigma.T),
        joint=_open_ended(joint_deviation(factor[:, :, usable], len(space.joint)), bins),
    )


def _open_ended(axis: FloatArray, bins: int) -> FloatArray:
    parts = np.array_split(np.sort(axis), min(bins, axis.size))
    inner = np.unique([part[0] for part in parts[1:]])
    return np.concatenate(([0.0], inner, [np.inf]))


def joint_deviation(factor: FloatArray, k: int) -> FloatArray:
    """σ_G = det(Σ)^(1/2K) of the leading K dimensions (Küppers et al. 2022, above eq. 11)."""
    deviation: FloatArray = np.exp(log_determinant(factor, k) / (2 * k))
    return deviation


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


def bins_between(rows: Rows, edges: FloatArray) -> ReliabilityBins:
    """Sums over the bins between ascending edges (B + 1,), empty bins included.

    Bins are closed on the left, the last one on both sides. Rows beyond the outer edges
    are in no bin, and counted.
    """
    bins = edges.size - 1
    index = np.searchsorted(edges, rows.axis, side="right") - 1
    index[rows.axis == edges[-1]] = bins - 1
    inside = (index >= 0) & (index < bins)
    cell = index[inside]

    def total(values: FloatArray) -> FloatArray:
        return np.bincount(cell, values[inside], bins).astype(np.float64, copy=False)

    counts = [np.bincount(cell[column], minlength=bins) for column in rows.within[inside].T]
    return ReliabilityBins(
        lower=edges[:-1],
        upper=edges[1:],
        n=np.bincount(cell, minlength=bins),
        variance=total(rows.variance),
        squared_error=total(rows.squared_error),
        nees=total(rows.nees),
        within=np.array(counts, np.int64).reshape(-1, bins).T,
        below=int(np.count_nonzero(rows.axis < edges[0])),
        above=int(np.count_nonzero(rows.axis > edges[-1])),
    )


def bins_equal_count(rows: Rows, bins: int) -> ReliabilityBins:
    """Sums over bins of equal count along the axis; the first ones hold a row more.

    Rows of equal axis keep their order, and may fall on both sides of an edge.
    With fewer rows than bins every row is a bin of its own. Edges are the
    lowest and highest axis value in the bin.

    source   Levi et al. 2019, section 3
    """
    order = np.argsort(rows.axis, kind="stable")
    parts = np.array_split(order, min(bins, order.size)) if order.size else []

    def total(values: FloatArray) -> FloatArray:
        return np.array([values[part].sum() for part in parts])

    counts = [rows.within[part].sum(axis=0) for part in parts]
    return ReliabilityBins(
        lower=np.array([rows.axis[part[0]] for part in parts]),
        upper=np.array([rows.axis[part[-1]] for part in parts]),
        n=np.array([part.size for part in parts], np.int64),
        variance=total(rows.variance),
        squared_error=total(rows.squared_error),
        nees=total(rows.nees),
        within=np.array(counts, np.int64).reshape(-1, rows.within.shape[1]),
    )


def equal_width_edges(lower: float, upper: float, bins: int) -> FloatArray:
    """Edges of bins of equal width; lower = upper gives one bin, so a constant is no error."""
    edges: FloatArray = np.linspace(lower, upper, (1 if lower == upper else bins) + 1)
    return edges


@dataclass(frozen=True, slots=True)
class Cut:
    """How the axes are cut into bins.

    ends         of equal-width bins, in σ; None = lowest to highest
    frozen       the edges of frozen bins
    fewest_rows  that a bin holds, if it is to count
    """

    kind: BinningKind
    count: int
    ends: tuple[float, float] | None = None
    frozen: FrozenEdges | None = None
    fewest_rows: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("equal-count", "equal-width", "frozen"):
            raise EvaluationError(
                f"binning {self.kind!r} is unknown. Use equal-count, equal-width or frozen."
            )
        if self.count < 1:
            raise EvaluationError(f"bins is {self.count}. Use at least one.")
        if (self.frozen is not None) != (self.kind == "frozen"):
            raise EvaluationError(
                f"binning {self.kind} goes {'with' if self.kind == 'frozen' else 'without'} "
                "edges. Freeze the edges of a reference for frozen bins, and for these only."
            )
        if self.ends is None:
            return
        if self.kind != "equal-width":
            raise EvaluationError(
                f"range {self.ends[0]:g}:{self.ends[1]:g} has no meaning for bins of "
                f"{self.kind.replace('-', ' ')}. Use the range of the data, or equal-width bins."
            )
        if not 0 <= self.ends[0] < self.ends[1] < np.inf:
            raise EvaluationError(
                f"range {self.ends[0]:g}:{self.ends[1]:g} is not a range of deviations. "
                "Give 0 <= lo < hi."
            )

    def dimension(self, i: int, rows: Rows) -> tuple[ReliabilityBins, ReliabilityBins]:
        """The bins of ENCE and QCE, over σ, and those of UCE.

        UCE has bins of equal width over σ², with the ends squared; others are shared.
        """
        bins = self._bins(rows, self.ends, self.frozen.dimensions[i] if self.frozen else None)
        if self.kind != "equal-width":
            return bins, bins
        squared = replace(rows, axis=rows.variance)
        ends = None if self.ends is None else (self.ends[0] ** 2, self.ends[1] ** 2)
        return bins, self._bins(squared, ends, None)

    def joint(self, rows: Rows) -> ReliabilityBins:
        """The bins over σ_G."""
        return self._bins(rows, self.ends, self.frozen.joint if self.frozen else None)

    def _bins(
        self, rows: Rows, ends: tuple[float, float] | None, edges: FloatArray | None
    ) -> ReliabilityBins:
        if self.kind == "equal-count":
            return bins_equal_count(rows, self.count)
        if edges is None:
            lower, upper = ends or (float(rows.axis.min()), float(rows.axis.max()))
            edges = equal_width_edges(lower, upper, self.count)
        return bins_between(rows, edges)
