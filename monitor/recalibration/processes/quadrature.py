"""Gauss–Hermite rules: expectations under Gaussians as weighted sums over fixed nodes.

The derivatives are those of the rule itself, so that an optimiser sees one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes.latent_likelihood import Expected

# Log-likelihoods of one latent value are off by less than 1e-4 where its variance is at most 1.
NODES = 20
# Below it the derivative by the variance would be a difference of equal numbers.
LEAST_VARIANCE = 1e-12
# Latent values looked at together: their arrays stay in the cache, which is three times as fast.
_TOGETHER = 5000

# Latent values, (Q, n), to the log-likelihood of n errors at each of them and its slope.
LogLikelihood = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


@cache
def gauss_hermite(count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes x and weights w, both (count,), with Σ w f(x) = E f(ξ) for ξ ~ N(0, 1).

    Exact for polynomials of a degree below 2·count; read-only.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(count)
    # Symmetric to the last bit, so that odd moments are zero.
    node = 0.5 * (node - node[::-1])
    weight = weight + weight[::-1]
    weight /= weight.sum()
    node.setflags(write=False)
    weight.setflags(write=False)
    return node, weight


def latent_nodes(mean: FloatArray, variance: FloatArray, count: int = NODES) -> FloatArray:
    """(count, n) latent values m + √v x at which the rule looks, under N(m, v); both (n,)."""
    node, _ = gauss_hermite(count)
    nodes: FloatArray = mean + np.sqrt(np.maximum(variance, LEAST_VARIANCE)) * node[:, None]
    return nodes


def expected_under_normal(
    log_likelihood: LogLikelihood, mean: FloatArray, variance: FloatArray, count: int = NODES
) -> Expected:
    """E[log p(error | f)] of n errors with one latent value each, f ~ N(mean, variance).

    With f = m + √v x: value Σ w ℓ(f), by the mean Σ w ℓ'(f), by the variance
    Σ w x ℓ'(f) / (2√v).

    mean, variance  (1, n)
    """
    node, weight = gauss_hermite(count)
    deviation = np.sqrt(np.maximum(variance[0], LEAST_VARIANCE))
    value, by_mean, by_deviation = np.zeros((3, deviation.size))
    for part in node_groups(count, deviation.size):
        found, slope = log_likelihood(mean + deviation * node[part, None])
        value += weight[part] @ found
        by_mean += weight[part] @ slope
        by_deviation += (weight[part] * node[part]) @ slope
    return Expected(value, by_mean[None], (by_deviation / (2 * deviation))[None])


def node_groups(count: int, n: int) -> Iterator[slice]:
    """Nodes to be looked at together where there are n rows."""
    size = max(1, _TOGETHER // max(1, n))
    for first in range(0, count, size):
        yield slice(first, first + size)
