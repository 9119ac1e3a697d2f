"""Covariance scaling: the size and the correlation of the errors, in closed form.

Estimation, for a detector that sends variances, gives it the correlations of the
normalised residuals. Recalibration, for one that sends covariances, corrects
their size, and on request their shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.calibration.statistics import StageStatistics
from monitor.recalibration.document import (
    Matrix,
    as_array,
    as_matrix,
    factors,
    member,
    permutation,
    positive_definite_matrix,
)
from monitor.recalibration.recalibrator import Document, Estimates, Output, UnfitData
from monitor.recalibration.scale import Objective, fit_scale
from monitor.recalibration.shrinkage import (
    WIDE,
    Clamp,
    Correlated,
    Prior,
    clamped_matrix,
    own_share,
    shrunk_matrix,
    shrunk_scale,
)


class FullInput(StrEnum):
    """What is done to a full covariance."""

    SCALE = "scale"  # S Σ S: the detector's correlations stay as they are
    WHITEN = "whiten"  # L A Lᵀ, Σ = L Lᵀ: errors that still correlate after whitening are corrected


@dataclass(frozen=True, slots=True)
class CovarianceScaling:
    """Σ' = S D C D S for variances, S Σ S or L A Lᵀ for covariances.

    scale        K factors on σ, S = diag(scale)
    correlation  (K, K) C, about zero, of z = r/σ: of the residuals, not of the truth
    whitened     (K, K) A = mean of (L⁻¹r)(L⁻¹r)ᵀ, in the order `order`
    order        the dimensions in the order they are whitened in
    """

    scale: tuple[float, ...]
    correlation: Matrix
    whitened: Matrix
    order: tuple[int, ...]
    full_input: FullInput = FullInput.SCALE
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "covariance-scaling"
    output: ClassVar[Output] = Output.GAUSSIAN

    @property
    def keeps_definite(self) -> bool:
        """Not where it whitens: L A Lᵀ is as near to singular as Σ and A together."""
        return self.full_input is FullInput.SCALE

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.scale)

    def apply(self, estimates: Estimates) -> Estimates:
        """Variances become full covariances; covariances stay so."""
        diagonal = estimates.diagonal
        if diagonal.all():
            covariance = self._estimated(estimates)
        elif not diagonal.any():
            covariance = self._recalibrated(estimates)
        else:
            covariance = np.empty_like(estimates.covariance)
            covariance[diagonal] = self._estimated(estimates.take(diagonal))
            covariance[~diagonal] = self._recalibrated(estimates.take(~diagonal))
        return Estimates(estimates.mean, covariance, np.zeros_like(diagonal))

    def _estimated(self, estimates: Estimates) -> FloatArray:
        s, deviation = np.array(self.scale), estimates.deviation
        shape = as_array(self.correlation) * (s[:, None] * s)
        # The outer product first: it is symmetric to the last bit, and stays so.
        result: FloatArray = (deviation[:, :, None] * deviation[:, None, :]) * shape
        return result

    def _recalibrated(self, estimates: Estimates) -> FloatArray:
        covariance = estimates.covariance
        if self.full_input is FullInput.SCALE:
            return estimates.rescaled(np.array(self.scale)).covariance
        order = np.array(self.order)
        factor = np.linalg.cholesky(covariance[:, order[:, None], order])
        whitened = factor @ as_array(self.whitened) @ factor.transpose(0, 2, 1)
        result = np.empty_like(covariance)
        result[:, order[:, None], order] = 0.5 * (whitened + whitened.transpose(0, 2, 1))
        return result

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {
            "scale": list(self.scale),
            "correlation": [list(row) for row in self.correlation],
            "whitened": [list(row) for row in self.whitened],
            "order": list(self.order),
            "full_input": str(self.full_input),
            "objective": str(self.objective),
        }

    @classmethod
    def from_parameters(cls, parameters: Document) -> CovarianceScaling:
        """The inverse of parameters; raises InvalidRecalibrator."""
        scale = factors(parameters, "scale")
        return cls(
            scale,
            positive_definite_matrix(parameters, "correlation", len(scale)),
            positive_definite_matrix(parameters, "whitened", len(scale)),
            permutation(parameters, "order", len(scale)),
            member(parameters, "full_input", FullInput, FullInput.SCALE),
            member(parameters, "objective", Objective, Objective.MEAN),
        )


def fit(
    statistics: StageStatistics,
    objective: Objective = Objective.MEAN,
    full_input: FullInput = FullInput.SCALE,
    prior: Prior[Correlated] | None = None,
    clamp: Clamp = WIDE,
) -> CovarianceScaling:
    """Closed form from the sums, drawn towards the prior, and then clamped.

    Raises UnfitData where the rows, with the prior, do not span all dimensions, since a
    correlation of 1 would make a covariance that no tracker can invert.
    """
    scale = fit_scale(statistics, objective)
    moment = statistics.normalised / statistics.n
    size = np.sqrt(np.diagonal(moment))
    correlation = moment / (size[:, None] * size)
    whitened = statistics.whitened / statistics.n
    if objective is not Objective.MEAN:
        whitened = whitened * (np.exp(2 * np.mean(np.log(scale / size))))
    if prior is not None:
        before, share = prior.previous, own_share(statistics, prior.strength)
        scale = shrunk_scale(scale, before.scale, share[:-1])
        if before.order != statistics.space.order:
            raise UnfitData(
                f"the prior whitens dimensions in the order {before.order}, and the rows are "
                f"whitened in the order {statistics.space.order}: give a fit over the same space."
            )
        # One share for a whole matrix, or it need not stay positive definite: the least of all.
        fewest = float(share.min())
        correlation = shrunk_matrix(correlation, before.correlation, fewest)
        whitened = shrunk_matrix(whitened, before.whitened, fewest)
    for name, matrix in (("correlation", correlation), ("whitened errors", whitened)):
        if np.linalg.eigvalsh(matrix)[0] <= 1e-9 * np.trace(matrix) / len(matrix):
            raise UnfitData(
                f"the {name} of {statistics.n} rows over {statistics.space.names} are singular: "
                f"{statistics.space.k} dimensions need more rows with independent errors. "
                "Use variance-scaling or more data."
            )
    return CovarianceScaling(
        tuple(clamp.of(scale).tolist()),
        as_matrix(correlation),
        as_matrix(clamped_matrix(whitened, clamp)),
        statistics.space.order,
        full_input,
        objective,
    )
