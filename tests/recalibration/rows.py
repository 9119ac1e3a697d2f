"""Detections and opinions on classes with their truth, simulated or of the reference sets, and what
else the tests of every method share."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space, plain_space
from monitor.recalibration.class_probabilities import (
    LEAST,
)
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes.normal import NormalLikelihood
from monitor.recalibration.processes.sparse_process import SparseProcess
from monitor.recalibration.recalibrator import Recalibrator, as_matrix
from monitor.recalibration.selection import CLASS_METHODS, Selection
from monitor.store.documents import Codec, any_selection_from_json
from tests.reference.datasets import all_sets

# Whatever may stand in a document.
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3)
    ),
    max_leaves=8,
)


def rows_from(
    mean,
    covariance,
    error,
    *,
    diagonal: bool | BoolArray | None = None,
    track=None,
    space: Space | None = None,
) -> FitRows:
    """Covariances (n, K, K), or variances (n, K); in dimensions d0, d1 and so on.

    A row comes every tenth of a second, and its truth with it.
    """
    n, k = mean.shape
    variances = covariance.ndim == 2
    if variances:
        covariance = covariance[:, :, None] * np.eye(k)
    flags = np.broadcast_to(variances if diagonal is None else diagonal, n).copy()
    return FitRows(
        space or plain_space(tuple(f"d{i}" for i in range(k))),
        Estimates(mean, covariance, flags),
        error,
        np.full(n, -1) if track is None else track,
        np.arange(n) / 10,
        np.zeros(n),
    )


def joined(left: FitRows, right: FitRows) -> FitRows:
    """The rows of both, all of which have times and delays."""

    def both(of: Any) -> Any:
        return np.concatenate([of(left), of(right)])

    estimates = [both(attrgetter(f"estimates.{of}")) for of in ("mean", "covariance", "diagonal")]
    others = [both(attrgetter(of)) for of in ("error", "track", "time_s", "delay_s")]
    return FitRows(left.space, Estimates(*estimates), *others)


@cache
def reference_sets() -> dict[str, dict[str, Any]]:
    return all_sets()


def reference_rows(name: str, rows: Any) -> FitRows:
    """Some rows of a set that other libraries' values are known for."""
    arrays = reference_sets()[name]
    covariance = arrays["cov" if "cov" in arrays else "var"][rows]
    mean = arrays["mean"][rows]
    return rows_from(mean, covariance, arrays["gt"][rows] - mean)


def rows_of(deviation: Any, error: Any, track: IntArray | None = None) -> FitRows:
    """Rows with variances alone; (n, K) or (n,), a track each unless given."""
    sigma, e = (np.asarray(x, float) for x in (deviation, error))
    if sigma.ndim == 1:
        sigma, e = sigma[:, None], e[:, None]
    mean = np.arange(sigma.size, dtype=float).reshape(sigma.shape)
    return rows_from(mean, np.square(sigma), e, track=track)


def wrong_by_size(seed: int, n: int = 2000, k: int = 1) -> FitRows:
    """Errors that grow as the root of σ, off by a factor a dimension."""
    random = np.random.default_rng(seed)
    sigma = np.exp(random.normal(size=(n, k)))
    return rows_of(sigma, np.sqrt(sigma) * random.normal(size=(n, k)) * np.arange(1, k + 1))


def true_log_factor(mean):
    """Of the variance, in `sizes`: it goes with the first mean."""
    return 1.6 * np.tanh((np.log(mean[:, :1]) - 4.0) / 0.7)


def nothing_to_find(mean):
    """A factor of three for all."""
    return np.full((len(mean), 1), np.log(3.0))


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


def random_points(seed: int, n: int, width: int = 2) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(n, width))


def random_process(seed: int, *, outputs: int = 2, size: int = 5, width: int = 2) -> SparseProcess:
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


