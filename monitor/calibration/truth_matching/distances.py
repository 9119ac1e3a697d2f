"""How far a detection is from an object, by what the boxes or the errors say.

A distance has a quick side, which rules out most pairs of a frame, and an exact one for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from monitor.calibration.cholesky import factorise, whiten
from monitor.calibration.space import FloatArray, Space
from monitor.calibration.truth_matching.overlap import rotated_overlap, upright_overlap
from monitor.calibration.truth_matching.placed import Placed

# What rounding may make of a bound that is compared with an exact distance.
_SLACK = 1 + 1e-9


class Distance(Protocol):
    """One way of measuring, in one space."""

    @property
    def weighs(self) -> bool:
        """Whether covariances have a say."""
        ...

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """(m, n) of m objects and n detections: the less, the nearer; infinite: beyond the gate.

        Quick, and may leave pairs that are beyond the gate.
        """
        ...

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """(p,) distances of p objects and as many detections, one of each in a pair."""
        ...


@dataclass(frozen=True, slots=True)
class CentreDistance:
    """Euclidean, of the means, over some dimensions; angles by the shortest way.

    space    of all dimensions
    columns  positions of those that are looked at
    """

    space: Space
    columns: tuple[int, ...]

    @property
    def weighs(self) -> bool:
        """They have not."""
        return False

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """The distances themselves."""
        distance = np.sqrt((_apart(self, objects, detections) ** 2).sum(axis=2))
        return np.where(distance <= gate * _SLACK, distance, np.inf)

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """In the unit of the dimensions."""
        error = self.space.error(objects.mean, detections.mean)[:, list(self.columns)]
        distance: FloatArray = np.sqrt((error**2).sum(axis=1))
        return distance


@dataclass(frozen=True, slots=True)
class MahalanobisDistance:
    """√(eᵀ (Σ + Σ_truth)⁻¹ e) over some dimensions: of the error, in deviations.

    space    of all dimensions
    columns  positions of those that are looked at
    """

    space: Space
    columns: tuple[int, ...]

    @property
    def weighs(self) -> bool:
        """Those of both sides."""
        return True

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """By the worst of the dimensions, each by itself: no further than all together."""
        variance = _variances(self, detections)[None] + _variances(self, objects)[:, None]
        worst = np.sqrt((_apart(self, objects, detections) ** 2 / variance).max(axis=2))
        return np.where(worst <= gate * _SLACK, worst, np.inf)

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Dimensionless; infinite where the sum of the covariances is singular."""
        columns = np.array(self.columns)
        error = self.space.error(objects.mean, detections.mean)[:, columns]
        block = np.ix_(np.arange(objects.n), columns, columns)
        total = np.zeros((objects.n, columns.size, columns.size))
        for placed in (objects, detections):
            if placed.covariance is not None:
                total += placed.covariance[block]
        squared = (whiten(factorise(total), error) ** 2).sum(axis=0)
        return np.where(np.isfinite(squared), np.sqrt(squared), np.inf)


@dataclass(frozen=True, slots=True)
class RotatedOverlap:
    """1 − intersection over union of boxes seen from above.

    columns  positions of centre, length, width and heading, five of them
    """

    columns: tuple[int, ...]

    @property
    def weighs(self) -> bool:
        """They have not."""
        return False

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """By the distance of the centres, in sums of the circles around the boxes."""
        a, b = (placed.mean[:, list(self.columns[:4])] for placed in (objects, detections))
        return _rank_of_circles(a[:, :2], a[:, 2:], b[:, :2], b[:, 2:])

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Within [0, 1]; infinite where nothing overlaps."""
        a, b = (placed.mean[:, list(self.columns)] for placed in (objects, detections))
        return _from_overlap(rotated_overlap(a, b))


@dataclass(frozen=True, slots=True)
class UprightOverlap:
    """1 − intersection over union of upright boxes in an image.

    columns  positions of left, top, right and bottom, four of them
    """

    columns: tuple[int, ...]

    @property
    def weighs(self) -> bool:
        """They have not."""
        return False

    def rank(self, objects: Placed, detections: Placed, gate: float) -> FloatArray:
        """By the distance of the centres, in sums of the circles around the boxes."""
        a, b = (placed.mean[:, list(self.columns)] for placed in (objects, detections))
        return _rank_of_circles(
            (a[:, :2] + a[:, 2:]) / 2,
            a[:, 2:] - a[:, :2],
            (b[:, :2] + b[:, 2:]) / 2,
            b[:, 2:] - b[:, :2],
        )

    def of_pairs(self, objects: Placed, detections: Placed) -> FloatArray:
        """Within [0, 1]; infinite where nothing overlaps."""
        a, b = (placed.mean[:, list(self.columns)] for placed in (objects, detections))
        return _from_overlap(upright_overlap(a, b))


def _apart(
    of: CentreDistance | MahalanobisDistance, objects: Placed, detections: Placed
) -> FloatArray:
    """(m, n, d) errors in the dimensions that are looked at."""
    chosen = Space(tuple(of.space.dimensions[i] for i in of.columns))
    columns = list(of.columns)
    apart = objects.mean[:, None, columns] - detections.mean[None, :, columns]
    flat = apart.reshape(-1, len(columns))
    chosen.wrap(flat)
    return flat.reshape(apart.shape)


def _variances(of: MahalanobisDistance, placed: Placed) -> FloatArray:
    """(n, d); 0 where known exactly."""
    if placed.covariance is None:
        return np.zeros((placed.n, len(of.columns)))
    columns = np.array(of.columns)
    variances: FloatArray = placed.covariance[:, columns, columns]
    return variances


def _rank_of_circles(
    centre_a: FloatArray, size_a: FloatArray, centre_b: FloatArray, size_b: FloatArray
) -> FloatArray:
    """(m, n) centre distances over the sums of radii; infinite where the circles are apart."""
    apart = centre_a[:, None] - centre_b[None]
    distance = np.sqrt((apart**2).sum(axis=2))
    radius = [np.sqrt((np.maximum(size, 0) ** 2).sum(axis=1)) / 2 for size in (size_a, size_b)]
    reach = radius[0][:, None] + radius[1][None]
    rank = np.divide(distance, reach, out=np.full_like(distance, np.inf), where=reach > 0)
    return np.where(rank <= _SLACK, rank, np.inf)


def _from_overlap(overlap: FloatArray) -> FloatArray:
    return np.where(overlap > 0, 1 - overlap, np.inf)
