"""Overlaps the slow way, one pair at a time, and written from the definitions; no tests.

A corner of the intersection of two convex polygons is a corner of one inside the other, or where
two sides cross: the hull of all of these is the intersection.
"""

import math

Point = tuple[float, float]


def corners(x: float, y: float, length: float, width: float, heading: float) -> list[Point]:
    """Lists the corners of a rectangle, counter-clockwise."""
    c, s = math.cos(heading), math.sin(heading)
    half = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    at = [(length / 2 * u, width / 2 * v) for u, v in half]
    return [(x + c * u - s * v, y + s * u + c * v) for u, v in at]


def turn(a: Point, b: Point, c: Point) -> float:
    """Twice the signed area of a triangle."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def sides(polygon: list[Point]) -> list[tuple[Point, Point]]:
    return list(zip(polygon, polygon[1:] + polygon[:1], strict=True))


def inside(point: Point, polygon: list[Point]) -> bool:
    return all(turn(a, b, point) >= -1e-9 for a, b in sides(polygon))


def crossing(a: Point, b: Point, c: Point, d: Point) -> list[Point]:
    """Finds where two sides cross; nothing where they are parallel or do not meet."""
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


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Intersection over union of two rectangles: x, y, length, width, heading."""
    p, q = corners(*a), corners(*b)
    found = [point for point in p if inside(point, q)] + [point for point in q if inside(point, p)]
    for one in sides(p):
        for other in sides(q):
            found += crossing(*one, *other)
    shared = abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in sides(hull(found)))) / 2
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)
