"""NEES through what is usual of a slice: as χ²_K where nothing has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainccinv, gammaincinv

from monitor.calibration.drift.reference import KNOTS, Reference, chi_square_knots
from monitor.calibration.space import FloatArray, IntArray

# ln of the smallest NEES that is told from 0.
_SMALLEST = 1e-300
# Of the grid of a slice: some thirtieths of a unit of ln e wide.
CELLS = 512


@dataclass(frozen=True, eq=False, slots=True)
class ReferenceMap:
    """The maps of G slices, each on a grid of its own, even in ln e: no search, whatever row.

    low, high    (G,) ln e at the outmost knots
    scale        (G,) cells to a unit of ln e
    values       (G · (CELLS + 1),) ln of the quantiles of χ²_K at the edges of the cells
    floor, cap   (G,) ln e' is never beyond
    """

    low: FloatArray
    high: FloatArray
    scale: FloatArray
    values: FloatArray
    floor: FloatArray
    cap: FloatArray

    def mapped(self, nees: FloatArray, slices: IntArray) -> FloatArray:
        """e' of each row, (n,) in the order of the rows; see mapped().

        nees    (n,) ≥ 0, finite
        slices  (n,) number of the slice, 0 … G − 1
        """
        found = np.log(np.maximum(nees, _SMALLEST))
        low = self.low[slices]
        inside = np.minimum(np.maximum(found, low), self.high[slices])
        within = (inside - low) * self.scale[slices]
        cell = np.minimum(within.astype(np.int64), CELLS - 1)
        within -= cell
        cell += slices * (CELLS + 1)
        left = self.values[cell]
        at = left + within * (self.values[cell + 1] - left)
        # Slope 1 beyond the knots.
        at += found - inside
        at = np.minimum(np.maximum(at, self.floor[slices]), self.cap[slices])
        mapped: FloatArray = np.exp(at)
        return mapped


def reference_map(references: Sequence[Reference]) -> ReferenceMap:
    """The maps of these slices, in this order."""
    usual = np.array([chi_square_knots(one.k) for one in references]).reshape(-1, KNOTS)
    knots = np.log(
        [
            one.quantiles if one.quantiles.size else quantiles
            for one, quantiles in zip(references, usual, strict=True)
        ]
    ).reshape(-1, KNOTS)
    bounds = np.array([_bounds(one) for one in references]).reshape(-1, 2)
    low, high = knots[:, 0], knots[:, -1]
    edges = np.linspace(low, high, CELLS + 1, axis=-1)
    values = [
        np.interp(at, of_slice, quantiles)
        for at, of_slice, quantiles in zip(edges, knots, np.log(usual), strict=True)
    ]
    return ReferenceMap(
        low=low,
        high=high,
        # A reference whose NEES are all alike has no width.
        scale=CELLS / np.maximum(high - low, 1e-12),
        values=np.array(values).ravel(),
        floor=bounds[:, 0],
        cap=bounds[:, 1],
    )


def mapped(reference: Reference, nees: FloatArray) -> FloatArray:
    """e' = F_χ²^-1(F_reference(e)): χ²_K for rows of the law that the reference was learned from.

    ln e → ln e' is linear between knots, but for a cell around each, and has slope 1 beyond them: a
    factor stays a factor.
    But e' stays between the quantiles of 1/(2m) and 1 − 1/(2m), m = detections · tempering, as
    many independent ones as the reference is worth.

    What keeps E[L] ≤ 1 for a bet L that is monotone in e', on the average over references: the
    rank of a new row among m independent ones of the same law is uniform, so that it comes above
    all of them with 1/(m + 1), where it may be anything; there L is at most L(cap). For L(e')
    that grows as p^-b in the upper probability p of χ²_K, 0 ≤ b < 1, that is (2m)^b / m, and
    χ²_K itself has m^b / (m (1 − b)), more for every b. Between ranks e' is off by less than one
    rank. One single reference may be off by more, as quantiles of m rows are: that is what the
    tolerance is for. Simulated (K = 3 and 4, 2000 detections, AR(1) up to ρ = 0.9, t5): on the
    average over references E[L] ≤ 1.02 for scale bets at tolerance 1, and 0.83 is the most that
    any reference gave at tolerance √2.

    nees     (n,) ≥ 0, finite
    returns  (n,) > 0, monotone in nees; nees itself where the reference knows no quantiles
    """
    return reference_map((reference,)).mapped(nees, np.zeros(nees.size, np.int64))


def _bounds(reference: Reference) -> tuple[float, float]:
    if not reference.quantiles.size:
        return -np.inf, np.inf
    worth = max(1.0, reference.detections * reference.tempering)
    half = reference.k / 2
    outside = 1 / (2 * worth)
    return (
        float(np.log(2 * gammaincinv(half, outside))),
        float(np.log(2 * gammainccinv(half, outside))),
    )
