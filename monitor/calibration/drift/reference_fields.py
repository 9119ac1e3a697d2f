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
class Refusal:
    """What is raised where a document is wrong, and what is to be done then."""

    error: type[ValueError]
    remedy: str

    def wrong(self, where: str, value: object, expected: str) -> ValueError:
        """That a value is not what it must be."""
        if isinstance(value, list):
            value = f"list of {len(value)}"
        return self.error(f"'{where}' is {shown(value)}, expected {expected}: {self.remedy}")


OF_REFERENCE = Refusal(NotAReference, "learn the reference again.")


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object; `where` it stands in its document. Every reader raises as `refusal` says."""

    content: dict[str, object]
    where: str
    refusal: Refusal

    @classmethod
    def of(cls, value: object, where: str, names: Sequence[str], refusal: Refusal) -> Fields:
        """An object with exactly these members."""
        if not isinstance(value, dict):
            raise refusal.wrong(where, value, f"an object with {', '.join(names)}")
        for name in names:
            if name not in value:
                raise refusal.error(f"'{where}' has no '{name}': {refusal.remedy}")
        for name in value:
            if name not in names:
                raise refusal.error(
                    f"'{where}' has {shown(name)}, which is unknown; expected "
                    f"{', '.join(names)}: {refusal.remedy}"
                )
        return cls(value, where, refusal)

    def inner(self, value: object, name: str, names: Sequence[str]) -> Fields:
        """An object in it, with exactly these members.

        name  of the member, or of its place in a list
        """
        return Fields.of(value, self.path(name), names, self.refusal)

    def wrong(self, name: str, value: object, expected: str) -> ValueError:
        """That a member, or what it holds, is not what it must be."""
        return self.refusal.wrong(self.path(name), value, expected)

    def path(self, name: str) -> str:
        """Where a member stands."""
        return f"{self.where}.{name}"

    def number(
        self, name: str, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER
    ) -> float:
        """Finite, from low to high."""
        return self._number(name, self.content[name], low, high)

    def flag(self, name: str) -> bool:
        """A member that is true or false."""
        value = self.content[name]
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def whole(self, name: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
        """A whole number from low to high."""
        return self._whole(name, self.content[name], low, high)

    def listed(self, name: str, least: int, most: int) -> list[object]:
        """A list of so many."""
        value = self.content[name]
        if not isinstance(value, list) or not least <= len(value) <= most:
            number = f"{least}" if least == most else f"{least} to {most}"
            raise self.wrong(name, value, f"a list of {number}")
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
            self._number(f"{name}[{i}]", value, low, high)
            for i, value in enumerate(self.listed(name, size, size))
        ]
        return np.array(found, np.float64).reshape(shape)

    def wholes(self, name: str, least: int, most: int, low: int, high: int) -> list[int]:
        """So many whole numbers from low to high."""
        return [
            self._whole(f"{name}[{i}]", value, low, high)
            for i, value in enumerate(self.listed(name, least, most))
        ]

    def _number(self, name: str, value: object, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, "a number")
        if not low <= value <= high:
            raise self.wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def _whole(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, value, f"a whole number from {low} to {high}")
        return value
