"""What clients can take of a sidecar: calls, messages in a second, connections, and its files."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from monitor.store.files import private
from tests.foreign_client import failure, in_frame, in_header, opened, promote, scaling
from tests.served import PATIENCE, Conversation, eventually, process_bytes, running

FEW = """
[metrics]
refresh_seconds = 0.2
[server]
max_calls = 3
max_messages_per_second = 20.0
keepalive_seconds = 0.3
keepalive_timeout_seconds = 0.3
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A sidecar that takes three calls at a time, and twenty messages a second of each."""
    with running(tmp_path_factory.mktemp("few"), FEW) as sidecar:
        yield sidecar


def test_calls_beyond_the_limit_are_refused_and_taken_again_when_there_is_room(few):
    streams = [opened(few, f"call{i}") for i in range(3)]
    refused = Conversation(few.monitor.Process)
    code, text = failure(lambda: refused.ask(in_header("one too many")))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "3 calls are open" in text
    assert "max_calls" in text
    assert failure(few.calibration)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert few.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1
    streams[0].close()
    assert eventually(lambda: answers(few))
    for stream in streams[1:]:
        stream.ask(in_frame(1))
        stream.close()


def answers(sidecar) -> bool:
    try:
        sidecar.calibration()
    except grpc.RpcError:
        return False
    return True


def test_a_stream_that_sends_too_fast_is_read_more_slowly_and_loses_nothing(few):
    began = time.monotonic()
    stream = opened(few, "fast")
    for i in range(30):
        stream.send(in_frame(i + 1))
    assert [stream.receive().frame.frame_id for _ in range(30)] == list(range(1, 31))
    # The header and nineteen frames may come at once; eleven more wait, however slow we are.
    assert time.monotonic() - began > 0.5
    stream.close()


VANISHING = """
    import sys
    import grpc
    channel = grpc.insecure_channel(sys.argv[1])
    calls = [channel.stream_stream("/monitor.v1.PerceptionMonitor/Process") for _ in range(3)]
    grpc.channel_ready_future(channel).result(10)
    from queue import Queue
    streams = [call(iter(Queue().get, None)) for call in calls]
    print("open", flush=True)
    Queue().get()
"""


def test_the_calls_of_a_client_that_has_vanished_end(few):
    assert eventually(lambda: answers(few))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(VANISHING), few.grpc], stdout=subprocess.PIPE
    ) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"open\n"
            assert eventually(lambda: not answers(few))
            # Its machine still acknowledges what arrives, as one behind a dead link would not.
            client.send_signal(signal.SIGSTOP)
            assert eventually(lambda: answers(few))
        finally:
            client.kill()


def test_a_thousand_idle_streams_leave_room_for_one_that_works(start):
    sidecar = start()
    before = sidecar.memory()
    grown = asyncio.run(_beside_idle(sidecar, 1000)) - before
    assert grown < 100 * 2**20, f"{grown / 2**20:.1f} MiB"


async def _beside_idle(sidecar, count: int) -> int:
    """Resident bytes of the sidecar while so many streams are open, and one is answered."""
    async with grpc.aio.insecure_channel(sidecar.grpc) as channel:
        idle = [process_bytes(channel)() for _ in range(count)]
        works = process_bytes(channel)()
        for message in (in_header("works"), *(in_frame(i) for i in range(1, 20))):
            await works.write(message.SerializeToString())
            assert await asyncio.wait_for(works.read(), PATIENCE)
        memory: int = sidecar.memory()
        assert not any(call.done() for call in idle)
        return memory


# ---- files

KEPT = """
[state]
folder = "{folder}"
every_seconds = 0.1
"""


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request) -> Iterator[int]:
    """Of this process, and those that it starts."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_all_that_a_sidecar_writes_is_for_its_owner_alone(start, tmp_path):
    before = os.umask(0)
    folder = tmp_path / "kept"
    try:
        sidecar = start(KEPT.format(folder=folder))
    finally:
        os.umask(before)
    stream = opened(sidecar, "kept")
    stream.ask(in_frame(1))
    promote(sidecar, document=scaling(2.0, 3.0))
    names = {"state.db", "state.db.1", "lock"}
    assert eventually(lambda: names <= {*relative(folder)}), relative(folder)
    stream.close()
    sidecar.stop()
    others = {
        name: stat.filemode(mode)
        for name, mode in relative(folder).items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }
    assert others == {}


def relative(folder: Path) -> dict[str, int]:
    """Mode of all that is in a folder, by its name there."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it was temporary
            found[path.relative_to(folder).as_posix()] = path.lstat().st_mode
    return found


def test_a_file_that_was_open_to_others_is_closed_to_them_when_it_is_written(umask, tmp_path):
    path = tmp_path / "file"
    for _ in range(2):
        with open(path, "ab", opener=private) as file:
            file.write(b"x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o666)
    path.with_name("link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        os.close(private(str(tmp_path / "link"), os.O_WRONLY))
