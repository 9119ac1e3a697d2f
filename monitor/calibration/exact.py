"""The exact batch engine: measures of calibration computed from the rows themselves.

For recorded files, where every row is at hand. The live engine keeps micro-bins instead,
and shares only the measures.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from monitor.calibration import measures, noise_floor
from monitor.calibration.cholesky import factorise, log_determinant, whiten
from monitor.calibration.clusters import design_effect_of_rows
from monitor.calibration.evaluation import (
    TAU,
    DimensionMeasures,
    Evaluation,
    EvaluationError,
    JointMeasures,
)
from monitor.calibration.measures import chi_square_quantiles
from monitor.calibration.row_bins import BinningKind, Cut, FrozenEdges, Rows, joint_deviation
from monitor.calibration.shaped import Shaped, own_dimension, own_joint, own_measures
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space


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
    edges: FrozenEdges | None = None,
    fewest_rows: int = 1,
    cluster: IntArray | None = None,
    shaped: Shaped | None = None,
) -> Evaluation:
    """Every measure of the rows that have truth.

    ENCE and QCE bin over σ, joint QCE over σ_G = det(Σ)^(1/2K). UCE bins over σ²
    with equal widths, and uses the bins of ENCE otherwise.

    mean, truth  (N, K); a row of truth that is not finite means no truth
    covariance   (N, K, K); rows that are not positive definite are refused and counted
    tau          (T,) confidence levels in (0, 1)
    value_range  ends of equal-width bins in σ (squared for UCE); None = lowest to highest.
                 ENCE and QCE leave out the rows beyond it, UCE keeps them in its N, and
                 all other measures take every row, as netcal does
    edges        of frozen bins: freeze_edges
    fewest_rows  bins with less are left out of ENCE and QCE, and weigh nothing in UCE
    cluster      (N,) number of the track, along which errors may be correlated; −1 = no track
    shaped       distributions of which the Gaussians are forwarded only; None: these themselves
    raises       EvaluationError when no row is left, or the bins make no sense
    """
    cut = Cut(binning, bins, value_range, edges, fewest_rows)
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
        degrees = np.append(np.ones(space.k), k)
        effect = design_effect_of_rows(nees, degrees, track)
    own = None if shaped is None else own_measures(shaped, kept, tau)
    dimensions = {}
    for i, name in enumerate(space.names):
        within = (
            nees[:, i, None] <= chi_square_quantiles(tau, 1) if own is None else own.within[:, i]
        )
        found = _dimension(cut, i, variance[:, i], error[:, i], nees[:, i], within, tau, effect[i])
        dimensions[name] = found if own is None else own_dimension(found, own, i)
    joint = _joint(cut, k, factor, nees[:, -1], tau, effect[-1])
    return Evaluation(
        rows=kept.size,
        without_truth=int(np.count_nonzero(~labelled)),
        refused=int(np.count_nonzero(~usable)),
        tau=tau,
        dimensions=dimensions,
        joint=joint if own is None else own_joint(joint, own, space.joint),
        tracks=None if track is None else int(np.unique(track[track >= 0]).size),
    )


def _check_tau(tau: FloatArray) -> None:
    """Raises EvaluationError unless all are levels."""
    if tau.size == 0 or not ((tau > 0) & (tau < 1)).all():
        raise EvaluationError(f"tau {tau.tolist()} must be levels between 0 and 1, at least one.")


def _median_ratio(nees: FloatArray, k: int) -> float:
    return float(np.median(nees) / chi_square_quantiles(np.array([0.5]), k)[0])


def _dimension(
    cut: Cut,
    i: int,
    variance: FloatArray,
    error: FloatArray,
    nees: FloatArray,
    within: BoolArray,
    tau: FloatArray,
    effect: float,
) -> DimensionMeasures:
    n = error.size
    sigma = np.sqrt(variance)
    squared_error = error * error
    bins, uce_bins = cut.dimension(i, Rows(sigma, variance, squared_error, nees, within))
    counted = bins.with_rows(cut.fewest_rows)
    kurtosis = float(noise_floor.kurtosis(n, nees.sum(keepdims=True), (nees @ nees)[None])[0])
    # Pinball loss ρ_τ(d) = max(τ d, (τ − 1) d), d = truth − (mean + σ Φ⁻¹(τ)).
    quantiles = ndtri(tau)
    d = error[:, None] - sigma[:, None] * quantiles
    return DimensionMeasures(
        n=n,
        n_eff=n / effect,
        kurtosis=kurtosis,
        ence=measures.ence(counted),
        ence_noise_floor=noise_floor.ence_noise_floor(counted, kurtosis, effect),
        ence_noise_floor_gaussian=noise_floor.ence_noise_floor_gaussian(counted),
        uce=measures.uce(uce_bins.with_rows(cut.fewest_rows), n=n),
        nll=float(np.mean(0.5 * (np.log(2 * np.pi * variance) + nees))),
        c_v=float(np.std(sigma, ddof=1) / sigma.mean()) if n > 1 else float("nan"),
        nees_mean=float(nees.mean()),
        nees_median_ratio=_median_ratio(nees, 1),
        mean_sigma=float(sigma.mean()),
        mean_variance=float(variance.mean()),
        mean_squared_error=float(squared_error.mean()),
        bias=float(error.mean()),
        tau=tau,
        qce_by_tau=measures.qce_by_tau(counted, tau),
        pinball_by_tau=np.maximum(tau * d, (tau - 1) * d).mean(axis=0),
        picp_by_tau=within.mean(axis=0),
        coverage_one_sided_by_tau=((error / sigma)[:, None] <= quantiles).mean(axis=0),
        bins=bins,
        uce_bins=uce_bins,
    )


def _joint(
    cut: Cut, k: int, factor: FloatArray, nees: FloatArray, tau: FloatArray, effect: float
) -> JointMeasures:
    """Measures of the leading k dimensions of factors in the order Space.order."""
    log_det = log_determinant(factor, k)
    within = nees[:, None] <= chi_square_quantiles(tau, k)
    deviation = joint_deviation(factor, k)
    bins = cut.joint(Rows(deviation, deviation**2, np.zeros_like(nees), nees, within))
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
    )
