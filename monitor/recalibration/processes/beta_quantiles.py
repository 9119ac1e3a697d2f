"""Quantiles of beta maps of a standard Gaussian, and a table of them along a line.

A map has one latent value, so that for given levels a table of it serves all detections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes import beta_link
from monitor.recalibration.processes.beta_line import BetaLine
from monitor.recalibration.processes.beta_marginals import BetaMarginals, log_odds

# Intervals of a table, cubic within each: as many as it takes for the log-odds of a quantile to
# be its level's to this in their middle, where they are furthest off.
_FEWEST, _MOST = 64, 1024
_CLOSE = 2e-9


@dataclass(frozen=True, slots=True)
class QuantileTable:
    """Quantiles of K dimensions' maps at T levels, over the range of each one's latent value.

    low, step  (K, 1) of the range and of an interval
    cubic      (4, T, K · intervals) in the share of an interval, the highest power first
    """

    low: FloatArray
    step: FloatArray
    cubic: FloatArray

    def at(self, latent: FloatArray) -> FloatArray:
        """(T, K, n) in deviations of the Gaussian that is mapped; latent (K, n) in the range."""
        intervals = self.cubic.shape[2] // len(latent)
        position = (latent - self.low) / self.step
        interval = np.clip(position.astype(np.int64), 0, intervals - 1)
        share = position - interval
        interval += intervals * np.arange(len(latent))[:, None]
        found: FloatArray = self.cubic[0].take(interval, axis=1)
        for power in (1, 2, 3):
            found *= share
            found += self.cubic[power].take(interval, axis=1)
        return found


def quantile_table(
    lines: tuple[BetaLine, ...], ranges: tuple[tuple[float, float], ...], tau: tuple[float, ...]
) -> QuantileTable:
    """Of one line a dimension and the range of its latent value, at levels within (0, 1)."""
    odds = log_odds(np.array(tau))[:, None]
    intervals = _FEWEST
    while True:
        cubics = [
            _cubic(line, *ends, odds, intervals) for line, ends in zip(lines, ranges, strict=True)
        ]
        gaps = [
            _gap(line, *ends, odds, cubic)
            for line, ends, cubic in zip(lines, ranges, cubics, strict=True)
        ]
        if max(gaps) <= _CLOSE or intervals >= _MOST:
            break
        intervals *= 2
    low, high = np.array(ranges).T[:, :, None]
    width = (high - low) / intervals
    # Of a range without width all is in the first interval, at its beginning.
    return QuantileTable(low, np.where(width > 0, width, 1.0), np.concatenate(cubics, axis=2))


@dataclass(frozen=True, slots=True)
class LineMarginals(BetaMarginals):
    """Those of maps on lines, whose quantiles are read off tables.

    latent  (K, n)
    """

    latent: FloatArray
    table: Callable[[tuple[float, ...]], QuantileTable]

    def standard_quantiles(self, tau: FloatArray) -> FloatArray:
        """(T, n, K)"""
        return self.table(tuple(tau.tolist())).at(self.latent).transpose(0, 2, 1)


def _cubic(line: BetaLine, low: float, high: float, odds: FloatArray, intervals: int) -> FloatArray:
    """(4, T, intervals) cubics through the quantiles t at the ends, with their slopes.

    U(t, f) is the same along a quantile: dt/df = −(∂U/∂f)/(∂U/∂t).
    """
    width = (high - low) / intervals
    a, b, c = line.at(low + width * np.arange(intervals + 1.0))
    t = beta_link.standard_quantile(odds, a, b, c)
    by_latent = line.loading[0] * a * log_ndtr(t) - line.loading[1] * b * log_ndtr(-t)
    slope = -width * (by_latent + line.loading[2]) / beta_link.slope(t, a, b)
    left, right, rise = slope[:, :-1], slope[:, 1:], np.diff(t, axis=1)
    return np.stack([left + right - 2 * rise, 3 * rise - 2 * left - right, left, t[:, :-1]])


def _gap(line: BetaLine, low: float, high: float, odds: FloatArray, cubic: FloatArray) -> float:
    """The most by which log-odds in the middle of an interval are not those of the level."""
    intervals = cubic.shape[2]
    middle = low + (high - low) / intervals * (np.arange(intervals) + 0.5)
    t = ((cubic[0] / 2 + cubic[1]) / 2 + cubic[2]) / 2 + cubic[3]
    return float(np.abs(beta_link.logit(t, *line.at(middle)) - odds).max())
