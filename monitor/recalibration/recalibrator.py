"""What every recalibration method is: a frozen value that maps estimates to estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from monitor.calibration.space import BoolArray, FloatArray

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
    def keeps_definite(self) -> bool:
        """Whether positive definite covariances stay so by the form of the method alone."""
        ...

    def apply(self, estimates: Estimates) -> Estimates:
        """The recalibrated estimates; never writes into its argument."""
        ...

    def parameters(self) -> Document:
        """All that makes it up, as JSON values; exact."""
        ...
