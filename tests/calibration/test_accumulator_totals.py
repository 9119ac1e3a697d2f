"""Running totals of what came in time: those of plain loops, and never falling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from monitor.frames.frame import MatchedRows
from monitor.statistics.bins import StageBins
from monitor.statistics.stage import SliceStatistics
from tests import laws
from tests.calibration.matched_frames import (
    BINNING,
    EDGES,
    OLDER,
    SLICES,
    XY,
    accumulated,
    add_panes,
    clock_of,
    counted,
    drive,
    empty,
    expected_panes,
    finished,
    fold_some,
    matched,
)
from tests.calibration.oracle import chi_square, determinant, mahalanobis


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


@pytest.mark.parametrize("fold_rows", [1, 50, 8192])
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


def test_what_came_late_is_in_the_panes_alone():
    accumulator = accumulated([matched(1, 30, live=False)])
    assert counted(accumulator) == 30
    assert all(not totals.of(slot).n.any() for totals in accumulator.live.values() for slot in (0,))
    whole = accumulated([matched(1, 30, live=False), matched(2, 20, stamp_ns=5)])
    alone = accumulated([matched(2, 20, stamp_ns=5)])
    for slot in range(4):
        laws.assert_same(whole.live[XY].of(slot), alone.live[XY].of(slot))


def test_imported_panes_are_in_no_running_total():
    accumulator = accumulated([matched(1, 30)])
    before = [accumulator.live[XY].of(slot) for slot in range(4)]
    more: SliceStatistics = accumulated([matched(2, 30)]).panes[0][OLDER]
    add_panes(accumulator, 0, {OLDER: more})
    for slot, bins in enumerate(before):
        laws.assert_same(accumulator.live[XY].of(slot), bins)
