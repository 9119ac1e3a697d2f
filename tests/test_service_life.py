"""What a sidecar tells of itself, how it ends, and clients that go away, stand still or push."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from monitor.v1 import (
    frame_pb2,
    perception_monitor_pb2,
)
from tests.foreign_client import (
    failure,
    in_frame,
    in_header,
    is_ready,
    labels,
    opened,
    promote,
    scaling,
)
from tests.served import (
    ADMIN,
    BY_STREAM,
    MONITOR,
    PATIENCE,
    ROOT,
    Conversation,
    eventually,
)

# ---- events, health, reflection


def test_watchers_see_health_then_versions_then_the_end(start):
    sidecar = start()
    watch = sidecar.monitor.WatchEvents(
        perception_monitor_pb2.WatchEventsRequest(), timeout=3 * PATIENCE
    )
    first = next(watch).event
    assert first.WhichOneof("event") == "health"
    assert first.health.serving
    assert abs(first.time.ToNanoseconds() / 1e9 - time.time()) < PATIENCE
    answer = promote(sidecar, document=scaling(2.0, 3.0))
    second = next(watch).event
    assert second.sequence == first.sequence + 1
    assert (second.version.before, second.version.after) == (answer.before, answer.after)
    assert second.version.actor == "test"
    assert sidecar.stop() < 3
    third = next(watch).event
    assert third.sequence == second.sequence + 1
    assert third.WhichOneof("event") == "health"
    assert not third.health.serving
    with pytest.raises(StopIteration):
        next(watch)


@pytest.mark.parametrize("service", ["", MONITOR, ADMIN])
def test_the_health_service_says_serving(shared, service):
    request = health_pb2.HealthCheckRequest(service=service)
    answer = shared.health.Check(request, timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_health_of_an_unknown_service_is_not_found(shared):
    request = health_pb2.HealthCheckRequest(service="nothing")
    with pytest.raises(grpc.RpcError) as caught:
        shared.health.Check(request, timeout=PATIENCE)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("service", ["", MONITOR])
def test_the_health_service_says_not_serving_upon_sigterm(start, service):
    sidecar = start()
    request = health_pb2.HealthCheckRequest(service=service)
    watch = sidecar.health.Watch(request, timeout=3 * PATIENCE)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    sidecar.process.send_signal(signal.SIGTERM)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert sidecar.process.wait(PATIENCE) == 0


def test_one_who_watches_health_does_not_hold_up_the_end(start):
    sidecar = start(BY_STREAM + "[server]\ngrace_seconds = 8\n")
    watch = sidecar.health.Watch(health_pb2.HealthCheckRequest(), timeout=3 * PATIENCE)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert sidecar.stop() < 4


def list_services(sidecar):
    stub = reflection_pb2_grpc.ServerReflectionStub(sidecar.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE))
    return {service.name for service in answer.list_services_response.service}


def test_reflection_is_off_by_default(shared):
    code, _ = failure(lambda: list_services(shared))
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_lists_the_services_where_it_is_switched_on(start):
    sidecar = start(BY_STREAM + "[server]\nreflection = true\n")
    assert {MONITOR, ADMIN, "grpc.health.v1.Health"} <= list_services(sidecar)
    stub = reflection_pb2_grpc.ServerReflectionStub(sidecar.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=MONITOR)
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE))
    assert answer.file_descriptor_response.file_descriptor_proto


# ---- clients that go away, stand still or push


KILLED_CLIENT = """
import itertools, sys
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
    survivor = opened(sidecar, "survivor")
    code = textwrap.dedent(KILLED_CLIENT).format(root=str(ROOT), address=sidecar.grpc)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as client:
        output = client.stdout
        assert output is not None
        try:
            sent = 0
            for _ in range(30):
                assert output.readline()
                assert survivor.ask(in_frame(sent)).frame.status == 1
                sent += 1
        finally:
            client.kill()
        # Line 0 is the header's; a last line may be cut off.
        rest = output.read().decode()
    acknowledged = 29 + rest.count("\n")
    for _ in range(50):
        assert survivor.ask(in_frame(sent)).frame.status == 1
        sent += 1
    assert sidecar.labelled("survivor") == 3 * sent
    # The sidecar may have answered what was still on its way when the client died.
    in_slice = sidecar.labelled("killed")
    assert in_slice % 3 == 0
    assert in_slice >= 3 * acknowledged
    survivor.close()
    assert sidecar.stop() < 3
    frames, detections, labelled = sidecar.stopped()
    assert frames >= acknowledged + sent
    assert detections == labelled == 3 * frames


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
                    result = self.stream.receive().frame
                    assert len(result.detections) == 20
                    self.acknowledged += 1
        except (grpc.RpcError, StopIteration):
            pass
        self.code = self.stream.call.code()
        self.stream.send(None)


