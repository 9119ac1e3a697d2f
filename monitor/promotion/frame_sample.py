"""Which labelled frames are learned from: a few a second of every source, the same for all that is
in them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

# Intervals that are remembered: labels of an object may come after those of another, of the same
# frames.
_MOST = 65536


@dataclass(slots=True)
class FrameSample:
    """The first frame of a source in each interval of event time, with all labels of it."""

    interval_ns: int
    # By source and number of the interval: the stamp of that frame; oldest first.
    _first: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)

    def takes(self, source: int, stamp_ns: int) -> bool:
        """Whether labels of a frame are to be learned from."""
        first = self._first.setdefault((source, stamp_ns // self.interval_ns), stamp_ns)
        if len(self._first) > _MOST:
            self._first.popitem(last=False)
        return first == stamp_ns
