"""The call to a tracker elsewhere, against real servers on loopback; and a real sidecar that
answers every frame, in order, whatever its tracker does."""

import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest

from monitor.config import TrackerConfig, TrackerKind
from monitor.frames.frame import Header
from monitor.pipeline import external_tracker
from monitor.pipeline.external_tracker import Link, LinkLost, dial
from monitor.v1 import frame_pb2, perception_monitor_pb2, tracker_pb2
from monitor.wire.answers import encode_frame_update
from monitor.wire.client_messages import encode_frame, encode_header
from tests.certificates import Authority
from tests.piped import CLASSES, DOUBLE, HEADER, XYZ, opened, pipeline_of, sent
from tests.received import frame as received_frame
from tests.served import PATIENCE, Conversation, Sidecar, eventually, process_bytes
from tests.trackers import FIRST_TRACK, frame, tracker_process, tracking


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
    with pytest.raises(LinkLost, match="nobody takes the connection"):
        run(exchanged(free_address()))
    mute = socket.create_server(("127.0.0.1", 0))
    with mute, monkeypatch.context() as soon, pytest.raises(LinkLost, match="no connection within"):
        soon.setattr(external_tracker, "CONNECTING", 0.2)
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


def test_a_real_sidecar_passes_on_tracks_while_its_tracker_is_there_and_tells_it_headers_anew(
    tmp_path,
):
    recalibrator, address = tmp_path / "double.json", free_address()
    recalibrator.write_text(DOUBLE.to_json(), encoding="utf-8")
    sidecar = Sidecar(tmp_path, CONFIG.format(recalibrator=recalibrator, address=address))
    conversation = Conversation(process_bytes(sidecar.channel))
    opening = conversation.ask(encode_header(Header("lidar", XYZ, CLASSES, return_tracks=True)))
    assert perception_monitor_pb2.ProcessResponse.FromString(opening).header.accepted

    def is_up(up: bool) -> None:
        assert eventually(lambda: sidecar.metric("tracker_up") == up)

    def asked(number: int, *, tracked: bool) -> frame_pb2.FrameResult:
        reply = conversation.ask(encode_frame(frame(number, 2)))
        result = perception_monitor_pb2.ProcessResponse.FromString(reply).frame
        assert (result.frame_id, result.status) == (number, frame_pb2.STATUS_RECALIBRATED)
        assert list(result.detections[0].covariance) == [4.0, 0.0, 8.0, 0.0, 0.0, 12.0]
        missed = [] if tracked else [frame_pb2.REASON_NOT_TRACKED]
        assert [notice.reason for notice in result.notices] == missed
        assert len(result.tracks) == 2 * tracked
        return result

    try:
        is_up(False)
        asked(1, tracked=False)
        with tracker_process(address) as (process, _):
            is_up(True)
            asked(2, tracked=True)
            process.kill()
            process.wait(PATIENCE)
            is_up(False)
            asked(3, tracked=False)
        with tracking(address=address) as tracker:
            is_up(True)
            result = asked(4, tracked=True)
        ids = [track.id for track in result.tracks]
        assert ids == [one.track_id for one in result.detections]
        assert ids == [FIRST_TRACK + 10, FIRST_TRACK + 11]
        assert tracker.kinds() == [("lidar", "header"), ("lidar", "frame")]
        (forwarded,) = tracker.frames
        assert forwarded.sequence == 1
        assert list(forwarded.frame.detections[0].covariance) == [4.0, 0.0, 8.0, 0.0, 0.0, 12.0]
        sidecar.stop()
    finally:
        sidecar.end()