def test_sigterm_under_load_loses_no_acknowledged_frame(start):
    sidecar = start(BY_STREAM + "[server]\ngrace_seconds = 5\n")
    idle = opened(sidecar, "idle")
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
    with pytest.raises((StopIteration, grpc.RpcError)):
        idle.receive()


@pytest.mark.parametrize("kind", ["Process", "ReportGroundTruth"])
def test_an_idle_stream_does_not_hold_up_the_end(start, kind):
    sidecar = start(BY_STREAM + "[server]\ngrace_seconds = 8\n")
    stream = Conversation(getattr(sidecar.monitor, kind))
    if kind == "Process":
        stream.ask(in_header("idle"))
    else:
        stream.ask(labels("nobody", 1, [0]))
    assert sidecar.stop() < 4
    with pytest.raises(StopIteration):
        stream.receive()
    assert stream.call.code() is grpc.StatusCode.OK


def large_requests(name, number):
    """Frames of 120 kB each, one after another."""
    yield in_header(name, dimensions=[f"d{i}" for i in range(8)])
    detections = [
        frame_pb2.Detection(id=i, class_index=0, mean=[1.0] * 8, covariance=np.eye(8).ravel())
        for i in range(200)
    ]
    for frame_id in range(number):
        yield perception_monitor_pb2.ProcessRequest(
            frame=frame_pb2.Frame(frame_id=frame_id, stamp_ns=frame_id, detections=detections)
        )


def test_a_client_that_reads_no_answers_is_dropped_and_holds_up_nobody(start, tmp_path):
    pending = f'[state]\nfolder = "{tmp_path / "state"}"\n[pending]\nmax_bytes = 1000000\n'
    sidecar = start(BY_STREAM + "[server]\nwrite_timeout_seconds = 1\n" + pending)
    other = opened(sidecar, "other")
    assert other.ask(in_frame(0)).frame.status == 1
    before = sidecar.memory()
    deaf, deafer = (
        sidecar.monitor.Process(large_requests(name, 2000), timeout=3 * PATIENCE)
        for name in ("deaf", "deafer")
    )
    slowest, number = 0.0, 1
    end = time.monotonic() + PATIENCE
    while sidecar.metric("streams_dropped_total") < 2 and time.monotonic() < end:
        began = time.monotonic()
        assert other.ask(in_frame(number)).frame.status == 1
        slowest = max(slowest, time.monotonic() - began)
        number += 1
        time.sleep(0.02)
    assert sidecar.metric("streams_dropped_total") == 2
    # 480 MB were to be sent.
    assert sidecar.memory() - before < 100e6
    assert slowest < 1
    code, text = failure(lambda: [next(deaf) for _ in range(2001)])
    assert code is grpc.StatusCode.ABORTED
    assert "read" in text
    assert sidecar.labelled("other") == 3 * number
    other.close()
    # The other deaf one reads nothing to the last.
    assert sidecar.stop() < 3
    with pytest.raises(grpc.RpcError):
        for _ in range(2001):
            next(deafer)


def test_a_client_that_reads_no_answers_holds_up_the_end_no_longer_than_the_grace(start):
    sidecar = start(BY_STREAM + "[server]\ngrace_seconds = 2\nwrite_timeout_seconds = 100\n")
    deaf = sidecar.monitor.Process(large_requests("deaf", 2000), timeout=3 * PATIENCE)
    settled = -1.0

    def stands_still():
        nonlocal settled
        last, settled = settled, sidecar.metric("frames_total")
        time.sleep(0.3)
        return settled > 0 and settled == last

    assert eventually(stands_still)
    sidecar.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: not is_ready(sidecar), 1.5)
    assert sidecar.process.wait(PATIENCE) == 0
    with pytest.raises(grpc.RpcError):
        for _ in range(2001):
            next(deaf)
