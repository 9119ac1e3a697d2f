"""Fits GP-Normal; serving does not need this file."""

from __future__ import annotations

import numpy as np

from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_normal import GpNormal
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.input_choice import choose_inputs
from monitor.recalibration.processes.latent_stack import stack_of
from monitor.recalibration.processes.normal_likelihood import normal_likelihood
from monitor.recalibration.processes.sparse_process import Coupling
from monitor.recalibration.row_order import in_one_order

# Beyond what the fit says of its own rows, log w goes by a factor of two at most.
MARGIN = float(np.log(2.0))


def fit(rows: FitRows, settings: ProcessSettings | None = None) -> GpNormal:
    """The factors that rows with truth ask for: the same whatever order the rows come in.

    With independent latents every dimension finds inputs of its own; coupled, all have the
    same. Raises UnfitData without rows, or where a dimension has no error.
    """
    settings = settings or ProcessSettings()
    rows = in_one_order(rows)
    rows.check()
    likelihood = normal_likelihood(rows)
    parts = [likelihood]
    if settings.coupling is Coupling.INDEPENDENT:
        parts = [likelihood.of(dimension) for dimension in range(rows.space.k)]
    chosen = [choose_inputs(part, rows, settings)[:2] for part in parts]
    return GpNormal(stack_of(chosen, rows.estimates, MARGIN))
