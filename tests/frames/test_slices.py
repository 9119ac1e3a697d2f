"""Which slice a detection belongs to: growth up to a limit, overflow, and names that tell apart;
ranges, chains of wider slices, and the slices of class probabilities."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.slices import (
    ALL,
    LEVELS,
    OVERFLOW,
    TOTAL,
    ClassSliceTable,
    RangeBuckets,
    SliceBy,
    SliceTable,
    StreamSlices,
    chain_of,
)
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space

METRES = plain_space(("x", "y"), "m")


PIXELS = plain_space(("u", "v"), "px")


CLASS, STREAM = SliceBy.CLASS, SliceBy.STREAM


def table(*by, limit=24):
    return SliceTable(frozenset(by or (CLASS,)), limit)


POSITION = plain_space(("x", "y", "length"), "m")
BUCKETS = RangeBuckets((20.0, 40.0, 60.0), ("x", "y", "z"))


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


SPACES = [
    METRES,
    PIXELS,
    plain_space(("x", "y"), "ft"),
    plain_space(("x", "y")),
    Space((Dimension("x", "m"), Dimension("y", "m", DimensionKind.ANGLE))),
    Space(METRES.dimensions, angles_in_joint=True),
]


CLASSES = ["car", "truck", TOTAL, OVERFLOW, "car (x,y)", "car (x,y; 2)", f"{OVERFLOW} (x,y)"]


def ranged(*by: SliceBy, limit=24, buckets=BUCKETS) -> SliceTable:
    return SliceTable(frozenset((*by, SliceBy.RANGE)), limit, buckets)


@example(seen=[(METRES, OVERFLOW), (METRES, "car")], limit=1)
@given(
    st.lists(st.tuples(st.sampled_from(SPACES), st.sampled_from(CLASSES)), max_size=40),
    st.integers(1, 12),
)
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


def test_classes_of_a_stream_enter_the_table_when_they_are_first_seen():
    slices = table()
    stream = StreamSlices(slices, METRES, "lidar", ("car", "truck", "bus"))
    assert slices.names == ()
    assert stream.of(np.array([2, 2, 0]), np.zeros((3, 2))).tolist() == [1, 1, 0]
    assert slices.names == ("car", "bus")
    assert stream.of_class.tolist() == [0, -1, 1]
    assert stream.of(np.array([0, 1, 2, 1]), np.zeros((4, 2))).tolist() == [0, 2, 1, 2]
    assert stream.of(np.array([], np.int64), np.zeros((0, 2))).size == 0
    assert stream.of_class.tolist() == [0, 2, 1]


def test_streams_of_one_space_share_the_slices_of_their_classes():
    slices = table()
    one = StreamSlices(slices, METRES, "front", ("car", "truck"))
    two = StreamSlices(slices, METRES, "rear", ("truck", "car"))
    assert one.of(np.array([0, 1]), np.zeros((2, 2))).tolist() == [0, 1]
    assert two.of(np.array([0, 1]), np.zeros((2, 2))).tolist() == [1, 0]


# ---- range buckets


def test_buckets_are_called_by_their_ends_and_are_those_of_the_dimensions_of_position():
    assert BUCKETS.labels(POSITION) == ("<20", "20-40", "40-60", ">=60")
    assert RangeBuckets((2.5,), ("x",)).labels(POSITION) == ("<2.5", ">=2.5")
    assert BUCKETS.labels(PIXELS) == ("",)


def test_no_two_buckets_have_one_name_however_near_their_edges():
    edges = (0.1, 0.1 + 1e-12, 123456.0, 123456.7, 1e7, 1e7 + 1)
    labels = RangeBuckets(edges, ("x",)).labels(POSITION)
    assert len(set(labels)) == len(edges) + 1
    assert labels[-1] == ">=10000001"


@given(st.lists(st.tuples(*[st.floats(-80, 80)] * 3), max_size=10))
def test_a_bucket_is_that_of_the_distance_from_the_sensor(means):
    found = BUCKETS.of(POSITION, np.array(means).reshape(-1, 3))
    for (x, y, _), bucket in zip(means, found.tolist(), strict=True):
        assert bucket == sum((x * x + y * y) ** 0.5 >= edge for edge in (20.0, 40.0, 60.0))


def test_an_edge_belongs_to_the_bucket_above_it():
    means = np.array([[20.0, 0.0, 99.0], [np.nextafter(20.0, 0), 0.0, 99.0], [0.0, -60.0, 0.0]])
    assert BUCKETS.of(POSITION, means).tolist() == [1, 0, 3]


def test_classes_are_told_apart_by_range_as_they_are_first_seen():
    slices = ranged(CLASS)
    stream = StreamSlices(slices, POSITION, "lidar", ("car", "truck"))
    far, near = [50.0, 0.0, 4.0], [3.0, 4.0, 4.0]
    found = stream.of(np.array([1, 0, 1]), np.array([far, near, near]))
    assert [slices.names[i] for i in found] == ["truck/40-60", "car/<20", "truck/<20"]
    again = stream.of(np.array([1, 0, 1]), np.array([far, near, near]))
    assert again.tolist() == found.tolist()
    assert len(slices.names) == 3


def test_a_space_without_position_has_one_bucket_of_no_name():
    slices = ranged(CLASS)
    stream = StreamSlices(slices, PIXELS, "camera", ("car",))
    assert stream.of(np.array([0, 0]), np.array([[3.0, 4.0], [900.0, 9.0]])).tolist() == [0, 0]
    assert slices.names == ("car",)
    alone = ranged()
    StreamSlices(alone, PIXELS, "camera", ("car",)).of(np.array([0]), np.zeros((1, 2)))
    assert alone.names == (ALL,)


def test_buckets_beyond_the_limit_share_the_overflow_slice_of_their_space():
    slices = ranged(CLASS, limit=2)
    stream = StreamSlices(slices, POSITION, "lidar", ("car", "truck"))
    distances = np.array([[1.0, 0, 0], [30.0, 0, 0], [50.0, 0, 0], [70.0, 0, 0], [1.0, 0, 0]])
    found = stream.of(np.array([0, 0, 0, 1, 0]), distances)
    assert [slices.names[i] for i in found] == ["car/<20", "car/20-40", *[OVERFLOW] * 2, "car/<20"]


@pytest.mark.parametrize("width", [0, 1])
def test_no_rows_have_no_slices_however_narrow_their_means(width):
    # A frame of which nothing could be used may be of any width.
    stream = StreamSlices(ranged(CLASS), POSITION, "lidar", ("car",))
    assert stream.of(np.zeros(0, np.int64), np.zeros((0, width))).tolist() == []
    assert stream.of_class.tolist() == [-1]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ((), [ALL, ALL, ALL]),
        ((CLASS,), ["car", "truck", "car"]),
        ((STREAM,), ["front", "front", "rear"]),
        ((CLASS, STREAM), ["front/car", "front/truck", "rear/car"]),
    ],
)
def test_over_all_ranges_a_class_of_a_stream_has_one_slice_without_a_bucket(by, names):
    slices = ranged(*by)
    front = StreamSlices(slices, POSITION, "front", ("bus", "car", "truck"))
    rear = StreamSlices(slices, POSITION, "rear", ("car",))
    for distance in (70.0, 1.0, 30.0):
        means = np.array([[distance, 0.0, 0.0]] * 2)
        front.of(np.array([1, 2]), means)
        rear.of(np.array([0]), means[:1])
    assert front.of_class[0] == -1
    found = [slices.whole.names[i] for i in (*front.of_class[1:], *rear.of_class)]
    assert found == names
    assert not any("<20" in name or "-" in name for name in slices.whole.names)


# ---- slices that are known from a state


def test_an_overflow_slice_of_a_state_is_one_here_even_where_there_is_room():
    slices = table()
    assert slices.place(METRES, OVERFLOW, overflow=True) == 0
    assert slices.place(METRES, OVERFLOW, overflow=True) == 0
    # A class of that name is another slice.
    assert slices.place(METRES, OVERFLOW) == 1
    assert slices.overflowing == [0]


def test_more_slices_than_there_is_room_for_are_placed_in_the_overflow():
    slices = table(limit=2)
    assert [slices.place(METRES, key) for key in "abcd"] == [0, 1, 2, 2]
    assert slices.names == ("a", "b", OVERFLOW)


# ---- slices in wider ones


def test_a_chain_goes_from_class_and_range_over_the_class_to_the_stream():
    assert chain_of("front", "Car", "<20") == (
        "front/Car/<20",
        "Car/<20",
        "front/Car",
        "Car",
        "front/<20",
        "<20",
        "front",
    )


@pytest.mark.parametrize(
    ("parts", "chain"),
    [
        (("", "", ""), ()),
        (("", "Car", ""), ("Car",)),
        (("front", "", ""), ("front",)),
        (("", "Car", "<20"), ("Car/<20", "Car", "<20")),
        (("front", "Car", ""), ("front/Car", "Car", "front")),
        (("front", "", "<20"), ("front/<20", "<20", "front")),
        (("a/b", "Car", ""), ("a/b/Car", "Car", "a/b")),
    ],
)
def test_a_part_that_does_not_tell_slices_apart_is_in_no_name(parts, chain):
    assert chain_of(*parts) == chain


def test_every_level_is_wider_than_all_that_hold_its_parts():
    for i, level in enumerate(LEVELS):
        assert not any(set(wider) > set(level) for wider in LEVELS[i + 1 :])
    assert len({frozenset(level) for level in LEVELS}) == len(LEVELS) == 2 ** len(SliceBy) - 1


def test_a_slice_has_the_chain_of_its_first_detection_and_overflow_has_none():
    slices = SliceTable(frozenset((CLASS, STREAM)), 2)
    assert slices.place(METRES, "li/dar/car") == 0
    assert slices.chains == [()]
    for space, stream in ((METRES, "li/dar"), (PIXELS, "camera"), (METRES, "late")):
        slices.index(space, stream, "car")
    assert slices.chains == [("li/dar/car", "car", "li/dar"), ("camera/car", "car", "camera"), ()]
    by_range = ranged(CLASS)
    StreamSlices(by_range, POSITION, "lidar", ("car",)).of(np.array([0]), np.zeros((1, 3)))
    assert by_range.chains == [("car/<20", "car", "<20")]


# ---- slices of class probabilities


LISTS = [("a", "b"), ("b", "a"), ("a", "b", "c"), ("d", "e")]


def test_streams_share_a_slice_if_their_classes_are_the_same_in_the_same_order():
    table = ClassSliceTable(by_stream=False, limit=8)
    places = [table.index(stream, names) for stream in "xyz" for names in LISTS]
    assert places == [0, 1, 2, 3] * 3
    assert [entry.label for entry in table.slices] == [TOTAL, *(f"total ({i})" for i in (2, 3, 4))]
    assert {entry.name for entry in table.slices} == {TOTAL}


def test_a_stream_has_a_slice_of_its_own_where_slices_are_by_stream():
    table = ClassSliceTable(by_stream=True, limit=8)
    places = [table.index(stream, LISTS[0]) for stream in ("x", "y", "x")]
    # The stream came again with other classes.
    places.append(table.index("x", LISTS[1]))
    assert places == [0, 1, 0, 2]
    assert [entry.label for entry in table.slices] == ["x", "y", "x (2)"]


@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("uvwxyz"), st.sampled_from(LISTS)), max_size=30),
)
def test_there_are_only_so_many_slices_and_classes_never_meet(by_stream, limit, asked):
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


def test_what_is_loaded_is_placed_even_if_there_is_no_room_and_in_the_same_order():
    full = ClassSliceTable(by_stream=True, limit=2)
    for stream, names in zip("xyzx", [LISTS[0], LISTS[0], LISTS[0], LISTS[2]], strict=True):
        full.index(stream, names)
    again = ClassSliceTable(by_stream=True, limit=2)
    assert [again.place(entry.class_names, entry.name) for entry in full.slices] == [0, 1, 2]
    assert again.slices == full.slices
    smaller = ClassSliceTable(by_stream=True, limit=1)
    assert [smaller.place(entry.class_names, entry.name) for entry in full.slices] == [0, 1, 1]
    # A list of classes that was never seen still has a place.
    assert smaller.place(LISTS[3], "q") == 2
    assert smaller.slices[2].overflow
