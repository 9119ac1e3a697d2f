"""What was counted and is then taken back: the statistics are those of the rest, to the last bit,
whatever is folded when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.frame import MatchedRows
from tests.calibration.matched_frames import (
    OLDER,
    accumulated,
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
)
from tests.states import bits

quick = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)


def back(rows: MatchedRows) -> MatchedRows:
    return replace(rows, live=False, retracts=True)


def revised(rows: MatchedRows, seed: int) -> MatchedRows:
    """The same detections with another truth."""
    moved = rows.error + np.random.default_rng([seed, 7]).normal(size=rows.error.shape)
    made = moved if rows.unchanged else rows.recalibrated_error + (moved - rows.error)
    return replace(rows, error=moved, recalibrated_error=made, live=False)


def with_retractions(
    frames: Sequence[MatchedRows], random: np.random.Generator, share: float
) -> tuple[list[MatchedRows], list[MatchedRows]]:
    """What comes, and what of it is counted in the end: some frames are taken back later on, and
    some of these told anew, some of these once more."""
    places: list[tuple[float, MatchedRows]] = []
    rest: list[MatchedRows] = []
    for number, rows in enumerate(frames):
        place, stands = float(number), rows
        places.append((place, stands))
        while random.random() < share:
            place += 0.5 + float(random.integers(len(frames)))
            places.append((place, back(stands)))
            if random.random() < 0.5:
                break
            stands = revised(stands, number)
            places.append((place, stands))
        else:
            rest.append(stands)
    return [rows for _, rows in sorted(places, key=lambda one: one[0])], rest


@quick
@given(
    seeds,
    st.sampled_from([0, 3, 9]),
    st.sampled_from([None, True, False]),
    st.integers(1, 200),
    st.sets(st.integers(0, 60), max_size=8),
)
def test_what_is_taken_back_leaves_the_statistics_of_the_rest(
    seed, tracks, changed, fold_rows, fold_after
):
    random = np.random.default_rng(seed)
    frames = drive(seed, 24, tracks=tracks, changed=changed)
    stream, rest = with_retractions(frames, random, 0.5)
    clock = max((rows.stamp_ns for rows in frames if rows.stamp_ns is not None), default=0)
    accumulator = empty(fold_rows)
    for number, rows in enumerate(stream):
        accumulator.add(rows)
        fold_some(accumulator)
        if number in fold_after:
            fold(accumulator)
        # Event time may come any part of its way, at any moment, in the middle of a fold too.
        if random.random() < 0.2:
            for _ in accumulator.move_on(int(random.integers(clock + 1))):
                pass
    assert_same_panes(finished(accumulator, clock).panes, expected_panes(rest, clock))


@pytest.mark.parametrize("fold_rows", [1, 40, 8192])
def test_the_pairs_of_tracks_are_those_of_the_rest(fold_rows):
    """Enough tracks of enough rows that pairs are there to be taken away."""
    frames = [
        matched([1, i], 12, slices=(0,), stamp_ns=i % 20, tracks=12, changed=i % 2 == 0)
        for i in range(30)
    ]
    stream, rest = with_retractions(frames, np.random.default_rng(5), 0.4)
    assert len(rest) < 27
    found = accumulated(stream, fold_rows, 19).panes
    assert_same_panes(found, expected_panes(rest, 19))
    (pane,) = found[0].values()
    assert 1000 < pane.raw.pairs == pane.recalibrated.pairs
    assert pane.raw.pairs < expected_panes(frames, 19)[0][0, 0].raw.pairs


@pytest.mark.parametrize("tracks", [0, 5])
@pytest.mark.parametrize("fold_rows", [1, 50, 8192])
def test_where_all_is_taken_back_nothing_is_left(fold_rows, tracks):
    frames = drive(3, 40, tracks=tracks)
    found = accumulated([*frames, *map(back, frames)], fold_rows, clock_of(frames))
    assert all(not panes for panes in found.panes.values())


def test_some_rows_of_a_frame_may_be_taken_back_by_themselves():
    frames = [matched([2, i], 20, tracks=20, stamp_ns=5 + i) for i in range(3)]
    parts = [frames[1].take(part) for part in (slice(0, 7), slice(7, 20))]
    assert_same_panes(
        accumulated([*frames, back(parts[0])], 1, 7).panes,
        accumulated([frames[0], parts[1], frames[2]], 1, 7).panes,
    )


def test_rows_that_come_after_a_retraction_are_of_the_tracks_that_are_left():
    frames = [matched([4, i], 10, slices=(0,), tracks=10, stamp_ns=3) for i in range(4)]
    stream = [*frames[:2], back(frames[0]), frames[2], back(frames[1]), frames[3]]
    for fold_rows in (1, 15, 8192):
        found = accumulated(stream, fold_rows, 3).panes
        assert_same_panes(found, expected_panes(frames[2:], 3))


# ---- what never falls, and what is of another time


def test_the_running_totals_of_what_came_in_time_stay():
    frames = [matched(i, 30, stamp_ns=i) for i in range(4)]
    before, after = empty(), empty()
    for rows in frames:
        before.add(rows)
        after.add(rows)
    for rows in frames[:2]:
        after.add(back(rows))
    space = frames[0].space
    totals = [finished(one, 4).totals(space) for one in (before, after)]
    for key in range(4):
        assert bits(totals[0].of(key)) == bits(totals[1].of(key))
    assert counted(after) == 60


@quick
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


def test_tracks_of_before_time_began_anew_keep_their_pairs_and_nothing_else():
    frames = [matched([6, i], 8, slices=(0,), tracks=8, stamp_ns=1) for i in range(3)]
    accumulator = accumulated(frames, 1, 1)
    accumulator.begin_anew()
    accumulator.add(replace(back(frames[0]), stamp_ns=None))
    found = finished(accumulator, 1).panes[0][OLDER].raw
    rest = expected_panes([replace(rows, stamp_ns=None) for rows in frames[1:]], 1)[0][OLDER].raw
    assert (found.n, rest.n) == (16, 16)
    assert found.pairs > rest.pairs
    # Those of the rows among each other; a frame has none.
    assert found.pairs == accumulated(frames, 1, 1).panes[0][0, 0].raw.pairs


# ---- going on from what was kept


@pytest.mark.parametrize("seed", range(4))
def test_with_its_clusters_another_accumulator_goes_on_as_if_it_were_the_same(seed):
    frames = drive(seed, 40, tracks=6, late=0.1)
    clock = clock_of(frames)
    stream, rest = with_retractions(frames, np.random.default_rng(seed), 0.4)
    half = len(stream) // 2
    first = accumulated(stream[:half], 20, clock)
    second = empty(20)
    second.panes, second.clock_ns = first.panes, first.clock_ns
    second.restore_clusters(first.clusters())
    for rows in stream[half:]:
        second.add(rows)
    assert_same_panes(finished(second, clock).panes, expected_panes(rest, clock))
    for space, state in first.clusters().items():
        wrong = replace(state, axes=state.axes + 1)
        with pytest.raises(ValueError, match=rf"{state.axes + 1} axes, where .* have {state.axes}"):
            second.restore_clusters({space: wrong})
