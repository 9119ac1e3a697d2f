"""Reads numbers out of recalibrator documents, and says what is wrong with those it refuses."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TypeGuard, TypeVar

import numpy as np

from monitor.calibration.slices import RangeBuckets
from monitor.calibration.space import FloatArray
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator

Matrix = tuple[tuple[float, ...], ...]
Choice = TypeVar("Choice", bound=StrEnum)


def as_matrix(array: FloatArray) -> Matrix:
    """A hashable copy."""
    return tuple(tuple(row) for row in array.tolist())


def as_array(matrix: Matrix) -> FloatArray:
    """The array again."""
    return np.array(matrix)


def positive_numbers(parameters: Document, name: str) -> tuple[float, ...]:
    """A non-empty list of positive, finite numbers. Raises InvalidRecalibrator."""
    values = parameters.get(name)
    if not isinstance(values, list) or not values:
        raise InvalidRecalibrator(
            f"'{name}' is {values!r}: it must be a list with one number a dimension."
        )
    for value in values:
        if not is_number(value) or not value > 0:
            raise InvalidRecalibrator(
                f"'{name}' holds {value!r}: every entry must be a positive, finite number."
            )
    return tuple(float(value) for value in values)


def positive_definite_matrix(parameters: Document, name: str, k: int) -> Matrix:
    """A symmetric positive definite k × k list of lists. Raises InvalidRecalibrator."""
    rows = parameters.get(name)
    if (
        not isinstance(rows, list)
        or len(rows) != k
        or any(not isinstance(row, list) or len(row) != k for row in rows)
        or any(not is_number(value) for row in rows for value in row)
    ):
        raise InvalidRecalibrator(f"'{name}' must be {k} lists of {k} finite numbers.")
    array = np.array(rows, dtype=np.float64)
    if not np.allclose(array, array.T, rtol=1e-9, atol=1e-12):
        raise InvalidRecalibrator(f"'{name}' is not symmetric: {rows}.")
    if np.linalg.eigvalsh(array)[0] <= 0:
        raise InvalidRecalibrator(f"'{name}' is not positive definite: {rows}.")
    return as_matrix(array)


def permutation(parameters: Document, name: str, k: int) -> tuple[int, ...]:
    """A list of 0 to k − 1 in any order; ascending where absent. Raises InvalidRecalibrator."""
    values = parameters.get(name, list(range(k)))
    if (
        not isinstance(values, list)
        or any(not isinstance(value, int) or isinstance(value, bool) for value in values)
        or sorted(values) != list(range(k))
    ):
        raise InvalidRecalibrator(f"'{name}' is {values!r}: it must hold 0 to {k - 1}, each once.")
    return tuple(values)


def choice(parameters: Document, name: str, default: Choice) -> Choice:
    """A member of the default's enumeration. Raises InvalidRecalibrator."""
    value = parameters.get(name, default)
    members = list(type(default))
    if value not in members:
        raise InvalidRecalibrator(f"'{name}' is {value!r}: it must be one of {', '.join(members)}.")
    return type(default)(value)


def range_buckets(content: Document, name: str) -> RangeBuckets | None:
    """{"edges": […], "dimensions": […]}; None where absent. Raises InvalidRecalibrator."""
    value = content.get(name)
    if value is None:
        return None
    edges = value.get("edges") if isinstance(value, dict) else None
    dimensions = value.get("dimensions") if isinstance(value, dict) else None
    if (
        not isinstance(edges, list)
        or not edges
        or not all(is_number(edge) and edge > 0 for edge in edges)
        or edges != sorted(set(edges))
    ):
        raise InvalidRecalibrator(
            f"'{name}.edges' is {edges!r}: it must be a list of ascending positive numbers."
        )
    if not isinstance(dimensions, list) or not all(isinstance(part, str) for part in dimensions):
        raise InvalidRecalibrator(
            f"'{name}.dimensions' is {dimensions!r}: it must be a list of names."
        )
    return RangeBuckets(tuple(map(float, edges)), tuple(dimensions))


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is finite, and a number rather than a truth value."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
