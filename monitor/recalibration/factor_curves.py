"""What the methods share that give every detection its own factors on σ, by its predicted σ.

S Σ S with another S for each detection, and curves as documents hold them: for each dimension a
list of numbers.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator

Curves = tuple[tuple[float, ...], ...]

# Deviations in any unit lie between these; what is beyond would overflow when squared twice.
LEAST_DEVIATION, LARGEST_DEVIATION = 1e-12, 1e12


def deviations(estimates: Estimates) -> FloatArray:
    """(K, n) predicted σ, each dimension in one piece."""
    variance = np.diagonal(estimates.covariance, axis1=1, axis2=2)
    return np.sqrt(np.ascontiguousarray(variance.T))


def rescaled(estimates: Estimates, factor: FloatArray) -> Estimates:
    """S Σ S with S = diag(factor) of each detection; factor (K, n). Correlations stay."""
    s = np.ascontiguousarray(factor.T)
    # The outer product first: it is symmetric to the last bit, and stays so.
    covariance = estimates.covariance * (s[:, :, None] * s[:, None, :])
    return Estimates(estimates.mean, covariance, estimates.diagonal)


def read_curves(parameters: Document, name: str, least: float, largest: float) -> Curves:
    """A list of numbers within [least, largest] for each dimension. Raises InvalidRecalibrator."""
    curves = parameters.get(name)
    if not isinstance(curves, list) or not curves:
        raise InvalidRecalibrator(f"'{name}' is {curves!r}: it must hold one list a dimension.")
    for curve in curves:
        if not isinstance(curve, list):
            raise InvalidRecalibrator(
                f"'{name}' holds {curve!r}: every dimension must have a list of numbers."
            )
        for value in curve:
            if not _lies_within(value, least, largest):
                raise InvalidRecalibrator(
                    f"'{name}' holds {value!r}: every entry must be a number from {least:g} to "
                    f"{largest:g}."
                )
    return tuple(tuple(float(value) for value in curve) for curve in curves)


def check_lengths(name: str, curves: Curves, other: str, expected: list[int]) -> None:
    """Raises InvalidRecalibrator unless every dimension has as many numbers as expected."""
    found = [len(curve) for curve in curves]
    if found != expected:
        raise InvalidRecalibrator(
            f"'{name}' has {found} entries by dimension: with '{other}' it must have {expected}."
        )


def check_ascending(name: str, curves: Curves) -> None:
    """Raises InvalidRecalibrator unless the numbers of every dimension rise strictly."""
    for curve in curves:
        for before, after in pairwise(curve):
            if not before < after:
                raise InvalidRecalibrator(
                    f"'{name}' holds {after!r} after {before!r}: entries must rise strictly."
                )


def _lies_within(value: object, least: float, largest: float) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return least <= value <= largest
