"""Laws that whole families of types obey, as functions; a new type joins a list and gets them all.

Equality is of bits: every array of two values is compared, down to the last field.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from monitor.frames.detections import Estimates
from monitor.recalibration.recalibrator import Recalibrator

# For laws that fit or run a whole pipeline: a quarter of the examples that a profile asks for.
costly = settings(max_examples=settings().max_examples // 4)


def assert_same(left: Any, right: Any, where: str = "") -> None:
    """Equal types, equal fields, equal shapes, equal bits; NaN equals NaN."""
    assert type(left) is type(right), where
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, where
        assert left.shape == right.shape, where
        assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), where
    elif isinstance(left, Estimates):
        # Whichever form their covariances were given in.
        for name in ("mean", "covariance", "diagonal", "score"):
            assert_same(getattr(left, name), getattr(right, name), f"{where}.{name}")
    elif is_dataclass(left):
        for entry in fields(left):
            name = entry.name
            assert_same(getattr(left, name), getattr(right, name), f"{where}.{name}")
    elif isinstance(left, tuple | list):
        assert len(left) == len(right), where
        for i, pair in enumerate(zip(left, right, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert left == right, where


def changed(estimates: Estimates, **columns: Any) -> Estimates:
    """The same estimates with other columns."""
    names = ("mean", "covariance", "diagonal", "score")
    return Estimates(**{name: getattr(estimates, name) for name in names} | columns)


def recalibrated_covariances_are_positive_definite(
    recalibrator: Recalibrator, estimates: Estimates
) -> None:
    made = recalibrator.apply(estimates)
    assert np.isfinite(made.mean).all()
    assert np.array_equal(made.covariance, made.covariance.transpose(0, 2, 1))
    np.linalg.cholesky(made.covariance)


def recalibration_leaves_its_argument_alone(
    recalibrator: Recalibrator, estimates: Estimates
) -> None:
    before = estimates.take(np.arange(estimates.mean.shape[0]))
    recalibrator.apply(estimates)
    assert_same(estimates, before)


def each_detection_is_recalibrated_by_itself(
    recalibrator: Recalibrator, estimates: Estimates
) -> None:
    whole = recalibrator.apply(estimates)
    for row in range(estimates.mean.shape[0]):
        one = slice(row, row + 1)
        alone = recalibrator.apply(estimates.take(one))
        assert_same(alone.mean, whole.mean[one])
        assert_same(alone.covariance, whole.covariance[one])
        assert_same(alone.diagonal, whole.diagonal[one])


def assert_near(found: Any, expected: Any) -> None:
    """Compares numbers to 1e-12, in lists and objects of any depth."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
    elif expected is None or isinstance(expected, str):
        assert found == expected
    else:
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-13)
