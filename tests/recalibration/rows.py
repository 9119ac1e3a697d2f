"""Detections with their truth, simulated or of the reference sets, and what else the tests of every
method of Gaussians share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.space import BoolArray, FloatArray, Space, plain_space
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.selection import Selection
from monitor.store.codec import Codec
from monitor.store.recalibrator_documents import any_selection_from_json
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
    a, b = left.estimates, right.estimates
    times = [np.asarray(rows.time_s) for rows in (left, right)]
    delays = [np.asarray(rows.delay_s) for rows in (left, right)]
    return FitRows(
        left.space,
        Estimates(
            np.concatenate([a.mean, b.mean]),
            np.concatenate([a.covariance, b.covariance]),
            np.concatenate([a.diagonal, b.diagonal]),
        ),
        np.concatenate([left.error, right.error]),
        np.concatenate([left.track, right.track]),
        np.concatenate(times),
        np.concatenate(delays),
    )


@cache
def reference_sets() -> dict[str, dict[str, Any]]:
    return all_sets()


def reference_rows(name: str, rows: Any) -> FitRows:
    """Some rows of a set that other libraries' values are known for."""
    arrays = reference_sets()[name]
    covariance = arrays["cov" if "cov" in arrays else "var"][rows]
    mean = arrays["mean"][rows]
    return rows_from(mean, covariance, arrays["gt"][rows] - mean)


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


def nll(deviation: FloatArray, error: FloatArray) -> float:
    """Negative log-likelihood of Gaussian errors in nats, mean over rows and dimensions."""
    z = error / deviation
    return float(np.mean(0.5 * np.log(2 * np.pi) + np.log(deviation) + 0.5 * z * z))


@cache
def _codec(kind: Any) -> Codec[Any]:
    return Codec(kind, "parameters", "Fit again.")


def as_read(kind: Any, parameters: Any) -> Any:
    """Reads what `parameters` returned. Raises InvalidDocument."""
    return _codec(kind).read_content(parameters)


def read_selection(text: str | bytes) -> Selection:
    """Reads the document of a recalibrator of Gaussians."""
    found = any_selection_from_json(text)
    assert isinstance(found, Selection)
    return found


def read_class_selection(text: str | bytes) -> ClassSelection:
    """Reads the document of a recalibrator of class probabilities."""
    found = any_selection_from_json(text)
    assert isinstance(found, ClassSelection)
    return found
