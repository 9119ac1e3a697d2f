"""Recalibrators that no fit makes: most go wrong, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray
from monitor.recalibration.recalibrator import Output


@dataclass(frozen=True)
class Spoiling:
    """Doubles variances, and writes a value into one place of the covariance of some rows."""

    value: float
    place: tuple[int, int] = (1, 1)
    first: int = 0
    last: int = 10**9
    keeps_definite: bool = True
    method: ClassVar[str] = "spoiling"
    k: ClassVar[None] = None
    output: ClassVar[Output] = Output.GAUSSIAN

    def apply(self, estimates: Estimates) -> Estimates:
        covariance = 2.0 * estimates.covariance
        covariance[(slice(self.first, self.last), *self.place)] = self.value
        return Estimates(estimates.mean.copy(), covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {}


class Raising(Spoiling):
    """Makes nothing at all."""

    def apply(self, estimates: Estimates) -> Estimates:
        raise RuntimeError("broken")


@dataclass
class Counting:
    """Multiplies variances, and counts how often it is applied."""

    factor: float
    times: int = 0
    method: ClassVar[str] = "counting"
    k: ClassVar[None] = None
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    def apply(self, estimates: Estimates) -> Estimates:
        self.times += 1
        covariance = self.factor * estimates.covariance
        return Estimates(estimates.mean, covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Moving:
    """Moves means by so much, and leaves covariances."""

    by: float
    method: ClassVar[str] = "moving"
    k: ClassVar[None] = None
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    def apply(self, estimates: Estimates) -> Estimates:
        return Estimates(estimates.mean + self.by, estimates.covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, eq=False)
class ByRow:
    """A factor on the variance for each row of the one batch it is meant for; (n,) or (n, K)."""

    factors: FloatArray
    method: ClassVar[str] = "by-row"
    k: ClassVar[None] = None
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    def apply(self, estimates: Estimates) -> Estimates:
        k = estimates.mean.shape[1]
        return estimates.rescaled(np.sqrt(self.factors).reshape(len(self.factors), -1) * np.ones(k))

    def parameters(self) -> dict[str, Any]:
        return {}
