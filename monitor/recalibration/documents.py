"""Checked fields of recalibrator documents, read from parsed JSON and written as such.

Every reader takes an object and the name of a field, and raises InvalidRecalibrator, which says
what is wrong with the field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, ClassVar, ParamSpec, TypeGuard, TypeVar

import numpy as np
from annotated_types import Interval

from monitor.frames.slices import RangeBuckets
from monitor.frames.space import FloatArray

# JSON objects: what json.loads gives.
Document = dict[str, Any]

# Lists of numbers; of a matrix they are equally long, of curves one a dimension.
Matrix = tuple[tuple[float, ...], ...]
Curves = tuple[tuple[float, ...], ...]
Member = TypeVar("Member", bound=StrEnum)
Read = TypeVar("Read")
Arguments = ParamSpec("Arguments")
_FLOAT = np.finfo(np.float64)
LARGEST, LEAST_POSITIVE = float(_FLOAT.max), float(_FLOAT.tiny)

# Factors on σ beyond these are of a wrong unit, and would overflow when squared twice.
LEAST_FACTOR, LARGEST_FACTOR = 1e-12, 1e12
FactorOnDeviation = Annotated[float, Interval(ge=LEAST_FACTOR, le=LARGEST_FACTOR)]

# Least eigenvalue of a matrix whose diagonal is made 1.
_NEAREST_SINGULAR = 1e-14

# Larger counts would not fit into 64 bits.
_LARGEST_COUNT = 2**63 - 1

# Levels of lists and objects; documents have fewer.
_DEEPEST = 16


class InvalidRecalibrator(ValueError):
    """A document that does not describe a usable recalibrator."""


def unlike(name: str, value: object, wanted: str) -> InvalidRecalibrator:
    """Makes the error of a field whose value is not what is wanted."""
    return InvalidRecalibrator(f"'{name}' is {shown(value)}: it must be {wanted}.")


def _unlike_entry(name: str, value: object, wanted: str) -> InvalidRecalibrator:
    return InvalidRecalibrator(f"'{name}' holds {shown(value)}: every entry must be {wanted}.")


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


def inside(
    place: str,
    read: Callable[Arguments, Read],
    *arguments: Arguments.args,
    **options: Arguments.kwargs,
) -> Read:
    """Calls a reader, and puts the place before what it raises InvalidRecalibrator with."""
    try:
        return read(*arguments, **options)
    except InvalidRecalibrator as error:
        raise InvalidRecalibrator(f"in {place}: {error}") from None


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(
    value: object, lowest: float = -LARGEST, highest: float = LARGEST
) -> TypeGuard[int | float]:
    """Tells whether a value is a number in the range; truth values and NaN never are."""
    return (_is_whole(value) or isinstance(value, float)) and lowest <= value <= highest


def number(
    parameters: Document, name: str, lowest: float = -LARGEST, highest: float = LARGEST
) -> float:
    """Reads a number from `lowest` to `highest`."""
    value = parameters.get(name)
    if not is_number(value, lowest, highest):
        raise unlike(name, value, _kind(lowest, highest))
    return float(value)


def whole(parameters: Document, name: str, least: int = 1, most: int = _LARGEST_COUNT) -> int:
    """Reads a whole number from `least` to `most`."""
    value = parameters.get(name)
    if not _is_whole(value) or not least <= value <= most:
        wanted = f"of at least {least}" if most == _LARGEST_COUNT else f"from {least} to {most}"
        raise unlike(name, value, f"a whole number {wanted}")
    return value


def member(
    parameters: Document, name: str, members: type[Member], default: Member | None = None
) -> Member:
    """Reads a member of an enumeration; the default, if there is one, where the field is absent."""
    value = parameters.get(name, default)
    if not isinstance(value, str) or value not in list(members):
        raise unlike(name, value, f"one of {', '.join(members)}")
    return members(value)


def numbers(
    parameters: Document,
    name: str,
    length: int | None = None,
    lowest: float = -LARGEST,
    highest: float = LARGEST,
    fewest: int = 1,
) -> tuple[float, ...]:
    """Reads a list of `length` numbers in the range, or of at least `fewest`."""
    return _row(name, _list(parameters, name, length, fewest, "numbers"), lowest, highest)


def factors(parameters: Document, name: str) -> tuple[float, ...]:
    """Reads a factor on σ for each dimension."""
    return numbers(parameters, name, None, LEAST_FACTOR, LARGEST_FACTOR)


def curves(parameters: Document, name: str, lowest: float, highest: float) -> Curves:
    """Reads a list of numbers in the range for each dimension; a list may be empty."""
    return tuple(_row(name, row, lowest, highest) for row in _rows(parameters, name, 1))


def check_lengths(name: str, found: Curves, other: str, expected: Sequence[int]) -> None:
    """Raises InvalidRecalibrator unless every dimension has as many numbers as expected."""
    lengths = [len(curve) for curve in found]
    if lengths != list(expected):
        raise InvalidRecalibrator(
            f"'{name}' has {lengths} entries by dimension: with '{other}' it must have "
            f"{list(expected)}."
        )


def check_ascending(name: str, found: Curves) -> None:
    """Raises InvalidRecalibrator unless the numbers of every dimension rise strictly."""
    for curve in found:
        for before, after in pairwise(curve):
            if not before < after:
                raise InvalidRecalibrator(
                    f"'{name}' holds {after!r} after {before!r}: entries must rise strictly."
                )


def matrix(
    parameters: Document,
    name: str,
    rows: int | None = None,
    columns: int | None = None,
    lowest: float = -LARGEST,
    highest: float = LARGEST,
    why: str = "equally long ones",
) -> Matrix:
    """Reads equally long lists of numbers in the range, as many and as long as is asked for.

    why  what asks for so many, for the message
    """
    found = _rows(parameters, name, 0)
    width = columns if columns is not None else len(found[0]) if found else 0
    if (rows is not None and len(found) != rows) or any(len(row) != width for row in found):
        raise InvalidRecalibrator(
            f"'{name}' has {len(found)} rows of {sorted({len(row) for row in found})} numbers: "
            f"it must have {'rows' if rows is None else rows} of {width}, {why}."
        )
    return tuple(_row(name, row, lowest, highest) for row in found)


def positive_definite_matrix(parameters: Document, name: str, k: int) -> Matrix:
    """Reads a symmetric positive definite k × k matrix, of squares of factors at most.

    So much so that rounding leaves it definite, however different the units of its rows are.
    """
    array = np.array(matrix(parameters, name, k, k, -(LARGEST_FACTOR**2), LARGEST_FACTOR**2))
    size = np.sqrt(np.maximum(np.diagonal(array), 0.0))
    if not np.allclose(array, array.T, rtol=1e-9, atol=1e-12):
        raise InvalidRecalibrator(f"'{name}' is not symmetric: {array.tolist()}.")
    if (
        not size.min() >= LEAST_FACTOR
        or not np.linalg.eigvalsh(array / (size[:, None] * size))[0] > _NEAREST_SINGULAR
    ):
        raise InvalidRecalibrator(f"'{name}' is not positive definite: {array.tolist()}.")
    return as_matrix(array)


def lower_triangles(
    parameters: Document, name: str, count: int, size: int, largest: float
) -> tuple[Matrix, ...]:
    """Reads lower triangles, row by row, with a positive diagonal; adds the zeros above."""
    triangles = []
    for one in _list(parameters, name, count, 0, "lower triangles"):
        rows = _rows({name: one}, name, 0)
        if [len(row) for row in rows] != list(range(1, size + 1)):
            raise InvalidRecalibrator(
                f"'{name}' must hold lower triangles of {size} rows: of 1 to {size} numbers."
            )
        triangle = [_row(name, row, -largest, largest) for row in rows]
        if not all(row[-1] > 0 for row in triangle):
            raise InvalidRecalibrator(
                f"'{name}' must hold lower triangles whose rows end in a positive number."
            )
        triangles.append(tuple((*row, *(0.0,) * (size - len(row))) for row in triangle))
    return tuple(triangles)


def permutation(parameters: Document, name: str, k: int) -> tuple[int, ...]:
    """Reads a list of 0 to k − 1 in any order; ascending where absent."""
    values = parameters.get(name, list(range(k)))
    if (
        not isinstance(values, list)
        or not all(_is_whole(value) for value in values)
        or sorted(values) != list(range(k))
    ):
        raise InvalidRecalibrator(
            f"'{name}' is {shown(values)}: it must hold 0 to {k - 1}, each once."
        )
    return tuple(values)


def names(parameters: Document, name: str) -> tuple[str, ...]:
    """Reads a list of printable names, each of them once; it may be empty."""
    values = parameters.get(name)
    if not isinstance(values, list) or not all(
        isinstance(value, str) and value.isprintable() for value in values
    ):
        raise unlike(name, values, "a list of names of printable characters")
    if len(set(values)) < len(values):
        raise InvalidRecalibrator(f"'{name}' is {shown(values)}: every name must be there once.")
    return tuple(values)


def part(parameters: Document, name: str) -> Document:
    """Reads an object inside the object."""
    value = parameters.get(name)
    if not isinstance(value, dict):
        raise unlike(name, value, "an object")
    return value


def parts(
    parameters: Document, name: str, length: int | None = None, fewest: int = 1
) -> list[Document]:
    """Reads a list of `length` objects, or of at least `fewest`."""
    values = _list(parameters, name, length, fewest, "objects")
    for value in values:
        if not isinstance(value, dict):
            raise _unlike_entry(name, value, "an object")
    return values


def range_buckets(content: Document, name: str) -> RangeBuckets | None:
    """Reads {"edges": […], "dimensions": […]}; None where absent."""
    if content.get(name) is None:
        return None
    return inside(f"'{name}'", _buckets, part(content, name))


def _buckets(content: Document) -> RangeBuckets:
    edges = numbers(content, "edges", None, LEAST_POSITIVE)
    check_ascending("edges", (edges,))
    return RangeBuckets(edges, names(content, "dimensions"))


def shown(value: object) -> str:
    """Shortens a value for a message, however large it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and (
        len(value) > 8 or any(isinstance(entry, list | dict) for entry in value)
    ):
        return f"a list of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}…"


