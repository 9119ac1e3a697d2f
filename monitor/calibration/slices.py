"""Which slice a detection belongs to. The table grows as slices are first seen, up to a
limit; what comes after falls into an overflow slice of its space.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, count

import numpy as np

from monitor.calibration.space import IntArray, Space

OVERFLOW = "overflow"
TOTAL = "total"


class SliceBy(StrEnum):
    """What tells slices apart."""

    CLASS = "class"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: its label and the space its statistics are kept in."""

    name: str
    space: Space
    overflow: bool = False


def label(name: str, space: Space, taken: Collection[str]) -> str:
    """The name, told apart by its dimensions where it is taken, and by a number if that is too.

    The same class seen by a camera and by a lidar: sums of px² and m² must not meet.
    """
    dimensions = ",".join(space.names)
    numbered = (f"{name} ({dimensions}; {number})" for number in count(2))
    candidates = chain((name, f"{name} ({dimensions})"), numbered)
    return next(candidate for candidate in candidates if candidate not in taken)


@dataclass(slots=True)
class SliceTable:
    """All slices seen so far, in order of their first appearance.

    by       what tells slices apart
    limit    slices before overflow begins (the overflow slices not counted)
    """

    by: frozenset[SliceBy]
    limit: int
    slices: list[Slice] = field(default_factory=list)
    _index: dict[tuple[Space, str], int] = field(default_factory=dict)

    @property
    def overflowing(self) -> list[int]:
        """Indices of the overflow slices."""
        return [i for i, entry in enumerate(self.slices) if entry.overflow]

    @property
    def names(self) -> tuple[str, ...]:
        """Labels, by index."""
        return tuple(entry.name for entry in self.slices)

    def index(self, space: Space, stream: str, class_name: str) -> int:
        """The slice of a class of a stream; made if there is room, else the overflow slice."""
        parts = (
            stream if SliceBy.STREAM in self.by else "",
            class_name if SliceBy.CLASS in self.by else "",
        )
        name = "/".join(part for part in parts if part)
        known = self._index.get((space, name))
        if known is not None:
            return known
        if sum(not entry.overflow for entry in self.slices) < self.limit:
            return self._add(space, name, overflow=False)
        for i, entry in enumerate(self.slices):
            if entry.overflow and entry.space == space:
                return i
        return self._add(space, OVERFLOW, overflow=True)

    def _add(self, space: Space, name: str, *, overflow: bool) -> int:
        self.slices.append(Slice(label(name, space, {TOTAL, *self.names}), space, overflow))
        if not overflow:
            self._index[space, name] = len(self.slices) - 1
        return len(self.slices) - 1


@dataclass(slots=True)
class StreamSlices:
    """The slice of each class of one stream; filled in as classes are first seen."""

    table: SliceTable
    space: Space
    stream: str
    classes: tuple[str, ...]
    _of_class: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self._of_class = np.full(len(self.classes), -1, np.int64)

    @property
    def of_class(self) -> IntArray:
        """(C,) slice of each class of the stream, −1 where none was seen yet."""
        return self._of_class

    def of(self, class_index: IntArray) -> IntArray:
        """Slice index of each detection, (n,)."""
        slices = self._of_class[class_index]
        if slices.size and slices.min() < 0:
            for c in np.unique(class_index[slices < 0]).tolist():
                self._of_class[c] = self.table.index(self.space, self.stream, self.classes[c])
            slices = self._of_class[class_index]
        return slices
