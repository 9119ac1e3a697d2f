"""Everything that takes several steps, advanced by single steps in any order, against the same
done at once: rows, folds, event time that moves on or jumps, panes from elsewhere, readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monitor.frames.frame import MatchedClasses
from monitor.statistics.folding import ClassAccumulator
from monitor.statistics.windows import PaneAccumulator, PaneChanges, PaneKey, put
from tests.calibration.matched_frames import (
    OLDER,
    WINDOWS,
    accumulated,
    empty,
    expected_panes,
    fold,
    fold_some,
    matched,
)
from tests.states import bits

# Number of the frame and the time it is of; of a slice, how many rows are in each pane.
Counted = dict[int, Counter[PaneKey]]


class Races(RuleBasedStateMachine):
    """Frames of one row in one of three slices; what is of another time has no stamp."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulator: PaneAccumulator[Any, Any] = self.made()
        self.frames: list[tuple[int, int | None, int]] = []
        self.now = 0
        self.generation = 0
        self.movers: list[Iterator[None]] = []
        self.imports: list[tuple[Iterator[None], Callable[[], None]]] = []
        self.expected_sums: Any = None

    def made(self) -> PaneAccumulator[Any, Any]:
        return empty(6)

    def row(self, number: int, stamp: int | None) -> Any:
        return matched(number, 1, slices=(number % 3,) if number % 3 < 2 else (4,), stamp_ns=stamp)

    def elsewhere(self, number: int, stamp: int | None) -> dict[int, dict[PaneKey, Any]]:
        return expected_panes([self.row(number, stamp)], None)

    def rows_in(self, held: Any) -> int:
        return int(held.raw.n)

    def note(self, stamp: int | None) -> int:
        self.frames.append((len(self.frames), stamp, self.generation))
        return len(self.frames) - 1

    # ---- what may happen

    @rule(age=st.integers(0, 500), stamped=st.booleans())
    def add(self, age: int, stamped: bool) -> None:
        stamp = self.now - age if stamped else None
        self.accumulator.add(self.row(self.note(stamp), stamp))

    @rule(times=st.integers(1, 9))
    def step(self, times: int) -> None:
        for _ in range(times):
            fold_some(self.accumulator)

    @rule()
    def fold_early(self) -> None:
        self.accumulator.step()

    @rule(ahead=st.integers(0, 90))
    def begin_to_move_on(self, ahead: int) -> None:
        self.now += ahead
        self.movers.append(self.accumulator.move_on(self.now))

    @precondition(lambda self: self.movers)
    @rule(data=st.data())
    def go_on_moving(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.movers) - 1))
        if next(self.movers[chosen], self) is self:
            del self.movers[chosen]

    @rule(to=st.sampled_from((-3000, -100, 50_000)))
    def jump(self, to: int) -> None:
        self.accumulator.begin_anew()
        self.generation += 1
        self.now += to

    @rule(age=st.integers(0, 500))
    def begin_to_import(self, age: int) -> None:
        stamp = self.now - age
        changes: PaneChanges[Any] = PaneChanges(self.accumulator)
        number = self.note(stamp)

        def put_all() -> Iterator[None]:
            for index, panes in self.elsewhere(number, stamp).items():
                yield from changes.put_all(index, panes, timely=True)

        self.imports.append((put_all(), lambda: self.accumulator.take(changes)))

    @precondition(lambda self: self.imports)
    @rule(data=st.data())
    def go_on_importing(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.imports) - 1))
        steps, done = self.imports[chosen]
        if next(steps, self) is self:
            done()
            del self.imports[chosen]

    # ---- what must hold

    @invariant()
    def no_pane_is_torn(self) -> None:
        """At any moment, all slices are those of the clock."""
        for panes in self.accumulator.panes.values():
            for key in panes:
                assert not WINDOWS.too_old(key, self.accumulator.clock_ns)

    @rule(ahead=st.integers(0, 30))
    def read(self, ahead: int) -> None:
        """A reader that is not interrupted, while others are under way."""
        for steps, done in self.imports:
            for _ in steps:
                pass
            done()
        self.imports.clear()
        self.now += ahead
        fold(self.accumulator)
        for _ in self.accumulator.move_on(self.now):
            pass
        panes = self.accumulator.panes
        whole = self.expected()
        assert {i: dict(p) for i, p in found_rows(panes, self.rows_in).items()} == whole[0]
        assert bits(since_epoch(panes)) == bits(whole[1])

    def expected(self) -> tuple[dict[int, dict[PaneKey, int]], dict[int, dict[PaneKey, Any]]]:
        counts: dict[int, Counter[PaneKey]] = {}
        sums: dict[int, dict[PaneKey, Any]] = {}
        for number, stamp, generation in self.frames:
            key = OLDER if generation < self.generation else WINDOWS.place(stamp, self.now)
            for index, panes in self.elsewhere(number, None).items():
                for held in panes.values():
                    counts.setdefault(index, Counter())[key] += self.rows_in(held)
                    put(sums.setdefault(index, {}), OLDER, held)
        return {i: dict(found) for i, found in counts.items()}, sums

    def teardown(self) -> None:
        self.read(0)


