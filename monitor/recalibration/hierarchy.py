"""Slices of recorded rows in their hierarchy: which there are, and how a thin one borrows from
the wider one it lies in. Serving finds its way by the same names: see chain_of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.slices import LEVELS, SliceBy, chain_of
from monitor.calibration.space import IntArray
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Recalibrator, UnfitData
from monitor.recalibration.selection import Chain, Selection

# What the widest fit, of all rows, is called where another leans on it.
WHOLE = "fallback"


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
    """What tells N rows apart.

    names  of all streams, classes and range buckets; '' where a row has none
    index  (N,) which of them each row has
    """

    names: Mapping[SliceBy, tuple[str, ...]]
    index: Mapping[SliceBy, IntArray]

    def chains(self) -> tuple[IntArray, tuple[Chain, ...]]:
        """(N,) the slice of each row, as fine as can be, and the chain of names of each slice."""
        slices, named = self._told_apart(_PARTS)
        return slices, tuple(chain_of(*row) for row in named)

    def slices(self, by: Collection[SliceBy]) -> tuple[FitSlice, ...]:
        """All slices of the rows that these tell apart, and those they lie in; widest first.

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
        """(N,) the slice of each row at one level; stream, class and range of each slice."""
        shape = tuple(len(self.names[part]) for part in level)
        codes = np.ravel_multi_index(tuple(self.index[part] for part in level), shape)
        found, slices = np.unique(codes, return_inverse=True)
        named = []
        for places in zip(*np.unravel_index(found, shape), strict=True):
            row = {part: self.names[part][i] for part, i in zip(level, places, strict=True)}
            named.append(tuple(row.get(part, "") for part in _PARTS))
        return slices, named


@dataclass(frozen=True, slots=True)
class SliceFit:
    """What came of one slice.

    recalibrator  None where it is left to the wider slice it lies in
    leans_on      name of the wider slice, or version of the earlier selection, whose fit it was
                  drawn towards or is left to; None where it stands on its own rows
    reason        why it is left, or stays as it was in the earlier selection
    """

    rows: FitRows
    recalibrator: Recalibrator | None
    leans_on: str | None
    reason: str = ""


Fit = Callable[[FitRows, Recalibrator | None], Recalibrator]


def worth(rows: FitRows) -> float:
    """How many independent detections rows tell as much as.

    At most as many as tracks: few of them say little of how much alike the rows of each are.
    """
    return min(float(rows.tracks), rows.n * rows.weight)


def prior_strength(rows: FitRows, strength: float) -> float:
    """What a prior has to count for, so that it outweighs few tracks as it does few rows.

    A scaling weighs a prior against the effective rows of its statistics, which a single track
    does not tell from its rows; it is drawn as if they were what the rows are worth.
    """
    return strength * rows.n * rows.weight / worth(rows) if rows.n else strength


def fit_slices(
    slices: Sequence[tuple[FitSlice, FitRows]],
    fit: Fit,
    whole: Recalibrator,
    *,
    borrows: bool,
    fewest: float,
    previous: Selection | None = None,
) -> dict[str, SliceFit]:
    """The fit of each slice, by name.

    A slice worth fewer rows than `fewest` is thin: what can be drawn towards another fit is
    drawn towards that of the finest wider slice that has one, the rest is left to it.

    slices    with their rows, widest first
    fit       of rows, drawn towards a recalibrator if one is given
    whole     the fit of all rows
    borrows   whether the method can be drawn towards another fit
    previous  an earlier selection: where it has the slice, that is what is drawn towards
    """
    found: dict[str, SliceFit] = {}
    for entry, rows in slices:
        fitted = (n for n in entry.wider if n in found and found[n].recalibrator is not None)
        wider = next(fitted, WHOLE)
        parent = found[wider].recalibrator if wider in found else whole
        earlier = None if previous is None else previous.by_slice.get(entry.name)
        thin = worth(rows) < fewest
        if thin and not borrows:
            reason = (
                f"{rows.n} rows of {rows.tracks} tracks count for {worth(rows):.0f} independent "
                f"ones, and {fewest:g} are needed"
            )
            found[entry.name] = SliceFit(rows, None, wider, reason)
            continue
        leans_on, towards = None, None
        if previous is not None and earlier is not None:
            leans_on, towards = previous.version, earlier
        elif thin:
            leans_on, towards = wider, parent
        try:
            found[entry.name] = SliceFit(rows, fit(rows, towards), leans_on)
        except UnfitData as error:
            reason = str(error).rstrip(".")
            if previous is not None and earlier is not None:
                # The limit of a fit that is drawn towards it, on fewer and fewer rows.
                found[entry.name] = SliceFit(rows, earlier, previous.version, reason)
            else:
                found[entry.name] = SliceFit(rows, None, wider, reason)
    return found
