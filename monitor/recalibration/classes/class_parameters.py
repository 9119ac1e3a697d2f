"""Reads numbers out of documents of class recalibrators, and says what is wrong with them."""

from __future__ import annotations

import math

from monitor.recalibration.recalibrator import Document, InvalidRecalibrator

# Beyond this no parameter makes sense, and products of a few of them still are finite.
LARGEST = 1e6


def number(
    parameters: Document, name: str, lowest: float = -LARGEST, highest: float = LARGEST
) -> float:
    """A number from `lowest` to `highest`. Raises InvalidRecalibrator."""
    value = parameters.get(name)
    if not _within(value, lowest, highest):
        raise InvalidRecalibrator(
            f"'{name}' is {value!r}: it must be a number from {lowest:g} to {highest:g}."
        )
    return float(value)  # type: ignore[arg-type]


def numbers(
    parameters: Document,
    name: str,
    length: int | None = None,
    lowest: float = -LARGEST,
    highest: float = LARGEST,
) -> tuple[float, ...]:
    """A list of them, one a class: at least two, or `length`. Raises InvalidRecalibrator."""
    values = parameters.get(name)
    if not isinstance(values, list) or (
        len(values) < 2 if length is None else len(values) != length
    ):
        wanted = "at least two numbers" if length is None else f"{length} numbers"
        raise InvalidRecalibrator(f"'{name}' is {values!r}: it must be a list of {wanted}.")
    return _checked(values, name, lowest, highest)


def matrix(
    parameters: Document, name: str, rows: int, columns: int
) -> tuple[tuple[float, ...], ...]:
    """`rows` lists of `columns` numbers. Raises InvalidRecalibrator."""
    values = parameters.get(name)
    if (
        not isinstance(values, list)
        or len(values) != rows
        or any(not isinstance(row, list) or len(row) != columns for row in values)
    ):
        raise InvalidRecalibrator(f"'{name}' must be {rows} lists of {columns} numbers.")
    return tuple(_checked(row, name, -LARGEST, LARGEST) for row in values)


def _checked(values: list[object], name: str, lowest: float, highest: float) -> tuple[float, ...]:
    for value in values:
        if not _within(value, lowest, highest):
            raise InvalidRecalibrator(
                f"'{name}' holds {value!r}: every entry must be a number from {lowest:g} to "
                f"{highest:g}."
            )
    return tuple(float(value) for value in values)  # type: ignore[arg-type]


def _within(value: object, lowest: float, highest: float) -> bool:
    """An integer of hundreds of digits compares too; NaN never does."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.inf > highest >= value >= lowest
