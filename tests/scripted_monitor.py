"""A server that answers as a script says, and frames for the detector's client; no tests here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from monitor.client import MonitorClient
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, FloatArray, Space
from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import OutgoingFrame, Processed
from tests.served import MONITOR, PATIENCE, eventually

# The answers to message `index` of a stream, in bytes; the first message is the header.
Script = Callable[[int, pb.ProcessRequest], Iterable[bytes]]

DIMENSIONS = Space((Dimension("x", "m"), Dimension("y", "m")))
HEADER = Header("front", DIMENSIONS, ("car", "truck"))


def frame(frame_id: int = 1, n: int = 3, **changes: Any) -> OutgoingFrame:
    """n detections at (i, 1) with full covariances."""
    given: dict[str, Any] = {
        "id": np.arange(n),
        "class_index": np.zeros(n, np.int64),
        "mean": np.stack([np.arange(n, dtype=float), np.ones(n)], axis=1),
        "covariance": np.tile([[4.0, 1.0], [1.0, 2.0]], (n, 1, 1)),
    }
    return OutgoingFrame(frame_id=frame_id, stamp_ns=frame_id, **(given | changes))


def covariances(of: OutgoingFrame) -> FloatArray:
    """Covariances of a frame that has some."""
    assert of.covariance is not None
    return of.covariance


def accepted(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
    answer = pb.HeaderResult(stream=request.header.stream, accepted=True)
    yield pb.ProcessResponse(header=answer).SerializeToString()


def doubled(index: int, request: pb.ProcessRequest) -> frame_pb2.FrameResult:
    """An answer with twice the covariances, as lower triangles."""
    answer = frame_pb2.FrameResult(
        frame_id=request.frame.frame_id, message_index=index, status=frame_pb2.STATUS_RECALIBRATED
    )
    for detection in request.frame.detections:
        answer.detections.add(
            id=detection.id,
            status=frame_pb2.STATUS_RECALIBRATED,
            reason=frame_pb2.REASON_NONE,
            mean=detection.mean,
            covariance=[2 * value for value in detection.covariance],
        )
    return answer


def in_bytes(result: frame_pb2.FrameResult) -> bytes:
    return pb.ProcessResponse(frame=result).SerializeToString()


def well(index: int, request: pb.ProcessRequest) -> Iterator[bytes]:
    """As a sidecar would."""
    if request.HasField("header"):
        return accepted(index, request)
    return iter([in_bytes(doubled(index, request))])


@contextlib.contextmanager
def serving(script: Script, address: str = "127.0.0.1:0") -> Iterator[str]:

    def process(requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for index, data in enumerate(requests):
            yield from script(index, pb.ProcessRequest.FromString(data))

    method = grpc.stream_stream_rpc_method_handler(process)
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads)
        handlers = grpc.method_handlers_generic_handler(MONITOR, {"Process": method})
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port(address)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait(PATIENCE)


def connected(address: str, header: Header = HEADER, **options: float) -> MonitorClient:
    """A client with an open stream and, unless told otherwise, a deadline that is never missed."""
    given: dict[str, Any] = {"timeout_seconds": PATIENCE} | options
    client = MonitorClient(address, header, **given)
    assert client.wait_connected(PATIENCE), client._trouble
    return client


def answered_again(client: MonitorClient, first: int = 1000) -> bool:
    numbers = iter(range(first, first + 1000))
    return bool(eventually(lambda: not client.process(frame(next(numbers))).raw))


def assert_raw(result: Processed, given: OutgoingFrame) -> None:
    """All as it was given, and marked."""
    assert result.raw
    assert result.why is not None and result.text.startswith(f"{result.why}: ")
    assert result.answer is None
    assert result.tracks is None
    np.testing.assert_array_equal(result.mean, given.mean)
    np.testing.assert_array_equal(result.covariance, given.covariance)
    assert (result.status == frame_pb2.STATUS_PASSED_THROUGH).all()
    assert not result.reason.any()
