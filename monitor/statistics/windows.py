"""Windows of event time, put together from panes: five minutes, an hour, a day, and all before.

What was counted lies in exactly one pane. A pane that has grown too old for its level is added
to the pane of the next level that spans it. Nothing is ever subtracted to forget, so no rounding
piles up, and a label that is revised is retracted from the pane in which it lies now.

Event time is that of all streams together. A wild stamp is not believed, nor are those of a
minority: one sensor with a wrong clock must not empty the windows of the others.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from typing import Generic, Protocol, Self, TypeVar

from monitor.frames.slices import TOTAL, Slice, label
from monitor.frames.space import Space
from monitor.statistics.stage import SliceStatistics

# Votes of frames that agree before time is taken to have jumped ahead, as after a pause, or
# back, as when a recording is played again: then windows begin anew. A frame that is
# believed, or that agrees with neither, takes a vote back.
AHEAD, BACK = 10, 100


@dataclass(slots=True)
class EventClock:
    """The latest believable capture time.

    reach_ns  stamps farther back than this are not believed alone
    ahead_ns  nor are those farther ahead: what is believed moves the clock, for good
    now_ns    never moves back but by a jump
    jumps     how often time jumped, ahead or back
    votes     of the frames that agree on another time, near other_ns
    """

    reach_ns: int
    ahead_ns: int
    now_ns: int | None = None
    jumps: int = 0
    votes: int = 0
    other_ns: int = 0

    def see(self, stamp_ns: int) -> bool:
        """Takes in the stamp of a frame; tells that time has jumped back, and begins anew."""
        if self.now_ns is None:
            self.now_ns = stamp_ns
            return False
        if self.believes(stamp_ns):
            self.votes = max(0, self.votes - 1)
            self.now_ns = max(self.now_ns, stamp_ns)
            return False
        if self.votes and abs(stamp_ns - self.other_ns) <= self.reach_ns:
            self.votes += 1
            self.other_ns = stamp_ns
        elif self.votes > 1:
            self.votes -= 1
        else:
            self.votes, self.other_ns = 1, stamp_ns
        back = stamp_ns < self.now_ns
        if self.votes < (BACK if back else AHEAD):
            return False
        self.votes = 0
        self.jumps += 1
        self.now_ns = stamp_ns
        return back

    def believes(self, stamp_ns: int) -> bool:
        """Tells that a stamp is near enough to be part of the same time."""
        now_ns = self.now_ns
        return now_ns is not None and -self.reach_ns <= stamp_ns - now_ns <= self.ahead_ns


class Summable(Protocol):
    """Statistics that add up exactly, and know whether they hold anything."""

    @property
    def is_zero(self) -> bool: ...

    def merge(self, other: Self) -> Self: ...


S = TypeVar("S", bound=Summable)

# Level and number of a pane; the last level has the one pane 0.
PaneKey = tuple[int, int]


class InvalidWindows(ValueError):
    """The lengths of windows and panes do not fit into each other."""


@dataclass(frozen=True)
class Windows:
    """The lengths of all windows.

    lengths_ns  ascending, nanoseconds of event time
    panes       whole panes to a window, which spans one more that is not yet full
    raises      InvalidWindows unless each pane is made of whole panes of the level below
    """

    lengths_ns: tuple[int, ...]
    panes: int

    def __post_init__(self) -> None:
        lengths = self.lengths_ns
        if self.panes < 1 or not all(length > 0 and length % self.panes == 0 for length in lengths):
            raise InvalidWindows(
                f"windows of {lengths} ns cannot be cut into {self.panes} panes of whole "
                "nanoseconds: choose other lengths."
            )
        for shorter, longer in pairwise(lengths):
            if longer <= shorter or longer % shorter:
                raise InvalidWindows(
                    f"a window of {longer / 1e9:g} s is no multiple of the one of "
                    f"{shorter / 1e9:g} s before it: choose lengths such as 5m, 1h, 24h."
                )

    @cached_property
    def pane_ns(self) -> tuple[int, ...]:
        """Length of a pane of each window."""
        return tuple(length // self.panes for length in self.lengths_ns)

    @property
    def older(self) -> int:
        """The level of what is older than every window, or of unknown age."""
        return len(self.lengths_ns)

    @property
    def oldest(self) -> PaneKey:
        """The pane of what is older than every window, or of unknown age."""
        return self.older, 0

    def place(self, stamp_ns: int | None, clock_ns: int | None) -> PaneKey:
        """Finds the pane of an event time; clock_ns is how far event time has come."""
        if stamp_ns is None:
            return self.oldest
        now = stamp_ns if clock_ns is None else max(clock_ns, stamp_ns)
        return self.risen((0, stamp_ns // self.pane_ns[0]), now)

    def above(self, key: PaneKey) -> PaneKey:
        """Finds the pane of the next level that spans a pane."""
        level, number = key
        if level + 1 >= self.older:
            return self.oldest
        return level + 1, number * self.pane_ns[level] // self.pane_ns[level + 1]

    def too_old(self, key: PaneKey, clock_ns: int | None) -> bool:
        """Tells that a pane has left the window of its level."""
        level, number = key
        if clock_ns is None or level == self.older:
            return False
        return number < clock_ns // self.pane_ns[level] - self.panes

    def risen(self, key: PaneKey, clock_ns: int | None) -> PaneKey:
        """Finds the pane of the contents of a pane once event time has come to clock_ns."""
        while self.too_old(key, clock_ns):
            key = self.above(key)
        return key


def put(panes: dict[PaneKey, S], key: PaneKey, more: S) -> None:
    """Adds to a pane; one that comes to hold nothing is let go."""
    there = panes.get(key)
    found = more if there is None else there.merge(more)
    if found.is_zero:
        panes.pop(key, None)
    else:
        panes[key] = found


def advance(panes: dict[PaneKey, S], windows: Windows, clock_ns: int | None) -> bool:
    """Moves panes that have grown too old one level up; tells that any was."""
    moved = False
    for level in range(windows.older):
        for key in [key for key in panes if key[0] == level and windows.too_old(key, clock_ns)]:
            put(panes, windows.above(key), panes.pop(key))
            moved = True
    return moved


# Slices (or totals) by name, with their statistics.
Named = tuple[tuple[str, SliceStatistics], ...]


@dataclass(slots=True)
class SliceTotals:
    """The last total of each space, with the (immutable) slices it was made from."""

    _last: dict[Space, tuple[tuple[SliceStatistics, ...], SliceStatistics]] = field(
        default_factory=dict
    )

    def read(self, slices: list[tuple[Slice, SliceStatistics]]) -> Generator[None, None, Named]:
        """Adds up the slices of each space, overflow included; one merge a step."""
        taken = {entry.name for entry, _ in slices}
        totals: list[tuple[str, SliceStatistics]] = []
        for space in dict.fromkeys(entry.space for entry, _ in slices):
            parts = tuple(statistics for entry, statistics in slices if entry.space == space)
            name = label(TOTAL, space, taken)
            taken.add(name)
            totals.append((name, (yield from self._total(space, parts))))
        return tuple(totals)

    def _total(
        self, space: Space, parts: tuple[SliceStatistics, ...]
    ) -> Generator[None, None, SliceStatistics]:
        known = self._last.get(space)
        if known is not None and _same(known[0], parts):
            return known[1]
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
            yield
        self._last[space] = (parts, total)
        return total


Parts = tuple[S, ...]


@dataclass(slots=True)
class WindowTotals(Generic[S]):
    """Sums of the panes of each level of each slice, with the (immutable) panes they are of.

    Mostly only the latest pane has changed: the sum of the others is kept beside it.
    """

    _last: dict[tuple[int, int], tuple[Parts[S], S | None, S]] = field(default_factory=dict)
    _windows: dict[tuple[int, int], tuple[Parts[S], S | None]] = field(default_factory=dict)

    def read(
        self, index: int, panes: Mapping[PaneKey, S], windows: Windows, level: int
    ) -> S | None:
        """Adds up the panes of one slice in one window; None where nothing was counted in it."""
        found: list[S] = []
        for below in range(level + 1):
            parts = tuple(panes[key] for key in sorted(panes) if key[0] == below)
            if parts:
                found.append(self._level(index, below, parts))
        levels = tuple(found)
        last = self._windows.get((index, level))
        # The very same object where nothing changed: a reader need not read it again.
        if last is None or not _same(last[0], levels):
            self._windows[index, level] = last = levels, _sum(levels)
        return last[1]

    def _level(self, index: int, level: int, parts: Parts[S]) -> S:
        last = self._last.get((index, level))
        if last is not None and _same(last[0], parts):
            return last[2]
        before = last[1] if last is not None and _same(last[0][:-1], parts[:-1]) else None
        if before is None:
            before = _sum(parts[:-1])
        total = parts[-1] if before is None else before.merge(parts[-1])
        # The older levels change once in many readings: not worth the memory.
        self._last[index, level] = parts, before if level == 0 else None, total
        return total


def _same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return list(map(id, left)) == list(map(id, right))


def _sum(parts: Parts[S]) -> S | None:
    return reduce(lambda total, part: total.merge(part), parts) if parts else None
