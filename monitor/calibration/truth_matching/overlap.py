"""How far boxes overlap: upright ones in an image, and rotated ones seen from above.

Both take p pairs at once and never divide by an empty box: its overlap is 0.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.cholesky import add_up
from monitor.calibration.space import BoolArray, FloatArray


def upright_overlap(a: FloatArray, b: FloatArray) -> FloatArray:
    """Intersection over union of boxes, (p,) in [0, 1].

    a, b  (p, 4) left, top, right, bottom; with right below left or bottom below top, empty
    """
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, 2:], b[:, 2:])
    shared = np.maximum(high - low, 0).prod(axis=1)
    size_a = np.maximum(a[:, 2:] - a[:, :2], 0).prod(axis=1)
    size_b = np.maximum(b[:, 2:] - b[:, :2], 0).prod(axis=1)
    return _over_union(shared, size_a, size_b)


def rotated_overlap(a: FloatArray, b: FloatArray) -> FloatArray:
    """Intersection over union of rotated rectangles, (p,) in [0, 1].

    In the frame of b, a is a quadrilateral that the four sides of b cut one after the other
    (Sutherland and Hodgman 1974), for all pairs at once.

    a, b  (p, 5) centre x, y, length along the heading, width, heading in radians; without a
          positive length and width, empty
    """
    size_a, size_b = (np.maximum(box[:, 2:4], 0).prod(axis=1) for box in (a, b))
    cos, sin = np.cos(b[:, 4]), np.sin(b[:, 4])
    x, y = (a[:, :2] - b[:, :2]).T
    centre = np.stack([cos * x + sin * y, cos * y - sin * x], axis=1)
    polygon = _corners(centre, np.maximum(a[:, 2:4], 0), a[:, 4] - b[:, 4])
    half = np.maximum(b[:, 2:4], 0) / 2
    for axis in (0, 1):
        for side in (1.0, -1.0):
            polygon = _cut(polygon, axis, side, half[:, axis])
    return _over_union(_area(polygon), size_a, size_b)


def _over_union(shared: FloatArray, size_a: FloatArray, size_b: FloatArray) -> FloatArray:
    # Rounding must not make the shared part larger than either.
    shared = np.minimum(shared, np.minimum(size_a, size_b))
    union = size_a + size_b - shared
    ratio: FloatArray = np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)
    return ratio


def _corners(centre: FloatArray, size: FloatArray, heading: FloatArray) -> FloatArray:
    """(p, 4, 2), counter-clockwise."""
    along, across = np.array([1.0, -1, -1, 1]) / 2, np.array([1.0, 1, -1, -1]) / 2
    u, v = size[:, :1] * along, size[:, 1:] * across
    cos, sin = np.cos(heading)[:, None], np.sin(heading)[:, None]
    return centre[:, None] + np.stack([cos * u - sin * v, sin * u + cos * v], axis=2)


def _cut(polygon: FloatArray, axis: int, side: float, limit: FloatArray) -> FloatArray:
    """What is left of polygons (p, V, 2) where side · coordinate ≤ limit (p,).

    returns  (p, V', 2); a polygon of fewer corners has the first one repeated at the end, one
             of which nothing is left is all zeros: neither adds to an area
    """
    here = side * polygon[:, :, axis] - limit[:, None]  # > 0: outside
    following, there = np.roll(polygon, -1, axis=1), np.roll(here, -1, axis=1)
    inside = here <= 0
    crosses = inside != (there <= 0)
    share = np.divide(here, here - there, out=np.zeros_like(here), where=crosses)
    crossing = polygon + share[:, :, None] * (following - polygon)
    p, v = here.shape
    kept: BoolArray = np.stack([inside, crosses], axis=2).reshape(p, 2 * v)
    corners = np.stack([polygon, crossing], axis=2).reshape(p, 2 * v, 2)
    count = np.count_nonzero(kept, axis=1)
    # The kept ones to the front, in their order.
    front = np.argsort(~kept, axis=1, kind="stable")[:, : int(count.max(initial=1))]
    cut = np.take_along_axis(corners, front[:, :, None], axis=1)
    beyond = np.arange(front.shape[1]) >= count[:, None]
    cut = np.where(beyond[:, :, None], cut[:, :1], cut)
    cut[count == 0] = 0
    return cut


def _area(polygon: FloatArray) -> FloatArray:
    """(p,) of polygons (p, V, 2), by the shoelace formula."""
    x, y = polygon[:, :, 0], polygon[:, :, 1]
    parts = x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)
    # One after the other: what other pairs are looked at must not change the rounding.
    twice = add_up(parts.T)
    area: FloatArray = np.abs(twice) / 2
    return area
