"""Variance scaling: one factor on σ for each dimension (Levi et al. 2019, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.calibration.statistics import StageStatistics
from monitor.recalibration.document import factors, member
from monitor.recalibration.recalibrator import Document, Estimates, Output
from monitor.recalibration.scale import Objective, fit_scale
from monitor.recalibration.shrinkage import WIDE, Clamp, Prior, Scaled, own_share, shrunk_scale


@dataclass(frozen=True, slots=True)
class VarianceScaling:
    """Σ' = S Σ S with S = diag(scale).

    scale      K factors on σ, positive
    objective  what they satisfy
    """

    scale: tuple[float, ...]
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "variance-scaling"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.scale)

    def apply(self, estimates: Estimates) -> Estimates:
        """Every dimension on its own scale; correlations stay."""
        return estimates.rescaled(np.array(self.scale))

    def parameters(self) -> Document:
        """scale and objective."""
        return {"scale": list(self.scale), "objective": str(self.objective)}

    @classmethod
    def from_parameters(cls, parameters: Document) -> VarianceScaling:
        """The inverse of parameters; raises InvalidRecalibrator."""
        return cls(
            factors(parameters, "scale"),
            member(parameters, "objective", Objective, Objective.MEAN),
        )


def fit(
    statistics: StageStatistics,
    objective: Objective = Objective.MEAN,
    prior: Prior[Scaled] | None = None,
    clamp: Clamp = WIDE,
) -> VarianceScaling:
    """Closed form from the sums, drawn towards the prior, and then clamped. Raises UnfitData."""
    scale = fit_scale(statistics, objective)
    if prior is not None:
        share = own_share(statistics, prior.strength)
        scale = shrunk_scale(scale, prior.previous.scale, share[:-1])
    return VarianceScaling(tuple(clamp.of(scale).tolist()), objective)
