"""Everything that takes several steps, advanced by single steps in any order, against the same done
at once: rows, folds, event time that moves on or jumps, panes from elsewhere, readers."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monitor.frames.frame import MatchedRows
from monitor.statistics.folding import SliceAccumulator
from monitor.statistics.windows import PaneChanges, PaneKey, put
from tests.calibration.matched_frames import (
    OLDER,
    SLICES,
    WINDOWS,
    Panes,
    accumulated,
    counted,
    empty,
    expected_panes,
    finished,
    fold_some,
    matched,
    unfinished,
)
from tests.states import bits


class Races(RuleBasedStateMachine):
    """Frames of one row in one of three slices; what is of another time has no stamp."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulator = empty(6)
        # Stamp of each frame, the time it is of, and whether it was taken back.
        self.frames: list[tuple[int | None, int, bool]] = []
        self.now = 0
        self.generation = 0
        self.movers: list[Iterator[None]] = []
        self.imports: list[tuple[Iterator[None], Callable[[], None]]] = []

    def row(self, number: int, stamp: int | None) -> MatchedRows:
        return matched(number, 1, slices=(number % 3,) if number % 3 < 2 else (4,), stamp_ns=stamp)

    def note(self, stamp: int | None) -> int:
        self.frames.append((stamp, self.generation, False))
        return len(self.frames) - 1

    @rule(age=st.integers(0, 500), stamped=st.booleans())
    def add(self, age: int, stamped: bool) -> None:
        stamp = self.now - age if stamped else None
        self.accumulator.add(self.row(self.note(stamp), stamp))

    @precondition(lambda self: self.frames)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.frames) - 1))
        stamp, generation, gone = self.frames[number]
        if not gone:
            self.frames[number] = stamp, generation, True
            stamp = stamp if generation == self.generation else None
            self.accumulator.add(replace(self.row(number, stamp), live=False, retracts=True))

    @rule(times=st.integers(1, 9), early=st.booleans())
    def step(self, times: int, early: bool) -> None:
        for _ in range(times):
            self.accumulator.step() if early else fold_some(self.accumulator)

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
        changes: PaneChanges[Any] = PaneChanges(self.accumulator)
        elsewhere = expected_panes([self.row(self.note(self.now - age), self.now - age)], None)

        def put_all() -> Iterator[None]:
            for index, panes in elsewhere.items():
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

    @invariant()
    def no_pane_is_torn(self) -> None:
        for panes in self.accumulator.panes.values():
            for key in panes:
                assert not WINDOWS.too_old(key, self.accumulator.clock_ns)

    @rule(ahead=st.integers(0, 30))
    def read(self, ahead: int) -> None:
        """A reader that is not interrupted, while others are under way."""
        for steps, done in self.imports:
            list(steps)
            done()
        self.imports.clear()
        self.now += ahead
        panes = finished(self.accumulator, self.now).panes
        rows = Counter[tuple[int, PaneKey]]()
        sums, together = Panes(), Panes()
        for number, (stamp, generation, gone) in enumerate(self.frames):
            key = OLDER if generation < self.generation else WINDOWS.place(stamp, self.now)
            for index, held in expected_panes([] if gone else [self.row(number, None)], 0).items():
                rows[index, key] += 1
                put(sums.setdefault(index, {}), OLDER, held[OLDER])
        assert rows == Counter(
            {(index, key): held.raw.n for index, one in panes.items() for key, held in one.items()}
        )
        for index, each in panes.items():
            for statistics in each.values():
                put(together.setdefault(index, {}), OLDER, statistics)
        assert bits({i: one for i, one in together.items() if one}) == bits(sums)

    def teardown(self) -> None:
        self.read(0)


TestRaces = Races.TestCase
TestRaces.settings = settings(stateful_step_count=40)


def live_rows(accumulator: SliceAccumulator) -> int:
    """Raw rows in the running totals."""
    return sum(
        int(accumulator.totals(space).of(2 * index).n[-1].sum())
        for space, slices in SLICES.items()
        for index in slices
    )


def test_rows_wait_until_there_are_enough_of_them_and_are_then_unfinished_to_the_last_step():
    accumulator = empty(10)
    accumulator.step()
    assert (unfinished(accumulator), accumulator.panes, accumulator.live) == (False, {}, {})
    for seed, n, waiting in ((1, 9, 9), (2, 0, 9), (3, 1, 10)):
        assert not accumulator.due
        fold_some(accumulator)
        accumulator.add(matched(seed, n))
        assert accumulator.waiting == waiting
    assert (accumulator.due, accumulator.panes) == (True, {})
    fold_some(accumulator)
    assert (accumulator.due, accumulator.waiting, accumulator.busy) == (False, 0, True)
    # Few rows that came meanwhile wait for the next fold.
    accumulator.add(matched(4, 2))
    for _ in range(40):
        assert counted(accumulator) in (0, 10)
        fold_some(accumulator)
    assert (accumulator.waiting, accumulator.busy) == (2, False)
    assert counted(accumulator) == live_rows(accumulator) == 10


def test_all_slices_change_together_and_the_running_totals_only_after_them():
    frames = [matched(i, 40, slices=SLICES[space], space=space) for i, space in enumerate(SLICES)]
    accumulator = accumulated(frames)
    before = dict(accumulator.panes)
    assert before.keys() == {i for slices in SLICES.values() for i in slices}
    for rows in frames:
        accumulator.add(rows)
    seen = []
    while unfinished(accumulator):
        changed = {i for i, panes in before.items() if accumulator.panes[i] is not panes}
        assert changed in (set(), before.keys())
        seen.append((bool(changed), live_rows(accumulator) - 120))
        accumulator.step()
    assert {more for changed, more in seen if not changed} == {0}
    # No total ever falls, and in the end all have what the slices have.
    grown = [more for changed, more in seen if changed]
    assert grown == sorted(grown)
    assert live_rows(accumulator) == counted(accumulator) == 240
