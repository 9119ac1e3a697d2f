"""The end of a real sidecar, and clients that go away, stand still or push: no acknowledged frame
is lost, and nobody holds up the others or the end.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from monitor.commands.sidecar_client import Client, SidecarUnavailable
from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.v1 import perception_monitor_pb2 as pb
from tests.foreign_client import in_frame, labels, opened, promote, scaling
from tests.served import (
    BY_STREAM,
    MONITOR,
    PATIENCE,
    ROOT,
    Conversation,
    eventually,
)

SPACE = plain_space(("x", "y"), "m")
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


KILLED_CLIENT = """
import sys
import grpc
sys.path.insert(0, {root!r})
from tests.foreign_client import in_frame, in_header
from monitor.v1 import perception_monitor_pb2_grpc

stub = perception_monitor_pb2_grpc.PerceptionMonitorStub(grpc.insecure_channel({address!r}))
def requests():
    yield in_header("killed")
    for number in range(100_000):
        yield in_frame(number)
for number, answer in enumerate(stub.Process(requests(), timeout=30)):
    print(number, flush=True)
"""


def test_a_client_killed_in_mid_stream_disturbs_nobody_and_its_counts_are_exact(start):
    sidecar = start()
    survivor, sent = opened(sidecar, "survivor"), 0
    for i in range(5):  # clients that hang up leave nothing open
        stream = opened(sidecar, f"hangs_up_{i}")
        stream.call.cancel()
    code = KILLED_CLIENT.format(root=str(ROOT), address=sidecar.grpc)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as client:
        output = client.stdout
        assert output is not None
        try:
            for _ in range(30):
                assert output.readline()
                assert survivor.ask(in_frame(sent)).frame.status == 1
                sent += 1
        finally:
            client.kill()
        # Line 0 is the header's; a last line may be cut off.
        acknowledged = 29 + output.read().decode().count("\n")
    for _ in range(50):
        assert survivor.ask(in_frame(sent)).frame.status == 1
        sent += 1
    assert sidecar.labelled("survivor") == 3 * sent
    # The sidecar may have answered what was still on its way when the client died.
    in_slice = sidecar.labelled("killed")
    assert in_slice % 3 == 0
    assert in_slice >= 3 * acknowledged
    survivor.close()
    asyncio.run(asyncio.wait_for(_told_of_the_end(sidecar), 2 * PATIENCE))
    frames, detections, labelled = sidecar.stopped()
    assert frames >= acknowledged + sent
    assert detections == labelled == 3 * frames


async def _told_of_the_end(sidecar) -> None:
    """An interrupt ends the sidecar in order, and our own client says that it is gone."""
    async with Client(sidecar.grpc) as client:
        conversation = await client.open(Header("client", SPACE, ("car",)))
        os.kill(sidecar.process.pid, signal.SIGINT)
        assert await asyncio.to_thread(sidecar.process.wait, PATIENCE) == 0
        with pytest.raises(SidecarUnavailable, match="ended"):
            await conversation.receive()
        with pytest.raises(SidecarUnavailable, match=re.escape(sidecar.grpc)):
            await client.calibration()
