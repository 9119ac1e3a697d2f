"""Identity: what the detector says is what the tracker gets. In force until another is promoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monitor.recalibration.recalibrator import Document, Estimates, Output


@dataclass(frozen=True, slots=True)
class Identity:
    """Changes nothing."""

    method: ClassVar[str] = "identity"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        """The very same estimates."""
        return estimates

    def parameters(self) -> Document:
        """None."""
        return {}

    @classmethod
    def from_parameters(cls, parameters: Document) -> Identity:
        """The inverse of parameters."""
        return cls()
