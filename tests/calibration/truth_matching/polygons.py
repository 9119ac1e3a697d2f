"""Overlaps the slow way, one pair at a time, and written from the definitions; no tests.

A corner of the intersection of two convex polygons is a corner of one inside the other, or where
two sides cross: the hull of all of these is the intersection.
"""

from __future__ import annotations

import math

import numpy as np

Point = tuple[float, float]


def corners(x: float, y: float, length: float, width: float, heading: float) -> list[Point]:
    """Of a rectangle, counter-clockwise."""
    c, s = math.cos(heading), math.sin(heading)
    return [
        (x + c * u - s * v, y + s * u + c * v)
        for u, v in (
            (length / 2, width / 2),
            (-length / 2, width / 2),
            (-length / 2, -width / 2),
            (length / 2, -width / 2),
        )
    ]


def turn(a: Point, b: Point, c: Point) -> float:
    """Twice the signed area of a triangle."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def sides(polygon: list[Point]) -> list[tuple[Point, Point]]:
    return list(zip(polygon, polygon[1:] + polygon[:1], strict=True))


def inside(point: Point, polygon: list[Point]) -> bool:
    return all(turn(a, b, point) >= -1e-9 for a, b in sides(polygon))


def crossing(a: Point, b: Point, c: Point, d: Point) -> list[Point]:
    """Of two sides; nothing where they are parallel or do not meet."""
    along = (b[0] - a[0]) * (d[1] - c[1]) - (b[1] - a[1]) * (d[0] - c[0])
    if abs(along) < 1e-12:
        return []
    t = ((c[0] - a[0]) * (d[1] - c[1]) - (c[1] - a[1]) * (d[0] - c[0])) / along
    s = ((c[0] - a[0]) * (b[1] - a[1]) - (c[1] - a[1]) * (b[0] - a[0])) / along
    if not (-1e-12 <= t <= 1 + 1e-12 and -1e-12 <= s <= 1 + 1e-12):
        return []
    return [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]))]


def hull(points: list[Point]) -> list[Point]:
    """Andrew's monotone chain."""
    ordered = sorted(set(points))
    if len(ordered) < 3:
        return ordered
    chains = []
    for direction in (ordered, ordered[::-1]):
        chain: list[Point] = []
        for point in direction:
            while len(chain) > 1 and turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains += chain[:-1]
    return chains


def area(polygon: list[Point]) -> float:
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in sides(polygon))) / 2 if polygon else 0.0


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Intersection over union of two rectangles: x, y, length, width, heading."""
    p, q = corners(*a), corners(*b)
    found = [point for point in p if inside(point, q)] + [point for point in q if inside(point, p)]
    for one in sides(p):
        for other in sides(q):
            found += crossing(*one, *other)
    shared = area(hull(found))
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def thrown(a: tuple[float, ...], b: tuple[float, ...], seed: int, n: int = 40_000) -> float:
    """The same, by points thrown into the first rectangle."""
    random = np.random.default_rng(seed)
    u, v = random.uniform(-0.5, 0.5, (2, n)) * np.array([[a[2]], [a[3]]])
    c, s = math.cos(a[4]), math.sin(a[4])
    x, y = a[0] + c * u - s * v - b[0], a[1] + s * u + c * v - b[1]
    c, s = math.cos(b[4]), math.sin(b[4])
    hit = (abs(c * x + s * y) <= b[2] / 2) & (abs(c * y - s * x) <= b[3] / 2)
    shared = a[2] * a[3] * float(hit.mean())
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)
