"""Tables of tracks, a record each, in ascending order of their keys.

Records are moved as plain bytes, by take, compress and the functions here: indexing a structured
array moves them field by field, ten times slower.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from monitor.calibration.clusters import ClusterArray
from monitor.calibration.space import BoolArray, IntArray

# Structured, (n,), with a field `key`.
Records = npt.NDArray[np.void]


def found(table: Records, key: ClusterArray) -> tuple[IntArray, BoolArray]:
    """Where keys (n,) are in a table whose keys are unique, and whether they are there."""
    place = np.searchsorted(table["key"], key)
    there = place < table.size
    there[there] = table["key"][place[there]] == key[there]
    return place, there


def joined(tables: tuple[Records, ...]) -> Records:
    """All records by key; those of one key in the order of the tables."""
    kind = tables[0].dtype
    together = np.concatenate([_plain(table) for table in tables]).view(kind)
    return together.take(np.argsort(together["key"], kind="stable"))


def with_more(table: Records, more: Records) -> Records:
    """Those too whose keys are not there yet; keys of both are unique."""
    return joined((table, more.compress(~found(table, more["key"])[1])))


def put(table: Records, place: IntArray, records: Records) -> None:
    """Lay records (n,) into a table at places (n,)."""
    _plain(table)[place] = _plain(records)


def copied(table: Records) -> Records:
    """A table of its own."""
    return _plain(table).copy().view(table.dtype)


def _plain(table: Records) -> Records:
    return table.view(f"V{table.dtype.itemsize}")


def by_slice(table: Records, slices: int) -> list[Records]:
    """The records of each slice, by key."""
    ordered = table.take(np.argsort(table["slice"], kind="stable"))
    edges = np.searchsorted(ordered["slice"], np.arange(slices + 1)).tolist()
    return [copied(ordered[begin:end]) for begin, end in pairwise(edges)]


def longest_unseen(arrived: IntArray, many: int) -> BoolArray:
    """(n,) the `many` that were not seen for longest; of equals, those that come first.

    arrived  (n,) number of the last frame with each
    many     0 or less: none
    """
    chosen = np.zeros(arrived.size, bool)
    chosen[np.argsort(arrived, kind="stable")[: max(many, 0)]] = True
    return chosen
