"""Rows to fit on, simulated or of the reference sets, for tests of the methods that need rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from monitor.calibration.space import FloatArray, IntArray, plain_space
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Estimates
from tests.reference.datasets import all_sets

SETS = all_sets()


def rows_of(deviation: Any, error: Any, track: IntArray | None = None) -> FitRows:
    """Rows with variances alone; (n, K) or (n,), a track each unless given."""
    sigma, e = (np.asarray(x, float) for x in (deviation, error))
    if sigma.ndim == 1:
        sigma, e = sigma[:, None], e[:, None]
    n, k = sigma.shape
    covariance = np.square(sigma)[:, :, None] * np.eye(k)
    mean = np.arange(n * k, dtype=float).reshape(n, k)
    sent = Estimates(mean, covariance, np.ones(n, bool))
    names = tuple(f"d{i}" for i in range(k))
    return FitRows(plain_space(names), sent, e, np.full(n, -1) if track is None else track)


def wrong_by_size(seed: int, n: int = 2000, k: int = 1) -> FitRows:
    """Errors that grow as the root of σ, off by a factor a dimension."""
    random = np.random.default_rng(seed)
    sigma = np.exp(random.normal(size=(n, k)))
    return rows_of(sigma, np.sqrt(sigma) * random.normal(size=(n, k)) * np.arange(1, k + 1))


def of_set(name: str, rows: Any) -> FitRows:
    """Some rows of a reference set."""
    arrays = {key: values[rows] for key, values in SETS[name].items()}
    mean = arrays["mean"]
    n, k = mean.shape
    diagonal = "var" in arrays
    covariance = arrays["var"][:, :, None] * np.eye(k) if diagonal else arrays["cov"]
    sent = Estimates(mean, covariance, np.full(n, diagonal))
    names = tuple(f"d{i}" for i in range(k))
    return FitRows(plain_space(names), sent, arrays["gt"] - mean, np.full(n, -1))


def splits(name: str, fitted: int, count: int = 10) -> list[tuple[FitRows, FitRows]]:
    """The rows of a set in file order, and then in `count` random ones: to fit, to evaluate."""
    n = len(SETS[name]["mean"])
    orders = [np.arange(n), *(np.random.default_rng(i).permutation(n) for i in range(count))]
    return [(of_set(name, o[:fitted]), of_set(name, o[fitted : 2 * fitted])) for o in orders]


def other_estimates(seed: int, k: int, n: int = 20) -> Estimates:
    """Detections far outside of what any fit has seen, some of them with variances alone."""
    random = np.random.default_rng(seed)
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    shape = root @ root.transpose(0, 2, 1)
    size = 10.0 ** random.uniform(-6, 5, (n, k)) / np.sqrt(np.diagonal(shape, axis1=1, axis2=2))
    covariance = (size[:, :, None] * size[:, None, :]) * (shape + shape.transpose(0, 2, 1)) / 2
    diagonal = random.random(n) < 0.5
    covariance[diagonal] *= np.eye(k)
    return Estimates(random.uniform(-1e8, 1e8, (n, k)), covariance, diagonal)


def nll(deviation: FloatArray, error: FloatArray) -> float:
    """Mean negative log density of Gaussian errors."""
    z = error / deviation
    return float(np.mean(0.5 * np.log(2 * np.pi) + np.log(deviation) + 0.5 * z * z))


def deviation_of(estimates: Estimates) -> FloatArray:
    """(n, K)"""
    return np.sqrt(np.diagonal(estimates.covariance, axis1=1, axis2=2))
