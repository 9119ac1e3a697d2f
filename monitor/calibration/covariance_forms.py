"""Covariances as they were sent: three forms made one, and which of them are unusable.

Looks at all of a frame together; rows are only marked, what that means is said elsewhere.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.cholesky import SINGULAR, factorise, positive_definite
from monitor.calibration.space import (
    BoolArray,
    FloatArray,
    IntArray,
    Space,
    square_from_triangle,
)

# Largest |Σij − Σji| that passes as rounding, against σi σj: single precision allows for it.
ASYMMETRY = 1e-6


def full_matrices(values: FloatArray, length: IntArray, forms: tuple[int, int, int]) -> FloatArray:
    """(N, K, K) from the three forms on the wire; identity where there is none.

    The full form is made symmetric by averaging; asymmetry is judged elsewhere.
    """
    n, k = values.shape[0], forms[0]
    # Frames of one form, the rule, are read in one piece.
    if n and (length == length[0]).all() and values.shape[1] >= length[0]:
        if length[0] == k * k:
            return values[:, : k * k].reshape(n, k, k)
        if length[0] == forms[1]:
            return values[:, square_from_triangle(k)].reshape(n, k, k)
    matrices = np.zeros((n, k, k))
    step = np.arange(k)
    matrices[:, step, step] = 1.0
    for form in dict.fromkeys(forms):
        here = np.flatnonzero(length == form)
        part = values[here, :form]
        if here.size == 0:
            continue
        if form == k:
            matrices[here[:, None], step, step] = part
        elif form == k * k:
            matrices[here] = part.reshape(-1, k, k)
        else:
            matrices[here] = part[:, square_from_triangle(k)].reshape(-1, k, k)
    return matrices


def absent(values: FloatArray, length: IntArray, fits: BoolArray) -> BoolArray | None:
    """(n,) rows without a covariance, or with one of zeros."""
    if values.shape[1] and (values[:, 0] != 0).all() and (length > 0).all():
        return None
    # NaN is not zero: a covariance of NaN is wrong, not missing.
    sent = np.arange(values.shape[1]) < length[:, None]
    nothing: BoolArray = (length == 0) | (fits & ~((values != 0) & sent).any(axis=1))
    return nothing


def symmetric(covariance: FloatArray, full: BoolArray) -> tuple[FloatArray, BoolArray | None]:
    """The covariances without rounding between their triangles, and which differ by more."""
    transposed = covariance.transpose(0, 2, 1)
    if not full.any() or np.array_equal(covariance, transposed):
        return covariance, None
    with np.errstate(invalid="ignore", over="ignore"):
        deviation = np.sqrt(np.abs(np.diagonal(covariance, axis1=1, axis2=2)))
        allowed = ASYMMETRY * deviation[:, :, None] * deviation[:, None, :]
        close = np.abs(covariance - transposed) <= allowed
        # Where a value is not finite, that is what the detector is told.
        return 0.5 * (covariance + transposed), failing(close | ~np.isfinite(covariance))


def indefinite(covariance: FloatArray, variance: FloatArray, space: Space) -> BoolArray | None:
    """(n,) covariances that are not positive definite; None if all are.

    Factorised in the order the statistics use, so that what passes here passes there.
    """
    if space.order != tuple(range(space.k)):
        order = np.array(space.order)
        covariance, variance = covariance[:, order[:, None], order], variance[:, order]
    try:
        # LAPACK is the quickest while all are well; it raises for the whole frame if one is not.
        pivot = np.diagonal(np.linalg.cholesky(covariance), axis1=1, axis2=2)
    except np.linalg.LinAlgError:
        return ~positive_definite(factorise(covariance))
    # A signalling NaN, which no detector computes, makes even a product of it a complaint.
    with np.errstate(invalid="ignore"):
        return failing(pivot * pivot > SINGULAR * variance)


def failing(flags: BoolArray) -> BoolArray | None:
    """(n,) rows with a flag that is not set; None, and quickly so, if all are set."""
    if np.count_nonzero(flags) == flags.size:
        return None
    return np.asarray(~flags.reshape(flags.shape[0], -1).all(axis=1))
