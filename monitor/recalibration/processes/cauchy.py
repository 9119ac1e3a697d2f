"""GP-Cauchy: errors with heavy tails as Cauchy distributions whose scale depends on the estimate.

error ~ Cauchy(0, γ) with γ = w σ and log w a Gaussian process of the estimate, one for each
dimension (Küppers et al. 2022, section 3).

A Cauchy has no variance, so that UCE and ENCE are not defined for it. What is forwarded is a
Gaussian that holds a stated share of the mass in the same central interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval
from scipy.special import ndtri

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.methods import INDUCING, SURROGATE_LEVEL, SURROGATE_LEVELS
from monitor.recalibration.processes.process_fit import choose_inputs
from monitor.recalibration.processes.sparse_process import LatentStack, ScalarLikelihood
from monitor.recalibration.recalibrator import Output, Recalibrator, UnfitData

# |log w| at most: errors and σ of any two units of length are closer.
LARGEST_LOG = 40.0


@dataclass(frozen=True, slots=True)
class CauchyLikelihood(ScalarLikelihood):
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


def cauchy_likelihood(name: str, error: FloatArray, deviation: FloatArray) -> CauchyLikelihood:
    """Prepares the likelihood of errors (n,) of the dimension `name`, predicted with σ (n,).

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


@dataclass(frozen=True, slots=True)
class CauchyMarginals:
    """n × K Cauchy distributions; mean and variance of such are undefined.

    location, scale  (n, K); scale is γ, half of the mass lies within ±γ
    """

    location: FloatArray
    scale: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        """−log(π γ) − log(1 + t²), t = (value − location)/γ."""
        t = np.abs(value - self.location) / self.scale
        # 1 + t² as (hypot)², which does not overflow.
        density: FloatArray = -np.log(np.pi * self.scale) - 2 * np.log(np.hypot(1, t))
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        """1/2 + arctan(t)/π."""
        # arctan2(1, −t)/π is the same, without a cancellation in the lower tail.
        t = (value - self.location) / self.scale
        return np.arctan2(1.0, -t) / np.pi

    def quantiles(self, tau: FloatArray) -> FloatArray:
        """location + γ tan(π (τ − 1/2)); infinite at 0 and 1."""
        with np.errstate(divide="ignore"):
            # −cot(π τ) below one half: the tangent loses the small τ.
            unit = np.where(
                tau < 0.5, -1 / np.tan(np.pi * np.minimum(tau, 0.5)), np.tan(np.pi * (tau - 0.5))
            )
        unit = np.where(tau == 1, np.inf, unit)
        return self.location + self.scale * unit[:, None, None]

    def crps(self, value: FloatArray) -> FloatArray:
        """γ (2 t arctan t − log(1 + t²) + 2 log 2)/π, t = (value − location)/γ.

        The integral of (F(x) − 1{x ≥ value})² exists although a Cauchy has no mean, but the mean
        over rows whose errors are Cauchy grows with their number.
        """
        t = np.abs(value - self.location) / self.scale
        # log(1 + t²) as 2 log hypot, which does not overflow.
        score: FloatArray = 2 * (t * np.arctan(t) - np.log(np.hypot(1, t)) + np.log(2)) / np.pi
        return self.scale * score


def surrogate_ratio(level: float) -> float:
    """σ_s/γ of the Gaussian with the same central interval: it holds the share `level` of both.

    γ tan(π level/2) = σ_s Φ⁻¹((1 + level)/2).
    """
    return math.tan(math.pi * level / 2) / float(ndtri((1 + level) / 2))


@dataclass(frozen=True)
class GpCauchy(Recalibrator):
    """Cauchy(mean, γ), γ = e^m σ with m = E[log w] at the estimate.

    With e^m, and no term for the variance of log w, half of the errors lie within ±γ however
    wide the posterior is: log |error|/γ and log w are both symmetric about their centres.

    log_weight       of each dimension
    surrogate_level  p of γ tan(π p/2) = σ_s Φ⁻¹((1 + p)/2), σ_s the deviation forwarded
    """

    log_weight: LatentStack
    surrogate_level: Annotated[float, Interval(ge=SURROGATE_LEVELS[0], le=SURROGATE_LEVELS[1])]
    method: ClassVar[str] = "gp-cauchy"
    output = Output.SURROGATE

    def __post_init__(self) -> None:
        self.log_weight.check_dimensions(self.k, [1] * self.k)

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
        scale = estimates.deviation * np.exp(self.log_weight.means(estimates)).T
        return CauchyMarginals(estimates.mean, scale)


def fit_gp_cauchy(
    rows: FitRows, inducing: int = INDUCING, surrogate_level: float = SURROGATE_LEVEL
) -> GpCauchy:
    """Maximises the bound on the likelihood of errors by dimension (Küppers et al. 2022, eq. 4).

    surrogate_level  the central interval in which the Cauchy and the Gaussian forwarded agree,
                     within SURROGATE_LEVELS
    raises           UnfitData without rows, and where half of a dimension's errors or more are
                     exactly 0
    """
    rows = prepared(rows)
    fitted = []
    for i, name in enumerate(rows.space.names):
        likelihood = cauchy_likelihood(name, rows.error[:, i], rows.deviation[:, i])
        fitted.append(choose_inputs(likelihood, rows, float(rows.size_weight[i]), inducing))
    return GpCauchy(LatentStack.of(fitted, rows.estimates), surrogate_level)
