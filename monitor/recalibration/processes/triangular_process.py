"""A triangular factor of covariances as a function of the detection: a fitted value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import (
    Matrix,
    as_array,
    numbers,
    part,
    positive_definite_matrix,
)
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.processes.triangular_factors import factor_of_weights, lower_product
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator

# Between errors of unit size weights are of the order of one.
LARGEST_VARIANCE = 50.0


@dataclass(frozen=True)
class TriangularProcess:
    """E[u uᵀ] of errors u = W⁻¹ r that a factor W of what the detector sent has whitened.

    With A = M Mᵀ it is M G Gᵀ Mᵀ: where nothing depends on the detection G is the identity, and
    what is left is covariance scaling.

    moment          (K, K) A, the mean of u uᵀ over the rows of the fit
    weights         a process for each row of G, with inputs of its own: f_i, φ_i0 … φ_i,i−1
    most_uncertain  (K (K + 1) / 2,) largest variances of the weights over the rows of the fit:
                    served is none beyond, as none of their means
    """

    moment: Matrix
    weights: LatentStack
    most_uncertain: tuple[float, ...]

    def factor(self, estimates: Estimates) -> FloatArray:
        """M G, (K, K, n) lower triangular."""
        mean, variance = self.weights.at(estimates)
        low, high, most = self._limits
        np.clip(mean, low, high, out=mean)
        np.minimum(variance, most, out=variance)
        return lower_product(self._root[:, :, None], factor_of_weights(mean, variance))

    @cached_property
    def _limits(self) -> FloatArray:
        weights = self.weights
        return np.array([weights.low, weights.high, self.most_uncertain])[:, :, None]

    @cached_property
    def _root(self) -> FloatArray:
        return np.asarray(np.linalg.cholesky(as_array(self.moment)), dtype=np.float64)

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {
            "moment": [list(row) for row in self.moment],
            "weights": self.weights.parameters(),
            "most_uncertain": list(self.most_uncertain),
        }

    @classmethod
    def from_parameters(cls, parameters: Document, k: int) -> TriangularProcess:
        """The inverse of parameters; raises InvalidRecalibrator."""
        moment = positive_definite_matrix(parameters, "moment", k)
        weights = LatentStack.from_parameters(part(parameters, "weights"), k)
        outputs = [process.outputs for process in weights.processes]
        if outputs != list(range(1, k + 1)):
            raise InvalidRecalibrator(
                f"'weights' has processes of {outputs} outputs: {k} dimensions need one of 1, one "
                f"of 2, up to one of {k}."
            )
        most_uncertain = numbers(
            parameters, "most_uncertain", weights.outputs, 0.0, LARGEST_VARIANCE
        )
        return cls(moment, weights, most_uncertain)
