"""Accumulators that keep statistics in the panes of their slices.

Rows wait until there are enough of them to be folded in one go, in short steps between which
frames pass. Whoever looks at `panes` between two steps finds all slices at one moment: what takes
several steps is built beside them and put in their place at once.

What a fold makes of rows is for folding.py; reading.py reads the panes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from monitor.frames.frame import MatchedClasses, MatchedRows
from monitor.statistics.windows import PaneKey, S, Windows, advance, put

Frame = TypeVar("Frame", MatchedRows, MatchedClasses)

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

    @property
    def unfinished(self) -> bool:
        """Tells that something is not yet in the panes."""
        return self._folding is not None or bool(self._waiting) or bool(self._aside)

    def fold(self) -> None:
        """Brings all waiting rows into the statistics."""
        while self.unfinished:
            self.step()

    def fold_some(self) -> None:
        """Goes one short step if a fold is due or begun: frames pass between the steps."""
        if self.busy:
            self.step()

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
        waiting[:outdated] = [rows.unstamped() for rows in waiting[:outdated]]
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
            for index, panes in self._aside[0].items():
                together: S | None = None
                for held in panes.values():
                    together = held if together is None else together.merge(held)
                    yield
                if together is not None:
                    older = dict(self.panes.get(index, {}))
                    put(older, self.windows.oldest, together)
                    self.panes = {**self.panes, index: older}
            self._aside.popleft()


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
