"""Which slice a detection belongs to: growth up to a limit, overflow, and names that tell apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.calibration.slices import OVERFLOW, TOTAL, SliceBy, SliceTable, StreamSlices
from monitor.calibration.space import Dimension, DimensionKind, Space, plain_space

METRES = plain_space(("x", "y"), "m")
PIXELS = plain_space(("u", "v"), "px")
CLASS, STREAM = SliceBy.CLASS, SliceBy.STREAM


def table(*by, limit=24):
    return SliceTable(frozenset(by or (CLASS,)), limit)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ((CLASS,), ("car", "truck")),
        ((STREAM,), ("lidar", "radar")),
        ((CLASS, STREAM), ("lidar/car", "lidar/truck", "radar/car")),
    ],
)
def test_slices_are_told_apart_by_what_the_configuration_names(by, names):
    slices = table(*by)
    seen = [("lidar", "car"), ("lidar", "truck"), ("radar", "car"), ("lidar", "car")]
    indices = [slices.index(METRES, stream, name) for stream, name in seen]
    assert slices.names == names
    assert indices[0] == indices[3]
    assert len(set(indices)) == len(names)


def test_slices_keep_their_index_in_the_order_of_first_appearance():
    slices = table()
    assert [slices.index(METRES, "lidar", name) for name in "abcab"] == [0, 1, 2, 0, 1]
    assert [entry.name for entry in slices.slices] == ["a", "b", "c"]


def test_what_comes_after_the_limit_shares_one_overflow_slice():
    slices = table(limit=2)
    assert [slices.index(METRES, "lidar", name) for name in "abcdac"] == [0, 1, 2, 2, 0, 2]
    assert slices.names == ("a", "b", OVERFLOW)
    assert [entry.overflow for entry in slices.slices] == [False, False, True]


def test_every_space_has_an_overflow_slice_of_its_own():
    slices = table(limit=1)
    slices.index(METRES, "lidar", "car")
    found = [
        slices.index(METRES, "lidar", "truck"),
        slices.index(PIXELS, "camera", "car"),
        slices.index(PIXELS, "camera", "truck"),
        slices.index(METRES, "lidar", "bus"),
    ]
    assert found == [1, 2, 2, 1]
    assert slices.names == ("car", OVERFLOW, f"{OVERFLOW} (u,v)")
    assert [entry.space for entry in slices.slices] == [METRES, METRES, PIXELS]


def test_one_class_in_two_spaces_makes_two_slices():
    slices = table()
    lidar, camera = slices.index(METRES, "l", "car"), slices.index(PIXELS, "c", "car")
    assert lidar != camera
    assert slices.names == ("car", "car (u,v)")
    assert slices.index(METRES, "l", "car") == lidar
    assert slices.index(PIXELS, "c", "car") == camera


def test_a_class_that_is_called_total_is_not_mistaken_for_the_total():
    slices = table()
    slices.index(METRES, "lidar", TOTAL)
    assert slices.names == (f"{TOTAL} (x,y)",)


def test_a_class_that_is_called_overflow_is_not_mistaken_for_the_overflow():
    slices = table(limit=1)
    called = slices.index(METRES, "lidar", OVERFLOW)
    over = slices.index(METRES, "lidar", "car")
    assert called != over
    assert not slices.slices[called].overflow
    assert slices.slices[over].overflow
    assert len(set(slices.names)) == 2


SPACES = [
    METRES,
    PIXELS,
    plain_space(("x", "y"), "ft"),
    plain_space(("x", "y")),
    Space((Dimension("x", "m"), Dimension("y", "m", DimensionKind.ANGLE))),
    Space(METRES.dimensions, angles_in_joint=True),
]
CLASSES = ["car", "truck", TOTAL, OVERFLOW, "car (x,y)", "car (x,y; 2)", f"{OVERFLOW} (x,y)"]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(SPACES), st.sampled_from(CLASSES)), max_size=40),
    st.integers(1, 12),
)
def test_labels_are_unique_and_spaces_never_meet(seen, limit):
    slices = table(limit=limit)
    for space, name in seen:
        index = slices.index(space, "s", name)
        assert slices.slices[index].space == space
        assert slices.index(space, "s", name) == index
    assert len(set(slices.names)) == len(slices.names)
    assert TOTAL not in slices.names
    assert sum(not entry.overflow for entry in slices.slices) <= limit
    over = [entry.space for entry in slices.slices if entry.overflow]
    assert len(set(over)) == len(over)


def test_classes_of_a_stream_enter_the_table_when_they_are_first_seen():
    slices = table()
    stream = StreamSlices(slices, METRES, "lidar", ("car", "truck", "bus"))
    assert slices.names == ()
    assert stream.of(np.array([2, 2, 0])).tolist() == [1, 1, 0]
    assert slices.names == ("car", "bus")
    assert stream.of(np.array([0, 1, 2, 1])).tolist() == [0, 2, 1, 2]
    assert stream.of(np.array([], np.int64)).size == 0


def test_streams_of_one_space_share_the_slices_of_their_classes():
    slices = table()
    one = StreamSlices(slices, METRES, "front", ("car", "truck"))
    two = StreamSlices(slices, METRES, "rear", ("truck", "car"))
    assert one.of(np.array([0, 1])).tolist() == [0, 1]
    assert two.of(np.array([0, 1])).tolist() == [1, 0]
