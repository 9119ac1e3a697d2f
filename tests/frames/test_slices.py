"""Which slice a detection belongs to: growth up to a limit, overflow, and names that tell apart;
ranges, chains of wider slices, and the slices of class probabilities."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.slices import (
    ALL,
    OVERFLOW,
    TOTAL,
    ClassSliceTable,
    RangeBuckets,
    SliceTable,
    StreamSlices,
    chain_of,
    is_bare,
    marked,
)
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.words import SliceBy

METRES, PIXELS = plain_space(("x", "y"), "m"), plain_space(("u", "v"), "px")
POSITION = plain_space(("x", "y", "length"), "m")
CLASS, STREAM = SliceBy.CLASS, SliceBy.STREAM
BUCKETS = RangeBuckets((20.0, 40.0, 60.0), ("x", "y", "z"))
SPACES = [
    *(METRES, PIXELS, plain_space(("x", "y"), "ft"), plain_space(("x", "y"))),
    Space((Dimension("x", "m"), Dimension("y", "m", DimensionKind.ANGLE))),
    Space(METRES.dimensions, angles_in_joint=True),
]
CLASSES = ["car", "truck", TOTAL, OVERFLOW, "car (x,y)", "car (x,y; 2)", f"{OVERFLOW} (x,y)"]


def table(*by, limit=24):
    return SliceTable(frozenset(by or (CLASS,)), limit)


def ranged(*by: SliceBy, limit=24) -> SliceTable:
    return SliceTable(frozenset((*by, SliceBy.RANGE)), limit, BUCKETS)


@given(
    st.lists(st.tuples(st.sampled_from(SPACES), st.sampled_from(CLASSES)), max_size=40),
    st.integers(1, 12),
)
@example([(METRES, OVERFLOW), (METRES, "car")], 1)
def test_labels_are_unique_stable_and_found_again_from_a_state_and_spaces_never_meet(seen, limit):
    slices, again = table(limit=limit), table(limit=limit)
    indices = [slices.index(space, "s", name) for space, name in seen]
    for (space, _), index in zip(seen, indices, strict=True):
        assert slices.slices[index].space == space
    assert len(set(slices.names)) == len(slices.names)
    assert TOTAL not in slices.names
    assert sum(not entry.overflow for entry in slices.slices) <= limit
    over = [entry.space for entry in slices.slices if entry.overflow]
    assert len(set(over)) == len(over)
    for i, entry in enumerate(slices.slices):
        assert again.place(entry.space, entry.key, overflow=entry.overflow) == i
    assert again.slices == slices.slices
    for found in (slices, again):
        assert [found.index(space, "s", name) for space, name in seen] == indices


def test_a_space_has_its_own_slice_of_a_class_and_its_own_overflow():
    slices = table(limit=2)
    seen = [(METRES, "car"), (PIXELS, "car"), (METRES, "bus"), (PIXELS, "bus"), (METRES, "van")]
    assert [slices.index(space, "s", name) for space, name in seen] == [0, 1, 2, 3, 2]
    assert slices.names == ("car", "car (u,v)", OVERFLOW, f"{OVERFLOW} (u,v)")
    assert slices.overflowing == [2, 3]


def test_classes_of_a_stream_enter_the_table_when_they_are_first_seen():
    slices = table()
    stream = StreamSlices(slices, METRES, "lidar", ("car", "truck", "bus"))
    assert stream.of(np.array([2, 2, 0]), np.zeros((3, 2))).tolist() == [1, 1, 0]
    assert slices.names == ("car", "bus")
    assert stream.of_class.tolist() == [0, -1, 1]
    assert stream.of(np.array([0, 1, 2, 1]), np.zeros((4, 2))).tolist() == [0, 2, 1, 2]
    rear = StreamSlices(slices, METRES, "rear", ("truck", "car"))
    assert rear.of(np.array([0, 1]), np.zeros((2, 2))).tolist() == [2, 0]


def test_buckets_are_called_by_their_ends_and_no_two_by_one_name():
    assert BUCKETS.labels(POSITION) == ("<20", "20-40", "40-60", ">=60")
    assert BUCKETS.labels(PIXELS) == ("",)
    edges = (0.1, 0.1 + 1e-12, 123456.0, 123456.7, 1e7, 1e7 + 1)
    labels = RangeBuckets(edges, ("x",)).labels(POSITION)
    assert len(set(labels)) == len(edges) + 1
    assert labels[-1] == ">=10000001"


@given(st.lists(st.tuples(*[st.floats(-80, 80)] * 3), max_size=10))
@example([(20.0, 0.0, 99.0), (float(np.nextafter(20.0, 0)), 0.0, 99.0), (0.0, -60.0, 0.0)])
def test_a_bucket_is_that_of_the_distance_from_the_sensor_and_includes_its_lower_edge(means):
    found = BUCKETS.of(POSITION, np.array(means).reshape(-1, 3))
    for (x, y, _), bucket in zip(means, found.tolist(), strict=True):
        assert bucket == sum((x * x + y * y) ** 0.5 >= edge for edge in (20.0, 40.0, 60.0))


@pytest.mark.parametrize(
    ("by", "ranges", "whole"),
    [
        ((), "<20 40-60 40-60", f"{ALL} {ALL} {ALL}"),
        ((CLASS,), "car/<20 car/40-60 bus/40-60", "car car bus"),
        ((STREAM,), "li/<20 li/40-60 li/40-60", "li li li"),
        ((CLASS, STREAM), "li/car/<20 li/car/40-60 li/bus/40-60", "li/car li/car li/bus"),
    ],
)
def test_slices_are_told_apart_by_stream_class_and_range_and_over_all_ranges(by, ranges, whole):
    slices = ranged(*by)
    stream = StreamSlices(slices, POSITION, "li", ("van", "car", "bus"))
    kind = np.array([1, 1, 2])
    for _ in range(2):
        found = stream.of(kind, np.array([[3.0, 4, 4], [50.0, 0, 4], [50.0, 0, 4]]))
        assert [slices.names[i] for i in found] == ranges.split()
    assert stream.of_class[0] == -1
    assert [slices.whole.names[i] for i in stream.of_class[kind]] == whole.split()
    assert set(slices.whole.names) == set(whole.split())
    # A space without position has one bucket of no name.
    flat = ranged(*by)
    camera = StreamSlices(flat, PIXELS, "li", ("van", "car", "bus"))
    found = camera.of(kind, np.array([[3.0, 4.0], [900.0, 9.0], [900.0, 9.0]]))
    assert [flat.names[i] for i in found] == whole.split()


@pytest.mark.parametrize(
    ("parts", "chain"),
    [
        (("", "", ""), ()),
        (("", "Car", "<20"), ("Car/<20", "Car", "<20")),
        (("a/b", "Car", ""), ("a/b/Car", "Car", "a/b")),
        (("front", "", "<20"), ("front/<20", "<20", "front")),
        (
            ("front", "Car", "<20"),
            ("front/Car/<20", "Car/<20", "front/Car", "Car", "front/<20", "<20", "front"),
        ),
    ],
)
def test_a_chain_goes_from_the_slice_itself_over_its_class_to_its_stream(parts, chain):
    assert chain_of(*parts) == chain


# ---- slices of class probabilities

LISTS = [("a", "b"), ("b", "a"), ("a", "b", "c"), ("d", "e")]


@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("uvwxyz"), st.sampled_from(LISTS)), max_size=30),
)
def test_there_are_only_so_many_slices_of_classes_which_never_meet(by_stream, limit, asked):
    table = ClassSliceTable(by_stream, limit)
    first: dict[object, int | None] = {}
    for stream, names in asked:
        place = table.index(stream, names)
        key = (names, stream if by_stream else TOTAL)
        assert first.setdefault(key, place) == place
        if place is None:
            assert all(entry.class_names != names for entry in table.slices)
        else:
            assert table.slices[place].class_names == names
            assert table.slices[place].name in (key[1], OVERFLOW)
    own = [entry for entry in table.slices if not entry.overflow]
    assert len(own) <= limit
    assert len(table.slices) <= 2 * limit
    assert len({entry.label for entry in table.slices}) == len(table.slices)
    again = ClassSliceTable(by_stream, limit)
    places = [again.place(entry.class_names, entry.name) for entry in table.slices]
    assert (places, again.slices) == (list(range(len(places))), table.slices)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("Car", False),
        ("Car, no covariance", True),
        ("Car (parked), no covariance", True),
        ("no covariance", True),
        ("no covariance (x,y)", True),
        ("Car, no covariance (x,y; 2)", True),
        ("Sign with no covariance", False),
        ("Car (no covariance)", False),
    ],
)
def test_a_name_tells_whether_detections_come_without_a_covariance(name, without):
    assert is_bare(name) is without
    assert is_bare(marked(name))
    assert marked(marked(name)) == marked(name)
