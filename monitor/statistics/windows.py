"""Windows of event time, put together from panes: five minutes, an hour, a day, and all before.

What was counted lies in exactly one pane. A pane that has grown too old for its level is added
to the pane of the next level that spans it. Nothing is ever subtracted to forget, so no rounding
piles up, and a label that is revised is retracted from the pane in which it lies now.

Rows wait until there are enough of them to be folded in one go, in short steps between which
frames pass. Whoever looks at `panes` between two steps finds all slices at one moment: what takes
several steps is built beside them and put in their place at once. What a fold makes of rows is for
folding.py; reading.py reads the panes.

Event time is that of all streams together. A wild stamp is not believed, nor are those of a
minority: one sensor with a wrong clock must not empty the windows of the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, Generic, Protocol, Self, TypeVar

from monitor.frames.frame import MatchedClasses, MatchedRows, PredictedRows

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


# ---- keeping panes

Frame = TypeVar("Frame", MatchedRows, MatchedClasses, PredictedRows)

# The panes of one slice, never changed in place.
Panes = dict[PaneKey, S]
_DONE = object()


class PaneAccumulator(ABC, Generic[Frame, S]):
    """Takes in matched frames and keeps statistics S; a subclass says what a fold does.

    fold_rows   rows that make a fold worth while
    clock_ns    event time up to which the panes have moved on
    panes       by slice index; panes set aside by a jump of time are missing until they are settled
    generation  how often time has begun anew
    """

    def __init__(self, windows: Windows, fold_rows: int) -> None:
        self.windows = windows
        self.fold_rows = fold_rows
        self.clock_ns: int | None = None
        self.panes: dict[int, Panes[S]] = {}
        self.generation = 0
        self._waiting: list[Frame] = []
        self._rows = 0
        # Of the frames that wait, so many came before time began anew.
        self._outdated = 0
        self._folding: Iterator[None] | None = None
        self._folds = 0
        # Panes of earlier times, by slice; they belong to what is older than every window.
        self._aside: deque[Mapping[int, Panes[S]]] = deque()
        self._settling: Iterator[None] | None = None

    # ---- rows

    def add(self, rows: Frame) -> None:
        """Takes in rows; cheap."""
        if rows.n:
            self._waiting.append(rows)
            self._rows += rows.n

    @property
    def due(self) -> bool:
        """Tells that enough rows wait for a fold to be worth while."""
        return self._rows >= self.fold_rows

    @property
    def busy(self) -> bool:
        """Tells that a fold is due or begun, or panes of an earlier time are to be brought in."""
        return self._folding is not None or self.due or bool(self._aside)

    @property
    def waiting(self) -> int:
        """Rows not yet folded."""
        return self._rows

    def step(self) -> None:
        """Goes as far as _settle or _fold does in one go, about a millisecond."""
        if self._aside:
            self._settling = self._settling or self._settle()
            if next(self._settling, _DONE) is _DONE:
                self._settling = None
            return
        if self._folding is None:
            self._folding = self._fold(self._taken())
        if next(self._folding, _DONE) is _DONE:
            self._folding = None
            self._folds += 1

    def steps(self) -> Iterator[None]:
        """Goes in steps until all that waits now is in the panes; what comes meanwhile may wait.

        Bounded, however fast rows arrive: a fold that never catches up would never end.
        """
        last = self._folds + (self._folding is not None) + bool(self._waiting)
        while self._folds < last or self._aside:
            self.step()
            yield

    def _taken(self) -> list[Frame]:
        waiting, outdated = self._waiting, self._outdated
        self._waiting, self._rows, self._outdated = [], 0, 0
        waiting[:outdated] = [replace(rows, stamp_ns=None) for rows in waiting[:outdated]]
        return waiting

    @abstractmethod
    def _fold(self, waiting: list[Frame]) -> Iterator[None]:
        """Brings rows into the panes, in steps; all slices change together, at the end: take."""

    # ---- panes

    def take(self, changes: PaneChanges[S]) -> None:
        """Applies changes, all at once; keeps them aside if event time began anew meanwhile."""
        if changes.generation != self.generation:
            self._aside.extend(changes.added())
            return
        after = changes.onto(self.panes)
        for panes in after.values():
            # Event time may have moved on since the rows were placed.
            advance(panes, self.windows, self.clock_ns)
        self.panes = {**self.panes, **after}

    def move_on(self, clock_ns: int | None) -> Iterator[None]:
        """Moves panes up that are too old once event time has come this far, a slice a step.

        All slices change together, at the end. Stops where time has begun anew meanwhile, or has
        come farther than that.
        """
        return self._moving_on(self.generation, clock_ns)

    def _moving_on(self, generation: int, clock_ns: int | None) -> Iterator[None]:
        beside: dict[int, tuple[Panes[S], Panes[S]]] = {}
        for index, panes in list(self.panes.items()):
            if not self._ahead(generation, clock_ns):
                return
            beside[index] = panes, self._moved_on(panes, clock_ns)
            if beside[index][1] is not panes:
                yield
        if not self._ahead(generation, clock_ns):
            return
        after = {}
        for index, panes in self.panes.items():
            before, moved = beside.get(index, (None, panes))
            after[index] = moved if before is panes else self._moved_on(panes, clock_ns)
        self.panes, self.clock_ns = after, clock_ns

    def _ahead(self, generation: int, clock_ns: int | None) -> bool:
        if clock_ns is None or generation != self.generation:
            return False
        return self.clock_ns is None or clock_ns > self.clock_ns

    def _moved_on(self, panes: Panes[S], clock_ns: int | None) -> Panes[S]:
        moved = dict(panes)
        return moved if advance(moved, self.windows, clock_ns) else panes

    def begin_anew(self) -> None:
        """Puts all that came so far behind every window, since time has jumped. Cheap.

        What was in panes is brought there in steps, as rows are.
        """
        self.generation += 1
        if self.panes:
            self._aside.append(self.panes)
        self.panes, self.clock_ns = {}, None
        # What still waits would be placed on the old time.
        self._outdated = len(self._waiting)

    def _settle(self) -> Iterator[None]:
        """Brings panes of earlier times to where they belong: a pane in a step."""
        while self._aside:
            changes = PaneChanges(self)
            for index, panes in self._aside[0].items():
                yield from changes.put_all(index, panes, timely=False)
            self._aside.popleft()
            self.take(changes)


class PaneChanges(Generic[S]):
    """Additions of a fold or an import to the panes of slices, kept beside these.

    generation  the time that the panes belong to
    """

    def __init__(self, accumulator: PaneAccumulator[Any, S]) -> None:
        self.generation = accumulator.generation
        self._accumulator = accumulator
        # By slice and pane: what was found there, what was added, and their sum.
        self._changes: dict[tuple[int, PaneKey], tuple[S | None, S, S]] = {}

    def put(self, index: int, key: PaneKey, more: S) -> None:
        """Adds to a pane of a slice."""
        if (index, key) in self._changes:
            found, added, after = self._changes[index, key]
            self._changes[index, key] = found, added.merge(more), after.merge(more)
        else:
            found = self._accumulator.panes.get(index, {}).get(key)
            after = more if found is None else found.merge(more)
            self._changes[index, key] = found, more, after

    def put_all(self, index: int, panes: Mapping[PaneKey, S], *, timely: bool) -> Iterator[None]:
        """Adds panes of a slice that come from elsewhere, each where it lies by our clock.

        timely  whether they are of our time; if not, they are older than every window
        """
        windows = self._accumulator.windows
        for key, more in panes.items():
            here = windows.risen(key, self._accumulator.clock_ns) if timely else windows.oldest
            self.put(index, here, more)
            yield

    def onto(self, panes: Mapping[int, Panes[S]]) -> dict[int, Panes[S]]:
        """Makes the changed slices, even where a pane is no longer the one that was found."""
        changed: dict[int, Panes[S]] = {}
        for (index, key), (found, added, after) in self._changes.items():
            if index not in changed:
                changed[index] = dict(panes.get(index, {}))
            if changed[index].get(key) is found:
                changed[index].pop(key, None)
                put(changed[index], key, after)
            else:
                put(changed[index], key, added)
        return changed

    def added(self) -> Iterator[Mapping[int, Panes[S]]]:
        """Yields what was added by slice, one pane at a time."""
        for (index, key), (_, added, _) in self._changes.items():
            yield {index: {key: added}}


# ---- totals

Parts = tuple[S, ...]


@dataclass(slots=True)
class WindowTotals(Generic[S]):
    """Sums of the panes of each level of each slice, with the (immutable) panes they are of.

    Mostly only the latest pane has changed: the sum of the others is kept beside it.
    """

    # By slice and level of panes, or by slice and, below 0, level of the window.
    _last: dict[tuple[int, int], tuple[Parts[S], S | None, S]] = field(default_factory=dict)

    def read(
        self, index: int, panes: Mapping[PaneKey, S], windows: Windows, level: int
    ) -> S | None:
        """Adds up the panes of one slice in one window; None where nothing was counted in it.

        The very same object where nothing changed: a reader need not read it again.
        """
        found: list[S] = []
        for below in range(level + 1):
            parts = tuple(panes[key] for key in sorted(panes) if key[0] == below)
            if parts:
                found.append(self._total((index, below), parts))
        return self._total((index, ~level), tuple(found)) if found else None

    def _total(self, key: tuple[int, int], parts: Parts[S]) -> S:
        last = self._last.get(key)
        if last is not None and same_parts(last[0], parts):
            return last[2]
        before = last[1] if last is not None and same_parts(last[0][:-1], parts[:-1]) else None
        if before is None and len(parts) > 1:
            before = reduce(lambda total, part: total.merge(part), parts[:-1])
        total = parts[-1] if before is None else before.merge(parts[-1])
        # The older levels change once in many readings: not worth the memory.
        self._last[key] = parts, before if key[1] == 0 else None, total
        return total


def same_parts(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    """Tells that both hold the very same objects."""
    return list(map(id, left)) == list(map(id, right))
