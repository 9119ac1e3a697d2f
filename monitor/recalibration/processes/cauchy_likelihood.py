"""The Cauchy likelihood of errors, by the log of the factor that makes a scale of σ.

error ~ Cauchy(0, γ) with γ = w σ and log w latent (Küppers et al. 2022, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes.latent_likelihood import Expected
from monitor.recalibration.processes.quadrature import expected_under_normal
from monitor.recalibration.recalibrator import UnfitData

# |log w| at most: errors and σ of any two units of length are closer.
LARGEST_LOG = 40.0


@dataclass(frozen=True, slots=True)
class CauchyLikelihood:
    """n errors of one dimension, one latent value f = log w each.

    log_ratio      (n,) log |error| / σ, −∞ without an error
    log_deviation  (n,) log σ
    """

    log_ratio: FloatArray
    log_deviation: FloatArray

    @property
    def start(self) -> FloatArray:
        """(1,) the log w of greatest likelihood: Σ tanh(log|e/σ| − f) = 0, by bisection.

        Log-likelihoods are concave in f, so there is one.
        """
        low, high = -LARGEST_LOG, LARGEST_LOG
        for _ in range(60):
            middle = 0.5 * (low + high)
            _, slope = self.log_likelihood(np.full((1, 1), middle))
            low, high = (middle, high) if slope.sum() > 0 else (low, middle)
        return np.array([0.5 * (low + high)])

    def log_likelihood(self, latent: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log Cauchy(error; 0, e^f σ) and its slope by f, both of the shape of latent, (Q, n).

        −log(π σ) − f − log(1 + e^2u) and tanh u, with u = log|e/σ| − f.
        """
        u = self.log_ratio - latent
        small = np.exp(-2 * np.abs(u))
        value = np.log1p(small)
        value += 2 * np.maximum(u, 0)
        value += latent
        value += np.log(np.pi) + self.log_deviation
        return -value, np.copysign((1 - small) / (1 + small), u)

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """By the fixed rule of 20 nodes; both (1, n)."""
        return expected_under_normal(self.log_likelihood, mean, variance)


def cauchy_likelihood(name: str, error: FloatArray, deviation: FloatArray) -> CauchyLikelihood:
    """Of the errors (n,) of the dimension `name`, predicted with σ (n,).

    Raises UnfitData where half of the errors or more are exactly 0: the likelihood then grows
    without bound as γ falls to 0.
    """
    without = int(np.count_nonzero(error == 0))
    if 2 * without >= error.size:
        raise UnfitData(
            f"dimension '{name}' has no error at all in {without} of {error.size} rows: half of "
            "them or more, so that the scale of a Cauchy would be 0. Leave the dimension out, "
            "check the ground truth, or use gp-normal."
        )
    with np.errstate(divide="ignore"):
        ratio = np.log(np.abs(error)) - np.log(deviation)
    bounded = np.where(error == 0, -np.inf, np.clip(ratio, -LARGEST_LOG, LARGEST_LOG))
    return CauchyLikelihood(bounded, np.log(deviation))
