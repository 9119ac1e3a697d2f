"""Covariances put together from weights of triangular factors, many at once.

Σ̂ = W G Gᵀ Wᵀ: W a factor of what the detector sent, G lower triangular with the rows
(φ_i0 … φ_i,i−1, √exp f_i). With Σ = W Wᵀ = L D Lᵀ it is the LDLᵀ of Küppers et al. 2022, eq. 8:
with Δ = diag(W), exp f_i multiplies D, and the unit triangular Δ G diag(G)⁻¹ Δ⁻¹ multiplies L.
All arithmetic is by element, so that a detection gives the same bits alone and among others.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.cholesky import factorise, positive_definite
from monitor.calibration.space import FloatArray

# Above it no rounding can make a covariance indefinite: the smallest eigenvalue of correlations R
# is at least det R · ((K − 1)/K)^(K − 1) > det R / e.
_SAFE_DETERMINANT = 1e-9
# By how much correlations are drawn to zero below it: R (1 − δ) + δ I has eigenvalues above δ, a
# million times what rounding takes away.
_DRAWN = 1e-9


def row_of_weights(i: int) -> slice:
    """Where f_i, φ_i0 … φ_i,i−1 lie among the K (K + 1) / 2 weights, which go row by row."""
    first = i * (i + 1) // 2
    return slice(first, first + i + 1)


def row_of_factor(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Row i of G for uncertain weights, (1 + i, n): φ_i0 … φ_i,i−1, and the diagonal.

    Of errors u_i = Σ_j<i φ_ij ε_j + exp(f_i/2) η_i with η_i ~ N(0, 1) independent of all else, and
    regressors ε_j = (u_j − Σ_l<j φ̄_jl ε_l) / g_jj, g_jj the diagonal below: what u_j tells beyond
    the earlier ones, by the means of the weights. These, and not the η_j, are uncorrelated with
    variance 1 whatever the weights turn out to be: with independent f ~ N(m, v) and
    φ_j ~ N(φ̄_j, v_j), E[u_i ε_j] = φ̄_j and g_ii² = E[u_i²] − Σ_j φ̄_j² = exp(m + v/2) + Σ_j v_j.
    What φ leaves open goes to the diagonal, and E[exp f] is the mean of a log-normal.

    mean, variance  (1 + i, n) of f_i, φ_i0 … φ_i,i−1
    """
    own = np.exp(mean[0] + 0.5 * variance[0])
    for uncertain in variance[1:]:
        own += uncertain
    row = np.empty_like(mean)
    row[:-1] = mean[1:]
    np.sqrt(own, out=row[-1])
    return row


def factor_of_weights(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """G lower triangular, (K, K, n), so that G Gᵀ = E[u uᵀ] of the u of row_of_factor.

    mean, variance  (K (K + 1) / 2, n), as row_of_weights puts them
    """
    k = int((2 * mean.shape[0]) ** 0.5)
    g = np.zeros((k, k, mean.shape[1]))
    for i in range(k):
        row = row_of_weights(i)
        g[i, : i + 1] = row_of_factor(mean[row], variance[row])
    return g


def lower_factor(covariance: FloatArray) -> FloatArray:
    """L with L Lᵀ = Σ for covariances (n, K, K) that were found positive definite; (K, K, n).

    One that rounding makes indefinite after all has the factor of its neighbour that is not.
    """
    lower = factorise(covariance)
    bad = ~positive_definite(lower)
    if bad.any():
        lower[:, :, bad] = factorise(_drawn_to_zero(covariance[bad]))
    return lower


def lower_product(left: FloatArray, right: FloatArray) -> FloatArray:
    """The products of lower triangular matrices, both (K, K, n)."""
    product = np.zeros_like(right)
    for j in range(left.shape[0]):
        product[j:, : j + 1] += left[j:, j, None] * right[j, : j + 1]
    return product


def squared(g: FloatArray) -> FloatArray:
    """G Gᵀ of lower triangular (K, K, n), as (n, K, K), symmetric to the last bit."""
    total = np.zeros_like(g)
    for j in range(g.shape[0]):
        column = g[j:, j]
        total[j:, j:] += column[:, None] * column
    return np.ascontiguousarray(total.transpose(2, 0, 1))


def keep_definite(made: FloatArray, factor: FloatArray) -> None:
    """Draw correlations to zero, by far less than matters, where rounding might have made Σ̂
    indefinite; in place.

    made    (n, K, K) Σ̂ = G Gᵀ
    factor  (K, K, n) G
    """
    determinant = np.ones(made.shape[0])
    for i in range(made.shape[1]):
        determinant *= factor[i, i] * factor[i, i] / made[:, i, i]
    suspects = determinant < _SAFE_DETERMINANT
    if suspects.any():
        made[suspects] = _drawn_to_zero(made[suspects])


def _drawn_to_zero(covariance: FloatArray) -> FloatArray:
    step = np.arange(covariance.shape[1])
    drawn: FloatArray = covariance * (1.0 - _DRAWN)
    drawn[:, step, step] = covariance[:, step, step]
    return drawn
