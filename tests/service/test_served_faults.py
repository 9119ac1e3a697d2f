"""Clients and trackers that fail, each a process of its own, beside a stream that goes on: it is
answered, memory is bounded, and the sidecar recovers by itself. `make benchmark-faults` measures
what each costs in time.
"""

import contextlib
import signal
import socket
import time
from pathlib import Path

import pytest

from monitor.frames.frame import Header
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.client_messages import encode_frame, encode_header
from tests.faulty_clients import faulty
from tests.piped import CLASSES, XYZ
from tests.served import PATIENCE, Conversation, Sidecar, eventually, process_bytes, running
from tests.trackers import frame

pytestmark = pytest.mark.campaign

CONFIG = """
[metrics]
refresh_seconds = 0.2
[server]
write_timeout_seconds = 1.0
keepalive_seconds = 0.5
keepalive_timeout_seconds = 0.5
[pending]
max_bytes = 20000000
"""
MOST_GROWTH = 150 * 2**20  # bytes
FRAMES = 40


class Beside:
    """A stream in which all is well; each frame waits for its answer."""

    def __init__(self, sidecar: Sidecar, *, return_tracks: bool = False) -> None:
        self.stream = Conversation(process_bytes(sidecar.channel))
        self.number = 0
        header = Header("beside", XYZ, CLASSES, return_tracks=return_tracks)
        self.stream.ask(encode_header(header))

    def goes_on(self, frames: int = FRAMES) -> None:
        for _ in range(frames):
            self.number += 1
            sent = frame(self.number)
            data = self.stream.ask(encode_frame(sent))
            found = perception_monitor_pb2.ProcessResponse.FromString(data).frame
            assert found.frame_id == self.number
            assert found.status == frame_pb2.STATUS_RECALIBRATED
            assert [list(d.mean) for d in found.detections] == sent.mean.tolist()
            time.sleep(0.01)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    with running(tmp_path_factory.mktemp("faults"), CONFIG) as sidecar:
        yield sidecar


@pytest.fixture
def beside(sidecar):
    """It has gone on, and at the end the sidecar is as it was."""
    stream = Beside(sidecar)
    stream.goes_on()
    before = sidecar.memory()
    yield stream
    stream.goes_on()
    assert sidecar.memory() - before < MOST_GROWTH
    assert eventually(lambda: sidecar.metric("overload") == 0, 3 * PATIENCE)
    assert sidecar.metric("internal_errors_total") == 0
    stream.stream.close()


def test_a_client_that_stops_reading_is_dropped_and_the_others_go_on(sidecar, beside):
    dropped = sidecar.metric("streams_dropped_total")
    with faulty("deaf", sidecar.grpc, 2):
        beside.goes_on()
        assert eventually(lambda: sidecar.metric("streams_dropped_total") == dropped + 2)


@pytest.mark.parametrize("kind", ["deaf", "greedy"])
def test_a_client_that_is_killed_in_mid_stream_leaves_the_others_alone(sidecar, beside, kind):
    for _ in range(3):
        # Killed with the block; that nothing of it is in the log is seen at the end.
        with faulty(kind, sidecar.grpc, 4):
            beside.goes_on(10)
    beside.goes_on(10)


def test_a_client_that_falls_silent_with_its_line_open_is_let_go(sidecar, beside):
    with faulty("greedy", sidecar.grpc, 2) as client:
        beside.goes_on(5)
        client.send_signal(signal.SIGSTOP)
        assert eventually(lambda: connections(sidecar) <= 1, 3 * PATIENCE)
        beside.goes_on()


def connections(sidecar: Sidecar) -> int:
    """Sockets that are connected to the sidecar's port."""
    process = Path(f"/proc/{sidecar.process.pid}")
    ours = set()
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            ours.add(descriptor.stat().st_ino)
    port = f":{int(sidecar.grpc.rpartition(':')[2]):04X}"
    rows = [line.split() for line in (process / "net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" and int(row[9]) in ours for row in rows)


def test_a_client_that_pushes_as_fast_as_it_can_is_answered_beside_the_others(sidecar, beside):
    answered = sidecar.metric("frames_total")
    with faulty("greedy", sidecar.grpc, 6):
        beside.goes_on(2 * FRAMES)
        assert eventually(lambda: sidecar.metric("frames_total") > answered + 4 * FRAMES)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_while_a_tracker_comes_and_goes_and_is_slow_every_frame_is_answered(tmp_path):
    address = free_address()
    config = CONFIG + (
        f'[tracker]\nkind = "grpc"\naddress = "{address}"\nbackoff_seconds = 0.2\n'
        "timeout_seconds = 0.02\n"
    )
    with running(tmp_path, config) as sidecar:
        stream = Beside(sidecar, return_tracks=True)
        before = sidecar.memory()
        for milliseconds in (0, 100, 0):
            with faulty("tracker", address, milliseconds):
                assert eventually(lambda: sidecar.metric("tracker_up") == 1, 3 * PATIENCE)
                stream.goes_on()
            stream.goes_on()
            assert eventually(lambda: sidecar.metric("tracker_up") == 0, 3 * PATIENCE)
        assert sidecar.memory() - before < MOST_GROWTH
        stream.stream.close()
