"""What has just changed in the ledger: whether what the disk was asked before it is still true."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from monitor.ledger import Kept
from monitor.pending import FrameKey

K = TypeVar("K")

# So many changes are remembered: far more labels than come while one frame is looked for on the
# disk, which is what they are compared with.
_RECENT = 4096


@dataclass(slots=True)
class RecentChanges:
    """Sequences of the last labels of frames that were told of, and of the last entry when a
    partition was dropped.
    """

    _told: OrderedDict[FrameKey, int] = field(default_factory=OrderedDict)
    _dropped: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def told(self, key: FrameKey, sequence: int) -> None:
        """Labels of a frame were entered."""
        _remember(self._told, key, sequence)

    def dropped(self, partition: int, sequence: int) -> None:
        """The disk has a partition no more."""
        _remember(self._dropped, partition, sequence)

    def told_since(self, found: Kept, key: FrameKey) -> bool:
        """Whether labels were entered that are not in what was found."""
        last = _last_of(found)
        return last < self._told.get(key, last)

    def dropped_since(self, found: Kept) -> bool:
        """Whether the disk has lost what was found while it was on its way."""
        return _last_of(found) <= self._dropped.get(found.entry.partition, -1)


def _remember(known: OrderedDict[K, int], key: K, number: int) -> None:
    known[key] = number
    known.move_to_end(key)
    if len(known) > _RECENT:
        known.popitem(last=False)


def _last_of(found: Kept) -> int:
    """Sequence of the last that was told of a frame."""
    return max([abs(found.entry.sequence), *(entry.sequence for entry in found.labels)])
