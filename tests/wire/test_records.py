"""Strided records against protobuf itself, which reads and writes one field at a time."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.v1 import frame_pb2
from monitor.wire.records import (
    Kind,
    Records,
    Schema,
    TailReader,
    build,
    sorted_by_layout,
    varint,
    walk,
)
from tests.written import IDS, doubles

DETECTIONS = 15
DETECTION: Schema = {
    1: Kind.FIXED64,
    2: Kind.FIXED32,
    3: Kind.DOUBLE,
    4: Kind.DOUBLES,
    5: Kind.DOUBLES,
    6: Kind.DOUBLES,
    7: Kind.FIXED64,
    8: Kind.DOUBLES,
    9: Kind.FIXED32,
}
NAMES = {field.number: field.name for field in frame_pb2.Detection.DESCRIPTOR.fields}
SCALARS = {1: "<u8", 2: "<u4", 3: "<f8", 7: "<u8", 9: "<u4"}


indices = st.sampled_from([0, 2**32 - 1]) | st.integers(0, 300)
values_of = {
    1: IDS,
    2: indices,
    3: doubles(1).map(lambda values: values[0]),
    7: IDS,
    9: indices,
}


@st.composite
def layouts(draw):
    """Which fields a detection has, and how many values: {field number: count}."""
    found = dict.fromkeys(draw(st.sets(st.sampled_from(list(SCALARS)))), 1)
    found |= {number: draw(st.integers(0, 20)) for number in DETECTION.keys() - SCALARS.keys()}
    return {number: count for number, count in sorted(found.items()) if count}


@st.composite
def detections(draw, layout):
    """A detection of that layout."""
    detection = frame_pb2.Detection()
    for number, count in layout.items():
        if number in SCALARS:
            setattr(detection, NAMES[number], draw(values_of[number]))
        else:
            getattr(detection, NAMES[number]).extend(draw(doubles(count)))
    return detection


@st.composite
def uniform_frames(draw):
    """A frame whose detections have one layout, and that layout."""
    layout = draw(layouts())
    frame = frame_pb2.Frame(detections=draw(st.lists(detections(layout), min_size=1, max_size=6)))
    if draw(st.booleans()):
        frame.frame_id = draw(values_of[1])
    return frame, layout


def read_tail(frame) -> Records | None:
    """The detections of a frame at once, by a reader that has seen no other."""
    return read_on(TailReader(DETECTIONS, DETECTION), frame)


def read_on(reader: TailReader, frame) -> Records | None:
    head = 9 * frame.HasField("frame_id")
    data = frame.SerializeToString()
    n = len(frame.detections)
    return reader.read(data, head, n, lambda: frame.detections[0].SerializeToString())


def of_field(detection, number):
    """The values of a field by plain access, as bytes; empty where it is absent."""
    name = NAMES[number]
    if number not in SCALARS:
        return struct.pack(f"<{len(getattr(detection, name))}d", *getattr(detection, name))
    if not detection.HasField(name):
        return b""
    return np.array([getattr(detection, name)], SCALARS[number]).tobytes()


def assert_same_values(records, messages):
    assert records.n == len(messages)
    for number in DETECTION:
        column = records.column(number)
        for row, message in enumerate(messages):
            found = b"" if column is None else column[row].tobytes()
            assert found == of_field(message, number), NAMES[number]


@given(uniform_frames())
def test_records_are_built_as_protobuf_writes_them(made):
    frame, layout = made
    frame.ClearField("frame_id")
    fields = {}
    for number, count in layout.items():
        raw = b"".join(of_field(detection, number) for detection in frame.detections)
        values = np.frombuffer(raw, SCALARS.get(number, "<f8"))
        if number not in SCALARS:
            values = values.reshape(-1, count)
        fields[number] = values
    n = len(frame.detections)
    without_values = dict.fromkeys({4, 8} - layout.keys(), np.zeros((n, 0)))
    built = build(DETECTIONS, DETECTION, fields | without_values, n)
    assert built.tobytes() == frame.SerializeToString()


@given(st.lists(layouts(), min_size=1, max_size=4), st.data())
def test_mixed_layouts_are_sorted_without_losing_or_doubling_a_row(kinds, data):
    rows = st.sampled_from(kinds).flatmap(detections)
    messages = data.draw(st.lists(rows, min_size=1, max_size=12))
    groups = sorted_by_layout([m.SerializeToString() for m in messages], DETECTION)
    positions = np.concatenate([where for where, _ in groups])
    assert sorted(positions.tolist()) == list(range(len(messages)))
    for where, records in groups:
        assert records is not None
        assert_same_values(records, [messages[row] for row in where])


@given(uniform_frames(), layouts(), st.data())
def test_a_frame_with_one_other_layout_is_not_taken_for_uniform(made, other, data):
    frame, layout = made
    odd = data.draw(detections(other))
    place = data.draw(st.integers(0, len(frame.detections)))
    mixed = [*frame.detections[:place], odd, *frame.detections[place:]]
    message = frame_pb2.Frame(detections=mixed)
    assert (read_tail(message) is not None) == (other == layout)


@given(st.lists(uniform_frames(), min_size=1, max_size=5))
def test_detections_of_one_layout_are_read_as_protobuf_reads_them(frames):
    reader = TailReader(DETECTIONS, DETECTION)
    for frame, layout in frames + frames[::-1]:  # what it saw before does not matter
        records = read_on(reader, frame)
        assert records is not None
        assert {n: place.count for n, place in records.layout.fields.items()} == layout
        assert_same_values(records, frame.detections)


def unknown_bytes(number, payload):
    """A length-delimited field that no message of ours has."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def test_an_unknown_field_that_looks_like_records_is_not_read_as_detections():
    true = [frame_pb2.Detection(id=7, mean=[1.0, 2.0]) for _ in range(3)]
    false = [true[0], *(frame_pb2.Detection(id=666, mean=[6.0, 6.0]) for _ in range(2))]
    forged = frame_pb2.Frame(detections=false).SerializeToString()
    data = frame_pb2.Frame(frame_id=1, detections=true).SerializeToString()
    data += unknown_bytes(500, forged)
    frame = frame_pb2.Frame.FromString(data)
    assert read_tail(frame) is None


