"""Answers of one layout, which a client reads as one array: flags and class probabilities."""

import numpy as np
import pytest

from monitor.frames.frame import ReceivedFrame
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.rejection import RejectedBy
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.answers import encode_process_response
from monitor.wire.client_messages import decode_answer
from monitor.wire.records import Kind, TailReader, record_columns
from monitor.wire.requests import WireLimits, decode_process_request, detection_tail
from tests.piped_classes import answered, opened, recalibrating, rejection, sent
from tests.received import Sent

SCHEMA = dict.fromkeys((1, 9), Kind.FIXED64) | dict.fromkeys((2, 3, 10, 13), Kind.FLAG)
SCHEMA |= {4: Kind.FIXED32} | dict.fromkeys((5, 6, 7, 8, 11, 12), Kind.DOUBLES)
REJECTING = Selection((), Identity(), rejection=rejection(RejectedBy.DEVIATION, 2.0))


def wide(id: int, variance: float) -> Sent:
    return Sent(id, (0.5, -0.5), (variance, variance))


def layouts(data: bytes) -> int:
    """Of how many layouts the detections of an answer are, as a client finds them."""
    result = perception_monitor_pb2.ProcessResponse.FromString(data).frame
    columns, _ = record_columns(result, TailReader(15, SCHEMA))
    return len(columns.groups)


@pytest.mark.parametrize("variances", [(1.0, 1.0, 1.0), (1.0, 9.0, 1.0), (9.0, 9.0, 9.0)])
def test_an_answer_is_of_one_layout_whether_none_some_or_all_are_flagged(variances):
    rows = [wide(i, variance) for i, variance in enumerate(variances)]
    data = encode_process_response(answered(recalibrating(CLASS_IDENTITY, REJECTING), rows), 1)
    assert layouts(data) == 1
    flags = decode_answer(data, 2).rejected_by
    assert flags.tolist() == [2 if variance > 4 else 0 for variance in variances]


def test_a_flag_is_there_of_every_detection_while_a_rejection_is_in_force_and_else_of_none():
    rows = [wide(1, 1.0), Sent(2, (0.0, 0.0), ()), wide(3, 9.0), Sent(4, (0.0, np.nan), (1.0, 1.0))]
    for selection, there in ((REJECTING, True), (IDENTITY, False)):
        data = encode_process_response(answered(recalibrating(CLASS_IDENTITY, selection), rows), 1)
        result = perception_monitor_pb2.ProcessResponse.FromString(data).frame
        assert [row.HasField("rejected_by") for row in result.detections] == [there] * 4


def test_a_detection_that_fits_no_array_is_said_to_be_certain_enough_like_others():
    frame = frame_pb2.Frame(frame_id=1, stamp_ns=1)
    frame.detections.add(id=1, class_index=0, mean=[0.0, 0.0], covariance=[9.0, 9.0])
    frame.detections.add(id=2, class_index=0, mean=[0.0] * 40, covariance=[1.0, 1.0])
    data = perception_monitor_pb2.ProcessRequest(frame=frame).SerializeToString()
    received = decode_process_request(data, WireLimits(2**20, 100), detection_tail())
    assert isinstance(received, ReceivedFrame)
    assert list(received.overlong) == [1]
    pipeline = recalibrating(CLASS_IDENTITY, REJECTING)
    data = encode_process_response(pipeline.process(opened(pipeline), received), 1)
    result = perception_monitor_pb2.ProcessResponse.FromString(data).frame
    assert [row.HasField("rejected_by") for row in result.detections] == [True, True]
    assert [row.rejected_by for row in result.detections] == [2, 0]


def test_an_answer_with_class_probabilities_of_all_and_some_flags_is_of_one_layout():
    selection = Selection((), Identity(), rejection=rejection(RejectedBy.DEVIATION, 1.0))
    rows = [sent(i) for i in range(5)]
    data = encode_process_response(answered(recalibrating(selection=selection), rows), 1)
    assert layouts(data) == 1
    assert decode_answer(data, 2).class_probabilities is not None
