"""Simulated opinions on classes with known faults, and recalibrators of every method."""

from __future__ import annotations

from functools import cache

import numpy as np

from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.classes.class_selection import CLASS_METHODS
from monitor.recalibration.classes.probabilities import (
    LEAST,
    ClassRecalibrator,
    ClassRows,
    averaged,
    from_logits,
    from_probabilities,
)
from monitor.statistics.class_evaluation import ClassEvaluation, evaluate_class_rows
from tests.recalibration.rows import as_read
from tests.reference.datasets import all_sets

METHODS = tuple(CLASS_METHODS)
Seed = int | list[int]


def drawn(logits: FloatArray, random: np.random.Generator) -> IntArray:
    """A label of each row, from its softmax."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    below: IntArray = (random.uniform(size=(len(p), 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    return below.clip(0, p.shape[1] - 1)


def overconfident(seed: Seed, n: int, classes: int = 10, temperature: float = 2.0) -> ClassRows:
    """Logits that are too large by one factor."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.6, (n, classes))
    return ClassRows(from_logits(z * temperature)[:, None], drawn(z, random))


def distorted(seed: Seed, n: int, classes: int = 10) -> ClassRows:
    """Logits whose weight grows from class to class, with a bias of changing sign."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.6, (n, classes))
    weight = np.exp(np.linspace(np.log(0.6), np.log(2.5), classes))
    bias = np.where(np.arange(classes) % 2, 1.0, -1.0)
    return ClassRows(from_logits(z * weight + bias)[:, None], drawn(z, random))


def of_several_opinions(seed: Seed, n: int, opinions: int = 5, classes: int = 4) -> ClassRows:
    """Opinions that are too sure, each of its own noise about what labels are drawn from."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.5, (n, classes))
    noise = random.normal(0.0, 0.8, (n, opinions, classes))
    return ClassRows(from_logits(2.0 * (z[:, None] + noise)), drawn(z, random))


@cache
def reference(name: str = "cls_overconfident") -> tuple[ClassRows, ClassRows]:
    """Rows 0:10000 and 10000:20000 of a reference set."""
    data = all_sets()[name]
    log_probabilities = from_probabilities(data["prob"])[:, None]
    first, second = slice(0, 10_000), slice(10_000, 20_000)
    return (
        ClassRows(log_probabilities[first], data["label"][first]),
        ClassRows(log_probabilities[second], data["label"][second]),
    )


def evaluated(recalibrator: ClassRecalibrator, rows: ClassRows) -> ClassEvaluation:
    """Measures of the averaged recalibrated opinions."""
    return evaluate_class_rows(averaged(recalibrator.apply(rows.log_probabilities)), rows.label)


def made(method: str, classes: int, seed: int = 0) -> ClassRecalibrator:
    """One that no fit made, of any number of classes, from a document."""
    random = np.random.default_rng([seed, classes])
    units = min(classes, 5)

    def numbers(*shape: int, scale: float = 1.0) -> list[float]:
        found: list[float] = random.normal(0.0, scale, shape).tolist()
        return found

    def rising() -> list[float]:
        found: list[float] = np.sort(random.uniform(np.log(LEAST), 0.0, 7)).tolist()
        return found

    parameters = {
        "class-identity": {},
        "temperature": {"temperature": random.uniform(0.3, 3.0)},
        "vector-scaling": {
            "weight": random.uniform(0.3, 3.0, classes).tolist(),
            "bias": numbers(classes),
        },
        "auxiliary-scaling": {
            "weight": random.uniform(0.3, 3.0, classes).tolist(),
            "bias": numbers(classes),
            "centre": random.uniform(-5.0, -1.0, classes).tolist(),
            "spread": random.uniform(1.0, 3.0, classes).tolist(),
            "lowest": [-3.0] * classes,
            "highest": [2.0] * classes,
            "hidden": numbers(units, classes, scale=0.5),
            "hidden_bias": numbers(units),
            "output": numbers(classes, units, scale=0.5),
        },
        "classwise-isotonic": {
            "knots": [{"sent": rising(), "made": rising()} for _ in range(classes)]
        },
    }
    found: ClassRecalibrator = as_read(CLASS_METHODS[method], parameters[method])
    return found
