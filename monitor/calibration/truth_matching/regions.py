"""Parts of space where nobody looked: boxes along the dimensions, of one class or of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import BoolArray, DimensionKind, FloatArray, Space


@dataclass(frozen=True, eq=False, slots=True)
class IgnoreRegion:
    """A box: a mean is inside where each of its dimensions is between the bounds.

    columns       positions of the d dimensions
    lower, upper  (d,) either may be infinite, but of angles
    classes       (C,) whose detections it ignores
    """

    columns: tuple[int, ...]
    lower: FloatArray
    upper: FloatArray
    classes: BoolArray

    def contains(self, mean: FloatArray, space: Space) -> BoolArray:
        """(n,) of means (n, K); angles the shortest way from the middle of the bounds."""
        inside = np.ones(mean.shape[0], bool)
        for column, low, high in zip(self.columns, self.lower, self.upper, strict=True):
            value = mean[:, column]
            if space.dimensions[column].kind is DimensionKind.LENGTH:
                inside &= (low <= value) & (value <= high)
            else:
                chosen = Space((space.dimensions[column],))
                off = chosen.error(value[:, None], np.array([[(low + high) / 2]]))[:, 0]
                inside &= np.abs(off) <= (high - low) / 2
        return inside
