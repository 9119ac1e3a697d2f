"""The Kalman filter of many tracks at once: stacked matrices, one call for all of them."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import FloatArray

# Share of a variance that rounding may take from it, for what is made of a few sums of products.
_ROUNDING = 1e-14


def predict(
    state: FloatArray, covariance: FloatArray, transition: FloatArray, diffusion: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """F x and F P Fᵀ + Q.

    state       (T, S)
    covariance  (T, S, S)
    transition  F, (S, S), the same for all tracks
    diffusion   Q, (S, S)
    """
    turned = np.ascontiguousarray(transition.T)
    return state @ turned, regular(transition @ covariance @ turned + diffusion)


def update(
    state: FloatArray, covariance: FloatArray, innovation: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """x + K ν and the covariance in Joseph's form, (I − KH) P (I − KH)ᵀ + K R Kᵀ.

    Joseph's form is a sum of two covariances, so that rounding in the gain cannot make
    it indefinite. H = [I 0]: the first K states are measured.

    state       (T, S)
    covariance  (T, S, S)
    innovation  ν = z − H x, (T, K), angles wrapped
    noise       R, (T, K, K)
    """
    k = innovation.shape[1]
    gain = covariance[:, :, :k] @ _inverse(covariance[:, :k, :k] + noise)
    # I − KH is made before P is multiplied: P − K H P would lose what is left of a large P.
    rest = np.zeros_like(covariance)
    rest[:] = np.eye(covariance.shape[1])
    rest[:, :, :k] -= gain
    joseph = rest @ covariance @ _transposed(rest)
    joseph += gain @ noise @ _transposed(gain)
    moved = state + (gain @ innovation[:, :, None])[:, :, 0]
    return moved, regular(joseph)


def regular(covariance: FloatArray) -> FloatArray:
    """(T, S, S) symmetric, and definite where it was so but for rounding.

    A sensor that knows a micrometre along and a kilometre across, turned by 45°, is
    singular in doubles: with a little more on the diagonal, no correlation reaches ±1.
    """
    made = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    step = np.arange(made.shape[1])
    made[:, step, step] *= 1.0 + _ROUNDING
    return made


def _transposed(matrices: FloatArray) -> FloatArray:
    """Each matrix transposed, as a copy: stacked products of views take three times as long."""
    return np.ascontiguousarray(matrices.transpose(0, 2, 1))


def _inverse(matrices: FloatArray) -> FloatArray:
    """S⁻¹ of each (T, K, K), scaled to a unit diagonal first: units differ by orders."""
    scale = 1.0 / np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    scales = scale[:, :, None] * scale[:, None, :]
    inverse: FloatArray = np.linalg.inv(matrices * scales) * scales
    return inverse
