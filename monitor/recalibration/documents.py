"""The document of a recalibrator is made of the fields of its class; a hash of it is its version.

A class that is `Documented` says in its annotations what may stand in each field, and in
`__post_init__` what its fields must be to each other: a recalibrator that exists is valid.
Documents are read elsewhere (`monitor.store.recalibrator_documents`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.space import FloatArray

# JSON objects: what json.loads gives.
Document = dict[str, Any]

# Lists of numbers; of a matrix they are equally long, of curves one a dimension.
Matrix = tuple[tuple[float, ...], ...]
Curves = tuple[tuple[float, ...], ...]

# Factors on σ beyond these are of a wrong unit, and would overflow when squared twice.
LEAST_FACTOR, LARGEST_FACTOR = 1e-12, 1e12
FactorOnDeviation = Annotated[float, Interval(ge=LEAST_FACTOR, le=LARGEST_FACTOR)]
Factors = Annotated[tuple[FactorOnDeviation, ...], Len(1)]

# Of squares of factors at most.
_Moment = Annotated[float, Interval(ge=-(LARGEST_FACTOR**2), le=LARGEST_FACTOR**2)]
Moments = tuple[tuple[_Moment, ...], ...]

# Least eigenvalue of a matrix whose diagonal is made 1.
_NEAREST_SINGULAR = 1e-14


class InvalidRecalibrator(ValueError):
    """A document or values that do not describe a usable recalibrator."""


class Documented:
    """A frozen dataclass whose document holds its fields."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def parameters(self) -> Document:
        """Returns all fields but those that are None, as JSON values; exact."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: _as_json(value) for name, value in values.items() if value is not None}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(entry) for entry in value]
    if isinstance(value, Documented):
        return value.parameters()
    return str(value) if isinstance(value, StrEnum) else value


def as_matrix(array: FloatArray) -> Matrix:
    """Returns a hashable copy."""
    return tuple(tuple(row) for row in array.tolist())


def check_lengths(
    name: str, rows: Sequence[Sequence[Any]], expected: Sequence[int], other: str
) -> None:
    """Raises InvalidRecalibrator unless there are as many rows as expected, each so long.

    other  the field that says how long, for the message
    """
    lengths = [len(row) for row in rows]
    if lengths != list(expected):
        raise InvalidRecalibrator(
            f"'{name}' has {_sizes(lengths)}: with '{other}' it must have {_sizes(expected)}"
        )


def _sizes(lengths: Sequence[int]) -> str:
    return f"{len(lengths)} rows of {' or '.join(map(str, sorted(set(lengths)))) or 'no'} entries"


def check_entries(values: Documented, names: Sequence[str], expected: int, other: str) -> None:
    """Raises InvalidRecalibrator unless each of these fields has as many entries as expected.

    other  the field that says how many, for the message
    """
    for name in names:
        found = len(getattr(values, name))
        if found != expected:
            raise InvalidRecalibrator(
                f"'{name}' has {found} entries: with '{other}' it must have {expected}"
            )


def check_ascending(name: str, found: Curves) -> None:
    """Raises InvalidRecalibrator unless the numbers of every dimension rise strictly."""
    for curve in found:
        for before, after in pairwise(curve):
            if not before < after:
                raise InvalidRecalibrator(
                    f"'{name}' holds {after!r} after {before!r}: entries must rise strictly"
                )


def check_positive_definite(name: str, matrix: Matrix, k: int, other: str) -> None:
    """Raises InvalidRecalibrator unless it is a symmetric positive definite k × k matrix.

    So much so that rounding leaves it definite, however different the units of its rows are.
    """
    check_lengths(name, matrix, [k] * k, other)
    array = np.array(matrix)
    size = np.sqrt(np.maximum(np.diagonal(array), 0.0))
    if not np.allclose(array, array.T, rtol=1e-9, atol=1e-12):
        raise InvalidRecalibrator(f"'{name}' is not symmetric: {array.tolist()}")
    if (
        not size.min() >= LEAST_FACTOR
        or not np.linalg.eigvalsh(array / (size[:, None] * size))[0] > _NEAREST_SINGULAR
    ):
        raise InvalidRecalibrator(f"'{name}' is not positive definite: {array.tolist()}")


def checked_order(order: tuple[int, ...], k: int) -> tuple[int, ...]:
    """Returns an order of k dimensions; ascending where none is given.

    Raises InvalidRecalibrator unless it holds each of them once.
    """
    if order and sorted(order) != list(range(k)):
        raise InvalidRecalibrator(f"'order' is {list(order)}: it must hold 0 to {k - 1}, each once")
    return order or tuple(range(k))
