"""Detections whose σ is wrong in known ways, for tests of Gaussian processes."""

from __future__ import annotations

import numpy as np

from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes.normal import NormalLikelihood
from monitor.recalibration.recalibrator import Recalibrator
from tests.recalibration.rows import nll, rows_from


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


def normal_likelihood(rows: FitRows, *dimensions: int) -> NormalLikelihood:
    """The likelihood of some dimensions of rows, of all where none is named."""
    places = list(dimensions or range(rows.space.k))
    error, deviation = rows.error.T[places], rows.deviation.T[places]
    return NormalLikelihood(np.square(error / deviation), np.log(deviation))


def nothing_to_find(mean):
    """A factor of three for all."""
    return np.full((len(mean), 1), np.log(3.0))


def likelihood_a_dimension(model: Recalibrator, rows: FitRows) -> float:
    """Negative log-likelihood of an error, in nats, mean over rows and dimensions."""
    return nll(model.apply(rows.estimates).deviation, rows.error)


def scaled_likelihood(fitted_on: FitRows, rows: FitRows) -> float:
    """The same of one factor a dimension: variance scaling."""
    factor = np.sqrt(np.mean((fitted_on.error / fitted_on.deviation) ** 2, axis=0))
    return nll(factor * rows.deviation, rows.error)
