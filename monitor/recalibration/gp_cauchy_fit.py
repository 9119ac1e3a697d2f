"""Fits GP-Cauchy: each dimension's log w by a process with inputs of its own."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_cauchy import LEVELS, SURROGATE_LEVEL, GpCauchy
from monitor.recalibration.processes.cauchy_likelihood import cauchy_likelihood
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.input_choice import choose_inputs
from monitor.recalibration.processes.latent_stack import MARGIN, stack_of
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.row_order import in_one_order


@dataclass(frozen=True, slots=True)
class GpCauchySettings(ProcessSettings):
    """How a GP-Cauchy is to be.

    surrogate_level  the central interval in which the Cauchy and the Gaussian forwarded agree
    """

    surrogate_level: float = SURROGATE_LEVEL


def fit(rows: FitRows, settings: GpCauchySettings | None = None) -> GpCauchy:
    """The largest bound on the likelihood of each dimension's errors (Küppers et al. 2022, eq. 4).

    Raises UnfitData without rows, where half of a dimension's errors or more are exactly 0, and
    for a level that no surrogate is made of; ValueError for coupled outputs.
    """
    settings = settings or GpCauchySettings()
    settings.require_independent(GpCauchy.method)
    if not LEVELS[0] <= settings.surrogate_level <= LEVELS[1]:
        raise UnfitData(
            f"surrogate_level is {settings.surrogate_level}: choose a share between {LEVELS[0]} "
            f"and {LEVELS[1]}."
        )
    rows.check()
    rows = in_one_order(rows)
    fitted = []
    for i, name in enumerate(rows.space.names):
        likelihood = cauchy_likelihood(name, rows.error[:, i], rows.deviation[:, i])
        fitted.append(choose_inputs(likelihood, rows, float(rows.size_weight[i]), settings))
    return GpCauchy(stack_of(fitted, rows.estimates, MARGIN), settings.surrogate_level)
