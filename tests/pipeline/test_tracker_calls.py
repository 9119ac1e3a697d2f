"""The call to a tracker elsewhere, against real servers on loopback; and a real sidecar that
answers every frame, in order, whatever its tracker does."""

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from monitor.config import TrackerConfig, TrackerKind
from monitor.frames.frame import Header
from monitor.pipeline import external_tracker
from monitor.pipeline.external_tracker import Link, LinkLost, dial
from monitor.v1 import frame_pb2, perception_monitor_pb2, tracker_pb2
from monitor.wire.client_messages import encode_frame, encode_header
from monitor.wire.tracker import encode_frame_update
from tests.certificates import Authority
from tests.piped import CLASSES, DOUBLE, HEADER, XYZ, opened, pipeline_of, sent
from tests.received import frame as received_frame
from tests.served import PATIENCE, Conversation, Sidecar, eventually, process_bytes
from tests.trackers import (
    FIRST_TRACK,
    FakeTracker,
    answering,
    frame,
    tracker_process,
    tracking,
)


def dialled(address: str, **changes) -> AbstractAsyncContextManager[Link]:
    return dial(TrackerConfig(kind=TrackerKind.GRPC, address=address, **changes))


def request(sequence: int) -> bytes:
    pipeline = pipeline_of()
    answer = pipeline.process(opened(pipeline), received_frame([sent(1), sent(2)]))
    return encode_frame_update(HEADER.stream, answer, sequence, None)


async def exchanged(address: str, *sequences: int, **changes) -> None:
    """Every request gets its answer."""
    async with dialled(address, **changes) as link:
        for sequence in sequences:
            await link.write(request(sequence))
            found = tracker_pb2.UpdateResponse.FromString(await link.read())
            assert (found.sequence, len(found.tracks)) == (sequence, 2)


def run(work) -> Any:
    return asyncio.run(asyncio.wait_for(work, 3 * PATIENCE))


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# ---- the call


def test_a_written_frame_is_answered():
    with tracking() as tracker:
        run(exchanged(tracker.address, 1, 2, 3))
        assert tracker.calls == 1


def test_whoever_is_no_tracker_or_not_there_is_a_lost_link_that_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(external_tracker, "CONNECTING", 0.2)
    with pytest.raises(LinkLost, match="nobody takes the connection"):
        run(exchanged(free_address()))
    mute = socket.create_server(("127.0.0.1", 0))
    with mute, pytest.raises(LinkLost, match="no connection within"):
        run(exchanged(f"127.0.0.1:{mute.getsockname()[1]}"))
    with pytest.raises(LinkLost, match=r"\[tracker\] certificate_authority"):
        run(exchanged("127.0.0.1:1", certificate_authority=str(tmp_path / "none")))
    monkeypatch.setattr(external_tracker, "UPDATE", "/monitor.v1.Tracker/Other")
    with tracking() as tracker, pytest.raises(LinkLost, match="UNIMPLEMENTED"):
        run(exchanged(tracker.address, 1))


@pytest.mark.components
def test_over_tls_the_tracker_is_who_the_authority_says(tmp_path):
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    pair = own.signed("tracker")
    pem = (pair.key.read_bytes(), pair.certificate.read_bytes())
    with tracking(credentials=grpc.ssl_server_credentials([pem])) as tracker:
        run(exchanged(tracker.address, 1, certificate_authority=str(own.certificate)))
        with pytest.raises(LinkLost, match=r"or its certificate is not of '.*other\.pem'"):
            run(exchanged(tracker.address, 1, certificate_authority=str(other.certificate)))


def test_a_tracker_that_ends_is_a_lost_link_for_reads_and_writes():
    async def talk(tracker):
        async with dialled(tracker.address) as link:
            await link.write(request(1))
            await link.read()
            await asyncio.to_thread(tracker.stop)
            with pytest.raises(LinkLost):
                await link.read()
            with pytest.raises(LinkLost):
                await link.write(request(2))

    with tracking() as tracker:
        run(talk(tracker))


@pytest.mark.parametrize("healthy", [False, None])
def test_a_tracker_that_tells_of_its_health_is_believed_and_another_is_well(healthy):
    async def talk(tracker):
        said, found = iter((True, False)), []
        async with dialled(tracker.address) as link:
            async for serves in link.health():
                found.append(serves)
                if (following := next(said, None)) is None:
                    break
                tracker.say(following)
        return found

    with tracking(healthy=healthy) as tracker:
        assert run(talk(tracker)) == ([] if healthy is None else [False, True, False])


