"""Detections with their truth, as the methods that need rows are fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.calibration.clusters import design_effect_of_rows
from monitor.calibration.space import FloatArray, IntArray, Space
from monitor.recalibration.recalibrator import Estimates, UnfitData


@dataclass(frozen=True)
class FitRows:
    """n usable detections with truth.

    error  (n, K) truth − mean, angles wrapped
    track  (n,) number of the object each is of, −1 where it is of none; errors of one object
           are correlated, so that its rows are worth less than as many objects
    """

    space: Space
    estimates: Estimates
    error: FloatArray
    track: IntArray

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.error.shape[0])

    @cached_property
    def deviation(self) -> FloatArray:
        """(n, K) predicted σ."""
        variance = np.diagonal(self.estimates.covariance, axis1=1, axis2=2)
        return np.sqrt(variance)

    @cached_property
    def tracks(self) -> int:
        """Objects; a row without a track is one of its own."""
        alone = int(np.count_nonzero(self.track < 0))
        return alone + int(np.unique(self.track[self.track >= 0]).size)

    @cached_property
    def weight(self) -> float:
        """What a row is worth, in (0, 1]: 1 over the largest design effect of a dimension."""
        if self.n == 0 or self.tracks == self.n:
            return 1.0
        nees = np.square(self.error / self.deviation)
        effect = design_effect_of_rows(nees, np.ones(self.space.k), self.track)
        return float(1 / max(1.0, np.max(effect)))

    def take(self, rows: IntArray) -> FitRows:
        """Some of them."""
        sent = self.estimates
        part = Estimates(sent.mean[rows], sent.covariance[rows], sent.diagonal[rows])
        return FitRows(self.space, part, self.error[rows], self.track[rows])

    def check(self) -> None:
        """Raises UnfitData without rows, or where a dimension has no error at all."""
        if self.n == 0:
            raise UnfitData(
                "cannot fit on 0 detections with ground truth: widen the selection of rows."
            )
        for name, error in zip(self.space.names, self.error.T, strict=True):
            if not error.any():
                raise UnfitData(
                    f"dimension '{name}' has no error in {self.n} rows: nothing can be fitted to "
                    "it. Leave the dimension out or check the ground truth."
                )
