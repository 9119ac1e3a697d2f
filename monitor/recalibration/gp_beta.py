"""GP-Beta: predicted cumulative probabilities under a beta map, whose three parameters are moved by
one Gaussian process of the estimate in each dimension (Song et al. 2019; Küppers et al. 2022,
section 3).

Forwarded are mean and variance of the calibrated distribution, about the predicted mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import ClassVar

import numpy as np

from monitor.recalibration.document import factors, parts
from monitor.recalibration.processes.beta_line import BetaLine
from monitor.recalibration.processes.beta_moments import MomentTable, moment_table
from monitor.recalibration.processes.beta_quantiles import (
    LineMarginals,
    QuantileTable,
    quantile_table,
)
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.processes.single_output import single_outputs
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator, Output

# Tables of quantiles, one for each set of levels that is asked for.
KEPT = 8


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
        made = estimates.rescaled(spread.T * factor)
        mean = estimates.mean + estimates.deviation * (shift.T * factor)
        return Estimates(mean, made.covariance, made.diagonal)

    def marginals(self, estimates: Estimates) -> LineMarginals:
        """The calibrated distribution of each dimension; its moments are those of apply."""
        latent = self.latent.means(estimates)
        along = [line.at(row) for line, row in zip(self.lines, latent, strict=True)]
        a, b, c = (np.stack(parameter, axis=1) for parameter in zip(*along, strict=True))
        unit = estimates.deviation * np.array(self.factor)
        return LineMarginals(estimates.mean, unit, a, b, c, latent, self._quantiles)

    @cached_property
    def _moments(self) -> MomentTable:
        return moment_table(self.lines, self._ranges)

    @cached_property
    def _quantiles(self) -> Callable[[tuple[float, ...]], QuantileTable]:
        return lru_cache(KEPT)(partial(quantile_table, self.lines, self._ranges))

    @property
    def _ranges(self) -> tuple[tuple[float, float], ...]:
        return tuple(zip(self.latent.low, self.latent.high, strict=True))

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
        factor = factors(parameters, "factor")
        k = len(factor)
        latent = single_outputs(parameters, "latent", k)
        found = parts(parameters, "lines", k)
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