def wild_estimates(seed: int, n: int, k: int) -> Estimates:
    """Detections far outside of what any fit has seen, some of them with variances alone."""
    random = np.random.default_rng(seed)
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    shape = root @ root.transpose(0, 2, 1)
    size = 10.0 ** random.uniform(-6, 5, (n, k)) / np.sqrt(np.diagonal(shape, axis1=1, axis2=2))
    covariance = (size[:, :, None] * size[:, None, :]) * (shape + shape.transpose(0, 2, 1)) / 2
    diagonal = random.random(n) < 0.5
    covariance[diagonal] *= np.eye(k)
    mean = random.choice([-1.0, 0.0, 1.0], (n, k)) * 10.0 ** random.uniform(-8, 8, (n, k))
    return Estimates(mean, covariance, diagonal)


def correlation(estimates: Estimates) -> FloatArray:
    size = estimates.deviation
    return estimates.covariance / (size[:, :, None] * size[:, None, :])


def one_scale(rows: FitRows) -> FloatArray:
    scale: FloatArray = np.sqrt(np.mean(np.square(rows.error / rows.deviation), axis=0))
    return scale


def nll(deviation: FloatArray, error: FloatArray) -> float:
    """Negative log-likelihood of Gaussian errors in nats, mean over rows and dimensions."""
    z = error / deviation
    return float(np.mean(0.5 * np.log(2 * np.pi) + np.log(deviation) + 0.5 * z * z))


def scaled_loss(fitted: FitRows, fresh: FitRows) -> float:
    return nll(fresh.deviation * one_scale(fitted), fresh.error)


def forwarded_loss(model: Recalibrator, fresh: FitRows) -> float:
    """The likelihood of the Gaussians that are forwarded."""
    made = model.apply(fresh.estimates)
    return nll(made.deviation, fresh.error + fresh.estimates.mean - made.mean)


def own_loss(model: Any, fresh: FitRows) -> float:
    """The likelihood under the method's own distributions."""
    truth = fresh.estimates.mean + fresh.error
    return float(-model.marginals(fresh.estimates).log_density(truth).mean())


@cache
def _codec(kind: Any) -> Codec[Any]:
    return Codec(kind, "parameters", "Fit again.")


def as_read(kind: Any, parameters: Any) -> Any:
    """Reads what `parameters` returned. Raises InvalidDocument."""
    return _codec(kind).read_content(parameters)


def read_selection(text: str | bytes) -> Selection:
    found = any_selection_from_json(text)
    assert isinstance(found, Selection)
    return found


def drawn(logits: FloatArray, random: np.random.Generator) -> Any:
    """A label of each row, from its softmax."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    below = (random.uniform(size=(len(p), 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    return below.clip(0, p.shape[1] - 1)


def made(method: str, classes: int, seed: int = 0) -> Any:
    """One that no fit made, of any number of classes, from a document."""
    random = np.random.default_rng([seed, classes])
    units = min(classes, 5)

    def numbers(*shape: int, scale: float = 1.0) -> Any:
        return random.normal(0.0, scale, shape).tolist()

    def between(low: float, high: float, n: int = classes) -> Any:
        return np.sort(random.uniform(low, high, n)).tolist()

    linear = {"weight": between(0.3, 3.0), "bias": numbers(classes)}
    network = {
        **{"centre": between(-5.0, -1.0), "spread": between(1.0, 3.0)},
        **{"lowest": [-3.0] * classes, "highest": [2.0] * classes},
        **{"hidden": numbers(units, classes, scale=0.5), "hidden_bias": numbers(units)},
        "output": numbers(classes, units, scale=0.5),
    }
    low = np.log(LEAST)
    knots = [{"sent": between(low, 0.0, 7), "made": between(low, 0.0, 7)} for _ in range(classes)]
    parameters: dict[str, Any] = {
        "class-identity": {},
        "temperature": {"temperature": random.uniform(0.3, 3.0)},
        "vector-scaling": linear,
        "auxiliary-scaling": linear | network,
        "classwise-isotonic": {"knots": knots},
    }
    return as_read(CLASS_METHODS[method], parameters[method])
