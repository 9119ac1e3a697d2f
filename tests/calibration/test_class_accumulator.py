"""Matched class probabilities by slice and pane, whatever is folded when; and which slice they
belong to."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.frame import MatchedClasses, opinions_of
from monitor.frames.slices import OVERFLOW, TOTAL, ClassSliceTable
from monitor.statistics.class_statistics import (
    ClassStatistics,
    no_class_statistics,
    observe_classes,
)
from monitor.statistics.folding import CHUNK_ROWS, CHUNK_VALUES, ClassAccumulator
from monitor.statistics.windows import PaneKey, Windows
from tests import laws
from tests.calibration.matched_frames import fold, fold_some, unfinished
from tests.states import bits

# Panes of 20, 60 and 120 ns.
WINDOWS = Windows((60, 180, 360), 3)
OLDER = (WINDOWS.older, 0)
CLASSES = {0: 3, 1: 3, 2: 10}
Expected = dict[int, dict[PaneKey, ClassStatistics]]
quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def matched(seed, n, index=0, opinions=1, stamp_ns=None) -> MatchedClasses:
    random = np.random.default_rng(seed)
    classes = CLASSES[index]
    values = random.dirichlet(np.full(classes, 0.4), size=(n, opinions))
    return MatchedClasses(index, values, random.integers(classes, size=n), stamp_ns)


def drive(seed, frames) -> list[MatchedClasses]:
    """Frames of all slices in the course of time, some late, some without a stamp."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        late = int(random.integers(100)) if random.random() < 0.2 else 0
        stamp = None if random.random() < 0.1 else max(0, 5 * number - late)
        n, index = int(random.integers(0, 20)), int(random.integers(3))
        found.append(matched([seed, number], n, index, int(random.choice([1, 1, 4])), stamp))
    return found


def observed(rows: MatchedClasses, row: int) -> ClassStatistics:
    """Of one row, with the mean of its opinions added up one after the other."""
    opinions = rows.opinions[row]
    mean = sum(opinions[1:], opinions[0]) / len(opinions)
    several = rows.opinions[row : row + 1] if len(opinions) > 1 else None
    return observe_classes(mean[None], rows.label[row : row + 1], several)


def expected_panes(frames: Sequence[MatchedClasses], clock_ns: int) -> Expected:
    """Row by row, each in the pane it belongs to once event time has come so far."""
    found: Expected = {}
    for rows in frames:
        key = WINDOWS.place(rows.stamp_ns, clock_ns)
        for row in range(rows.n):
            panes = found.setdefault(rows.index, {})
            zero = no_class_statistics(CLASSES[rows.index])
            panes[key] = panes.get(key, zero).merge(observed(rows, row))
    return found


def finished(accumulator: ClassAccumulator, clock_ns: int | None = None) -> ClassAccumulator:
    fold(accumulator)
    for _ in accumulator.move_on(clock_ns):
        pass
    return accumulator


@pytest.mark.parametrize("fold_rows", [1, 10, 8192])
@pytest.mark.parametrize("seed", range(3))
def test_panes_are_the_statistics_of_their_rows_however_many_are_folded_at_once(seed, fold_rows):
    frames = drive(seed, 60)
    accumulator = ClassAccumulator(WINDOWS, fold_rows)
    for rows in frames:
        accumulator.add(rows)
        fold_some(accumulator)
    found = finished(accumulator, 300).panes
    assert bits(found) == bits(expected_panes(frames, 300))


@quick
@given(seeds, st.sets(st.integers(0, 29)), st.integers(1, 60))
def test_neither_the_order_of_frames_nor_the_moment_of_folding_matters(seed, fold_after, fold_rows):
    frames = drive(seed, 30)
    whole = ClassAccumulator(WINDOWS, 8192)
    for rows in frames:
        whole.add(rows)
    stepwise = ClassAccumulator(WINDOWS, fold_rows)
    random = np.random.default_rng(seed)
    for i, number in enumerate(random.permutation(30).tolist()):
        stepwise.add(frames[number])
        fold_some(stepwise)
        if i in fold_after:
            fold(stepwise)
        # Event time may come any part of its way, in the middle of a fold too.
        if random.random() < 0.2:
            for _ in stepwise.move_on(int(random.integers(150))):
                pass
    assert bits(finished(stepwise, 150).panes) == bits(finished(whole, 150).panes)


