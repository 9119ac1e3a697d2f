"""A fitted sparse variational Gaussian process as a value: latent means and variances of points.

Fitting lives in process_fit; nothing here needs an optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import (
    Matrix,
    as_array,
    lower_triangles,
    matrix,
    member,
    numbers,
)
from monitor.recalibration.processes.kernels import Kernel, KernelForm, kernel_of, scale_count
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator

# Added to the diagonal of the inducing points' kernel matrix, as a share of its mean.
JITTER = 1e-6
# Points of a document at most: the time of a frame grows with their square.
MOST_INDUCING = 256
# Rows a matrix product is made of: products round by their shape, and must not by the batch.
BLOCK = 32


class Coupling(StrEnum):
    """How the J outputs hang together."""

    INDEPENDENT = "independent"  # a latent an output, each with its own kernel
    COREGIONALISED = "coregionalised"  # f = c + A g of J latents of one kernel, B = A Aᵀ


@dataclass(frozen=True)
class SparseProcess:
    """f(x) = c + A g(x): J outputs of L latents, over points of D features.

    g_l has a kernel of unit size, M inducing points Z with u_l = g_l(Z) = L_l v_l,
    L_l L_lᵀ = k_l(Z, Z), and v_l ~ N(m_l, S_l) (Hensman et al. 2015). With a(x) = L_l⁻¹ k_l(Z, x):

        mean_l = aᵀ m_l,   variance_l = k_l(x, x) − aᵀ a + aᵀ S_l a
        f_j ~ N(c_j + Σ_l A_jl mean_l, Σ_l A_jl² variance_l)

    Without latents it is the constant c, whatever the points.

    form      of the kernels
    constant  (J,) c
    inducing  (M, D) Z, the same for all latents
    scale     (L, P) of each latent's kernel
    mixing    (J, L) A
    location  (L, M) m
    spread    (L, M, M) lower Cholesky factors of S, zero above the diagonal
    source    Küppers et al. 2022, eq. 5 and 7
    """

    form: KernelForm
    constant: tuple[float, ...]
    inducing: Matrix = ()
    scale: Matrix = ()
    mixing: Matrix = ()
    location: Matrix = ()
    spread: tuple[Matrix, ...] = ()

    @property
    def outputs(self) -> int:
        """J."""
        return len(self.constant)

    @property
    def latents(self) -> int:
        """L; 0 where it is constant."""
        return len(self.location)

    @property
    def width(self) -> int:
        """D: features of a point."""
        return len(self.inducing[0]) if self.inducing else 0

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Of each latent."""
        return tuple(kernel_of(self.form, np.array(scale)) for scale in self.scale)

    @cached_property
    def weights(self) -> tuple[FloatArray, FloatArray]:
        """α (L, M) and Q (L, M, M): with k = k_l(Z, x), mean_l = kᵀ α and the variance is
        k(x, x) + kᵀ Q k."""
        z = as_array(self.inducing)
        alpha, quadratic = [], []
        for kernel, location, spread in zip(self.kernels, self.location, self.spread, strict=True):
            root = inducing_root(kernel, z)
            inverse = np.linalg.solve(root, np.eye(len(root)))
            half = np.array(spread).T @ inverse
            alpha.append(inverse.T @ np.array(location))
            q = half.T @ half - inverse.T @ inverse
            quadratic.append(0.5 * (q + q.T))
        return np.array(alpha), np.array(quadratic)

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (J, n) and variance (J, n) of the outputs at points (n, D).

        Every point by itself: the same bits alone as among others.
        """
        n = points.shape[0]
        mean = np.repeat(np.array(self.constant)[:, None], n, axis=1)
        variance = np.zeros_like(mean)
        if not self.latents:
            return mean, variance
        blocks = in_blocks(points)
        z, mixing = as_array(self.inducing), as_array(self.mixing)
        alpha, quadratic = self.weights
        for latent, kernel in enumerate(self.kernels):
            k = kernel.matrix(blocks, z)
            latent_mean = (k @ alpha[latent][:, None]).reshape(-1)[:n]
            reduced = ((k @ quadratic[latent]) * k) @ np.ones((len(z), 1))
            spread = np.maximum(kernel.diagonal(points) + reduced.reshape(-1)[:n], 0.0)
            mean += mixing[:, latent : latent + 1] * latent_mean
            variance += np.square(mixing[:, latent : latent + 1]) * spread
        return mean, variance

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {
            "form": str(self.form),
            "constant": list(self.constant),
            "inducing": [list(row) for row in self.inducing],
            "scale": [list(row) for row in self.scale],
            "mixing": [list(row) for row in self.mixing],
            "location": [list(row) for row in self.location],
            "spread": [[list(row[: i + 1]) for i, row in enumerate(one)] for one in self.spread],
        }

    @classmethod
    def from_parameters(cls, parameters: Document) -> SparseProcess:
        """The inverse of parameters; raises InvalidRecalibrator."""
        form = member(parameters, "form", KernelForm)
        constant = numbers(parameters, "constant", None, -1e3, 1e3)
        inducing = matrix(parameters, "inducing", None, None, -1e7, 1e7)
        m, width = len(inducing), len(inducing[0]) if inducing else 0
        if m > MOST_INDUCING:
            raise InvalidRecalibrator(
                f"'inducing' holds {m} points: more than {MOST_INDUCING} would hold up every "
                "frame. Fit with fewer."
            )
        location = matrix(parameters, "location", None, m, -1e6, 1e6, "one a point of 'inducing'")
        latents = len(location)
        if bool(latents) != bool(m):
            raise InvalidRecalibrator(
                f"{m} points in 'inducing' and {latents} rows in 'location': give points only with "
                "latents."
            )
        # Lengths in standard deviations of the feature.
        scale = matrix(parameters, "scale", latents, scale_count(form, width), 1e-3, 1e3)
        outputs = len(constant) if latents else 0
        mixing = matrix(
            parameters,
            "mixing",
            outputs,
            latents,
            -1e3,
            1e3,
            "a row an output of 'constant' and a column a latent of 'location'",
        )
        spread = lower_triangles(parameters, "spread", latents, m, 1e6)
        process = cls(form, constant, inducing, scale, mixing, location, spread)
        process._check()
        return process

    def _check(self) -> None:
        """Raises InvalidRecalibrator where serving would not give finite numbers."""
        if self.form is KernelForm.PAPER and (
            self.width % 2 or any(v < 0 for row in self.inducing for v in row[self.width // 2 :])
        ):
            raise InvalidRecalibrator(
                f"'inducing' of the kernel '{self.form}' must hold means and then as many "
                "variances, none of them negative."
            )
        if not all(np.isfinite(part).all() for part in self.weights):
            raise InvalidRecalibrator(
                "'inducing' and 'scale' make a singular kernel matrix: fit again."
            )


def inducing_root(kernel: Kernel, inducing: FloatArray) -> FloatArray:
    """Lower Cholesky factor of k(Z, Z), with jitter; (M, M). NaN where it is singular."""
    product = kernel.matrix(inducing, inducing)
    # The two halves round apart.
    matrix: FloatArray = 0.5 * (product + product.T)
    step = np.arange(len(inducing))
    diagonal = kernel.diagonal(inducing)
    matrix[step, step] = diagonal + JITTER * (diagonal.sum() / len(inducing))
    try:
        return np.asarray(np.linalg.cholesky(matrix), np.float64)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def in_blocks(points: FloatArray, size: int = BLOCK) -> FloatArray:
    """Points (n, D) as (⌈n / size⌉, size, D), zeros behind the last."""
    n, width = points.shape
    count = -(-n // size)
    blocks = np.zeros((count * size, width))
    blocks[:n] = points
    return blocks.reshape(count, size, width)
