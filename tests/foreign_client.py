"""A client of the sidecar that knows nothing of us but the contract: the generated stubs."""

import re
import subprocess

import grpc
import pytest

from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.v1 import frame_pb2, perception_monitor_pb2, recalibrator_admin_pb2, truth_pb2
from tests.served import PATIENCE, ROOT, Conversation, serve_command

INTERNALS = re.compile(r'Traceback|File "|\.py\b|site-packages|/srv|/tmp|<class|Exception|Error')


def serve_to_the_end(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        serve_command(*options), cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE
    )


def header(name, dimensions=("x", "y"), classes=("car",)):
    return frame_pb2.StreamHeader(
        stream=name,
        dimensions=[frame_pb2.Dimension(name=d, unit="m") for d in dimensions],
        class_names=classes,
    )


def in_header(name, **changes):
    return perception_monitor_pb2.ProcessRequest(header=header(name, **changes))


def frame(frame_id, n=3, truth=True, **changes):
    """n detections at (i, 1) with σ² = 4, off by (1, 0)."""
    detections = [
        frame_pb2.Detection(
            id=i,
            class_index=0,
            mean=[i, 1.0],
            covariance=[4.0, 4.0],
            ground_truth=[i + 1.0, 1.0] if truth else [],
        )
        for i in range(n)
    ]
    return frame_pb2.Frame(frame_id=frame_id, stamp_ns=frame_id, detections=detections, **changes)


def in_frame(frame_id, **changes):
    return perception_monitor_pb2.ProcessRequest(frame=frame(frame_id, **changes))


def opened(sidecar, name, **changes) -> Conversation:
    stream = Conversation(sidecar.monitor.Process)
    assert stream.ask(in_header(name, **changes)).header.accepted
    return stream


def failure(call):
    """Code and text of a call that must fail; the text shows nothing of the inside."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error = caught.value
    assert isinstance(error, grpc.Call)
    assert_clean(error.details())
    return error.code(), error.details()


def assert_clean(text):
    assert text
    assert not INTERNALS.search(text), text


def scaling(*scale, dimensions=("x", "y")) -> str:
    return Selection(tuple(dimensions), VarianceScaling(tuple(scale))).to_json()


def promote(sidecar, **candidate):
    request = recalibrator_admin_pb2.PromoteRequest(actor="test", **candidate)
    return sidecar.admin.Promote(request, timeout=PATIENCE)


def labels(stream, frame_id, ids, **changes):
    return perception_monitor_pb2.ReportGroundTruthRequest(
        truth=truth_pb2.FrameTruth(
            stream=stream,
            frame_id=frame_id,
            detections=[
                truth_pb2.DetectionTruth(detection_id=i, ground_truth=[i + 1.0, 1.0]) for i in ids
            ],
            **changes,
        )
    )


def padded(size):
    """A frame with an unknown field, of so many bytes in all."""
    data = in_frame(1).SerializeToString()
    rest = size - len(data)
    tag, length = b"\xc2\x3e", rest - 2 - 4  # field 1000; lengths of four bytes
    assert 2**21 <= length < 2**28
    groups = [length >> 7 * i & 0x7F for i in range(4)]
    data += tag + bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:]) + bytes(length)
    assert len(data) == size
    return data
