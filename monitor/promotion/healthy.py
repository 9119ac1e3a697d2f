"""Slices that need no fit: so that beside a healthy detector no process runs at all."""

from __future__ import annotations

import numpy as np

from monitor.promotion.settings import FitSettings
from monitor.recalibration.covariance_scaling import CovarianceScaling
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.scale import Objective
from monitor.recalibration.variance_scaling import VarianceScaling


def looks_healthy(rows: FitRows, settings: FitSettings, band: tuple[float, float]) -> bool:
    """Whether a fit of rows as sent is sure to lie within the band, so that it would lead home.

    So it is with a scaling where the mean squared normalised error of every dimension does: that is
    its factor on the variance, before it is drawn towards 1. Of other methods nothing is sure.
    """
    scales = settings.method in (VarianceScaling.method, CovarianceScaling.method)
    if not scales or settings.objective not in (None, Objective.MEAN):
        return False
    factor = np.square(rows.error / rows.deviation).mean(axis=0)
    return bool(((band[0] <= factor) & (factor <= band[1])).all())
