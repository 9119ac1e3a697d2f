"""The exact batch engine: measures of calibration computed from the rows themselves.

For recorded files, where every row is at hand. The live engine keeps micro-bins instead,
and shares only the measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from monitor.calibration import measures
from monitor.calibration.cholesky import factorise, log_determinant, whiten
from monitor.calibration.evaluation import (
    TAU,
    DimensionMeasures,
    Evaluation,
    EvaluationError,
    JointMeasures,
)
from monitor.calibration.measures import ReliabilityBins, chi_square_quantiles
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space

BinningKind = Literal["equal-count", "equal-width"]


def bins_equal_width(
    axis: FloatArray,
    variance: FloatArray,
    squared_error: FloatArray,
    nees: FloatArray,
    within: BoolArray,
    lower: float,
    upper: float,
    bins: int,
) -> ReliabilityBins:
    """Sums over bins of equal width on [lower, upper].

    Bins are closed on the left, the last one on both sides. Rows outside are
    dropped. lower = upper gives a single bin, so a constant axis is no error.

    axis, variance, squared_error, nees  (N,)
    within                               (N, T) whether NEES is within the χ²(τ) quantile
    """
    if lower == upper:
        bins = 1
    edges = np.linspace(lower, upper, bins + 1)
    index = np.searchsorted(edges, axis, side="right") - 1
    index[axis == upper] = bins - 1
    inside = (index >= 0) & (index < bins)
    cell: IntArray = index[inside]

    def total(values: FloatArray) -> FloatArray:
        return np.bincount(cell, values[inside], bins).astype(np.float64, copy=False)

    counts = [np.bincount(cell[column], minlength=bins) for column in within[inside].T]
    return ReliabilityBins(
        lower=edges[:-1],
        upper=edges[1:],
        n=np.bincount(cell, minlength=bins),
        variance=total(variance),
        squared_error=total(squared_error),
        nees=total(nees),
        within=np.array(counts, np.int64).reshape(-1, bins).T,
    )


def bins_equal_count(
    axis: FloatArray,
    variance: FloatArray,
    squared_error: FloatArray,
    nees: FloatArray,
    within: BoolArray,
    bins: int,
) -> ReliabilityBins:
    """Sums over bins of equal count along the axis; the first ones hold a row more.

    Rows of equal axis keep their order, and may fall on both sides of an edge.
    With fewer rows than bins every row is a bin of its own. Edges are the
    lowest and highest axis value in the bin.

    source   Levi et al. 2019
    """
    order = np.argsort(axis, kind="stable")
    parts = np.array_split(order, min(bins, order.size)) if order.size else []

    def total(values: FloatArray) -> FloatArray:
        return np.array([values[part].sum() for part in parts])

    counts = [within[part].sum(axis=0) for part in parts]
    return ReliabilityBins(
        lower=np.array([axis[part[0]] for part in parts]),
        upper=np.array([axis[part[-1]] for part in parts]),
        n=np.array([part.size for part in parts], np.int64),
        variance=total(variance),
        squared_error=total(squared_error),
        nees=total(nees),
        within=np.array(counts, np.int64).reshape(-1, within.shape[1]),
    )


def evaluate_rows(
    space: Space,
    mean: FloatArray,
    covariance: FloatArray,
    truth: FloatArray,
    *,
    tau: FloatArray = TAU,
    bins: int = 20,
    binning: BinningKind = "equal-count",
    value_range: tuple[float, float] | None = None,
) -> Evaluation:
    """Every measure of the rows that have truth.

    ENCE and QCE bin over σ, joint QCE over σ_G = det(Σ)^(1/2K). UCE bins over σ²
    with equal widths, and uses the bins of ENCE with equal counts.

    mean, truth  (N, K); a row of truth that is not finite means no truth
    covariance   (N, K, K); rows that are not positive definite are refused and counted
    tau          (T,) confidence levels in (0, 1)
    value_range  ends of equal-width bins in σ (squared for UCE); None = lowest to highest.
                 ENCE and QCE leave out the rows beyond it, UCE keeps them in its N, and
                 all other measures take every row, as netcal does
    raises       EvaluationError when no row is left, or the bins make no sense
    """
    cut = _Cut(binning, bins, value_range)
    _check_tau(tau)
    labelled = np.isfinite(truth).all(axis=1)
    order = np.array(space.order)
    factor = factorise(covariance[labelled][:, order[:, None], order])
    # A bad covariance is NaN from its first bad pivot on.
    usable = np.isfinite(factor[-1, -1]) & np.isfinite(mean[labelled]).all(axis=1)
    kept = np.flatnonzero(labelled)[usable]
    if kept.size == 0:
        raise EvaluationError(
            f"nothing to evaluate: of {truth.shape[0]} rows, {np.count_nonzero(~labelled)} have "
            f"no truth and {np.count_nonzero(~usable)} have a mean that is not finite or a "
            "covariance that is not positive definite. Select rows with ground truth."
        )
    error = space.error(truth[kept], mean[kept])
    variance = np.diagonal(covariance, axis1=1, axis2=2)[kept]
    return Evaluation(
        rows=kept.size,
        without_truth=int(np.count_nonzero(~labelled)),
        refused=int(np.count_nonzero(~usable)),
        tau=tau,
        dimensions={
            name: _dimension(cut, variance[:, i], error[:, i], tau)
            for i, name in enumerate(space.names)
        },
        joint=_joint(cut, len(space.joint), factor[:, :, usable], error[:, order], tau),
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """How an axis is cut into bins."""

    kind: BinningKind
    count: int
    ends: tuple[float, float] | None

    def __post_init__(self) -> None:
        if self.kind not in ("equal-count", "equal-width"):
            raise EvaluationError(
                f"binning {self.kind!r} is unknown. Use equal-count or equal-width."
            )
        if self.count < 1:
            raise EvaluationError(f"bins is {self.count}. Use at least one.")
        if self.ends is None:
            return
        if self.kind == "equal-count":
            raise EvaluationError(
                f"range {self.ends[0]:g}:{self.ends[1]:g} has no meaning for bins of equal count. "
                "Use the range of the data, or equal-width bins."
            )
        if not 0 <= self.ends[0] < self.ends[1] < np.inf:
            raise EvaluationError(
                f"range {self.ends[0]:g}:{self.ends[1]:g} is not a range of deviations. "
                "Give 0 <= lo < hi."
            )

    def squared(self) -> _Cut:
        """The same cut for an axis of variances."""
        if self.ends is None:
            return self
        return _Cut(self.kind, self.count, (self.ends[0] ** 2, self.ends[1] ** 2))

    def bins(
        self,
        axis: FloatArray,
        variance: FloatArray,
        squared_error: FloatArray,
        nees: FloatArray,
        within: BoolArray,
    ) -> ReliabilityBins:
        """Bins of the rows along the axis."""
        rows = (axis, variance, squared_error, nees, within)
        if self.kind == "equal-count":
            return bins_equal_count(*rows, self.count)
        lower, upper = self.ends or (float(axis.min()), float(axis.max()))
        return bins_equal_width(*rows, lower, upper, self.count)


def _check_tau(tau: FloatArray) -> None:
    if tau.size == 0 or not ((tau > 0) & (tau < 1)).all():
        raise EvaluationError(f"tau {tau.tolist()} must be levels between 0 and 1, at least one.")


def _dimension(
    cut: _Cut, variance: FloatArray, error: FloatArray, tau: FloatArray
) -> DimensionMeasures:
    sigma = np.sqrt(variance)
    squared_error = error * error
    nees = squared_error / variance
    within = nees[:, None] <= chi_square_quantiles(tau, 1)
    rows = (variance, squared_error, nees, within)
    bins = cut.bins(sigma, *rows)
    uce_bins = bins if cut.kind == "equal-count" else cut.squared().bins(variance, *rows)
    # Pinball loss ρ_τ(d) = max(τ d, (τ − 1) d), d = truth − (mean + σ Φ⁻¹(τ)).
    d = error[:, None] - sigma[:, None] * ndtri(tau)
    return DimensionMeasures(
        ence=measures.ence(bins),
        ence_noise_floor=measures.ence_noise_floor(bins),
        uce=measures.uce(uce_bins, n=error.size),
        nll=float(np.mean(0.5 * (np.log(2 * np.pi * variance) + nees))),
        c_v=float(np.std(sigma, ddof=1) / sigma.mean()) if sigma.size > 1 else float("nan"),
        nees_mean=float(nees.mean()),
        qce_by_tau=measures.qce_by_tau(bins, tau),
        pinball_by_tau=np.maximum(tau * d, (tau - 1) * d).mean(axis=0),
        picp_by_tau=within.mean(axis=0),
        std_scaling=float(np.sqrt(nees.mean())),
        bias=float(error.mean()),
        bins=bins,
    )


def _joint(
    cut: _Cut, k: int, factor: FloatArray, error: FloatArray, tau: FloatArray
) -> JointMeasures:
    """Measures of the leading k dimensions; factor and error in the order Space.order."""
    log_det = log_determinant(factor, k)
    nees = np.square(whiten(factor, error)[:k]).sum(axis=0)
    within = nees[:, None] <= chi_square_quantiles(tau, k)
    # σ_G = det(Σ)^(1/2K), Küppers et al. 2022, above eq. 11
    deviation = np.exp(log_det / (2 * k))
    bins = cut.bins(deviation, deviation**2, np.zeros_like(nees), nees, within)
    chi_square_median = float(chi_square_quantiles(np.array([0.5]), k)[0])
    return JointMeasures(
        k=k,
        nll=float(np.mean(0.5 * (k * np.log(2 * np.pi) + log_det + nees))),
        nees_mean=float(nees.mean()),
        nees_median_ratio=float(np.median(nees)) / chi_square_median,
        qce_by_tau=measures.qce_by_tau(bins, tau),
        coverage_by_tau=within.mean(axis=0),
        tau=tau,
        bins=bins,
    )
