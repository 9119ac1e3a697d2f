"""A fold in short steps: what waits, what is due, and that all slices change together."""

from __future__ import annotations

from monitor.statistics.folding import SliceAccumulator
from tests.calibration.matched_frames import (
    SLICES,
    accumulated,
    add_panes,
    assert_same_panes,
    counted,
    empty,
    fold,
    fold_some,
    matched,
    unfinished,
)


def live_rows(accumulator: SliceAccumulator) -> int:
    """Raw rows in the running totals."""
    return sum(
        int(accumulator.totals(space).of(2 * index).n[-1].sum())
        for space, slices in SLICES.items()
        for index in slices
    )


def test_rows_wait_until_there_are_enough_of_them():
    accumulator = empty(10)
    accumulator.add(matched(1, 9, changed=False))
    assert (accumulator.due, accumulator.waiting) == (False, 9)
    accumulator.add(matched(2, 0, changed=False))
    assert (accumulator.due, accumulator.waiting) == (False, 9)
    accumulator.add(matched(3, 1))
    assert (accumulator.due, accumulator.waiting) == (True, 10)
    assert accumulator.panes == {}
    fold(accumulator)
    assert (accumulator.due, accumulator.waiting) == (False, 0)
    assert counted(accumulator) == 10


def test_a_fold_of_nothing_changes_nothing():
    accumulator = empty()
    fold(accumulator)
    assert (accumulator.panes, accumulator.live) == ({}, {})


def test_rows_are_unfinished_from_their_arrival_to_the_last_step_of_their_fold():
    accumulator = empty(10)
    assert not unfinished(accumulator)
    accumulator.step()
    assert not unfinished(accumulator)
    accumulator.add(matched(1, 30))
    assert (unfinished(accumulator), accumulator.waiting) == (True, 30)
    while unfinished(accumulator):
        assert counted(accumulator) in (0, 30)
        accumulator.step()
        assert accumulator.waiting == 0
    assert counted(accumulator) == live_rows(accumulator) == 30


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


def test_what_is_folded_at_the_end_of_a_time_is_in_the_running_totals_as_well():
    accumulator = empty()
    accumulator.add(matched(1, 40, stamp_ns=5))
    while counted(accumulator) == 0:
        accumulator.step()
    accumulator.begin_anew()
    fold(accumulator)
    assert live_rows(accumulator) == counted(accumulator) == 40


def test_what_comes_to_a_slice_while_it_is_folded_is_kept():
    accumulator = empty()
    accumulator.add(matched(1, 40))
    for _ in range(3):
        accumulator.step()
    elsewhere = accumulated([matched(2, 30)]).panes
    for index, panes in elsewhere.items():
        add_panes(accumulator, index, panes)
    fold(accumulator)
    assert_same_panes(accumulator.panes, accumulated([matched(1, 40), matched(2, 30)]).panes)


def test_a_fold_is_begun_only_when_it_is_due_and_then_goes_on():
    accumulator = empty(10)
    accumulator.add(matched(1, 9, changed=False))
    fold_some(accumulator)
    assert accumulator.waiting == 9
    accumulator.add(matched(2, 1, changed=False))
    fold_some(accumulator)
    assert (accumulator.waiting, unfinished(accumulator)) == (0, True)
    # Few rows that came meanwhile wait for the next fold.
    accumulator.add(matched(3, 2, changed=False))
    for _ in range(20):
        fold_some(accumulator)
    assert accumulator.waiting == 2
    assert counted(accumulator) == 10


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
