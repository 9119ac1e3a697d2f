"""Strided records are never taken for what they are not."""

from __future__ import annotations

import numpy as np

from monitor.v1 import frame_pb2
from monitor.wire.records import Kind, Records, Schema, TailReader
from tests.written import tagged

DETECTIONS = 15
DETECTION: Schema = {
    **{1: Kind.FIXED64, 2: Kind.FIXED32, 3: Kind.DOUBLE, 4: Kind.DOUBLES, 5: Kind.DOUBLES},
    **{6: Kind.DOUBLES, 7: Kind.FIXED64, 8: Kind.DOUBLES, 9: Kind.FIXED32},
}


def read_on(reader: TailReader, frame: frame_pb2.Frame) -> Records | None:
    """The detections of a frame, which is all tail but for its id."""
    head, data = 9 * frame.HasField("frame_id"), frame.SerializeToString()
    first = frame.detections[0].SerializeToString
    return reader.read(data, head, len(frame.detections), first)


def read_tail(frame: frame_pb2.Frame) -> Records | None:
    return read_on(TailReader(DETECTIONS, DETECTION), frame)


def values(records: Records | None, number: int) -> list[float]:
    assert records is not None
    column = records.column(number)
    assert column is not None
    found: list[float] = column.ravel().tolist()
    return found


def detection(id: int, *mean: float) -> frame_pb2.Detection:
    return frame_pb2.Detection(id=id, mean=mean)


TRUE, FALSE = detection(7, 1.0), detection(666, 6.0)
# A field that no message of ours has, and in it what looks like detections.
FORGED = tagged(500, 2, frame_pb2.Frame(detections=[TRUE, FALSE, FALSE]).SerializeToString())


def test_detections_of_one_layout_are_read_at_once_and_those_of_two_are_not():
    frame = frame_pb2.Frame(frame_id=1, detections=[detection(n, n / 2) for n in range(3)])
    records = read_tail(frame)
    assert records is not None
    assert {n: place.count for n, place in records.layout.fields.items()} == {1: 1, 4: 1}
    assert (values(records, 1), values(records, 4)) == ([0, 1, 2], [0.0, 0.5, 1.0])
    for place in range(4):
        rows = list(frame.detections)
        rows.insert(place, detection(9, 1.0, 2.0))
        assert read_tail(frame_pb2.Frame(detections=rows)) is None


def test_an_unknown_field_that_looks_like_records_is_not_read_as_detections():
    data = frame_pb2.Frame(frame_id=1, detections=[TRUE] * 3).SerializeToString() + FORGED
    assert read_tail(frame_pb2.Frame.FromString(data)) is None


def test_a_detection_that_hides_records_is_not_read_as_detections():
    hiding = frame_pb2.Detection.FromString(TRUE.SerializeToString() + FORGED)
    assert read_tail(frame_pb2.Frame(detections=[TRUE, hiding])) is None


def test_values_that_look_like_records_are_not_read_as_detections():
    reader = TailReader(DETECTIONS, DETECTION)
    short = frame_pb2.Frame(detections=[frame_pb2.Detection(id=666)])
    assert read_on(reader, short) is not None
    # The last value of the mean ends in the bytes of the record that was read before.
    record = short.SerializeToString()
    hiding = np.frombuffer(bytes(-len(record) % 8) + record, "<f8")
    frame = frame_pb2.Frame(detections=[detection(7, *hiding)])
    assert frame.SerializeToString().endswith(record)
    records = read_on(reader, frame)
    assert values(records, 1) == [7]
    assert np.array(values(records, 4)).tobytes() == hiding.tobytes()
