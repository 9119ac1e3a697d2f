"""Detections with their truth, as the methods that need rows are fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.calibration.space import FloatArray, IntArray, Space
from monitor.recalibration.fit_checks import check_errors
from monitor.recalibration.recalibrator import Estimates
from monitor.recalibration.row_worth import effect_on_mean, effect_on_mean_square

# In σ: no error is larger for what it says of others, so that its square is finite.
_LARGEST = 1e100


@dataclass(frozen=True)
class FitRows:
    """n usable detections with truth.

    error  (n, K) truth − mean, angles wrapped
    track  (n,) number of the object each is of, −1 where it is of none; errors of one object
           are correlated, so that its rows are worth less than as many objects
    time_s, delay_s
           (n,) event time of each, from any moment on, and how much later its truth came; None
           where that is not known
    """

    space: Space
    estimates: Estimates
    error: FloatArray
    track: IntArray
    time_s: FloatArray | None = None
    delay_s: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.error.shape[0])

    @cached_property
    def deviation(self) -> FloatArray:
        """(n, K) predicted σ."""
        return self.estimates.deviation

    @cached_property
    def tracks(self) -> int:
        """Objects; a row without a track is one of its own."""
        alone = int(np.count_nonzero(self.track < 0))
        return alone + int(np.unique(self.track[self.track >= 0]).size)

    @cached_property
    def size_weight(self) -> FloatArray:
        """(K,) what a row is worth where sizes of errors are fitted, in (0, 1].

        1 over the design effect of z², z = error/σ of the dimension, in any unit of σ.
        """
        if self.n == 0 or self.tracks == self.n:
            return np.ones(self.space.k)
        return 1 / effect_on_mean_square(np.square(self._normalised), self.track)

    @cached_property
    def location_weight(self) -> FloatArray:
        """(K,) what a row is worth where their location is fitted too, in (0, 1].

        1 over the larger of the design effects of z and z²: with a correlation ρ of z within a
        track, that of z² is ρ² for Gaussians.
        """
        if self.n == 0 or self.tracks == self.n:
            return np.ones(self.space.k)
        return np.minimum(self.size_weight, 1 / effect_on_mean(self._normalised, self.track))

    @property
    def weight(self) -> float:
        """What a row is worth for the sizes of errors in every dimension: the least, in (0, 1]."""
        return float(self.size_weight.min())

    @property
    def _normalised(self) -> FloatArray:
        return np.clip(self.error / self.deviation, -_LARGEST, _LARGEST)

    def take(self, rows: IntArray) -> FitRows:
        """Some of them."""
        return FitRows(
            self.space,
            self.estimates.take(rows),
            self.error[rows],
            self.track[rows],
            None if self.time_s is None else self.time_s[rows],
            None if self.delay_s is None else self.delay_s[rows],
        )

    def check(self) -> None:
        """Raises UnfitData without rows, or where a dimension has no error at all."""
        check_errors(self.space, self.n, (self.error != 0).any(axis=0))
