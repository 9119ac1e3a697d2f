"""Rows on their way into panes: what is counted where, beside which others and after which were
taken back, against sums made row by row."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.frame import MatchedClasses, MatchedRows, TrackIds
from monitor.statistics.bins import StageBins
from monitor.statistics.class_statistics import (
    ClassStatistics,
    no_class_statistics,
    observe_classes,
)
from monitor.statistics.clusters import LARGEST
from monitor.statistics.folding import CHUNK_ROWS, CHUNK_VALUES, ClassAccumulator, Slots, chunks
from monitor.statistics.observations import CHUNK
from monitor.statistics.stage import SliceStatistics
from monitor.statistics.windows import PaneKey
from tests import laws
from tests.calibration.matched_frames import (
    BINNING,
    EDGES,
    OLDER,
    SLICES,
    UV,
    WINDOWS,
    XY,
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
    shuffled,
    unfinished,
)
from tests.laws import costly
from tests.states import bits
from tests.statistics import oracle
from tests.statistics.oracle import chi_square, determinant, mahalanobis

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


@given(
    seed=seeds,
    tracks=st.sampled_from([0, 3, 9]),
    changed=st.sampled_from([None, True, False]),
    fold_rows=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.5]),
)
@example(seed=3, tracks=0, changed=None, fold_rows=8192, share=0.5)
@example(seed=7, tracks=9, changed=False, fold_rows=10, share=0.0)
@example(seed=7, tracks=9, changed=None, fold_rows=1, share=0.5)
def test_panes_are_the_sums_of_the_rows_that_were_not_taken_back_however_they_were_folded(
    seed, tracks, changed, fold_rows, share
):
    random = np.random.default_rng(seed)
    frames = drive(seed, 24, tracks=tracks, changed=changed)
    stream, rest = with_retractions(frames, random, share)
    if not tracks:
        # A replica may see the retraction of what another one has counted, or will count.
        stream = [shuffled(stream[i], random) for i in random.permutation(len(stream))]
    clock = max((rows.stamp_ns for rows in frames if rows.stamp_ns is not None), default=0)
    accumulator = empty(fold_rows)
    for rows in stream:
        accumulator.add(rows)
        fold_some(accumulator)
        if random.random() < 0.1:
            fold(accumulator)
        # Event time may come any part of its way, at any moment, in the middle of a fold too.
        if random.random() < 0.2:
            for _ in accumulator.move_on(int(random.integers(clock + 1))):
                pass
    assert_same_panes(finished(accumulator, clock).panes, expected_panes(rest, clock))


@pytest.mark.parametrize(
    "sizes", [(CHUNK,), (CHUNK + 1,), (3 * CHUNK + 5, 7), (1500, 1500, CHUNK, 1)]
)
@pytest.mark.parametrize("changed", [False, True])
def test_frames_larger_than_a_chunk_are_cut_and_lose_nothing(sizes, changed):
    frames = [
        matched(i, n, changed=changed, stamp_ns=30 * i, tracks=n // 2) for i, n in enumerate(sizes)
    ]
    clock = clock_of(frames)
    expected = expected_panes(frames, clock)
    for fold_rows in (1, 8192):
        assert_same_panes(accumulated(frames, fold_rows, clock).panes, expected)
    found = list(chunks(frames, Slots.plan(frames, WINDOWS, None)))
    assert all(0 < chunk.slot.size <= CHUNK for chunk in found)
    assert len(found) == -(-sum(sizes) // CHUNK) or 1500 in sizes


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


def test_where_all_is_taken_back_or_some_rows_of_a_frame_are_the_rest_is_left():
    frames = drive(3, 40, tracks=5)
    found = accumulated([*frames, *map(back, frames)], 50, clock_of(frames))
    assert all(not panes for panes in found.panes.values())
    frames = [matched([2, i], 20, tracks=20, stamp_ns=5 + i) for i in range(3)]
    parts = [frames[1].take(part) for part in (slice(0, 7), slice(7, 20))]
    assert_same_panes(
        accumulated([*frames, back(parts[0])], 1, 7).panes,
        accumulated([frames[0], parts[1], frames[2]], 1, 7).panes,
    )


# ---- tracks


def of_tracks(*numbers: int) -> TrackIds:
    return TrackIds(np.array(numbers, np.uint64), np.ones(len(numbers), bool))


def pairs_of(frames: Sequence[MatchedRows], clock_ns=None) -> int:
    found = accumulated(frames, 1, clock_ns).panes
    return sum(one.raw.pairs for panes in found.values() for one in panes.values())


SEEN = matched(3, 1, slices=(0,), stamp_ns=45, tracks=1)
SEEN = replace(SEEN, tracks=of_tracks(0))


@pytest.mark.parametrize(
    ("other", "pairs"),
    [
        (SEEN, 1),
        (replace(SEEN, stamp_ns=59), 1),
        (replace(SEEN, source=1), 0),
        (replace(SEEN, slices=np.array([1])), 0),
        (replace(SEEN, stamp_ns=60), 0),
        (replace(SEEN, stamp_ns=None), 0),
        (replace(SEEN, stamp_ns=0), 0),
        (replace(SEEN, tracks=of_tracks(1)), 0),
        (replace(SEEN, tracks=TrackIds(np.zeros(1, np.uint64), np.zeros(1, bool))), 0),
        (replace(SEEN, tracks=None), 0),
        (replace(SEEN, space=UV, slices=np.array([2])), 0),
    ],
    ids=[
        "same",
        "later in its pane",
        "other source",
        "other slice",
        "other pane",
        "no stamp",
        "stamp 0",
        "other number",
        "on no track",
        "untracked",
        "other space",
    ],
)
def test_rows_are_of_one_track_only_in_one_source_slice_and_pane(other, pairs):
    assert pairs_of([SEEN, other]) == pairs_of([other, SEEN]) == pairs
    # All in one chunk or in several, in one level or in another.
    assert pairs_of([SEEN, other], clock_ns=200) == pairs
    together = accumulated([SEEN, other], 8192).panes
    assert sum(one.raw.pairs for panes in together.values() for one in panes.values()) == pairs


def test_a_track_is_followed_over_folds_and_beside_late_labels_and_loses_the_pairs_taken_back():
    frames = [
        replace(matched(i, 5, slices=(0,), stamp_ns=10_000 + i), tracks=of_tracks(*range(5)))
        for i in range(20)
    ]
    assert pairs_of(frames) == 5 * 20 * 19 // 2
    late = [replace(rows, stamp_ns=500 + i, live=False) for i, rows in enumerate(frames)]
    mixed = [rows for both in zip(frames, late, strict=True) for rows in both]
    assert pairs_of(mixed, 10_019) == 2 * 5 * 20 * 19 // 2
    for fold_rows in (1, 15, 8192):
        stream = [*frames[:2], back(frames[0]), frames[2], back(frames[1]), *frames[3:]]
        found = accumulated(stream, fold_rows, 10_019).panes
        assert_same_panes(found, expected_panes(frames[2:], 10_019))
        assert found[0][0, 500].raw.pairs == 5 * 18 * 17 // 2


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
    for space, state in first.clusters().items():
        wrong = replace(state, axes=state.axes + 1)
        with pytest.raises(ValueError, match=rf"{state.axes + 1} axes, where .* have {state.axes}"):
            second.restore_clusters({space: wrong})


# A promotion in the middle of a track.


TRACKS = 5


def seen_by_tracks(changed: Sequence[bool]) -> list[MatchedRows]:
    """A frame for each: all tracks in it, in one pane."""
    found = []
    for number, change in enumerate(changed):
        rows = matched(number, TRACKS, slices=(0,), stamp_ns=number, changed=change)
        numbers = np.random.default_rng(number).permutation(TRACKS)
        found.append(replace(rows, tracks=of_tracks(*numbers)))
    return found


def x_of(error: Sequence[float], covariance: Sequence[Sequence[float]]) -> list[float]:
    """The NEES of x, y and both over their degrees of freedom, cut where an outlier is all."""
    alone = [error[i] ** 2 / covariance[i][i] for i in range(2)]
    return [min(nees, LARGEST) for nees in (*alone, mahalanobis(covariance, error) / 2)]


def assert_pairs(statistics: SliceStatistics, frames: Sequence[MatchedRows]) -> None:
    """Both stages hold what plain loops over all pairs of rows of a track make."""
    tracks = [int(id) + 1 for rows in frames if rows.tracks is not None for id in rows.tracks.id]
    stages = (
        (statistics.raw, [(rows.error, rows.covariance) for rows in frames]),
        (
            statistics.recalibrated,
            [(rows.recalibrated_error, rows.recalibrated_covariance) for rows in frames],
        ),
    )
    for stage, estimates in stages:
        x = [
            x_of(error[i].tolist(), covariance[i].tolist())
            for error, covariance in estimates
            for i in range(TRACKS)
        ]
        for axis in range(3):
            count, cross, beside = oracle.pairs(tracks, [row[axis] for row in x])
            assert stage.pairs == count == TRACKS * len(frames) * (len(frames) - 1) // 2
            # x lies on a grid of 2^-16.
            assert stage.cross[axis] == pytest.approx(cross, rel=1e-3, abs=1e-3)
            assert stage.beside[axis] == pytest.approx(beside, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("fold_rows", [1, 7, 8192])
@pytest.mark.parametrize(
    "changed",
    [
        [False] * 6,
        [True] * 3 + [False] * 3,
        [False] * 3 + [True] * 3,
        [True, False] * 3,
        [True] + [False] * 9,
    ],
    ids=["never", "taken back", "promoted", "in turns", "long ago"],
)
def test_a_track_that_was_recalibrated_in_some_frames_has_the_pairs_of_what_each_was(
    changed, fold_rows
):
    frames = seen_by_tracks(changed)
    (statistics,) = accumulated(frames, fold_rows, clock_of(frames)).panes[0].values()
    assert_pairs(statistics, frames)
    # The raw stage knows nothing of it.
    plain = seen_by_tracks([False] * len(changed))
    (unchanged,) = accumulated(plain, fold_rows, clock_of(plain)).panes[0].values()
    laws.assert_same(statistics.raw, unchanged.raw)
    assert unchanged.recalibrated is unchanged.raw


# ---- running totals of what came in time


def slow_totals(frames: Sequence[MatchedRows], slot: int) -> dict[tuple[int, int], list[float]]:
    """n, Σσ², Σ error², ΣNEES and counts within each τ, by axis and export bin; plain loops."""
    found: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0] * (4 + len(BINNING.tau)))
    for rows in frames:
        k, joint = rows.space.k, list(rows.space.joint)
        for row in range(rows.n) if rows.live else ():
            if rows.slices[row] != slot // 2:
                continue
            error = (rows.recalibrated_error if slot % 2 else rows.error)[row].tolist()
            covariance = (rows.recalibrated_covariance if slot % 2 else rows.covariance)[row]
            for axis in range(k + 1):
                which = joint if axis == k else [axis]
                block = covariance[np.ix_(which, which)].tolist()
                deviation = determinant(block) ** (1 / (2 * len(which)))
                nees = mahalanobis(block, [error[i] for i in which])
                cell = found[axis, sum(deviation >= edge for edge in EDGES.edges.tolist())]
                within = [float(nees <= chi_square(tau, len(which))) for tau in BINNING.tau]
                square = 0.0 if axis == k else error[axis] ** 2
                for i, value in enumerate([1.0, deviation**2, square, nees, *within]):
                    cell[i] += value
    return found


def assert_totals(totals: StageBins, slow: dict[tuple[int, int], list[float]], k: int) -> None:
    for axis in range(k + 1):
        for place in range(EDGES.count):
            n, variance, square, nees, *within = slow.get((axis, place), [0.0] * 6)
            assert totals.n[axis, place] == n
            near = partial(pytest.approx, rel=1e-6, abs=1e-6)
            if axis < k:
                assert totals.variance[axis, place] == near(variance)
                assert totals.squared_error[axis, place] == near(square)
            else:
                assert totals.nees[place] == near(nees)
                assert totals.within[place].tolist() == within


@pytest.mark.parametrize("fold_rows", [1, 50])
def test_running_totals_are_those_of_plain_loops_over_the_rows_that_came_in_time(fold_rows):
    frames = drive(11, 60, tracks=5)
    found = accumulated(frames, fold_rows, clock_of(frames))
    for space, slices in SLICES.items():
        own = [rows for rows in frames if rows.space == space]
        for slot in (2 * index + stage for index in slices for stage in (0, 1)):
            assert_totals(found.live[space].of(slot), slow_totals(own, slot), space.k)


def test_running_totals_never_fall_whatever_happens_to_the_panes():
    frames = drive(12, 120)
    accumulator = empty(30)
    seen: list[dict[int, StageBins]] = []
    for number, rows in enumerate(frames):
        accumulator.add(rows)
        fold_some(accumulator)
        if number % 10 == 0 and rows.stamp_ns is not None:
            finished(accumulator, rows.stamp_ns)
        if number % 40 == 39:
            accumulator.begin_anew()
            for index, panes in expected_panes(frames[:number], None, -1).items():
                add_panes(accumulator, index, panes)
        totals = accumulator.live.get(XY)
        if totals is not None:
            seen.append({slot: totals.of(slot) for slot in range(10)})
    assert seen[-1][0].n.sum() > 0
    for before, after in pairwise(seen):
        for slot, bins in before.items():
            for name in ("n", "variance", "squared_error", "nees", "within"):
                assert (getattr(after[slot], name) >= getattr(bins, name)).all()


def test_only_what_came_in_time_is_in_the_running_totals_and_stays_when_it_is_taken_back():
    here, late = matched(2, 30, stamp_ns=5), matched(1, 30, live=False)
    alone = accumulated([here])
    accumulator = accumulated([late, here, back(here)])
    assert {key: held.raw.n for key, held in accumulator.panes[0].items()}.keys() == {OLDER}
    add_panes(accumulator, 0, accumulated([matched(3, 30)]).panes[0])
    for slot in range(4):
        laws.assert_same(accumulator.live[XY].of(slot), alone.live[XY].of(slot))
    assert counted(accumulated([late, here])) == 60


# ---- class probabilities


COUNTS = {0: 3, 1: 3, 2: 10}
Expected = dict[int, dict[PaneKey, ClassStatistics]]


def classified(seed, n, index=0, opinions=1, stamp_ns=None) -> MatchedClasses:
    random = np.random.default_rng(seed)
    classes = COUNTS[index]
    values = random.dirichlet(np.full(classes, 0.4), size=(n, opinions))
    return MatchedClasses(index, values, random.integers(classes, size=n), stamp_ns)


def classified_drive(seed, frames) -> list[MatchedClasses]:
    """Frames of all slices in the course of time, some late, some without a stamp."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        late = int(random.integers(100)) if random.random() < 0.2 else 0
        stamp = None if random.random() < 0.1 else max(0, 5 * number - late)
        n, index = int(random.integers(0, 20)), int(random.integers(3))
        found.append(classified([seed, number], n, index, int(random.choice([1, 1, 4])), stamp))
    return found


