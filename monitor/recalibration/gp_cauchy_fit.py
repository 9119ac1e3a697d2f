"""Fits GP-Cauchy: each dimension's log w by a process with inputs of its own."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_cauchy import LEVELS, MARGIN, SURROGATE_LEVEL, GpCauchy
from monitor.recalibration.processes.cauchy_likelihood import cauchy_likelihood
from monitor.recalibration.processes.input_choice import choose_inputs
from monitor.recalibration.processes.kernels import KernelForm
from monitor.recalibration.processes.latent_stack import stack_of
from monitor.recalibration.processes.process_fit import ProcessSettings
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.row_order import in_one_order


@dataclass(frozen=True, slots=True)
class GpCauchySettings:
    """How a GP-Cauchy is to be.

    inducing         points of a process, at most
    surrogate_level  the central interval in which the Cauchy and the Gaussian forwarded agree
    """

    inducing: int = 12
    kernel: KernelForm = KernelForm.NORMALISED
    surrogate_level: float = SURROGATE_LEVEL


def fit(rows: FitRows, settings: GpCauchySettings | None = None) -> GpCauchy:
    """The largest bound on the likelihood of each dimension's errors (Küppers et al. 2022, eq. 4).

    Raises UnfitData without rows, where half of a dimension's errors or more are exactly 0, and
    for a level that no surrogate is made of.
    """
    settings = settings or GpCauchySettings()
    if not LEVELS[0] <= settings.surrogate_level <= LEVELS[1]:
        raise UnfitData(
            f"surrogate_level is {settings.surrogate_level}: choose a share between {LEVELS[0]} "
            f"and {LEVELS[1]}."
        )
    rows.check()
    rows = in_one_order(rows)
    process = ProcessSettings(settings.inducing, settings.kernel)
    fitted = []
    for i, name in enumerate(rows.space.names):
        likelihood = cauchy_likelihood(name, rows.error[:, i], rows.deviation[:, i])
        inputs, found, _ = choose_inputs(likelihood, rows, process)
        fitted.append((inputs, found))
    return GpCauchy(stack_of(fitted, rows.estimates, MARGIN), settings.surrogate_level)
