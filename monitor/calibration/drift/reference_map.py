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


@dataclass(frozen=True, eq=False, slots=True)
class ReferenceMap:
    """The maps of G slices side by side, so that rows of all of them are one np.interp.

    Slice g has its part of one long axis, `width` long: ln e is clipped to its own knots first.

    shift        (G,) where its part begins
    low, high    (G,) ln e at its outmost knots
    knots        (G · KNOTS,) ln e + shift, ascending
    values       (G · KNOTS,) ln of the quantiles of χ²_K there
    floor, cap   (G,) ln e' is never beyond
    """

    shift: FloatArray
    low: FloatArray
    high: FloatArray
    knots: FloatArray
    values: FloatArray
    floor: FloatArray
    cap: FloatArray

    def mapped(self, nees: FloatArray, slices: IntArray) -> FloatArray:
        """e' of each row, (n,) in the order of the rows; see mapped().

        nees    (n,) ≥ 0, finite
        slices  (n,) number of the slice, 0 … G − 1
        """
        if nees.size == 0:
            return np.zeros(0)
        found = np.log(np.maximum(nees, _SMALLEST))
        inside = np.clip(found, self.low[slices], self.high[slices])
        at_knots = np.interp(inside + self.shift[slices], self.knots, self.values)
        # Slope 1 beyond the knots.
        beyond: FloatArray = at_knots + (found - inside)
        return np.exp(np.clip(beyond, self.floor[slices], self.cap[slices]))


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
    width = float((high - low).max(initial=0.0)) + 1.0
    shift = (np.arange(len(references)) * width - low).astype(np.float64)
    return ReferenceMap(
        shift=shift,
        low=low,
        high=high,
        knots=(knots + shift[:, None]).ravel(),
        values=np.log(usual).ravel(),
        floor=bounds[:, 0],
        cap=bounds[:, 1],
    )


def mapped(reference: Reference, nees: FloatArray) -> FloatArray:
    """e' = F_χ²^-1(F_reference(e)): χ²_K for rows of the law that the reference was learned from.

    ln e → ln e' is linear between knots, and has slope 1 beyond them: a factor stays a factor.
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
