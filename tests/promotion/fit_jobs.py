"""Fits to be done, for the tests of how and where they are; no tests here."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.space import plain_space
from monitor.promotion.fits import FitJob
from monitor.promotion.records import FitSettings
from monitor.recalibration.fit_rows import FitRows


def rows_of(
    seed: int,
    *,
    tracks: int = 60,
    per_track: int = 10,
    k: int = 3,
    factor: float = 1.5,
    alike: bool = False,
) -> FitRows:
    """Tracks one after the other, of errors `factor` times as large as predicted.

    alike  the rows of a track have one error, in σ
    """
    random = np.random.default_rng(seed)
    n = tracks * per_track
    root = 0.3 * random.normal(size=(n, k, k)) + np.eye(k)
    covariance = root @ root.transpose(0, 2, 1)
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    z = random.normal(size=(n, k))
    if alike:
        z = np.repeat(random.normal(size=(tracks, k)), per_track, axis=0)
    return FitRows(
        plain_space(tuple(f"d{i}" for i in range(k)), "m"),
        Estimates(10 * random.normal(size=(n, k)), covariance, np.zeros(n, bool)),
        factor * deviation * z,
        np.repeat(np.arange(tracks), per_track),
        np.arange(n) / 10,
        np.full(n, 0.5),
    )


def job_of(method: str, slices: Mapping[str, FitRows], **settings: Any) -> FitJob:
    """Of one method, with other settings than the defaults."""
    return FitJob(FitSettings(method, **settings), slices)
