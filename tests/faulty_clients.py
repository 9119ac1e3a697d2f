"""Clients that do not behave, as processes of their own: `python -m tests.faulty_clients KIND
ADDRESS COUNT`; no tests here.

    greedy   sends frames on so many streams as fast as they are taken, and reads all answers
    deaf     the same, but reads none
    idle     opens so many streams and says nothing
    tracker  one that takes so many milliseconds for each frame, at that address
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import numpy as np

from monitor.frames.frame import Header
from monitor.frames.space import Dimension, Space
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from tests.served import MONITOR, PATIENCE, ROOT
from tests.trackers import FakeTracker, slow

PROCESS = f"/{MONITOR}/Process"
DETECTIONS = 200
WINDOW = 32  # frames of a greedy stream on their way
SPACE = Space(tuple(Dimension(name, "m") for name in ("x", "y", "z", "l", "w", "h")))
OPTIONS = [("grpc.max_receive_message_length", -1)]


def _frame(number: int) -> bytes:
    n, k = DETECTIONS, SPACE.k
    return encode_frame(
        OutgoingFrame(
            frame_id=number,
            stamp_ns=time.time_ns(),
            id=np.arange(n, dtype=np.uint64),
            class_index=np.zeros(n, np.int64),
            mean=np.zeros((n, k)),
            covariance=np.broadcast_to(np.eye(k), (n, k, k)),
        )
    )


async def _send(channel: grpc.aio.Channel, name: str, reads: bool) -> None:
    call = channel.stream_stream(PROCESS)()
    await call.write(encode_header(Header(name, SPACE, ("car",))))
    await call.read()
    _say()
    number, room = 0, asyncio.Semaphore(WINDOW)

    async def read() -> None:
        while await call.read() is not grpc.aio.EOF:
            room.release()

    reading = asyncio.create_task(read()) if reads else None
    while reading is None or not reading.done():
        if reads:
            await room.acquire()
        number += 1
        await call.write(_frame(number))


async def _idle(channel: grpc.aio.Channel, count: int) -> None:
    calls = [channel.stream_stream(PROCESS)() for _ in range(count)]
    await asyncio.gather(*(call.wait_for_connection() for call in calls))
    _say()
    await asyncio.Event().wait()


def _say() -> None:
    print("begun", flush=True)


async def _run(kind: str, address: str, count: int) -> None:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        if kind == "idle":
            await _idle(channel, count)
        else:
            sending = (_send(channel, f"{kind}{i}", kind == "greedy") for i in range(count))
            await asyncio.gather(*sending)


@contextlib.contextmanager
def faulty(kind: str, address: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """A client that has begun; it is killed with the block, if it still lives."""
    command = [sys.executable, "-m", "tests.faulty_clients", kind, address, str(count)]
    # What it says when its calls end is no news.
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], 3 * PATIENCE)
            assert readable
            assert process.stdout.readline() == b"begun\n"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def main(kind: str, address: str, count: int) -> None:
    if kind == "tracker":
        tracker = FakeTracker(slow(count / 1000), address=address)
        _say()
        while True:
            time.sleep(PATIENCE)
            tracker.requests.clear()
    asyncio.run(_run(kind, address, count))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
