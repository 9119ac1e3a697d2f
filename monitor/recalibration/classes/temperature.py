"""Temperature scaling: one factor for all log-probabilities (Guo et al. 2017, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.classes.class_likelihood import averaged_loss
from monitor.recalibration.classes.class_recalibrator import LARGEST
from monitor.recalibration.classes.class_rows import ClassRows
from monitor.recalibration.classes.class_softmax import as_columns, as_opinions, softmax
from monitor.recalibration.document import number
from monitor.recalibration.recalibrator import Document, UnfitData

# No fit says less or more than these.
COLDEST, HOTTEST = 0.01, 100.0
# Steps of log T of a factor of 1.5 or so, among which the optimum is searched.
_STEPS = 24


@dataclass(frozen=True, slots=True)
class Temperature:
    """p̂ = softmax(log p / T), of any number of classes; the most likely class stays so.

    temperature  T; above 1 the detector is too sure of itself
    source       Guo et al. 2017, eq. 9; for several opinions Laves et al. 2019, eq. 25
    """

    temperature: float
    method: ClassVar[str] = "temperature"
    classes: ClassVar[None] = None

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities of each opinion, (n, M, C)."""
        scores = as_columns(log_probabilities)
        scores /= self.temperature
        softmax(scores)
        return as_opinions(scores, log_probabilities.shape)

    def parameters(self) -> Document:
        """The temperature."""
        return {"temperature": self.temperature}

    @classmethod
    def from_parameters(cls, parameters: Document) -> Temperature:
        """The inverse of parameters; raises InvalidRecalibrator."""
        return cls(number(parameters, "temperature", 1 / LARGEST, LARGEST))


def fit(rows: ClassRows) -> Temperature:
    """The T of least loss, to about 1e-10.

    Raises UnfitData where the rows do not determine it: the loss then falls to one end.
    """
    rows.check()
    return Temperature(1.0 / inverse_temperature(rows.ordered()))


def inverse_temperature(rows: ClassRows) -> float:
    """1/T of least loss: a root of its derivative. See fit."""
    # Half a second to import, and only a fit needs it.
    from scipy.optimize import brentq

    def loss_and_slope(log_inverse: float) -> tuple[float, float]:
        scores = np.exp(log_inverse) * rows.columns
        loss = averaged_loss(scores, rows.label)
        return float(loss.value.mean()), float((loss.by_score * scores).sum())

    grid = np.linspace(-np.log(HOTTEST), -np.log(COLDEST), _STEPS)
    loss, slope = np.array([loss_and_slope(at) for at in grid]).T
    # With one opinion the loss is convex in 1/T. With several it need not be: where the slope
    # turns from falling to rising there is a minimum, and the lowest of them is taken.
    turns = np.flatnonzero((slope[:-1] < 0) & (slope[1:] >= 0))
    if turns.size == 0 or min(loss[0], loss[-1]) <= loss.min():
        raise UnfitData(_undetermined(rows.n, hot=bool(loss[0] <= loss[-1])))
    step = turns[np.argmin(np.minimum(loss[turns], loss[turns + 1]))]
    root = brentq(
        lambda log_inverse: loss_and_slope(log_inverse)[1], grid[step], grid[step + 1], xtol=1e-13
    )
    return float(np.exp(root))


def _undetermined(n: int, *, hot: bool) -> str:
    if hot:
        return (
            f"{n} rows are the likelier the higher the temperature, beyond {HOTTEST:g}: the "
            "probabilities say nothing of their true classes. Check that labels number the "
            "classes in the order of the probabilities."
        )
    return (
        f"{n} rows are the likelier the lower the temperature, below {COLDEST:g}: the most likely "
        "class is always the true one. Add rows in which it is not."
    )
