"""States on the wire and back: nothing is lost, not a bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import StatisticsConfig
from monitor.frames.slices import OVERFLOW, SliceBy
from monitor.frames.space import (
    MOST_CLASSES,
    MOST_DIMENSIONS,
    MOST_LEVELS,
    MOST_WINDOWS,
    plain_space,
)
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.stage import SliceStatistics, observe
from monitor.statistics.state import ClassSliceState, SliceState, Slicing, StatisticsState
from monitor.statistics.windows import Windows
from monitor.store.statistics_state import (
    PART_BYTES,
    PaneBytes,
    StoredState,
    decode,
    parsed,
    serialised,
)
from monitor.v1 import statistics_state_pb2 as pb
from tests.states import (
    BINNING,
    WINDOWS,
    assert_same_state,
    bits,
    canonical,
    counted,
    in_parts,
    joined,
    merged_in_any_order,
    random_rows,
    state_message,
)

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=25)


@quick
@given(seeds, st.integers(0, 40))
def test_what_is_written_and_read_is_the_same_to_the_last_bit(seed, n):
    state = counted(random_rows(seed, n))
    for read in (decode(in_parts(StoredState(state))), parsed(joined(StoredState(state)))):
        assert bits(read.state) == bits(state)
        assert read.unknown == b""


@pytest.mark.parametrize("seed", range(10))
def test_states_that_were_written_and_read_merge_like_those_that_were_not(seed):
    random = np.random.default_rng(seed)
    parts = [counted(random_rows(seed + i, 20)) for i in range(5)]
    read = [parsed(joined(StoredState(part))) for part in parts]
    assert_same_state(
        merged_in_any_order(read, StoredState.merge, random).state,
        merged_in_any_order(parts, StatisticsState.merge, random),
    )


def test_sums_of_more_than_62_bits_are_written_too():
    state = counted(random_rows(1, 40))
    assert any(held.raw.cells.spill.size for entry in state.slices for held in entry.panes.values())
    assert bits(parsed(joined(StoredState(state))).state) == bits(state)


def test_retractions_that_came_alone_are_written_too():
    state = counted([replace(row, sign=-1) for row in random_rows(2, 20)])
    assert sum(entry.n for entry in state.slices) == -20
    assert bits(parsed(joined(StoredState(state))).state) == bits(state)


@pytest.mark.parametrize("clock", [None, 0, -5, 2**62])
def test_the_clock_is_kept_and_none_is_not_zero(clock):
    state = StatisticsState(BINNING, WINDOWS, clock)
    assert parsed(joined(StoredState(state))).state.clock_ns == clock


def test_slices_that_hold_nothing_are_written_in_their_order():
    state = counted([], order=(2, 0, 3))
    assert bits(parsed(joined(StoredState(state))).state) == bits(state)


def test_a_stage_that_was_not_changed_is_sent_once_and_read_as_one_object():
    rows = [replace(row, recalibrated=1.0) for row in random_rows(3, 20)]
    for part in in_parts(StoredState(counted(rows))):
        assert not any(pane.HasField("recalibrated") for s in part.slices for pane in s.panes)
    read = decode(in_parts(StoredState(counted(rows)))).state
    for entry in read.slices:
        assert all(held.raw is held.recalibrated for held in entry.panes.values())


def test_equal_states_are_equal_bytes_however_they_came_about():
    a, b = counted(random_rows(4, 20)), counted(random_rows(5, 20), clock=400)
    apart = tuple(
        replace(
            entry,
            panes={
                # Equal stages in two objects, panes in another order.
                key: SliceStatistics(held.raw, replace(held.recalibrated))
                for key, held in reversed(entry.panes.items())
            },
        )
        for entry in a.slices
    )
    one = canonical(a.merge(b))
    two = canonical(b.merge(replace(a, slices=apart)))
    assert joined(StoredState(one)) == joined(StoredState(two))


def test_no_part_is_much_larger_than_a_pane():
    (entry,) = counted(random_rows(6, 400), order=(2,)).slices
    held = next(iter(entry.panes.values()))
    # Many panes of a size that only some of them share a part.
    panes = {(0, number): held for number in range(200)}
    windows = Windows((2000,), 200)
    state = replace(counted([]), windows=windows, slices=(replace(entry, panes=panes),))
    parts = in_parts(StoredState(state))
    assert len(parts) > 2
    assert sum(len(part.slices) for part in parts) == len(parts) - 2  # definitions, classes
    assert max(part.ByteSize() for part in parts) < 2 * PART_BYTES
    assert bits(decode(parts).state) == bits(state)


def test_a_pane_that_is_sent_twice_is_added():
    state = counted(random_rows(7, 20))
    twice = [*in_parts(StoredState(state)), *in_parts(StoredState(state))[1:]]
    assert bits(decode(twice).state) == bits(state.merge(state))


def test_parts_are_the_bytes_that_protobuf_itself_writes():
    for part in serialised(StoredState(counted(random_rows(8, 40)))):
        assert pb.StatisticsState.FromString(part).SerializeToString(deterministic=True) == part


def test_panes_that_were_written_before_give_the_same_bytes_and_others_their_own():
    known = PaneBytes()
    first = counted(random_rows(1, 30))
    # Panes that are as they were, that changed, that moved up, and that are gone.
    states = [first, first, first.merge(counted(random_rows(2, 5))), counted([]), first]
    states += [first.merge(StatisticsState(BINNING, WINDOWS, clock)) for clock in (160, 175, 400)]
    for state in states:
        assert b"".join(serialised(StoredState(state), known)) == joined(StoredState(state))


def test_the_name_of_an_overflow_slice_is_always_the_same():
    renamed = state_message()
    found = [entry for entry in renamed.slices if entry.overflow]
    found[0].name = "overflow (x,y,yaw)"
    read = parsed(renamed.SerializeToString()).state
    assert [entry.name for entry in read.slices if entry.overflow] == [OVERFLOW]


def test_a_stream_called_overflow_is_no_overflow_slice_of_classes():
    state = counted(random_rows(9, 20))
    (entry,) = state.class_slices
    named = replace(entry, name=OVERFLOW)
    state = replace(state, class_slices=(named, replace(named, overflow=True)))
    read = parsed(joined(StoredState(state))).state
    assert [(entry.name, entry.overflow) for entry in read.class_slices] == [
        (OVERFLOW, False),
        (OVERFLOW, True),
    ]
    assert bits(read) == bits(state)


def test_what_tells_slices_apart_is_kept():
    slicing = Slicing(("class", "range"), (20.0, 40.5), ("x", "y", "z"))
    state = replace(counted(random_rows(10, 5)), slicing=slicing)
    assert parsed(joined(StoredState(state))).state.slicing == slicing
    assert decode(in_parts(StoredState(state))).state.slicing == slicing


def test_what_the_largest_configuration_counts_can_be_read_again():
    settings = StatisticsConfig(
        slice_by=(SliceBy.CLASS, SliceBy.STREAM, SliceBy.RANGE),
        range_edges=tuple(float(edge) for edge in range(1, 17)),
        range_dimensions=tuple(f"{i:064}" for i in range(MOST_DIMENSIONS)),
        tau=tuple((i + 0.5) / MOST_LEVELS for i in range(MOST_LEVELS)),
        micro_bins_per_octave=256,
        windows=tuple(f"{2**i}h" for i in range(MOST_WINDOWS)),
        panes=60,
    )
    ranges = settings.ranges()
    assert ranges is not None
    space = plain_space(tuple(f"{i:064}" for i in range(MOST_DIMENSIONS)), "m" * 64)
    classes = tuple(f"{i:064}" for i in range(MOST_CLASSES))
    binning, random = settings.binning(), np.random.default_rng(0)
    raw = observe(
        space,
        binning,
        random.normal(size=(9, space.k)),
        np.eye(space.k)[None] + 0 * random.normal(size=(9, 1, 1)),
    )
    more = observe_classes(random.dirichlet(np.ones(len(classes)), 2), np.arange(2))
    name = f"{'s' * 64}/{'c' * 64}/{ranges.labels(plain_space((space.names[0],)))[1]}"
    state = StatisticsState(
        binning,
        settings.window_lengths(),
        10**18,
        (SliceState(name, space, False, {(MOST_WINDOWS, 0): SliceStatistics(raw, raw)}),),
        (ClassSliceState("s" * 64, classes, {(MOST_WINDOWS, 0): more}),),
        Slicing(("class", "range", "stream"), ranges.edges, ranges.dimensions),
    )
    assert bits(parsed(joined(StoredState(state))).state) == bits(state)


def test_what_was_written_once_is_not_kept(monkeypatch):
    monkeypatch.setattr(PaneBytes, "of", None)
    assert joined(StoredState(counted(random_rows(1, 20))))
