"""Runs a sidecar as a process of its own, and sensors that load it; what the sidecar says of itself
is read from /proc and from its metrics. Run by itself, it is the floor: a gRPC server that sends
every message back as it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from benchmarks.scene import CLASSES, RATE, SPACE, framed
from monitor.frames.frame import Header
from monitor.frames.space import Space
from monitor.wire.client_messages import encode_header

ROOT = Path(__file__).parents[1]
SENSORS = 6
PROCESS = "/monitor.v1.PerceptionMonitor/Process"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
PATIENCE = 10.0  # s for an answer to come at all
WINDOW = 4  # frames on their way per stream that is not paced
MEGABYTE = 1e6

# Settings with a kind of tracker. Nothing is shed: every frame is counted, whatever the load.
COUNT_ALL = """[server]
shed_lag_seconds = 0
shed_rows = 0
[state]
folder = "state"
[tracker]
kind = "{}"
"""


@dataclass(slots=True)
class Running:
    """Looks at a sidecar that serves, or at an echo.

    stopping  s that it took from SIGTERM to its end; NaN before
    """

    process: subprocess.Popen[str]
    grpc: str
    http: str
    log: Path
    stopping: float = math.nan

    def _told(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text()

    def rss(self) -> float:
        """Reads resident MB."""
        return int(self._told("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    def peak(self) -> float:
        """Reads the most resident MB since the start."""
        return int(self._told("status").partition("VmHWM:")[2].split()[0]) * 1024 / MEGABYTE

    def descriptors(self) -> int:
        """Counts open files."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def cpu(self) -> float:
        """Reads seconds of processor so far."""
        fields = self._told("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        """Reads all series, by name and labels, without the prefix; empty where none came."""
        if not self.http:
            return {}
        try:
            with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, TimeoutError):
            return {}
        lines = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name.removeprefix("calibration_"): float(value) for name, _, value in lines}

    def faults(self) -> int:
        """Counts the faults of its own that its log tells."""
        return self.log.read_text("utf-8").count("Traceback")


@contextlib.contextmanager
def serving(
    folder: Path,
    config: str,
    *,
    echo: bool = False,
    command: Sequence[str] = ("-m", "monitor"),
    tree: Path = ROOT,
) -> Iterator[Running]:
    """Runs a sidecar in a folder; it is told to stop at the end of the block.

    echo     a server instead that sends back what it gets: the cost of gRPC and the machine alone
    command  options of Python that run the command line
    tree     that the sidecar's code is in: another one is that of another version
    """
    settings, log = folder / "sidecar.toml", folder / "stderr.txt"
    settings.write_text(config, encoding="utf-8")
    command = [sys.executable, *command, "serve", "--config", str(settings)]
    command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    if echo:
        command = [sys.executable, "-m", "benchmarks.loads"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT if echo else tree)}
    pipe = subprocess.PIPE
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=folder, stdout=pipe, stderr=errors, text=True, env=environment
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening "), log.read_text("utf-8")
        addresses = json.loads(line.removeprefix("listening "))
        running = Running(process, addresses["grpc"], addresses.get("http", ""), log)
        yield running
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        running.stopping = time.perf_counter() - began
    finally:
        process.kill()
        process.wait(30)


@dataclass(slots=True)
class Sensor:
    """Sends a frame each 1/rate s and has one at a time on its way, or does what it can.

    labelled  bodies of frames that come with ground truth, for that share of all frames, evenly
    answered  told of each frame that was: its number
    took      s from when a frame was due to its answer
    skipped   frames that were not sent, since the one before was not answered in time
    wrong     answers that are not of the frame that was sent
    """

    name: str
    bodies: list[bytes]
    rate: float = RATE
    return_tracks: bool = False
    space: Space = SPACE
    labelled: list[bytes] | None = None
    share: float = 0.0
    answered: Callable[[int], None] = lambda _number: None
    took: list[float] = field(default_factory=list)
    frames: int = 0
    skipped: int = 0
    wrong: int = 0

    async def _opened(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
        call = channel.stream_stream(PROCESS)()
        header = Header(self.name, self.space, CLASSES, return_tracks=self.return_tracks)
        await call.write(encode_header(header))
        await asyncio.wait_for(call.read(), PATIENCE)
        return call

    def _frame(self, number: int, stamp_ns: int) -> bytes:
        due = int(number * self.share) > int((number - 1) * self.share)
        return framed(number, stamp_ns, self.labelled if due and self.labelled else self.bodies)

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        reply = await asyncio.wait_for(call.read(), 3 * PATIENCE)
        self.frames += 1
        # The frame's number is the first field of the answer, behind two tags and a length.
        self.wrong += self.frames.to_bytes(8, "little") not in bytes(reply[:32])
        self.answered(self.frames)

    async def paced(self, channel: grpc.aio.Channel, ending: asyncio.Event, offset: float) -> None:
        """Goes on until the event; the first frame is due `offset` s from now."""
        call = await self._opened(channel)
        due, base = time.perf_counter() + offset, time.time_ns()
        began = due
        while not ending.is_set():
            now = time.perf_counter()
            if now > due + 1 / self.rate:
                # As a detector does that is a frame behind: it leaves some out.
                self.skipped += int((now - due) * self.rate)
                due = now
            await asyncio.sleep(max(0.0, due - now))
            stamp_ns = base + round(1e9 * (due - began))
            await call.write(self._frame(self.frames + 1, stamp_ns))
            await self._read(call)
            self.took.append(time.perf_counter() - due)
            due += 1 / self.rate
        await call.done_writing()

    async def flat_out(self, channel: grpc.aio.Channel, ending: asyncio.Event) -> None:
        """Goes on until the event, with some frames on their way at any time."""
        call, sent = await self._opened(channel), self.frames
        base = time.time_ns()
        while not ending.is_set():
            sent += 1
            # Stamps as of a paced stream, so that a tracker sees the same motion.
            await call.write(self._frame(sent, base + round(sent * 1e9 / self.rate)))
            if sent - self.frames >= WINDOW:
                await self._read(call)
        while self.frames < sent:
            await self._read(call)
        await call.done_writing()


@contextlib.asynccontextmanager
async def going(
    address: str,
    sensors: Sequence[Sensor],
    *others: Callable[[grpc.aio.Channel, asyncio.Event], Awaitable[None]],
    pace: bool = True,
    in_step: bool = False,
) -> AsyncIterator[Sequence[asyncio.Future[None]]]:
    """Runs sensors, and others on the same channel, until the end of the block.

    pace     whether sensors keep theirs
    in_step  whether their frames are due at the same moments, not by turns
    """
    ending = asyncio.Event()
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        running = [other(channel, ending) for other in others]
        for i, one in enumerate(sensors):
            offset = 0.0 if in_step else i / len(sensors) / one.rate
            paced = partial(one.paced, offset=offset)
            running.append((paced if pace else one.flat_out)(channel, ending))
        tasks = [asyncio.ensure_future(each) for each in running]
        yield tasks
        ending.set()
        await asyncio.gather(*tasks)


def taken(sensors: Iterable[Sensor]) -> list[float]:
    """Returns what sensors have measured since this was asked last."""
    found = []
    for sensor in sensors:
        found += sensor.took
        sensor.took = []
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Returns NaN of nothing."""
    return float(np.quantile(values, share)) if values else math.nan


# ---- the echo


async def _echo(_: object, context: grpc.aio.ServicerContext) -> None:
    while (data := await context.read()) is not grpc.aio.EOF:
        await context.write(data)


async def _serve_echo() -> None:
    server = grpc.aio.server(options=OPTIONS)
    service, _, method = PROCESS[1:].rpartition("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening {json.dumps({'grpc': f'127.0.0.1:{port}'})}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve_echo())