def check_depth(content: object, levels: int = _DEEPEST) -> None:
    """Raises InvalidRecalibrator where lists and objects are nested too deeply to be walked."""
    if not isinstance(content, list | dict):
        return
    if levels == 0:
        raise InvalidRecalibrator(
            f"the document is nested more than {_DEEPEST} levels deep: no recalibrator is."
        )
    for value in content.values() if isinstance(content, dict) else content:
        check_depth(value, levels - 1)


def _list(parameters: Document, name: str, length: int | None, fewest: int, of: str) -> list[Any]:
    values = parameters.get(name)
    if not isinstance(values, list) or (
        len(values) < fewest if length is None else len(values) != length
    ):
        wanted = f"{length} " if length is not None else f"at least {fewest} " if fewest else ""
        raise unlike(name, values, f"a list of {wanted}{of}")
    return values


def _rows(parameters: Document, name: str, fewest: int) -> list[list[Any]]:
    found = _list(parameters, name, None, fewest, "lists of numbers")
    for row in found:
        if not isinstance(row, list):
            raise _unlike_entry(name, row, "a list of numbers")
    return found


def _row(name: str, values: list[Any], lowest: float, highest: float) -> tuple[float, ...]:
    for value in values:
        if not is_number(value, lowest, highest):
            raise _unlike_entry(name, value, _kind(lowest, highest))
    return tuple(float(value) for value in values)


def _kind(lowest: float, highest: float) -> str:
    if (lowest, highest) == (-LARGEST, LARGEST):
        return "a finite number"
    if (lowest, highest) == (LEAST_POSITIVE, LARGEST):
        return "a positive, finite number"
    return f"a number from {lowest:g} to {highest:g}"
