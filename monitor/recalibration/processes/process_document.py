"""Reads the arrays of a process out of a document, and says what is wrong with those it refuses."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TypeVar

from monitor.recalibration.document import Matrix
from monitor.recalibration.recalibrator import Document, InvalidRecalibrator

Member = TypeVar("Member", bound=StrEnum)


def member_of(parameters: Document, name: str, members: type[Member]) -> Member:
    """A member of an enumeration. Raises InvalidRecalibrator."""
    value = parameters.get(name)
    if not isinstance(value, str) or value not in list(members):
        raise InvalidRecalibrator(f"'{name}' is {value!r}: it must be one of {', '.join(members)}.")
    return members(value)


def number_of(parameters: Document, name: str) -> float:
    """A finite number. Raises InvalidRecalibrator."""
    value = parameters.get(name)
    if not _is_finite(value):
        raise InvalidRecalibrator(f"'{name}' is {value!r}: it must be a finite number.")
    return float(value)  # type: ignore[arg-type]


def whole_number_of(parameters: Document, name: str, least: int, most: int) -> int:
    """A whole number in a range. Raises InvalidRecalibrator."""
    value = parameters.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRecalibrator(
            f"'{name}' is {value!r}: it must be a whole number from {least} to {most}."
        )
    return value


def numbers_of(parameters: Document, name: str) -> tuple[float, ...]:
    """A list of finite numbers. Raises InvalidRecalibrator."""
    values = parameters.get(name)
    if not isinstance(values, list) or not all(_is_finite(value) for value in values):
        raise InvalidRecalibrator(f"'{name}' is {values!r}: it must be a list of finite numbers.")
    return tuple(float(value) for value in values)


def matrix_of(
    parameters: Document,
    name: str,
    rows: int | None = None,
    columns: int | None = None,
    why: str = "equally long rows",
) -> Matrix:
    """Lists of equally many finite numbers, as many as are asked for.

    why  what asks for so many, for the message
    Raises InvalidRecalibrator.
    """
    found = parameters.get(name)
    if not isinstance(found, list) or not all(isinstance(row, list) for row in found):
        raise InvalidRecalibrator(f"'{name}' must be a list of lists of numbers.")
    width = columns if columns is not None else len(found[0]) if found else 0
    if (rows is not None and len(found) != rows) or any(len(row) != width for row in found):
        raise InvalidRecalibrator(
            f"'{name}' has {len(found)} rows of {sorted({len(row) for row in found})} numbers: "
            f"expected {'rows' if rows is None else rows} of {width}, {why}."
        )
    if not all(_is_finite(value) for row in found for value in row):
        raise InvalidRecalibrator(f"'{name}' must hold finite numbers only.")
    return tuple(tuple(float(value) for value in row) for row in found)


def lower_triangles(parameters: Document, name: str, count: int, size: int) -> tuple[Matrix, ...]:
    """Lower triangles, row by row, with a positive diagonal; zeros above are added. Raises
    InvalidRecalibrator."""
    found = parameters.get(name)
    if not isinstance(found, list) or len(found) != count:
        raise InvalidRecalibrator(f"'{name}' must be a list of {count} lower triangles.")
    triangles = []
    for one in found:
        if (
            not isinstance(one, list)
            or [len(row) if isinstance(row, list) else 0 for row in one] != list(range(1, size + 1))
            or not all(_is_finite(value) for row in one for value in row)
            or not all(row[-1] > 0 for row in one)
        ):
            raise InvalidRecalibrator(
                f"'{name}' must hold lower triangles of {size} rows: 1 to {size} finite numbers, "
                "the last of each row positive."
            )
        triangles.append(
            tuple((*(float(value) for value in row), *(0.0,) * (size - len(row))) for row in one)
        )
    return tuple(triangles)


def check_size(name: str, matrix: Matrix, largest: float) -> None:
    """Raises InvalidRecalibrator where an entry is larger, of either sign."""
    for row in matrix:
        for value in row:
            if not abs(value) <= largest:
                raise InvalidRecalibrator(
                    f"'{name}' holds {value!r}: entries beyond ±{largest:g} are not served."
                )


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
