"""Measures and sums of matched detections as the papers define them: loops over rows, no arrays.

Written from the equations and definitions, never from our code. A row is (σ², error, NEES, σ on
the axis of bins); bins are found by walking their edges.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from scipy.special import gammaincinv

Numbers = Sequence[float]
Matrix = Sequence[Numbers]


@dataclass(frozen=True)
class Row:
    """One detection: σ² and error of a dimension, its NEES, and its place on the bin axis."""

    variance: float
    error: float
    nees: float
    axis: float


Rows = Sequence[Row]


@cache
def chi_square(tau: float, k: int) -> float:
    """τ quantile of χ²_k: it is a gamma distribution of shape k/2 and scale 2."""
    return 2 * float(gammaincinv(k / 2, tau))


def equal_count(rows: Rows, bins: int) -> list[list[Row]]:
    """Sorted along the axis and dealt out; the first bins hold one row more."""
    ordered = sorted(rows, key=lambda row: row.axis)
    parts, start = [], 0
    for b in range(bins):
        size = len(rows) // bins + (1 if b < len(rows) % bins else 0)
        parts.append(ordered[start : start + size])
        start += size
    return parts


def qce(parts: Sequence[Rows], tau: float, k: int) -> float:
    """Küppers et al. 2022, eq. 12: Σ |B|/N · |coverage of the bin − τ|."""
    n = sum(map(len, parts))
    return sum(len(part) / n * abs(coverage(part, tau, k) - tau) for part in parts if part)


def coverage(rows: Rows, tau: float, k: int) -> float:
    return sum(row.nees <= chi_square(tau, k) for row in rows) / len(rows)


def kurtosis(z: Numbers) -> float:
    """Fourth moment over the squared second, about 0; n + 2 in place of n, so that the mean
    over Gaussian samples of any size is 3: E[n Σ z⁴ / (Σ z²)²] = 3 n / (n + 2)."""
    fourth, second = sum(v**4 for v in z), sum(v**2 for v in z)
    return (len(z) + 2) * fourth / second**2


def noise_floor(parts: Sequence[Rows], kappa: float, effect: float) -> float:
    """Mean over occupied bins of sqrt((κ − 1) / (2π n_eff,b))."""
    terms = [math.sqrt((kappa - 1) / (2 * math.pi * len(p) / effect)) for p in parts if p]
    return sum(terms) / len(terms)


def sparsification(uncertainty: Numbers, merit: Numbers) -> list[float]:
    """Mean merit of the r most certain rows, r = 1 … N; rows of equal uncertainty share theirs.

    Wolf et al. 2024, section 2.2.4, with the squared error as the merit.
    """
    shared = []
    for doubt in sorted(uncertainty):
        alike = [m for u, m in zip(uncertainty, merit, strict=True) if u == doubt]
        shared.append(sum(alike) / len(alike))
    return [sum(shared[:r]) / r for r in range(1, len(merit) + 1)]


def ause(uncertainty: Numbers, merit: Numbers) -> float:
    """Mean distance of the curve from that of the oracle, which sorts by the merit itself."""
    sorts = sparsification(uncertainty, merit), sparsification(merit, merit)
    return sum(a - b for a, b in zip(*sorts, strict=True)) / len(merit)


def left_after_rejecting(uncertainty: Numbers, merit: Numbers, twentieth: int) -> float:
    curve = sparsification(uncertainty, merit)
    return curve[len(merit) - len(merit) * twentieth // 20 - 1]


def crps(sigma: float, error: float) -> float:
    """Gneiting and Raftery 2007, section 4.2: of N(μ, σ²) at y = μ + error."""
    z = error / sigma
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return sigma * (z * math.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def eighth(value: float) -> int:
    """Which eighth of which octave a positive number lies in: 0 … 7 from 1 up to 2."""
    fraction, above = math.frexp(value)
    return 8 * (above - 1) + math.floor(8 * (2 * fraction - 1))


# ---- matrices


def determinant(matrix: Matrix) -> float:
    if len(matrix) == 1:
        return matrix[0][0]
    minors = ([[*row[:j], *row[j + 1 :]] for row in matrix[1:]] for j in range(len(matrix)))
    total = 0.0
    for j, (value, minor) in enumerate(zip(matrix[0], minors, strict=True)):
        total += value * determinant(minor) if j % 2 == 0 else -value * determinant(minor)
    return total


def mahalanobis(covariance: Matrix, error: Numbers) -> float:
    """rᵀ Σ⁻¹ r, by Cramer's rule."""
    whole, total = determinant(covariance), 0.0
    for j, value in enumerate(error):
        columns = [[*row[:j], r, *row[j + 1 :]] for row, r in zip(covariance, error, strict=True)]
        total += value * determinant(columns) / whole
    return total


def whiten(covariance: Matrix, error: Numbers) -> list[float]:
    factor = cholesky(covariance)
    u: list[float] = []
    for i in range(len(error)):
        rest = error[i] - sum(factor[i][j] * u[j] for j in range(i))
        u.append(rest / factor[i][i])
    return u


def cholesky(covariance: Matrix) -> list[list[float]]:
    k = len(covariance)
    factor = [[0.0] * k for _ in range(k)]
    for i in range(k):
        for j in range(i + 1):
            rest = covariance[i][j] - sum(factor[i][m] * factor[j][m] for m in range(j))
            factor[i][j] = math.sqrt(rest) if i == j else rest / factor[j][j]
    return factor


def log_edges(lowest: float, per_octave: int, octaves: int) -> list[float]:
    return [lowest * 2 ** (i / per_octave) for i in range(per_octave * octaves + 1)]


# ---- clusters; 0 is the cluster of a row that is in none


def pairs(cluster: Sequence[int], x: Numbers) -> tuple[int, float, float]:
    """How many pairs of rows are in one cluster, and Σ x_i x_j and Σ (x_i + x_j) over them."""
    count, cross, beside = 0, 0.0, 0.0
    for i in range(len(x)):
        for j in range(i):
            if cluster[i] == cluster[j] != 0:
                count += 1
                cross += x[i] * x[j]
                beside += x[i] + x[j]
    return count, cross, beside


def design_effect(cluster: Sequence[int], x: Numbers) -> float:
    """Σ_clusters (Σ (x − m))² / Σ (x − m)², at least 1."""
    mean = sum(x) / len(x)
    found: dict[tuple[str, int], float] = defaultdict(float)
    for i, (name, value) in enumerate(zip(cluster, x, strict=True)):
        found[("row", i) if name == 0 else ("cluster", name)] += value - mean
    return max(1.0, sum(s * s for s in found.values()) / sum((value - mean) ** 2 for value in x))
