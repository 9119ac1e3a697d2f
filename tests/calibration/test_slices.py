"""Which slice a detection belongs to: growth up to a limit, overflow, and names that tell apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.slices import (
    ALL,
    LEVELS,
    OVERFLOW,
    TOTAL,
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


@settings(max_examples=100)
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

BUCKETS = RangeBuckets((20.0, 40.0, 60.0), ("x", "y", "z"))
POSITION = plain_space(("x", "y", "length"), "m")


def ranged(*by: SliceBy, limit=24, buckets=BUCKETS) -> SliceTable:
    return SliceTable(frozenset((*by, SliceBy.RANGE)), limit, buckets)


def test_buckets_are_called_by_their_ends_and_are_those_of_the_dimensions_of_position():
    assert BUCKETS.labels(POSITION) == ("<20", "20-40", "40-60", ">=60")
    assert RangeBuckets((2.5,), ("x",)).labels(POSITION) == ("<2.5", ">=2.5")
    assert BUCKETS.labels(PIXELS) == ("",)


def test_no_two_buckets_have_one_name_however_near_their_edges():
    edges = (0.1, 0.1 + 1e-12, 123456.0, 123456.7, 1e7, 1e7 + 1)
    labels = RangeBuckets(edges, ("x",)).labels(POSITION)
    assert len(set(labels)) == len(edges) + 1
    assert labels[-1] == ">=10000001"


@settings(max_examples=60)
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


@pytest.mark.parametrize(
    ("by", "name"),
    [
        ((), "<20"),
        ((CLASS,), "car/<20"),
        ((STREAM,), "lidar/<20"),
        ((CLASS, STREAM), "lidar/car/<20"),
    ],
)
def test_the_bucket_comes_last_in_the_name(by, name):
    slices = ranged(*by)
    StreamSlices(slices, POSITION, "lidar", ("car",)).of(np.array([0]), np.zeros((1, 3)))
    assert slices.names == (name,)


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


# ---- slices over all ranges


def test_slices_over_all_ranges_are_the_slices_themselves_unless_range_tells_them_apart():
    plain = table(CLASS, STREAM)
    assert plain.whole is plain
    assert ranged(CLASS).whole is not plain


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


def test_over_all_ranges_there_is_a_limit_and_an_overflow_as_well():
    slices = ranged(CLASS, limit=2)
    stream = StreamSlices(slices, POSITION, "lidar", ("car", "truck", "bus"))
    stream.of(np.array([0, 1, 2]), np.zeros((3, 3)))
    assert [slices.whole.names[i] for i in stream.of_class] == ["car", "truck", OVERFLOW]


# ---- slices that are known from a state


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(SPACES), st.sampled_from(CLASSES)), max_size=40),
    st.integers(1, 12),
)
def test_labels_are_stable_when_the_slices_of_a_state_are_placed_again(seen, limit):
    slices = table(limit=limit)
    indices = [slices.index(space, "s", name) for space, name in seen]
    again = table(limit=limit)
    for i, entry in enumerate(slices.slices):
        assert again.place(entry.space, entry.key, overflow=entry.overflow) == i
    assert again.slices == slices.slices
    # Whatever comes then finds its slice.
    assert [again.index(space, "s", name) for space, name in seen] == indices


def test_a_key_is_of_one_slice_in_every_space_whatever_its_label():
    slices = table()
    assert [slices.place(space, "car") for space in (METRES, PIXELS, METRES)] == [0, 1, 0]
    assert [(entry.name, entry.key) for entry in slices.slices] == [
        ("car", "car"),
        ("car (u,v)", "car"),
    ]


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


@pytest.mark.parametrize(
    ("by", "chain"),
    [
        ((), ()),
        ((CLASS,), ("car",)),
        ((STREAM,), ("li/dar",)),
        ((CLASS, STREAM), ("li/dar/car", "car", "li/dar")),
    ],
)
def test_the_chain_of_a_slice_begins_with_its_key_and_is_made_of_its_parts(by, chain):
    slices = SliceTable(frozenset(by), 24)
    assert slices.index(METRES, "li/dar", "car") == 0
    assert slices.index(METRES, "li/dar", "car") == 0
    assert slices.chains == [chain]
    assert chain[:1] in ((), (slices.slices[0].key,))


def test_slices_by_range_lie_in_those_of_their_class():
    slices = ranged(CLASS)
    StreamSlices(slices, POSITION, "lidar", ("car",)).of(np.array([0]), np.zeros((1, 3)))
    assert slices.chains == [("car/<20", "car", "<20")]


def test_of_one_class_in_two_spaces_the_chain_is_the_same_though_the_label_is_not():
    slices = table()
    slices.index(METRES, "lidar", "car")
    slices.index(PIXELS, "camera", "car")
    assert slices.names == ("car", "car (u,v)")
    assert slices.chains == [("car",), ("car",)]


def test_overflow_lies_in_no_slice_whatever_falls_into_it():
    slices = table(limit=1)
    assert [slices.index(METRES, "lidar", name) for name in ("car", "bus", "car")] == [0, 1, 0]
    assert slices.chains == [("car",), ()]


def test_a_slice_that_a_state_has_placed_gets_its_chain_from_the_first_detection():
    slices = table(CLASS, STREAM)
    assert slices.place(METRES, "lidar/car") == 0
    assert slices.chains == [()]
    assert slices.index(METRES, "lidar", "car") == 0
    assert slices.chains == [("lidar/car", "car", "lidar")]
