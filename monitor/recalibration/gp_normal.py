"""GP-Normal: a factor on the variance of each dimension that depends on the estimate, by a
Gaussian process (Küppers et al. 2022, section 3). It is fitted in gp_normal_fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.recalibration.document import whole
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.recalibrator import (
    Document,
    Estimates,
    InvalidRecalibrator,
    Output,
)


@dataclass(frozen=True)
class GpNormal:
    """Σ' = S Σ S with S = diag(√w), log w_d ~ GP (eq. 5); correlations stay.

    Served is w = E_q[e^f] = exp(m + v/2): an error whose factor is uncertain varies by the
    mean of the variances it may have, so that NEES stays right where little was seen. exp(m)
    and exp(m − v/2) fare a little worse: on boxes of the reference sets 3.1115 and 3.1134
    nats against 3.1099.

    log_factor  log w, K outputs
    """

    log_factor: LatentStack
    method: ClassVar[str] = "gp-normal"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.log_factor.outputs

    def apply(self, estimates: Estimates) -> Estimates:
        """Each estimate by its own factors; they lie within a range whatever the estimate is."""
        logs = self.log_factor.log_expectations(estimates)
        logs *= 0.5
        return estimates.rescaled(np.exp(logs, out=logs).T)

    def parameters(self) -> Document:
        """The processes with their inputs, and the range of log w."""
        return {"dimensions": self.k, **self.log_factor.parameters()}

    @classmethod
    def from_parameters(cls, parameters: Document) -> GpNormal:
        """The inverse of parameters; raises InvalidRecalibrator."""
        k = whole(parameters, "dimensions", 1, 1000)
        stack = LatentStack.from_parameters(parameters, k)
        if stack.outputs != k:
            raise InvalidRecalibrator(
                f"'processes' have {stack.outputs} outputs, 'dimensions' is {k}: there must be "
                "one for each."
            )
        return cls(stack)
