"""The variational posterior of a sparse process at given kernels: its bound, and its optimum.

Natural gradients: a step on the precisions and a Newton step on the means (Khan and Rue 2023,
section 3), which for likelihoods that are log-concave in each output ends after a few. What the
kernels are is decided in process_fit.py.

Rows lie in blocks. One large product would be spread over threads, which cost more than they
gain at this size, and would round by how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from monitor.frames.space import FloatArray
from monitor.recalibration.processes.sparse_process import Kernel, LatentLikelihood, inducing_root

ROWS = 256

# Nats: a step that gains less is the last one.
ENOUGH = 1e-5
STEPS = 60
HALVINGS = 12

# How far a constant may go from where it began: few rows that all but repeat lead a search away.
FURTHEST = 20.0


@dataclass(frozen=True, slots=True)
class Points:
    """The n points of a fit, and the inducing points.

    blocks    (B, ROWS, D), zeros behind the last
    inducing  (M, D)
    """

    n: int
    blocks: FloatArray
    inducing: FloatArray

    def in_blocks(self, values: FloatArray) -> FloatArray:
        """Values (J, n) as (J, B, ROWS), zeros behind the last."""
        padded = np.zeros((len(values), self.blocks.shape[0] * ROWS))
        padded[:, : self.n] = values
        return padded.reshape(len(values), -1, ROWS)

    def in_line(self, blocks: FloatArray) -> FloatArray:
        """The inverse of in_blocks."""
        return blocks.reshape(len(blocks), -1)[:, : self.n]


@dataclass(frozen=True, slots=True)
class Design:
    """Matrices that kernels make of the points, and the amplitudes of the J latents.

    root       (J, M, M) L_j with L_j L_jᵀ = k_j(Z, Z); inverse (J, M, M) of it
    cross      (J, B, ROWS, M) k_j(x, Z)
    basis      (J, B, M, ROWS) b = L_j⁻¹ k_j(Z, x)
    residual   (J, B, ROWS) 1 − bᵀ b, the variance that no inducing point explains
    amplitude  (J, 1, 1) a
    """

    points: Points
    root: FloatArray
    inverse: FloatArray
    cross: FloatArray
    basis: FloatArray
    residual: FloatArray
    amplitude: FloatArray


@dataclass(frozen=True, slots=True)
class Posterior:
    """c and q(v_j) = N(m_j, P_j⁻¹).

    constant   (J,)
    location   (J, M) m
    precision  (J, M, M) P
    """

    constant: FloatArray
    location: FloatArray
    precision: FloatArray

    def moved(self, share: float, towards: Posterior) -> Posterior:
        """Goes a share of the way to another."""
        return Posterior(
            self.constant + share * (towards.constant - self.constant),
            self.location + share * (towards.location - self.location),
            self.precision + share * (towards.precision - self.precision),
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """The evidence lower bound at a posterior, and what its derivatives are made of.

    value            weight Σ E_q[log p] − Σ_j KL(q(v_j) ‖ N(0, I)), in nats
    by_mean          (J, B, ROWS) weight ∂E/∂mean of each output, zeros behind the last row
    by_variance      (J, B, ROWS)
    latent_mean      (J, B, ROWS)
    latent_variance  (J, B, ROWS)
    covariance       (J, M, M) P⁻¹
    """

    value: float
    by_mean: FloatArray
    by_variance: FloatArray
    latent_mean: FloatArray
    latent_variance: FloatArray
    covariance: FloatArray


def design_of(kernels: list[Kernel], amplitude: FloatArray, points: Points) -> Design:
    """Builds the matrices from the kernels of the latents; amplitude (J,)."""
    z = points.inducing
    root = np.array([inducing_root(kernel, z) for kernel in kernels])
    inverse = np.linalg.solve(root, np.eye(len(z)))
    cross = np.array([kernel.matrix(points.blocks, z) for kernel in kernels])
    basis = inverse[:, None] @ cross.swapaxes(2, 3)
    residual = np.maximum(1.0 - np.square(basis).sum(axis=2), 0.0)
    return Design(points, root, inverse, cross, basis, residual, amplitude[:, None, None])


def bound(
    likelihood: LatentLikelihood, weight: float, design: Design, posterior: Posterior
) -> Bound | None:
    """Evaluates the bound; None without a positive definite precision and a finite likelihood."""
    try:
        root = np.linalg.cholesky(posterior.precision)
    except LinAlgError:
        return None
    size = root.shape[1]
    inverse = np.linalg.solve(root, np.eye(size))
    location = posterior.location
    latent_mean = (location[:, None, None, :] @ design.basis)[:, :, 0]
    latent_variance = design.residual + np.square(inverse[:, None] @ design.basis).sum(axis=2)
    divergence = 0.5 * float(np.square(inverse).sum() + np.square(location).sum() - location.size)
    divergence += float(np.log(np.diagonal(root, axis1=1, axis2=2)).sum())
    points = design.points
    mean = design.amplitude * latent_mean + posterior.constant[:, None, None]
    variance = np.square(design.amplitude) * latent_variance
    with np.errstate(over="ignore", invalid="ignore"):
        expected = likelihood.expected(points.in_line(mean), points.in_line(variance))
        value = weight * float(expected.value.sum()) - divergence
    if not np.isfinite(value):
        return None
    return Bound(
        value,
        points.in_blocks(weight * expected.by_mean),
        points.in_blocks(weight * expected.by_variance),
        latent_mean,
        latent_variance,
        inverse.swapaxes(1, 2) @ inverse,
    )


def optimise(
    likelihood: LatentLikelihood,
    weight: float,
    design: Design,
    start: Posterior,
    centre: FloatArray,
) -> tuple[Posterior, Bound] | None:
    """Finds the posterior of the largest bound, from a start; None where even that has none.

    centre  (J,) that the constants stay within FURTHEST of
    """
    posterior = start
    best = bound(likelihood, weight, design, posterior)
    if best is None:
        return None
    for _ in range(STEPS):
        target = _target(design, posterior, best, centre)
        share, found = 1.0, None
        for _ in range(HALVINGS):
            moved = posterior.moved(share, target)
            found = bound(likelihood, weight, design, moved)
            if found is not None and found.value > best.value:
                break
            share, found = 0.5 * share, None
        if found is None:
            break
        gain = found.value - best.value
        posterior, best = moved, found
        if gain < ENOUGH:
            break
    return posterior, best


def _target(design: Design, posterior: Posterior, at: Bound, centre: FloatArray) -> Posterior:
    """Computes where a whole step leads, with the constants at most FURTHEST from a centre (J,).

    By Bonnet and Price ∂E/∂v = ½ E[∂² log p/∂f²], so that −2 ∂E/∂v is the curvature both of
    the Newton step on (c, m) and of the new precision I + Σ_i −2 ∂E/∂v_i a_i a_iᵀ.
    """
    by_mean, curvature = at.by_mean, -2.0 * at.by_variance
    amplitude, basis = design.amplitude, design.basis
    outputs, size = posterior.location.shape
    own = np.square(amplitude) * curvature
    precision = _products(basis * own[:, :, None], basis) + np.eye(size)

    slopes = amplitude * by_mean
    by_location = (basis @ slopes[..., None])[..., 0].sum(axis=1) - posterior.location
    gradient = np.concatenate([by_mean.sum(axis=(1, 2)), by_location.ravel()])
    # Where a likelihood is convex, a Newton step would lead down.
    move = _solved(_curvature(design, np.maximum(curvature, 0.0)), gradient)
    return Posterior(
        np.clip(posterior.constant + move[:outputs], centre - FURTHEST, centre + FURTHEST),
        posterior.location + move[outputs:].reshape(outputs, size),
        0.5 * (precision + precision.swapaxes(1, 2)),
    )


def _curvature(design: Design, convexity: FloatArray) -> FloatArray:
    """Minus the second derivatives of the bound by (c, m_1 … m_J), (J + J M, J + J M).

    With κ_ij the convexity of output j at row i, f_j = c_j + a_j b_jiᵀ m_j:

        by c_j, c_j    Σ_i κ_ij
        by m_j, c_j    a_j Σ_i κ_ij b_ji               (M,)
        by m_j, m_j    a_j² Σ_i κ_ij b_ji b_jiᵀ + I    (M, M), I of the prior of m_j

    convexity  (J, B, ROWS) κ ≥ 0, zeros behind the last row
    """
    outputs, size = len(convexity), design.basis.shape[2]
    hessian = np.eye(outputs + outputs * size)
    for j, (basis, amplitude) in enumerate(zip(design.basis, design.amplitude, strict=True)):
        place = slice(outputs + j * size, outputs + (j + 1) * size)
        # A direction in which the likelihood is flat is left where it is.
        hessian[j, j] = max(convexity[j].sum(), 1e-10)
        # One product for all outputs, most of it zeros: BLAS rounds by shape.
        mixed = np.zeros_like(convexity)
        mixed[j] = convexity[j] * amplitude
        hessian[place, :outputs] = _products(basis, mixed.swapaxes(0, 1))
        hessian[:outputs, place] = hessian[place, :outputs].T
        shared = convexity[j] * (amplitude * amplitude)
        hessian[place, place] += _products(basis * shared[:, None], basis)
    return hessian


def _products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Σ over blocks of left rightᵀ: (…, B, p, ROWS) and (…, B, q, ROWS) give (…, p, q)."""
    found: FloatArray = (left @ right.swapaxes(-1, -2)).sum(axis=-3)
    return found


def _solved(hessian: FloatArray, gradient: FloatArray) -> FloatArray:
    """H⁻¹ g, with as much of a ridge as rounding asks for."""
    step = np.arange(gradient.size)
    for ridge in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):
        raised = 0.5 * (hessian + hessian.T)
        raised[step, step] += ridge * raised[step, step].max()
        try:
            solved: FloatArray = cho_solve(cho_factor(raised, lower=True), gradient)
        except LinAlgError:
            continue
        return solved
    return np.zeros_like(gradient)