def one_row(rows: MatchedClasses, row: int) -> ClassStatistics:
    """Of one row, with the mean of its opinions added up one after the other."""
    opinions = rows.opinions[row]
    mean = sum(opinions[1:], opinions[0]) / len(opinions)
    several = rows.opinions[row : row + 1] if len(opinions) > 1 else None
    return observe_classes(mean[None], rows.label[row : row + 1], several)


def class_panes(frames: Sequence[MatchedClasses], clock_ns: int) -> Expected:
    """Row by row, each in the pane it belongs to once event time has come so far."""
    found: Expected = {}
    for rows in frames:
        key = WINDOWS.place(rows.stamp_ns, clock_ns)
        for row in range(rows.n):
            panes = found.setdefault(rows.index, {})
            zero = no_class_statistics(COUNTS[rows.index])
            panes[key] = panes.get(key, zero).merge(one_row(rows, row))
    return found


def classes_finished(
    accumulator: ClassAccumulator, clock_ns: int | None = None
) -> ClassAccumulator:
    fold(accumulator)
    for _ in accumulator.move_on(clock_ns):
        pass
    return accumulator


def classes_back(rows: MatchedClasses) -> MatchedClasses:
    return replace(rows, retracts=True)


@costly
@given(seeds, st.sets(st.integers(0, 14)), st.integers(1, 60))
@example(1, set(), 8192)
@example(2, set(range(15)), 10)
def test_class_panes_are_the_sums_of_the_rows_that_were_not_taken_back(seed, chosen, fold_rows):
    random = np.random.default_rng(seed)
    frames = classified_drive(seed, 15)
    stream = list(frames)
    rest = [rows for i, rows in enumerate(frames) if i not in chosen]
    for i in sorted(chosen):
        stream.append(classes_back(frames[i]))
        if random.random() < 0.5:
            other = replace(frames[i], label=(frames[i].label + 1) % COUNTS[frames[i].index])
            stream.append(other)
            rest.append(other)
    accumulator = ClassAccumulator(WINDOWS, fold_rows)
    for number in random.permutation(len(stream)).tolist():
        accumulator.add(stream[number])
        fold_some(accumulator)
        if random.random() < 0.1:
            fold(accumulator)
        if random.random() < 0.2:
            for _ in accumulator.move_on(int(random.integers(150))):
                pass
    found = {i: panes for i, panes in classes_finished(accumulator, 150).panes.items() if panes}
    assert bits(found) == bits(class_panes(rest, 150))


@pytest.mark.parametrize("opinions", [1, 7])
def test_class_rows_beyond_a_step_are_cut_and_counted_and_taken_back_whole(opinions):
    n = 2 * CHUNK_ROWS + 3
    large, small = classified(1, n, 2, opinions), classified(2, 5, 2, opinions)
    accumulator = ClassAccumulator(WINDOWS, 10)
    for rows in (large, small):
        accumulator.add(rows)
    steps = 0
    while unfinished(accumulator):
        accumulator.step()
        steps += 1
    assert steps >= (n + 5) / min(CHUNK_ROWS, CHUNK_VALUES // (10 * opinions))
    assert accumulator.panes[2][OLDER].n == n + 5
    accumulator.add(classes_back(large))
    assert bits(classes_finished(accumulator, 9).panes) == bits(class_panes([small], 9))
    wide = ClassAccumulator(WINDOWS, 1)
    wide.add(MatchedClasses(0, np.full((2, 400, 50), 0.02), np.array([3, 4])))
    fold(wide)
    assert wide.panes[0][OLDER].n == 2
