"""A sidecar that serves, beset on all its methods: no message without its answer, no stream lost
but by its own fault, and a stream beside them that does not notice.
"""

import asyncio

import grpc
import pytest

from tests.fuzzed_live import CONFIG, besieged
from tests.served import PATIENCE, Conversation, eventually, process_bytes, running

MESSAGES = 3_000


@pytest.mark.campaign
def test_a_sidecar_beset_with_messages_gone_wrong_answers_each_and_serves_on(tmp_path):
    folder = tmp_path / "kept"
    config = CONFIG + f'folder = "{folder}"\n'
    with running(tmp_path, config) as sidecar:
        siege = asyncio.run(besieged(sidecar.grpc, MESSAGES, seed=8))
        assert siege.sent >= MESSAGES
        assert siege.beside > 20
        kinds = {outcome.partition(" ")[0] for outcome in siege.outcomes}
        assert {"frame", "labels:", "ProcessFrame", "ImportStatistics", "Promote"} <= kinds
        assert eventually(lambda: sidecar.metric("streams") >= 4)
        assert sidecar.metric("internal_errors_total") == 0


def test_bytes_that_are_no_grpc_at_all_do_not_disturb_a_stream(tmp_path):
    with running(tmp_path, "") as sidecar:
        stream = Conversation(process_bytes(sidecar.channel))
        host, _, port = sidecar.grpc.rpartition(":")
        asyncio.run(_garbage(host, int(port)))
        assert stream.ask(b"\xff") != b""
        stream.close()


async def _garbage(host: str, port: int) -> None:
    """Connections that speak HTTP/1, the beginning of HTTP/2, or nothing known; and hang up."""
    for said in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\xff\x7f\xff\xff\xff",
        bytes(range(256)) * 8,
    ):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(said)
        await asyncio.wait_for(writer.drain(), PATIENCE)
        writer.transport.abort()


def test_a_message_beyond_what_the_transport_takes_ends_its_own_stream_alone(tmp_path):
    config = "[server]\nmax_message_bytes = 1000\ntransport_message_bytes = 100000\n"
    with running(tmp_path, config) as sidecar:
        beside = Conversation(process_bytes(sidecar.channel))
        assert beside.ask(b"\xff") != b""
        stream = Conversation(process_bytes(sidecar.channel))
        assert stream.ask(bytes(1001)) != b""
        stream.send(bytes(100_001))
        try:
            stream.receive()
        except grpc.RpcError:
            assert stream.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        else:
            raise AssertionError("a message that is too large was answered")
        assert beside.ask(b"\xff") != b""
        beside.close()
