"""Cholesky factors of many small covariances at once, and whitening with them.

Arrays are (K, K, N): the loop runs over K, the arithmetic over all N detections,
and a covariance that is not positive definite becomes NaN without touching its
neighbours (LAPACK's batch call raises for the whole frame instead).
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import FloatArray

# A pivot this small against its diagonal is zero but for rounding: singular.
SINGULAR = 1e-12


def is_diagonal(covariance: FloatArray) -> bool:
    """Whether every covariance of a batch (N, K, K) with positive diagonals is diagonal."""
    n, k = covariance.shape[:2]
    return bool(np.count_nonzero(covariance) == n * k)


def factorise(covariance: FloatArray) -> FloatArray:
    """Lower factors L with L Lᵀ = Σ, (K, K, N); above the diagonal unspecified.

    covariance  (N, K, K), symmetric
    returns     column NaN from the first pivot that is not positive
    """
    n, k = covariance.shape[:2]
    a: FloatArray = np.array(np.moveaxis(covariance, 0, -1), order="C", copy=True)
    if n == 0:
        return a
    smallest = SINGULAR * a[np.arange(k), np.arange(k)]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for j in range(k):
            pivot = a[j, j]
            pivot[~(pivot > smallest[j])] = np.nan
            np.sqrt(pivot, out=pivot)
            if j + 1 < k:
                column = a[j + 1 :, j]
                column /= pivot
                a[j + 1 :, j + 1 :] -= column[:, None] * column[None]
    return a


def log_determinant(factor: FloatArray, k: int) -> FloatArray:
    """log det of the leading k × k block of each covariance, (N,)."""
    leading = np.arange(k)
    result: FloatArray = 2.0 * np.log(factor[leading, leading]).sum(axis=0)
    return result


def whiten(factor: FloatArray, error: FloatArray) -> FloatArray:
    """L⁻¹ r for each detection, (K, N), by forward substitution.

    factor  (K, K, N) from factorise
    error   (N, K) in the same order of dimensions
    """
    u: FloatArray = np.array(error.T, order="C", copy=True)
    k = u.shape[0]
    for j in range(k):
        u[j] /= factor[j, j]
        if j + 1 < k:
            u[j + 1 :] -= factor[j + 1 :, j] * u[j]
    return u
