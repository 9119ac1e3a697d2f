"""Fits the factor and the line of a beta map at given latent values; and what they start from.

Serving does not need this file.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import ndtri

from monitor.calibration.space import FloatArray
from monitor.recalibration.processes.beta_likelihood import (
    BetaErrors,
    BetaLikelihood,
    beta_likelihood,
)
from monitor.recalibration.processes.beta_line import BOUNDS, BetaLine, Triple
from monitor.recalibration.processes.equal_count_bins import BINS, equal_count_bins
from monitor.recalibration.processes.quadrature import latent_nodes

# The central interval whose width the factor on σ matches at first.
LEVEL = 0.95
# How far the log of the factor may move from there.
FURTHEST_FACTOR = 5.0
# Deviations of a Gaussian prior on (log a, log b, c) and on the loading: a few rows must not
# make a map that says their errors are certain.
PRIOR = np.array([2.0, 2.0, 5.0])
# Nats: a step that gains less is the last one.
ENOUGH = 1e-3


def factor_on_deviation(normalised: FloatArray) -> float:
    """The factor on σ with which a Gaussian has the central interval of normalised errors, not
    all of them 0."""
    width = float(np.quantile(np.abs(normalised), LEVEL))
    if width > 0:
        return width / float(ndtri((1 + LEVEL) / 2))
    # Hardly a row has an error: then by those that have one.
    return float(np.sqrt(np.mean(normalised * normalised)))


def refined(
    errors: BetaErrors,
    factor: float,
    line: BetaLine,
    weight: float,
    latent: tuple[FloatArray, FloatArray] | None = None,
    *,
    factor_moves: bool = True,
) -> tuple[float, BetaLine]:
    """The factor and the line of the largest bound, from given ones.

    The loading has length 1, since the size of the latent values is the process's; it is 0
    without latent values.

    weight        in (0, 1], what a row is worth
    latent        mean and variance (1, n) of Gaussian latent values; None: there are none
    factor_moves  whether the factor is fitted too
    """
    nodes = np.zeros((1, errors.normalised.size))
    if latent:
        nodes = latent_nodes(latent[0][0], latent[1][0])
    # Entries: log factor, base, loading.
    moving = 7 if latent else 4
    scale = np.array([np.inf, *PRIOR, *PRIOR])[:moving]

    def loss(packed: FloatArray) -> tuple[float, FloatArray]:
        moved = beta_likelihood(errors, float(np.exp(packed[0])), _line(packed))
        value, by_map = moved.expected_by_map(nodes)
        prior = packed / scale
        slope = weight * by_map[:moving] - prior / scale
        return 0.5 * float(prior @ prior) - weight * value, -slope

    first = float(np.log(factor))
    start = np.array([first, *line.base, *line.loading])[:moving]
    room = FURTHEST_FACTOR if factor_moves else 0.0
    bounds = [(first - room, first + room)]
    bounds += [(-limit, limit) for limit in (*BOUNDS, *BOUNDS)]
    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds[:moving],
        options={"maxiter": 100, "ftol": ENOUGH / max(1.0, abs(loss(start)[0]))},
    ).x
    length = float(np.linalg.norm(found[4:]))
    found[4:] /= length if length > 0 else 1.0
    return float(np.exp(found[0])), _line(found)


def direction(likelihood: BetaLikelihood, candidates: FloatArray) -> Triple:
    """The loading, of length 1, along which the constant map misses most.

    Slopes of the log-likelihood by (log a, log b, c) are averaged in bins of each candidate
    input, (n, D). Of the products B of those averages and W of all slopes, the largest
    eigenvalue of B u = λ W u over the candidates tells the input that explains most, and u the
    step that a Newton iteration would make there.
    """
    _, slopes = likelihood.by_parameters(np.zeros((1, candidates.shape[0])))
    slope = np.concatenate(slopes)
    slope -= slope.mean(axis=1, keepdims=True)
    # The prior keeps W regular.
    within = slope @ slope.T + np.diag(1 / PRIOR**2)
    best, found = 0.0, np.array([1.0, 1.0, 0.0])
    for column in candidates.T:
        place = equal_count_bins(column)
        count = np.maximum(np.bincount(place, minlength=BINS), 1)
        total = np.stack([np.bincount(place, one, BINS) for one in slope])
        value, vector = eigh((total / count) @ total.T, within)
        if value[-1] > best:
            best, found = float(value[-1]), vector[:, -1]
    found = found * np.sign(found[np.abs(found).argmax()]) / np.linalg.norm(found)
    return float(found[0]), float(found[1]), float(found[2])


def _line(packed: FloatArray) -> BetaLine:
    """Of log factor, base and loading, or without a loading."""
    base = (float(packed[1]), float(packed[2]), float(packed[3]))
    if packed.size == 4:
        return BetaLine(base, (0.0, 0.0, 0.0))
    return BetaLine(base, (float(packed[4]), float(packed[5]), float(packed[6])))
