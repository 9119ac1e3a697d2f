"""Rows on their way into panes: what is counted where, beside which others and after which were
taken back, against sums made row by row."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.frame import MatchedClasses, MatchedRows, TrackIds
from monitor.statistics.class_statistics import ClassStatistics, observe_classes
from monitor.statistics.folding import CHUNK_ROWS, CHUNK_VALUES, ClassAccumulator, Slots, chunks
from monitor.statistics.observations import CHUNK
from monitor.statistics.windows import PaneKey, put
from tests import laws
from tests.calibration.matched_frames import (
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
    unfinished,
)
from tests.laws import costly
from tests.states import bits

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
    """What comes, some of it taken back later on or told anew; and what is counted in the end."""
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


@given(
    seed=seeds,
    tracks=st.sampled_from([0, 3, 9]),
    changed=st.sampled_from([None, True, False]),
    fold_rows=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.5]),
)
@example(seed=3, tracks=0, changed=None, fold_rows=8192, share=0.5)
@example(seed=7, tracks=9, changed=None, fold_rows=1, share=0.5)
def test_panes_are_the_sums_of_the_rows_that_were_not_taken_back_however_they_were_folded(
    seed, tracks, changed, fold_rows, share
):
    random = np.random.default_rng(seed)
    frames = drive(seed, 24, tracks=tracks, changed=changed)
    stream, rest = with_retractions(frames, random, share)
    if not tracks:
        # A replica may see the retraction of what another one has counted, or will count.
        stream = [stream[i] for i in random.permutation(len(stream))]
        stream = [rows.take(random.permutation(rows.n)) for rows in stream]
    clock = max((rows.stamp_ns for rows in frames if rows.stamp_ns is not None), default=0)
    accumulator = empty(fold_rows)
    for rows in stream:
        accumulator.add(rows)
        fold_some(accumulator)
        if random.random() < 0.1:
            fold(accumulator)
        # Event time may come any part of its way, at any moment, in the middle of a fold too.
        if random.random() < 0.2:
            list(accumulator.move_on(int(random.integers(clock + 1))))
    found = finished(accumulator, clock).panes
    assert_same_panes(found, expected_panes(rest, clock))
    if changed is False:
        held = (one for panes in found.values() for one in panes.values())
        assert share or all(one.recalibrated is one.raw for one in held)


@pytest.mark.parametrize("sizes", [(CHUNK,), (CHUNK + 1,), (3 * CHUNK + 5, 7), (1500, CHUNK, 1)])
def test_frames_larger_than_a_chunk_are_cut_and_lose_nothing(sizes):
    frames = [matched(i, n, stamp_ns=30 * i, tracks=n // 2) for i, n in enumerate(sizes)]
    clock = clock_of(frames)
    expected = expected_panes(frames, clock)
    for fold_rows in (1, 8192):
        assert_same_panes(accumulated(frames, fold_rows, clock).panes, expected)
    found = list(chunks(frames, Slots.plan(frames, WINDOWS, None)))
    assert all(0 < chunk.slot.size <= CHUNK for chunk in found)


@pytest.mark.parametrize("stage", ["covariance", "recalibrated_covariance"])
def test_a_covariance_that_is_singular_by_a_rounding_at_either_stage_is_left_out_of_both(stage):
    rows = matched(5, 30, tracks=12, slices=(0,))
    getattr(rows, stage)[[4, 17]] = 1.0
    clean = rows.take(np.delete(np.arange(30), [4, 17]))
    found, expected = accumulated([rows, rows]), accumulated([clean, clean])
    assert_same_panes(found.panes, expected.panes)
    assert found.panes[0][OLDER].raw.n == found.panes[0][OLDER].recalibrated.n == 56
    assert found.panes[0][OLDER].raw.pairs > 0


# ---- tracks


def of_tracks(*numbers: int) -> TrackIds:
    return TrackIds(np.array(numbers, np.uint64), np.ones(len(numbers), bool))


SEEN = replace(matched(3, 1, slices=(0,), stamp_ns=45), tracks=of_tracks(0))
UNKNOWN = TrackIds(np.zeros(1, np.uint64), np.zeros(1, bool))


@pytest.mark.parametrize(
    ("other", "pairs"),
    [
        *(({"stamp_ns": stamp}, pairs) for stamp, pairs in ((59, 1), (60, 0), (None, 0), (0, 0))),
        *(({"tracks": tracks}, 0) for tracks in (of_tracks(1), UNKNOWN, None)),
        *(({"source": 1}, 0), ({"slices": np.array([1])}, 0)),
        ({"space": UV, "slices": np.array([2])}, 0),
    ],
)
def test_rows_are_of_one_track_only_in_one_source_slice_and_pane(other, pairs):
    second = replace(SEEN, **other)
    # All in one chunk or in several, in one level or in another.
    for order in ([SEEN, second], [second, SEEN]):
        for fold_rows, clock in ((1, None), (1, 200), (8192, None)):
            panes = accumulated(order, fold_rows, clock).panes
            found = [one.raw.pairs for each in panes.values() for one in each.values()]
            assert sum(found) == pairs


@pytest.mark.parametrize("seed", range(3))
def test_with_its_clusters_another_accumulator_goes_on_as_if_it_were_the_same(seed):
    frames = drive(seed, 40, tracks=6, late=0.1)
    clock = clock_of(frames)
    stream, rest = with_retractions(frames, np.random.default_rng(seed), 0.4)
    half = len(stream) // 2
    first, second = accumulated(stream[:half], 20, clock), empty(20)
    second.panes, second.clock_ns = first.panes, first.clock_ns
    second.restore_clusters(first.clusters())
    for rows in stream[half:]:
        second.add(rows)
    assert_same_panes(finished(second, clock).panes, expected_panes(rest, clock))


# ---- running totals of what came in time


def test_late_imported_and_retracted_rows_change_no_running_total():
    here, late = matched(2, 30, stamp_ns=5), matched(1, 30, live=False)
    alone = accumulated([here])
    accumulator = accumulated([late, here, back(here)])
    add_panes(accumulator, 0, accumulated([matched(3, 30)]).panes[0])
    for slot in range(4):
        laws.assert_same(accumulator.live[XY].of(slot), alone.live[XY].of(slot))


# ---- class probabilities

COUNTS = {0: 3, 1: 3, 2: 10}


def classified(seed, n, index=0, opinions=1, stamp_ns=None) -> MatchedClasses:
    random = np.random.default_rng(seed)
    values = random.dirichlet(np.full(COUNTS[index], 0.4), size=(n, opinions))
    return MatchedClasses(index, values, random.integers(COUNTS[index], size=n), stamp_ns)


def class_panes(frames, clock_ns: int) -> dict[int, dict[PaneKey, ClassStatistics]]:
    """Row by row, each in the pane it belongs to, with the mean of its opinions added up."""
    found: dict[int, dict[PaneKey, ClassStatistics]] = {}
    for rows in frames:
        key = WINDOWS.place(rows.stamp_ns, clock_ns)
        for row in range(rows.n):
            opinions = rows.opinions[row]
            mean = sum(opinions[1:], opinions[0]) / len(opinions)
            several = rows.opinions[row : row + 1] if len(opinions) > 1 else None
            one = observe_classes(mean[None], rows.label[row : row + 1], several)
            put(found.setdefault(rows.index, {}), key, one)
    return found


@costly
@given(seeds, st.sets(st.integers(0, 14)), st.integers(1, 60))
@example(1, set(), 8192)
@example(2, set(range(15)), 10)
def test_class_panes_are_the_sums_of_the_rows_that_were_not_taken_back(seed, chosen, fold_rows):
    random = np.random.default_rng(seed)
    stream, rest = list[MatchedClasses](), list[MatchedClasses]()
    for number in range(15):
        stamp = None if random.random() < 0.1 else 5 * number - int(random.choice([0, 0, 0, 60]))
        n, index = int(random.integers(20)), int(random.integers(3))
        opinions = [1, 1, 4][number % 3]
        rows = classified([seed, number], n, index, opinions, stamp)
        other = replace(rows, label=(rows.label + 1) % COUNTS[index])
        taken = number in chosen
        stream += [rows, replace(rows, retracts=True), other] if taken else [rows]
        rest.append(other if taken else rows)
    accumulator = ClassAccumulator(WINDOWS, fold_rows)
    for i in random.permutation(len(stream)).tolist():
        accumulator.add(stream[i])
        fold_some(accumulator)
        if random.random() < 0.2:
            list(accumulator.move_on(int(random.integers(75))))
    fold(accumulator)
    list(accumulator.move_on(75))
    assert bits({i: panes for i, panes in accumulator.panes.items() if panes}) == bits(
        class_panes(rest, 75)
    )


def test_class_rows_beyond_a_step_are_cut_and_counted_and_taken_back_whole():
    n = 2 * CHUNK_ROWS + 3
    large, small = (classified(seed, rows, 2, 7) for seed, rows in ((1, n), (2, 5)))
    accumulator = ClassAccumulator(WINDOWS, 10)
    accumulator.add(large)
    accumulator.add(small)
    steps = 0
    while unfinished(accumulator):
        accumulator.step()
        steps += 1
    assert steps >= (n + 5) / min(CHUNK_ROWS, CHUNK_VALUES // 70)
    assert accumulator.panes[2][OLDER].n == n + 5
    accumulator.add(replace(large, retracts=True))
    fold(accumulator)
    assert bits(accumulator.panes) == bits(class_panes([small], 9))