def test_a_detection_that_hides_records_is_not_read_as_detections():
    honest = frame_pb2.Detection(id=7, mean=[1.0])
    forged = frame_pb2.Frame(detections=[honest, frame_pb2.Detection(id=666, mean=[6.0])])
    hiding = frame_pb2.Detection.FromString(
        honest.SerializeToString() + unknown_bytes(500, forged.SerializeToString())
    )
    frame = frame_pb2.Frame(detections=[honest, hiding])
    assert read_tail(frame) is None


def test_values_that_look_like_records_are_not_read_as_detections():
    reader = TailReader(DETECTIONS, DETECTION)
    short = frame_pb2.Frame(detections=[frame_pb2.Detection(id=666)])
    assert read_on(reader, short) is not None
    # The last value of the mean ends in the bytes of the record that was read before.
    record = short.SerializeToString()
    hiding = np.frombuffer(bytes(-len(record) % 8) + record, "<f8")
    frame = frame_pb2.Frame(detections=[frame_pb2.Detection(id=7, mean=hiding)])
    assert frame.SerializeToString().endswith(record)
    records = read_on(reader, frame)
    assert records is not None
    assert_same_values(records, frame.detections)


@pytest.mark.parametrize(
    "record",
    [
        unknown_bytes(7, b"abc"),
        varint(1 << 3 | 5) + bytes(4),  # id as fixed32
        varint(3 << 3 | 0) + b"\x01",  # score as a varint
    ],
)
def test_a_field_that_the_schema_does_not_hold_has_no_layout(record):
    assert walk(record, DETECTION, 0) is None
    (group,) = sorted_by_layout([record], DETECTION)
    assert group[0].tolist() == [0]
    assert group[1] is None


def test_a_detection_without_any_field_is_a_record_too():
    full = frame_pb2.Detection(id=1).SerializeToString()
    groups = sorted_by_layout([b"", full, b""], DETECTION)
    assert [rows.tolist() for rows, _ in groups] == [[0, 2], [1]]
    assert [len(records.layout.fields) for _, records in groups if records is not None] == [0, 1]
