"""What a likelihood must tell a variational Gaussian process: its expectation, with derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from monitor.calibration.space import FloatArray


@dataclass(frozen=True, slots=True)
class Expected:
    """E_q[log p(error | f)] under f_j ~ N(mean_j, variance_j), independent over the J outputs.

    value        (n,) in nats
    by_mean      (J, n) its derivative by the mean of each output
    by_variance  (J, n) and by the variance
    """

    value: FloatArray
    by_mean: FloatArray
    by_variance: FloatArray


class LatentLikelihood(Protocol):
    """How likely the errors of n detections are, given J latent values at each."""

    @property
    def start(self) -> FloatArray:
        """(J,) constant latent values to begin with: best where nothing depends on the input."""
        ...

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """The expectation under Gaussians; both (J, n)."""
        ...
