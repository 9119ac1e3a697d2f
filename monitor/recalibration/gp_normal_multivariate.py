"""GP-Normal for all dimensions at once: sizes and correlations of the errors that depend on the
detection (Küppers et al. 2022, section 3, covariance estimation and recalibration).

Fitting lives in gp_normal_multivariate_fit; nothing here needs an optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import factors, part, permutation
from monitor.recalibration.processes.triangular_factors import (
    keep_definite,
    lower_factor,
    lower_product,
    squared,
)
from monitor.recalibration.processes.triangular_process import TriangularProcess
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator, Output


@dataclass(frozen=True)
class GpNormalMultivariate:
    """Σ̂ = W M G Gᵀ Mᵀ Wᵀ: W = diag(σ) of variances, W = L of covariances Σ = L Lᵀ.

    M and G are those of a TriangularProcess. Weights are served by the moments of their
    posterior: Σ̂ is the second moment of an error under it (row_of_factor), without any sampling.

    order        the dimensions in the order of the triangles
    scale        (K,) root mean square of r/σ over all rows of the fit: a form of covariance
                 that was not in them is only scaled, S Σ S, and its correlations stay
    variances    for detections that come with variances: covariance estimation
    covariances  for detections that come with covariances, and for any of one dimension
    """

    order: tuple[int, ...]
    scale: tuple[float, ...]
    variances: TriangularProcess | None
    covariances: TriangularProcess | None
    method: ClassVar[str] = "gp-normal-multivariate"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.scale)

    def apply(self, estimates: Estimates) -> Estimates:
        """Variances become full covariances where they were fitted; covariances stay so."""
        # One variance is a whole covariance.
        alone = estimates.diagonal & (self.k > 1)
        if alone.all():
            covariance = self._estimated(estimates)
        elif not alone.any():
            covariance = self._recalibrated(estimates)
        else:
            covariance = np.empty_like(estimates.covariance)
            covariance[alone] = self._estimated(estimates.take(alone))
            covariance[~alone] = self._recalibrated(estimates.take(~alone))
        diagonal = alone if self.variances is None else np.zeros_like(alone)
        return Estimates(estimates.mean, covariance, diagonal)

    def _estimated(self, estimates: Estimates) -> FloatArray:
        if self.variances is None:
            return estimates.rescaled(np.array(self.scale)).covariance
        deviation = estimates.deviation.T[np.array(self.order)]
        factor = deviation[:, None] * self.variances.factor(estimates)
        return self._assembled(factor)

    def _recalibrated(self, estimates: Estimates) -> FloatArray:
        if self.covariances is None:
            return estimates.rescaled(np.array(self.scale)).covariance
        own = lower_factor(_permuted(estimates.covariance, self.order))
        factor = lower_product(own, self.covariances.factor(estimates))
        return self._assembled(factor)

    def _assembled(self, factor: FloatArray) -> FloatArray:
        made = squared(factor)
        keep_definite(made, factor)
        back = np.argsort(self.order)
        return _permuted(made, tuple(back.tolist()))

    def parameters(self) -> Document:
        """All fields, as JSON values; without the forms that were not fitted."""
        content: Document = {"order": list(self.order), "scale": list(self.scale)}
        if self.variances is not None:
            content["variances"] = self.variances.parameters()
        if self.covariances is not None:
            content["covariances"] = self.covariances.parameters()
        return content

    @classmethod
    def from_parameters(cls, parameters: Document) -> GpNormalMultivariate:
        """The inverse of parameters; raises InvalidRecalibrator."""
        scale = factors(parameters, "scale")
        k = len(scale)
        order = permutation(parameters, "order", k)
        variances, covariances = (
            TriangularProcess.from_parameters(part(parameters, name), k)
            if name in parameters
            else None
            for name in ("variances", "covariances")
        )
        if covariances is None and (variances is None or k == 1):
            raise InvalidRecalibrator(
                "'covariances' is missing"
                + (": one dimension needs it." if k == 1 else ", and so is 'variances': give one.")
            )
        return cls(order, scale, variances, covariances)


def _permuted(covariance: FloatArray, order: tuple[int, ...]) -> FloatArray:
    """Rows and columns in another order."""
    if order == tuple(range(len(order))):
        return covariance
    places = np.array(order)
    permuted: FloatArray = covariance[:, places[:, None], places]
    return permuted
