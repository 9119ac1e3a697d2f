"""A real sidecar as others meet it: no traceback and no path is shown over the wire."""

import asyncio
import re
import stat
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from monitor import __version__
from monitor.v1 import frame_pb2, status_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.foreign_client import failure, frame, in_frame, in_header, opened, padded
from tests.fuzzed_live import CONFIG, besieged
from tests.served import (
    ADMIN,
    BY_STREAM,
    MONITOR,
    PATIENCE,
    Conversation,
    eventually,
    process_bytes,
    running,
)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    state = f'[state]\nfolder = "{folder / "kept"}"\nevery_seconds = 0.1\n'
    with running(folder, BY_STREAM + state) as started:
        yield started
    # All that a sidecar writes is for its owner alone.
    kept = list((folder / "kept").rglob("*"))
    assert {path.name for path in kept} >= {"state.db", "lock"}
    for path in kept:
        mode = path.lstat().st_mode
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path


def test_a_message_too_large_for_the_transport_ends_its_own_stream_and_no_other(sidecar):
    other = opened(sidecar, "other")
    huge = Conversation(process_bytes(sidecar.channel))
    huge.ask(in_header("huge").SerializeToString())
    for size, reason in (
        (4 * 2**20, frame_pb2.REASON_NONE),
        (5 * 2**20, frame_pb2.REASON_TOO_LARGE),
    ):
        answer = pb.ProcessResponse.FromString(huge.ask(padded(size)))
        assert answer.frame.reason == reason
    code, _ = failure(lambda: huge.ask(padded(20 * 2**20)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    asyncio.run(_garbage(sidecar.grpc))
    assert other.ask(in_frame(1)).frame.status == frame_pb2.STATUS_RECALIBRATED
    other.close()
    opened(sidecar, "huge").close()
    call = sidecar.channel.unary_unary(f"/{MONITOR}/Nothing")
    assert failure(lambda: call(b"", timeout=PATIENCE))[0] is grpc.StatusCode.UNIMPLEMENTED


async def _garbage(address: str) -> None:
    """Connects and speaks HTTP/1, the beginning of HTTP/2, or nothing known; and hangs up."""
    host, _, port = address.rpartition(":")
    for said in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\xff\x7f\xff\xff\xff",
        bytes(range(256)) * 8,
    ):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        await asyncio.wait_for(writer.drain(), PATIENCE)
        writer.transport.abort()


def test_a_sidecar_tells_its_version_clock_and_streams_and_metrics_of_its_process(sidecar):
    stream, stamp = opened(sidecar, "told"), time.time_ns()
    for number, stamp_ns in ((1, stamp - 7200 * 10**9), (2, None)):
        sent = frame(number)
        sent.ClearField("stamp_ns")
        if stamp_ns is not None:
            sent.stamp_ns = stamp_ns
        stream.ask(pb.ProcessRequest(frame=sent))
    found = sidecar.monitor.GetStatus(status_pb2.GetStatusRequest(), timeout=PATIENCE)
    assert found.version == __version__
    assert found.started_ns <= stamp <= found.now_ns <= time.time_ns()
    assert not found.HasField("tracker")
    assert found.configuration.endswith("sidecar.toml")
    (told,) = (one for one in found.streams if one.stream == "told")
    assert (told.frames, told.detections, told.matched) == (2, 6, 6)
    assert told.stamp_ns == stamp - 7200 * 10**9
    assert stamp <= told.stamped_received_ns <= told.received_ns <= found.now_ns

    def lag() -> float:
        pattern = r'^calibration_stamp_lag_seconds\{of="least"\} (\S+)$'
        least = re.search(pattern, sidecar.get("/metrics"), re.MULTILINE)
        return float(least[1]) if least else 0.0

    assert eventually(lambda: 7200 <= lag() < 7200 + PATIENCE), lag()
    text = sidecar.get("/metrics")
    assert re.search(rf'^calibration_build_info\{{.*version="{__version__}".*\}} 1.0$', text, re.M)
    for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds", "start_time_seconds"):
        assert re.search(rf"^process_{name} [1-9]", text, re.MULTILINE), name
    assert '<th scope="row">told</th><td>2</td>' in sidecar.get("/")
    assert (sidecar.get("/healthz"), sidecar.get("/readyz")) == ("ok\n", "ready\n")
    stream.close()


def test_health_is_told_by_service_and_reflection_is_off_by_default(sidecar):
    for service in ("", MONITOR, ADMIN):
        request = health_pb2.HealthCheckRequest(service=service)
        assert sidecar.health.Check(request, timeout=PATIENCE).status == 1
    unknown = health_pb2.HealthCheckRequest(service="nothing")
    with pytest.raises(grpc.RpcError) as caught:
        sidecar.health.Check(unknown, timeout=PATIENCE)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    stub = reflection_pb2_grpc.ServerReflectionStub(sidecar.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    listing = stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE)
    assert failure(lambda: next(listing))[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.campaign
def test_a_sidecar_beset_with_messages_gone_wrong_answers_each_and_serves_on(tmp_path):
    with running(tmp_path, CONFIG) as beset:
        siege = asyncio.run(besieged(beset.grpc, 3_000, seed=8))
        assert siege.sent >= 3_000
        assert siege.beside > 20
        kinds = {outcome.partition(" ")[0] for outcome in siege.outcomes}
        assert {"frame", "labels:", "ProcessFrame", "ImportStatistics", "Promote"} <= kinds
        assert eventually(lambda: beset.metric("streams") >= 4)
        assert beset.metric("internal_errors_total") == 0
