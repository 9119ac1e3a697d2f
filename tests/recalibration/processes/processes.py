"""Sparse processes drawn at random, and textbook formulas of them that share no code."""

from __future__ import annotations

import numpy as np

from monitor.recalibration.processes.sparse_process import JITTER, Kernel, SparseProcess
from monitor.recalibration.recalibrator import as_matrix


def random_points(seed, n, width=2):
    return np.random.default_rng(seed).normal(size=(n, width))


def random_process(seed, *, outputs=2, size=5, width=2) -> SparseProcess:
    random = np.random.default_rng(seed)
    scale = np.exp(0.3 * random.normal(size=(outputs, width)))
    mixing = np.diag(np.exp(0.3 * random.normal(size=outputs)))
    root = 0.2 * np.tril(random.normal(size=(outputs, size, size)), -1) + 0.4 * np.eye(size)
    return SparseProcess(
        tuple(random.normal(size=outputs).tolist()),
        as_matrix(random_points(seed + 1, size, width)),
        as_matrix(scale),
        as_matrix(mixing),
        as_matrix(random.normal(size=(outputs, size))),
        tuple(as_matrix(one) for one in root),
    )


def gram(process: SparseProcess, latent: int, left, right):
    """k(left, right), entry by entry through the kernel of two points."""
    kernel = Kernel(np.array(process.scale[latent]))
    return np.array([[kernel.matrix(x[None], y[None])[0, 0] for y in right] for x in left])


def inducing_gram(process: SparseProcess, latent: int):
    """K, with the jitter that is documented."""
    z = np.array(process.inducing)
    matrix = gram(process, latent, z, z)
    return matrix + JITTER * np.trace(matrix) / len(z) * np.eye(len(z))


def inducing_moments(process: SparseProcess, latent: int):
    """Mean and covariance of u = g(Z), of the whitened ones."""
    root = np.linalg.cholesky(inducing_gram(process, latent))
    spread = np.array(process.spread[latent])
    mean = root @ np.array(process.location[latent])
    return mean, root @ spread @ spread.T @ root.T


def textbook_at(process: SparseProcess, points):
    """Mean and variance of the outputs by Hensman et al. 2015, eq. 7 and 8: with
    B = k(x, Z) K⁻¹ the latent mean is B m and its variance k(x, x) − B (K − S) Bᵀ."""
    mean = np.repeat(np.array(process.constant)[:, None], len(points), axis=1)
    variance = np.zeros_like(mean)
    for latent in range(len(process.location)):
        centre, spread = inducing_moments(process, latent)
        k = inducing_gram(process, latent)
        b = gram(process, latent, points, np.array(process.inducing)) @ np.linalg.inv(k)
        itself = np.array([gram(process, latent, x[None], x[None])[0, 0] for x in points])
        loading = np.array(process.mixing)[:, latent : latent + 1]
        mean += loading * (b @ centre)
        variance += loading**2 * (itself - np.diag(b @ (k - spread) @ b.T))
    return mean, variance


def textbook_divergence(process: SparseProcess):
    """Σ KL(N(m, S) ‖ N(0, K)) over the latents, of u itself."""
    total = 0.0
    for latent in range(len(process.location)):
        centre, spread = inducing_moments(process, latent)
        k = inducing_gram(process, latent)
        inverse = np.linalg.inv(k)
        total += 0.5 * (
            np.trace(inverse @ spread)
            + centre @ inverse @ centre
            - len(k)
            + np.linalg.slogdet(k)[1]
            - np.linalg.slogdet(spread)[1]
        )
    return total