# ---- a real sidecar

CONFIG = """
[metrics]
refresh_seconds = 0.05
[pending]
folder = ""
max_bytes = 2000000
[recalibration]
recalibrator = "{recalibrator}"
[tracker]
kind = "grpc"
address = "{address}"
backoff_seconds = 0.2
timeout_seconds = 0.3
"""
NOT_TRACKED = frame_pb2.REASON_NOT_TRACKED


@dataclass(frozen=True)
class Served:
    """A sidecar, and the address at which it looks for a tracker."""

    sidecar: Sidecar
    address: str

    def forwarded(self) -> dict[str, int]:
        """Frames by outcome, of the last refresh."""
        pattern = r'^calibration_tracker_forwarded_total\{outcome="(\w+)"\} (\S+)$'
        found = re.findall(pattern, self.sidecar.get("/metrics"), re.MULTILINE)
        return {outcome: int(float(value)) for outcome, value in found}

    def is_up(self, up=True) -> None:
        assert eventually(lambda: self.sidecar.metric("tracker_up") == up)

    @contextlib.contextmanager
    def tracked(self, behave=answering, **options: Any) -> Iterator[FakeTracker]:
        """A tracker that the sidecar knows to be there, and after the block to be away."""
        with tracking(behave, address=self.address, **options) as tracker:
            self.is_up()
            yield tracker
        self.is_up(False)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forwarding")
    recalibrator = folder / "double.json"
    recalibrator.write_text(DOUBLE.to_json(), encoding="utf-8")
    address = free_address()
    sidecar = Sidecar(folder, CONFIG.format(recalibrator=recalibrator, address=address))
    try:
        yield Served(sidecar, address)
        sidecar.stop()
    finally:
        sidecar.end()


class Feed:
    """A Process stream; every answer is to the frame that was asked for, and recalibrated."""

    def __init__(self, served: Served, name: str, *, return_tracks: bool = True) -> None:
        self.conversation = Conversation(process_bytes(served.sidecar.channel))
        header = Header(name, XYZ, CLASSES, return_tracks=return_tracks)
        reply = self.conversation.ask(encode_header(header))
        assert perception_monitor_pb2.ProcessResponse.FromString(reply).header.accepted
        self.number = 0

    def ask(self, n: int = 2) -> frame_pb2.FrameResult:
        self.number += 1
        reply = self.conversation.ask(encode_frame(frame(self.number, n)))
        result = perception_monitor_pb2.ProcessResponse.FromString(reply).frame
        assert result.frame_id == result.message_index == self.number
        assert result.status == frame_pb2.STATUS_RECALIBRATED
        assert len(result.detections) == n
        assert list(result.detections[0].covariance) == [4.0, 0.0, 8.0, 0.0, 0.0, 12.0]
        return result

    def missed(self) -> None:
        result = self.ask()
        assert not result.tracks
        assert [notice.reason for notice in result.notices] == [NOT_TRACKED]


def test_the_tracker_gets_what_the_detector_gets_and_the_detector_its_tracks(served):
    feed = Feed(served, "usual")
    served.is_up(False)
    feed.missed()
    with served.tracked() as tracker:
        result = feed.ask()
        assert [track.id for track in result.tracks] == [FIRST_TRACK + 10, FIRST_TRACK + 11]
        assert [d.track_id for d in result.detections] == [track.id for track in result.tracks]
        assert not result.notices
        (forwarded,) = tracker.frames
        assert (forwarded.stream, forwarded.frame.frame_id) == ("usual", result.frame_id)
        for ours, back in zip(forwarded.frame.detections, result.detections, strict=True):
            assert (ours.id, list(ours.mean)) == (back.id, list(back.mean))
            assert list(ours.covariance) == list(back.covariance)
        assert tracker.kinds() == [("usual", "header"), ("usual", "frame")]


def test_a_tracker_that_is_killed_and_comes_back_is_told_the_headers_anew(served):
    feed = Feed(served, "killed")
    with tracker_process(served.address) as (process, _):
        served.is_up()
        assert len(feed.ask().tracks) == 2
        process.kill()
        process.wait(PATIENCE)
        served.is_up(False)
        feed.missed()
    with served.tracked() as tracker:
        assert len(feed.ask().tracks) == 2
        assert tracker.kinds() == [("killed", "header"), ("killed", "frame")]
        assert tracker.frames[0].sequence == 1
