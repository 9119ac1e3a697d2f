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
from monitor.recalibration.processes.kernels import Kernel
from monitor.recalibration.processes.sparse_process import LatentLikelihood, inducing_root

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
    """Matrices that kernels and mixing make of the points.

    root      (L, M, M) L_l with L_l L_lᵀ = k_l(Z, Z); inverse (L, M, M) of it
    cross     (L, B, ROWS, M) k_l(x, Z)
    basis     (L, B, M, ROWS) a = L_l⁻¹ k_l(Z, x)
    residual  (L, B, ROWS) k_l(x, x) − aᵀ a, the variance that no inducing point explains
    mixing    (J, L) A
    """

    points: Points
    root: FloatArray
    inverse: FloatArray
    cross: FloatArray
    basis: FloatArray
    residual: FloatArray
    mixing: FloatArray


@dataclass(frozen=True, slots=True)
class Posterior:
    """c and q(v_l) = N(m_l, P_l⁻¹).

    constant   (J,)
    location   (L, M) m
    precision  (L, M, M) P
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

    value            weight Σ E_q[log p] − Σ_l KL(q(v_l) ‖ N(0, I)), in nats
    by_mean          (J, B, ROWS) weight ∂E/∂mean of each output, zeros behind the last row
    by_variance      (J, B, ROWS)
    latent_mean      (L, B, ROWS)
    latent_variance  (L, B, ROWS)
    covariance       (L, M, M) P⁻¹
    """

    value: float
    by_mean: FloatArray
    by_variance: FloatArray
    latent_mean: FloatArray
    latent_variance: FloatArray
    covariance: FloatArray


def prior(constant: FloatArray, latents: int, size: int) -> Posterior:
    """Returns the posterior before any data."""
    return Posterior(
        constant, np.zeros((latents, size)), np.repeat(np.eye(size)[None], latents, axis=0)
    )


def design_of(kernels: list[Kernel], mixing: FloatArray, points: Points) -> Design:
    """Builds the matrices from the kernels of the latents; mixing (J, L)."""
    z = points.inducing
    root = np.array([inducing_root(kernel, z) for kernel in kernels])
    inverse = np.linalg.solve(root, np.eye(len(z)))
    cross = np.array([kernel.matrix(points.blocks, z) for kernel in kernels])
    basis = inverse[:, None] @ cross.swapaxes(2, 3)
    variance = np.array([kernel.diagonal(points.blocks) for kernel in kernels])
    residual = np.maximum(variance - np.square(basis).sum(axis=2), 0.0)
    return Design(points, root, inverse, cross, basis, residual, mixing)


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
    mixing, points = design.mixing, design.points
    mean = np.einsum("jl,lbn->jbn", mixing, latent_mean) + posterior.constant[:, None, None]
    variance = np.einsum("jl,lbn->jbn", np.square(mixing), latent_variance)
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
    mixing, basis = design.mixing, design.basis
    outputs, (latents, size) = len(mixing), posterior.location.shape
    slopes = np.einsum("jl,jbn->lbn", mixing, by_mean)
    own = np.einsum("jl,jbn->lbn", np.square(mixing), curvature)
    precision = _products(basis * own[:, :, None], basis) + np.eye(size)

    gradient = np.empty(outputs + latents * size)
    gradient[:outputs] = by_mean.sum(axis=(1, 2))
    by_location = (basis @ slopes[..., None])[..., 0].sum(axis=1) - posterior.location
    gradient[outputs:] = by_location.ravel()
    # Where a likelihood is convex, a Newton step would lead down.
    move = _solved(_curvature(design, np.maximum(curvature, 0.0)), gradient)
    return Posterior(
        np.clip(posterior.constant + move[:outputs], centre - FURTHEST, centre + FURTHEST),
        posterior.location + move[outputs:].reshape(latents, size),
        0.5 * (precision + precision.swapaxes(1, 2)),
    )


def _curvature(design: Design, convexity: FloatArray) -> FloatArray:
    """Minus the second derivatives of the bound by (c, m_1 … m_L), (J + L M, J + L M).

    With κ_ij the convexity of output j at row i, f_j = c_j + Σ_l A_jl a_liᵀ m_l:

        by c_j, c_j        Σ_i κ_ij                              (J, J), diagonal
        by m_l, c_j        A_jl Σ_i κ_ij a_li                    (M, J) for each l
        by m_l, m_l'       Σ_i Σ_j A_jl A_jl' κ_ij a_li a_l'iᵀ   (M, M), and I for the prior of m_l

    convexity  (J, B, ROWS) κ ≥ 0, zeros behind the last row
    """
    mixing, basis = design.mixing, design.basis
    outputs, latents = mixing.shape
    size = basis.shape[2]
    hessian = np.eye(outputs + latents * size)
    # A direction in which the likelihood is flat is left where it is.
    hessian[:outputs, :outputs] = np.diag(np.maximum(convexity.sum(axis=(1, 2)), 1e-10))
    for latent in range(latents):
        place = slice(outputs + latent * size, outputs + (latent + 1) * size)
        mixed = convexity * mixing[:, latent, None, None]
        hessian[place, :outputs] = _products(basis[latent], mixed.swapaxes(0, 1))
        hessian[:outputs, place] = hessian[place, :outputs].T
        for other in range(latent + 1):
            shared = np.einsum("j,jbn->bn", mixing[:, latent] * mixing[:, other], convexity)
            # Latents that go into no output together.
            if not shared.any():
                continue
            there = slice(outputs + other * size, outputs + (other + 1) * size)
            block = _products(basis[latent] * shared[:, None], basis[other])
            hessian[place, there] += block
            if other != latent:
                hessian[there, place] += block.T
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
