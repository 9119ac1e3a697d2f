"""The channel to a tracker elsewhere, against real servers on loopback."""

import asyncio
import socket
from contextlib import AbstractAsyncContextManager

import grpc
import pytest

from monitor.config import TrackerConfig, TrackerKind
from monitor.pipeline import external_tracker
from monitor.pipeline.external_tracker import Link, LinkLost, dial
from monitor.v1 import tracker_pb2
from monitor.wire.tracker import encode_frame_update
from tests.certificates import Authority
from tests.piped import HEADER, opened, pipeline_of, sent
from tests.received import frame
from tests.served import PATIENCE
from tests.trackers import silent, tracking


def dialled(address: str, **changes) -> AbstractAsyncContextManager[Link]:
    return dial(TrackerConfig(kind=TrackerKind.GRPC, address=address, **changes))


def request(sequence: int) -> bytes:
    pipeline = pipeline_of()
    answer = pipeline.process(opened(pipeline), frame([sent(1), sent(2)]))
    return encode_frame_update(HEADER.stream, answer, sequence, None)


async def verdicts(link: Link, count: int) -> list[bool]:
    found = []
    async for healthy in link.health():
        found.append(healthy)
        if len(found) == count:
            break
    return found


def run(work):
    return asyncio.run(asyncio.wait_for(work, 3 * PATIENCE))


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_what_is_written_is_answered():
    async def talk(address):
        async with dialled(address) as link:
            for sequence in (1, 2, 3):
                await link.write(request(sequence))
                found = tracker_pb2.UpdateResponse.FromString(await link.read())
                assert found.sequence == sequence
                assert len(found.tracks) == 2

    with tracking() as tracker:
        run(talk(tracker.address))
        assert tracker.calls == 1


def test_a_tracker_that_is_not_there_is_a_lost_link_at_once():
    async def talk():
        async with dialled(free_address()):
            raise AssertionError("there is nobody")

    with pytest.raises(LinkLost, match="nobody takes the connection"):
        run(talk())


def test_a_socket_that_takes_connections_and_says_nothing_is_a_lost_link(monkeypatch):
    monkeypatch.setattr(external_tracker, "CONNECTING", 0.2)

    async def talk(address):
        async with dialled(address):
            raise AssertionError("there is nobody")

    mute = socket.create_server(("127.0.0.1", 0))
    with mute, pytest.raises(LinkLost, match="no connection within"):
        run(talk(f"127.0.0.1:{mute.getsockname()[1]}"))


def test_a_server_that_is_no_tracker_is_a_lost_link_that_says_so(monkeypatch):
    async def talk(address):
        async with dialled(address) as link:
            await link.read()

    monkeypatch.setattr(external_tracker, "UPDATE", "/monitor.v1.Tracker/Other")
    with tracking() as tracker, pytest.raises(LinkLost, match="UNIMPLEMENTED"):
        run(talk(tracker.address))


@pytest.mark.components
@pytest.mark.parametrize("known", [True, False])
def test_over_tls_the_tracker_is_who_the_authority_says(tmp_path, known):
    async def talk(address, path):
        async with dialled(address, certificate_authority=str(path)) as link:
            await link.write(request(1))
            return tracker_pb2.UpdateResponse.FromString(await link.read()).sequence

    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    pair = own.signed("tracker")
    pem = (pair.key.read_bytes(), pair.certificate.read_bytes())
    with tracking(credentials=grpc.ssl_server_credentials([pem])) as tracker:
        if known:
            assert run(talk(tracker.address, own.certificate)) == 1
        else:
            with pytest.raises(LinkLost, match=r"or its certificate is not of '.*other\.pem'"):
                run(talk(tracker.address, other.certificate))


def test_a_tracker_that_ends_is_a_lost_link_for_who_reads_and_for_who_writes():
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


def test_a_tracker_that_tells_of_its_health_is_believed():
    async def talk(tracker):
        async with dialled(tracker.address) as link:
            said, found = iter((True, False)), []
            async for healthy in link.health():
                found.append(healthy)
                if (following := next(said, None)) is None:
                    return found
                tracker.say(following)

    with tracking(healthy=False) as tracker:
        assert run(talk(tracker)) == [False, True, False]


def test_a_tracker_that_does_not_tell_of_its_health_is_well():
    async def talk(address):
        async with dialled(address) as link:
            return await verdicts(link, 1)

    with tracking() as tracker:
        assert run(talk(tracker.address)) == []


def test_a_write_that_nobody_reads_waits_and_can_be_given_up():
    async def talk(address):
        async with dialled(address) as link:
            written = 0
            big = bytes(tracker_pb2.UpdateRequest(stream="x" * 2**20).SerializeToString())
            while written < 64:
                try:
                    await asyncio.wait_for(link.write(big), 0.2)
                except (TimeoutError, LinkLost):
                    return written
                written += 1
        return written

    with tracking(silent, deaf=True) as tracker:
        assert run(talk(tracker.address)) < 64


def test_an_authority_that_cannot_be_read_is_a_lost_link_that_names_the_key(tmp_path):
    async def talk():
        async with dialled("127.0.0.1:1", certificate_authority=str(tmp_path / "none")):
            raise AssertionError("there is nobody")

    with pytest.raises(LinkLost, match=r"\[tracker\] certificate_authority"):
        run(talk())
