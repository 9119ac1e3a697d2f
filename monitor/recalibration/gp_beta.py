"""GP-Beta: predicted cumulative probabilities under a beta map, whose three parameters are moved by
one Gaussian process of the estimate in each dimension (Song et al. 2019; Küppers et al. 2022,
section 3).

Forwarded are mean and variance of the calibrated distribution, about the predicted mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import positive_numbers
from monitor.recalibration.processes.beta_line import BetaLine
from monitor.recalibration.processes.beta_marginals import BetaMarginals
from monitor.recalibration.processes.beta_moments import MomentTable, moment_table
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.processes.single_output import single_outputs
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator, Output

# Of the factors on σ: beyond it a unit is wrong.
LARGEST_FACTOR = 1e12


@dataclass(frozen=True)
class GpBeta:
    """G = sigmoid(a log F − b log(1 − F) + c) with F = Φ((y − mean)/(factor σ)).

    The factor is one number a dimension: a beta map of a Gaussian far too narrow has a dip in
    the middle, so that the overall size is set first. (log a, log b, c) lie on a line at the
    posterior mean of the latent value. With the mean, and no average over the posterior, all
    that is said of a detection is of one distribution in closed form; the posterior is narrow
    (variance 0.004 on 2000 rows, where the average changes the likelihood by 1e-4 nats).

    factor  (K,) on σ
    lines   (K,) of the three parameters
    latent  of each dimension
    """

    factor: tuple[float, ...]
    lines: tuple[BetaLine, ...]
    latent: LatentStack
    method: ClassVar[str] = "gp-beta"
    output: ClassVar[Output] = Output.MOMENTS
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.factor)

    def apply(self, estimates: Estimates) -> Estimates:
        """The mean moved, and S Σ S: correlations stay."""
        shift, spread = self._moments.at(self.latent.means(estimates))
        factor = np.array(self.factor)
        scale = spread.T * factor
        mean = estimates.mean + _deviation(estimates) * (shift.T * factor)
        covariance = estimates.covariance * (scale[:, :, None] * scale[:, None, :])
        return Estimates(mean, covariance, estimates.diagonal)

    def marginals(self, estimates: Estimates) -> BetaMarginals:
        """The calibrated distribution of each dimension; its moments are those of apply."""
        latent = self.latent.means(estimates)
        along = [line.at(row) for line, row in zip(self.lines, latent, strict=True)]
        a, b, c = (np.stack(parameter, axis=1) for parameter in zip(*along, strict=True))
        unit = _deviation(estimates) * np.array(self.factor)
        return BetaMarginals(estimates.mean, unit, a, b, c)

    @cached_property
    def _moments(self) -> MomentTable:
        ranges = tuple(zip(self.latent.low, self.latent.high, strict=True))
        return moment_table(self.lines, ranges)

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {
            "factor": list(self.factor),
            "lines": [line.parameters() for line in self.lines],
            "latent": self.latent.parameters(),
        }

    @classmethod
    def from_parameters(cls, parameters: Document) -> GpBeta:
        """The inverse of parameters; raises InvalidRecalibrator."""
        factor = positive_numbers(parameters, "factor")
        if not all(1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR for value in factor):
            raise InvalidRecalibrator(
                f"'factor' is {factor}: factors on σ must be from {1 / LARGEST_FACTOR:g} to "
                f"{LARGEST_FACTOR:g}."
            )
        k = len(factor)
        latent = single_outputs(parameters, "latent", k)
        found = parameters.get("lines")
        if not isinstance(found, list) or len(found) != k:
            raise InvalidRecalibrator(f"'lines' is {found!r}: it must be a list of {k} lines.")
        lines = tuple(BetaLine.from_parameters(line) for line in found)
        for i, line in enumerate(lines):
            if not line.bounded(latent.low[i], latent.high[i]):
                raise InvalidRecalibrator(
                    f"'lines' at {i} leaves the bounds of log a, log b or c for latent values from "
                    f"{latent.low[i]} to {latent.high[i]}: narrow 'low' and 'high', or fit again."
                )
        model = cls(factor, lines, latent)
        # Made now: the first frame must not wait for the table.
        _ = model._moments
        return model


def _deviation(estimates: Estimates) -> FloatArray:
    deviation: FloatArray = np.sqrt(np.diagonal(estimates.covariance, axis1=1, axis2=2))
    return deviation
