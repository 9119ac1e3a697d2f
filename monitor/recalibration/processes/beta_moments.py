"""Mean and variance of beta maps of a standard Gaussian, and a table of them along a line.

Taken about the mean of the Gaussian, in its deviations: nothing depends on where a detection
lies, so that large coordinates lose no digits. A map has one latent value, hence a table of it
serves all detections.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import expit, log_ndtr

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes import beta_link
from monitor.recalibration.processes.beta_line import BetaLine

# Between quantiles of these log-odds, Gauss–Legendre rules of ORDER nodes: each piece of the
# density is smooth, however narrow or skewed it is. Outside lie 1e-17 of the mass.
_PIECES, _ORDER, _FURTHEST_ODDS = 16, 10, 40.0
# Intervals of a table; cubic within each, so that the error is that of the rule.
_INTERVALS = 64


@dataclass(frozen=True, slots=True)
class BetaMoments:
    """m maps' mean and log variance, each with its slope along the line; all (m,)."""

    mean: FloatArray
    log_variance: FloatArray
    mean_slope: FloatArray
    log_variance_slope: FloatArray


def moments(line: BetaLine, latent: FloatArray) -> BetaMoments:
    """Of the maps at m points of a line, (m,), in deviations of the Gaussian that is mapped.

    mean = ∫ t dG and variance = ∫ (t − mean)² dG, the mass on the nodes brought to 1;
    dmean/df = −∫ G' dt and dvariance/df = −2 ∫ (t − mean) G' dt, with G' = G (1 − G) dU/df.
    """
    a, b, c = (parameter[:, None] for parameter in line.at(latent))
    odds, node, weight = _rule()
    edge = beta_link.standard_quantile(odds, a, b, c)
    half = 0.5 * np.diff(edge)[..., None]
    t = (0.5 * (edge[:, 1:] + edge[:, :-1])[..., None] + half * node).reshape(latent.size, -1)
    weight = (half * weight).reshape(latent.size, -1)
    # The two parts of U, once: they are most of the work.
    part_a, part_b = a * log_ndtr(t), -b * log_ndtr(-t)
    density = expit(part_a + part_b + c)
    density *= 1.0 - density
    mass = weight * density * beta_link.slope(t, a, b)
    mass /= mass.sum(axis=1, keepdims=True)
    mean = (mass * t).sum(axis=1)
    centred = t - mean[:, None]
    variance = (mass * centred**2).sum(axis=1)
    moved = line.loading[0] * part_a + line.loading[1] * part_b + line.loading[2]
    change = weight * density * moved
    return BetaMoments(
        mean,
        np.log(variance),
        -change.sum(axis=1),
        -2 * (centred * change).sum(axis=1) / variance,
    )


@dataclass(frozen=True, slots=True)
class MomentTable:
    """Mean and deviation of K dimensions' maps over the range of each one's latent value.

    low, step  (K, 1) of the range and of an interval
    cubic      (2, 4, K · intervals) of mean and log deviation in the share of an interval, the
               highest power first
    """

    low: FloatArray
    step: FloatArray
    cubic: FloatArray

    def at(self, latent: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and deviation, both (K, n), at latent values (K, n) within the range."""
        position = (latent - self.low) / self.step
        interval = np.clip(position.astype(np.int64), 0, _INTERVALS - 1)
        share = position - interval
        interval += _INTERVALS * np.arange(len(latent))[:, None]
        cubic = self.cubic.take(interval, axis=2)
        found = cubic[:, 0] * share
        for power in (1, 2, 3):
            found += cubic[:, power]
            if power < 3:
                found *= share
        return found[0], np.exp(found[1])


def moment_table(
    lines: tuple[BetaLine, ...], ranges: tuple[tuple[float, float], ...]
) -> MomentTable:
    """Of one line a dimension and the range of its latent value."""
    steps, cubics = [], []
    for line, (low, high) in zip(lines, ranges, strict=True):
        width = (high - low) / _INTERVALS
        grid: FloatArray = low + width * np.arange(_INTERVALS + 1.0)
        found = moments(line, grid)
        cubics.append(
            np.stack(
                [
                    _hermite(found.mean, width * found.mean_slope),
                    _hermite(0.5 * found.log_variance, 0.5 * width * found.log_variance_slope),
                ]
            )
        )
        # Of a range without width all is in the first interval, at its beginning.
        steps.append(width if width > 0 else 1.0)
    lowest = np.array([[low] for low, _ in ranges])
    return MomentTable(lowest, np.array(steps)[:, None], np.concatenate(cubics, axis=2))


@cache
def _rule() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log-odds of the pieces' ends, nodes and weights in a piece; denser in the middle."""
    spread = np.sinh(3 * np.linspace(-1, 1, _PIECES + 1)) / np.sinh(3.0)
    node, weight = np.polynomial.legendre.leggauss(_ORDER)
    return _FURTHEST_ODDS * spread, node, weight


def _hermite(value: FloatArray, slope: FloatArray) -> FloatArray:
    """(4, m − 1) cubics between m values with these slopes an interval."""
    left, right, rise = slope[:-1], slope[1:], np.diff(value)
    return np.stack([left + right - 2 * rise, 3 * rise - 2 * left - right, left, value[:-1]])
