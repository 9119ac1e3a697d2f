"""Fits GP-Normal; serving does not need this file."""

from __future__ import annotations

from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_normal import GpNormal
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.input_choice import choose_inputs
from monitor.recalibration.processes.latent_stack import MARGIN, stack_of
from monitor.recalibration.processes.normal_likelihood import normal_likelihood
from monitor.recalibration.processes.sparse_process import Coupling
from monitor.recalibration.row_order import in_one_order


def fit(rows: FitRows, settings: ProcessSettings | None = None) -> GpNormal:
    """The factors that rows with truth ask for: the same whatever order the rows come in.

    With independent latents every dimension finds inputs of its own; coupled, all have the
    same. Raises UnfitData without rows, or where a dimension has no error.
    """
    settings = settings or ProcessSettings()
    rows = in_one_order(rows)
    rows.check()
    likelihood = normal_likelihood(rows)
    parts = [(likelihood, rows.weight)]
    if settings.coupling is Coupling.INDEPENDENT:
        parts = [(likelihood.of(i), weight) for i, weight in enumerate(rows.size_weight.tolist())]
    chosen = [choose_inputs(part, rows, weight, settings) for part, weight in parts]
    return GpNormal(stack_of(chosen, rows.estimates, MARGIN, expectations=True))
