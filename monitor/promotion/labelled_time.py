"""How far the truth of each source has come in event time, and which sources have fallen silent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# Labelled frames of a source among which its time is the latest stamp: so many stragglers in a row
# do not turn it back, and a clock that was set back, or a stamp from far ahead, is only believed
# or forgotten after so many.
_LATEST_OF = 16
# Labelled frames of others after which a source is silent, whatever their stamps say.
_SILENT_AFTER = 4096


@dataclass(slots=True)
class _Source:
    """stamps    of its latest labelled frames
    at_frame  number of its latest labelled frame, of all
    at_ns     how far any source had come then
    """

    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=_LATEST_OF))
    at_frame: int = 0
    at_ns: int = 0


@dataclass(slots=True)
class LabelledTime:
    """The time of truth, source by source: one may be labelled at once, another hours later.

    silent_ns  a source of which nothing comes is silent when another has gone on for so long
    """

    silent_ns: int
    _sources: dict[int, _Source] = field(default_factory=dict)
    _furthest_ns: int = 0
    _frames: int = 0

    def see(self, source: int, stamp_ns: int) -> int:
        """Take in a labelled frame; the time of its source, in ns: never before the stamp."""
        self._frames += 1
        seen = self._sources.get(source)
        if seen is None:
            seen = self._sources[source] = _Source()
        seen.stamps.append(stamp_ns)
        now = max(seen.stamps)
        self._furthest_ns = max(self._furthest_ns, now) if self._frames > 1 else now
        # Not its own time: a source that is labelled hours after the others is not silent.
        seen.at_frame, seen.at_ns = self._frames, self._furthest_ns
        return now

    def of(self, source: int) -> int | None:
        """The time of a source, in ns; None where it is silent."""
        seen = self._sources.get(source)
        return None if seen is None else max(seen.stamps)

    def by_source(self) -> dict[int, int]:
        """The time of every source that is not silent, in ns; the others are forgotten."""
        time = {source: max(seen.stamps) for source, seen in self._sources.items()}
        if time:
            self._furthest_ns = max(time.values())
        for source in list(time):
            if self._silent(self._sources[source]):
                del self._sources[source], time[source]
        return time

    def _silent(self, seen: _Source) -> bool:
        return (
            self._furthest_ns - seen.at_ns > self.silent_ns
            or self._frames - seen.at_frame > _SILENT_AFTER
        )
