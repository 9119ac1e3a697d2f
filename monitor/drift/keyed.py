"""Tables of records in ascending order of their keys.

Records are moved as plain bytes, by take, compress and the functions here: indexing a structured
array moves them field by field, ten times slower.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monitor.frames.space import BoolArray, IntArray
from monitor.statistics.clusters import ClusterArray

# Structured, (n,), with a field `key`.
Records = npt.NDArray[np.void]


def found(table: Records, key: ClusterArray) -> tuple[IntArray, BoolArray]:
    """Finds where keys (n,) are in a table whose keys are unique, and whether they are there."""
    place = np.searchsorted(table["key"], key)
    there = place < table.size
    there[there] = table["key"][place[there]] == key[there]
    return place, there


def joined(tables: tuple[Records, ...]) -> Records:
    """Joins all records by key; those of one key stay in the order of the tables."""
    kind = tables[0].dtype
    together = np.concatenate([_plain(table) for table in tables]).view(kind)
    return together.take(np.argsort(together["key"], kind="stable"))


def replaced(table: Records, place: IntArray, records: Records) -> Records:
    """Joins records (m,) to a table without those at some places, which they replace."""
    stays = np.ones(table.size, bool)
    stays[place] = False
    return joined((table.compress(stays), records))


def put(table: Records, place: IntArray, records: Records) -> None:
    """Lays records (n,) into a table at places (n,)."""
    _plain(table)[place] = _plain(records)


def copied(table: Records) -> Records:
    """Copies a table."""
    return _plain(table).copy().view(table.dtype)


def _plain(table: Records) -> Records:
    return table.view(f"V{table.dtype.itemsize}")


def longest_unseen(arrived: IntArray, many: int) -> BoolArray:
    """Chooses the `many` that were not seen for longest, (n,); of equals, those that come first.

    arrived  (n,) number of the last frame with each
    many     0 or less: none
    """
    chosen = np.zeros(arrived.size, bool)
    chosen[np.argsort(arrived, kind="stable")[: max(many, 0)]] = True
    return chosen
