"""Numbers and lists out of a parsed JSON document that nobody vouches for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray

# No sum of a slice comes near; products of two stay finite.
LARGEST_NUMBER = 1e24
LARGEST_COUNT = 2**53


class NotAReference(ValueError):
    """A document does not describe what is usual of slices."""


def shown(value: object) -> str:
    """For an error: never more than a line."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object; `where` it stands in its document. Every reader raises NotAReference."""

    content: dict[str, object]
    where: str

    @classmethod
    def of(cls, value: object, where: str, names: Sequence[str]) -> Fields:
        """An object with exactly these members."""
        if not isinstance(value, dict):
            raise wrong(where, value, f"an object with {', '.join(names)}")
        for name in names:
            if name not in value:
                raise NotAReference(f"'{where}' has no '{name}': learn the reference again.")
        for name in value:
            if name not in names:
                raise NotAReference(
                    f"'{where}' has {shown(name)}, which is unknown; expected "
                    f"{', '.join(names)}. Learn the reference again with this version."
                )
        return cls(value, where)

    def path(self, name: str) -> str:
        """Where a member stands."""
        return f"{self.where}.{name}"

    def number(
        self, name: str, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER
    ) -> float:
        """Finite, from low to high."""
        return _number(self.content[name], self.path(name), low, high)

    def whole(self, name: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
        """A whole number from low to high."""
        return _whole(self.content[name], self.path(name), low, high)

    def listed(self, name: str, least: int, most: int) -> list[object]:
        """A list of so many."""
        value = self.content[name]
        if not isinstance(value, list) or not least <= len(value) <= most:
            number = f"{least}" if least == most else f"{least} to {most}"
            raise wrong(self.path(name), value, f"a list of {number}")
        return value

    def numbers(
        self,
        name: str,
        shape: tuple[int, ...],
        low: float = -LARGEST_NUMBER,
        high: float = LARGEST_NUMBER,
    ) -> FloatArray:
        """Numbers of this shape, row by row in one list; finite, from low to high."""
        size = math.prod(shape)
        found = [
            _number(value, f"{self.path(name)}[{i}]", low, high)
            for i, value in enumerate(self.listed(name, size, size))
        ]
        return np.array(found, np.float64).reshape(shape)

    def wholes(self, name: str, least: int, most: int, low: int, high: int) -> list[int]:
        """So many whole numbers from low to high."""
        return [
            _whole(value, f"{self.path(name)}[{i}]", low, high)
            for i, value in enumerate(self.listed(name, least, most))
        ]


def wrong(where: str, value: object, expected: str) -> NotAReference:
    """That a value is not what it must be."""
    if isinstance(value, list):
        value = f"list of {len(value)}"
    return NotAReference(
        f"'{where}' is {shown(value)}, expected {expected}: learn the reference again."
    )


def _number(value: object, where: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong(where, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _whole(value: object, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(where, value, f"a whole number from {low} to {high}")
    return value
