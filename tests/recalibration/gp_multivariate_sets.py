"""Detections with simulated errors whose covariance is known, and densities to judge fits by."""

from __future__ import annotations

import numpy as np

from monitor.frames.space import Space, plain_space
from monitor.recalibration import scaling
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.scaling import FullInput
from monitor.statistics.bins import Binning
from monitor.statistics.stage import observe
from tests.recalibration.rows import rows_from


def space_of(k: int) -> Space:
    return plain_space(tuple("xywhabcd"[:k]))


def rows_of(mean, covariance, error, diagonal=False, *, space=None, track=None) -> FitRows:
    space = space or space_of(mean.shape[1])
    return rows_from(mean, covariance, error, diagonal=diagonal, space=space, track=track)


def correlated_pairs(seed: int | list[int], n: int = 4000, *, depends: bool = True) -> FitRows:
    """Two dimensions with variances only; the correlation goes from −0.9 to 0.9 with x, or not."""
    random = np.random.default_rng(seed)
    mean = random.uniform(-2, 2, (n, 2))
    sigma = np.exp(0.3 * random.normal(size=(n, 2)))
    rho = 0.9 * np.tanh(1.5 * mean[:, 0]) if depends else np.full(n, 0.5)
    first, second = random.normal(size=(2, n))
    error = sigma * np.stack([first, rho * first + np.sqrt(1 - rho**2) * second], axis=1)
    return rows_of(mean, sigma[:, :, None] ** 2 * np.eye(2), error, True)


def drifting(seed, n=600, k=3, *, diagonal=False, space=None):
    """k dimensions; what is wrong with sizes and correlations changes with the first mean."""
    random = np.random.default_rng(seed)
    mean = random.normal(size=(n, k))
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    covariance = np.exp(0.5 * random.normal(size=n))[:, None, None] * (
        root @ root.transpose(0, 2, 1)
    )
    if diagonal:
        covariance = covariance * np.eye(k)
    turn = np.eye(k) + np.tril(np.ones((k, k)), -1) * np.tanh(mean[:, :1, None])
    size = np.exp(0.5 * mean[:, :1])
    draw = (turn @ random.normal(size=(n, k, 1)))[..., 0] * size
    error = (np.linalg.cholesky(covariance) @ draw[..., None])[..., 0]
    return rows_of(mean, covariance, error, diagonal, space=space)


def joint_likelihood(model, rows):
    """Negative log-likelihood of a row, in nats, and NEES / K."""
    made = model.apply(rows.estimates).covariance
    k = rows.space.k
    nees = (rows.error * np.linalg.solve(made, rows.error[..., None])[..., 0]).sum(axis=1)
    logarithm = k * np.log(2 * np.pi) + np.linalg.slogdet(made)[1]
    return 0.5 * np.mean(logarithm + nees), nees.mean() / k


def covariance_scaled(rows):
    statistics = observe(rows.space, Binning(), rows.error, rows.estimates.covariance)
    return scaling.fit_covariance_scaling(statistics, full_input=FullInput.WHITEN)
