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
    gain = covariance[:, :, :k] @ _inverse(regular(covariance[:, :k, :k] + noise))
    # I − KH is made before P is multiplied: P − K H P would lose what is left of a large P.
    rest = np.empty_like(covariance)
    rest[:] = np.eye(covariance.shape[1])
    rest[:, :, :k] -= gain
    joseph = rest @ covariance @ _transposed(rest)
    joseph += gain @ noise @ _transposed(gain)
    moved = state + (gain @ innovation[:, :, None])[:, :, 0]
    # Symmetric but for rounding, which would grow from frame to frame.
    return moved, regular(0.5 * (joseph + joseph.transpose(0, 2, 1)))


def regular(covariance: FloatArray) -> FloatArray:
    """The same covariances (T, S, S), definite where they are so but for rounding; in place.

    A sensor that knows a micrometre along and a kilometre across, turned by 45°, is
    singular in doubles: with a little more on the diagonal, no correlation reaches ±1.
    """
    variance = np.einsum("tii->ti", covariance)  # a view
    variance *= 1.0 + _ROUNDING
    return covariance


def _transposed(matrices: FloatArray) -> FloatArray:
    """Each matrix transposed, as a copy: stacked products of views take three times as long."""
    return np.ascontiguousarray(matrices.transpose(0, 2, 1))


def _inverse(covariance: FloatArray) -> FloatArray:
    """S⁻¹ of each (T, K, K), symmetric positive definite, by the sweep operator.

    One pivot after the other for all matrices at once: a third of the time of a LAPACK call
    for each, indifferent to units, and a matrix without an inverse spoils no other.
    source  Goodnight 1979, A tutorial on the SWEEP operator
    """
    swept: FloatArray = np.array(covariance.transpose(1, 2, 0), order="C", copy=True)
    for j in range(swept.shape[0]):
        pivot = swept[j, j].copy()
        row = swept[j] / pivot
        swept -= swept[:, j][:, None] * row
        swept[j] = swept[:, j] = row
        swept[j, j] = -1.0 / pivot
    return -np.ascontiguousarray(swept.transpose(2, 0, 1))
