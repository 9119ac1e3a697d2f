"""The likelihood of errors under a beta map whose three parameters lie on one line.

(log a, log b, c) = base + loading · f, f the one latent value of a detection: the three share it,
so that an expectation is a one-dimensional rule (coregionalisation of rank 1, Song et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes.beta_line import BetaLine
from monitor.recalibration.processes.beta_link import hazard
from monitor.recalibration.processes.latent_likelihood import Expected
from monitor.recalibration.processes.quadrature import (
    expected_under_normal,
    gauss_hermite,
    node_groups,
)

# Errors further out count as this many σ: one of them must not outweigh all the others.
FURTHEST = 1000.0
# |log a| and |log b| at most: far beyond what is served, so that the rule sees no kink there.
FAR = 20.0


@dataclass(frozen=True, slots=True)
class BetaErrors:
    """n errors of one dimension, as the map is to see them whatever its factor on σ.

    normalised     (n,) error/σ
    log_deviation  (n,) log σ
    """

    normalised: FloatArray
    log_deviation: FloatArray


@dataclass(frozen=True, slots=True)
class BetaLikelihood:
    """Of n errors, at a factor on σ and a line.

    t                           (n,) error/(factor · σ), at most FURTHEST
    lower, upper                (n,) log Φ(t) and log Φ(−t)
    lower_hazard, upper_hazard  (n,) φ/Φ(t) and φ/Φ(−t)
    log_unit                    (n,) log of factor · σ
    """

    t: FloatArray
    lower: FloatArray
    upper: FloatArray
    lower_hazard: FloatArray
    upper_hazard: FloatArray
    log_unit: FloatArray
    line: BetaLine

    @property
    def start(self) -> FloatArray:
        """(1,) 0: the base of the line."""
        return np.zeros(1)

    def log_likelihood(self, latent: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log density of the errors and its slope by the latent value, as latent is, (Q, n)."""
        value, slopes = self.by_parameters(latent)
        loading = self.line.loading
        return value, loading[0] * slopes[0] + loading[1] * slopes[1] + loading[2] * slopes[2]

    def by_parameters(
        self, latent: FloatArray
    ) -> tuple[FloatArray, tuple[FloatArray, FloatArray, FloatArray]]:
        """log density of the errors, and its slopes by log a, log b and c; each (Q, n).

        log G + log(1 − G) + log(a φ/Φ + b φ/(1 − Φ)) − log(factor · σ), U as in beta_link.
        """
        a, b, c = self._parameters(latent)
        below, above = a * self.lower, b * self.upper
        left, right = a * self.lower_hazard, b * self.upper_hazard
        slope = left + right
        c += below
        c -= above
        even, by_c = _logistic(c)
        value = np.log(slope * even) - np.abs(c)
        value -= self.log_unit
        below *= by_c
        above *= by_c
        by_a = np.divide(left, slope, out=left)
        by_a += below
        by_b = np.divide(right, slope, out=right)
        by_b -= above
        return value, (by_a, by_b, by_c)

    def by_log_factor(self, latent: FloatArray) -> FloatArray:
        """The slope of log density by the log of the factor on σ: −1 − t d log density/dt.

        With r = φ/Φ and h = φ/(1 − Φ): dr/dt = −r (t + r) and dh/dt = h (h − t).
        """
        a, b, c = self._parameters(latent)
        left, right = a * self.lower_hazard, b * self.upper_hazard
        slope = left + right
        bent = right * (self.upper_hazard - self.t) - left * (self.t + self.lower_hazard)
        _, by_c = _logistic(a * self.lower - b * self.upper + c)
        moved = np.where(np.abs(self.t) < FURTHEST, self.t, 0)
        return -1 - moved * (by_c * slope + bent / slope)

    def _parameters(self, latent: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """a, b and c, of latent values of any size; the slopes of a and b are not cut off where
        they are: such latent values are those of a wild step alone."""
        base, loading = self.line.base, self.line.loading
        log_a, log_b, c = (base[i] + loading[i] * latent for i in range(3))
        for logs in (log_a, log_b):
            np.clip(logs, -FAR, FAR, out=logs)
            np.exp(logs, out=logs)
        return log_a, log_b, c

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """By the fixed rule of 20 nodes; both (1, n)."""
        return expected_under_normal(self.log_likelihood, mean, variance)

    def expected_by_map(self, latent: FloatArray) -> tuple[float, FloatArray]:
        """Sum over the rows of the expectation on latent_nodes (Q, n); its slopes by the log
        factor, by the base and by the loading, (7,)."""
        _, weight = gauss_hermite(len(latent))
        total, slope = 0.0, np.zeros(7)
        for part in node_groups(*latent.shape):
            node, w = latent[part], weight[part]
            value, slopes = self.by_parameters(node)
            by_map = [self.by_log_factor(node), *slopes, *(one * node for one in slopes)]
            total += float((w @ value).sum())
            slope += [(w @ one).sum() for one in by_map]
        return total, slope

    def along(self, line: BetaLine) -> BetaLikelihood:
        """The same errors and factor, another line."""
        return BetaLikelihood(
            self.t,
            self.lower,
            self.upper,
            self.lower_hazard,
            self.upper_hazard,
            self.log_unit,
            line,
        )


def beta_likelihood(errors: BetaErrors, factor: float, line: BetaLine) -> BetaLikelihood:
    """Of errors, at a factor on σ and a line."""
    t = np.clip(errors.normalised / factor, -FURTHEST, FURTHEST)
    log_unit = errors.log_deviation + np.log(factor)
    return BetaLikelihood(t, log_ndtr(t), log_ndtr(-t), hazard(-t), hazard(t), log_unit, line)


def _logistic(u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """e^|u| G (1 − G), and 1 − 2 G, for G = sigmoid(u)."""
    small = np.exp(-np.abs(u))
    above = 1 + small
    return 1 / np.square(above), np.copysign((1 - small) / above, -u)
