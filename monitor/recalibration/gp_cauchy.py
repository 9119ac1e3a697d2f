"""GP-Cauchy: errors with heavy tails as Cauchy distributions, their scale γ = w σ with log w a
Gaussian process of the estimate, one for each dimension (Küppers et al. 2022, section 3).

A Cauchy has no variance, so that UCE and ENCE are not defined for it. What is forwarded is a
Gaussian that holds a stated share of the mass in the same central interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import number
from monitor.recalibration.processes.cauchy_marginals import CauchyMarginals, surrogate_ratio
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.processes.single_output import single_outputs
from monitor.recalibration.recalibrator import Document, Estimates, Output

# The share of a Gaussian within one σ.
SURROGATE_LEVEL = 0.6827
# Levels that surrogates are made of; beyond them σ_s/γ is that of a point or of no interval.
LEVELS = (0.001, 0.9999)


@dataclass(frozen=True)
class GpCauchy:
    """Cauchy(mean, γ), γ = e^m σ with m = E[log w] at the estimate.

    With e^m, and no term for the variance of log w, half of the errors lie within ±γ however
    wide the posterior is: log |error|/γ and log w are both symmetric about their centres.

    log_weight       of each dimension
    surrogate_level  p of γ tan(π p/2) = σ_s Φ⁻¹((1 + p)/2), σ_s the deviation forwarded
    """

    log_weight: LatentStack
    surrogate_level: float = SURROGATE_LEVEL
    method: ClassVar[str] = "gp-cauchy"
    output: ClassVar[Output] = Output.SURROGATE
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.log_weight.outputs

    def apply(self, estimates: Estimates) -> Estimates:
        """S Σ S with S = diag(σ_s/σ): correlations and means stay."""
        weight = np.exp(self.log_weight.means(estimates))
        return estimates.rescaled((weight * surrogate_ratio(self.surrogate_level)).T)

    def marginals(self, estimates: Estimates) -> CauchyMarginals:
        """The Cauchy of each dimension."""
        return CauchyMarginals(estimates.mean, self._scale(estimates))

    def _scale(self, estimates: Estimates) -> FloatArray:
        """(n, K) γ."""
        scale: FloatArray = estimates.deviation * np.exp(self.log_weight.means(estimates)).T
        return scale

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {"log_weight": self.log_weight.parameters(), "surrogate_level": self.surrogate_level}

    @classmethod
    def from_parameters(cls, parameters: Document) -> GpCauchy:
        """The inverse of parameters; raises InvalidRecalibrator."""
        level = number(parameters, "surrogate_level", *LEVELS)
        return cls(single_outputs(parameters, "log_weight"), level)
