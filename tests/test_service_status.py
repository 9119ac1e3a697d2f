"""What a running sidecar tells of itself over GetStatus, and over /metrics as a program."""

import re
import time

from monitor import __version__
from monitor.v1 import perception_monitor_pb2, status_pb2
from tests.foreign_client import frame, in_frame, labels, opened
from tests.served import PATIENCE, Conversation, Sidecar, eventually


def status_of(sidecar: Sidecar) -> status_pb2.GetStatusResponse:
    found = sidecar.monitor.GetStatus(status_pb2.GetStatusRequest(), timeout=PATIENCE)
    assert isinstance(found, status_pb2.GetStatusResponse)
    return found


def test_a_sidecar_tells_its_version_its_clock_and_what_came_of_every_stream(start):
    before = time.time_ns()
    sidecar = start()
    fresh = status_of(sidecar)
    assert fresh.version == __version__
    assert before <= fresh.started_ns <= fresh.now_ns <= time.time_ns()
    assert not fresh.streams
    assert not fresh.HasField("tracker")
    assert fresh.configuration.endswith("sidecar.toml")

    stamped, bare = opened(sidecar, "stamped"), opened(sidecar, "bare")
    stamp = time.time_ns()
    sent = frame(1, truth=False)
    sent.stamp_ns = stamp
    stamped.ask(perception_monitor_pb2.ProcessRequest(frame=sent))
    stamped.ask(in_frame(2, truth=False))
    sent = frame(3)
    sent.ClearField("stamp_ns")
    bare.ask(perception_monitor_pb2.ProcessRequest(frame=sent))
    truth = Conversation(sidecar.monitor.ReportGroundTruth)
    truth.ask(labels("stamped", 1, [0, 1, 99]))
    found = status_of(sidecar)
    first, second = found.streams
    assert (first.stream, first.frames, first.detections, first.matched) == ("stamped", 2, 6, 2)
    # The last stamp, whatever it was.
    assert first.stamp_ns == 2
    assert stamp <= first.stamped_received_ns <= first.received_ns <= found.now_ns
    assert first.received_ns <= first.matched_received_ns <= found.now_ns
    assert (second.stream, second.frames, second.matched) == ("bare", 1, 3)
    assert not second.HasField("stamp_ns")
    assert not second.HasField("stamped_received_ns")
    for stream in (stamped, bare, truth):
        stream.close()


def test_a_stream_that_comes_again_with_another_header_goes_on_counting(start):
    sidecar = start()
    first = opened(sidecar, "lidar")
    first.ask(in_frame(1))
    second = opened(sidecar, "lidar", classes=("car", "van"))
    second.ask(in_frame(2))
    (found,) = status_of(sidecar).streams
    assert (found.frames, found.matched) == (2, 6)
    first.close()
    second.close()


def test_a_tracker_that_is_not_there_is_named_with_its_trouble(start):
    sidecar = start('[tracker]\nkind = "grpc"\naddress = "127.0.0.1:1"\nbackoff_seconds = 0.2\n')

    def trouble() -> str:
        tracker = status_of(sidecar).tracker
        assert (tracker.address, tracker.up) == ("127.0.0.1:1", False)
        return str(tracker.trouble)

    assert eventually(trouble).startswith("is away: ")


def test_the_metrics_have_the_build_the_process_and_the_lag_of_stamps(start):
    sidecar = start()
    stream = opened(sidecar, "lidar")
    sent = frame(1)
    sent.stamp_ns = time.time_ns() - 7200 * 10**9
    stream.ask(perception_monitor_pb2.ProcessRequest(frame=sent))
    text = eventually(lambda: "stamp_lag_seconds{" in (t := sidecar.get("/metrics")) and t)
    found = re.search(r'^calibration_stamp_lag_seconds\{of="most"\} (\S+)$', text, re.MULTILINE)
    assert found
    assert 7200 <= float(found[1]) < 7200 + PATIENCE
    assert re.search(rf'^calibration_build_info\{{.*version="{__version__}".*\}} 1.0$', text, re.M)
    for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds", "start_time_seconds"):
        assert re.search(rf"^process_{name} [1-9]", text, re.MULTILINE), name
    stream.close()
