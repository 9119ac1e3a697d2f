"""Laws that whole families of types obey, as functions; a new type joins a list and gets them all.

Equality is of bits: every array of two values is compared, down to the last field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from hypothesis import settings

from monitor.frames.detections import Estimates
from monitor.recalibration.recalibrator import Recalibrator

Value = TypeVar("Value")
Merge = Callable[[Value, Value], Value]

# For laws that fit or run a whole pipeline: a quarter of the examples that a profile asks for.
costly = settings(max_examples=settings().max_examples // 4)


def assert_same(left: Any, right: Any, where: str = "") -> None:
    """Equal types, equal fields, equal shapes, equal bits; NaN equals NaN."""
    assert type(left) is type(right), where
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, where
        assert left.shape == right.shape, where
        assert np.array_equal(left, right, equal_nan=left.dtype.kind == "f"), where
    elif is_dataclass(left):
        for entry in fields(left):
            name = entry.name
            assert_same(getattr(left, name), getattr(right, name), f"{where}.{name}")
    elif isinstance(left, tuple):
        assert len(left) == len(right), where
        for i, pair in enumerate(zip(left, right, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert left == right, where


def merge_is_associative(merge: Merge[Value], a: Value, b: Value, c: Value) -> None:
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)))


def merge_is_commutative(merge: Merge[Value], a: Value, b: Value) -> None:
    assert_same(merge(a, b), merge(b, a))


def zero_changes_nothing(merge: Merge[Value], zero: Value, a: Value) -> None:
    assert_same(merge(a, zero), a)
    assert_same(merge(zero, a), a)
    assert_same(merge(zero, zero), zero)


def retracted(whole: Any, part: Any) -> Any:
    """Takes out statistics that were added before, or will be."""
    return whole.merge(part.negated())


def retract_undoes_merge(
    merge: Merge[Value], retract: Merge[Value], zero: Value, a: Value, b: Value
) -> None:
    assert_same(retract(merge(a, b), b), a)
    assert_same(retract(merge(a, b), a), b)
    assert_same(retract(a, a), zero)
    assert_same(retract(a, zero), a)
    # A replica may see the retraction before it sees what is retracted.
    assert_same(merge(retract(zero, a), a), zero)
    # What a revision changes can travel on its own.
    assert_same(merge(a, retract(b, a)), b)


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
    before = Estimates(
        estimates.mean.copy(), estimates.covariance.copy(), estimates.diagonal.copy()
    )
    recalibrator.apply(estimates)
    assert_same(estimates, before)


def each_detection_is_recalibrated_by_itself(
    recalibrator: Recalibrator, estimates: Estimates
) -> None:
    whole = recalibrator.apply(estimates)
    for row in range(estimates.mean.shape[0]):
        one = slice(row, row + 1)
        alone = recalibrator.apply(
            Estimates(estimates.mean[one], estimates.covariance[one], estimates.diagonal[one])
        )
        assert_same(alone.mean, whole.mean[one])
        assert_same(alone.covariance, whole.covariance[one])
        assert_same(alone.diagonal, whole.diagonal[one])
