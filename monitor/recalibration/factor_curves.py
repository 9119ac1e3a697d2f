"""What the methods share that give every detection its own factors on σ, by its predicted σ.

S Σ S with another S for each detection.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.recalibrator import Estimates

# Deviations in any unit lie between these; what is beyond would overflow when squared twice.
LEAST_DEVIATION, LARGEST_DEVIATION = 1e-12, 1e12


def deviations(estimates: Estimates) -> FloatArray:
    """(K, n) predicted σ, each dimension in one piece."""
    return np.ascontiguousarray(estimates.deviation.T)