@pytest.mark.parametrize("opinions", [1, 7])
def test_a_frame_larger_than_a_step_is_cut_and_no_row_is_lost(opinions):
    n = 2 * CHUNK_ROWS + 3
    frames = [matched(1, n, 2, opinions), matched(2, 5, 2, opinions), matched(3, n, 2, opinions)]
    accumulator = ClassAccumulator(WINDOWS, 10)
    for rows in frames:
        accumulator.add(rows)
    steps = 0
    while unfinished(accumulator):
        accumulator.step()
        steps += 1
    assert steps >= (2 * n + 5) / min(CHUNK_ROWS, CHUNK_VALUES // (10 * opinions))
    found = accumulator.panes[2][OLDER]
    mean = np.concatenate([rows.opinions for rows in frames])
    label = np.concatenate([rows.label for rows in frames])
    one_by_one = sum(mean[:, i] for i in range(opinions)) / opinions
    several = mean if opinions > 1 else None
    laws.assert_same(found, observe_classes(one_by_one, label, several))


def test_a_single_row_may_be_larger_than_a_step():
    wide = np.full((2, 400, 50), 0.02)
    accumulator = ClassAccumulator(WINDOWS, 1)
    accumulator.add(MatchedClasses(0, wide, np.array([3, 4])))
    fold(accumulator)
    assert accumulator.panes[0][OLDER].n == 2


def test_frames_without_rows_leave_nothing_to_do():
    accumulator = ClassAccumulator(WINDOWS, 1)
    accumulator.add(matched(1, 0))
    assert not unfinished(accumulator)
    assert not accumulator.busy
    assert finished(accumulator).panes == {}


def test_after_a_jump_all_that_came_before_it_is_older_than_every_window():
    accumulator = ClassAccumulator(WINDOWS, 10)
    accumulator.add(matched(1, 8, stamp_ns=10_000))
    finished(accumulator, 10_000)
    accumulator.add(matched(2, 20, stamp_ns=10_001))
    accumulator.step()
    accumulator.add(matched(3, 4, stamp_ns=10_002))
    accumulator.begin_anew()
    accumulator.add(matched(4, 5, stamp_ns=500))
    panes = finished(accumulator, 500).panes[0]
    assert {key: held.n for key, held in panes.items()} == {OLDER: 32, (0, 25): 5}


# ---- what is taken back


def back(rows: MatchedClasses) -> MatchedClasses:
    return replace(rows, retracts=True)


@settings(max_examples=8)
@given(seeds, st.sets(st.integers(0, 29)), st.integers(1, 60), st.sets(st.integers(0, 60)))
def test_what_is_taken_back_leaves_the_statistics_of_the_rest(seed, chosen, fold_rows, fold_after):
    random = np.random.default_rng(seed)
    frames = drive(seed, 30)
    stream = [(float(i), rows) for i, rows in enumerate(frames)]
    rest = [rows for i, rows in enumerate(frames) if i not in chosen]
    for i in sorted(chosen):
        place = i + 0.5 + float(random.integers(30))
        stream.append((place, back(frames[i])))
        if random.random() < 0.5:
            other = replace(frames[i], label=(frames[i].label + 1) % CLASSES[frames[i].index])
            stream.append((place, other))
            rest.append(other)
    accumulator = ClassAccumulator(WINDOWS, fold_rows)
    for number, (_, rows) in enumerate(sorted(stream, key=lambda one: one[0])):
        accumulator.add(rows)
        fold_some(accumulator)
        if number in fold_after:
            fold(accumulator)
        if random.random() < 0.2:
            for _ in accumulator.move_on(int(random.integers(150))):
                pass
    found = {i: panes for i, panes in finished(accumulator, 150).panes.items() if panes}
    assert bits(found) == bits(expected_panes(rest, 150))


@pytest.mark.parametrize("fold_rows", [1, 50, 8192])
def test_where_all_is_taken_back_nothing_is_left(fold_rows):
    frames = drive(2, 40)
    accumulator = ClassAccumulator(WINDOWS, fold_rows)
    for rows in [*frames, *map(back, frames)]:
        accumulator.add(rows)
        fold_some(accumulator)
    assert not any(finished(accumulator, 200).panes.values())


@pytest.mark.parametrize("opinions", [1, 7])
def test_a_retraction_larger_than_a_step_is_cut_and_takes_every_row(opinions):
    large = matched(1, 2 * CHUNK_ROWS + 3, 2, opinions)
    small = matched(2, 5, 2, opinions)
    accumulator = ClassAccumulator(WINDOWS, 10)
    for rows in (large, small, back(large)):
        accumulator.add(rows)
    assert bits(finished(accumulator, 9).panes) == bits(expected_panes([small], 9))


def test_what_was_counted_before_time_began_anew_is_taken_from_what_is_older():
    accumulator = ClassAccumulator(WINDOWS, 10)
    frames = [matched(i, 8, stamp_ns=10_000 + i) for i in range(3)]
    accumulator.add(frames[0])
    finished(accumulator, 10_000)
    accumulator.add(frames[1])
    accumulator.step()
    accumulator.add(frames[2])
    accumulator.begin_anew()
    later = matched(4, 5, stamp_ns=500)
    accumulator.add(later)
    for rows in frames[:2]:
        accumulator.add(replace(back(rows), stamp_ns=None))
    expected = expected_panes([replace(frames[2], stamp_ns=None), later], 500)
    assert bits(finished(accumulator, 500).panes) == bits(expected)


# ---- what waits


@quick
@given(seeds, st.integers(0, 12), st.integers(1, 3))
def test_of_a_frame_only_what_came_is_kept_and_found_again(seed, n, opinions):
    random = np.random.default_rng(seed)
    values = random.dirichlet(np.ones(4), size=(n, opinions))
    has = random.random(n) < 0.5
    values[~has] = np.nan
    waiting = opinions_of(values, 0)
    left = np.flatnonzero(has)
    assert waiting.rows.tolist() == left.tolist()
    assert waiting.of(np.arange(n)).tolist() == has.tolist()
    chosen = random.permutation(left)
    rows = waiting.matched(chosen, np.zeros(chosen.size, np.int64), 7)
    assert rows is not None
    laws.assert_same(rows.opinions, values[chosen])


# ---- slices

LISTS = [("a", "b"), ("b", "a"), ("a", "b", "c"), ("d", "e")]


def test_streams_share_a_slice_if_their_classes_are_the_same_in_the_same_order():
    table = ClassSliceTable(by_stream=False, limit=8)
    places = [table.index(stream, names) for stream in "xyz" for names in LISTS]
    assert places == [0, 1, 2, 3] * 3
    assert [entry.label for entry in table.slices] == [TOTAL, *(f"total ({i})" for i in (2, 3, 4))]
    assert {entry.name for entry in table.slices} == {TOTAL}


def test_a_stream_has_a_slice_of_its_own_where_slices_are_by_stream():
    table = ClassSliceTable(by_stream=True, limit=8)
    places = [table.index(stream, LISTS[0]) for stream in ("x", "y", "x")]
    # The stream came again with other classes.
    places.append(table.index("x", LISTS[1]))
    assert places == [0, 1, 0, 2]
    assert [entry.label for entry in table.slices] == ["x", "y", "x (2)"]


@quick
@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("uvwxyz"), st.sampled_from(LISTS)), max_size=30),
)
def test_there_are_only_so_many_slices_and_classes_never_meet(by_stream, limit, asked):
    table = ClassSliceTable(by_stream, limit)
    first: dict[object, int | None] = {}
    for stream, names in asked:
        place = table.index(stream, names)
        key = (names, stream if by_stream else TOTAL)
        assert first.setdefault(key, place) == place
        if place is None:
            assert all(entry.class_names != names for entry in table.slices)
        else:
            assert table.slices[place].class_names == names
            assert table.slices[place].name in (key[1], OVERFLOW)
    own = [entry for entry in table.slices if not entry.overflow]
    assert len(own) <= limit
    assert len(table.slices) <= 2 * limit
    assert len({entry.label for entry in table.slices}) == len(table.slices)


def test_what_is_loaded_is_placed_even_if_there_is_no_room_and_in_the_same_order():
    full = ClassSliceTable(by_stream=True, limit=2)
    for stream, names in zip("xyzx", [LISTS[0], LISTS[0], LISTS[0], LISTS[2]], strict=True):
        full.index(stream, names)
    again = ClassSliceTable(by_stream=True, limit=2)
    assert [again.place(entry.class_names, entry.name) for entry in full.slices] == [0, 1, 2]
    assert again.slices == full.slices
    smaller = ClassSliceTable(by_stream=True, limit=1)
    assert [smaller.place(entry.class_names, entry.name) for entry in full.slices] == [0, 1, 1]
    # A list of classes that was never seen still has a place.
    assert smaller.place(LISTS[3], "q") == 2
    assert smaller.slices[2].overflow
