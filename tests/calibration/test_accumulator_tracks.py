"""Tracks as clusters of the statistics: what counts as one, over folds, panes and promotions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.frame import MatchedRows, TrackIds
from monitor.statistics.clusters import LARGEST
from monitor.statistics.stage import SliceStatistics
from tests import laws
from tests.calibration import statistics_oracle
from tests.calibration.matched_frames import (
    OLDER,
    UV,
    accumulated,
    assert_same_panes,
    clock_of,
    drive,
    expected_panes,
    fold,
    matched,
)
from tests.calibration.oracle import mahalanobis


@pytest.mark.parametrize("fold_rows", [1, 10, 100, 8192])
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_with_tracks_so_are_they(late, changed, fold_rows):
    frames = drive(7, 120, tracks=9, changed=changed, late=late)
    clock = clock_of(frames)
    found = accumulated(frames, fold_rows, clock).panes
    assert_same_panes(found, expected_panes(frames, clock))
    assert sum(one.raw.pairs for panes in found.values() for one in panes.values()) > 50


# ---- tracks that must not mix


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


def test_rows_without_a_stamp_are_not_of_the_track_that_was_there_at_time_zero():
    assert pairs_of([replace(SEEN, stamp_ns=0), replace(SEEN, stamp_ns=None)]) == 0
    assert pairs_of([replace(SEEN, stamp_ns=None)] * 2) == 1


def test_a_track_is_followed_over_folds_as_if_there_were_one():
    frames = [
        replace(matched(i, 5, slices=(0,), stamp_ns=i % 20), tracks=of_tracks(*range(5)))
        for i in range(20)
    ]
    assert pairs_of(frames) == 5 * 20 * 19 // 2
    (statistics,) = accumulated(frames, 8192).panes[0].values()
    assert statistics.raw.pairs == 5 * 20 * 19 // 2


def test_tracks_whose_labels_come_hours_late_are_followed_beside_live_ones():
    live = [replace(SEEN, stamp_ns=10_000 + i % 20) for i in range(20)]
    late = [replace(rows, stamp_ns=500 + i, live=False) for i, rows in enumerate(live)]
    mixed = [rows for both in zip(live, late, strict=True) for rows in both]
    assert pairs_of(mixed, 10_019) == 2 * 20 * 19 // 2


def test_tracks_are_followed_after_a_jump_as_before_it():
    frames = [replace(SEEN, stamp_ns=10_000 + i) for i in range(4)]
    accumulator = accumulated(frames, 1, 10_003)
    accumulator.begin_anew()
    for i in range(4):
        accumulator.add(replace(SEEN, stamp_ns=500 + i))
        fold(accumulator)
    statistics = accumulator.panes[0]
    assert {key: one.raw.pairs for key, one in statistics.items()} == {OLDER: 6, (0, 25): 6}


# ---- a promotion in the middle of a track

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
            count, cross, beside = statistics_oracle.pairs(tracks, [row[axis] for row in x])
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


@pytest.mark.parametrize("seed", range(3))
def test_so_it_is_with_other_tracks_and_spaces_in_between(seed):
    frames = drive(seed, 120, tracks=6, changed=None, late=0.1)
    clock = clock_of(frames)
    for fold_rows in (1, 40, 8192):
        assert_same_panes(
            accumulated(frames, fold_rows, clock).panes, expected_panes(frames, clock)
        )


def test_tracks_that_were_never_changed_are_alike_at_both_stages_beside_those_that_were():
    changed, unchanged = seen_by_tracks([True, False])
    others = [
        replace(unchanged, slices=np.full(TRACKS, 1), stamp_ns=stamp, source=1)
        for stamp in range(3)
    ]
    panes = accumulated([changed, unchanged, *others], 1, 10).panes
    (mixed,), (alone,) = panes[0].values(), panes[1].values()
    laws.assert_same(alone.recalibrated, alone.raw)
    assert (mixed.raw.cross != mixed.recalibrated.cross).any()
