"""Measures of calibration, computed from the bins of a reliability diagram.

Where the bins come from (rows, micro-bins, a merge of many replicas) does not
matter here: every function takes sums per bin and returns numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from monitor.calibration.space import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class ReliabilityBins:
    """Sums over the detections of each of B bins, on one axis.

    lower, upper   (B,) edges on the axis, in its unit
    n              (B,) detections
    variance       (B,) sum of predicted variances, unit²
    squared_error  (B,) sum of squared errors, unit²; zeros on the joint axis
    nees           (B,) sum of normalised squared errors, dimensionless
    within         (B, T) how many have nees within the χ²(τ) quantile
    """

    lower: FloatArray
    upper: FloatArray
    n: IntArray
    variance: FloatArray
    squared_error: FloatArray
    nees: FloatArray
    within: IntArray


def ence(bins: ReliabilityBins) -> float:
    """Expected normalised calibration error.

    ENCE = mean over occupied bins of |RMV − RMSE| / RMV. Dimensionless: 0 is
    calibrated, 0.1 is off by a tenth of the predicted deviation.

    returns  NaN where no truth has arrived
    source   Levi et al. 2019, eq. 8
    """
    occupied = bins.n > 0
    if not occupied.any():
        return float("nan")
    # n cancels: sqrt(V/n) and sqrt(Q/n).
    rmv = np.sqrt(bins.variance[occupied])
    rmse = np.sqrt(bins.squared_error[occupied])
    return float(np.mean(np.abs(rmv - rmse) / rmv))


def ence_noise_floor(bins: ReliabilityBins) -> float:
    """What ENCE reads on calibrated, independent, Gaussian errors: sqrt(B / (π n)).

    B counts the occupied bins. NaN where no truth has arrived.
    """
    n = int(bins.n.sum())
    if n == 0:
        return float("nan")
    return float(np.sqrt(np.count_nonzero(bins.n) / (np.pi * n)))


def uce(bins: ReliabilityBins, n: int | None = None) -> float:
    """Uncertainty calibration error: Σ_b n_b/N · |MSE_b − MV_b|, in unit².

    n        the N to divide by; by default the rows in the bins
    returns  NaN where no truth has arrived
    source   Küppers et al. 2022, eq. 9
    """
    total = int(bins.n.sum()) if n is None else n
    if total == 0:
        return float("nan")
    return float(np.sum(np.abs(bins.squared_error - bins.variance)) / total)


def qce_by_tau(bins: ReliabilityBins, tau: FloatArray) -> FloatArray:
    """Quantile calibration error, conditional on the bin, for each τ.

    QCE(τ) = Σ_b n_b/N · |fraction of bin b with NEES ≤ χ²_K(τ) − τ|. (T,);
    NaN where no truth has arrived.

    source   Küppers et al. 2022, eq. 12
    """
    total = bins.n.sum()
    if total == 0:
        return np.full(tau.shape, np.nan)
    gap = np.abs(bins.within - bins.n[:, None] * tau)
    result: FloatArray = gap.sum(axis=0) / total
    return result


def chi_square_quantiles(tau: FloatArray, k: int) -> FloatArray:
    """χ²_k quantiles of τ: the squared radius of the central region that holds τ; (T,)."""
    # The inverse of F(x) = P(k/2, x/2); scipy.stats would double the time to start.
    result: FloatArray = 2.0 * gammaincinv(k / 2, np.asarray(tau, dtype=np.float64))
    return result