def found_rows(panes: dict[int, dict[PaneKey, Any]], rows_in: Callable[[Any], int]) -> Counted:
    return {
        index: Counter({key: rows_in(held) for key, held in found.items()})
        for index, found in panes.items()
        if found
    }


def since_epoch(panes: dict[int, dict[PaneKey, Any]]) -> dict[int, dict[PaneKey, Any]]:
    together: dict[int, dict[PaneKey, Any]] = {}
    for index, found in panes.items():
        for held in found.values():
            put(together.setdefault(index, {}), OLDER, held)
    return together


class ClassRaces(Races):
    """The same with class probabilities."""

    def made(self) -> PaneAccumulator[Any, Any]:
        return ClassAccumulator(WINDOWS, 6)

    def row(self, number: int, stamp: int | None) -> Any:
        random = np.random.default_rng(number)
        opinions = random.dirichlet(np.ones(3), size=(1, 1))
        return MatchedClasses(number % 3, opinions, random.integers(0, 3, 1), stamp)

    def elsewhere(self, number: int, stamp: int | None) -> dict[int, dict[PaneKey, Any]]:
        alone = self.made()
        alone.add(self.row(number, stamp))
        fold(alone)
        return alone.panes

    def rows_in(self, held: Any) -> int:
        return int(held.n)


TestRaces = Races.TestCase
TestRaces.settings = settings(max_examples=60, stateful_step_count=40)
TestClassRaces = ClassRaces.TestCase
TestClassRaces.settings = settings(max_examples=40, stateful_step_count=40)


def test_a_jump_takes_no_longer_however_much_there_is():
    """It touches no slice: what there is stays the very same, laid aside."""
    accumulator = accumulated([matched(i, 40, stamp_ns=20 * i) for i in range(15)], 30, 280)
    held = [one for panes in accumulator.panes.values() for one in panes.values()]
    rows = sum(one.raw.n for one in held)
    accumulator.begin_anew()
    assert accumulator.panes == {}
    assert accumulator.busy
    steps = 0
    while accumulator.busy:
        accumulator.step()
        steps += 1
    assert len(held) <= steps <= 2 * len(held) + 1
    assert sum(panes[OLDER].raw.n for panes in accumulator.panes.values()) == rows


def test_tracks_of_the_time_before_do_not_go_on_in_that_which_comes_again():
    rows = matched(1, 20, slices=(0,), stamp_ns=500, tracks=20)
    accumulator = empty(1)
    accumulator.add(rows)
    accumulator.step()
    accumulator.begin_anew()
    # The same tracks in the same pane, as when a recording is played again.
    accumulator.add(rows)
    fold(accumulator)
    assert [one.raw.pairs for one in accumulator.panes[0].values()] == [0, 0]
