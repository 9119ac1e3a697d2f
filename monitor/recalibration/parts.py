"""Divides rows into the slices that may have a recalibrator of their own, and those they lie in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.frames.slices import LEVELS, Chain, chain_of
from monitor.frames.space import IntArray
from monitor.frames.words import SliceBy
from monitor.recalibration.recalibrator import UnfitData

# In the order of chain_of.
_PARTS = (SliceBy.STREAM, SliceBy.CLASS, SliceBy.RANGE)


@dataclass(frozen=True, slots=True)
class FitSlice:
    """Rows that may have a recalibrator of their own.

    rows   (n,) row numbers
    wider  names of the wider slices it lies in, finest first
    """

    name: str
    rows: IntArray
    wider: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """Streams, classes and range buckets that N rows are told apart by.

    names  of all streams, classes and range buckets; '' where a row has none
    index  (N,) which of them each row has
    """

    names: Mapping[SliceBy, tuple[str, ...]]
    index: Mapping[SliceBy, IntArray]

    def chains(self) -> tuple[IntArray, tuple[Chain, ...]]:
        """Finds the finest slice of each row, (N,), and the chain of names of each slice."""
        slices, named = self._told_apart(_PARTS)
        return slices, tuple(chain_of(*row) for row in named)

    def slices(self, by: Collection[SliceBy]) -> tuple[FitSlice, ...]:
        """Lists all slices of the rows that these tell apart, and those they lie in; widest first.

        Ranges alone are no slices where classes are told apart: the hierarchy is class × range,
        class, stream, all.

        raises  UnfitData where two slices have one name
        """
        found: dict[str, FitSlice] = {}
        for level in reversed(LEVELS):
            of_ranges = SliceBy.RANGE in level and SliceBy.CLASS not in level
            if not set(level) <= set(by) or (SliceBy.CLASS in by and of_ranges):
                continue
            index, named = self._told_apart(level)
            for i, row in enumerate(named):
                if sum(map(bool, row)) < len(level):
                    continue  # of no class, say: such rows are the wider slice's only
                name, *wider = chain_of(*row)
                if name in found:
                    raise UnfitData(
                        f"two slices are called '{name}': streams, classes and ranges need names "
                        "that differ, joined by a slash too. Rename one of them."
                    )
                found[name] = FitSlice(name, np.flatnonzero(index == i), tuple(wider))
        return tuple(found.values())

    def _told_apart(
        self, level: tuple[SliceBy, ...]
    ) -> tuple[IntArray, list[tuple[str, str, str]]]:
        """Finds the slice of each row at one level, (N,); and stream, class and range of each."""
        shape = tuple(len(self.names[part]) for part in level)
        codes = np.ravel_multi_index(tuple(self.index[part] for part in level), shape)
        found, slices = np.unique(codes, return_inverse=True)
        named = []
        for places in zip(*np.unravel_index(found, shape), strict=True):
            row = {part: self.names[part][i] for part, i in zip(level, places, strict=True)}
            named.append(tuple(row.get(part, "") for part in _PARTS))
        return slices, named
