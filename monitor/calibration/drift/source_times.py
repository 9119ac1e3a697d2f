"""The time of every source, as its frames with truth come: what is late, which second it is, and
when a source begins anew. Stamps of different sources are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.drift.going_on import TimesState
from monitor.calibration.drift.watched import BLOCK_NS
from monitor.calibration.space import BoolArray, IntArray

# A source that is set back by more begins anew: a drive played again, or after one wild stamp.
SET_BACK_NS = 10 * BLOCK_NS
# A source is over when, since it was last heard of, all of them moved on by this on average.
# Long, because labels of one source may come in batches of minutes while others wait.
SILENT_NS = 600 * BLOCK_NS


@dataclass(frozen=True, eq=False, slots=True)
class Arrivals:
    """When F frames came.

    number   (F,) counts all frames that ever came
    time_ns  (F,) time of their source by then: its latest stamp
    life     (F,) of their source; another one where it begins anew, unique over sources
    turn     (F,) the second of their source by then; unique over sources, lives and seconds
    ended    turns that are over since the frames before, or came and went among these
    by       position of the frame that showed it, of each of them
    """

    number: IntArray
    time_ns: IntArray
    life: IntArray
    turn: IntArray
    ended: tuple[int, ...]
    by: tuple[int, ...]


@dataclass(slots=True)
class _Source:
    """elapsed: of all sources when it was last heard of."""

    time_ns: int
    life: int
    turn: int
    elapsed: int = 0


@dataclass(slots=True)
class SourceTimes:
    """Of all sources that may go on.

    most  sources at a time; those that were not heard of for longest are over
    """

    most: int
    _frames: int = 0
    _lives: int = 0
    _turns: int = 0
    # Σ over sources of how far each moved.
    _elapsed: int = 0
    # The one not heard of for longest comes first.
    _sources: dict[int, _Source] = field(default_factory=dict)

    def state(self) -> TimesState:
        """A value that `restore` makes the same times of."""
        rows = [(name, s.time_ns, s.life, s.turn, s.elapsed) for name, s in self._sources.items()]
        columns = np.array(rows, np.int64).reshape(-1, 5).T
        return TimesState(self._frames, self._lives, self._turns, self._elapsed, *columns)

    def restore(self, state: TimesState) -> None:
        """Go on from there; in place of all."""
        self._frames, self._lives = state.frames, state.lives
        self._turns, self._elapsed = state.turns, state.elapsed
        columns = state.time_ns, state.life, state.turn, state.heard
        rows = zip(state.source.tolist(), *(one.tolist() for one in columns), strict=True)
        self._sources = {name: _Source(*row) for name, *row in rows}

    def take(self, source: IntArray, stamp_ns: IntArray) -> Arrivals:
        """F frames in the order in which their truth came: (F,) each.

        One by one, so that it does not matter how frames are cut into calls.
        """
        ended: list[int] = []
        by: list[int] = []
        times, lives, turns = [], [], []
        for frame, (name, stamp) in enumerate(zip(source.tolist(), stamp_ns.tolist(), strict=True)):
            at = self._moved(name, stamp, ended)
            by += [frame] * (len(ended) - len(by))
            times.append(at.time_ns)
            lives.append(at.life)
            turns.append(at.turn)
        number = self._frames + np.arange(len(times), dtype=np.int64)
        self._frames += len(times)
        return Arrivals(
            number,
            np.array(times, np.int64),
            np.array(lives, np.int64),
            np.array(turns, np.int64),
            tuple(ended),
            tuple(by),
        )

    def _moved(self, name: int, stamp: int, ended: list[int]) -> _Source:
        at = self._sources.pop(name, None)
        if at is not None and stamp < at.time_ns - SET_BACK_NS:
            ended.append(at.turn)
            at = None
        if at is None:
            self._lives += 1
            self._turns += 1
            at = _Source(stamp, self._lives, self._turns)
        elif stamp > at.time_ns:
            # A wild stamp must not make the others look silent.
            self._elapsed += min(stamp - at.time_ns, BLOCK_NS)
            if stamp // BLOCK_NS != at.time_ns // BLOCK_NS:
                ended.append(at.turn)
                self._turns += 1
                at.turn = self._turns
            at.time_ns = stamp
        at.elapsed = self._elapsed
        self._sources[name] = at
        self._end_silent(ended)
        return at

    def _end_silent(self, ended: list[int]) -> None:
        sources = self._sources
        while True:
            name, longest = next(iter(sources.items()))
            silent = self._elapsed - longest.elapsed > SILENT_NS * len(sources)
            if not silent and len(sources) <= self.most:
                return
            ended.append(sources.pop(name).turn)

    def now(self, life: IntArray) -> tuple[IntArray, BoolArray]:
        """Time of the source of each life (n,), and whether that life goes on; 0 where not."""
        goes_on = sorted((at.life, at.time_ns) for at in self._sources.values())
        # A last entry that is no life, so that every search ends at an entry.
        lives, times = np.array([*goes_on, (np.iinfo(np.int64).max, 0)], np.int64).T
        place = np.searchsorted(lives, life)
        there: BoolArray = lives[place] == life
        time_ns: IntArray = np.where(there, times[place], 0)
        return time_ns, there
