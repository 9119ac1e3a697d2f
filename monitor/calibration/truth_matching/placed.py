"""Where detections and objects are: what a distance between them is taken of."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.calibration.space import FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Placed:
    """n of them, in one space.

    mean        (n, K)
    covariance  (n, K, K); None: known exactly
    """

    mean: FloatArray
    covariance: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of them."""
        return int(self.mean.shape[0])

    def take(self, rows: IntArray | slice) -> Placed:
        """Some of them."""
        covariance = None if self.covariance is None else self.covariance[rows]
        return Placed(self.mean[rows], covariance)


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """p pairs of a detection and an object, each once.

    detection, object  (p,) positions
    distance           (p,)
    """

    detection: IntArray
    object: IntArray
    distance: FloatArray

    def take(self, which: IntArray) -> Pairs:
        """Some of them."""
        return Pairs(self.detection[which], self.object[which], self.distance[which])
