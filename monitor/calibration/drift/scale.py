"""By how much standard deviations are too small, from what a chart has counted."""

from __future__ import annotations

import math

from monitor.calibration.drift.alarm import Scale
from monitor.calibration.space import FloatArray

UNKNOWN = Scale(math.nan, math.nan, math.nan)
# Of a Gaussian: 95 % lie within.
_TWO_SIDED = 1.96


def scale_of(run: FloatArray, tempering: float) -> Scale:
    """√(mean x) with its 95 % interval, x = NEES/K cut at 64.

    run        (3,) detections, Σ x, Σ x²
    tempering  γ: independent detections that one is worth
    """
    n, total, square = run.tolist()
    if n < 2:
        return UNKNOWN
    mean = total / n
    variance = max(0.0, square / n - mean * mean)
    error = _TWO_SIDED * math.sqrt(variance / (n * tempering))
    return Scale(math.sqrt(mean), math.sqrt(max(0.0, mean - error)), math.sqrt(mean + error))
