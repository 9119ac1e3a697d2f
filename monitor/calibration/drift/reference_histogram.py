"""How often each NEES came, on a fixed grid of ln e: the quantiles of a reference."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaincinv

from monitor.calibration.drift.reference import chi_square_knots, knot_levels
from monitor.calibration.space import FloatArray, IntArray

# In ln e: a quantile is off by less than one bin, 0.4 %.
WIDTH = 1 / 256
# What is outside is in the outmost bins. The lowest knot of χ²_1 is 1.6e-8.
_LOWEST, _HIGHEST = 1e-9, 1e9
_START = float(np.log(_LOWEST))
BINS = int(np.ceil((np.log(_HIGHEST) - np.log(_LOWEST)) / WIDTH))


def _nothing() -> IntArray:
    return np.zeros(BINS, np.int64)


@dataclass(slots=True)
class NeesHistogram:
    """Of one slice at one stage.

    counts  (BINS,)
    """

    counts: IntArray = field(default_factory=_nothing)

    def add(self, nees: FloatArray) -> None:
        """(n,) ≥ 0, finite."""
        ln = np.log(np.clip(nees, _LOWEST, _HIGHEST))
        place = np.clip(((ln - _START) / WIDTH).astype(np.int64), 0, BINS - 1)
        np.add.at(self.counts, place, 1)

    def quantiles(self, k: int) -> FloatArray:
        """(KNOTS,) at knot_levels(), ascending, > 0; () of nothing.

        The i-th of n has level i/(n + 1), and rows of one bin are spread evenly over it. Levels
        beyond the first and the last row go on from there as those of χ²_K do.
        """
        there = np.flatnonzero(self.counts)
        if there.size == 0:
            return np.zeros(0)
        count = self.counts[there].astype(np.float64)
        through = np.cumsum(count)
        n = through[-1]
        # The first and the last row of each bin.
        rank = np.stack([through - count + 1, through], axis=1).ravel()
        half = WIDTH / (2 * count)
        ln = (_START + there * WIDTH)[:, None] + np.stack([half, WIDTH - half], axis=1)

        levels = knot_levels()
        inside = np.clip(levels, 1 / (n + 1), n / (n + 1))
        found = np.exp(np.interp(inside * (n + 1), rank, ln.ravel()))
        further = chi_square_knots(k) / (2 * gammaincinv(k / 2, inside))
        ascending: FloatArray = np.maximum.accumulate(found * further)
        return ascending
