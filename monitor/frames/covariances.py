"""Checks covariances of a frame in the forms of the wire: variances, lower triangles, or all of it.

Whole frames pass or fail at once; where one fails, rows are marked. Reasons have no place here.
"""

from __future__ import annotations

import numpy as np

from monitor import native
from monitor.frames.cholesky import SINGULAR, pivots
from monitor.frames.space import (
    BoolArray,
    FloatArray,
    IntArray,
    Space,
    diagonal_in_triangle,
    laid_out,
    unpacked_covariances,
)
from monitor.native import Kernels

# Largest |Σij − Σji| / (σi σj) that passes as rounding of single precision.
ASYMMETRY = 1e-6


def full_matrices(values: FloatArray, length: IntArray, forms: tuple[int, int, int]) -> FloatArray:
    """Unpacks the three forms of the wire, (N, K, K); identity where no form fits.

    The full form is returned as it came; symmetric() judges it.
    """
    n, k = values.shape[0], forms[0]
    # Frames of one form, which is the rule, are unpacked in one piece.
    form = length[0] if n else 0
    if form in forms[1:] and (length == form).all() and values.shape[1] >= form:
        return unpacked_covariances(values[:, :form], k)
    matrices = np.zeros((n, k, k))
    step = np.arange(k)
    matrices[:, step, step] = 1.0
    for form in dict.fromkeys(forms):
        here = np.flatnonzero(length == form)
        if here.size:
            matrices[here] = unpacked_covariances(values[here, :form], k)
    return matrices


def absent(values: FloatArray, length: IntArray, fits: BoolArray) -> BoolArray | None:
    """Marks rows without a covariance, or with one of zeros, (n,); None if there are none."""
    if values.shape[1] and (values[:, 0] != 0).all() and (length > 0).all():
        return None
    # NaN is not zero: a covariance of NaN is wrong, not missing.
    sent = np.arange(values.shape[1]) < length[:, None]
    nothing: BoolArray = (length == 0) | (fits & ~((values != 0) & sent).any(axis=1))
    return nothing


def symmetric(covariance: FloatArray, full: BoolArray) -> tuple[FloatArray, BoolArray | None]:
    """Averages the triangles of covariances, and marks rows that differ by more than rounding.

    full     (n,) rows that came with both triangles
    returns  (n, K, K); and (n,) rows, None if there are none
    """
    transposed = covariance.transpose(0, 2, 1)
    if not full.any() or np.array_equal(covariance, transposed):
        return covariance, None
    with np.errstate(invalid="ignore", over="ignore"):
        deviation = np.sqrt(np.abs(np.diagonal(covariance, axis1=1, axis2=2)))
        allowed = ASYMMETRY * deviation[:, :, None] * deviation[:, None, :]
        close = np.abs(covariance - transposed) <= allowed
        # A value that is not finite is another finding.
        return 0.5 * (covariance + transposed), failing(close | ~np.isfinite(covariance))


def failing(flags: BoolArray) -> BoolArray | None:
    """Marks rows with a flag that is not set, (n,); None, and quickly, if all are set."""
    if np.count_nonzero(flags) == flags.size:
        return None
    return np.asarray(~flags.reshape(flags.shape[0], -1).all(axis=1))


def usable_pivots(
    class_index: IntArray,
    mean: FloatArray,
    packed: FloatArray,
    space: Space,
    classes: int,
    largest_mean: float,
    variances: tuple[float, float],
    kernels: Kernels | None = native.kernels,
) -> FloatArray | None:
    """Finds FrameBatch.pivot; None if any class, mean or covariance does not pass.

    packed     (n, K) variances, or (n, K (K + 1) / 2) lower triangles
    variances  their bounds
    """
    (n, k), (least, most) = mean.shape, variances
    if kernels is not None:
        order, pivot = np.array(space.order), np.empty((n, k))
        frame = laid_out(class_index), laid_out(mean), laid_out(packed)
        passed = kernels.usable(*frame, order, pivot, classes, largest_mean, least, most, SINGULAR)
        return pivot if passed else None
    variance = packed if packed.shape[1] == k else packed[:, diagonal_in_triangle(k)]
    if (
        not (class_index.min() >= 0 and class_index.max() < classes)
        or not np.abs(mean).max() <= largest_mean
        or not (variance.min() >= least and variance.max() <= most)
    ):
        return None
    diagonal = packed.shape[1] == k > 1
    pivot = pivots_of_variances(variance, space) if diagonal else pivots(packed, k, space.order)
    return pivot if pivot.min() > 0 else None


def pivots_of_variances(variance: FloatArray, space: Space) -> FloatArray:
    """Returns the diagonals of the Cholesky factors of diagonal covariances, (n, K)."""
    with np.errstate(invalid="ignore"):
        pivot: FloatArray = np.sqrt(variance[:, space.order])
    return pivot
