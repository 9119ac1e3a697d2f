"""The end of a real sidecar, and clients that go away, stand still or push: no acknowledged frame
is lost, and nobody holds up the others or the end.
"""

import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from monitor.v1 import perception_monitor_pb2 as pb
from tests.foreign_client import in_frame, labels, opened, promote, scaling
from tests.served import (
    BY_STREAM,
    MONITOR,
    PATIENCE,
    Conversation,
    eventually,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Pusher(threading.Thread):
    """A stream that sends as fast as it can, with a few frames ahead of their answers."""

    AHEAD = 8

    def __init__(self, sidecar, name) -> None:
        super().__init__(daemon=True)
        self.stream = opened(sidecar, name)
        self.sent = self.acknowledged = 0
        self.code: grpc.StatusCode | None = None

    def run(self) -> None:
        try:
            for number in range(1_000_000):
                self.sent += 1
                self.stream.send(in_frame(number, n=20))
                if number >= self.AHEAD:
                    assert len(self.stream.receive().frame.detections) == 20
                    self.acknowledged += 1
        except (grpc.RpcError, StopIteration):
            pass
        self.code = self.stream.call.code()
        self.stream.send(None)


def test_sigterm_under_load_is_told_to_who_watches_and_loses_no_acknowledged_frame(start):
    sidecar = start(BY_STREAM + "[server]\ngrace_seconds = 5\n")
    events = sidecar.monitor.WatchEvents(pb.WatchEventsRequest(), timeout=3 * PATIENCE)
    first = next(events).event
    assert first.health.serving
    assert abs(first.time.ToNanoseconds() / 1e9 - time.time()) < PATIENCE
    healths = [
        sidecar.health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=3 * PATIENCE)
        for service in ("", MONITOR)
    ]
    assert [next(watch).status for watch in healths] == [SERVING, SERVING]
    answer = promote(sidecar, document=scaling(2.0, 3.0))
    second = next(events).event
    assert second.sequence == first.sequence + 1
    assert (second.version.before, second.version.after) == (answer.before, answer.after)
    assert second.version.actor == "test"
    idle, truth = opened(sidecar, "idle"), Conversation(sidecar.monitor.ReportGroundTruth)
    truth.ask(labels("nobody", 1, [0]))
    pushers = [Pusher(sidecar, f"pusher_{i}") for i in range(4)]
    for pusher in pushers:
        pusher.start()
    assert eventually(lambda: min(pusher.acknowledged for pusher in pushers) > 50)
    assert sidecar.stop() < 5
    for pusher in pushers:
        pusher.join(PATIENCE)
        assert not pusher.is_alive()
        assert pusher.code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    frames, detections, labelled = sidecar.stopped()
    acknowledged = sum(pusher.acknowledged for pusher in pushers)
    assert acknowledged <= frames <= sum(pusher.sent for pusher in pushers)
    assert detections == labelled == 20 * frames
    for stream in (idle, truth):
        with pytest.raises(StopIteration):
            stream.receive()
        assert stream.call.code() is grpc.StatusCode.OK
    assert [next(watch).status for watch in healths] == [NOT_SERVING, NOT_SERVING]
    third = next(events).event
    assert third.sequence == second.sequence + 1
    assert not third.health.serving
    with pytest.raises(StopIteration):
        next(events)
