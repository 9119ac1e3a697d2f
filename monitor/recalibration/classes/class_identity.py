"""Class identity: probabilities as the detector sends them, made to add up to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monitor.calibration.space import FloatArray
from monitor.recalibration.classes.class_softmax import as_columns, as_opinions, softmax
from monitor.recalibration.recalibrator import Document


@dataclass(frozen=True, slots=True)
class ClassIdentity:
    """Changes nothing but a sum a little off 1."""

    method: ClassVar[str] = "class-identity"
    classes: ClassVar[None] = None

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Their exponentials, (n, M, C)."""
        scores = as_columns(log_probabilities)
        softmax(scores)
        return as_opinions(scores, log_probabilities.shape)

    def parameters(self) -> Document:
        """None."""
        return {}

    @classmethod
    def from_parameters(cls, parameters: Document) -> ClassIdentity:
        """The inverse of parameters."""
        return cls()
