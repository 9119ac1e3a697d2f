"""States that cannot be: what is wrong with them is named, and nothing of them comes in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import VERSION, decode, parsed
from monitor.v1 import statistics_state_pb2 as pb
from tests.states import (
    joined,
    state_message,
)

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=25)


def refused(spoilt: pb.StatisticsState) -> str:
    with pytest.raises(InvalidState) as refusal:
        parsed(spoilt.SerializeToString())
    text = str(refusal.value)
    assert text.endswith(".")
    return text


def incompatible(*parts: pb.StatisticsState) -> str:
    with pytest.raises(IncompatibleStatistics) as refusal:
        decode(parts)
    return str(refusal.value)


def test_a_newer_version_is_refused():
    spoilt = state_message()
    spoilt.version = VERSION + 1
    assert incompatible(spoilt).startswith("version: 2, but this monitor knows up to 1. Update it")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lowest_deviation", 0.0, "bins.lowest_deviation: 0"),
        ("lowest_deviation", float("nan"), "bins.lowest_deviation: nan"),
        ("lowest_deviation", float("inf"), "bins.lowest_deviation: inf"),
        ("deviations_per_octave", 0, "bins.deviation: 8 octaves of 0 bins"),
        ("deviations_per_octave", 2**31, "bins.deviation: 8 octaves of 2147483648 bins"),
        ("deviation_octaves", 1000, "bins.deviation: 1000 octaves"),
        ("nees_octaves", 0, "bins.nees: 0 octaves"),
        ("tau", [], "bins.tau: 0 levels"),
        ("tau", [0.9, 0.5], "bins.tau: (0.9, 0.5)"),
        ("tau", [0.5, 0.5], "bins.tau"),
        ("tau", [0.5, 1.0], "bins.tau"),
        ("tau", [0.5, float("nan")], "bins.tau"),
        ("tau", [i / 100 for i in range(1, 99)], "bins.tau: 98 levels"),
    ],
)
def test_bins_that_cannot_be_are_refused(name, value, said):
    spoilt = state_message()
    if isinstance(value, list):
        del spoilt.bins.tau[:]
        spoilt.bins.tau.extend(value)
    else:
        setattr(spoilt.bins, name, value)
    assert refused(spoilt).startswith(said)


@pytest.mark.parametrize(("name", "value"), [("hash", "0123"), ("exponent", -40), ("tau", [0.5])])
def test_bins_with_another_hash_or_unit_are_refused_with_both_named(name, value):
    spoilt = state_message()
    if name == "tau":
        del spoilt.bins.tau[1:]
    else:
        setattr(spoilt.bins, name, value)
    with pytest.raises(IncompatibleStatistics) as refusal:
        parsed(spoilt.SerializeToString())
    assert f"hash {spoilt.bins.hash}" in str(refusal.value)
    assert "4 bins an octave" in str(refusal.value)


def test_class_probabilities_on_other_bins_are_refused():
    spoilt = state_message()
    spoilt.class_slices[0].bin_hash = "0123"
    with pytest.raises(IncompatibleStatistics, match=r"class_slices\[0\].bin_hash: .* 0123"):
        parsed(spoilt.SerializeToString())


def test_parts_of_two_states_are_refused():
    other = state_message()
    other.bins.hash = "0123"
    said = incompatible(state_message(), other)
    assert "bins.hash: 0123 after " in said
    assert "parts of two states" in said


def test_parts_with_other_windows_are_refused():
    other = state_message()
    del other.windows.lengths_ns[1:]
    said = incompatible(state_message(), other)
    assert said.startswith("windows: windows of 6e-09 s in 3 panes each after windows of 6e-09, ")


def test_parts_with_other_slices_are_refused():
    ours, other = state_message(), state_message()
    ours.slicing.by.append("class")
    other.slicing.by.append("stream")
    said = incompatible(ours, other)
    assert said.startswith("slicing: slices by stream after slices by class: parts of two states.")


def test_panes_of_a_slice_that_come_in_many_parts_are_bounded_together():
    parts = []
    for number in range(20):
        part = state_message()
        part.ClearField("class_slices")
        del part.slices[1:]
        del part.slices[0].panes[1:]
        part.slices[0].panes[0].level, part.slices[0].panes[0].number = 0, number
        part.ClearField("clock_ns")
        parts.append(part)
    # Three whole panes, the one of the clock, and three that may be ahead of it.
    assert len(decode([copied(part) for part in parts[:7]]).state.slices[0].panes) == 7
    with pytest.raises(InvalidState, match=r"slices\[7\]: 8 panes of level 0, where up to 7"):
        decode([copied(part) for part in parts])
    # The clock says which of them have left their window: those are added up as they come.
    for number, part in enumerate(parts):
        part.clock_ns = 2 * number
    assert decode(parts).state.clock_ns == 38


def copied(message: pb.StatisticsState) -> pb.StatisticsState:
    """Messages that are read are used up."""
    return pb.StatisticsState.FromString(message.SerializeToString())


def no_version(m):
    m.ClearField("version")


def no_whole_panes(m):
    m.windows.panes = 4


def no_panes(m):
    m.windows.panes = 0


def windows_twice(m):
    m.windows.lengths_ns.extend([6, 18, 36])


def no_name(m):
    m.slices[0].name = ""


def line_feed_in_name(m):
    m.slices[0].name = "car\nbus"


def long_name(m):
    m.slices[0].name = "x" * 257


def no_dimensions(m):
    m.slices[0].ClearField("dimensions")


def dimension_twice(m):
    m.slices[0].dimensions[1].name = m.slices[0].dimensions[0].name


def dimension_with_quotes(m):
    m.slices[0].dimensions[0].name = 'x"'


def dimension_of_unknown_kind(m):
    m.slices[0].dimensions[0].kind = 9


def unit_with_line_feed(m):
    m.slices[0].dimensions[0].unit = "\n"


def another_dimension(m):
    m.slices[0].dimensions.add(name="w")


def level_beyond(m):
    m.slices[0].panes[0].level = 4


def number_in_the_last_level(m):
    m.slices[0].panes.add(level=3, number=7)


def huge_n(m):
    m.slices[0].panes[0].raw.n = 2**62


def cells(m):
    return m.slices[0].panes[0].raw.cells


def one_value_less(m):
    del cells(m).values[-1]


def other_width(m):
    cells(m).width = 5


def keys_not_ascending(m):
    cells(m).key_steps[1] = 0


def key_beyond_the_bins(m):
    cells(m).key_steps[-1] += 1000


def key_of_64_bits(m):
    cells(m).key_steps[0] = 2**64 - 1


def no_keys(m):
    del cells(m).key_steps[:]


def value_of_64_bits(m):
    cells(m).values[0] = 2**63 - 1


def spill_without_key(m):
    cells(m).spill.append(1)


def spill_of_another_cell(m):
    cells(m).spill_keys.append(0)
    cells(m).spill.append(1)


def spill_beyond(m):
    cells(m).spill_keys.append(2**63)
    cells(m).spill.append(1)


def one_limb_less(m):
    del m.slices[0].panes[0].raw.companions.low[-1]


def limb_not_canonical(m):
    m.slices[0].panes[0].raw.companions.low[0] = -1


def limb_of_64_bits(m):
    m.slices[0].panes[0].raw.companions.high[0] = 2**63 - 1


def key_beyond_the_histogram(m):
    m.slices[0].panes[0].recalibrated.nees.key_steps[0] += 10**6


def no_companions(m):
    m.slices[0].panes[0].raw.ClearField("companions")


def cells_alone(m):
    stage = m.slices[0].panes[0].raw
    stage.n = 0
    stage.ClearField("nees")
    stage.ClearField("companions")


def histogram_alone(m):
    stage = m.slices[0].panes[0].raw
    stage.n = 0
    stage.ClearField("cells")
    stage.ClearField("companions")


def rows_without_tables(m):
    m.class_slices[0].panes[0].ClearField("tables")


def sums_without_tables(m):
    m.class_slices[0].panes[0].ClearField("tables")
    m.class_slices[0].panes[0].n = 0


def limbs_of_classes_missing(m):
    m.class_slices[0].panes[0].ClearField("companions")


def copies(panes, level, numbers):
    pane = panes[0]
    for number in numbers:
        panes.add().CopyFrom(pane)
        panes[-1].level, panes[-1].number = level, number
    del panes[0]


def five_panes_of_an_hour(m):
    # The clock of no state rules that out: there is none.
    m.ClearField("clock_ns")
    copies(m.slices[0].panes, 1, range(-5, 0))


def eight_panes_beyond_the_clock(m):
    m.clock_ns = 0
    copies(m.class_slices[0].panes, 0, range(1, 9))


def slicing_by_nothing_we_know(m):
    m.slicing.by.append("colour")


def slicing_out_of_order(m):
    m.slicing.by.extend(["stream", "class"])


def range_edges_that_fall(m):
    m.slicing.range_edges.extend([40, 20])


def range_edge_that_is_none(m):
    m.slicing.range_edges.append(float("nan"))


def too_many_range_edges(m):
    m.slicing.range_edges.extend(range(65))


def range_dimension_without_name(m):
    m.slicing.range_dimensions.append("")


def no_class_names(m):
    m.class_slices[0].ClearField("class_names")


def class_twice(m):
    m.class_slices[0].class_names[0] = m.class_slices[0].class_names[1]


def one_table_less(m):
    del m.class_slices[0].panes[0].tables[-1]


def table_key_beyond_the_bins(m):
    m.class_slices[0].panes[0].tables[1].key_steps[0] += 10**6


def fewer_classes(m):
    del m.class_slices[0].class_names[1:]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_version, "version: absent"),
        (no_whole_panes, "windows: "),
        (no_panes, "windows: "),
        (windows_twice, "windows: "),
        (no_name, "slices[0].name: ''"),
        (line_feed_in_name, "slices[0].name: "),
        (long_name, "slices[0].name: "),
        (no_dimensions, "slices[0].dimensions: 0"),
        (dimension_twice, "slices[0].dimensions: 2 with 1 names"),
        (dimension_with_quotes, "slices[0].dimensions: 'x\"'"),
        (dimension_of_unknown_kind, "slices[0].dimensions: 'u' of kind 9"),
        (unit_with_line_feed, "slices[0].dimensions.unit: "),
        (another_dimension, "slices[0].panes[0].raw.companions: "),
        (level_beyond, "slices[0].panes[0].level: "),
        (number_in_the_last_level, "slices[0].panes["),
        (huge_n, "slices[0].panes[0].raw.n: "),
        (one_value_less, "slices[0].panes[0].raw.cells.values: "),
        (other_width, "slices[0].panes[0].raw.cells.width: 5"),
        (keys_not_ascending, "slices[0].panes[0].raw.cells.key_steps: "),
        (key_beyond_the_bins, "slices[0].panes[0].raw.cells.key_steps: "),
        (key_of_64_bits, "slices[0].panes[0].raw.cells.key_steps: 18446744073709551615"),
        (no_keys, "slices[0].panes[0].raw.cells: values without keys"),
        (value_of_64_bits, "slices[0].panes[0].raw.cells.values: "),
        (spill_without_key, "slices[0].panes[0].raw.cells.spill: "),
        (spill_of_another_cell, "slices[0].panes[0].raw.cells.spill: "),
        (spill_beyond, "slices[0].panes[0].raw.cells.spill_keys: "),
        (one_limb_less, "slices[0].panes[0].raw.companions: "),
        (limb_not_canonical, "slices[0].panes[0].raw.companions: "),
        (limb_of_64_bits, "slices[0].panes[0].raw.companions: "),
        (key_beyond_the_histogram, "slices[0].panes[0].recalibrated.nees.key_steps: "),
        (no_companions, "slices[0].panes[0].raw.companions: absent"),
        (cells_alone, "slices[0].panes[0].raw.companions: absent"),
        (histogram_alone, "slices[0].panes[0].raw.companions: absent"),
        (rows_without_tables, "class_slices[0].panes[0].tables: absent"),
        (sums_without_tables, "class_slices[0].panes[0].tables: absent"),
        (limbs_of_classes_missing, "class_slices[0].panes[0].companions: 0 low"),
        (five_panes_of_an_hour, "slices[0].panes["),
        (eight_panes_beyond_the_clock, "class_slices[0].panes["),
        (slicing_by_nothing_we_know, "slicing.by: 'colour', which are not of class, range"),
        (slicing_out_of_order, "slicing.by: 'stream', 'class'"),
        (range_edges_that_fall, "slicing.range_edges: 2 that are not"),
        (range_edge_that_is_none, "slicing.range_edges: 1 that are not"),
        (too_many_range_edges, "slicing.range_edges: 65 that are not"),
        (range_dimension_without_name, "slicing.range_dimensions: 1 that are not"),
        (no_class_names, "class_slices[0].class_names: 0"),
        (class_twice, "class_slices[0].class_names: 3"),
        (one_table_less, "class_slices[0].panes[0].tables: 2, not 3"),
        (table_key_beyond_the_bins, "class_slices[0].panes[0].tables[1].key_steps: "),
        (fewer_classes, "class_slices[0].panes[0].tables["),
    ],
)
def test_what_no_encoder_of_ours_writes_is_refused(spoil, said):
    spoilt = state_message()
    spoil(spoilt)
    assert refused(spoilt).startswith(said)


@pytest.mark.parametrize("data", [b"\xff\xff", b"not protobuf at all", b""])
def test_bytes_that_are_no_state_are_refused(data):
    with pytest.raises(InvalidState):
        parsed(data)


def test_no_part_at_all_is_refused():
    with pytest.raises(InvalidState, match="no part"):
        decode([])


@quick
@given(st.data())
def test_damaged_bytes_are_read_as_some_state_or_refused(data):
    whole = bytearray(state_message(9, 8).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = parsed(bytes(whole))
    except (InvalidState, IncompatibleStatistics):
        return
    assert joined(parsed(joined(read))) == joined(read)
