"""Strided records are never taken for what they are not."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import monitor.wire.records as records_module
from monitor.native import kernels
from monitor.v1 import frame_pb2
from monitor.wire.records import Kind, Records, Schema, TailReader, build
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
    found: list[float] = records.columns[number].ravel().tolist()
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
    assert {n: column.shape for n, column in records.columns.items()} == {1: (3, 1), 4: (3, 1)}
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


FIELDS = {1: np.uint64, 2: np.uint32, 3: np.float64, 4: np.float64, 7: np.uint64}


@given(st.integers(1, 40), st.integers(0, 9), st.binary(max_size=30), st.data())
def test_records_are_read_and_written_alike_with_kernels_and_without(n, width, head, data):
    numbers = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, unique=True))
    random = np.random.default_rng(n)
    fields = {}
    for number in sorted(numbers):
        shape = (n, width) if number == 4 else (n,)
        fields[number] = np.frombuffer(random.bytes(8 * n * 9), FIELDS[number])[: n * 9]
        fields[number] = np.resize(fields[number], shape)
    if not any(values.ndim == 1 or width for values in fields.values()):
        return
    layouts, written, read = [], [], []
    for chosen in (kernels, None):
        with patch.object(records_module, "kernels", chosen):
            written.append(build(DETECTIONS, DETECTION, fields, n))
            reader = TailReader(DETECTIONS, DETECTION)
            body = frame_pb2.Frame.FromString(written[-1]).detections[0].SerializeToString
            found = reader.read(head + written[-1], len(head), n, body)
            assert found is not None
            layouts.append(reader)
            read.append({number: column.tobytes() for number, column in found.columns.items()})
    assert written[0] == written[1]
    assert read[0] == read[1]
    assert read[0] == {f: v.tobytes() for f, v in fields.items() if v.ndim == 1 or width}
    # A structure that is broken anywhere is seen by both.
    layout = layouts[0]._known[0]
    at = data.draw(st.sampled_from(np.flatnonzero(layout.mask).tolist()))
    broken = bytearray(written[0])
    broken[(n - 1) * layout.length + at] ^= data.draw(st.integers(1, 255))
    for reader, chosen in zip(layouts, (kernels, None), strict=True):
        with patch.object(records_module, "kernels", chosen):
            assert reader.read_again(bytes(broken), 0) is None
