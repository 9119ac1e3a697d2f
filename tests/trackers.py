"""Trackers that the sidecar forwards to, as real gRPC servers; no tests here.

Threads of the test for most of them; `python -m tests.trackers` is one that can be killed.
"""

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from monitor.v1 import frame_pb2, tracker_pb2
from monitor.wire.client_messages import OutgoingFrame
from tests.piped import XYZ
from tests.served import PATIENCE, ROOT

Request = tracker_pb2.UpdateRequest
# The bytes of all answers to a request with a frame.
Behaviour = Callable[[Request], list[bytes]]
# Of the tracks that `answering` makes, by the detection they come of.
FIRST_TRACK = 1000


def answering(request: Request) -> list[bytes]:
    """A track for every detection that has an id: its mean, and the covariance of the unit."""
    response = tracker_pb2.UpdateResponse(sequence=request.sequence)
    for detection in request.frame.detections:
        if detection.HasField("id"):
            response.tracks.append(track_of(detection))
    return [response.SerializeToString()]


def track_of(detection: frame_pb2.Detection) -> frame_pb2.Track:
    k = len(detection.mean)
    unit = [float(i == j) for i in range(k) for j in range(i + 1)]
    return frame_pb2.Track(
        id=FIRST_TRACK + detection.id,
        class_index=0,
        status=frame_pb2.TRACK_STATUS_CONFIRMED,
        detections=1,
        detection_id=detection.id,
        state=detection.mean,
        covariance=unit,
    )


def slow(seconds: float) -> Behaviour:
    def behave(request: Request) -> list[bytes]:
        time.sleep(seconds)
        return answering(request)

    return behave


def silent(_: Request) -> list[bytes]:
    return []


def malformed(_: Request) -> list[bytes]:
    return [b"\xff\xff"]


def frame(number: int, n: int = 2) -> OutgoingFrame:
    """n detections without correlations, their variances 1, 2 and 3."""
    mean = np.arange(n * XYZ.k, dtype=float).reshape(n, XYZ.k) + number
    return OutgoingFrame(
        frame_id=number,
        stamp_ns=number * 10**8,
        id=np.arange(n, dtype=np.uint64) + np.uint64(10),
        class_index=np.zeros(n, np.int64),
        mean=mean,
        covariance=np.broadcast_to(np.diag([1.0, 2.0, 3.0]), (n, XYZ.k, XYZ.k)),
    )


class FakeTracker:
    """A server in threads of the test; requests: all that came, in order, over all calls."""

    def __init__(
        self,
        behave: Behaviour = answering,
        *,
        address: str = "127.0.0.1:0",
        healthy: bool | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.behave = behave
        self.requests: list[Request] = []
        self.calls = 0
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        handler = grpc.stream_stream_rpc_method_handler(self._update)
        handlers = grpc.method_handlers_generic_handler("monitor.v1.Tracker", {"Update": handler})
        self._server.add_generic_rpc_handlers((handlers,))
        self._health = health.HealthServicer()
        if healthy is not None:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            self.say(healthy)
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def say(self, healthy: bool) -> None:
        status = health_pb2.HealthCheckResponse
        self._health.set("", status.SERVING if healthy else status.NOT_SERVING)

    def stop(self) -> None:
        """At once: calls end where they are."""
        self._server.stop(0).wait(PATIENCE)

    @property
    def frames(self) -> list[Request]:
        return [request for request in self.requests if request.WhichOneof("message") == "frame"]

    def kinds(self) -> list[tuple[str, str]]:
        """Stream and kind of all that came."""
        return [(r.stream, r.WhichOneof("message") or "") for r in self.requests]

    def _update(self, requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        self.calls += 1
        for data in requests:
            request = Request.FromString(data)
            self.requests.append(request)
            if request.WhichOneof("message") == "frame":
                yield from self.behave(request)


@contextlib.contextmanager
def tracking(behave: Behaviour = answering, **options: Any) -> Iterator[FakeTracker]:
    """A tracker that is gone with the block."""
    tracker = FakeTracker(behave, **options)
    try:
        yield tracker
    finally:
        tracker.stop()


@contextlib.contextmanager
def tracker_process(address: str = "127.0.0.1:0") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A tracker that answers, as a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.trackers", address], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        output = process.stdout
        assert output is not None
        readable, _, _ = select.select([output], [], [], 3 * PATIENCE)
        assert readable
        yield process, output.readline().decode().strip()
    finally:
        process.kill()
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()


def serve(address: str) -> None:
    """Until killed."""
    print(FakeTracker(address=address).address, flush=True)
    while True:
        time.sleep(PATIENCE)


if __name__ == "__main__":
    serve(sys.argv[1])
