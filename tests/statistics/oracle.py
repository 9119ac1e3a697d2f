"""Measures and sums of matched detections as the papers define them: loops over rows, no arrays.

Written from the equations and definitions, never from our code. A row is (σ², error, NEES, σ on
the axis of bins); bins are found by walking their edges.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

from scipy.special import gammaincinv
from scipy.stats import norm

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


def pinball(error: float, sigma: float, tau: float) -> float:
    """Küppers et al. 2022: τ (y − q) above the predicted quantile, (1 − τ) (q − y) below it."""
    beyond = error - sigma * float(norm.ppf(tau))
    return tau * beyond if beyond > 0 else (tau - 1) * beyond


def kurtosis(z: Numbers) -> float:
    """Fourth moment over the squared second, about 0; n + 2 in place of n, so that the mean
    over Gaussian samples of any size is 3: E[n Σ z⁴ / (Σ z²)²] = 3 n / (n + 2)."""
    fourth, second = sum(v**4 for v in z), sum(v**2 for v in z)
    return (len(z) + 2) * fourth / second**2


def noise_floor(parts: Sequence[Rows], kappa: float, effect: float) -> float:
    """Mean over occupied bins of sqrt((κ − 1) / (2π n_eff,b))."""
    terms = [math.sqrt((kappa - 1) / (2 * math.pi * len(p) / effect)) for p in parts if p]
    return sum(terms) / len(terms)


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


# ---- what StageStatistics should hold


@dataclass
class Cell:
    n: int = 0
    variance: float = 0.0
    squared_error: float = 0.0
    error: float = 0.0
    nees: float = 0.0
    within: list[int] = field(default_factory=list)

    def add(self, variance: float, error: float, nees: float, within: list[int]) -> None:
        self.n += 1
        self.variance += variance
        self.squared_error += error * error
        self.error += error
        self.nees += nees
        self.within = [a + b for a, b in zip(self.within or [0] * len(within), within, strict=True)]


def log_edges(lowest: float, per_octave: int, octaves: int) -> list[float]:
    return [lowest * 2 ** (i / per_octave) for i in range(per_octave * octaves + 1)]


def sums(
    errors: Matrix,
    covariances: Sequence[Matrix],
    *,
    joint: Sequence[int],
    tau: Numbers,
    deviation_edges: Numbers,
    nees_edges: Numbers,
) -> SimpleNamespace:
    """All sums over n rows of K dimensions; `joint` are the dimensions of the joint block.

    cells and nees_histogram are by (axis, bin), where axis K is the joint one.
    """
    k = len(errors[0])
    order = [*joint, *(i for i in range(k) if i not in joint)]

    def zeros(columns: int) -> list[list[float]]:
        return [[0.0] * columns for _ in range(k)]

    found = SimpleNamespace(
        **{"cells": defaultdict(Cell), "nees_histogram": defaultdict(int)},
        **{"sigma": [0.0] * k, "log_sigma": [0.0] * k, "log_determinant": 0.0},
        **{"pinball": zeros(len(tau)), "normalised": zeros(k), "whitened": zeros(k)},
    )

    def add(axis: int, sigma: float, error: float, nees: float, degrees: int) -> None:
        within = [int(nees <= chi_square(t, degrees)) for t in tau]
        cell = found.cells[axis, bisect_right(deviation_edges, sigma)]
        cell.add(sigma**2, error, nees, within)
        found.nees_histogram[axis, bisect_right(nees_edges, nees)] += 1

    for error, covariance in zip(errors, covariances, strict=True):
        sigma = [math.sqrt(covariance[i][i]) for i in range(k)]
        z = [e / s for e, s in zip(error, sigma, strict=True)]
        for i in range(k):
            add(i, sigma[i], error[i], z[i] ** 2, 1)
            found.sigma[i] += sigma[i]
            found.log_sigma[i] += math.log(sigma[i])
            for t, level in enumerate(tau):
                found.pinball[i][t] += pinball(error[i], sigma[i], level)
        block = [[covariance[i][j] for j in joint] for i in joint]
        generalised = determinant(block) ** (1 / (2 * len(joint)))
        add(k, generalised, 0.0, mahalanobis(block, [error[i] for i in joint]), len(joint))
        found.log_determinant += math.log(determinant(block))
        u = whiten([[covariance[i][j] for j in order] for i in order], [error[i] for i in order])
        for i in range(k):
            for j in range(k):
                found.normalised[i][j] += z[i] * z[j]
                found.whitened[i][j] += u[i] * u[j]
    return found


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
