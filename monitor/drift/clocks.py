"""Clocks of sources, and frames of several sources brought into one order of time.

DrivingClock counts the hours of driving in which the budget of false alarms is counted. SourceTimes
tells which second it is, what is late and when a source begins anew. Stamps of different sources
are never compared: one source may have its ground truth at once, another one minutes later.

Sums do not care about the order of items; bets, which take one observation after the other, do.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from monitor.drift.usual import BLOCK_NS
from monitor.frames.space import BoolArray, IntArray

T = TypeVar("T")

# A source that is set back by more begins anew: a drive played again, or after one wild stamp.
SET_BACK_NS = 10 * BLOCK_NS


class _Held(NamedTuple, Generic[T]):
    """An item that is held, and the rows that it counts for.

    arrived  number of its arrival, which tells apart what is otherwise alike
    at_ns    event time of all sources by then; infinite where it is not known
    """

    stamp_ns: int
    arrived: int
    at_ns: float
    rows: int
    item: T


@dataclass(slots=True)
class ReorderBuffer(Generic[T]):
    """Items in the order of their stamps, source by source.

    An item is given out once its source has put one that is newer by as much as items of it have
    come behind, so that sources need not wait for each other, and one that keeps its order waits
    for nothing. Per source, items that come less far behind the newest than one has before are
    given out by stamp, whatever order they came in; only what is alike stays as it came. One that
    comes too late goes out at once, or is refused. A source that is set back farther than by any
    disorder begins anew.

    disorder_ns  what is farther behind the newest of its source is not waited for
    rows         held now
    """

    disorder_ns: int
    rows: int = 0
    _held: dict[int, list[_Held[T]]] = field(default_factory=dict)
    _newest: dict[int, int] = field(default_factory=dict)
    _given: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    _out: list[T] = field(default_factory=list)
    _arrived: int = 0

    def go_on(self, given_ns: Mapping[int, int]) -> None:
        """Begins behind the stamps that the last run has given out, by source."""
        self._given, self._newest = dict(given_ns), dict(given_ns)

    def put(
        self,
        stamp_ns: int,
        source: int,
        item: T,
        *,
        rows: int = 1,
        now_ns: int | None = None,
        refuse_late: bool = False,
    ) -> bool:
        """Takes in an item; `ready` gives out what need not wait any longer.

        refuse_late  do not take it if it is behind what was given out of its source
        returns      whether it was taken
        """
        late_ns = max(0, self._given.get(source, stamp_ns) - stamp_ns)
        if late_ns > max(SET_BACK_NS, self.disorder_ns) and not refuse_late:
            self._end(source)
            late_ns = 0
        newest = self._newest.setdefault(source, stamp_ns)
        behind_ns = newest - stamp_ns
        if late_ns and refuse_late and behind_ns > self.disorder_ns:
            # To wait for the like of it would be no use.
            return False
        self._newest[source] = max(newest, stamp_ns)
        if behind_ns > self._seen.get(source, 0):
            self._seen[source] = min(behind_ns, self.disorder_ns)
        if late_ns:
            if not refuse_late:
                self._out.append(item)
            return not refuse_late
        at_ns = math.inf if now_ns is None else now_ns
        held = _Held(stamp_ns, self._arrived, at_ns, rows, item)
        self._arrived += 1
        heapq.heappush(self._held.setdefault(source, []), held)
        self.rows += rows
        return True

    def ready(self, now_ns: int | None = None) -> list[T]:
        """Gives out, each once, the items that none can overtake any more.

        First those that came late or before time began anew, then by stamp and source.

        now_ns  event time of all sources: what has waited disorder_ns of it waits no longer, or a
                source that falls silent would keep its last for ever
        """
        out, self._out = self._out, []
        found: list[tuple[int, int, T]] = []
        waited_ns = -math.inf if now_ns is None else now_ns - self.disorder_ns
        for source, held in list(self._held.items()):
            until = self._newest[source] - self._seen.get(source, 0)
            while held and (held[0].stamp_ns <= until or held[0].at_ns <= waited_ns):
                found.append((held[0].stamp_ns, source, self._pop(source)))
        found.sort(key=lambda one: one[:2])
        return out + [item for *_, item in found]

    def begin_anew(self) -> None:
        """Forgets all sources, whose time began anew; what is held of them is given out next."""
        for source in list(self._newest):
            self._end(source)
        self._seen.clear()

    def _end(self, source: int) -> None:
        """Forgets the time of a source; what is held of it is given out next."""
        while source in self._held:
            self._out.append(self._pop(source))
        for known in (self._newest, self._given):
            known.pop(source, None)

    def _pop(self, source: int) -> T:
        held = heapq.heappop(self._held[source])
        if not self._held[source]:
            del self._held[source]
        self.rows -= held.rows
        self._given[source] = max(held.stamp_ns, self._given.get(source, held.stamp_ns))
        return held.item


# s; of a longer pause between two frames of a source no more was driving.
_LONGEST_STEP = 5.0

# s; a stamp that lies so far back is of a clock that was set back: time goes on from there.
_SET_BACK = 10.0

# Frames of all sources, for each active source, after which a source without ground truth is active
# no more: by frames, since no clock tells when another source is over. At least so many.
_SILENT, _LEAST_SILENT = 20, 50

# Part of the time for bets on class probabilities: what they lose is little of the nats that an
# alarm needs, and references of covariances are learned over as long as without them.
_OF_CLASSES = 0.1

# Frames after which a source is forgotten.
_GONE = 4096

# A source is over when, since it was last heard of, all of them moved on by this on average.
# Long, because labels of one source may come in batches of minutes while others wait.
SILENT_NS = 600 * BLOCK_NS


@dataclass(slots=True)
class _Driving:
    """One source of a driving clock.

    latest_ns  event time of its ground truth
    seen_at    number of its latest frame, of all
    waiting    seconds that it drove since its tracks were last taken in
    """

    latest_ns: int
    seen_at: int = 0
    waiting: float = 0.0


@dataclass(slots=True)
class DrivingClock:
    """Counts seconds of driving, of all sources together and by the share that each adds.

    The sources of a vehicle drive the same hour, and their ground truth comes at different times:
    one at once, another seconds later. If the time went by the frames of all, a source that is
    behind would never be given any, and could never raise an alarm. So each source has a clock of
    its own, and of what it drives the share that makes them one vehicle: 1 / S where S sources are
    active. The class probabilities of source s are source ~s, below 0: where covariances are active
    as well, a tenth of the time is theirs.

    driven  s
    """

    driven: float = 0.0
    _frames: int = 0
    _active: int = 1
    _sources: dict[int, _Driving] = field(default_factory=dict)

    def drive(self, source: int, stamp_ns: int) -> float:
        """Takes in a frame with ground truth; returns the seconds that it adds."""
        known = self._sources.get(source)
        self._frames += 1
        if known is None:
            oldest = self._frames - _GONE
            self._sources = {s: one for s, one in self._sources.items() if one.seen_at >= oldest}
            self._sources[source] = _Driving(stamp_ns, self._frames)
            return 0.0
        step = (stamp_ns - known.latest_ns) * 1e-9
        known.seen_at = self._frames
        if step > 0 or step < -_SET_BACK:
            known.latest_ns = stamp_ns
        if step <= 0:
            return 0.0
        oldest = self._frames - max(_LEAST_SILENT, _SILENT * self._active)
        active = [name for name, one in self._sources.items() if one.seen_at >= oldest]
        self._active, of_classes = len(active), sum(name < 0 for name in active)
        alike = of_classes if source < 0 else len(active) - of_classes
        part = _OF_CLASSES if source < 0 else 1 - _OF_CLASSES
        share = min(step, _LONGEST_STEP) / alike * (part if alike < len(active) else 1.0)
        self.driven += share
        return share

    def wait(self, source: int, seconds: float) -> None:
        """Notes that a source drove on, and that what its tracks say of it comes later."""
        known = self._sources.get(source)
        if known is not None:
            known.waiting += seconds

    def waited(self, source: int) -> float:
        """Returns the seconds that a source drove since this was last asked; 0 once it is gone."""
        known = self._sources.get(source)
        if known is None:
            return 0.0
        seconds, known.waiting = known.waiting, 0.0
        return seconds


@dataclass(frozen=True, eq=False, slots=True)
class Arrivals:
    """The times at which F frames came.

    number   (F,) counts all frames that ever came
    time_ns  (F,) time of their source by then: its latest stamp
    step_ns  (F,) by which it moved the time of its source; 0 where it did not, or is the first
    heard_ns (F,) time of the source with labels: Σ of its steps, each no longer than counts
    life     (F,) of their source; another one where it begins anew, unique over sources
    turn     (F,) the second of their source by then; unique over sources, lives and seconds
    ended    by turn that is over since the frames before, or came and went among these: the
             position of the frame that showed it
    """

    number: IntArray
    time_ns: IntArray
    step_ns: IntArray
    heard_ns: IntArray
    life: IntArray
    turn: IntArray
    ended: dict[int, int]


@dataclass(slots=True)
class _Source:
    """One source.

    began_ns  time when the present second of it began to be heard of, in time with labels
    elapsed   of all sources when it was last heard of
    """

    time_ns: int
    life: int
    turn: int
    heard_ns: int = 0
    began_ns: int = 0
    elapsed: int = 0


@dataclass(slots=True)
class SourceTimes:
    """Times of all sources that may go on.

    most             sources at a time; those that were not heard of for longest are over
    longest_step_ns  of time with labels between two frames of a source
    """

    most: int
    longest_step_ns: int = BLOCK_NS
    _frames: int = 0
    _lives: int = 0
    _turns: int = 0
    # Σ over sources of how far each moved.
    _elapsed: int = 0
    # The one not heard of for longest comes first.
    _sources: dict[int, _Source] = field(default_factory=dict)

    @property
    def latest_ns(self) -> dict[int, int]:
        """Returns the time of each source, by its number."""
        return {name: at.time_ns for name, at in self._sources.items()}

    def go_on(self, latest_ns: Mapping[int, int]) -> None:
        """Begins with the times of the last run; lives and turns are numbered in their order."""
        self._lives = self._turns = len(latest_ns)
        self._sources = {
            name: _Source(time_ns, number, number)
            for number, (name, time_ns) in enumerate(latest_ns.items(), 1)
        }

    def take(self, source: IntArray, stamp_ns: IntArray) -> Arrivals:
        """Takes F frames in the order in which their ground truth came: (F,) each.

        One by one, so that it does not matter how frames are cut into calls.
        """
        ended: dict[int, int] = {}
        rows = []
        for frame, (name, stamp) in enumerate(zip(source.tolist(), stamp_ns.tolist(), strict=True)):
            at, step, over = self._moved(name, stamp)
            ended |= dict.fromkeys(over, frame)
            rows.append((at.time_ns, step, at.heard_ns, at.life, at.turn))
        number = self._frames + np.arange(len(rows), dtype=np.int64)
        self._frames += len(rows)
        times, steps, heard, lives, turns = np.array(rows, np.int64).reshape(-1, 5).T.copy()
        return Arrivals(number, times, steps, heard, lives, turns, ended)

    def _moved(self, name: int, stamp: int) -> tuple[_Source, int, list[int]]:
        """Moves the time of a source to a stamp.

        returns  the source; by how much its time moved, in ns; and the turns that are over by it
        """
        ended: list[int] = []
        step = 0
        at = self._sources.pop(name, None)
        if at is not None and stamp < at.time_ns - SET_BACK_NS:
            ended.append(at.turn)
            at = None
        if at is None:
            self._lives += 1
            self._turns += 1
            at = _Source(stamp, self._lives, self._turns)
        elif stamp > at.time_ns:
            step = stamp - at.time_ns
            # A wild stamp must not make the others look silent.
            self._elapsed += min(step, BLOCK_NS)
            at.heard_ns += min(step, self.longest_step_ns)
            if stamp // BLOCK_NS != at.time_ns // BLOCK_NS:
                ended.append(at.turn)
                self._turns += 1
                at.turn = self._turns
                at.began_ns = at.heard_ns
            at.time_ns = stamp
        at.elapsed = self._elapsed
        self._sources[name] = at
        while self._longest_silent():
            ended.append(self._sources.pop(next(iter(self._sources))).turn)
        return at, step, ended

    def _longest_silent(self) -> bool:
        """Tells whether the source that was not heard of for longest is over."""
        longest = next(iter(self._sources.values()))
        silent = self._elapsed - longest.elapsed > SILENT_NS * len(self._sources)
        return silent or len(self._sources) > self.most

    def now(self, life: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
        """Tells of the source of each life (n,) when its present second began.

        returns  (n,) each: in event time, in time with labels; whether it goes on, 0 where not
        """
        goes_on = sorted(
            (at.life, at.time_ns // BLOCK_NS * BLOCK_NS, at.began_ns)
            for at in self._sources.values()
        )
        # A last entry that is no life, so that every search ends at an entry.
        lives, times, heard = np.array([*goes_on, (np.iinfo(np.int64).max, 0, 0)], np.int64).T
        place = np.searchsorted(lives, life)
        there: BoolArray = lives[place] == life
        return np.where(there, times[place], 0), np.where(there, heard[place], 0), there
