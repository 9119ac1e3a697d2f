"""Rows on their way into the statistics: it does not matter when they are folded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.calibration.binning import Binning
from monitor.calibration.matched import MatchedRows, SliceAccumulator, no_statistics
from monitor.calibration.space import Space, plain_space
from monitor.calibration.statistics import observe
from tests import laws

BINNING = Binning()
XY = plain_space(("x", "y"), "m")
UV = plain_space(("u", "v"), "px")


def matched(seed, n, *, changed, slices=(0, 1), space=XY) -> MatchedRows:
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, 2, 2)) + 2 * np.eye(2)
    covariance = root @ root.transpose(0, 2, 1)
    error = random.normal(size=(n, 2))
    return MatchedRows(
        space,
        random.choice(np.array(slices, np.int64), n),
        error,
        covariance,
        error.copy() if changed else error,
        4.0 * covariance if changed else covariance,
    )


def accumulated(*added, fold_after=()):
    accumulator = SliceAccumulator(BINNING, fold_rows=100)
    for i, rows in enumerate(added):
        accumulator.add(rows)
        if i in fold_after:
            accumulator.fold()
    accumulator.fold()
    return accumulator.statistics


def test_folded_rows_are_the_statistics_of_each_slice_at_both_stages():
    rows = matched(1, 60, changed=True)
    found = accumulated(rows)
    assert set(found) == {0, 1}
    for i, statistics in found.items():
        here = rows.slices == i
        raw = observe(XY, BINNING, rows.error[here], rows.covariance[here])
        laws.assert_same(statistics.raw, raw)
        recalibrated = observe(
            XY, BINNING, rows.recalibrated_error[here], rows.recalibrated_covariance[here]
        )
        laws.assert_same(statistics.recalibrated, recalibrated)


kinds = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 9), st.booleans()), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=25)
@given(kinds, st.sets(st.integers(0, 7)), st.randoms(use_true_random=False))
def test_neither_the_order_nor_the_moment_of_folding_matters(drawn, fold_after, random):
    rows = [matched(seed, n, changed=changed) for seed, n, changed in drawn]
    at_once = accumulated(*rows)
    random.shuffle(rows)
    in_steps = accumulated(*rows, fold_after=fold_after)
    assert set(at_once) == set(in_steps)
    for i, statistics in at_once.items():
        laws.assert_same(in_steps[i], statistics)


def test_rows_wait_until_there_are_enough_of_them():
    accumulator = SliceAccumulator(BINNING, fold_rows=10)
    accumulator.add(matched(1, 9, changed=False))
    assert (accumulator.due, accumulator.waiting) == (False, 9)
    accumulator.add(matched(2, 0, changed=False))
    assert (accumulator.due, accumulator.waiting) == (False, 9)
    accumulator.add(matched(3, 1, changed=True))
    assert (accumulator.due, accumulator.waiting) == (True, 10)
    assert accumulator.statistics == {}
    accumulator.fold()
    assert (accumulator.due, accumulator.waiting) == (False, 0)
    assert sum(one.raw.n for one in accumulator.statistics.values()) == 10


def test_a_fold_of_nothing_changes_nothing():
    accumulator = SliceAccumulator(BINNING, fold_rows=10)
    accumulator.fold()
    assert accumulator.statistics == {}


def test_what_a_recalibrator_leaves_unchanged_is_observed_once():
    (statistics,) = accumulated(matched(1, 20, changed=False, slices=(0,))).values()
    assert statistics.recalibrated is statistics.raw


def test_two_spaces_are_folded_apart():
    found = accumulated(
        matched(1, 20, changed=False, slices=(0,)),
        matched(2, 20, changed=False, slices=(1,), space=UV),
        matched(3, 20, changed=True, slices=(0,)),
    )
    assert {i: one.raw.space for i, one in found.items()} == {0: XY, 1: UV}
    assert {i: one.raw.n for i, one in found.items()} == {0: 40, 1: 20}


@pytest.mark.parametrize("space", [XY, UV])
def test_no_statistics_hold_no_rows_at_either_stage(space: Space):
    none = no_statistics(space, BINNING)
    assert none.raw.n == 0
    assert none.recalibrated is none.raw


@pytest.mark.parametrize("seed", range(3))
def test_folding_a_step_at_a_time_between_arrivals_equals_folding_at_once(seed):
    sizes = np.random.default_rng(seed).integers(0, 60, 40).tolist()
    arrivals = [matched(i, n, changed=i % 3 == 0) for i, n in enumerate(sizes)]
    stepwise = SliceAccumulator(BINNING, fold_rows=100)
    for rows in arrivals:
        stepwise.add(rows)
        stepwise.fold_some()
    assert stepwise.statistics
    stepwise.fold()
    at_once = accumulated(*arrivals)
    assert stepwise.statistics.keys() == at_once.keys()
    for i, statistics in stepwise.statistics.items():
        laws.assert_same(statistics, at_once[i])


def test_rows_are_unfinished_from_their_arrival_to_the_last_step_of_their_fold():
    accumulator = SliceAccumulator(BINNING, fold_rows=10)
    assert not accumulator.unfinished
    accumulator.step()
    assert not accumulator.unfinished
    accumulator.add(matched(1, 30, changed=True))
    assert (accumulator.unfinished, accumulator.waiting) == (True, 30)
    steps = 0
    while accumulator.unfinished:
        accumulator.step()
        assert accumulator.waiting == 0
        steps += 1
    # Two slices at two stages, and the end.
    assert steps == 5
    assert sum(one.raw.n for one in accumulator.statistics.values()) == 30


def test_slices_change_together_at_the_end_of_a_fold():
    accumulator = SliceAccumulator(BINNING, fold_rows=10)
    accumulator.add(matched(1, 40, changed=True))
    accumulator.fold()
    before = dict(accumulator.statistics)
    accumulator.add(matched(2, 40, changed=True))
    while accumulator.unfinished:
        assert accumulator.statistics == before
        accumulator.step()
    assert all(accumulator.statistics[i].raw.n > one.raw.n for i, one in before.items())


def test_a_fold_is_begun_only_when_it_is_due_and_then_goes_on():
    accumulator = SliceAccumulator(BINNING, fold_rows=10)
    accumulator.add(matched(1, 9, changed=False))
    accumulator.fold_some()
    assert accumulator.waiting == 9
    accumulator.add(matched(2, 1, changed=False))
    accumulator.fold_some()
    assert (accumulator.waiting, accumulator.unfinished) == (0, True)
    # Few rows that came meanwhile wait for the next fold.
    accumulator.add(matched(3, 2, changed=False))
    for _ in range(9):
        accumulator.fold_some()
    assert accumulator.waiting == 2
    assert sum(one.raw.n for one in accumulator.statistics.values()) == 10


def test_steps_bring_in_what_waits_and_end_however_fast_rows_arrive():
    accumulator = SliceAccumulator(BINNING, fold_rows=10)
    accumulator.add(matched(0, 20, changed=True))
    accumulator.step()
    accumulator.add(matched(1, 30, changed=True))
    taken = 0
    for _ in accumulator.steps():
        taken += 1
        accumulator.add(matched(2 + taken, 20, changed=True))
        accumulator.fold_some()
    assert taken < 10
    assert sum(one.raw.n for one in accumulator.statistics.values()) >= 50
    assert accumulator.unfinished
