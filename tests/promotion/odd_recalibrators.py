"""Recalibrators that no fit makes: most go wrong, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monitor.frames.detections import Estimates
from monitor.recalibration.recalibrator import Recalibrator


class Odd(Recalibrator):
    """Of any dimensions, and without parameters."""

    method: ClassVar[str] = "spoiling"

    def apply(self, estimates: Estimates) -> Estimates:
        raise RuntimeError("broken")


@dataclass(frozen=True)
class Spoiling(Odd):
    """Doubles variances, and writes a value into one place of the covariance of some rows."""

    value: float
    place: tuple[int, int] = (1, 1)
    first: int = 0
    last: int = 10**9
    keeps_definite: bool = True

    def apply(self, estimates: Estimates) -> Estimates:
        covariance = 2.0 * estimates.covariance
        covariance[(slice(self.first, self.last), *self.place)] = self.value
        return Estimates(estimates.mean.copy(), covariance, estimates.diagonal)


@dataclass(frozen=True)
class Moving(Odd):
    """Moves means by so much, and leaves covariances."""

    by: float

    def apply(self, estimates: Estimates) -> Estimates:
        return Estimates(estimates.mean + self.by, estimates.covariance, estimates.diagonal)
