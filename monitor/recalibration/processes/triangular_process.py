"""A triangular factor of covariances as a function of the detection: a fitted value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import Matrix, as_array, positive_definite_matrix
from monitor.recalibration.processes.latent_stack import LatentStack
from monitor.recalibration.processes.process_document import check_size, numbers_of
from monitor.recalibration.processes.triangular_factors import factor_of_weights, lower_product
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator

# Between errors of unit size weights are of the order of one.
LARGEST_VARIANCE = 50.0
# On mean squares of whitened errors: beyond it a unit is wrong.
LARGEST_MOMENT = 1e24


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
    def from_parameters(cls, parameters: object, k: int) -> TriangularProcess:
        """The inverse of parameters; raises InvalidRecalibrator."""
        if not isinstance(parameters, dict) or not isinstance(parameters.get("weights"), dict):
            raise InvalidRecalibrator(
                f"{parameters!r} must be an object with 'moment', 'weights' and 'most_uncertain'."
            )
        moment = positive_definite_matrix(parameters, "moment", k)
        check_size("moment", moment, LARGEST_MOMENT)
        weights = LatentStack.from_parameters(parameters["weights"], k)
        outputs = [process.outputs for process in weights.processes]
        if outputs != list(range(1, k + 1)):
            raise InvalidRecalibrator(
                f"'weights' has processes of {outputs} outputs: {k} dimensions need one of 1, one "
                f"of 2, up to one of {k}."
            )
        most_uncertain = numbers_of(parameters, "most_uncertain")
        if len(most_uncertain) != weights.outputs or not all(
            0 <= value <= LARGEST_VARIANCE for value in most_uncertain
        ):
            raise InvalidRecalibrator(
                f"'most_uncertain' is {most_uncertain}: it must hold {weights.outputs} variances, "
                f"at most {LARGEST_VARIANCE:g}."
            )
        found = cls(moment, weights, most_uncertain)
        found._check_root()
        return found

    def _check_root(self) -> None:
        """Raises InvalidRecalibrator where rounding leaves no root of the moment."""
        try:
            smallest = float(np.diagonal(self._root).min())
        except np.linalg.LinAlgError:
            smallest = 0.0
        if not smallest**2 >= 1 / LARGEST_MOMENT:
            raise InvalidRecalibrator(
                f"'moment' is {self.moment}: it is too near to singular, or to nothing."
            )
