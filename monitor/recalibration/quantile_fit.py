"""Fits the maps of isotonic-quantiles: as many pieces as the errors bear out, and not one more.

With many pieces the map is Kuleshov's isotonic regression itself, and its density follows every
whim of the rows; with one it is a shift and a scale. An information criterion says how many pay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri

from monitor.calibration.space import FloatArray
from monitor.recalibration.quantile_map import LARGEST_SLOPE, LEAST_SLOPE, QuantileMap

# Knots are even in ζ, and each ladder step halves their distance.
KNOTS = (3, 5, 9, 17, 33, 65, 129)
# Effective rows beyond each outer knot, which the slope of its tail is fitted to.
TAIL_ROWS = 20.0


def fit_map(error: FloatArray, worth: float) -> QuantileMap:
    """The map of the least p log log n − n · mean log density, p how many numbers were fitted.

    Akaike's 1 in place of log log n would now and then fit a shift to Gaussian errors that have
    none, and ½ log n would miss what a few hundred rows show of a tail.

    error  (m,) normalised errors, not all 0
    worth  how many independent rows n they are worth
    source Hannan and Quinn 1979
    """
    ordered = np.sort(error)
    share = TAIL_ROWS / worth
    # With the outer knots at the quartiles there is little left for knots to show.
    if share > 0.25:
        return _straight(0.0, ordered)
    price = math.log(math.log(worth))

    def criterion(candidate: tuple[int, QuantileMap]) -> float:
        numbers, made = candidate
        return numbers * price - worth * float(np.mean(made.log_density(ordered)))

    return min(_candidates(ordered, float(ndtri(share))), key=criterion)[1]


def _candidates(error: FloatArray, outer: float) -> Iterator[tuple[int, QuantileMap]]:
    """Maps, each with how many of its numbers are fitted."""
    yield 1, _straight(0.0, error)
    yield 2, _straight(float(np.mean(error)), error)
    for knots in KNOTS:
        yield knots + 2, _bent(error, np.linspace(outer, -outer, knots))


def _straight(shift: float, error: FloatArray) -> QuantileMap:
    """Shift and scale: Gaussian errors of this mean are likeliest under it."""
    slope = _bounded(float(np.sqrt(np.mean(np.square(error - shift)))))
    return QuantileMap((0.0,), (shift,), slope, slope)


def _bent(error: FloatArray, normal: FloatArray) -> QuantileMap:
    """Through the quantiles of the errors at Φ(ζ) of each knot."""
    quantile = np.quantile(error, ndtr(normal), method="hazen")
    # Where errors repeat, the quantile stands still: it is made to rise, or the density had no end.
    least = LEAST_SLOPE * normal
    quantile = np.maximum.accumulate(quantile - least) + least
    inner = np.diff(quantile) / np.diff(normal)
    below = _tail(quantile[0] - error[error < quantile[0]], -normal[0], inner[0])
    above = _tail(error[error > quantile[-1]] - quantile[-1], normal[-1], inner[-1])
    return QuantileMap(tuple(normal.tolist()), tuple(quantile.tolist()), below, above)


def _tail(beyond: FloatArray, knot: float, inner: float) -> float:
    """The slope s under which the errors beyond an outer knot are likeliest.

    Their log density is −½ (ζ_J + e/s)² − log s but for a constant, e by how much they are beyond:
    its derivative is 0 where s² − ζ_J E[e] s − E[e²] = 0.

    beyond  (m,) positive; without any, the slope of the next piece is taken
    knot    ζ_J, positive
    """
    if beyond.size == 0:
        return _bounded(inner)
    first, second = float(np.mean(beyond)), float(np.mean(np.square(beyond)))
    half = 0.5 * knot * first
    return _bounded(half + float(np.sqrt(half * half + second)))


def _bounded(slope: float) -> float:
    return float(min(max(slope, LEAST_SLOPE), LARGEST_SLOPE))
