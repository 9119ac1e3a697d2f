"""The kernels of the Gaussian processes: how alike two points are, with derivatives for the fit.

Points are rows of standardised features; what they stand for is decided in inputs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from monitor.frames.space import FloatArray

# Points looked at; more of them move the centres by less than matters.
LOOKED_AT = 2000
_ROUNDS = 15


class KernelForm(StrEnum):
    """Forms of kernels, by their names in documents."""

    NORMALISED = "normalised"  # k(x, x) = 1: as uncertain a priori wherever nothing was seen
    PAPER = "paper"  # Küppers et al. 2022, eq. 6


@dataclass(frozen=True, slots=True)
class NormalisedKernel:
    """k(x, x') = exp(−½ Σ_d (x_d − x'_d)²/ℓ_d²).

    scale  (D,) ℓ, in standard deviations of the feature; one each, since some inputs bend the
           factor and others tilt it
    """

    scale: FloatArray

    def matrix(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Evaluates k at points (…, n, D) and (m, D), (…, n, m).

        The square is expanded: two products in place of n m D differences.
        """
        weight, square, offset = self.expanded(right)
        exponent: FloatArray = left @ weight
        exponent += (left * left) @ square
        exponent += offset
        return np.exp(np.minimum(exponent, 0.0, out=exponent), out=exponent)

    def expanded(self, right: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """W (D, m), V (D, m), b (m,) with log k(x, right) = x W + x² V + b."""
        precision = 1.0 / np.square(self.scale)[:, None]
        weight = right.T * precision
        square = np.repeat(-0.5 * precision, right.shape[0], axis=1)
        return weight, square, -0.5 * (right.T * weight).sum(axis=0)

    def diagonal(self, points: FloatArray) -> FloatArray:
        """Returns ones: each point (…, n, D) with itself, (…, n)."""
        return np.ones(points.shape[:-1])

    def slope(
        self, left: FloatArray, right: FloatArray, matrix: FloatArray, weight: FloatArray
    ) -> FloatArray:
        """Sums weight ∘ ∂k/∂log ℓ_d, (P,); the matrix of the two, and weights, both (…, n, m).

        ∂k/∂log ℓ_d = k (x_d − x'_d)²/ℓ_d², the square expanded.
        """
        g = weight * matrix
        own = left * (left * g.sum(axis=-1)[..., None] - 2.0 * (g @ right))
        columns = g.reshape(-1, len(right)).sum(axis=0)
        other = (np.square(right) * columns[:, None]).sum(axis=0)
        found: FloatArray = own.reshape(-1, own.shape[-1]).sum(axis=0) + other
        return found / np.square(self.scale)

    def diagonal_slope(self, points: FloatArray, weight: FloatArray) -> FloatArray:
        """Returns zeros, (P,): the diagonal is constant."""
        return np.zeros(self.scale.size)


@dataclass(frozen=True, slots=True)
class PaperKernel:
    """k = θ^K |Σij|^(−½) exp(−½ (μi − μj)ᵀ Σij⁻¹ (μi − μj)), Σij = Σi + Σj + θ² I.

    Points are K means and then K variances, both in units of the spread of the means.

    scale   (1,) θ
    source  Küppers et al. 2022, eq. 6; Song et al. 2008
    """

    scale: FloatArray

    def matrix(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Evaluates k dimension by dimension; shapes as in NormalisedKernel."""
        square = self.scale[0] ** 2
        exponent = np.zeros((*left.shape[:-1], right.shape[0]))
        determinant = np.ones_like(exponent)
        for gap, spread in self._pairs(left, right):
            exponent += gap * gap / spread
            determinant *= spread / square
        return np.exp(-0.5 * exponent) / np.sqrt(determinant)

    def diagonal(self, points: FloatArray) -> FloatArray:
        """θ^K |2 Σ + θ² I|^(−½)."""
        k = points.shape[-1] // 2
        determinant = np.ones(points.shape[:-1])
        for d in range(k):
            determinant *= 1.0 + 2.0 * points[..., k + d] / self.scale[0] ** 2
        return 1.0 / np.sqrt(determinant)

    def slope(
        self, left: FloatArray, right: FloatArray, matrix: FloatArray, weight: FloatArray
    ) -> FloatArray:
        """∂log k/∂log θ = Σ_d [1 − θ²/s_d + θ² (μi − μj)_d²/s_d²], s the diagonal of Σij."""
        by_log = np.zeros(weight.shape)
        for gap, spread in self._pairs(left, right):
            share = self.scale[0] ** 2 / spread
            by_log += 1.0 - share + share * gap * gap / spread
        return np.array([(weight * matrix * by_log).sum()])

    def diagonal_slope(self, points: FloatArray, weight: FloatArray) -> FloatArray:
        """∂log k/∂log θ = Σ_d [1 − θ²/s_d]."""
        k = points.shape[-1] // 2
        square = self.scale[0] ** 2
        by_log = (1.0 - square / (2.0 * points[..., k:] + square)).sum(axis=-1)
        return np.array([(weight * self.diagonal(points) * by_log).sum()])

    def _pairs(self, left: FloatArray, right: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Lists for each dimension (μi − μj) and the diagonal entry of Σij, both (…, n, m)."""
        k = right.shape[1] // 2
        square = self.scale[0] ** 2
        return [
            (
                left[..., d : d + 1] - right[:, d],
                left[..., k + d : k + d + 1] + right[:, k + d] + square,
            )
            for d in range(k)
        ]


# A kernel of unit size. matrix and diagonal evaluate it; slope and diagonal_slope differentiate the
# weighted sums of their entries by the logs of the P scales, (P,).
Kernel = NormalisedKernel | PaperKernel


def kernel_of(form: KernelForm, scale: FloatArray) -> Kernel:
    """The kernel of a form with its scales, (scale_count,)."""
    return NormalisedKernel(scale) if form is KernelForm.NORMALISED else PaperKernel(scale)


def scale_count(form: KernelForm, width: int) -> int:
    """P: how many scales a kernel of points of this width has."""
    return width if form is KernelForm.NORMALISED else 1


def inducing_points(points: FloatArray, count: int) -> FloatArray:
    """Finds at most `count` centres (M, D) by k-means, M ≥ 1; fewer where fewer points differ.

    Deterministic: it begins with points that are far from each other, the first nearest to
    the centre of all, and every centre then moves to the mean of those nearest to it (Lloyd).

    points  (n, D), n ≥ 1
    """
    looked_at = points[:: max(1, points.shape[0] // LOOKED_AT)]
    centres = _far_apart(looked_at, count)
    for _ in range(_ROUNDS):
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
