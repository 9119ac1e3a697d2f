"""Fits GP-Beta: in each dimension the line and the latent values on it take turns, each at the
other's optimum, until the bound stands still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.gp_beta import GpBeta
from monitor.recalibration.processes.beta_likelihood import BetaErrors, beta_likelihood
from monitor.recalibration.processes.beta_line import BetaLine
from monitor.recalibration.processes.beta_line_fit import direction, factor_on_deviation, refined
from monitor.recalibration.processes.gp_inputs import Inputs, candidate_inputs
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.input_choice import choose_inputs, evidence_share
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.processes.process_fit import fit_process
from monitor.recalibration.processes.sparse_process import SparseProcess
from monitor.recalibration.row_order import in_one_order

TURNS = 6
# Nats: a turn that gains less is the last one.
ENOUGH = 0.1


@dataclass(frozen=True, slots=True)
class FittedDimension:
    """One dimension of a GpBeta; the latent values that are served lie from low to high."""

    factor: float
    line: BetaLine
    inputs: Inputs
    process: SparseProcess
    low: float
    high: float


def fit(rows: FitRows, settings: ProcessSettings | None = None) -> GpBeta:
    """The largest bound on the likelihood of each dimension's errors (Küppers et al. 2022, eq. 4).

    Raises UnfitData without rows, or where a dimension has no error at all; ValueError for
    coupled outputs.
    """
    settings = settings or ProcessSettings()
    settings.require_independent(GpBeta.method)
    rows.check()
    rows = in_one_order(rows)
    fitted = [fit_dimension(rows, i, settings) for i in range(rows.space.k)]
    return GpBeta(
        tuple(one.factor for one in fitted),
        tuple(one.line for one in fitted),
        LatentStack(
            tuple(one.inputs for one in fitted),
            tuple(one.process for one in fitted),
            tuple(one.low for one in fitted),
            tuple(one.high for one in fitted),
        ),
    )


def fit_dimension(rows: FitRows, dimension: int, settings: ProcessSettings) -> FittedDimension:
    """Of one dimension; rows in their one order."""
    deviation, worth = rows.deviation[:, dimension], float(rows.location_weight[dimension])
    errors = BetaErrors(rows.error[:, dimension] / deviation, np.log(deviation))
    start = factor_on_deviation(errors.normalised)
    # What varies over the rows looks like a heavy tail before it is found: the factor waits.
    factor, constant = refined(errors, start, BetaLine.neutral(), worth, factor_moves=False)
    likelihood = beta_likelihood(errors, factor, constant)
    loading = direction(likelihood, candidate_inputs(rows).of(rows.estimates))
    line = BetaLine(constant.base, loading)
    inputs, process = choose_inputs(likelihood.along(line), rows, worth, settings)
    if not process.latents:
        factor, constant = refined(errors, start, BetaLine.neutral(), worth)
        still = SparseProcess(settings.kernel, (0.0,))
        return FittedDimension(factor, constant, Inputs((), rows.space.k), still, 0.0, 0.0)
    points = inputs.of(rows.estimates)
    # Heavier tails than any map's are not taken for what depends on the inputs.
    share = evidence_share(likelihood.along(line).expected(*process.at(points)))
    factor, line, process = _in_turns(
        errors, factor, line, process, points, share * worth, settings
    )
    latent, _ = process.at(points)
    low, high = line.within(float(latent.min()), float(latent.max()))
    return FittedDimension(factor, line, inputs, process, low, high)


def _in_turns(
    errors: BetaErrors,
    factor: float,
    line: BetaLine,
    process: SparseProcess,
    points: FloatArray,
    weight: float,
    settings: ProcessSettings,
) -> tuple[float, BetaLine, SparseProcess]:
    """Factor and line at the latent values, the latent values at factor and line, until no turn
    gains."""
    bound = float("-inf")
    for _ in range(TURNS):
        latent = process.at(points)
        moved = refined(errors, factor, line, weight, latent)
        found, reached = fit_process(beta_likelihood(errors, *moved), points, weight, settings)
        if not reached > bound:
            break
        gain, bound = reached - bound, reached
        (factor, line), process = moved, found
        if gain < ENOUGH:
            break
    return factor, line, process
