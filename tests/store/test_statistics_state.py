"""States of statistics as bytes: nothing is lost, not a bit; what cannot be is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from google.protobuf.internal.encoder import TagBytes
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.config import StatisticsConfig
from monitor.frames.slices import OVERFLOW
from monitor.frames.space import (
    MOST_CLASSES,
    MOST_DIMENSIONS,
    MOST_LEVELS,
    MOST_WINDOWS,
    plain_space,
)
from monitor.frames.words import SliceBy
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.class_evaluation import class_as_json, read_classes
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.holdings import NOTHING_HELD, Holdings
from monitor.statistics.reading import read as read_measures
from monitor.statistics.state import (
    ClassSliceState,
    ClassStages,
    SliceState,
    Slicing,
    Stages,
    StatisticsState,
    observe,
)
from monitor.statistics.vehicles import with_rows
from monitor.statistics.windows import Windows
from monitor.store import statistics_state
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import (
    PART_BYTES,
    VERSION,
    PaneBytes,
    StoredState,
    decode,
    parsed,
    serialised,
)
from monitor.v1 import statistics_state_pb2 as pb
from tests.laws import assert_same, costly
from tests.states import (
    BINNING,
    WINDOWS,
    assert_same_state,
    bits,
    counted,
    in_parts,
    joined,
    random_rows,
    state_message,
)


@st.composite
def states(draw: st.DrawFn) -> StatisticsState:
    """Sums of more than 62 bits, retractions that came alone, empty slices, any clock."""
    rows = random_rows(draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 40)))
    if draw(st.booleans()):
        rows = [replace(row, sign=-1) for row in rows]
    state = counted(rows, order=draw(st.sampled_from([(), (2, 0, 3)])))
    if not rows:
        state = replace(state, clock_ns=draw(st.sampled_from([None, 0, -5, 2**62])))
    slicing = draw(
        st.sampled_from([Slicing(), Slicing(("class", "range"), (20.0, 40.5), ("x", "y"))])
    )
    holds = draw(st.sampled_from([NOTHING_HELD, Holdings.of("car 1", "a", 3)]))
    found: StatisticsState = with_rows(replace(state, slicing=slicing, holds=holds))
    return found


SPILLED = counted(random_rows(1, 40))
assert any(held.raw.cells.spill.size for one in SPILLED.slices for held in one.panes.values())


@example(SPILLED)
@given(states())
def test_a_state_that_is_written_and_read_is_the_same_to_the_last_bit(state):
    stored = StoredState(state)
    for read in (decode(in_parts(stored)), parsed(joined(stored))):
        assert bits(read.state) == bits(state)
        assert read.unknown == b""
    # They are the bytes that protobuf itself writes.
    for part in serialised(stored):
        assert pb.StatisticsState.FromString(part).SerializeToString(deterministic=True) == part


def test_what_an_older_sidecar_did_not_count_is_unknown_and_what_it_has_passed_on_is_whole_again():
    """It knows neither squares nor CRPS, sets them apart and writes them as panes of their own."""
    whole = state_message(3, 40)
    known, apart = pb.StatisticsState(), pb.StatisticsState()
    known.CopyFrom(whole)
    apart.slices.extend(whole.slices)
    for name, parts in (("known", known.slices), ("apart", apart.slices)):
        for pane in (pane for entry in parts for pane in entry.panes):
            for stage in (pane.raw, pane.recalibrated)[: 1 + pane.HasField("recalibrated")]:
                others = ("n", "cells", "nees", "companions")
                for field in ("squares", "crps") if name == "known" else others:
                    stage.ClearField(field)
    older = parsed(known.SerializeToString()).state
    stages = [
        [held.raw for one in state.slices for held in one.panes.values()]
        for state in (older, parsed(whole.SerializeToString()).state)
    ]
    assert any(one.n > 0 for one in stages[0])
    for bare, new in zip(*stages, strict=True):
        assert not (bare.squares.keys.size or bare.companion["crps"].any())
        for mixed in (bare, bare.merge(new), new.merge(bare)):
            measured = (*(found := read_measures(mixed)).dimensions.values(), found.joint)
            assert (
                mixed.n <= 0 or np.isnan([(one.ause, one.ause_relative) for one in measured]).all()
            )
            assert mixed.n <= 0 or np.isnan([one.crps for one in found.dimensions.values()]).all()
        assert_same(bare.merge(new).merge(bare.negated()), new)
    both = parsed(known.SerializeToString() + apart.SerializeToString()).state
    assert bits(both) == bits(parsed(whole.SerializeToString()).state)


@costly
@given(*[st.integers(0, 2**32 - 1)] * 2)
def test_states_merge_alike_before_and_after_they_were_written(one, two):
    parts = counted(random_rows(one, 20)), counted(random_rows(two, 20), clock=400)
    a, b = (parsed(joined(StoredState(part))) for part in parts)
    assert_same_state(a.merge(b).state, parts[0].merge(parts[1]))
    assert_same_state(b.merge(a).state, parts[0].merge(parts[1]))
    # A pane that is sent twice is added, too.
    twice = [*in_parts(a), *in_parts(a)[1:]]
    assert bits(decode(twice).state) == bits(parts[0].merge(parts[0]))


def test_no_part_is_much_larger_than_a_pane():
    (entry,) = counted(random_rows(6, 400), order=(2,)).slices
    held = next(iter(entry.panes.values()))
    # Many panes of a size that only some of them share a part.
    panes = {(0, number): held for number in range(200)}
    windows = Windows((2000,), 200)
    sliced = (replace(entry, panes=panes),)
    state = replace(counted([]), windows=windows, slices=sliced, predicted=())
    parts = in_parts(StoredState(state))
    assert len(parts) > 2
    assert sum(len(part.slices) for part in parts) == len(parts) - 2  # definitions, classes
    assert max(part.ByteSize() for part in parts) < 2 * PART_BYTES
    assert bits(decode(parts).state) == bits(state)


def test_panes_that_were_written_before_give_the_same_bytes_and_others_their_own(monkeypatch):
    known = PaneBytes()
    first = counted(random_rows(1, 30))
    # Panes that are as they were, that changed, that moved up, and that are gone.
    written = [first, first, first.merge(counted(random_rows(2, 5))), counted([]), first]
    written += [first.merge(StatisticsState(BINNING, WINDOWS, clock)) for clock in (160, 175, 400)]
    for state in written:
        assert b"".join(serialised(StoredState(state), known)) == joined(StoredState(state))
    # Who writes once keeps nothing.
    monkeypatch.setattr(PaneBytes, "of", None)
    assert joined(StoredState(first))


def test_overflow_is_a_flag_and_not_a_name():
    renamed = state_message()
    (overflow,) = (entry for entry in renamed.slices if entry.overflow)
    overflow.name = "overflow (x,y,yaw)"
    read = parsed(renamed.SerializeToString()).state
    assert [entry.name for entry in read.slices if entry.overflow] == [OVERFLOW]
    # A stream may be called so.
    state = counted(random_rows(9, 20))
    named = replace(state.class_slices[0], name=OVERFLOW)
    state = replace(state, class_slices=(named, replace(named, overflow=True)))
    found = parsed(joined(StoredState(state))).state
    assert [entry.overflow for entry in found.class_slices] == [False, True]
    assert bits(found) == bits(state)


def test_the_state_of_the_largest_configuration_can_be_read_again():
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
    random, k = np.random.default_rng(0), space.k
    raw = observe(
        space, settings.binning(), random.normal(size=(9, k)), np.tile(np.eye(k), (9, 1, 1))
    )
    more = observe_classes(random.dirichlet(np.ones(len(classes)), 2), np.arange(2))
    name = f"{'s' * 64}/{'c' * 64}/{ranges.labels(plain_space((space.names[0],)))[1]}"
    state = StatisticsState(
        settings.binning(),
        settings.window_lengths(),
        10**18,
        (SliceState(name, space, False, {(MOST_WINDOWS, 0): Stages(raw, raw)}),),
        (ClassSliceState("s" * 64, classes, {(MOST_WINDOWS, 0): Stages(more, more)}),),
        Slicing(("class", "range", "stream"), ranges.edges, ranges.dimensions),
    )
    assert bits(parsed(joined(StoredState(state))).state) == bits(state)


def spoilt(path: str, value: Any, message: pb.StatisticsState | None = None) -> pb.StatisticsState:
    """A sound state with one field changed.

    value  None clears the field, a function gets it, anything else takes its place
    """
    found = message or state_message()
    *way, last = path.split(".")
    place: Any = found
    for part in way:
        place = place[int(part)] if part.isdigit() else getattr(place, part)
    if callable(value):
        value(getattr(place, last))
    elif value is None:
        place.ClearField(last)
    elif last.isdigit():
        place[int(last)] = value
    elif isinstance(value, list):
        del getattr(place, last)[:]
        getattr(place, last).extend(value)
    else:
        setattr(place, last, value)
    return found


def without_last(values: Any) -> None:
    del values[-1]


def copies(level: int, numbers: range) -> Any:
    """Puts copies of the first pane with other numbers in its place."""

    def change(panes: Any) -> None:
        for number in numbers:
            panes.add().CopyFrom(panes[0])
            panes[-1].level, panes[-1].number = level, number
        del panes[0]

    return change


BOX, CLASS = "slices.0", "class_slices.0"
PANE, CLASS_PANE = f"{BOX}.panes.0", f"{CLASS}.panes.0"
RAW, CELLS = f"{PANE}.raw", f"{PANE}.raw.cells"
INVALID: list[tuple[str, Any, str]] = [
    ("version", None, "version: absent"),
    ("bins.deviations_per_octave", 0, "bins.deviation: 8 octaves of 0 bins"),
    ("bins.nees_octaves", 0, "bins.nees: 0 octaves"),
    ("bins.tau", [0.5, 0.5], "bins.tau"),
    ("windows.panes", 4, "windows: "),
    ("bins.lowest_deviation", 0.0, "bins.lowest_deviation: 0"),
    (f"{BOX}.dimensions.0.kind", 9, "slices[0].dimensions: 'u' of kind 9"),
    (f"{PANE}.level", 9, "slices[0].panes[0].level: "),
    (f"{CELLS}.values.0", 2**63 - 1, "slices[0].panes[0].raw.cells.values: not all in"),
    (f"{CELLS}.spill_keys", [10**6], "slices[0].panes[0].raw.cells.spill_keys: "),
    (f"{CELLS}.spill", [1, 2, 3], "slices[0].panes[0].raw.cells.spill: not one"),
    (f"{RAW}.companions", None, "slices[0].panes[0].raw.companions: absent"),
    (f"{RAW}.crps", None, "slices[0].panes[0].raw.crps: absent"),
    (f"{RAW}.squares.key_steps.0", 10**6, "slices[0].panes[0].raw.squares.key_steps: "),
    (f"{CLASS}.class_names", ["car", "car"], "class_slices[0].class_names: 2: "),
    (f"{CLASS_PANE}.tables", None, "class_slices[0].panes[0].tables: absent"),
    (f"{CLASS_PANE}.companions", None, "class_slices[0].panes[0].companions: "),
    (f"{BOX}.name", "car\nbus", "slices[0].name: "),
    (f"{BOX}.dimensions", None, "slices[0].dimensions: 0"),
    (f"{BOX}.dimensions.0.unit", "\n", "slices[0].dimensions.unit: "),
    (f"{BOX}.dimensions", lambda d: d.add(name="w"), "slices[0].panes[0].raw.companions: "),
    # The clock of no state rules out five panes of an hour: there is none.
    (f"{BOX}.panes", copies(1, range(-5, 0)), "slices[0].panes["),
    (f"{RAW}.n", 2**53, "slices[0].panes[0].raw.n: "),
    (f"{CELLS}.values", without_last, "slices[0].panes[0].raw.cells.values: "),
    (f"{CELLS}.key_steps", None, "slices[0].panes[0].raw.cells: values without keys"),
    (f"{RAW}.companions.low.0", -1, "slices[0].panes[0].raw.companions: "),
    (f"{RAW}.companions.low.0", 2**40, "slices[0].panes[0].raw.companions: "),
    (f"{PANE}.recalibrated.nees.key_steps.0", 10**6, "slices[0].panes[0].recalibrated.nees.key_"),
    ("slicing.by", ["stream", "class"], "slicing.by: 'stream', 'class'"),
    ("slicing.range_edges", [40, 20], "slicing.range_edges: 2 that are not"),
    ("slicing.range_dimensions", [""], "slicing.range_dimensions: 1 that are not"),
    (f"{CLASS}.class_names", ["car"], "class_slices[0].panes[0].tables["),
    (f"{CLASS_PANE}.tables", without_last, "class_slices[0].panes[0].tables: 2, not 3"),
    (f"{CLASS_PANE}.tables.1.key_steps.0", 10**6, "class_slices[0].panes[0].tables[1].key_steps: "),
]


@pytest.mark.parametrize(("path", "value", "said"), INVALID)
def test_what_no_encoder_of_ours_writes_is_refused_by_its_field(path, value, said):
    message = spoilt(path, value)
    if path.endswith(".panes"):
        message.ClearField("clock_ns")
    with pytest.raises(InvalidState) as refusal:
        parsed(message.SerializeToString())
    assert str(refusal.value).startswith(said)
    assert str(refusal.value).endswith("The state is damaged or forged: export it again.")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("version", VERSION + 1, "version: 2, but this monitor knows up to 1. Update it"),
        ("bins.hash", "0123", "bins: the state has hash 0123 .* 4 bins an octave"),
        (f"{CLASS}.bin_hash", "0123", r"class_slices\[0\].bin_hash: .* 0123"),
    ],
)
def test_a_state_of_another_kind_is_refused_with_both_kinds_named(path, value, said):
    with pytest.raises(IncompatibleStatistics, match=f"^{said}"):
        parsed(spoilt(path, value).SerializeToString())


def test_of_an_older_state_of_classes_all_is_known_but_the_skewness_and_both_stages_are_one():
    """It knows neither moments nor stages, and writes them as panes of their own."""
    now, older, apart = state_message(), state_message(), pb.StatisticsState()
    for pane in older.class_slices[0].panes:
        pane.ClearField("change")
        pane.ClearField("moments")
    apart.class_slices.extend(now.class_slices)
    for pane in (pane for entry in apart.class_slices for pane in entry.panes):
        for known_to_it in ("n", "tables", "companions"):
            pane.ClearField(known_to_it)
    assert any(pane.HasField("change") for pane in now.class_slices[0].panes)
    # What it has passed on is whole again, beside what it has counted itself.
    whole, bare = (parsed(one.SerializeToString()).state for one in (now, older))
    its_own = joined(StoredState(bare.merge(bare)))
    found = parsed(its_own + apart.SerializeToString()).state
    assert bits(found.class_slices) == bits(whole.merge(bare).class_slices)
    read, known = (decode([one]).state.class_slices[0].panes.values() for one in (older, now))
    assert all(held.recalibrated is held.raw for held in read)
    ours, theirs = (reduce(ClassStages.merge, panes) for panes in (known, read))
    expected = read_classes(ours.raw)
    assert np.isfinite((expected.confidence_skewness, expected.entropy_skewness)).all()
    unknown = dict.fromkeys(("confidence_skewness", "entropy_skewness"))
    assert class_as_json(read_classes(theirs.raw)) == class_as_json(expected) | unknown
    assert math.isnan(read_classes(theirs.merge(ours).raw).confidence_skewness)


OTHERS = [("bins.hash", "0123"), ("windows.lengths_ns", without_last), ("slicing.by", ["class"])]


@pytest.mark.parametrize(("path", "value"), OTHERS)
def test_parts_of_two_states_are_refused(path, value):
    parts = state_message(), spoilt(path, value)
    for message in parts:
        message.ClearField("slices")
        message.ClearField("class_slices")
    said = f"^{path.partition('.')[0]}.* after .*parts of two states"
    with pytest.raises(IncompatibleStatistics, match=said):
        decode(list(parts))


def test_panes_of_a_slice_that_come_in_many_parts_are_bounded_together():
    def part(number: int, clock: int | None = None) -> pb.StatisticsState:
        found = spoilt(f"{BOX}.panes", copies(0, range(number, number + 1)))
        for field in (found.slices, found.slices[0].panes):
            del field[1:]
        found.ClearField("class_slices")
        found.ClearField("clock_ns")
        if clock is not None:
            found.clock_ns = clock
        return found

    # Three whole panes, the one of the clock, and three that may be ahead of it.
    assert len(decode(map(part, range(7))).state.slices[0].panes) == 7
    with pytest.raises(InvalidState, match=r"slices\[7\]: 8 panes of level 0, where up to 7"):
        decode(map(part, range(20)))
    # The clock says which of them have left their window: those are added up as they come.
    assert decode(part(n, 2 * n) for n in range(20)).state.clock_ns == 38


@given(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_read_as_some_state_or_refused(changes):
    whole = bytearray(state_message(9, 8).SerializeToString())
    for place, value in changes:
        whole[place % len(whole)] = value
    try:
        read = parsed(bytes(whole))
    except (InvalidState, IncompatibleStatistics):
        return
    assert joined(parsed(joined(read))) == joined(read)


def field(number: int, value: bytes) -> bytes:
    """Writes a field of bytes, as newer code might."""
    return TagBytes(number, 2) + bytes([len(value)]) + value


ADDED = field(1000, b"newer")


def with_unknown_fields(data: bytes = ADDED) -> bytes:
    """Writes a state with one more field on every level."""
    state = state_message()
    levels = [*state.slices, *state.class_slices, state.slices[0].panes[0], state.bins]
    levels += [state.slices[1].panes[0].raw.cells, state.class_slices[0].panes[0], state.windows]
    for entry in levels:
        entry.MergeFromString(data)
    return state.SerializeToString() + data


def added(data: bytes, value: bytes = ADDED) -> int:
    return data.count(value)


def test_unknown_fields_survive_a_rewrite_at_every_level():
    newer = with_unknown_fields()
    stored = parsed(newer)
    assert bits(stored.state) == bits(parsed(state_message().SerializeToString()).state)
    rewritten = joined(stored)
    assert added(rewritten) == added(newer) == 11
    # As newer code reads it: a field that was added to a slice is found under its name.
    found = pb.StatisticsState.FromString(rewritten)
    for wanted in pb.StatisticsState.FromString(newer).slices:
        same = [
            s for s in found.slices if (s.name, s.dimensions) == (wanted.name, wanted.dimensions)
        ]
        there = sum(added(entry.SerializeToString()) for entry in same)
        assert there == added(wanted.SerializeToString())
    assert added(found.bins.SerializeToString()) == 1
    assert joined(parsed(rewritten)) == rewritten
    assert parsed(rewritten).unknown == stored.unknown
    assert added(decode(in_parts(stored)).unknown) == 11


def test_what_is_added_is_bounded(monkeypatch):
    half = StoredState(counted([]), bytes(statistics_state.MOST_UNKNOWN_BYTES // 2 + 1))
    with pytest.raises(InvalidState, match=f"above {statistics_state.MOST_UNKNOWN_BYTES}"):
        half.merge(half)
    monkeypatch.setattr(statistics_state, "MOST_UNKNOWN_BYTES", 10 * len(ADDED))
    part = state_message()
    part.MergeFromString(ADDED)
    assert added(decode([part]).unknown) == 1
    parts = [pb.StatisticsState.FromString(ADDED) for _ in range(11)]
    with pytest.raises(InvalidState, match="unknown fields: 88 bytes of them, above 80"):
        decode([state_message(), *parts])
