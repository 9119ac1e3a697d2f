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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Generic, TypeVar

import numpy as np
from annotated_types import Interval
from scipy.special import gammainc

from monitor.frames.detections import Estimates
from monitor.frames.space import BoolArray, FloatArray
from monitor.recalibration.fit_rows import check_errors
from monitor.recalibration.recalibrator import (
    Factors,
    FittedMethod,
    Moments,
    UnfitData,
    as_matrix,
    check_positive_definite,
    checked_order,
)
from monitor.statistics.bins import chi_square
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import quantile_of_histogram, read
from monitor.statistics.stage import StageStatistics

# Winsorised: NEES is cut at this quantile of a calibrated χ²₁.
WINSOR_LEVEL = 0.99

# Enough where only the rows are counted.
_ONE_BIN = BinCut(1)

# Quantile: the central interval whose coverage is matched.
QUANTILE_LEVEL = 0.6827


class Objective(StrEnum):
    """Conditions that a scale can be fitted to satisfy."""

    MEAN = "mean"  # mean NEES = 1: maximum likelihood
    WINSORISED_MEAN = "winsorised-mean"  # mean of NEES cut at its 99 % point, as if calibrated
    QUANTILE = "quantile"  # 68 % of errors within one σ


class FullInput(StrEnum):
    """Ways to recalibrate a full covariance."""

    SCALE = "scale"  # S Σ S: the detector's correlations stay as they are
    WHITEN = "whiten"  # L A Lᵀ, Σ = L Lᵀ: errors that still correlate after whitening are corrected


@dataclass(frozen=True, slots=True)
class Scaled(FittedMethod):
    """Σ' = S Σ S with S = diag(scale).

    scale  K factors on σ, positive
    """

    scale: Factors

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.scale)

    def apply(self, estimates: Estimates) -> Estimates:
        """Scales every dimension by itself; correlations stay."""
        return estimates.rescaled(np.array(self.scale))


Previous = TypeVar("Previous", bound=Scaled, covariant=True)


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

    lowest: float = 1e-3
    highest: float = 1e3

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
        check_positive_definite("correlation", self.correlation, self.k, "scale")
        check_positive_definite("whitened", self.whitened, self.k, "scale")
        object.__setattr__(self, "order", checked_order(self.order, self.k))

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
        covariance = estimates.covariance
        if self.full_input is FullInput.SCALE:
            return estimates.rescaled(np.array(self.scale)).covariance
        order = np.array(self.order)
        factor = np.linalg.cholesky(covariance[:, order[:, None], order])
        whitened = factor @ np.array(self.whitened) @ factor.transpose(0, 2, 1)
        result = np.empty_like(covariance)
        result[:, order[:, None], order] = 0.5 * (whitened + whitened.transpose(0, 2, 1))
        return result


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
