"""Measures class probabilities at many temperatures: at which T is each measure best?

Measures of calibration are not best at one temperature (Wolf et al. 2024). NLL and the Brier score
are proper: no claim but the true probabilities has the lowest expectation. Others may prefer
probabilities that are wrong, so that a sweep shows what a choice among them would cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.frames.space import FloatArray, IntArray, read_only
from monitor.recalibration.class_scaling import Temperature
from monitor.statistics.class_evaluation import AUSE, ClassEvaluation
from monitor.statistics.measures import plain

# 0.1 … 10 in steps of a factor 1.12, with 1 in the middle; the range of Wolf et al., section 4.3.
TEMPERATURES: FloatArray = read_only(10.0 ** (np.arange(-20, 21) / 20))

# What is measured, by the names of ClassEvaluation, and what people call it.
MEASURES: Mapping[str, str] = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "cece": "cECE",
    "uce_entropy": "UCE",
    "cuce": "cUCE",
    "ause": "AUSE V",
    "ause_entropy": "AUSE S",
    "ause_cross_entropy": "AUSE CE",
    "ccqs": "CCQS",
    "ucqs": "UCQS",
}

# Best where they are highest.
SCORES = ("ccqs", "ucqs")

# Those that table 1 of Wolf et al. has for each class.
BY_CLASS: Mapping[str, str] = {
    "ece_by_class": "ECE",
    "uce_by_class": "UCE",
    "ause_by_class": "AUSE V",
    "ause_entropy_by_class": "AUSE S",
}

# Values no further apart, over the largest or over 1, differ by rounding.
_ROUNDING = 1e-12

# Rows whose opinions are tempered at a time.
_PORTION = 65_536


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measures of the same rows at G temperatures.

    temperature  (G,) ascending, 1 among them
    accuracy     (G,) the same at all: a temperature changes no order. That of the mean of several
                 opinions can change
    measures     (G,) each, by the names of MEASURES
    by_class     (G, C) each, by the names of BY_CLASS
    n_by_class   (C,) rows predicted as the class at T = 1
    """

    temperature: FloatArray
    accuracy: FloatArray
    measures: Mapping[str, FloatArray]
    by_class: Mapping[str, FloatArray]
    n_by_class: IntArray

    @property
    def best(self) -> dict[str, float]:
        """T at which each measure is best; see best_temperature."""
        return {
            name: best_temperature(self.temperature, -values if name in SCORES else values)
            for name, values in self.measures.items()
        }

    @property
    def best_by_class(self) -> dict[str, FloatArray]:
        """(C,) each, T at which the measure of a class is best."""
        return {
            name: np.array([best_temperature(self.temperature, one) for one in values.T])
            for name, values in self.by_class.items()
        }

    def at(self, temperature: float) -> int:
        """Position of the nearest temperature."""
        return int(np.argmin(np.abs(np.log(self.temperature / temperature))))

    def as_json(self) -> dict[str, object]:
        """Returns the object `sweep` of `classification`."""
        found = {"temperature": self.temperature, "accuracy": self.accuracy, **self.measures}
        of_best = {"best": self.best, "best_by_class": self.best_by_class}
        return {name: plain(value) for name, value in (found | of_best).items()}


def best_temperature(temperature: FloatArray, loss: FloatArray) -> float:
    """Finds the T of least loss; of equal ones that nearest to 1.

    temperature, loss  (G,)
    returns            NaN where the loss is unknown or the same at every temperature
    """
    lowest, highest = float(loss.min()), float(loss.max())
    rounding = _ROUNDING * max(1.0, abs(lowest), abs(highest))
    # NaN fails the comparison.
    if not highest - lowest > rounding:
        return float("nan")
    equal = temperature[loss <= lowest + rounding]
    return float(equal[np.argmin(np.abs(np.log(equal)))])


def temperature_sweep(
    log_probabilities: FloatArray,
    measured: Callable[[FloatArray], ClassEvaluation],
    temperatures: FloatArray = TEMPERATURES,
    done: Callable[[float], object] = lambda rows: None,
) -> Sweep:
    """Measures what the recalibrator of each temperature makes of the rows.

    Opinions are tempered one by one, then averaged (Laves et al. 2019, eq. 25).

    log_probabilities  (n, M, C) of usable rows, from from_logits or from_probabilities
    measured           measures probabilities (n, C) of these rows
    temperatures       (G,) ascending, 1 among them
    done               is told of how many further rows at a temperature
    """
    n, _, classes = log_probabilities.shape
    found = []
    probabilities = np.empty((n, classes))
    for temperature in temperatures.tolist():
        tempering = Temperature(temperature)
        for start in range(0, n, _PORTION):
            part = slice(start, start + _PORTION)
            probabilities[part] = tempering.apply(log_probabilities[part]).mean(axis=1)
        found.append(measured(probabilities))
        done(n)
    one = found[int(np.flatnonzero(temperatures == 1.0)[0])]
    ranked = {f"{name}_by_class": i for i, name in enumerate(AUSE)}
    by_class = {
        name: np.array(
            [each.ause_by_class[ranked[name]] for each in found]
            if name in ranked
            else [getattr(each, name) for each in found]
        )
        for name in BY_CLASS
    }
    return Sweep(
        temperature=temperatures,
        accuracy=np.array([each.accuracy for each in found]),
        measures={name: np.array([getattr(each, name) for each in found]) for name in MEASURES},
        by_class=by_class,
        n_by_class=one.n_by_class,
    )
