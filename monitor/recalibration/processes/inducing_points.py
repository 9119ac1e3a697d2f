"""Where the inducing points of a process lie: centres of clusters of the points it is fitted on."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import FloatArray

# Points looked at; more of them move the centres by less than matters.
LOOKED_AT = 2000
ROUNDS = 15


def inducing_points(points: FloatArray, count: int) -> FloatArray:
    """At most `count` centres (M, D) by k-means, M ≥ 1; as many as points differ if fewer.

    Deterministic: it begins with points that are far from each other, the first nearest to
    the centre of all, and every centre then moves to the mean of those nearest to it (Lloyd).

    points  (n, D), n ≥ 1
    """
    looked_at = points[:: max(1, points.shape[0] // LOOKED_AT)]
    centres = _far_apart(looked_at, count)
    for _ in range(ROUNDS):
        nearest = _squared_distance(looked_at, centres).argmin(axis=1)
        size = np.bincount(nearest, minlength=len(centres))
        total = [np.bincount(nearest, column, len(centres)) for column in looked_at.T]
        mean = np.stack(total, axis=1) / np.maximum(size, 1)[:, None]
        moved: FloatArray = np.where(size[:, None] > 0, mean, centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _far_apart(points: FloatArray, count: int) -> FloatArray:
    gap = np.square(points - points.mean(axis=0)).sum(axis=1)
    chosen = [int(gap.argmin())]
    gap = _squared_distance(points, points[chosen])[:, 0]
    while len(chosen) < count and gap.max() > 1e-9:
        chosen.append(int(gap.argmax()))
        gap = np.minimum(gap, _squared_distance(points, points[chosen[-1:]])[:, 0])
    return points[chosen].copy()


def _squared_distance(points: FloatArray, centres: FloatArray) -> FloatArray:
    found: FloatArray = np.square(points[:, None, :] - centres).sum(axis=2)
    return found
