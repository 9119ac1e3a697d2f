"""Detections whose σ is wrong in known ways, for tests of Gaussian processes."""

from __future__ import annotations

from functools import cache

import numpy as np

from monitor.calibration.space import FloatArray, Space, plain_space
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Estimates, Recalibrator
from tests.reference.datasets import all_sets


def rows_from(mean, covariance, error, *, track=None, space: Space | None = None) -> FitRows:
    """Covariances (n, K, K), or variances (n, K)."""
    n, k = mean.shape
    diagonal = covariance.ndim == 2
    if diagonal:
        covariance = covariance[:, :, None] * np.eye(k)
    return FitRows(
        space or plain_space(tuple(f"d{i}" for i in range(k))),
        Estimates(mean, covariance, np.full(n, diagonal)),
        error,
        np.full(n, -1) if track is None else track,
    )


@cache
def reference_sets():
    return all_sets()


def reference_rows(name: str, rows: slice) -> FitRows:
    """Rows of a set that other libraries' values are known for."""
    arrays = reference_sets()[name]
    mean, covariance = arrays["mean"][rows], arrays.get("cov", arrays.get("var"))[rows]
    return rows_from(mean, covariance, arrays["gt"][rows] - mean)


def true_log_factor(mean):
    """Of the variance, in `sizes`: it goes with the first mean."""
    return 1.6 * np.tanh((np.log(mean[:, :1]) - 4.0) / 0.7)


def sizes(seed, n=800, k=2, *, factor=true_log_factor, full=False, tail=None, space=None):
    """Positive means such as widths, σ independent of them, and errors off by a factor."""
    random = np.random.default_rng(seed)
    mean = np.exp(random.normal(4.0, 0.7, (n, k)))
    covariance = np.exp(random.normal(0.0, 0.8, (n, k)))
    draw = random.normal(size=(n, k)) if tail is None else random.standard_t(tail, (n, k))
    if full:
        root = np.eye(k) + 0.3 * np.tril(random.normal(size=(n, k, k)), -1)
        root = root * np.sqrt(covariance)[:, :, None]
        covariance, draw = root @ root.transpose(0, 2, 1), (root @ draw[..., None])[..., 0]
    else:
        draw = draw * np.sqrt(covariance)
    return rows_from(mean, covariance, draw * np.exp(0.5 * factor(mean)), space=space)


def nothing_to_find(mean):
    """A factor of three for all."""
    return np.full((len(mean), 1), np.log(3.0))


def likelihood_a_dimension(model: Recalibrator, rows: FitRows) -> float:
    """Negative log-likelihood of an error, in nats, mean over rows and dimensions."""
    variance = np.diagonal(model.apply(rows.estimates).covariance, axis1=1, axis2=2)
    return float(0.5 * np.mean(np.log(2 * np.pi * variance) + rows.error**2 / variance))


def scaled_likelihood(fitted_on: FitRows, rows: FitRows) -> float:
    """The same of one factor a dimension: variance scaling."""
    factor = np.mean((fitted_on.error / fitted_on.deviation) ** 2, axis=0)
    variance = factor * rows.deviation**2
    return float(0.5 * np.mean(np.log(2 * np.pi * variance) + rows.error**2 / variance))


def wild_estimates(seed, n, k) -> Estimates:
    """Of any size, far outside of what was fitted on."""
    random = np.random.default_rng(seed)
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    sigma: FloatArray = 10.0 ** random.uniform(-6, 5, (n, k))
    covariance = sigma[:, :, None] * (root @ root.transpose(0, 2, 1)) * sigma[:, None, :]
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    diagonal = random.random(n) < 0.5
    covariance[diagonal] *= np.eye(k)
    mean = random.choice([-1.0, 0.0, 1.0], (n, k)) * 10.0 ** random.uniform(-8, 8, (n, k))
    return Estimates(mean, covariance, diagonal)
