"""Cholesky factors of all covariances of a frame at once.

Arrays are (K, K, N): the loop runs over K, the arithmetic over all N detections,
and a covariance that is not positive definite becomes NaN without touching its
neighbours (LAPACK's batch call raises for the whole frame instead).
"""

from __future__ import annotations

import numpy as np

from monitor import native
from monitor.frames.space import BoolArray, FloatArray, above_diagonal, square_from_triangle

# A pivot this small against its diagonal is zero but for rounding: singular.
SINGULAR = 1e-12


def is_diagonal(covariance: FloatArray) -> bool:
    """Tells whether every covariance of a batch (N, K, K), all variances positive, is diagonal."""
    n, k = covariance.shape[:2]
    # A batch with correlations usually has them in its first covariance.
    if np.count_nonzero(covariance[:1]) > k:
        return False
    return bool(np.count_nonzero(covariance) == n * k)


def factorise(covariance: FloatArray) -> FloatArray:
    """Computes the lower factors L with L Lᵀ = Σ, (K, K, N), zero above the diagonal.

    covariance  (N, K, K), symmetric
    returns     the last pivot is NaN where Σ is not positive definite
    """
    k = covariance.shape[1]
    lower = np.zeros((k, k, covariance.shape[0]))
    put_lower(covariance, tuple(range(k)), lower)
    factorise_lower(lower)
    return lower


def put_lower(covariance: FloatArray, order: tuple[int, ...], out: FloatArray) -> None:
    """Lays out the lower triangles of covariances (N, K, K) for factorise_lower.

    order  of the dimensions in `out`
    out    (K, K, N); written on and below the diagonal only
    """
    n, k = covariance.shape[:2]
    flat, places = covariance.reshape(n, k * k), np.array(order)
    for i in range(k):
        # The columns of a row of the triangle lie side by side: a copy of strips is fast.
        columns = slice(i * k, i * k + i + 1)
        if order != tuple(range(k)):
            columns = places[i] * k + places[: i + 1]
        out[i, : i + 1] = flat[:, columns].T


def factorise_lower(a: FloatArray, kernels: native.Kernels | None = native.kernels) -> None:
    """Turns lower triangles (K, K, N) into their Cholesky factors, in place; see factorise."""
    if kernels is not None and a.flags.c_contiguous:
        kernels.factorise_lower(a, SINGULAR)
        return
    k = a.shape[0]
    step = np.arange(k)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        smallest = SINGULAR * a[step, step]
        for j in range(k):
            # The root of a negative pivot is NaN, and so are all pivots after it.
            np.sqrt(a[j, j], out=a[j, j])
            column = a[j + 1 :, j]
            column /= a[j, j]
            # The whole square in one call: what is above the diagonal is anything until the end.
            a[j + 1 :, j + 1 :] -= column[:, None] * column
        pivot = a[step, step]
        regular = (pivot * pivot > smallest).all(axis=0)
    a[-1, -1, ~regular] = np.nan
    a[above_diagonal(k)] = 0.0


def pivots(packed: FloatArray, k: int, order: tuple[int, ...]) -> FloatArray:
    """Computes the diagonals of the Cholesky factors of covariances, (N, K).

    packed   (N, K (K + 1) / 2) lower triangles
    order    of the dimensions in which they are factorised
    returns  NaN in the last column where Σ is not positive definite
    """
    place = square_from_triangle(k).reshape(k, k)[np.ix_(order, order)]
    lower = np.zeros((k, k, packed.shape[0]))
    for i in range(k):
        lower[i, : i + 1] = packed[:, place[i, : i + 1]].T
    factorise_lower(lower)
    step = np.arange(k)
    return np.ascontiguousarray(lower[step, step].T)


def positive_definite(factor: FloatArray) -> BoolArray:
    """Tells which covariances had a factor, (N,)."""
    definite: BoolArray = np.isfinite(factor[-1, -1])
    return definite


def log_determinant(factor: FloatArray, k: int) -> FloatArray:
    """Computes log det of the leading k × k block of each covariance, (N,)."""
    leading = np.arange(k)
    return 2.0 * add_up(np.log(factor[leading, leading]))


def add_up(rows: FloatArray) -> FloatArray:
    """Sums over the first axis, (N,), one row after the other.

    NumPy's own sum picks its order by shape and layout, and with it the rounding:
    a detection must give the same bits alone and among others.
    """
    total: FloatArray = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


def whiten(factor: FloatArray, error: FloatArray) -> FloatArray:
    """Computes L⁻¹ r of each detection, (K, N), by forward substitution.

    factor  (K, K, N) from factorise
    error   (N, K) in the same order of dimensions
    """
    u: FloatArray = np.array(error.T, order="C", copy=True)
    whiten_rows(factor, u)
    return u


def whiten_rows(factor: FloatArray, u: FloatArray) -> None:
    """Turns errors r (K, N) into L⁻¹ r, in place."""
    k = u.shape[0]
    for j in range(k):
        u[j] /= factor[j, j]
        if j + 1 < k:
            u[j + 1 :] -= factor[j + 1 :, j] * u[j]
