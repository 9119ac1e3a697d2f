"""Fits maps of log-probabilities to scores, with weight decay towards a simpler family.

How strong the decay is, inner validation says. Nothing here is needed for serving.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.classes.probabilities import ClassRows, averaged_loss
from monitor.recalibration.recalibrator import UnfitData

# Strengths of the decay, from strong to weak. In rows: with the likelihood's sum it is a Gaussian
# prior of variance 1/strength, so that it means the same for any number of rows.
DECAYS = (1000.0, 100.0, 10.0, 1.0)


FOLDS = 5


DOUBT = 2.0


class ScoreFamily(Protocol):
    """Maps of log-probabilities to scores, by P parameters; the simpler family where all are 0."""

    @property
    def bounds(self) -> FloatArray:
        """(P, 2) lowest and highest value of each parameter, 0 between them."""

    def scores(self, parameters: FloatArray, columns: FloatArray) -> FloatArray:
        """(C, N) scores of log-probabilities (C, N)."""

    def slope(
        self, parameters: FloatArray, columns: FloatArray, by_score: FloatArray
    ) -> FloatArray:
        """(P,) derivative of a loss by the parameters, from that by the scores (C, N)."""


def fit_family(family: ScoreFamily, rows: ClassRows) -> FloatArray:
    """(P,) parameters θ that minimise Σ_i loss_i + decay/2 |θ|², the decay chosen among DECAYS.

    Weaker and weaker decay is tried, each on all but one of FOLDS parts of the rows, until two in
    a row do not lower the loss of the parts left out. Of those tried the strongest is taken that
    is not worse than the best by more than DOUBT standard errors of their difference. That may be
    no θ at all: the larger family is used only where the rows show that it must be.

    source  the one-standard-error rule: Hastie et al. 2009, section 7.10; with two, none of 80
            simulated sets of one temperature was given more
    raises  UnfitData with too few rows or tracks to leave a part out
    """
    chosen = _chosen(_held_out_losses(family, rows), rows.weight)
    parameters = np.zeros(len(family.bounds))
    for decay in DECAYS[:chosen]:
        parameters = _descend(family, rows, decay, parameters)
    return parameters


def _held_out_losses(family: ScoreFamily, rows: ClassRows) -> list[FloatArray]:
    """(n,) each: of every row by a fit without its part; of the simpler family, then by DECAYS."""
    fold = rows.fold(FOLDS)
    if np.unique(fold).size < FOLDS:
        raise UnfitData(
            f"{rows.n} rows are too few to leave out one of {FOLDS} parts for validation. Use "
            "temperature, or rows of more objects."
        )
    inside = [rows.take(np.flatnonzero(fold != part)) for part in range(FOLDS)]
    outside = [np.flatnonzero(fold == part) for part in range(FOLDS)]
    found = [np.zeros(len(family.bounds))] * FOLDS
    losses = [_losses(family, rows, outside, found)]
    for decay in DECAYS:
        found = [
            _descend(family, part, decay, start) for part, start in zip(inside, found, strict=True)
        ]
        losses.append(_losses(family, rows, outside, found))
        if np.argmin([loss.mean() for loss in losses]) < len(losses) - 2:
            break
    return losses


def _losses(
    family: ScoreFamily, rows: ClassRows, parts: list[IntArray], found: list[FloatArray]
) -> FloatArray:
    loss = np.empty(rows.n)
    for part, parameters in zip(parts, found, strict=True):
        some = rows.take(part)
        loss[part] = averaged_loss(family.scores(parameters, some.columns), some.label).value
    return loss


def _chosen(losses: list[FloatArray], weight: float) -> int:
    """Number of the first candidate that does not lose to the best by more than chance."""
    excess = np.array(losses) - min(losses, key=lambda loss: float(loss.mean()))
    doubt = DOUBT * excess.std(axis=1) / np.sqrt(excess.shape[1] * weight)
    return int(np.flatnonzero(excess.mean(axis=1) <= doubt)[0])


def _descend(family: ScoreFamily, rows: ClassRows, decay: float, start: FloatArray) -> FloatArray:
    # Half a second to import, and only a fit needs it.
    from scipy.optimize import minimize

    columns, label, n = rows.columns, rows.label, rows.n

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        loss = averaged_loss(family.scores(parameters, columns), label)
        slope = family.slope(parameters, columns, loss.by_score)
        value = float(loss.value.sum()) + 0.5 * decay * float(parameters @ parameters)
        return value / n, (slope + decay * parameters) / n

    found = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=family.bounds,
        options={"maxiter": 100, "maxcor": 20, "ftol": 1e-7, "gtol": 1e-6},
    )
    return np.asarray(found.x, np.float64)
