"""Which labelled frames are learned from: a few a second of every source, the same for all that is
in them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

# Sources that are remembered; of one that is forgotten a frame more is learned from.
_MOST_SOURCES = 4096


@dataclass(slots=True)
class FrameSample:
    """The first frame of a source in each interval of event time, with all labels of it."""

    interval_ns: int
    # By source: the interval of the last frame that was taken, and its stamp.
    _last: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)

    def takes(self, source: int, stamp_ns: int) -> bool:
        """Whether labels of a frame are to be learned from."""
        interval = stamp_ns // self.interval_ns
        last = self._last.get(source)
        if last is not None and last[0] == interval:
            return last[1] == stamp_ns
        self._last[source] = interval, stamp_ns
        self._last.move_to_end(source)
        if len(self._last) > _MOST_SOURCES:
            self._last.popitem(last=False)
        return True
