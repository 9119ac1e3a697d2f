"""Rows on their way into panes: when, in what order and beside which others they are folded
changes no bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.observations import CHUNK
from monitor.statistics.stage import observe
from tests import laws
from tests.calibration.matched_frames import (
    BINNING,
    OLDER,
    UV,
    WINDOWS,
    XY,
    accumulated,
    add_panes,
    assert_same_panes,
    clock_of,
    drive,
    empty,
    expected_panes,
    finished,
    fold,
    fold_some,
    matched,
    shuffled,
)

quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


# ---- what is counted


def test_folded_rows_are_the_statistics_of_each_slice_at_both_stages():
    rows = matched(1, 60)
    found = accumulated([rows]).panes
    assert set(found) == {0, 1}
    for i, panes in found.items():
        here = rows.slices == i
        assert set(panes) == {OLDER}
        raw = observe(XY, BINNING, rows.error[here], rows.covariance[here])
        laws.assert_same(panes[OLDER].raw, raw)
        recalibrated = observe(
            XY, BINNING, rows.recalibrated_error[here], rows.recalibrated_covariance[here]
        )
        laws.assert_same(panes[OLDER].recalibrated, recalibrated)


@pytest.mark.parametrize("fold_rows", [1, 10, 100, 8192])
@pytest.mark.parametrize("seed", range(3))
def test_panes_are_the_statistics_of_their_rows_however_many_are_folded_at_once(seed, fold_rows):
    frames = drive(seed, 80)
    clock = clock_of(frames)
    assert_same_panes(accumulated(frames, fold_rows, clock).panes, expected_panes(frames, clock))


@pytest.mark.parametrize("sizes", [(CHUNK + 1,), (3 * CHUNK + 5, 7), (1500, 1500, CHUNK, 1)])
@pytest.mark.parametrize("changed", [False, True])
def test_frames_larger_than_a_chunk_are_cut_and_lose_nothing(sizes, changed):
    frames = [
        matched(i, n, changed=changed, stamp_ns=30 * i, tracks=n // 2) for i, n in enumerate(sizes)
    ]
    clock = clock_of(frames)
    for fold_rows in (1, 8192):
        assert_same_panes(
            accumulated(frames, fold_rows, clock).panes, expected_panes(frames, clock)
        )


@quick
@given(seeds, st.sets(st.integers(0, 29)), st.integers(1, 60))
def test_neither_the_order_of_frames_and_rows_nor_the_moment_of_folding_matters(
    seed, fold_after, fold_rows
):
    frames = drive(seed, 30)
    clock = clock_of(frames)
    at_once = accumulated(frames, 8192, clock)
    random = np.random.default_rng(seed)
    in_steps = empty(fold_rows)
    for i, number in enumerate(random.permutation(30).tolist()):
        in_steps.add(shuffled(frames[number], random))
        fold_some(in_steps)
        if i in fold_after:
            fold(in_steps)
        # Event time may come any part of its way, at any moment, in the middle of a fold too.
        if random.random() < 0.2:
            for _ in in_steps.move_on(int(random.integers(clock))):
                pass
    assert_same_panes(finished(in_steps, clock).panes, at_once.panes)


@pytest.mark.parametrize("seed", range(40))
def test_any_partition_and_order_of_merging_with_retractions_gives_the_same_panes(seed):
    random = np.random.default_rng([seed, 1])
    frames = drive(seed, 24)
    clock = clock_of(frames)
    taken_back = set(random.choice(24, 7, replace=False).tolist())
    # A replica may see the retraction of what another one has counted, or will count.
    stream = [(rows, 1) for rows in frames] + [(frames[i], -1) for i in sorted(taken_back)]
    owner = random.integers(random.integers(1, 8), size=len(stream))
    replicas = []
    for replica in np.unique(owner).tolist():
        own = [stream[i] for i in random.permutation(np.flatnonzero(owner == replica)).tolist()]
        upto = int(random.integers(clock + 1))
        found = accumulated([rows for rows, sign in own if sign > 0], 30, upto)
        assert found.clock_ns is not None
        for index, panes in expected_panes([r for r, s in own if s < 0], upto, -1).items():
            add_panes(found, index, panes)
        replicas.append(found)
    while len(replicas) > 1:
        one, two = (replicas.pop(int(random.integers(len(replicas)))) for _ in range(2))
        for index, panes in two.panes.items():
            add_panes(one, index, panes)
        replicas.append(finished(one, two.clock_ns))
    kept = [rows for i, rows in enumerate(frames) if i not in taken_back]
    assert_same_panes(finished(replicas[0], clock).panes, expected_panes(kept, clock))


def test_what_a_recalibrator_leaves_unchanged_is_observed_once():
    accumulator = accumulated([matched(1, 20, changed=False, slices=(0,))])
    (statistics,) = accumulator.panes[0].values()
    assert statistics.recalibrated is statistics.raw


def test_two_spaces_are_folded_apart():
    found = accumulated(
        [
            matched(1, 20, changed=False, slices=(0,)),
            matched(2, 20, changed=False, slices=(2,), space=UV),
            matched(3, 20, slices=(0,)),
        ]
    )
    assert {i: panes[OLDER].raw.space for i, panes in found.panes.items()} == {0: XY, 2: UV}
    assert {i: panes[OLDER].raw.n for i, panes in found.panes.items()} == {0: 40, 2: 20}


@pytest.mark.parametrize("stage", ["raw", "recalibrated"])
def test_a_covariance_that_is_singular_by_a_rounding_at_either_stage_is_left_out_of_both(stage):
    rows = matched(5, 30, tracks=12, slices=(0,))
    bad = np.full((2, 2), 1.0)
    spoiled = rows.covariance if stage == "raw" else rows.recalibrated_covariance
    spoiled[[4, 17]] = bad
    kept = np.delete(np.arange(30), [4, 17])
    assert rows.tracks is not None
    clean = replace(
        rows,
        slices=rows.slices[kept],
        error=rows.error[kept],
        covariance=rows.covariance[kept],
        recalibrated_error=rows.recalibrated_error[kept],
        recalibrated_covariance=rows.recalibrated_covariance[kept],
        tracks=rows.tracks.take(kept),
    )
    found, expected = accumulated([rows, rows]), accumulated([clean, clean])
    assert_same_panes(found.panes, expected.panes)
    assert found.panes[0][OLDER].raw.n == found.panes[0][OLDER].recalibrated.n == 56
    assert found.panes[0][OLDER].raw.pairs > 0


def test_rows_that_all_are_left_out_make_no_pane():
    rows = matched(5, 4, changed=False, slices=(0,))
    rows.covariance[:] = 1.0
    assert_same_panes(accumulated([rows]).panes, {})


# ---- event time


def test_what_is_folded_while_event_time_moves_on_lies_in_the_panes_of_the_later_time():
    accumulator = empty()
    accumulator.add(matched(1, 30, stamp_ns=5))
    accumulator.step()
    for _ in accumulator.move_on(90):
        pass
    fold(accumulator)
    assert {key for panes in accumulator.panes.values() for key in panes} == {(1, 0)}


def test_after_a_jump_all_that_came_before_it_is_older_than_every_window():
    folded, begun, waits = (matched(i, 30, stamp_ns=10_000 + i) for i in range(3))
    accumulator = accumulated([folded], clock_ns=10_000)
    accumulator.add(begun)
    accumulator.step()
    accumulator.add(waits)
    accumulator.begin_anew()
    accumulator.add(matched(9, 30, stamp_ns=500))
    finished(accumulator, 500)
    assert accumulator.clock_ns == 500
    for panes in accumulator.panes.values():
        assert set(panes) == {OLDER, (0, 25)}
    assert sum(panes[OLDER].raw.n for panes in accumulator.panes.values()) == 90


@pytest.mark.parametrize("seed", range(3))
def test_a_slice_has_a_bounded_number_of_panes(seed):
    frames = drive(seed, 400, late=0.5, longest=2)
    accumulator, most = empty(20), 0
    for rows in frames:
        accumulator.add(rows)
        if rows.stamp_ns is not None and rows.live:
            finished(accumulator, rows.stamp_ns)
            most = max(most, *map(len, accumulator.panes.values()), 0)
    assert most <= 3 * (WINDOWS.panes + 1) + 1


def test_moving_on_to_where_it_is_changes_nothing():
    accumulator = accumulated(drive(3, 40), clock_ns=100)
    before = dict(accumulator.panes)
    for clock in (None, 100, 50):
        assert list(accumulator.move_on(clock)) == []
    assert accumulator.clock_ns == 100
    assert all(accumulator.panes[i] is panes for i, panes in before.items())
