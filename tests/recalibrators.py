"""Recalibrators that only tests have a use for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from monitor.frames.detections import Estimates
from monitor.recalibration.recalibrator import Output


@dataclass(frozen=True)
class Shift:
    """Moves the mean and leaves the very same covariance."""

    method: ClassVar[str] = "shift"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        return Estimates(estimates.mean + 1.0, estimates.covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {}
