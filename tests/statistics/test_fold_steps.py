"""Everything that takes several steps, advanced by single steps in any order, against the same done
at once: rows, folds, event time that moves on or jumps, panes from elsewhere, readers."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monitor.frames.frame import MatchedClasses, MatchedRows
from monitor.statistics.folding import ClassAccumulator, SliceAccumulator
from monitor.statistics.windows import PaneAccumulator, PaneChanges, PaneKey, put
from tests.calibration.matched_frames import (
    OLDER,
    SLICES,
    WINDOWS,
    accumulated,
    add_panes,
    assert_same_panes,
    clock_of,
    counted,
    drive,
    empty,
    expected_panes,
    finished,
    fold,
    fold_some,
    matched,
    unfinished,
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


# Two state machines of 60 and 40 examples of 40 steps; hypothesis draws as many as it is told.
TestRaces = Races.TestCase
TestClassRaces = ClassRaces.TestCase
TestRaces.settings = TestClassRaces.settings = settings(stateful_step_count=40)


# ---- what waits, and what is due


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
    # What comes to a slice meanwhile is kept.
    elsewhere = accumulated([matched(9, 30)]).panes
    seen = []
    while unfinished(accumulator):
        changed = {i for i, panes in before.items() if accumulator.panes[i] is not panes}
        assert changed in (set(), before.keys())
        seen.append((bool(changed), live_rows(accumulator) - 120))
        accumulator.step()
    for index, panes in elsewhere.items():
        add_panes(accumulator, index, panes)
    assert {more for changed, more in seen if not changed} == {0}
    # No total ever falls, and in the end all have what the slices have.
    grown = [more for changed, more in seen if changed]
    assert grown == sorted(grown)
    assert live_rows(accumulator) == counted(accumulator) - 30 == 240


def test_steps_bring_in_what_waits_and_end_however_fast_rows_arrive():
    accumulator = empty(10)
    accumulator.add(matched(0, 20))
    accumulator.step()
    accumulator.add(matched(1, 30))
    taken = 0
    for _ in accumulator.steps():
        taken += 1
        accumulator.add(matched(2 + taken, 20))
        fold_some(accumulator)
    assert taken < 30
    assert counted(accumulator) >= 50
    assert unfinished(accumulator)


@pytest.mark.parametrize("seed", range(3))
def test_a_slice_has_a_bounded_number_of_panes_and_moving_to_where_it_is_changes_nothing(seed):
    accumulator, most = empty(20), 0
    for rows in drive(seed, 400, late=0.5, longest=2):
        accumulator.add(rows)
        if rows.stamp_ns is not None and rows.live:
            finished(accumulator, rows.stamp_ns)
            most = max(most, *map(len, accumulator.panes.values()), 0)
    assert WINDOWS.panes < most <= 3 * (WINDOWS.panes + 1) + 1
    before, clock = dict(accumulator.panes), accumulator.clock_ns
    assert clock is not None
    for one in (None, clock, clock - 50):
        assert list(accumulator.move_on(one)) == []
    assert accumulator.clock_ns == clock
    assert all(accumulator.panes[i] is panes for i, panes in before.items())


# ---- time that begins anew


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


def test_what_is_folded_at_the_end_of_a_time_is_in_the_running_totals_as_well():
    accumulator = empty()
    accumulator.add(matched(1, 40, stamp_ns=5))
    while counted(accumulator) == 0:
        accumulator.step()
    accumulator.begin_anew()
    fold(accumulator)
    assert live_rows(accumulator) == counted(accumulator) == 40


def test_tracks_are_followed_after_a_jump_as_before_it_and_not_across():
    frames = [matched(i, 6, slices=(0,), stamp_ns=500 + i, tracks=6) for i in range(4)]
    accumulator = accumulated(frames, 1, 503)
    pairs = sum(one.raw.pairs for one in accumulator.panes[0].values())
    assert pairs > 10
    # The same tracks in the same pane, as when a recording is played again.
    accumulator.add(frames[0])
    accumulator.step()
    accumulator.begin_anew()
    for rows in frames:
        accumulator.add(rows)
        fold(accumulator)
    found = {key: one.raw.pairs for key, one in accumulator.panes[0].items()}
    assert found[0, 25] == pairs
    assert found[OLDER] > pairs


seeds = st.integers(0, 2**32 - 1)


def back(rows: MatchedRows) -> MatchedRows:
    return replace(rows, live=False, retracts=True)


@given(seeds, st.integers(1, 100), st.sets(st.integers(0, 11)), st.booleans())
def test_what_was_counted_before_time_began_anew_is_taken_from_what_is_older(
    seed, fold_rows, chosen, folded
):
    frames = drive(seed, 12)
    accumulator = empty(fold_rows)
    for rows in frames:
        accumulator.add(rows)
        fold_some(accumulator)
    if folded:
        fold(accumulator)
    accumulator.begin_anew()
    later = drive(seed + 1, 12, late=0.0)
    for number, rows in enumerate(later):
        accumulator.add(rows)
        if number in chosen:
            # Whoever takes it back knows that its time is over.
            accumulator.add(replace(back(frames[number]), stamp_ns=None))
        fold_some(accumulator)
    clock = clock_of(later)
    rest = [
        replace(rows, stamp_ns=None) for number, rows in enumerate(frames) if number not in chosen
    ]
    assert_same_panes(finished(accumulator, clock).panes, expected_panes([*rest, *later], clock))


def test_tracks_of_before_time_began_anew_keep_the_pairs_of_a_frame_that_is_taken_back():
    frames = [matched([6, i], 8, slices=(0,), tracks=8, stamp_ns=1) for i in range(3)]
    accumulator = accumulated(frames, 1, 1)
    pairs = accumulator.panes[0][0, 0].raw.pairs
    accumulator.begin_anew()
    accumulator.add(replace(back(frames[0]), stamp_ns=None))
    found = finished(accumulator, 1).panes[0][OLDER].raw
    assert (found.n, found.pairs) == (16, pairs)
    assert pairs > expected_panes(frames[1:], 1)[0][0, 0].raw.pairs
