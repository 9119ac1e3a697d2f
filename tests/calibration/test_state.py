"""The state of all statistics adds up bit for bit, whoever saw what, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.state import ClassSliceState, SliceState, Slicing, StatisticsState
from monitor.statistics.windows import Windows
from tests.states import (
    BINNING,
    BOX,
    IMAGE,
    OTHER_BINNING,
    SLICES,
    WINDOWS,
    assert_same_state,
    bits,
    clock_of,
    counted,
    merged_in_any_order,
    random_rows,
)

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=25)
NOTHING = StatisticsState(BINNING, WINDOWS)


@pytest.mark.parametrize("seed", range(40))
def test_any_partition_and_order_with_retractions_gives_the_same_bits(seed):
    random = np.random.default_rng([seed, 1])
    rows = random_rows(seed, 60)
    taken_back = set(random.choice(60, 15, replace=False).tolist())
    # A replica may see the retraction of what another one has counted, or will count.
    stream = [*rows, *(replace(rows[i], sign=-1) for i in taken_back)]
    owner = random.integers(random.integers(1, 8), size=len(stream))
    parts = [
        counted(
            [row for row, to in zip(stream, owner, strict=True) if to == replica],
            order=random.permutation(len(SLICES)).tolist(),
        )
        for replica in range(owner.max() + 1)
    ]
    whole = counted([row for i, row in enumerate(rows) if i not in taken_back], clock_of(rows))
    assert_same_state(merged_in_any_order(parts, StatisticsState.merge, random), whole)


@quick
@given(seeds, st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_states_obey_the_laws_of_merging(seed, sizes):
    a, b, c = (counted(random_rows(seed + i, n)) for i, n in enumerate(sizes))
    # Bit for bit and in the same order, not only up to it.
    assert bits(a.merge(b).merge(c)) == bits(a.merge(b.merge(c)))
    assert_same_state(a.merge(b), b.merge(a))
    assert bits(a.merge(NOTHING)) == bits(a)
    assert bits(NOTHING.merge(a)) == bits(a)
    assert bits(NOTHING.merge(NOTHING)) == bits(NOTHING)


def test_slices_that_are_known_keep_their_order_and_new_ones_come_behind():
    ours = counted(random_rows(1, 20), order=(2, 0))
    theirs = counted(random_rows(2, 20), order=(1, 0, 3, 2))
    merged = ours.merge(theirs)
    assert [entry.key for entry in merged.slices] == [
        (SLICES[i][1], SLICES[i][2], SLICES[i][0]) for i in (2, 0, 1, 3)
    ]


def test_a_slice_that_holds_nothing_stays_in_the_list():
    known = counted([], order=(1, 3))
    assert [entry.name for entry in known.merge(known).slices] == ["bus", "overflow"]


def test_equal_names_in_other_spaces_are_other_slices():
    merged = counted(random_rows(3, 30), order=(0,)).merge(counted(random_rows(3, 30), order=(2,)))
    assert [(entry.name, entry.space) for entry in merged.slices] == [("car", IMAGE), ("car", BOX)]


def test_a_class_called_overflow_is_no_overflow_slice():
    plain = replace(NOTHING, slices=(SliceState("overflow", BOX, False, {}),))
    assert len(plain.merge(counted([], order=(3,))).slices) == 2


def test_slices_told_apart_otherwise_are_refused_with_both_definitions_named():
    ours = replace(NOTHING, slicing=Slicing(("class",)))
    ranged = Slicing(("class", "range"), (20.0, 40.0), ("x", "y"))
    assert ours.merge(ours).slicing == ours.slicing
    for other in (ranged, replace(ranged, range_edges=(20.0, 50.0)), Slicing(("stream",))):
        with pytest.raises(IncompatibleStatistics) as refusal:
            ours.merge(replace(NOTHING, slicing=other))
        for said in (ours.slicing.describe(), other.describe(), "[statistics] slice_by"):
            assert said in str(refusal.value)
    assert ranged.describe() == "slices by class, range with range edges 20, 40 of x, y"


def test_a_stream_called_overflow_is_no_overflow_slice_of_classes():
    plain = replace(NOTHING, class_slices=(ClassSliceState("overflow", ("a", "b"), {}),))
    entry = ClassSliceState("overflow", ("a", "b"), {}, overflow=True)
    merged = plain.merge(replace(NOTHING, class_slices=(entry,)))
    assert [entry.overflow for entry in merged.class_slices] == [False, True]


def test_panes_move_on_to_the_later_of_both_clocks():
    rows = [replace(row, stamp=10) for row in random_rows(4, 8)]
    later = replace(NOTHING, clock_ns=100)
    merged = counted(rows).merge(later)
    assert merged.clock_ns == 100
    assert all(set(entry.panes) <= {(WINDOWS.older, 0)} for entry in merged.slices)
    assert sum(entry.n for entry in merged.slices) == 8
    assert merged.class_slices[0].n == 8


def test_merging_leaves_both_as_they_were():
    a, b = counted(random_rows(5, 20)), counted(random_rows(6, 20), clock=400)
    before = bits(a), bits(b)
    a.merge(b)
    assert (bits(a), bits(b)) == before


def test_other_bins_are_refused_with_both_definitions_named():
    other = replace(NOTHING, binning=OTHER_BINNING)
    with pytest.raises(IncompatibleStatistics) as refusal:
        NOTHING.merge(other)
    for said in (BINNING.describe(), OTHER_BINNING.describe(), "[statistics]"):
        assert said in str(refusal.value)


def test_other_windows_are_refused_with_both_definitions_named():
    other = replace(NOTHING, windows=Windows((300 * 10**9,), 5))
    with pytest.raises(IncompatibleStatistics) as refusal:
        NOTHING.merge(other)
    for said in ("6e-09, 1.8e-08, 3.6e-08 s in 3 panes", "300 s in 5 panes", "[statistics]"):
        assert said in str(refusal.value)
