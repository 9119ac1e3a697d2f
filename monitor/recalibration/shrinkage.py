"""How a scaling leans on an earlier one when rows are few, and the factors it never goes beyond.

A slice with little truth borrows from its parent in the same way: the parent's fit is the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from monitor.calibration.reading import read
from monitor.calibration.space import FloatArray
from monitor.calibration.statistics import StageStatistics
from monitor.recalibration.document import Matrix, as_array
from monitor.recalibration.recalibrator import UnfitData


class Scaled(Protocol):
    """What has a factor on σ for each dimension."""

    @property
    def scale(self) -> tuple[float, ...]:
        """K factors on σ."""
        ...


class Correlated(Scaled, Protocol):
    """What also says how errors hang together: see CovarianceScaling."""

    @property
    def correlation(self) -> Matrix:
        """(K, K) of normalised errors."""
        ...

    @property
    def whitened(self) -> Matrix:
        """(K, K) mean of whitened errors' products."""
        ...

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions in the order they are whitened in."""
        ...


Previous = TypeVar("Previous", bound=Scaled, covariant=True)


@dataclass(frozen=True, slots=True)
class Prior(Generic[Previous]):
    """An earlier fit, or that of a wider slice, and how many rows it counts for.

    strength  effective rows n₀: with as many of its own, a fit lies halfway
    """

    previous: Previous
    strength: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.strength < float("inf"):
            raise ValueError(
                f"a prior of strength {self.strength} counts for no number of rows: "
                "give a positive one, or leave the prior out."
            )


@dataclass(frozen=True, slots=True)
class Clamp:
    """The range of factors on σ.

    A factor at its end says that units, matches or the selection of rows are wrong, rather than
    the detector: see reached().
    """

    lowest: float = 1e-3
    highest: float = 1e3

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.highest < float("inf"):
            raise ValueError(
                f"factors cannot be clamped to {self.lowest} … {self.highest}: "
                "give two positive numbers, the lower first."
            )

    def of(self, factor: FloatArray) -> FloatArray:
        """The factors within the range."""
        within: FloatArray = np.clip(factor, self.lowest, self.highest)
        return within

    def reached(self, model: Scaled) -> tuple[bool, ...]:
        """Which dimensions of a model were fitted to an end of the range."""
        return tuple(not self.lowest < factor < self.highest for factor in model.scale)


WIDE = Clamp()


def own_share(statistics: StageStatistics, strength: float) -> FloatArray:
    """n / (n + n₀) for the effective rows n of each dimension, and of all jointly; (K + 1,).

    The sums hold squared errors that were cut at 64 σ² row by row. Where σ is too small by so
    much that most are beyond, rows of one object look independent, and n is too high.
    """
    found = read(statistics, bins=1)
    worth = [found.dimensions[name].n_eff for name in statistics.space.names]
    rows = np.array([*worth, found.joint.n_eff])
    share: FloatArray = rows / (rows + strength)
    return share


def shrunk_scale(scale: FloatArray, before: tuple[float, ...], share: FloatArray) -> FloatArray:
    """log s ← (n log s + n₀ log s₀) / (n + n₀), dimension by dimension; (K,).

    It is where the likelihood of log s, a parabola of curvature 2n about the fit, meets a
    Gaussian about the prior that n₀ such rows would have made.

    share  (K,) from own_share
    raises UnfitData where the prior has other dimensions
    """
    if len(before) != scale.size:
        raise UnfitData(
            f"the prior has {len(before)} dimensions and the rows have {scale.size}: "
            "give a fit over the same ones."
        )
    shrunk: FloatArray = np.exp(share * np.log(scale) + (1 - share) * np.log(before))
    return shrunk


def shrunk_matrix(matrix: FloatArray, before: Matrix, share: float) -> FloatArray:
    """(n A + n₀ A₀) / (n + n₀).

    Positive definite where A₀ is, however few the rows; a unit diagonal stays one.
    """
    shrunk: FloatArray = share * matrix + (1 - share) * as_array(before)
    return shrunk


def clamped_matrix(matrix: FloatArray, clamp: Clamp) -> FloatArray:
    """A with the roots of its eigenvalues within the range; as it was where they are.

    Where errors are whitened with L, L A Lᵀ then has a deviation within the range of that of
    L Lᵀ in every direction, not in the dimensions alone. Positive definite as before.
    """
    values, vectors = np.linalg.eigh(matrix)
    root = np.sqrt(values)
    within = clamp.of(root)
    if np.array_equal(within, root):
        return matrix
    half = vectors * within
    clamped: FloatArray = half @ half.T
    return 0.5 * (clamped + clamped.T)
