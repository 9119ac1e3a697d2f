"""Rows to fit on, simulated or of the reference sets, for tests of the methods that need rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from monitor.frames.space import IntArray
from monitor.recalibration.fit_rows import FitRows
from tests.recalibration.rows import reference_rows, reference_sets, rows_from


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


def splits(name: str, fitted: int, count: int = 10) -> list[tuple[FitRows, FitRows]]:
    """The rows of a set in file order, and then in `count` random ones: to fit, to evaluate."""
    n = len(reference_sets()[name]["mean"])
    orders = [np.arange(n), *(np.random.default_rng(i).permutation(n) for i in range(count))]
    return [
        (reference_rows(name, o[:fitted]), reference_rows(name, o[fitted : 2 * fitted]))
        for o in orders
    ]
