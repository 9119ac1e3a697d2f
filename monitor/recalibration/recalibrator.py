"""What every recalibration method is: a frozen value that maps estimates to estimates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from monitor.calibration.marginals import Marginals
from monitor.calibration.space import BoolArray, FloatArray, IntArray

# JSON objects: what json.loads gives.
Document = dict[str, Any]


class UnfitData(ValueError):
    """The data do not determine the recalibrator that was asked for."""


class InvalidRecalibrator(ValueError):
    """A document does not describe a usable recalibrator."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """n Gaussians.

    mean        (n, K)
    covariance  (n, K, K) positive definite
    diagonal    (n,) whether only variances are known (and to be sent)
    """

    mean: FloatArray
    covariance: FloatArray
    diagonal: BoolArray

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of all arrays: an outcome has those of what was sent."""
        return self.mean.shape, self.covariance.shape, self.diagonal.shape

    @property
    def deviation(self) -> FloatArray:
        """(n, K) σ of each dimension."""
        deviation: FloatArray = np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))
        return deviation

    def take(self, rows: IntArray | BoolArray | slice) -> Estimates:
        """Some of them."""
        return Estimates(self.mean[rows], self.covariance[rows], self.diagonal[rows])

    def rescaled(self, factor: FloatArray) -> Estimates:
        """S Σ S with S = diag(factor), not s²Σ: correlations stay.

        factor  on σ: (K,) of all of them, or (n, K)
        """
        # The outer product first: it is symmetric to the last bit, and stays so.
        product = factor[..., :, None] * factor[..., None, :]
        return Estimates(self.mean, self.covariance * product, self.diagonal)


class Output(StrEnum):
    """What a method says of a detection, and so what the Gaussian that is forwarded stands for."""

    GAUSSIAN = "gaussian"  # a Gaussian, and that is forwarded
    MOMENTS = "moments"  # another shape; forwarded are its mean and its variance about that mean
    SURROGATE = "surrogate"  # a shape without a variance; forwarded: a Gaussian of equal quantile


def weakest(outputs: Collection[Output]) -> Output:
    """The least that is true of all of them; of none, that they are Gaussians."""
    for output in (Output.SURROGATE, Output.MOMENTS):
        if output in outputs:
            return output
    return Output.GAUSSIAN


class Recalibrator(Protocol):
    """One fitted method. Immutable, so that it may be swapped between two frames."""

    @property
    def method(self) -> str:
        """The name on the command line."""
        ...

    @property
    def k(self) -> int | None:
        """The number of dimensions it was fitted on; None if any will do."""
        ...

    @property
    def output(self) -> Output:
        """What it says of a detection; what apply makes is Gaussian with every method."""
        ...

    @property
    def keeps_definite(self) -> bool:
        """Whether positive definite covariances stay so by the form of the method alone."""
        ...

    def apply(self, estimates: Estimates) -> Estimates:
        """The recalibrated estimates; never writes into its argument."""
        ...

    def parameters(self) -> Document:
        """All that makes it up, as JSON values; exact."""
        ...


class ShapedRecalibrator(Recalibrator, Protocol):
    """A method whose own distribution is no Gaussian: output is not Output.GAUSSIAN."""

    def marginals(self, estimates: Estimates) -> Marginals:
        """The distribution of each dimension, of which apply forwards a Gaussian."""
        ...
