"""Vector scaling: a weight and a bias of each class (Guo et al. 2017, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.classes.class_optimisation import fit_family
from monitor.recalibration.classes.class_recalibrator import LARGEST
from monitor.recalibration.classes.class_rows import ClassRows
from monitor.recalibration.classes.class_softmax import as_columns, as_opinions, softmax
from monitor.recalibration.classes.temperature import inverse_temperature
from monitor.recalibration.document import numbers
from monitor.recalibration.recalibrator import Document

# A weight of 0 or less would turn a class upside down.
LEAST_WEIGHT, LARGEST_WEIGHT = 1e-5, 1e5


@dataclass(frozen=True, slots=True)
class VectorScaling:
    """p̂ = softmax(w log p + b); the most likely class may change.

    weight, bias  (C,) w > 0 and b, of which only differences matter
    source        Guo et al. 2017, section 4.2; Laves et al. 2019, eq. 26, which has no bias
    """

    weight: tuple[float, ...]
    bias: tuple[float, ...]
    method: ClassVar[str] = "vector-scaling"

    @property
    def classes(self) -> int:
        """C."""
        return len(self.weight)

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities of each opinion, (n, M, C)."""
        scores = as_columns(log_probabilities)
        scores *= np.array(self.weight)[:, None]
        scores += np.array(self.bias)[:, None]
        softmax(scores)
        return as_opinions(scores, log_probabilities.shape)

    def parameters(self) -> Document:
        """weight and bias."""
        return {"weight": list(self.weight), "bias": list(self.bias)}

    @classmethod
    def from_parameters(cls, parameters: Document) -> VectorScaling:
        """The inverse of parameters; raises InvalidRecalibrator."""
        weight = numbers(parameters, "weight", None, LEAST_WEIGHT, LARGEST_WEIGHT, fewest=2)
        return cls(weight, numbers(parameters, "bias", len(weight), -LARGEST, LARGEST))


@dataclass(frozen=True, slots=True)
class VectorFamily:
    """s = λ (1 + d) log p + b, the parameters d and b: temperature scaling where they are 0."""

    inverse_temperature: float
    classes: int

    @property
    def bounds(self) -> FloatArray:
        """(2 C, 2): weights stay positive."""
        lowest = np.repeat([0.01 - 1.0, -100.0], self.classes)
        return np.stack([lowest, np.full(2 * self.classes, 100.0)], axis=1)

    def weight(self, parameters: FloatArray) -> FloatArray:
        """(C,) λ (1 + d)."""
        return self.inverse_temperature * (1.0 + parameters[: self.classes])

    def scores(self, parameters: FloatArray, columns: FloatArray) -> FloatArray:
        """(C, N); see ScoreFamily."""
        bias = parameters[self.classes :]
        return self.weight(parameters)[:, None] * columns + bias[:, None]

    def slope(
        self, parameters: FloatArray, columns: FloatArray, by_score: FloatArray
    ) -> FloatArray:
        """(2 C,); see ScoreFamily."""
        by_weight = self.inverse_temperature * (by_score * columns).sum(axis=1)
        return np.append(by_weight, by_score.sum(axis=1))


def fit(rows: ClassRows) -> VectorScaling:
    """Weights and biases of least loss, with decay towards temperature scaling; see fit_family.

    Raises UnfitData where the temperature is not determined, with rows of a single class, and
    with too few to leave some out.
    """
    rows.check()
    rows.check_several_classes()
    ordered = rows.ordered()
    family = VectorFamily(inverse_temperature(ordered), rows.classes)
    found = fit_family(family, ordered)
    return VectorScaling(
        tuple(family.weight(found).tolist()), tuple(found[rows.classes :].tolist())
    )
